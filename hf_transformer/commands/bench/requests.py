"""What is sent: the model's name, the form of its instances and the texts, as whole HTTP requests."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from hf_transformer.commands.bench.load import Server
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.types import Json

TEXTS: Final = 512
"""Different texts that are made up."""
WORDS: Final = (
    "the of and to in a is that for it was on with as be at by this had not are but from or have an they which one you "
    "were all her she there would their we him been has when who will more no if out so said what up its about into "
    "time state world life day house night music science city river language question answer winter market doctor"
).split()
"""Frequent words of English: nearly all are one token."""
FORMS: Final[Sequence[Callable[[str], Any]]] = (
    lambda text: text,
    lambda text: f"{text} [MASK].",
    lambda text: f"{text} <mask>.",
    lambda text: {"question": "Where is it?", "context": text},
    lambda text: {"query": "Where is it?", "texts": [text, text[: len(text) // 2 + 1]]},
    lambda text: {"sequence": text, "candidate_labels": ["science", "music", "politics"]},
)
"""Texts as instances of each task. The first form that the model takes is used."""

Body = Callable[[Sequence[Any]], Json]
"""Makes a request's body of instances. Raises KeyError or TypeError for instances that the API has no form for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent to which model; ``texts`` in each body. ``streamed``: its answers are streams of tokens."""

    model: str
    path: str
    bodies: Sequence[Json]
    texts: int
    streamed: bool


def make_plan(
    server: Server,
    instances: Sequence[Any],
    *,
    model: str | None,
    api: str | None,
    openai: str,
    texts: int,
    tokens: int,
) -> Plan:
    """Finds out what the model takes, with a request of each kind until one is answered.

    ``instances`` are texts, or instances of the task as V1 has them; each request has ``texts`` of them. Without
    ``model`` it is the first one, without ``api`` (v1, v2, openai) OpenAI's where the model generates text, else V1.
    ``openai`` is the prefix of OpenAI's routes, ``tokens`` the number of new ones per text.

    Raises:
        ConfigError: the service has no such model, or there are too few texts.
        LoadError: the service does not answer, or takes none of the requests.
    """
    status, found = server.ask("GET", "/v1/models")
    names = [one["id"] for one in found["data"]] if "data" in found else found["models"] if "models" in found else []
    if status != 200 or not names:
        raise LoadError(f"GET /v1/models is answered with {status}, not as hf-transformer does: {str(found)[:200]}")
    name = model or names[0]
    if name not in names:
        raise ConfigError(f"--model_name={name}: the service has {', '.join(names)}")
    if len(instances) < texts:
        raise ConfigError(f"--texts_per_request={texts}: there are {len(instances)} texts")
    root = f"/{openai.strip('/')}/v1" if openai.strip("/") else "/v1"
    probe = {"model": name, "prompt": "Hello", "max_tokens": 1}
    generates = server.ask("POST", f"{root}/completions", probe)[0] == 200
    api = api or ("openai" if generates else "v1")
    more: dict[str, Any] = {"parameters": {"max_new_tokens": tokens}} if generates else {}
    if api == "v1":
        bodies: dict[str, Body] = {f"/v1/models/{name}:predict": lambda group: {"instances": group, **more}}
    elif api == "v2":
        first = server.ask("GET", f"/v2/models/{name}")[1]["inputs"][0]["name"]
        bodies = {f"/v2/models/{name}/infer": lambda group: {"inputs": _tensors(first, group), **more}}
    elif generates:
        usual = {"model": name, "max_tokens": tokens, "temperature": 0, "stream": True}
        usual |= {"stream_options": {"include_usage": True}}
        bodies = {f"{root}/completions": lambda group: {**usual, "prompt": group}}
    else:
        bodies = {
            f"{root}/embeddings": lambda group: {"model": name, "input": group},
            f"{root}/rerank": lambda group: {
                "model": name, "query": group[0]["query"], "documents": [text for one in group for text in one["texts"]]
            },
        }  # fmt: skip
    said = ""
    for form in FORMS:
        formed = [form(one) if isinstance(one, str) else one for one in instances]
        groups = [formed[start : start + texts] for start in range(0, len(formed) - texts + 1, texts)]
        for path, body in bodies.items():
            try:
                made = [body(group) for group in groups]
            except (KeyError, TypeError):
                continue
            status, answer = server.ask("POST", path, made[0])
            if status == 200:
                return Plan(name, path, made, texts, api == "openai" and generates)
            said = said or f"{path} is answered with {status}: {str(answer)[:300]}"
    raise LoadError(f"no request is answered; give instances of the task with --texts. {said}")


def _tensors(name: str, group: Sequence[Any]) -> list[Json]:
    """Instances as tensors of V2: one per field of an object, and one of the texts where they are texts."""
    columns = {name: group} if isinstance(group[0], str) else {key: [one[key] for one in group] for key in group[0]}
    if not all(isinstance(value, str) for column in columns.values() for value in column):
        raise TypeError("lists have no form in V2")
    return [{"name": key, "shape": [len(group)], "datatype": "BYTES", "data": list(columns[key])} for key in columns]


def read_texts(path: Path) -> list[Json]:
    """A text per line, or JSON: an instance of the task as V1 has it. Raises ConfigError."""

    def instance(line: str) -> Json:
        try:
            found: Json = orjson.loads(line) if line[0] in '{["' else line
        except orjson.JSONDecodeError:
            return line
        return found

    try:
        found = [instance(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--texts={path}: can't be read: {error}") from error
    return found


def made_up(lengths: Sequence[range]) -> list[str]:
    """Texts of frequent words, always the same ones. Each range of lengths, in words, is equally frequent."""
    chance = random.Random(0)  # noqa: S311 - no secret
    sizes = [chance.choice(lengths[number % len(lengths)]) for number in range(TEXTS)]
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
