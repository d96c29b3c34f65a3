"""Builds request bodies for a service's model and API from texts."""

from __future__ import annotations

import random
import re
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from hf_transformer.commands.bench.load import Target
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.base import Servable
from hf_transformer.types.request import Json

WORDS: Final = (
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you "
    "were all her she there would their we him been has when who will more no if out so said what up its about into "
    "time state world life day house night music science city river language question answer winter market doctor"
).split()
"""Frequent English words, mostly single tokens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests to a model, or to its alias or adapter: ``served_name`` is the model's own name. If ``streamed``, the
    responses are server-sent events with tokens."""

    model: str
    served_name: str
    path: str
    bodies: Sequence[Json]
    streamed: bool


def make_plan(server: Target, texts: Sequence[Json], flags: Namespace, model: str | None) -> Plan:
    """Reads the model's task from the service, creates the requests and sends the first request as a test.

    ``texts`` are texts or V1 instances of the task. ``model`` defaults to the service's only model. --api defaults to
    OpenAI for models that generate text, otherwise to V1. Raises ConfigError for an unknown model, several without
    ``model``, or an unsupported API, LoadError if the service is unreachable or rejects the request.
    """
    status, listing = server.ask("/v1/models")
    if status != 200 or not isinstance(listing, dict):
        raise LoadError(f"GET /v1/models failed with status {status}: {str(listing)[:200]}")
    models = listing.get("data") or listing.get("models") or []
    names = [entry["id"] if isinstance(entry, dict) else entry for entry in models]
    name = model or only_model(server, names)
    if name not in names:
        raise ConfigError(f"--model_name={name}: expected a model of the service: {', '.join(names) or 'none'}")
    status, info = server.ask(f"/v1/models/{name}/info")
    if status != 200:
        raise LoadError(f"GET /v1/models/{name}/info failed with status {status}: {str(info)[:200]}")
    trial, mask = TASK_CLASSES.get(info["task"], Servable).trial_instance, info.get("mask_token")
    if mask and mask in str(texts[0]):  # the texts have their own masks
        mask = None
    instances = [trial(text, mask) if isinstance(text, str) else text for text in texts]
    api = flags.api or ("openai" if "generation" in info else "v1")
    tokens = flags.max_tokens if "generation" in info else None
    path = info["protocols"][api]
    if api == "openai":
        if not path:
            raise ConfigError(f"--api=openai: OpenAI's API has no endpoint for {info['task']}")
        path, bodies = path[0], [_openai_body(name, instance, tokens) for instance in instances]
    else:
        path = path.replace(f"/models/{info['name']}", f"/models/{name}")  # of an alias or adapter
        parameters = {"parameters": {"max_new_tokens": tokens}} if tokens else {}
        bodies = [
            {**({"instances": [instance]} if api == "v1" else {"inputs": _tensors(instance)}), **parameters}
            for instance in instances
        ]
    status, answer = server.ask(path, bodies[0])
    if status != 200:
        raise LoadError(f"POST {path} failed with status {status}: {str(answer)[:300]}; see --texts")
    return Plan(name, info["name"], path, bodies, api == "openai" and tokens is not None)


def only_model(server: Target, names: Sequence[str]) -> str:
    """The service's model, without its aliases and adapters; "" for none. Raises ConfigError for several models."""
    about = server.ask("/info")[1] if len(names) > 1 else {}
    models = [str(entry["name"]) for entry in about.get("models", ())] if isinstance(about, dict) else []
    if len(models) > 1:
        raise ConfigError(f"--model_name is required: the service has the models {', '.join(models)}")
    return "".join(models or names[:1])


def _openai_body(model: str, instance: Any, tokens: int | None) -> Json:
    """A request body for embeddings or rerank. ``tokens`` selects completions and sets max_tokens."""
    if tokens:
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": model, "prompt": instance, "max_tokens": tokens, "temperature": 0, **stream}
    if isinstance(instance, str):
        return {"model": model, "input": instance}
    return {"model": model, "query": instance["query"], "documents": instance["texts"]}


def _tensors(instance: Any) -> list[Json]:
    """Converts a text or an object's fields to BYTES tensors of shape [1]. Raises ConfigError for a list."""
    fields = {"text": instance} if isinstance(instance, str) else instance
    if not all(isinstance(value, str) for value in fields.values()):
        raise ConfigError("--api=v2: V2 has no form for the lists in these instances")
    return [{"name": key, "shape": [1], "datatype": "BYTES", "data": [value]} for key, value in fields.items()]


def read_texts(path: Path) -> list[Json]:
    """Reads a text or a V1 instance (JSON) from each line. Raises ConfigError for an unreadable or empty file."""

    def instance(line: str) -> Json:
        with suppress(orjson.JSONDecodeError):
            return cast(Json, orjson.loads(line)) if line[0] in '{["' else line
        return line

    try:
        texts = [instance(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--texts={path}: can't read the file: {error}") from error
    if not texts:
        raise ConfigError(f"--texts={path}: the file has no text")
    return texts


def random_texts(lengths: Sequence[range]) -> list[str]:
    """Generates 512 reproducible texts of frequent words. All ranges of lengths, in words, are equally frequent."""
    generator = random.Random(0)  # noqa: S311 - no secret
    sizes = [generator.choice(lengths[number % len(lengths)]) for number in range(512)]
    return [" ".join(generator.choices(WORDS, k=size)) for size in sizes]


def read_lengths(text: str) -> tuple[range, ...]:
    """Parses ranges such as ``8,8,16-64``. Raises ValueError for an invalid range."""
    lengths = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise ValueError(part)
        lengths.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(lengths)
