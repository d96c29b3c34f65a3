"""What the endpoints of the OpenAI API share: a body's fields, the model that it names, usage, and errors.

An error is {"error": {"message": "...", "type": "invalid_request_error", "param": "input[3]", "code": null}}, where
``param`` is the field that the message begins with.

Source: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import TracebackType

import orjson

from hf_transformer.api.base import Call, Model, Models
from hf_transformer.errors import InvalidInput, RequestError, TooLarge, UnknownModel
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Answers, Context, Json, Query

GENERATION = ("text_generation", "text2text_generation")
TASKS: Mapping[str, tuple[str, ...]] = {
    "embeddings": ("text_embedding",),
    "rerank": ("rerank",),
    "completions": GENERATION,
    "chat/completions": GENERATION,
}
"""The tasks of which a model has to do one for an endpoint."""

FIELD = re.compile(r"(?!body:)(\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*): ")
"""The name of a field, as messages begin with it. ``body`` is none."""
ABOUT_FIELDS = frozenset((400, 404, 413))
"""The statuses whose messages begin with a field; others may quote anybody."""
SHOWN_NAMES = 5
"""Unknown fields that are named in a message."""


def read_fields(call: Call, known: Sequence[str]) -> dict[str, Json]:
    """A request's fields; one that is null is left out, as if it had not been sent, whatever its name.

    Raises:
        InvalidInput: not a JSON object, or one with fields that are not known.
        RequestError: the body can't be read, see Call.json.
    """
    payload = call.json()
    if not isinstance(payload, dict):
        raise InvalidInput(f"body: expected an object, got {describe(payload)}")
    if None in payload.values():
        payload = {name: value for name, value in payload.items() if value is not None}
    if payload.keys() - known:
        unknown = [name[:40] for name in payload if name not in known]
        expected = f"expected some of {', '.join(known)}"
        if len(unknown) == 1:
            raise InvalidInput(f"{unknown[0]}: unknown, {expected}")
        more = f" and {len(unknown) - SHOWN_NAMES} more" if len(unknown) > SHOWN_NAMES else ""
        raise InvalidInput(f"body: unknown fields {', '.join(map(repr, unknown[:SHOWN_NAMES]))}{more}, {expected}")
    return payload


def find_model(models: Models, fields: Mapping[str, Json], endpoint: str) -> Model:
    """The model that a request names.

    Raises:
        InvalidInput: it names none, or one that does another task than the endpoint's.
        UnknownModel: it names one that is not served.
    """
    name = Parameters(fields, list(fields)).string("model")
    if name is None:
        raise InvalidInput(f"model: missing, expected the name of the model that is served: {', '.join(models.names)}")
    model = known_model(models, name)
    if model.task.name not in TASKS[endpoint]:
        needed = " or ".join(TASKS[endpoint])
        raise InvalidInput(f"model: {model.name!r} does {model.task.name}, but {endpoint} needs {needed}")
    return model


def known_model(models: Models, name: str) -> Model:
    """The model of this name. Raises UnknownModel."""
    if name not in models.names:
        raise UnknownModel(f"model: {name[:200]!r} is not served here; served: {', '.join(models.names)}")
    return models[name]


def require_few(name: str, given: Sequence[Json], limit: int) -> None:
    """Raises TooLarge for a list that is over every limit, before its elements are looked at one by one."""
    if len(given) > limit:
        raise TooLarge(
            f"{name}: {len(given)} in a request, at most {limit} are taken (--max_instances, --max_sequences)"
        )


async def ask(model: Model, query: Query, context: Context, *, single: bool) -> Answers:
    """The model's answers; its errors name fields as the client sent them.

    Args:
        single: whether the field ``query.name`` itself is the only instance, and not a list of some.
    """
    with named_as_sent(query.name if single else None):
        return await model.predict(query, context)


class named_as_sent:
    """Lets errors name fields as they are in the body: parameters are fields here, and ``whole`` is no list."""

    __slots__ = ("_whole",)

    def __init__(self, whole: str | None = None) -> None:
        self._whole = whole

    def __enter__(self) -> None:
        """What follows may raise."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RequestError):
            raise as_sent(error, self._whole) from error


def as_sent(error: RequestError, whole: str | None = None) -> RequestError:
    """The error, naming fields as they are in the body; see named_as_sent."""
    message = str(error).removeprefix("parameters.")
    for prefix in (f"{whole}[0].texts", f"{whole}[0]") if whole is not None else ():
        if message.startswith(prefix):
            message = f"{whole}{message.removeprefix(prefix)}"
            break
    return type(error)(message)


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
