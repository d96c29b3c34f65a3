"""The fields of a request to the OpenAI API: which are known, the model that they name, and those that change nothing.

Also errors in OpenAI's form: {"error": {"message": "...", "type": "invalid_request_error", "param": "input[3]",
"code": null}}, where ``param`` is the field that the message begins with.

Sources: https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import orjson

from hf_transformer.api.base import Call, Model, Models, Service, require_few
from hf_transformer.errors import InvalidInput, UnknownModel
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Answers, Json

GENERATION = ("text_generation", "text2text_generation")
TASKS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("text_embedding",),
    "rerank": ("rerank",),
    "completions": GENERATION,
    "chat/completions": GENERATION,
}
"""The endpoints, each with the tasks of which its model does one."""
TEXTS_OR_IDS = "a string, a list of strings, a list of token ids or a list of such lists"

LABELS: Final = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Strings that say who asks, or what the next request may have in common with this one."""
UNUSED: Final = (*LABELS, "metadata", "store", "service_tier")
"""Fields of completions, chats and embeddings that change nothing here."""
UNUSED_IN_CHATS: Final = ("modalities", "verbosity", "reasoning_effort")
ONLY: Mapping[str, tuple[tuple[Json, ...], str]] = {
    "store": ((False,), "nothing is stored here, expected false"),
    "service_tier": (("auto", "default"), "there is one here, expected auto or default"),
    "modalities": ((["text"],), 'the model writes text alone, expected ["text"]'),
    "verbosity": (("medium",), "it can't be asked for here, expected medium"),
    # No value asks for nothing: OpenAI's default differs between its models.
    "reasoning_effort": (
        (),
        "it can't be asked for here; a chat template that knows it takes it in chat_template_kwargs",
    ),
}
"""Values that ask for what is done anyway, and the message for any other value."""
MOST_LABELS, LONGEST_KEY, LONGEST_LABEL = 16, 64, 512
"""Of metadata, as with OpenAI: keys, and characters of a key and of its label."""

FIELD = re.compile(r"(?!body:)(\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*): ")
"""The name of a field, as messages begin with it. ``body`` is none."""
ABOUT_FIELDS = frozenset((400, 404, 413))
"""The statuses whose messages begin with a field; others may quote anybody."""
SHOWN_NAMES = 5
"""Unknown fields that a message names."""

Ids = TypeVar("Ids")


def read_request(service: Service, call: Call, endpoint: str, known: Sequence[str]) -> tuple[Model, Parameters]:
    """The model that a request names, and its fields. A field that is null counts as absent, whatever its name.

    Errors about fields may begin with ``parameters.``, see as_sent.

    Raises:
        InvalidInput: not a JSON object; an unknown field, or one that asks for what is not done; no model, or a model
            that does another task than the endpoint's.
        UnknownModel: another model is served.
        RequestError: the body can't be read, see Call.json.
    """
    payload = call.json()
    if not isinstance(payload, dict):
        raise InvalidInput(f"body: expected an object, got {describe(payload)}")
    if None in payload.values():
        payload = {name: value for name, value in payload.items() if value is not None}
    if payload.keys() - known:
        raise _unknown([name[:40] for name in payload if name not in known], known)
    for name, value in payload.items():
        if name in ONLY or name in UNUSED:
            _check_unused(name, value)
    given = Parameters(payload, known)
    return _find_model(service.models, given, endpoint), given


def _unknown(names: Sequence[str], known: Sequence[str]) -> InvalidInput:
    expected = f"expected some of {', '.join(known)}"
    if len(names) == 1:
        return InvalidInput(f"{names[0]}: unknown, {expected}")
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return InvalidInput(f"body: unknown fields {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}, {expected}")


def _check_unused(name: str, value: Json) -> None:
    if name in LABELS:
        if not isinstance(value, str):
            raise InvalidInput(f"{name}: expected a string, got {describe(value)}")
    elif name == "metadata":
        _check_metadata(name, value)
    else:
        taken, says = ONLY[name]
        if not any(value == one and type(value) is type(one) for one in taken):
            got = f", got {'true' if value is True else shown(value)}" if taken else ""
            raise InvalidInput(f"{name}: {says}{got}")


def _check_metadata(name: str, value: Json) -> None:
    """It labels a request that is stored, and nothing is stored here: whatever OpenAI would take is taken."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{name}: expected an object of strings, got {describe(value)}")
    if len(value) > MOST_LABELS:
        raise InvalidInput(f"{name}: {len(value)} keys, at most {MOST_LABELS} are taken")
    for key, label in value.items():
        if len(key) > LONGEST_KEY:
            raise InvalidInput(f"{name}: a key has {len(key)} characters, at most {LONGEST_KEY} are taken")
        if not isinstance(label, str):
            raise InvalidInput(f"{name}: the key {key!r} has {describe(label)}, expected a string")
        if len(label) > LONGEST_LABEL:
            raise InvalidInput(
                f"{name}: the key {key!r} has {len(label)} characters, at most {LONGEST_LABEL} are taken"
            )


def _find_model(models: Models, given: Parameters, endpoint: str) -> Model:
    name = given.string("model")
    if name is None:
        raise InvalidInput(f"model: missing, expected the name of the model that is served: {', '.join(models.names)}")
    model = known_model(models, name)
    if model.task.name not in TASKS[endpoint]:
        needed = " or ".join(TASKS[endpoint])
        raise InvalidInput(f"model: {model.name!r} does {model.task.name}, but {endpoint} needs {needed}")
    return model


def known_model(models: Models, name: str) -> Model:
    """The model of this name. Raises UnknownModel."""
    if name not in models:
        raise UnknownModel(f"model: {name[:200]!r} is not served here; served: {', '.join(models.names)}")
    return models[name]


def read_texts(
    name: str, given: Json, max_texts: int, read_ids: Callable[[list[Json], str], Ids]
) -> tuple[list[str | Ids], bool]:
    """The texts of a field, and whether it is one text rather than a list.

    Args:
        read_ids: reads a text that is a list of token ids, under the name that it has in messages.

    Raises:
        InvalidInput: the field has none of its four forms.
        TooLarge: more texts than ``max_texts``.
    """
    if isinstance(given, str):
        return [given], True
    if not isinstance(given, list) or not given:
        got = "nothing" if given is None else "an empty list" if given == [] else describe(given)
        raise InvalidInput(f"{name}: expected {TEXTS_OR_IDS}, got {got}")
    if type(given[0]) is int:
        return [read_ids(given, name)], True
    require_few(name, given, max_texts)
    texts: list[str | Ids] = []
    for index, one in enumerate(given):
        if not isinstance(one, str | list):
            raise InvalidInput(f"{name}[{index}]: expected a string or a list of token ids, got {describe(one)}")
        texts.append(one if isinstance(one, str) else read_ids(one, f"{name}[{index}]"))
    return texts, False


def as_sent(message: str) -> str:
    """An error's message, whose parameters are fields here."""
    return message.removeprefix("parameters.")


def shown(value: Json) -> str:
    """A value for a message: a string itself, of anything else the kind."""
    return repr(value[:40]) if isinstance(value, str) else describe(value)


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
