"""The openai package's Responses API: whole, streamed and with a tool, once by each of its ways.

Beside what every program is given it takes "message", "question" and "tool", and answers with what it gets. All bodies
and events must fit the package's own types without any coercion.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from task import answer

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def checked(client: openai.OpenAI, **fields: Any) -> Response:
    """A response whose body fits the package's type strictly."""
    body = client.responses.with_raw_response.create(**fields).text
    return Response.model_validate_json(body() if callable(body) else body, strict=True)


def events(client: openai.OpenAI, **fields: Any) -> list[Any]:
    """The events of a stream, each of which fits its type strictly."""
    events_of_stream = []
    with client.responses.with_streaming_response.create(stream=True, **fields) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events_of_stream.append(EVENTS.validate_json(data, strict=True))
                assert (
                    events_of_stream[-1].model_dump(exclude_unset=True, mode="json").keys() == json.loads(data).keys()
                )
    return events_of_stream


def failure(client: openai.OpenAI, **fields: Any) -> list[Any]:
    try:
        found = client.responses.create(**fields)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.param, str(error)]
    raise AssertionError(f"no exception, but {found!r:.300}")


def called(client: openai.OpenAI, **fields: Any) -> list[Any]:
    """The call that a question leads to, and the answer to its result with the items as they came."""
    first = client.responses.create(**fields)
    [call] = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": fields.pop("input")}, *first.output, result]
    return [call.name, json.loads(call.arguments), client.responses.create(input=items, **fields).output_text]


async def awaited(url: str, **fields: Any) -> list[str]:
    """The text of a response and of its stream."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.responses.create(**fields)
        stream = await client.responses.create(stream=True, **fields)
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    return [whole.output_text, "".join(deltas)]


def use(task: dict[str, Any]) -> dict[str, Any]:
    url = f"http://{task['http']}/openai/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60.0)
    asked: dict[str, Any] = {"model": task["model"], "input": task["message"], "temperature": 0}
    asks_tool: dict[str, Any] = {**asked, "input": task["question"], "tools": [task["tool"]]}
    whole, of_tool = checked(client, **asked), checked(client, **asks_tool)
    streamed, of_tool_streamed = events(client, **asked), events(client, **asks_tool)
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    again = [{"role": "user", "content": task["message"]}, *whole.output, {"role": "user", "content": task["message"]}]
    return {
        "text": whole.output_text,
        "chat": client.chat.completions.create(
            model=task["model"], temperature=0, messages=[{"role": "user", "content": task["message"]}]
        )
        .choices[0]
        .message.content,
        "stream": "".join(event.delta for event in streamed if event.type == "response.output_text.delta"),
        "stream_end": [streamed[-1].type, streamed[-1].response.output_text],
        "final": final.output_text,
        "awaited": asyncio.run(awaited(url, **asked)),
        "again": client.responses.create(**{**asked, "input": again}).output_text,
        "cut": client.responses.create(**{**asked, "max_output_tokens": 2}).incomplete_details.reason,
        "tool": [of_tool.output[0].type, of_tool_streamed[-1].response.output[0].arguments],
        "called": called(client, **asks_tool),
        "errors": [
            failure(client, **{**asked, "model": "nobody"}),
            failure(client, **asked, store=True),
            failure(client, **asked, previous_response_id="resp_1"),
            failure(client, **asked, tools=[{"type": "web_search"}]),
            failure(client, **{**asked, "input": [{"type": "item_reference", "id": "msg_1"}]}),
        ],
    }


answer(use)
