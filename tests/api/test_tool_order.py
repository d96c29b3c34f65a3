"""One order of a tool's keys in prompts, whatever order a client sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.api.chat_tools import KEYWORDS, NAMED_SCHEMAS, SCHEMA_KEYWORDS, for_template, order_schema
from tests.api.generating import answer_of, served_model

CHATS, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"
SHOWN = "{{ tools | tojson }}{{ messages | tojson }}"
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "x"},
        "description": {"type": "array", "items": {"type": "string", "enum": ["type", "name"], "description": "x"}},
        "unit": {"type": "string", "enum": ["c", "f"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "y", "parameters": PLACE},
}
ASK = {"role": "user", "content": "Weather?"}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"unit": "c", "city": "Paris"}'}}
    ],
}
ANSWER = {"role": "tool", "content": "rain", "tool_call_id": "1"}


def sorted_keys(value: Any) -> Any:
    """The value with sorted keys, as Go's maps and serde_json write it."""
    return json.loads(json.dumps(value, sort_keys=True))


def reversed_keys(value: Any, names: bool = False) -> Any:
    """The value with its keys in the opposite order, except for the names of properties."""
    if isinstance(value, list):
        return [reversed_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    return {key: reversed_keys(item, key == "properties") for key, item in (items if names else items[::-1])}


def nested(tool: Any) -> Any:
    """A tool of chat completions in the form of Responses."""
    return {"type": tool["type"], **tool["function"]}


ORDERS = pytest.mark.parametrize("order", [sorted_keys, reversed_keys], ids=["sorted", "reversed"])


@ORDERS
async def test_a_chat_has_one_prompt_for_all_orders_of_keys(order: Callable[[Any], Any]) -> None:
    messages = [ASK, CALLED, ANSWER]
    async with served_model(template=SHOWN) as made:
        await answer_of(made, CHATS, {"model": "gpt2", "messages": messages, "tools": [TOOL]})
        prompt = made.generator.asked[-1][0].text
        assert prompt.startswith(json.dumps([TOOL])) and json.dumps(CALLED["tool_calls"])[:60] in prompt
        assert '{"unit": "c", "city": "Paris"}' in prompt, "arguments stay as the model wrote them"
        await answer_of(made, CHATS, order({"tools": [TOOL], "messages": messages, "model": "gpt2"}))
        assert made.generator.asked[-1][0].text == prompt


@ORDERS
async def test_responses_have_the_prompt_of_a_chat(order: Callable[[Any], Any]) -> None:
    async with served_model(template=SHOWN) as made:
        await answer_of(made, CHATS, {"model": "gpt2", "messages": [ASK], "tools": [TOOL]})
        tools = [order(nested(TOOL))]
        await answer_of(made, RESPONSES, {"model": "gpt2", "input": ASK["content"], "tools": tools})
        first, second = (sent.text for sent, _ in made.generator.asked)
        assert first == second


@ORDERS
@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/tokenize"], ids=["render", "tokenize"])
async def test_vllm_s_routes_have_the_order_of_a_chat(path: str, order: Callable[[Any], Any]) -> None:
    name = "tokens" if path == "/tokenize" else "token_ids"
    function = {"name": "f", "description": "d", "parameters": {"required": [], "type": "object"}}
    tool = {"type": "function", "function": function}
    async with served_model(template="{{ tools | tojson }}") as made:
        expected = (await answer_of(made, path, {"messages": [ASK], "tools": [tool]}))[name]
        other = order({**tool, "function": {**function, "parameters": None}})
        other["function"]["parameters"] = function["parameters"]
        assert (await answer_of(made, path, {"tools": [other], "messages": [order(ASK)]}))[name] == expected
        function["parameters"] = dict(reversed(function["parameters"].items()))  # type: ignore[attr-defined]
        assert (await answer_of(made, path, {"messages": [ASK], "tools": [tool]}))[name] == expected


def test_unknown_keys_follow_as_they_are_sent() -> None:
    tool = {
        "z": 1,
        "function": {"y": {"b": 1, "a": 2}, "parameters": {"x": 1, "$defs": {}, "type": "object"}, "name": "f", "a": 2},
        "b": 3,
        "type": "function",
    }
    assert json.dumps(for_template(tool)) == json.dumps(
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "x": 1, "$defs": {}},
                "y": {"b": 1, "a": 2},
                "a": 2,
            },
            "z": 1,
            "b": 3,
        }
    )


INNER = {"required": [], "x": 1, "type": "object"}
ORDERED = '{"type": "object", "required": [], "x": 1}'


@pytest.mark.parametrize("keyword", sorted(SCHEMA_KEYWORDS))
def test_a_nested_schema_and_each_of_a_list_have_the_order(keyword: str) -> None:
    assert json.dumps(order_schema({keyword: INNER})) == f'{{"{keyword}": {ORDERED}}}'
    assert json.dumps(order_schema({keyword: [INNER, True]})) == f'{{"{keyword}": [{ORDERED}, true]}}'


@pytest.mark.parametrize("keyword", sorted(NAMED_SCHEMAS))
def test_schemas_by_name_have_the_order_and_their_names_stay(keyword: str) -> None:
    found = json.dumps(order_schema({keyword: {"required": INNER, "type": INNER, "a": True}}))
    assert found == f'{{"{keyword}": {{"required": {ORDERED}, "type": {ORDERED}, "a": true}}}}'


def test_values_that_are_no_schemas_stay_as_they_are() -> None:
    data = {"required": 1, "type": 2}
    schema = {"enum": [data], "default": data, "const": data, "examples": [data], "properties": 3, "items": None}
    found = order_schema(schema)
    assert found == schema and json.dumps(found).count('{"required": 1, "type": 2}') == 4


def test_a_schema_may_be_as_deep_as_the_highest_limit() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        schema = {"items": schema, "type": "array"}
    ordered = order_schema(schema)
    for _ in range(2000):
        assert list(ordered) == ["type", "items"]
        ordered = ordered["items"]
    assert ordered == {"type": "string"}


SCHEMAS = st.recursive(
    st.dictionaries(st.sampled_from([*KEYWORDS, "title", "anyOf"]), st.none() | st.integers() | st.text(max_size=2)),
    lambda inner: st.dictionaries(
        st.sampled_from([*KEYWORDS, "$defs", "not", "anyOf", "x"]),
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
)


@settings(max_examples=30)
@given(SCHEMAS)
def test_an_ordered_schema_is_equal_and_stays_ordered(schema: dict[str, Any]) -> None:
    found = order_schema(schema)
    assert found == schema and json.dumps(order_schema(found)) == json.dumps(found)
    assert [name for name in found if name in KEYWORDS] == [name for name in KEYWORDS if name in found]
