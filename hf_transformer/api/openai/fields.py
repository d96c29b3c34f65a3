"""Request fields of the OpenAI API: validation, and fields without effect.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from hf_transformer.api.bodies import TASKS, choose_model
from hf_transformer.api.call import Call
from hf_transformer.api.errors import expect
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import (
    InvalidInput,
    Path,
    describe,
)
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Json

CHATS, RESPONSES, EMBEDDINGS, RERANK = ("chat/completions",), ("responses",), ("embeddings",), ("rerank",)
GENERATING = ("completions", *CHATS)
OPENAIS = (*GENERATING, *RESPONSES, *EMBEDDINGS)


class IgnoredField(NamedTuple):
    """A field without effect.

    Attributes:
        endpoints: endpoints that accept the field.
        values: accepted values; None for any string.
        reason: reason for refusing other values, shown as the error's hint.
    """

    name: str
    endpoints: tuple[str, ...]
    values: tuple[Json, ...] | None = None
    reason: str = ""


IGNORED_FIELDS: Final = (
    # Client identity and caching hints.
    IgnoredField("user", (*OPENAIS, *RERANK)),
    IgnoredField("safety_identifier", OPENAIS),
    IgnoredField("prompt_cache_key", OPENAIS),
    IgnoredField("prompt_cache_retention", OPENAIS),
    IgnoredField("metadata", OPENAIS),  # an object, see _check_metadata
    # Fields of OpenAI's own service.
    IgnoredField("store", (*GENERATING, *EMBEDDINGS), (True, False), "the service stores nothing"),
    IgnoredField("store", RESPONSES, (False,), "the service stores nothing"),
    IgnoredField("background", RESPONSES, (False,), "the service stores nothing"),
    IgnoredField("previous_response_id", RESPONSES, (None,), "the service stores nothing; send all items as input"),
    IgnoredField("conversation", RESPONSES, (None,), "the service stores nothing; send all items as input"),
    IgnoredField("prompt", RESPONSES, (None,), "the service stores no prompts"),
    IgnoredField("reasoning", RESPONSES, ({}, {"effort": "none"}), "the model has no such setting"),
    IgnoredField("truncation", RESPONSES, ("disabled",), "the service drops no items of a conversation"),
    IgnoredField("service_tier", OPENAIS, ("auto", "default"), "the service has one tier"),
    IgnoredField("modalities", CHATS, (["text"],), "the model generates text only"),
    IgnoredField("verbosity", CHATS, ("medium",), "the model has no such setting"),
    IgnoredField(
        "reasoning_effort",
        CHATS,
        ("none",),
        "a chat template with such a setting takes it in chat_template_kwargs",
    ),
    # Fields of vLLM, https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    IgnoredField("priority", (*OPENAIS, *RERANK), (0,), "the service has no priorities"),
    IgnoredField("use_beam_search", GENERATING, (False,), "the service has no beam search"),
    IgnoredField("length_penalty", GENERATING, (1.0,), "the service has no beam search"),
    IgnoredField("early_stopping", GENERATING, (False,), "the service has no beam search"),
    IgnoredField("skip_special_tokens", GENERATING, (True,), "the text excludes special tokens"),
    IgnoredField("spaces_between_special_tokens", GENERATING, (True,), "the text excludes special tokens"),
    IgnoredField("include_stop_str_in_output", GENERATING, (False,), "the text excludes the stop string"),
    IgnoredField("add_generation_prompt", CHATS, (True,), "the answer is a new message"),
    IgnoredField("continue_final_message", CHATS, (False,), "the answer is a new message"),
    IgnoredField("add_special_tokens", CHATS, (False,), "the chat template adds them"),
    IgnoredField(
        "add_special_tokens", ("completions", *EMBEDDINGS), (True,), "the service adds them (--disable_special_tokens)"
    ),
    IgnoredField("echo", CHATS, (False,), "a chat has no prompt to echo"),
    # Fields of embeddings and rerank in vLLM and NVIDIA NIM.
    IgnoredField("request_id", (*EMBEDDINGS, *RERANK)),
    IgnoredField("cache_salt", (*EMBEDDINGS, *RERANK)),
    IgnoredField("padding", (*EMBEDDINGS, *RERANK), ("do_not_pad",), "texts are padded with an attention mask"),
    IgnoredField("embed_dtype", EMBEDDINGS, ("float32",), "base64 contains float32, or the type of embedding_type"),
    IgnoredField("endianness", EMBEDDINGS, ("native", "little"), "base64 contains little-endian numbers"),
    IgnoredField("modality", EMBEDDINGS, ("text",), "the model reads texts"),
)
"""All fields without effect. Other models or servers accept more values for some of these fields."""
MAX_METADATA_KEYS, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""OpenAI's limits for metadata: maximum number of keys, and maximum characters of a key and of a value."""
SHOWN_NAMES = 5
"""Maximum number of unknown fields in an error message."""
_IGNORED = {
    endpoint: {field.name: field for field in IGNORED_FIELDS if endpoint in field.endpoints} for endpoint in TASKS
}


def ignored_fields(endpoint: str) -> tuple[str, ...]:
    """Returns the names of an endpoint's fields without effect."""
    return tuple(_IGNORED[endpoint])


def without_effect(endpoint: str, *names: str) -> tuple[IgnoredField, ...]:
    """Returns an endpoint's fields without effect of these names."""
    return tuple(_IGNORED[endpoint][name] for name in names)


def read_request(
    service: Service, call: Call, endpoint: str, known: Sequence[str], payload: Json = None
) -> tuple[Model, Parameters]:
    """Returns the model and the fields of a request. Ignores null fields, including unknown ones.

    Sets ``call.context.field_names``: in this API, the task's parameters are top-level fields. ``payload`` is the body
    if the caller has changed it.

    Raises:
        InvalidInput: the body is not an object, a field is unknown or unsupported, or the model has another task.
        UnknownModel: the service does not serve the model.
        RequestError: the body is unreadable, see Call.json.
    """
    call.context.field_names = TOP_LEVEL
    body = expect(call.json() if payload is None else payload, dict, "body", "an object")
    parameters = read_fields(body, known, _IGNORED[endpoint])
    return choose_model(service, call, parameters.get("model"), TASKS[endpoint]), parameters


def read_fields(payload: Mapping[str, Json], known: Sequence[str], ignored: Mapping[str, IgnoredField]) -> Parameters:
    """Returns the fields of a body that are not null. Raises InvalidInput for an unknown field, and for a value that a
    field without effect can't have."""
    if None in payload.values():
        payload = {name: value for name, value in payload.items() if value is not None}
    if payload.keys() - known:
        raise _unknown_fields([name[:40] for name in payload if name not in known], known)
    for name, value in payload.items():
        if name in ignored:
            _check_ignored(ignored[name], value)
    return Parameters(payload, known)


def _unknown_fields(names: Sequence[str], known: Sequence[str]) -> InvalidInput:
    fields = ", ".join(known)
    if len(names) == 1:
        return InvalidInput(names[0], f"one of {fields}", "an unknown name")
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return InvalidInput(
        "body", f"only the fields {fields}", f"the unknown {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}"
    )


def _check_ignored(field: IgnoredField, value: Json) -> None:
    """Raises InvalidInput for a value that the API does not accept."""
    name, values = field.name, field.values
    if name == "metadata":
        _check_metadata(name, value)
    elif values is None:
        expect(value, str, name, "a string")
    elif not any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values):
        expected = " or ".join(one if isinstance(one, str) else orjson.dumps(one).decode() for one in values)
        raise InvalidInput(name, expected, describe(value, quote=True), field.reason)


def _check_metadata(path: Path | str, value: Json) -> None:
    """Raises InvalidInput for metadata that OpenAI would refuse. Valid metadata has no effect."""
    if len(expect(value, dict, path, "an object of strings")) > MAX_METADATA_KEYS:
        raise InvalidInput(path, f"at most {MAX_METADATA_KEYS} keys", str(len(value)))
    for key, label in value.items():
        if len(key) > MAX_METADATA_KEY:
            raise InvalidInput(path, f"keys of at most {MAX_METADATA_KEY} characters", str(len(key)))
        if not isinstance(label, str):
            raise InvalidInput(path, f"a string for the key {key!r}", describe(label))
        if len(label) > MAX_METADATA_VALUE:
            raise InvalidInput(path, f"at most {MAX_METADATA_VALUE} characters for the key {key!r}", str(len(label)))
