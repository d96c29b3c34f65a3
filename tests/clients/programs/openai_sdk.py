"""The openai package. Beside what every program is given it takes "texts", and answers with what the package makes of
embeddings, models and errors."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

import openai
from task import answer


def vectors(found: Any) -> list[list[float]]:
    assert [one.index for one in found.data] == list(range(len(found.data)))
    return [one.embedding for one in found.data]


def decoded(answered: Any) -> list[list[float]]:
    """The vectors of an answer that was asked for in base64: the package then leaves them to its caller."""
    found = [base64.b64decode(one.embedding) for one in answered.data]
    return [list(struct.unpack(f"<{len(one) // 4}f", one)) for one in found]


def failure(call: Callable[[], Any]) -> list[Any]:
    """The exception that the package raises, with its status and the parameter that it names."""
    try:
        found = call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.param]
    raise AssertionError(f"no exception, but {found!r:.300}")


def errors(client: openai.OpenAI, model: str) -> dict[str, Any]:
    create = client.embeddings.create
    wrong: Any = ["a", 3]
    return {
        "model": failure(lambda: create(model="nobody", input="a")),
        "retrieve": failure(lambda: client.models.retrieve("nobody")),
        "input": failure(lambda: create(model=model, input=wrong)),
        "dimensions": failure(lambda: create(model=model, input="a", dimensions=10**6)),
        "unknown": failure(lambda: create(model=model, input="a", extra_body={"top_k": 1})),
        "path": failure(lambda: client.chat.completions.create(model=model, messages=[])),
    }


def run(task: dict[str, Any]) -> dict[str, Any]:
    model, texts = task["model"], task["texts"]
    client = openai.OpenAI(base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0, timeout=60.0)
    create = client.embeddings.create
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
        "errors": errors(client, model),
    }


answer(run)
