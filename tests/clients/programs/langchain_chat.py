"""langchain-openai. Beside what every program is given it takes "prompt", "message", "question" and "tool", and answers
with what langchain makes of whole texts and streams, awaited or not, over both of OpenAI's chat APIs."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from task import answer


def responses(model: ChatOpenAI, task: dict[str, Any]) -> dict[str, Any]:
    """The same over the Responses API, and the answer to a tool's result."""
    message = model.invoke(task["message"])
    whole = None
    for chunk in model.bind_tools([task["tool"]]).stream(task["question"]):
        whole = chunk if whole is None else whole + chunk
    [call] = whole.tool_calls
    history = [HumanMessage(task["question"]), whole, ToolMessage("sunny", tool_call_id=call["id"])]
    return {
        "text": message.text,
        "usage": message.usage_metadata,
        "again": model.invoke([HumanMessage(task["message"]), message, HumanMessage(task["message"])]).text,
        "stream": "".join(chunk.text for chunk in model.stream(task["message"])),
        "call": [call["name"], call["args"]],
        "invoked": model.bind_tools([task["tool"]]).invoke(task["question"]).tool_calls[0]["args"],
        "answered": model.bind_tools([task["tool"]]).invoke(history).text,
    }


async def use(task: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"base_url": f"http://{task['http']}/openai/v1", "api_key": "none", "max_retries": 0}
    options |= {"model": task["model"], "temperature": 0, "max_tokens": 8}
    chat, complete = ChatOpenAI(**options), OpenAI(**options)
    message = chat.invoke(task["message"])
    return {
        "chat": message.content,
        "usage": message.usage_metadata,
        "again": chat.invoke([HumanMessage(task["message"]), message, HumanMessage(task["message"])]).content,
        "chat_stream": "".join(str(one.content) for one in chat.stream(task["message"])),
        "chat_async": (await chat.ainvoke(task["message"])).content,
        "chat_async_stream": "".join([str(one.content) async for one in chat.astream(task["message"])]),
        "completion": complete.invoke(task["prompt"]),
        "completion_stream": "".join(complete.stream(task["prompt"])),
        "responses": responses(ChatOpenAI(**{**options, "max_tokens": 60}, use_responses_api=True), task),
    }


answer(lambda task: asyncio.run(use(task)))
