"""Texts that break the form of their request, where the service verifies them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.call_forms import HERMES
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.generation.validation import problem
from hf_transformer.generation.verification import BrokenForm, Verifier
from hf_transformer.observability.metrics import Metrics
from tests.generation.hostile_constraints import VALIDATED
from tests.generation.scripted import PipelineHarness, text_of

# One event loop, since the tests share the processes of `children`.
pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(x+x+)+y$"}}, "required": ["a"]}
ADD = HERMES.begin("add"), HERMES.tail
FORM = [HERMES.trigger, HERMES.head, HERMES.tail]
TOOL = [{"add": SCHEMA}, SCHEMA, FORM]


CASES: list[tuple[Any, Any, str, str]] = [
    ("json_schema", SCHEMA, '{"a": 1, "b": 2}', ""),
    ("json_schema", SCHEMA, '{"a": "1"}', "$.a: the value breaks the schema's 'type'"),
    ("json_schema", SCHEMA, '{"a": 1', "invalid JSON"),
    ("json_schema", PATTERN, '{ "a":\n"xxy"}', ""),
    ("json_schema", PATTERN, '{"a": "' + "x" * 5000 + '"}', "it does not match the schema"),
    ("json_object", {}, "{}", ""),
    ("json_object", {}, "[]", "breaks the schema's 'type'"),
    ("choice", ["a", "b"], "b", ""),
    ("choice", ["a", "b"], "c", "it is none of the choices"),
    ("regex", "(x+x+)+y", "xxy", ""),
    ("regex", "(x+x+)+y", "x" * 5000, "it does not match the regex"),
    ("grammar", 'start: "a" | "b"', "b", ""),
    ("grammar", 'start: "a" | "b"', "bb", "it does not match the grammar"),
    ("tool", TOOL, f'{ADD[0]}{{"a": 1}}{ADD[1]}', ""),
    ("tool", TOOL, f"{ADD[0]}{{}}{ADD[1]}", "the arguments of add: $: the value breaks the schema's 'required'"),
    ("tool", TOOL, '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>', "it calls a tool that the request"),
    ("tool", TOOL, '{"a": 1}', ""),
    ("tool", TOOL, "no", "invalid JSON"),
    ("tool", [{"add": SCHEMA}, None, FORM], "no", ""),
]


@pytest.mark.parametrize(("kind", "source", "text", "expected"), CASES)
async def test_problems(sandbox: Sandbox, kind: Any, source: Any, text: str, expected: str) -> None:
    broken = ""
    try:
        await Verifier(sandbox.children).verify(Constraint.of(kind, source), text, ("p",))
    except BrokenForm as error:
        broken = str(error)
    assert expected in broken and bool(expected) is bool(broken), broken


async def test_a_broken_form_is_an_error_and_is_counted(harness: PipelineHarness, sandbox: Sandbox) -> None:
    metrics = Metrics()
    options: dict[str, Any] = {"verifier": Verifier(sandbox.children), "metrics": metrics.of("m")}
    generator = harness.saying("yes or no", supported_fields={"constraint"})
    for source, broken in ((["yes or no"], 0), (["yes", "no"], 1)):
        request = GenerationRequest(prompts=["a"], sampling=Sampling(constraint=Constraint.of("choice", source)))
        if broken:
            with pytest.raises(BrokenForm, match="none of the choices") as caught:
                await harness.read(generator, request, **options)
            assert caught.value.status == 502
        else:
            assert text_of(await harness.read(generator, request, **options)) == "yes or no"
        assert metrics.of("m").generation.broken_forms == broken
    assert await harness.read(generator, request, metrics=metrics.of("m")), "off by default"


async def test_a_text_that_was_cut_is_not_broken(harness: PipelineHarness, sandbox: Sandbox) -> None:
    generator = harness.saying("yes or no", supported_fields={"constraint"})
    constraint = Constraint.of("choice", ["maybe"])
    request = GenerationRequest(prompts=["a"], sampling=Sampling(constraint=constraint, stop=(" or",)))
    pieces = await harness.read(generator, request, verifier=Verifier(sandbox.children))
    assert text_of(pieces) == "yes"


@pytest.mark.parametrize(
    ("kind", "source"), [("json_schema", {"type": 3}), ("regex", "(a"), ("json_schema", {"pattern": "(?=a)"})]
)
async def test_what_cannot_be_verified_is_refused_first(
    harness: PipelineHarness, sandbox: Sandbox, kind: Any, source: Any
) -> None:
    generator = harness.saying("a", supported_fields={"constraint"})
    names = {"constraint": "structured_outputs"}
    request = GenerationRequest(prompts=["a"], sampling=Sampling(constraint=Constraint.of(kind, source), names=names))
    with pytest.raises(InvalidInput, match=r"parameters\.structured_outputs"):
        await harness.read(generator, request, verifier=Verifier(sandbox.children))
    assert not generator.asked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict() -> AsyncIterator[ChildPool]:
    async with ChildPool(1, seconds=0.3) as made:
        yield made


@pytest.mark.parametrize("name", VALIDATED)
async def test_a_text_that_takes_too_long_to_validate_is_413(strict: ChildPool, name: str) -> None:
    schema, text = VALIDATED[name]
    verifier, constraint = Verifier(strict), Constraint.of("json_schema", schema)
    await verifier.prepare(constraint, ("response_format",))
    with pytest.raises(TooLarge, match="expected a constraint that takes at most") as caught:
        await verifier.verify(constraint, text, ("response_format",))
    assert caught.value.path == ("response_format",)
    await verifier.verify(Constraint.of("json_schema", SCHEMA), '{"a": 1}', ())


SECRET = "secret-of-a-client"
BAD: dict[str, Any] = {
    "type": {"type": SECRET},
    "type of a number": {"type": 3},
    "types": {"type": [SECRET, 1]},
    "$schema is a number": {"$schema": 1, "title": SECRET},
    "$schema is a list": {"$schema": [SECRET]},
    "$schema is an object": {"$schema": {SECRET: 1}},
    "$schema is unknown": {"$schema": f"x:{SECRET}", "type": 3},
    "$id is a number": {"$id": 1, "title": SECRET},
    "$id is no URL": {"$id": "http://[", "$ref": "#/a", "title": SECRET},
    "$ref is a number": {"$ref": 1, "title": SECRET},
    "$ref is an object": {"$ref": {SECRET: 1}},
    "$ref leads nowhere": {"$ref": f"#/{SECRET}"},
    "$ref into a list": {"$ref": "#/enum/9", "enum": [SECRET]},
    "$ref through a string": {"$ref": "#/title/a", "title": SECRET},
    "$ref with escapes": {"$ref": "#/%ZZ~9", "title": SECRET},
    "$dynamicRef leads nowhere": {"$dynamicRef": f"#{SECRET}"},
    "$anchor": {"$anchor": 3, "title": SECRET},
    "$defs": {"$defs": [SECRET]},
    "items": {"items": 5, "title": SECRET},
    "properties": {"properties": [SECRET]},
    "required": {"required": [1, SECRET]},
    "enum": {"enum": SECRET},
    "multipleOf 0": {"multipleOf": 0, "title": SECRET},
    "multipleOf a string": {"multipleOf": SECRET},
    "allOf": {"allOf": SECRET},
    "itself": {"$ref": "#", "title": SECRET},
    "dependencies": {"dependencies": {"a": 1}, "title": SECRET},
    "pattern": {"pattern": "(" + SECRET},
    "patternProperties": {"patternProperties": {"(": {"title": SECRET}}},
    "if": {"if": 1, "title": SECRET},
    "minimum": {"minimum": [SECRET]},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_schema_is_400_with_its_field_and_leaves_the_log_empty(
    sandbox: Sandbox, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for constraint in (Constraint.of("json_schema", BAD[name]), Constraint.of_tools({"f": BAD[name]}, None)):
        text = '{"a": 1}' if constraint.kind == "json_schema" else f'{ADD[0].replace("add", "f")}{{"a": 1}}{ADD[1]}'
        verifier = Verifier(sandbox.children)
        try:
            await verifier.prepare(constraint, ("response_format",))
            await verifier.verify(constraint, text, ("response_format",))
        except InvalidInput as error:
            assert error.path == ("response_format",)
        except BrokenForm:
            pass
    assert SECRET not in caplog.text


def remote(url: str) -> dict[str, Any]:
    there = {"$ref": url}
    return {
        "$ref": there,
        "$ref to a default": {"$ref": "#/default", "default": there},
        "$ref to an example": {"$ref": "#/examples/0", "examples": [there]},
        "$ref to a const": {"$ref": "#/const", "const": there},
        "$ref to an enum": {"$ref": "#/enum/0", "enum": [there]},
        "$ref to an unknown keyword": {"$ref": "#/x/y", "x": {"y": there}},
        "$ref to a title": {"$ref": "#/title", "title": there},
        "$ref to a name in properties": {"$ref": "#/properties/properties", "properties": {"properties": there}},
        "$dynamicRef": {"$dynamicRef": url},
        "$dynamicRef to a default": {"$ref": "#/default", "default": {"$dynamicRef": url}},
        "$recursiveRef": {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": url},
        "$schema": {"$schema": url, "type": "object"},
        "$schema below": {"properties": {"a": {"$schema": url}}},
        "$id and a relative $ref": {"$id": url, "$ref": "other.json"},
        "$id below": {"properties": {"a": {"$id": url, "$ref": "#/x"}}},
        "$id of a default": {"$ref": "#/default", "default": {"$id": url, "$ref": "other.json"}},
        "id of draft 4": {"$schema": "http://json-schema.org/draft-04/schema#", "id": url, "$ref": "other.json"},
        "$ref beside $defs": {"$defs": {"a": there}, "$ref": "#/$defs/a"},
        "$ref under not": {"not": there},
        "$ref under if": {"if": True, "then": there},
        "$ref of items": {"items": there, "additionalItems": there, "prefixItems": [there]},
        "$ref of additionalProperties": {"additionalProperties": there},
        "$ref of a file": {"$ref": "#/default", "default": {"$ref": "file:///etc/passwd"}},
        "$ref of a pattern": {"$ref": "#/default", "default": {"$ref": url, "pattern": "a"}},
        "$vocabulary": {"$schema": url, "$vocabulary": {url: True}},
    }


async def test_no_schema_makes_the_service_open_an_address(sandbox: Sandbox) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for name, schema in remote(f"http://127.0.0.1:{port}/a.json").items():
            constraint, verifier = Constraint.of("json_schema", schema), Verifier(sandbox.children)
            with suppress(InvalidInput, BrokenForm):
                await verifier.prepare(constraint, ("p",))
                await verifier.verify(constraint, '{"a": {"b": 1}}', ("p",))
            assert not asked, name


async def test_validation_retrieves_nothing_even_outside_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry alone holds, without the child's limits."""
    opened: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *request, **options: opened.append(request))
    for name, schema in remote("http://127.0.0.1:1/a.json").items():
        with suppress(Exception):
            problem(Constraint.of("json_schema", schema), '{"a": {"b": 1}}')
        assert not opened, name
