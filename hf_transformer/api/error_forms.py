"""Error bodies that several APIs have.

OpenAI's is {"error": {"message": "...", "type": "invalid_request_error", "param": "input[3]", "code": null}}. ``param``
is the path of the field.

Source: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hf_transformer.errors import ContextLengthExceeded, RequestError, UnknownModel, show_path
from hf_transformer.types.request import Json

TOO_LONG = "context_length_exceeded"
LONG_FIELDS = ("messages", "prompt", "input", "query", "documents")
"""Fields whose texts may be too long, as errors name them."""


def status_of(error: RequestError) -> int:
    """Returns the status of an error: 400 for a text that is too long, for which clients look."""
    return 400 if isinstance(error, ContextLengthExceeded) else error.status


def message_of(error: RequestError) -> str:
    """Returns the message of an error. For a text that is too long, it has the sentences of OpenAI and vLLM, and the
    code, since clients look for them: LangChain reads the code there."""
    if not isinstance(error, ContextLengthExceeded):
        return str(error)
    what = next((name for name in error.path[:1] if name in LONG_FIELDS), "input")
    resulted = f" However, your {what} resulted in {error.got} tokens." if error.counted else ""
    limit = f"This model's maximum context length is {error.limit} tokens."
    return f"{error.without_hint}. {limit}{resulted} Please reduce the length of the {what}. ({TOO_LONG})"


def render_error(error: RequestError, status: int) -> bytes:
    """Serializes an error in OpenAI's form."""
    param = None if error.path in ((), ("body",)) else show_path(error.path)
    kind, code = "invalid_request_error" if status < 500 else "server_error", None
    if isinstance(error, ContextLengthExceeded):
        code = TOO_LONG
    elif isinstance(error, UnknownModel):
        code = "model_not_found"
    elif status == 405:
        code = "method_not_supported"
    elif status == 429:  # OpenAI's type names the exceeded limit, "requests" or "tokens"
        kind, code = "requests", "rate_limit_exceeded"
    return orjson.dumps({"error": {"message": message_of(error), "type": kind, "param": param, "code": code}})


def render_message(error: RequestError, status: int) -> bytes:
    """Serializes an error in Cohere's form. Source: https://docs.cohere.com/reference/errors"""
    return orjson.dumps({"message": message_of(error)})


def render_detail(error: RequestError, status: int) -> bytes:
    """Serializes an error in the form of Jina, Voyage and NVIDIA NIM, whose clients read ``detail``."""
    kind, message = "invalid_request_error" if status < 500 else "server_error", message_of(error)
    return orjson.dumps({"object": "error", "message": message, "detail": message, "type": kind})


def render_for_all(error: RequestError, status: int) -> bytes:
    """Serializes an error for a path that several dialects share: OpenAI's ``error``, Cohere's ``message`` and the
    ``detail`` of Jina, Voyage and NVIDIA NIM."""
    from_openai = orjson.loads(render_error(error, status))
    return orjson.dumps({**from_openai, "message": message_of(error), "detail": message_of(error)})


ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of Anthropic's errors by status; others are invalid_request_error below 500, else api_error. Anthropic's status
of overloaded_error is 529; 503 is the one that proxies know, and clients repeat both."""


def anthropic_error(error: RequestError, status: int, request_id: str | None = None) -> dict[str, Json]:
    """Returns an error in Anthropic's form. Clients look for "prompt is too long", to shorten the conversation.

    Source: https://docs.anthropic.com/en/api/errors
    """
    message = str(error)
    if isinstance(error, ContextLengthExceeded):
        length = f"{error.got} tokens > {error.limit} maximum" if error.counted else f"{error.limit} tokens maximum"
        message = f"prompt is too long: {length} ({message})"
    kind = ANTHROPIC_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def render_anthropic(error: RequestError, status: int) -> bytes:
    """Serializes an error in Anthropic's form."""
    return orjson.dumps(anthropic_error(error, status))
