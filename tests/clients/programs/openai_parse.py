"""The openai package's chat.completions.parse(), with a pydantic model and with tools, whole and as a stream."""

from __future__ import annotations

from typing import Any, Literal

import openai
from pydantic import BaseModel
from task import answer


class Visit(BaseModel):
    kind: Literal["city", "river"]
    days: list[Literal["monday", "friday"]]
    alone: bool


def use(task: dict[str, Any]) -> dict[str, Any]:
    client = openai.OpenAI(base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": task["message"]}]
    options: dict[str, Any] = {"model": task["model"], "messages": messages, "seed": 5}
    parse, tools = client.chat.completions.parse, [openai.pydantic_function_tool(Visit)]
    with client.chat.completions.stream(response_format=Visit, **options) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0].message.parsed
    [call] = (
        parse(tools=tools, tool_choice="required", parallel_tool_calls=False, **options).choices[0].message.tool_calls
    )
    message = parse(response_format=Visit, **options).choices[0].message
    again: dict[str, Any] = {**options, "messages": [*messages, message, *messages], "max_tokens": 4}
    both = parse(tools=tools, tool_choice="required", response_format=Visit, parallel_tool_calls=False, **options)
    try:
        client.chat.completions.create(**{**options, "messages": [{"role": "user", "content": "word " * 5000}]})
    except openai.BadRequestError as error:
        long = error.code
    return {
        "parsed": message.parsed.model_dump(),
        "sent_back": client.chat.completions.create(**again).choices[0].message.role,
        "tool_and_format": both.choices[0].message.tool_calls[0].function.parsed_arguments.model_dump(),
        "long": long,
        "streamed": streamed.model_dump(),
        "events": sorted(kinds),
        "tool": [call.function.name, call.function.parsed_arguments.model_dump()],
    }


answer(use)
