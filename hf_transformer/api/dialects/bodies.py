"""Bodies, answers and errors of the dialects that have routes of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import choose_model
from hf_transformer.api.openai.fields import IgnoredField, field_name, read_fields, render_error
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import RequestError
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json


def read_body(
    service: Service,
    call: Call,
    payload: Mapping[str, Json],
    *,
    tasks: Sequence[str],
    known: Sequence[str],
    ignored: Sequence[IgnoredField] = (),
) -> tuple[Model, Parameters]:
    """Returns the model and the fields of a body. ``ignored`` are further known fields, without effect.

    Sets ``call.context.field_names``: parameters of the task are top-level fields. Raises RequestError.
    """
    call.context.field_names = field_name
    names = {field.name: field for field in ignored}
    parameters = read_fields(payload, ("model", *known, *names), names)
    return choose_model(service, call, parameters.get("model"), tasks), parameters


def reply_json(answer: Json) -> Response:
    """A response with numbers of numpy arrays."""
    return reply(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


def listed(call: Call, prefix: str, data: Sequence[Json], tokens: int, new_tokens: int = 0) -> Response:
    """A response of vLLM's APIs: an object with an id, the time, ``data``, and the numbers of tokens."""
    return reply_json(
        {
            "id": f"{prefix}-{call.context.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": call.context.model_name,
            "data": data,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens + new_tokens, "completion_tokens": new_tokens},
        }
    )


def render_message(error: RequestError, status: int) -> bytes:
    """Serializes an error in Cohere's form. Source: https://docs.cohere.com/reference/errors"""
    return orjson.dumps({"message": str(error)})


def render_detail(error: RequestError, status: int) -> bytes:
    """Serializes an error in the form of Jina, Voyage and NVIDIA NIM, whose clients read ``detail``."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"object": "error", "message": str(error), "detail": str(error), "type": kind})


def render_for_all(error: RequestError, status: int) -> bytes:
    """Serializes an error for a path that several dialects share: OpenAI's ``error``, Cohere's ``message`` and the
    ``detail`` of Jina, Voyage and NVIDIA NIM."""
    from_openai = orjson.loads(render_error(error, status))
    return orjson.dumps({**from_openai, "message": str(error), "detail": str(error)})
