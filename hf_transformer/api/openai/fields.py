"""The fields of a request to the OpenAI API: which are known, the model that they name, and those that change nothing.

Also errors in OpenAI's form: {"error": {"message": "...", "type": "invalid_request_error", "param": "input[3]",
"code": null}}, where ``param`` is the field that the message begins with.

Sources: https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.errors import expect, require_few
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.errors import InvalidInput, UnknownModel, describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.request import Answers, Json

GENERATION = ("text_generation", "text2text_generation")
TASKS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("text_embedding",),
    "rerank": ("rerank",),
    "completions": GENERATION,
    "chat/completions": GENERATION,
}
"""The endpoints, each with the tasks of which its model does one."""
TEXTS_OR_IDS = "a string, a list of strings, a list of token ids or a list of such lists"

CHATS, EMBEDDINGS, RERANK = ("chat/completions",), ("embeddings",), ("rerank",)
GENERATING = ("completions", *CHATS)
OPENAIS = (*GENERATING, *EMBEDDINGS)


class Unused(NamedTuple):
    """A field that changes nothing here, as long as it has one of these values; None takes any string.

    ``why`` begins the message for any other value.
    """

    name: str
    endpoints: tuple[str, ...]
    values: tuple[Json, ...] | None = None
    why: str = ""


TABLE: Final = (
    # Who asks, and what the next request may have in common with this one.
    Unused("user", (*OPENAIS, *RERANK)),
    Unused("safety_identifier", OPENAIS),
    Unused("prompt_cache_key", OPENAIS),
    Unused("prompt_cache_retention", OPENAIS),
    Unused("metadata", OPENAIS),  # strings by key, see _check_metadata
    # OpenAI's own.
    Unused("store", OPENAIS, (True, False), "nothing is stored here"),
    Unused("service_tier", OPENAIS, ("auto", "default"), "there is one here"),
    Unused("modalities", CHATS, (["text"],), "the model writes text alone"),
    Unused("verbosity", CHATS, ("medium",), "it can't be asked for here"),
    Unused(
        "reasoning_effort",
        CHATS,
        ("none",),
        "it can't be asked for here; a chat template that knows it takes it in chat_template_kwargs",
    ),
    # Those of vLLM, https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    Unused("priority", (*OPENAIS, *RERANK), (0,), "requests have none here"),
    Unused("use_beam_search", GENERATING, (False,), "beams are not searched"),
    Unused("length_penalty", GENERATING, (1.0,), "beams are not searched"),
    Unused("early_stopping", GENERATING, (False,), "beams are not searched"),
    Unused("skip_special_tokens", GENERATING, (True,), "special tokens are no part of a text"),
    Unused("spaces_between_special_tokens", GENERATING, (True,), "special tokens are no part of a text"),
    Unused("include_stop_str_in_output", GENERATING, (False,), "a stop string is no part of a text"),
    Unused("add_generation_prompt", CHATS, (True,), "the answer is a message of its own"),
    Unused("continue_final_message", CHATS, (False,), "the answer is a message of its own"),
    Unused("add_special_tokens", CHATS, (False,), "the chat template adds them"),
    Unused("add_special_tokens", ("completions", *EMBEDDINGS), (True,), "they are added (--disable_special_tokens)"),
    Unused("echo", CHATS, (False,), "a chat has no prompt that could be given back"),
    # Those of embeddings and rerank as vLLM, Jina and Cohere have them.
    Unused("input_type", EMBEDDINGS),  # see embeddings.py
    Unused("embedding_type", EMBEDDINGS, ("float",), "vectors are not quantized"),
    Unused("late_chunking", EMBEDDINGS, (False,), "each text is embedded by itself"),
    Unused("truncate_prompt_tokens", (*EMBEDDINGS, *RERANK), (-1,), "texts are cut at the model's length"),
    Unused("truncation_side", (*EMBEDDINGS, *RERANK), ("right",), "texts are cut at their end"),
    Unused("truncation_direction", (*EMBEDDINGS, *RERANK), ("Right", "right"), "texts are cut at their end"),
)
"""All fields that are taken though they mean nothing here. Some models or servers know more values of them."""
TRUNCATE = "truncate"
TRUNCATION = ("truncation", TRUNCATE)
TRUNCATES: Mapping[bool, tuple[str, ...]] = {True: ("END",), False: ("NONE",)}
"""Other servers' names for the values of ``truncation``."""
MOST_LABELS, LONGEST_KEY, LONGEST_LABEL = 16, 64, 512
"""Of metadata, as with OpenAI: keys, and characters of a key and of its label."""

FIELD = re.compile(r"(?!body:)(\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*): ")
"""The name of a field, as messages begin with it. ``body`` is none."""
ABOUT_FIELDS = frozenset((400, 404, 413))
"""The statuses whose messages begin with a field; others may quote anybody."""
SHOWN_NAMES = 5  # unknown fields that a message names
Ids = TypeVar("Ids")

_UNUSED = {endpoint: {one.name: one for one in TABLE if endpoint in one.endpoints} for endpoint in TASKS}


def unused(endpoint: str) -> tuple[str, ...]:
    """The names of an endpoint's fields that mean nothing here."""
    return tuple(_UNUSED[endpoint])


def read_request(service: Service, call: Call, endpoint: str, known: Sequence[str]) -> tuple[Model, Parameters]:
    """The model that a request names, and its fields. A field that is null counts as absent, whatever its name.

    Errors about fields may begin with ``parameters.``, see as_sent.

    Raises:
        InvalidInput: no JSON object; an unknown or unsupported field; no model, or a model
            of another task.
        UnknownModel: another model is served.
        RequestError: the body can't be read, see Call.json.
    """
    payload = expect(call.json(), dict, "body", "an object")
    if None in payload.values():
        payload = {name: value for name, value in payload.items() if value is not None}
    if payload.keys() - known:
        raise _unknown([name[:40] for name in payload if name not in known], known)
    table = _UNUSED[endpoint]
    for name, value in payload.items():
        if name in table:
            _check_unused(table[name], value)
    models, given = service.models, Parameters(payload, known)
    asked = given.string("model")
    if asked is None:
        raise InvalidInput.of(
            f"model: missing, expected the name of the model that is served: {', '.join(models.names)}"
        )
    model = known_model(models, asked)
    if model.task.name not in TASKS[endpoint]:
        needed = " or ".join(TASKS[endpoint])
        raise InvalidInput.of(f"model: {model.name!r} does {model.task.name}, but {endpoint} needs {needed}")
    return model, given


def _unknown(names: Sequence[str], known: Sequence[str]) -> InvalidInput:
    expected = f"expected some of {', '.join(known)}"
    if len(names) == 1:
        return InvalidInput.of(f"{names[0]}: unknown, {expected}")
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return InvalidInput.of(f"body: unknown fields {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}, {expected}")


def _check_unused(field: Unused, value: Json) -> None:
    """Raises InvalidInput for a value that asks for something."""
    name, values = field.name, field.values
    if name == "metadata":
        _check_metadata(name, value)
    elif values is None:
        expect(value, str, name, "a string")
    elif not any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values):
        expected = " or ".join(one if isinstance(one, str) else orjson.dumps(one).decode() for one in values)
        raise InvalidInput.of(f"{name}: {field.why}, expected {expected}, got {describe(value, quote=True)}")


def _check_metadata(name: str, value: Json) -> None:
    """It labels a request that is stored, and nothing is stored here: whatever OpenAI would take is taken."""
    if len(expect(value, dict, name, "an object of strings")) > MOST_LABELS:
        raise InvalidInput.of(f"{name}: {len(value)} keys, at most {MOST_LABELS} are taken")
    for key, label in value.items():
        if len(key) > LONGEST_KEY:
            raise InvalidInput.of(f"{name}: a key has {len(key)} characters, at most {LONGEST_KEY} are taken")
        if not isinstance(label, str):
            raise InvalidInput.of(f"{name}: the key {key!r} has {describe(label)}, expected a string")
        if len(label) > LONGEST_LABEL:
            raise InvalidInput.of(
                f"{name}: the key {key!r} has {len(label)} characters, at most {LONGEST_LABEL} are taken"
            )


def known_model(models: Models, name: str) -> Model:
    """The model of this name. Raises UnknownModel."""
    if name not in models:
        raise UnknownModel.of(f"model: {name[:200]!r} is not served here; served: {', '.join(models.names)}")
    return models[name]


def read_texts(
    name: str, given: Json, max_texts: int, read_ids: Callable[[list[Json], str], Ids]
) -> tuple[list[str | Ids], bool]:
    """The texts of a field, and whether it is one text rather than a list. ``read_ids`` reads a list of token ids,
    under the name that it has in messages. Raises InvalidInput, and TooLarge for more than ``max_texts``."""
    if isinstance(given, str):
        return [given], True
    if not isinstance(given, list) or not given:
        got = "nothing" if given is None else "an empty list" if given == [] else describe(given)
        raise InvalidInput.of(f"{name}: expected {TEXTS_OR_IDS}, got {got}")
    if type(given[0]) is int:
        return [read_ids(given, name)], True
    require_few(name, given, max_texts)
    texts: list[str | Ids] = []
    for index, one in enumerate(given):
        expect(one, str | list, f"{name}[{index}]", "a string or a list of token ids")
        texts.append(one if isinstance(one, str) else read_ids(one, f"{name}[{index}]"))
    return texts, False


def read_truncation(given: Parameters) -> dict[str, Json]:
    """The task's parameter ``truncation`` if it is given, under this name or as ``truncate``: "END" or true, as with
    Cohere, NVIDIA NIM, Jina and text-embeddings-inference, is to cut a text that is too long, "NONE" or false to refuse
    it. Raises InvalidInput for anything else."""
    if given.one_of(*TRUNCATION) != TRUNCATE:
        return {name: given.get(name) for name in TRUNCATION if name in given}
    value = given.get(TRUNCATE)
    for meant, words in TRUNCATES.items():
        if value is meant or (isinstance(value, str) and value in words):
            return {"truncation": meant}
    why = ": texts are cut at their end" if value == "START" else ""
    raise InvalidInput.of(
        f'{TRUNCATE}: expected "END" or true, "NONE" or false, got {describe(value, quote=True)}{why}'
    )


def as_sent(message: str, *only: str) -> str:
    """An error's message, whose parameters are fields here. ``only`` has names for the one element that a list has been
    made with, such as ``input[0]``; the client knows it by the name before the bracket."""
    for name in only:
        if message.startswith(name):
            return f"{name.partition('[')[0]}{message.removeprefix(name)}"
    return message.removeprefix("parameters.")


def usage(answers: Answers) -> dict[str, Json]:
    """How many tokens the model has read, special ones included."""
    return {"prompt_tokens": answers.tokens, "total_tokens": answers.tokens}


def render_error(message: str, status: int) -> bytes:
    """OpenAI's error body."""
    found = FIELD.match(message) if status in ABOUT_FIELDS else None
    param = found[1] if found else None
    # OpenAI says "requests" or "tokens" under 429: what there are too many of.
    kind, code = "invalid_request_error" if status < 500 else "server_error", None
    if status == 404 and param == "model":
        code = "model_not_found"
    elif status == 405:
        code = "method_not_supported"
    elif status == 429:
        kind, code = "requests", "rate_limit_exceeded"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
