"""The anthropic package: messages whole, streamed and with a tool, once by each of its ways.

Beside what every program is given it takes "question" and "tool", and answers with what it gets. All bodies and events
must fit the package's own types without any coercion.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter
from task import answer

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def parts(message: Any) -> dict[str, Any]:
    """The blocks of a message without ids and signatures, its end, and its tokens."""
    names = {"thinking": ("thinking",), "text": ("text",), "tool_use": ("name", "input")}
    blocks = [[block.type, *[getattr(block, name) for name in names[block.type]]] for block in message.content]
    return {"blocks": blocks, "stop": message.stop_reason, "input": message.usage.input_tokens}


def checked(client: anthropic.Anthropic, **fields: Any) -> Message:
    """A message whose body fits the package's type strictly."""
    body = client.messages.with_raw_response.create(**fields).text
    text = body() if callable(body) else body
    message = Message.model_validate_json(text, strict=True)
    assert message.model_dump(exclude_unset=True, mode="json").keys() == json.loads(text).keys()
    return message


def events(client: anthropic.Anthropic, **fields: Any) -> list[str]:
    """The names of a stream's events, each of which fits its type strictly, without repetitions."""
    names: list[str] = []
    with client.messages.with_streaming_response.create(stream=True, **fields) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: ") and (data := json.loads(line.removeprefix("data: ")))["type"] != "ping":
                found = EVENTS.validate_json(line.removeprefix("data: "), strict=True)
                assert found.model_dump(exclude_unset=True, mode="json").keys() == data.keys()
                if found.type not in names[-1:]:
                    names.append(found.type)
    return names


def streamed(client: anthropic.Anthropic, **fields: Any) -> Message:
    with client.messages.stream(**fields) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


async def awaited(url: str, **fields: Any) -> list[dict[str, Any]]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            return [parts(whole), parts(await stream.get_final_message())]


def turns(call: Any, **fields: Any) -> list[Any]:
    """The message that calls the tool, and the answer to the tool's result after the message as it came."""
    first = call(**fields)
    [use] = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    said = {"role": "assistant", "content": first.content}
    messages = [*fields.pop("messages"), said, {"role": "user", "content": [result]}]
    return [parts(first), parts(call(messages=messages, **fields))]


def looped(client: anthropic.Anthropic, **fields: Any) -> dict[str, Any]:
    """The package's own loop of calls."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city

        Args:
            city: Its name.
        """
        return "sunny"

    runner = client.beta.messages.tool_runner(**{**fields, "tools": [get_weather]})
    return parts(runner.until_done())


def failure(call: Any, **fields: Any) -> list[Any]:
    try:
        answer = call(**fields)
    except anthropic.APIStatusError as error:
        body: Any = error.body
        assert error.request_id and error.request_id == body["request_id"]
        return [type(error).__name__, error.status_code, body["error"]["type"], body["error"]["message"]]
    raise AssertionError(f"no exception, but {answer!r:.300}")


def main(task: dict[str, Any]) -> dict[str, Any]:
    url = f"http://{task['http']}"
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    plain = {"model": task["model"], "max_tokens": 1000, "messages": [{"role": "user", "content": task["question"]}]}
    asked = {**plain, "tools": [task["tool"]]}
    body = client.messages.count_tokens(**{name: value for name, value in asked.items() if name != "max_tokens"})
    beta = {
        **{"betas": ["no-such-beta-2026-11-28"], "thinking": {"type": "enabled", "budget_tokens": 500}},
        **{"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    }
    searching = [{"type": "web_search_20250305", "name": "web_search"}]
    return {
        "text": parts(checked(client, **plain)),
        "events": events(client, **asked),
        "whole": turns(lambda **fields: checked(client, **fields), **asked),
        "stream": turns(lambda **fields: streamed(client, **fields), **asked),
        "awaited": asyncio.run(awaited(url, **asked)),
        "loop": looped(client, **plain),
        "count": MessageTokensCount.model_validate(body.model_dump(), strict=True).input_tokens,
        "beta": parts(client.beta.messages.create(**plain, **beta)),
        "id": client.messages.create(**plain)._request_id,
        "errors": [
            failure(client.messages.create, **{**plain, "model": "other"}),
            failure(client.messages.create, **{**plain, "tools": searching}),
            failure(client.messages.create, **{**plain, "messages": [{"role": "user", "content": "a " * 20_000}]}),
            failure(client.messages.count_tokens, model=task["model"], messages=[{"role": "tool", "content": "a"}]),
        ],
    }


if __name__ == "__main__":
    answer(main)
