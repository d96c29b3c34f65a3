"""langchain-openai. Beside what every program is given it takes "prompt" and "message", and answers with what langchain
makes of whole texts and streams, awaited or not."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI
from task import answer


async def use(task: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"base_url": f"http://{task['http']}/openai/v1", "api_key": "none", "max_retries": 0}
    options |= {"model": task["model"], "temperature": 0, "max_tokens": 8}
    chat, complete = ChatOpenAI(**options), OpenAI(**options)
    said = chat.invoke(task["message"])
    return {
        "chat": said.content,
        "usage": said.usage_metadata,
        "again": chat.invoke([HumanMessage(task["message"]), said, HumanMessage(task["message"])]).content,
        "chat_stream": "".join(str(one.content) for one in chat.stream(task["message"])),
        "chat_async": (await chat.ainvoke(task["message"])).content,
        "chat_async_stream": "".join([str(one.content) async for one in chat.astream(task["message"])]),
        "completion": complete.invoke(task["prompt"]),
        "completion_stream": "".join(complete.stream(task["prompt"])),
    }


answer(lambda task: asyncio.run(use(task)))
