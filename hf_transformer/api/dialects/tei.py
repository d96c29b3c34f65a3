"""text-embeddings-inference's API.

    POST /embed {"inputs": text | [text], "normalize": true, "truncate": false, "prompt_name": "query"} -> [[0.1, ...]]

Source: https://github.com/huggingface/text-embeddings-inference, router/src/http/server.rs and types.rs
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import DialectRoute, choose_model
from hf_transformer.api.errors import expect, require_few
from hf_transformer.api.responses import JSON, reply
from hf_transformer.api.service import Service
from hf_transformer.errors import (
    InvalidInput,
    PredictorError,
    PredictorTimeout,
    RequestError,
    TooLarge,
    TooManyRequests,
    Unavailable,
    describe,
)
from hf_transformer.types.http import HeaderLines, Response
from hf_transformer.types.request import Answers, Context, Json, Query

COMMON = ("inputs", "truncate", "truncation_direction", "model")
EMBED = (*COMMON, "prompt_name", "normalize", "dimensions")


async def embed(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the vector of each text. Raises RequestError."""
    texts = read_inputs(payload, service.max_texts)
    parameters = {"normalize": True, **read_parameters(payload, EMBED, call.context)}
    model = choose_model(service, call, payload.get("model"), ("text_embedding",))
    answers = await model.predict(Query(texts, parameters, name="inputs"), call.context)
    return answer(answers.predictions, answers, sum(map(characters, texts)), call.context)


def read_inputs(payload: Mapping[str, Json], max_texts: int) -> list[Json]:
    """Reads ``inputs``: a text, a list of token ids, or a list of texts and lists of token ids. Raises RequestError."""
    inputs = payload.get("inputs")
    if isinstance(inputs, str):
        return [inputs]
    if not isinstance(inputs, list) or not inputs:
        got = "nothing" if inputs is None else "an empty list" if inputs == [] else describe(inputs)
        raise InvalidInput("inputs", "a text, a list of texts, a list of token ids or a list of such lists", got)
    if type(inputs[0]) is int:
        return [{"token_ids": inputs}]
    require_few("inputs", inputs, max_texts)
    texts: list[Json] = []
    for index, item in enumerate(inputs):
        expect(item, str | list, f"inputs[{index}]", "a text or a list of token ids")
        texts.append({"token_ids": item} if isinstance(item, list) else item)
    return texts


def read_parameters(fields: Mapping[str, Json], known: tuple[str, ...], context: Context) -> dict[str, Json]:
    """Returns the task's parameters. Ignores null and unknown fields, as the dialect does, and lists the unknown ones.

    Raises InvalidInput for an invalid truncation_direction; the task validates its own parameters.
    """
    context.field_names = lambda path: NAMES.get(field := path.removeprefix("parameters."), field)
    context.ignored += [name for name in fields if name not in known]
    present = {name: value for name, value in fields.items() if name in known and value is not None}
    parameters: dict[str, Json] = {
        name: present[name] for name in ("prompt_name", "normalize", "dimensions") if name in present
    }
    if "truncate" in present:
        parameters["truncation"] = present["truncate"]
    direction = present.get("truncation_direction", "right")
    if direction not in ("left", "Left", "right", "Right"):
        raise InvalidInput("truncation_direction", "left or right", describe(direction, quote=True))
    if direction.lower() == "left":
        parameters["truncation_side"] = "left"
    return parameters


NAMES = {"truncation": "truncate", "truncation_side": "truncation_direction"}
"""The dialect's names of the task's parameters."""


def characters(text: Json) -> int:
    """Counts a text's characters, or token ids, as the dialect does."""
    return len(text) if isinstance(text, str) else len(text["token_ids"])


def answer(body: Any, answers: Answers, count: int, context: Context) -> Response:
    """Renders an answer. The headers have the numbers of characters and tokens, and whole milliseconds."""
    total = perf_counter() - context.arrived
    numbers = {
        "x-compute-time": total * 1e3,
        "x-compute-characters": count,
        "x-compute-tokens": answers.tokens,
        "x-total-time": total * 1e3,
        "x-tokenization-time": context.tokenize * 1e3,
        "x-queue-time": context.queue * 1e3,
        "x-inference-time": max(context.predict - context.queue, 0.0) * 1e3,
    }
    headers: HeaderLines = [(name.encode(), b"%d" % number) for name, number in numbers.items()]
    text = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    return reply(text, JSON, (b"x-compute-type", b"triton"), *headers)


def error_kind(error: RequestError) -> tuple[int, str]:
    """Returns the dialect's status and error type of an error."""
    if isinstance(error, TooManyRequests):
        return 429, "Overloaded"
    if isinstance(error, Unavailable):
        return 503, "Unhealthy"
    if isinstance(error, PredictorError | PredictorTimeout):
        return 424, "Backend"
    if isinstance(error, InvalidInput) and error.got == "an empty list":
        return 400, "Empty"
    if isinstance(error, InvalidInput) and error.path == "model":  # a model of another kind
        return 424, "Backend"
    if isinstance(error, InvalidInput | TooLarge) and error.path != "body":
        return 422, "Validation"
    return error.status, "Validation" if error.status < 500 else "Backend"


def status_of(error: RequestError) -> int:
    return error_kind(error)[0]


def render_error(error: RequestError, status: int) -> bytes:
    return orjson.dumps({"error": str(error), "error_type": error_kind(error)[1]})


def _route(path: str, handle: Any, tasks: tuple[str, ...], *fields: str) -> DialectRoute:
    return DialectRoute(
        path=path,
        dialect="tei",
        tasks=tasks,
        handle=handle,
        render_error=render_error,
        status=status_of,
        fields=frozenset(fields),
    )


ROUTES = (_route("/embed", embed, ("text_embedding",), "inputs"),)
