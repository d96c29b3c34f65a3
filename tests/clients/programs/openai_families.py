"""The openai package with models of several families: a tool is called, and its result answered.

Takes "families" (names with the addresses of their services), "question" and "tool", and answers for each family and
way: [name, arguments, reasoning before the call, second answer].
"""

from __future__ import annotations

import json
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from task import answer


def chat(client: openai.OpenAI, asked: dict[str, Any], stream: bool) -> list[Any]:
    def message(messages: list[Any]) -> Any:
        if not stream:
            return client.chat.completions.create(messages=messages, **asked).choices[0].message
        state = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(messages=messages, stream=True, **asked):
            state.handle_chunk(chunk)
        return state.get_final_completion().choices[0].message

    question = {"role": "user", "content": asked.pop("question")}
    called = message([question])
    [call] = called.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = message([question, called.model_dump(exclude_none=True), result])
    thought = getattr(called, "reasoning", None)
    return [call.function.name, json.loads(call.function.arguments), thought, second.content]


def responses(client: openai.OpenAI, asked: dict[str, Any], stream: bool) -> list[Any]:
    def response(items: list[Any]) -> Any:
        if not stream:
            return client.responses.create(input=items, **asked)
        with client.responses.stream(input=items, **asked) as events:
            return events.get_final_response()

    tool = asked.pop("tools")[0]
    asked["tools"] = [{"type": "function", **tool["function"]}]
    question = {"role": "user", "content": asked.pop("question")}
    output = response([question]).output
    call = output[-1]
    thought = output[0].content[0].text if output[0].type == "reasoning" else None
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = response([question, *output, result]).output_text
    return [call.name, json.loads(call.arguments), thought, second]


def use(task: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, address in task["families"].items():
        client = openai.OpenAI(base_url=f"http://{address}/openai/v1", api_key="none", max_retries=0, timeout=60.0)
        for way in (chat, responses):
            for stream in (False, True):
                asked = {"model": task["family_model"], "question": task["question"], "tools": [task["tool"]]}
                kind = "streamed" if stream else "whole"
                results[f"{name} {way.__name__} {kind}"] = way(client, asked, stream)
    return results


answer(use)
