"""The openai package on completions and chats; the argument says sync or async. Beside what every program is given it
takes "prompt", "message" and "end" (a token), and answers with what it makes of whole texts, streams and errors."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai
from task import answer

LABELS: dict[str, Any] = {
    **{"store": False, "metadata": {"team": "search"}, "service_tier": "auto", "modalities": ["text"], "n": 1},
    **{"user": "me", "safety_identifier": "me", "prompt_cache_key": "k", "verbosity": "medium", "logit_bias": {}},
}
"""What asks for nothing."""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


class Clients:
    """The package's two clients behind one form."""

    def __init__(self, kind: str, url: str) -> None:
        options: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": 60.0}
        self.client: Any = openai.OpenAI(**options) if kind == "sync" else openai.AsyncOpenAI(**options)
        self._waits = kind == "async"

    async def whole(self, create: Any, **fields: Any) -> Any:
        found = create(**fields)
        return await found if self._waits else found

    async def chunks(self, create: Any, **fields: Any) -> list[Any]:
        stream = await self.whole(create, stream=True, stream_options={"include_usage": True}, **fields)
        return [one async for one in stream] if self._waits else list(stream)

    async def failed(self, **fields: Any) -> dict[str, Any]:
        return await self.failure(self.client.chat.completions.create, **fields)

    async def cut(self, create: Any, **fields: Any) -> int:
        """Reads one chunk and leaves."""
        stream = await self.whole(create, stream=True, **fields)
        if self._waits:
            await anext(stream)
            await stream.close()
        else:
            next(stream)
            stream.close()
        return 1

    async def again(self, create: Any, **fields: Any) -> str:
        """What is said with an answer in the history, as the package's object has it."""
        before = (await self.whole(create, **fields)).choices[0].message
        question = fields.pop("messages")
        history = [*question, before.model_dump(), *question]
        return str((await self.whole(create, messages=history, **fields, **LABELS)).choices[0].message.content)

    async def failure(self, create: Any, **fields: Any) -> dict[str, Any]:
        try:
            found = await self.whole(create, **fields)
        except openai.APIStatusError as error:
            named = {"class": type(error).__name__, "status": error.status_code, "param": error.param}
            return {**named, "message": str(error)}
        raise AssertionError(f"no exception, but {found!r:.300}")


def completion(chunks: list[Any]) -> dict[str, Any]:
    choices = [one for chunk in chunks for one in chunk.choices]
    return {
        "text": "".join(one.text for one in choices),
        "finish": [one.finish_reason for one in choices if one.finish_reason],
        "usage": [chunk.usage.model_dump(exclude_none=True) for chunk in chunks if chunk.usage],
    }


def chat(chunks: list[Any]) -> dict[str, Any]:
    choices = [one for chunk in chunks for one in chunk.choices]
    return {
        "role": [one.delta.role for one in choices if one.delta.role],
        "text": "".join(one.delta.content or "" for one in choices),
        "finish": [one.finish_reason for one in choices if one.finish_reason],
        "usage": [chunk.usage.model_dump(exclude_none=True) for chunk in chunks if chunk.usage],
    }


async def use(task: dict[str, Any], kind: str) -> dict[str, Any]:
    clients = Clients(kind, f"http://{task['http']}/openai/v1")
    complete, talk = clients.client.completions.create, clients.client.chat.completions.create
    prompt: dict[str, Any] = {"model": task["model"], "prompt": task["prompt"], "temperature": 0, "max_tokens": 8}
    messages = [{"role": "user", "content": task["message"]}]
    asked: dict[str, Any] = {"model": task["model"], "messages": messages, "temperature": 0, "max_tokens": 8}
    return {
        "completion": (await clients.whole(complete, **prompt)).model_dump(),
        "completion_stream": completion(await clients.chunks(complete, **prompt)),
        "several": [one.text for one in (await clients.whole(complete, n=2, **prompt)).choices],
        "chat": (await clients.whole(talk, **asked)).model_dump(),
        "chat_stream": chat(await clients.chunks(talk, **asked)),
        "tools": (await clients.whole(talk, tools=TOOLS, **asked)).choices[0].message.role,
        "extra": (await clients.whole(complete, extra_body={"ignore_eos": True}, **prompt)).usage.completion_tokens,
        "again": await clients.again(talk, **asked),
        "ended": (await clients.whole(complete, extra_body={"stop_token_ids": [task["end"]]}, **prompt)).model_dump(),
        "lost": await Clients(kind, f"http://{task['http']}/v1").failed(**asked),
        "cut": await clients.cut(complete, **{**prompt, "max_tokens": 200}),
        "errors": [
            await clients.failure(complete, **{**prompt, "model": "nobody"}),
            await clients.failure(complete, extra_body={"num_beams": 4}, **prompt),
            await clients.failure(talk, **{**asked, "messages": []}),
            await clients.failure(talk, response_format={"type": "json_object"}, **asked),
        ],
    }


answer(lambda task: asyncio.run(use(task, sys.argv[1])))
