"""Requests to Anthropic's Messages API over a scripted model."""

from __future__ import annotations

import json
from typing import Any

from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import compile_template
from tests.api.generating import Exchange, ServedModel, answer_of

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
QUESTION = {"role": "user", "content": "Where?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


def with_template(made: ServedModel, calls: str = "hermes", reasoning: str | None = "think") -> None:
    """Gives the model a response template."""
    program = compile_template(compose(calls, reasoning), "test")
    made.model.responses = ModelResponses(program, made.tokenizer.skipped_tokens())


def body_of(**fields: Any) -> dict[str, Any]:
    body = {"model": "gpt2", "max_tokens": 100, "messages": [QUESTION], **fields}
    return {name: value for name, value in body.items() if value is not None}


async def message(made: ServedModel, expected: int = 200, **fields: Any) -> Any:
    return await answer_of(made, PATH, body_of(**fields), expected, x_request_id="7")


async def refused(made: ServedModel, status: int = 400, **fields: Any) -> str:
    """The message of an error, whose form it asserts."""
    answer = await message(made, status, **fields)
    assert answer.keys() == {"type", "error", "request_id"}
    assert (answer["type"], answer["request_id"]) == ("error", "7") and answer["error"].keys() == {"type", "message"}
    if status == 400:
        assert answer["error"]["type"] == "invalid_request_error"
    text: str = answer["error"]["message"]
    return text


async def streamed(made: ServedModel, **fields: Any) -> list[Any]:
    """The events of a stream. Asserts their names."""
    async with Exchange(made.app, PATH, body_of(stream=True, **fields), x_request_id="7") as exchange:
        status, headers = await exchange.head()
        content = (await exchange.rest()).decode()
    assert (status, headers["content-type"], headers["request-id"]) == (200, "text/event-stream", "7")
    events = []
    for block in content.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events: list[Any]) -> Any:
    """The message that a client makes of the events of a stream. Asserts their order."""
    [start, *rest, delta, stop] = [event for event in events if event["type"] != "ping"]
    assert (start["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    answer, inputs, is_open = start["message"], dict[int, str](), False
    assert answer["content"] == [] and answer["stop_reason"] is answer["stop_sequence"] is None
    for event in rest:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(answer["content"])
            answer["content"].append(event["content_block"])
            is_open = True
            continue
        assert is_open and event["index"] == len(answer["content"]) - 1
        block = answer["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(inputs.get(event["index"], "") or "{}")
            continue
        change = event["delta"]
        if change["type"] == "input_json_delta":
            inputs[event["index"]] = inputs.get(event["index"], "") + change["partial_json"]
        else:
            name = change["type"].removesuffix("_delta")
            block[name] += change[name]
    assert not is_open
    return {**answer, **delta["delta"], "usage": {**answer["usage"], **delta["usage"]}}


def asked(made: ServedModel) -> str:
    """The prompt of the last request."""
    text: str = made.generator.asked[-1][0].text
    return text


def without_ids(answer: Any) -> Any:
    """A copy of a message without the ids of its calls."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in answer["content"]]
    return {**answer, "content": blocks}
