"""Texts that break the form of their request, where the service verifies them."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.constraint import Constraint, call_text
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.generation.verification import BrokenForm, Verifier
from hf_transformer.observability.metrics import Metrics
from tests.generation.scripted import PipelineHarness, text_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(x+x+)+y$"}}, "required": ["a"]}
ADD = call_text("add")
TOOL = [{"add": SCHEMA}, SCHEMA]


def doubling(keyword: str, inside: str = "$defs", **more: Any) -> dict[str, Any]:
    """A schema of 60 parts, each of which applies the next one twice."""
    parts: dict[str, Any] = {f"p{n}": {keyword: [{"$ref": f"#/{inside}/p{n + 1}"}] * 2, **more} for n in range(60)}
    return {"$ref": f"#/{inside}/p0", inside: {**parts, "p60": {"type": "object"}}}


OTHER = "http://json-schema.org/draft-07/schema#"
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
    ("tool", TOOL, '<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "it calls a tool that the request"),
    ("tool", TOOL, '{"a": 1}', ""),
    ("tool", TOOL, "no", "invalid JSON"),
    ("tool", [{"add": SCHEMA}, None], "no", ""),
]


@pytest.mark.parametrize(("kind", "source", "text", "expected"), CASES)
async def test_problems(sandbox: Sandbox, kind: Any, source: Any, text: str, expected: str) -> None:
    problem = ""
    try:
        await Verifier(sandbox.children).verify(Constraint.of(kind, source), text, "p")
    except BrokenForm as error:
        problem = str(error)
    assert expected in problem and bool(expected) is bool(problem), problem


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
