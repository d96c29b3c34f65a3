"""Anthropic's messages and events have the declared types, which /openapi.json shows."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import convert

from hf_transformer.api.anthropic.answers import (
    MESSAGE_EVENTS,
    AnthropicErrorAnswer,
    MessagesResponse,
    TokenCount,
)
from hf_transformer.api.anthropic.messages import complete_members
from hf_transformer.errors import PredictorError
from tests.api.anthropic.asking import CALL, COUNT, TOOL, body_of, message, streamed, with_template
from tests.api.generating import answer_of, served_model

EVENTS = {name: kind for kind in MESSAGE_EVENTS for name in get_args(get_type_hints(kind)["type"])}
FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"tools": [TOOL]},
    {"stop_sequences": ["Well"]},
    {"max_tokens": 3},
    {"thinking": {"type": "adaptive", "display": "omitted"}},
)


async def test_messages_and_their_events() -> None:
    seen = set()
    async with served_model(text=f"<think>Hm.</think>Well. {CALL}") as made:
        with_template(made)
        for fields in FIELDS:
            convert(await message(made, **fields), MessagesResponse)
            for event in await streamed(made, **fields):
                convert(event, EVENTS[event["type"]])
                seen.add(event["type"])
        convert(await answer_of(made, COUNT, body_of(max_tokens=None)), TokenCount)
    async with served_model(text="Well. Yes.", fails=PredictorError("it broke"), after=2) as made:
        last = (await streamed(made))[-1]
        convert(last, AnthropicErrorAnswer)
        seen.add(last["type"])
    assert seen == set(EVENTS), "each event is sent"


WHOLE = {"a": 'x, }] \\ "', "b": [1, {"c": [True, None], "d": -1.5e3}, []], "": {"e": {}}}
TEXT = json.dumps(WHOLE)


@pytest.mark.parametrize("end", range(len(TEXT) + 1))
def test_a_prefix_of_json_has_its_complete_members(end: int) -> None:
    """Whatever a prefix has is there in the whole, too: no number or text is shorter."""
    value, is_complete = complete_members(TEXT[:end])
    assert is_complete == (end == len(TEXT))
    assert holds(WHOLE, value)
    if is_complete:
        assert value == WHOLE


def holds(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict):
        return all(name in whole and holds(whole[name], value) for name, value in part.items())
    if isinstance(whole, list):
        return len(part) <= len(whole) and all(map(holds, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize(
    "text", ["", "[", "1", '"a"', "[1, 2", "}", "]]", '{"a": tru, "b": 1,', '{"a": 1 "b": 2,', "{" * 5000]
)
def test_another_text_is_an_empty_object(text: str) -> None:
    assert complete_members(text)[0] == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"city": "Par', "end_turn"),
        (f'{CALL}<tool_call>{{"name": "weather", "arguments": {{"city": "Par', "end_turn"),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Paris"} oops}</tool_call>', "end_turn"),
        (CALL, "tool_use"),
    ],
    ids=["cut", "second", "broken", "whole"],
)
async def test_a_call_that_the_model_does_not_complete_is_none_to_run(text: str, reason: str) -> None:
    """A client would run the tool with the arguments that are there."""
    async with served_model(text=text) as made:
        with_template(made)
        whole = await message(made, tools=[TOOL])
        events = await streamed(made, tools=[TOOL])
    assert whole["stop_reason"] == reason
    assert [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"] == [reason]
