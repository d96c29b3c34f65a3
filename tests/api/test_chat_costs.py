"""POST /tokenize takes the body of a chat of each API, and returns the tokens of the prompt that the chat becomes."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.goldens.vllm_render import PLAIN
from tests.api.generating import ServedModel, answer_of
from tests.api.test_render import without_predictor

USER = {"role": "user", "content": "What is the weather?"}
SCHEMA = {"properties": {"city": {"type": "string", "description": "A city"}}, "type": "object"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TOOL = {"function": {"parameters": SCHEMA, "name": "weather"}, "type": "function"}
STRICT = {"type": "function", "function": {"name": "now", "strict": True, "description": "The time"}}
CHATS: dict[str, dict[str, Any]] = {
    "text": {"messages": [USER]},
    "system": {"messages": [{"role": "developer", "content": "Be brief."}, USER], "temperature": 0.5, "max_tokens": 5},
    "tools": {"messages": [USER], "tools": [TOOL, STRICT]},
    "no choice": {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    "results": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        "tools": [TOOL],
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "variables": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "effort": {"messages": [USER], "reasoning_effort": "low"},
}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}
RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"input": "What is the weather?"},
    "instructions": {"input": [USER], "instructions": "Be brief.", "max_output_tokens": 5, "store": False},
    "tools": {"input": "a", "tools": [FLAT, {**FLAT, "name": "now", "strict": True, "description": "The time"}]},
    "no choice": {"input": "a", "tools": [FLAT], "tool_choice": "none"},
    "items": {
        "input": [
            USER,
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "tools": [FLAT],
    },
    "effort": {"input": "a", "reasoning": {"effort": "low"}},
}
CLIENT_TOOL = {"name": "weather", "input_schema": SCHEMA}
MESSAGES: dict[str, dict[str, Any]] = {
    "system": {"messages": [USER], "system": "Be brief."},
    "blocks": {"messages": [USER], "system": [{"type": "text", "text": "Be brief."}]},
    "tools": {"messages": [USER], "tools": [CLIENT_TOOL]},
    "no choice": {"messages": [USER], "tools": [CLIENT_TOOL], "tool_choice": {"type": "none"}},
    "results": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain"}]},
        ],
    },
    "thinking": {"messages": [USER], "thinking": {"type": "disabled"}},
    "continued": {"messages": [USER, {"role": "assistant", "content": "It is"}], "system": "Be brief."},
}


@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_costs_its_prompt(made: ServedModel, name: str) -> None:
    counted = await answer_of(made, "/tokenize", CHATS[name])
    answer = await answer_of(made, "/openai/v1/chat/completions", {"model": "gpt2", **CHATS[name]})
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    assert counted["tokens"] == list(made.generator.asked[-1][0].ids)
    rendered = await answer_of(made, "/v1/chat/completions/render", CHATS[name])
    assert rendered["token_ids"] == counted["tokens"]


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_response_costs_its_prompt(made: ServedModel, name: str) -> None:
    counted = await answer_of(made, "/tokenize", RESPONSES[name])
    answer = await answer_of(made, "/openai/v1/responses", {"model": "gpt2", **RESPONSES[name]})
    assert counted["count"] == answer["usage"]["input_tokens"]
    assert counted["tokens"] == list(made.generator.asked[-1][0].ids)
    rendered = await answer_of(made, "/v1/responses/render", RESPONSES[name])
    assert rendered["token_ids"] == counted["tokens"]


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_message_costs_its_prompt(made: ServedModel, name: str) -> None:
    body = {"model": "gpt2", **MESSAGES[name]}
    counted = await answer_of(made, "/tokenize", body)
    assert await answer_of(made, "/v1/messages/count_tokens", body) == {"input_tokens": counted["count"]}
    answer = await answer_of(made, "/v1/messages", {"max_tokens": 5, **body})
    assert counted["count"] == answer["usage"]["input_tokens"]
    rendered = await answer_of(made, "/v1/messages/render", {"max_tokens": 5, **body})
    assert rendered["token_ids"] == counted["tokens"] == list(made.generator.asked[-1][0].ids)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER], "input": "a"}, None),
        ({"prompt": "a", "input": "a"}, None),
        ({"input": []}, "input"),
        ({"input": "a", "tools": [TOOL]}, "tools[0].function"),
        ({"input": [{"type": "message", "role": "user", "content": 1}]}, "input[0].content"),
        ({"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        ({"system": 1, "messages": [USER]}, "system"),
        ({"system": "a", "messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [USER], "tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"messages": [USER], "tools": [{"input_schema": 1, "name": "a"}]}, "tools[0].input_schema"),
        ({"messages": 1, "system": "a"}, "messages"),
        ({"messages": [1], "tools": 1}, "tools"),
    ],
    ids=str,
)
async def test_invalid_chats_name_the_field(body: Any, param: str | None) -> None:
    async with without_predictor(PLAIN) as client:
        response = await client.post("/tokenize", json=body)
    assert response.status_code == 400, response.text
    if param is not None:
        assert param in response.text


async def test_a_chat_that_is_too_long_is_refused_in_each_form() -> None:
    text = "a" * 250_001
    async with without_predictor(PLAIN) as client:
        for body in (
            {"messages": [{"role": "user", "content": text}]},
            {"input": text},
            {"system": text, "messages": [USER]},
        ):
            response = await client.post("/tokenize", json=body)
            assert response.status_code in (400, 413) and "--max_text_length" in response.text


async def test_further_fields_of_a_chat_are_noted() -> None:
    async with without_predictor(PLAIN) as client:
        for body in ({"messages": [USER]}, {"input": "a"}, {"system": "a", "messages": [USER]}):
            response = await client.post("/tokenize", json={**body, "ttl_seconds": 5, "return_token_strs": True})
            assert response.headers["x-ignored-parameters"] == "ttl_seconds"
            assert len(response.json()["token_strs"]) == response.json()["count"]
