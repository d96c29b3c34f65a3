"""Constraints over every API: the generator's constraint for each field, and refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from hf_transformer.api.chat_completions import FORM
from hf_transformer.api.message_form import read_form
from hf_transformer.generation.constraint import Constraint, read_structured_outputs, vllm_fields
from hf_transformer.tasks.base import GenerationSettings
from tests.api.generating import ALL, ServedModel, served_model
from tests.api.generating import post as sent

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "Where?"}]
NAMED = {"type": "function", "function": {"name": "x"}}
CHAT, COMPLETIONS = "/openai/v1/chat/completions", "/openai/v1/completions"


def tools(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}} for name in names]


async def post(made: ServedModel, path: str, body: Any, status: int = 200) -> Any:
    answered, answer = await sent(made, path, body)
    assert answered == status, answer
    return answer


def constraint(made: ServedModel) -> Constraint:
    found = made.generator.asked[-1][1].constraint
    assert found is not None
    return found


async def chat(made: ServedModel, status: int = 200, **fields: Any) -> Any:
    return await post(made, CHAT, {"messages": MESSAGES, **fields}, status)


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"json": SCHEMA}, "json_schema", SCHEMA),
        ({"json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"json_object": True, "regex": None}, "json_object", {"type": "object"}),
        ({"choice": ["a", "b"], "disable_fallback": False}, "choice", ["a", "b"]),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": "root ::= x"}, "grammar", "root ::= x"),
    ],
)
async def test_structured_outputs_over_every_api(fields: Any, kind: str, source: Any) -> None:
    text = json.dumps(fields)
    sampling = json.dumps({"structured_outputs": text})
    async with served_model() as made:
        for path, body in (
            (COMPLETIONS, {"prompt": "x", "structured_outputs": fields}),
            (CHAT, {"messages": MESSAGES, "structured_outputs": text}),
            ("/v1/models/gpt2:predict", {"instances": ["x"], "parameters": {"structured_outputs": fields}}),
            ("/v2/models/gpt2/generate", {"text_input": "x", "parameters": {"structured_outputs": fields}}),
            ("/v2/models/gpt2/generate", {"text_input": "x", "sampling_parameters": sampling}),
            ("/v2/models/gpt2/infer", {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}],
                                       "parameters": {"structured_outputs": text}}),
        ):  # fmt: skip
            await post(made, path, body)
            found = constraint(made)
            assert found.kind == kind, path
            assert (found.source if isinstance(source, str) else json.loads(found.source)) == source


DEEP: Any = {}
for _ in range(70):
    DEEP = {"items": DEEP}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"json": SCHEMA, "regex": "a"}, 400, "structured_outputs: expected exactly one of json"),
    ({}, 400, "structured_outputs: expected exactly one of json, json_object, regex, choice, grammar, got none"),
    ({"structural_tag": "x"}, 400, "structured_outputs.structural_tag: expected one of json"),
    ({"regex": 3}, 400, "structured_outputs.regex: expected a string that is not empty, got a number"),
    ({"regex": ""}, 400, "structured_outputs.regex: expected a string that is not empty"),
    ({"choice": []}, 400, "structured_outputs.choice: expected a list of strings"),
    ({"choice": ["a", 1]}, 400, "structured_outputs.choice: expected a list of strings"),
    ({"json": "{"}, 400, "structured_outputs.json: expected an object, or its JSON text, got invalid JSON"),
    ({"json": 3}, 400, "structured_outputs.json: expected an object, or its JSON text, got a number"),
    ({"json": DEEP}, 413, "structured_outputs.json: expected at most 64 levels"),
    (
        {"json": {"enum": ["x" * 2000]}},
        413,
        "structured_outputs.json: expected at most 1000 bytes (--max_schema_bytes)",
    ),
    ({"regex": "x" * 1001}, 413, "structured_outputs.regex: expected at most 1000 bytes"),
    ({"choice": ["x" * 99] * 20}, 413, "structured_outputs.choice: expected at most 1000 bytes"),
    (
        {"json": {"properties": {"default": {"$ref": "http://x/y"}}}},
        400,
        "structured_outputs.json.$ref: expected a reference within the schema, such as '#/$defs/item', got 'http",
    ),
]


@pytest.mark.parametrize(("fields", "status", "message"), REFUSED, ids=lambda value: str(value)[:30])
async def test_refused(fields: Any, status: int, message: str) -> None:
    async with served_model(settings=GenerationSettings(max_schema_bytes=1000)) as made:
        answer = await post(made, COMPLETIONS, {"prompt": "x", "structured_outputs": fields}, status)
        assert answer["error"]["message"].startswith(message)
        query = {"instances": ["x"], "parameters": {"structured_outputs": fields}}
        answer = await post(made, "/v1/models/gpt2:predict", query, status)
        assert answer["error"].startswith(f"parameters.{message}")
        assert not made.generator.asked


async def test_a_value_named_like_a_reference_is_no_reference() -> None:
    async with served_model() as made:
        schema = {"enum": [{"$ref": "http://x"}], "properties": {"$ref": {"type": "string"}}}
        await post(made, COMPLETIONS, {"prompt": "x", "structured_outputs": {"json": schema}})
        assert constraint(made).schema == schema


async def test_response_format() -> None:
    async with served_model() as made:
        await chat(made, response_format=FORMAT)
        assert (constraint(made).kind, constraint(made).schema) == ("json_schema", SCHEMA)
        await chat(made, response_format={"type": "json_object"})
        assert constraint(made).kind == "json_object"
        for value, path in (
            ({"type": "json_schema"}, "response_format.json_schema"),
            ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
            ({"type": "json_schema", "json_schema": {"schema": []}}, "response_format.json_schema.schema"),
            ({"type": "json_schema", "json_schema": {"schema": {}, "name": 3}}, "response_format.json_schema.name"),
        ):
            assert (await chat(made, 400, response_format=value))["error"]["param"] == path


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}, "tools": tools("f"), "tool_choice": "required"}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}, "tools": tools("f")}, "response_format"),
    ],
)
async def test_two_constraints_are_refused_with_both_names(fields: Any, named: str) -> None:
    async with served_model() as made:
        error = (await chat(made, 400, **fields))["error"]
        assert error["param"] in ("structured_outputs", "response_format") and named in error["message"]
        assert error["param"] != named or named == "response_format"
        assert not made.generator.asked


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", [FORMAT, {"type": "json_object"}, {"type": "text"}], ids=lambda form: form["type"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}], ids=["any", "named"])
async def test_a_forced_call_needs_no_format_of_its_text(choice: Any, form: Any, stream: bool) -> None:
    async with served_model() as made:
        fields = {"tools": tools("f"), "tool_choice": choice, "stream": stream}
        await chat(made, **fields)
        alone = constraint(made)
        await chat(made, **fields, response_format=form)
        assert constraint(made) == alone
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}
        assert (await chat(made, 400, **fields, response_format=bad))["error"]["param"].startswith("response_format")


async def test_a_forced_call_of_the_responses_api_needs_no_format_of_its_text() -> None:
    async with served_model() as made:
        function = {"type": "function", "name": "f", "parameters": SCHEMA}
        for choice in ("required", {"type": "function", "name": "f"}):
            body = {"input": "x", "tools": [function], "tool_choice": choice}
            await post(made, "/openai/v1/responses", body)
            alone = constraint(made)
            form = {"type": "json_schema", "name": "x", "schema": {"type": "array"}}
            await post(made, "/openai/v1/responses", body | {"text": {"format": form}})
            assert constraint(made) == alone


GUIDED = {"json": SCHEMA, "regex": "a+", "choice": ["yes", "no"], "grammar": 'root ::= "a"'}


@pytest.mark.parametrize("name", GUIDED)
async def test_the_older_names_of_vllm_say_the_same(name: str) -> None:
    value, older = GUIDED[name], {f"guided_{name}": GUIDED[name]}
    async with served_model() as made:
        for path, body in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "x"})):
            await post(made, path, body | {"structured_outputs": {name: value}})
            alone = constraint(made)
            for fields in (older, {**older, "structured_outputs": {name: value}}):
                await post(made, path, body | fields)
                assert constraint(made) == alone
            other = {"regex": "b"} if name != "regex" else {"regex": "b+"}
            error = (await post(made, path, body | older | {"structured_outputs": other}, 400))["error"]
            assert error["param"] == f"guided_{name}" and "another one in structured_outputs" in error["message"]
        error = (await chat(made, 400, **older, response_format=FORMAT))["error"]
        assert error["param"] == f"guided_{name}" and "another one in response_format" in error["message"]
        for choice in ("auto", "required"):
            error = (await chat(made, 400, **older, tools=tools("f"), tool_choice=choice))["error"]
            assert error["param"] == f"guided_{name}"
        error = (await post(made, COMPLETIONS, {"prompt": "x", f"guided_{name}": 3}, 400))["error"]
        assert error["param"] == f"guided_{name}"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": tools("f"), "tool_choice": "required"}, "tool_choice"),
        ({"tools": [*tools("f"), *tools("g", strict=True)]}, "tools[1].function.strict"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
async def test_a_model_that_cannot_hold_a_form_refuses_it(fields: Any, name: str) -> None:
    async with served_model(supported_fields=[one for one in ALL if one != "constraint"]) as made:
        error = (await chat(made, 400, **fields))["error"]
        assert error["param"] == name and "this model can't hold a text to a form" in error["message"]
        assert not made.generator.asked


CALLS = '[{"name": "f", "arguments": {"city": "{\\"}"}}, {"name": "g", "arguments": {"city": "b"}}]'


def merged(chunks: Any) -> list[Any]:
    """The calls of a stream, put together as clients do."""
    calls: list[Any] = []
    for chunk in chunks:
        for delta in chunk["choices"][0]["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert delta["id"].startswith("call_") and delta["type"] == "function" and delta["function"]["name"]
                calls.append(delta["function"])
            else:
                assert delta.keys() == {"index", "function"} and delta["function"].keys() == {"arguments"}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return calls


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", ["required", "named"])
async def test_forced_calls(stream: bool, choice: str) -> None:
    named = {"type": "function", "function": {"name": "g"}}
    text = CALLS if choice == "required" else '{"city": "b"}'
    async with served_model(text=text) as made:
        asked = named if choice == "named" else choice
        answer = await chat(made, tools=tools("f", "g", strict=True), tool_choice=asked, stream=stream)
        assert "strict" not in made.generator.asked[0][0].text
        calls = (
            merged(answer[:-1])
            if stream
            else [item["function"] for item in answer["choices"][0]["message"]["tool_calls"]]
        )
        finish = (answer[-2] if stream else answer)["choices"][0]["finish_reason"]
        if choice == "named":
            assert calls == [{"name": "g", "arguments": '{"city": "b"}'}] and finish == "stop"
            assert constraint(made).schema == SCHEMA
        else:
            arguments = [json.loads(item["arguments"]) for item in calls]
            assert [item["name"] for item in calls] == ["f", "g"] and arguments == [{"city": '{"}'}, {"city": "b"}]
            assert finish == "tool_calls"
            schema = constraint(made).schema
            assert schema["minItems"] == 1 and "maxItems" not in schema
            assert schema["$defs"] == {"tool_0": SCHEMA, "tool_1": SCHEMA}
        contents = (
            [item["choices"][0]["delta"].get("content") for item in answer[:-1]]
            if stream
            else [answer["choices"][0]["message"]["content"]]
        )
        assert not any(contents)
        if stream and choice == "required":
            pieces = [item for item in answer[:-1] if item["choices"][0]["delta"].get("tool_calls")]
            assert len(pieces) > 4, "arguments come as they are written"


async def test_one_call_with_references() -> None:
    parameters = {"properties": {"a": {"$ref": "#/$defs/x"}, "$ref": {"const": {"$ref": "#/y"}}}, "$defs": {"x": {}}}
    function = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    async with served_model(text=CALLS) as made:
        answer = await chat(made, tools=[function], tool_choice="required", parallel_tool_calls=False)
        assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
        schema = constraint(made).schema
        assert schema["maxItems"] == 1
        moved = schema["$defs"]["tool_0"]["properties"]
        assert moved == {"a": {"$ref": "#/$defs/tool_0/$defs/x"}, "$ref": {"const": {"$ref": "#/y"}}}


async def test_a_forced_call_cut_at_the_limit_keeps_what_was_written() -> None:
    async with served_model(text=CALLS) as made:
        answer = await chat(made, tools=tools("f", "g"), tool_choice="required", max_tokens=24)
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "length" and choice["message"]["tool_calls"]
        answer = await chat(made, tools=tools("f", "g"), tool_choice="required", max_tokens=2)
        assert "tool_calls" not in answer["choices"][0]["message"]


async def test_tools_with_a_format_and_strict_tools() -> None:
    """The model may call or answer: the calls of strict tools and the answer are bound."""
    mixed = [*tools("f", strict=True), *tools("g")]
    cases: list[tuple[dict[str, Any], Any]] = [({}, None), ({"response_format": FORMAT}, SCHEMA)]
    for fields, bound in cases:
        async with served_model(text='<tool_call>{"name": "f", "arguments": {}}</tool_call>') as made:
            answer = await chat(made, tools=mixed, **fields)
            assert answer["choices"][0]["finish_reason"] == "tool_calls"
            assert constraint(made).kind == "tool"
            assert constraint(made).tool_parts == ({"f": SCHEMA, "g": {"type": "object"}}, bound)
    async with served_model() as made:
        await chat(made, tools=tools("f", strict=True), tool_choice="none", response_format=FORMAT)
        assert constraint(made).kind == "json_schema"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": tools("f"), "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": tools("f"), "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": tools("f", "f"), "tool_choice": "required"}, "tools"),
        (
            {"tools": tools("f", parameters={"$ref": "x"}), "tool_choice": "required"},
            "tools[0].function.parameters.$ref",
        ),
    ],
)
async def test_invalid_choices(fields: Any, path: str) -> None:
    async with served_model() as made:
        assert (await chat(made, 400, **fields))["error"]["param"] == path


def writes(call: Callable[[], object]) -> int:
    """The number of JSON texts that a call writes."""
    count, before = 0, sys.getprofile()

    def watch(frame: object, event: str, function: object) -> None:
        nonlocal count
        count += event == "c_call" and function is orjson.dumps

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": FORMAT}, 1),
        ({"tools": tools("f", "g"), "tool_choice": {"type": "function", "function": {"name": "f"}}}, 2),
        ({"tools": tools("f", "g", strict=True), "response_format": FORMAT}, 3 + 1),
    ],
    ids=["format", "named tool", "tools and format, and the text of all three"],
)
def test_a_schema_is_written_once(fields: dict[str, Any], expected: int) -> None:
    body = FORM.read({"messages": [{"role": "user", "content": "a"}], **fields})
    form, choice, given = body.response_format, body.tool_choice, fields.get("tools", [])
    assert writes(lambda: read_form(body, form, choice, given, 10_000, single=False)) == expected


def test_a_schema_of_structured_outputs_is_written_once() -> None:
    assert writes(lambda: read_structured_outputs({"json": SCHEMA}, ("structured_outputs",), 10_000)) == 1


def test_the_structural_tag_is_written_once_for_all_texts_of_a_request() -> None:
    tool = Constraint.of_tools({"f": SCHEMA}, None)
    first = writes(lambda: vllm_fields(tool, "structured_outputs"))
    assert writes(lambda: vllm_fields(tool, "structured_outputs")) == 1 < first
