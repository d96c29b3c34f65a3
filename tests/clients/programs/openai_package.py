"""The openai package; the argument says what it is used for: sync or async (completions and chats), embeddings or
moderations.

Beside what every program is given it takes "prompt", "message" and "end" (a token), or "texts", and answers with what
it makes of whole texts, streams, vectors, models and errors.
"""

from __future__ import annotations

import asyncio
import base64
import struct
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
        self._waits = kind == "async"
        self.client: Any = openai.AsyncOpenAI(**options) if self._waits else openai.OpenAI(**options)
        self.complete, self.talk = self.client.completions.create, self.client.chat.completions.create

    async def whole(self, create: Any, **fields: Any) -> Any:
        found = create(**fields)
        return await found if self._waits else found

    async def chunks(self, create: Any, **fields: Any) -> dict[str, Any]:
        """The texts and fields of a stream's chunks, joined."""
        stream = await self.whole(create, stream=True, stream_options={"include_usage": True}, **fields)
        chunks = [item async for item in stream] if self._waits else list(stream)
        choices = [item for chunk in chunks for item in chunk.choices]
        deltas = [item.delta for item in choices] if create is self.talk else []
        return {
            "role": [item.role for item in deltas if item.role],
            "text": "".join([item.content or "" for item in deltas] or [item.text for item in choices]),
            "finish": [item.finish_reason for item in choices if item.finish_reason],
            "usage": [chunk.usage.model_dump(exclude_none=True) for chunk in chunks if chunk.usage],
        }

    async def cut(self, create: Any, **fields: Any) -> None:
        """Reads one chunk and leaves."""
        stream = await self.whole(create, stream=True, **fields)
        if self._waits:
            await anext(stream)
            await stream.close()
        else:
            next(stream)
            stream.close()

    async def again(self, create: Any, **fields: Any) -> str:
        """The reply to a history with an answer, as the package's object has it."""
        before = (await self.whole(create, **fields)).choices[0].message
        question = fields.pop("messages")
        history = [*question, before.model_dump(), *question]
        return str((await self.whole(create, messages=history, **fields, **LABELS)).choices[0].message.content)

    async def failure(self, create: Any, *arguments: Any, **fields: Any) -> list[Any]:
        """The exception that the package raises, its status, the parameter that it names and its message."""
        try:
            returned = create(*arguments, **fields)
            returned = await returned if self._waits else returned
        except openai.APIStatusError as error:
            return [type(error).__name__, error.status_code, error.param, str(error)]
        raise AssertionError(f"no exception, but {returned!r:.300}")


async def generation(task: dict[str, Any], kind: str) -> dict[str, Any]:
    clients, lost = (Clients(kind, f"http://{task['http']}/{path}") for path in ("openai/v1", "v1"))
    complete, talk = clients.complete, clients.talk
    prompt: dict[str, Any] = {"model": task["model"], "prompt": task["prompt"], "temperature": 0, "max_tokens": 8}
    messages = [{"role": "user", "content": task["message"]}]
    asked: dict[str, Any] = {"model": task["model"], "messages": messages, "temperature": 0, "max_tokens": 8}
    await clients.cut(complete, **{**prompt, "max_tokens": 200})
    return {
        "completion": (await clients.whole(complete, **prompt)).model_dump(),
        "completion_stream": await clients.chunks(complete, **prompt),
        "several": [one.text for one in (await clients.whole(complete, n=2, **prompt)).choices],
        "chat": (await clients.whole(talk, **asked)).model_dump(),
        "chat_stream": await clients.chunks(talk, **asked),
        "tools": (await clients.whole(talk, tools=TOOLS, **asked)).choices[0].message.role,
        "extra": (await clients.whole(complete, extra_body={"ignore_eos": True}, **prompt)).usage.completion_tokens,
        "again": await clients.again(talk, **asked),
        "ended": (await clients.whole(complete, extra_body={"stop_token_ids": [task["end"]]}, **prompt)).model_dump(),
        "lost": await lost.failure(lost.talk, **asked),
        "errors": [
            await clients.failure(complete, **{**prompt, "model": "nobody"}),
            await clients.failure(complete, extra_body={"num_beams": 4}, **prompt),
            await clients.failure(talk, **{**asked, "messages": []}),
            await clients.failure(talk, response_format={"type": "yaml"}, **asked),
        ],
    }


def vectors(found: Any) -> list[list[float]]:
    assert [one.index for one in found.data] == list(range(len(found.data)))
    return [one.embedding for one in found.data]


def decoded(answered: Any) -> list[list[float]]:
    """The vectors of an answer that was asked for in base64: the package then leaves them to its caller."""
    found = [base64.b64decode(one.embedding) for one in answered.data]
    return [list(struct.unpack(f"<{len(one) // 4}f", one)) for one in found]


async def embeddings(task: dict[str, Any], kind: str) -> dict[str, Any]:
    model, texts = task["model"], task["texts"]
    clients = Clients(kind, f"http://{task['http']}/openai/v1")
    client, create = clients.client, clients.client.embeddings.create
    whole = create(model=model, input=texts)
    return {
        "float": [vectors(create(model=model, input=text, encoding_format="float"))[0] for text in texts],
        # The package asks for base64 when nothing is said, and decodes it.
        "base64": [vectors(create(model=model, input=text))[0] for text in texts],
        "undecoded": decoded(create(model=model, input=texts, encoding_format="base64")),
        "list": vectors(whole),
        "ids": [len(vectors(create(model=model, input=ids))) for ids in ([1, 2, 3], [[1, 2, 3], [4, 5]])],
        "dimensions": len(vectors(create(model=model, input=texts[0], dimensions=2))[0]),
        "answer": [whole.object, whole.model, whole.data[0].object],
        "models": [one.model_dump() for one in client.models.list()],
        "errors": [
            await clients.failure(create, model="nobody", input="a"),
            await clients.failure(client.models.retrieve, "nobody"),
            await clients.failure(create, model=model, input=["a", 3]),
            await clients.failure(create, model=model, input="a", dimensions=10**6),
            await clients.failure(create, model=model, input="a", extra_body={"top_k": 1}),
            await clients.failure(clients.talk, model=model, messages=[]),
        ],
    }


async def moderations(task: dict[str, Any], kind: str) -> dict[str, Any]:
    model, texts = task["model"], task["texts"]
    clients = Clients(kind, f"http://{task['http']}/openai/v1")
    create = clients.client.moderations.create
    parts: Any = [{"type": "text", "text": text} for text in texts]
    image: Any = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    whole = create(model=model, input=texts)
    return {
        "flagged": [one.flagged for one in whole.results],
        "harassment": [one.category_scores.harassment for one in whole.results],
        "violence": [[one.categories.violence, one.category_scores.violence] for one in whole.results],
        "types": [[*one.category_applied_input_types.harassment] for one in whole.results],
        "single": create(model=model, input=texts[0]).results[0].category_scores.harassment,
        "parts": len(create(input=parts).results),
        "id": [whole.id[:5], whole.model],
        "errors": [
            await clients.failure(create, model="omni-moderation-latest", input="a"),
            await clients.failure(create, model=model, input=image),
            await clients.failure(create, model=model, input=[]),
        ],
    }


KINDS = {"embeddings": embeddings, "moderations": moderations}
answer(lambda task: asyncio.run(KINDS.get(sys.argv[1], generation)(task, sys.argv[1])))
