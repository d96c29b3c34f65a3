"""What is sent: the model's name, the form of its instances and the texts, as bodies of requests."""

from __future__ import annotations

import random
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from hf_transformer.commands.bench.load import Target
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.types.request import Json

WORDS: Final = (
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you "
    "were all her she there would their we him been has when who will more no if out so said what up its about into "
    "time state world life day house night music science city river language question answer winter market doctor"
).split()
"""Frequent words of English: nearly all are one token."""
FORMS: Final[Mapping[str, Callable[[str], Json]]] = {
    "question_answering": lambda text: {"question": "Where is it?", "context": text},
    "rerank": lambda text: {"query": "Where is it?", "texts": [text, text[: len(text) // 2 + 1]]},
    "zero_shot_classification": lambda text: {"sequence": text, "candidate_labels": ["science", "music", "politics"]},
}
"""Texts as instances of the tasks that take more than a text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent to which model. ``streamed``: its answers are streams of tokens."""

    model: str
    path: str
    bodies: Sequence[Json]
    streamed: bool


def make_plan(server: Target, texts: Sequence[Json], given: Namespace, model: str | None) -> Plan:
    """Asks the service what the model does, and makes requests for that.

    ``texts`` may be instances of the task too, as V1 has them. Without ``model`` it is the service's first one,
    without --api OpenAI's where the model generates text, else V1. Raises ConfigError if the service has no such model,
    or no such API for it, LoadError if it does not answer, or not to these requests.
    """
    status, found = server.ask("/v1/models")
    names = [one["id"] for one in found["data"]] if "data" in found else found["models"] if "models" in found else []
    name = model or "".join(names[:1])
    if status == 200 and name not in names:
        raise ConfigError(f"--model_name={name}: the service has {', '.join(names)}")
    status, info = server.ask(f"/v1/models/{name}/info")
    if status != 200:
        raise LoadError(f"the service does not say what its model does, but {status}: {str(info)[:200]}")
    mask, form = info.get("mask_token"), FORMS.get(info["task"])
    if mask and mask not in str(texts[0]):
        texts = [f"{text} {mask}." for text in texts]
    instances = [form(one) if form and isinstance(one, str) else one for one in texts]
    api = given.api or ("openai" if "generation" in info else "v1")
    tokens = given.max_tokens if "generation" in info else None
    path = info["protocols"][api]
    if api == "openai":
        if not path:
            raise ConfigError(f"--api=openai: OpenAI's API has nothing for {info['task']}")
        path, bodies = path[0], [_of_openai(name, one, tokens) for one in instances]
    else:
        more = {"parameters": {"max_new_tokens": tokens}} if tokens else {}
        bodies = [{**({"instances": [one]} if api == "v1" else {"inputs": _tensors(one)}), **more} for one in instances]
    status, answer = server.ask(path, bodies[0])
    if status != 200:
        raise LoadError(f"POST {path} is answered with {status}: {str(answer)[:300]}; see --texts")
    return Plan(name, path, bodies, api == "openai" and tokens is not None)


def _of_openai(model: str, instance: Any, tokens: int | None) -> Json:
    """The body for embeddings, rerank or, with the number of new ``tokens``, completions."""
    if tokens:
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": model, "prompt": instance, "max_tokens": tokens, "temperature": 0, **stream}
    if isinstance(instance, str):
        return {"model": model, "input": instance}
    return {"model": model, "query": instance["query"], "documents": instance["texts"]}


def _tensors(instance: Any) -> list[Json]:
    """An instance as tensors of V2: one of the text, or one per field of an object."""
    fields = {"text": instance} if isinstance(instance, str) else instance
    if not all(isinstance(value, str) for value in fields.values()):
        raise ConfigError("--api=v2: lists have no form in V2")
    return [{"name": key, "shape": [1], "datatype": "BYTES", "data": [value]} for key, value in fields.items()]


def read_texts(path: Path) -> list[Json]:
    """A text per line, or JSON: an instance of the task as V1 has it. Raises ConfigError."""

    def instance(line: str) -> Json:
        with suppress(orjson.JSONDecodeError):
            return cast(Json, orjson.loads(line)) if line[0] in '{["' else line
        return line

    try:
        found = [instance(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--texts={path}: can't be read: {error}") from error
    if not found:
        raise ConfigError(f"--texts={path}: has no text")
    return found


def made_up(lengths: Sequence[range]) -> list[str]:
    """512 texts of frequent words, always the same ones. Each range of lengths, in words, is equally frequent."""
    chance = random.Random(0)  # noqa: S311 - no secret
    sizes = [chance.choice(lengths[number % len(lengths)]) for number in range(512)]
    return [" ".join(chance.choices(WORDS, k=size)) for size in sizes]


def read_lengths(text: str) -> tuple[range, ...]:
    """The lengths in ``8,8,16-64``. Raises ValueError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise ValueError(part)
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(found)
