"""OpenAI's embeddings API: computes a vector for each text or list of token ids.

    {"model": "m", "input": string | [string] | [int] | [[int]], "encoding_format": "float" | "base64",
     "dimensions": 256, "user": "..."}
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}], "model": "m",
        "usage": {"prompt_tokens": 8, "total_tokens": 8}}

Token ids require --enable_token_inputs. The API also accepts the task's parameters, and the fields of the APIs that
have the same body and answer (api/dialects/fields.py):

    Jina        task, late_chunking, embedding_type, normalized, truncate; {"text": string} in ``input``
    Voyage      input_type, output_dtype, output_dimension, truncation
    NVIDIA NIM  input_type, truncate, embedding_type, modality; a model's name with -query or -passage
    vLLM        truncate_prompt_tokens, truncation_side, use_activation

Dense vectors have a length of 1, as OpenAI promises, at every size; ``normalize``: false keeps the model's length.

Sources: https://platform.openai.com/docs/api-reference/embeddings/create and those in api/dialects/fields.py
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence

from hf_transformer.api.bodies import read_texts, usage
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import (
    TRUNCATE_PROMPT_TOKENS,
    TRUNCATION_FIELDS,
    aliased,
    move_if_present,
    read_precision,
    read_purpose,
    read_truncation,
    representations,
    unit_length,
)
from hf_transformer.api.openai.fields import ignored_fields, read_request
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.text_embedding import DENSE
from hf_transformer.types.http import Response
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Json, Query, RequestBudget
from hf_transformer.types.tensors import Array

PARAMETERS = ("prompt", "prompt_name", "stride", "representations", "binary_zero", "max_tokens")
"""Fields that are parameters of the task."""
PRECISION, PURPOSE = ("precision", "embedding_type", "output_dtype"), ("input_type", "task")
ALIASES: Mapping[str, Sequence[str]] = {
    "dimensions": ("dimensions", "output_dimension"),
    "normalize": ("normalize", "normalized", "use_activation"),
    "precision": PRECISION,
    "input_type": PURPOSE,
    "prompt_name": ("prompt_name", *PURPOSE),
    "max_tokens": ("max_tokens", TRUNCATE_PROMPT_TOKENS),
}
"""The fields for each of the task's parameters that several APIs name differently."""
LATE_CHUNKING = "late_chunking"
FIELDS = (
    *("model", "input", "encoding_format", *ignored_fields("embeddings"), *PARAMETERS),
    *(*ALIASES["dimensions"], *ALIASES["normalize"], *PRECISION, *PURPOSE, *TRUNCATION_FIELDS, LATE_CHUNKING),
)
SINGLE_INPUT = TOP_LEVEL.then({("input", 0): ("input",)})
"""The names of fields where ``input`` is a single text."""
CHUNKS_OF_INPUT = TOP_LEVEL.then({("input", 0): ("input",), ("input", 0, "chunks"): ("input",)})
"""The names of fields for late chunking, where ``input`` is one instance."""
SUFFIXES = {"-query": "query", "-passage": "passage"}
"""Endings of a model's name that mean an ``input_type``, as in NVIDIA NIM."""


async def create(service: Service, call: Call) -> Response:
    """Answers one request. Raises RequestError."""
    payload = without_suffix(call.json(), service.models)
    model, parameters = read_request(service, call, "embeddings", FIELDS, payload)
    # OpenAI's client asks for base64 by default, and leaves representations that are no vector of a text unchanged.
    base64 = _wants_base64(parameters) and "representations" not in parameters and DENSE in representations(model)
    query, single = read_query(parameters, model, call.budget, service.token_inputs)
    late = parameters.flag(LATE_CHUNKING, False)
    names = CHUNKS_OF_INPUT if late else SINGLE_INPUT if single else TOP_LEVEL
    call.context.field_names = names.then(aliased(parameters, ALIASES))
    answers = await model.predict(query, call.context)
    predictions = answers.predictions[0] if late else answers.predictions
    data = [
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(predictions)
    ]
    body = {"object": "list", "data": data, "model": call.context.model_name, "usage": usage(answers)}
    return await reply_arrays(body, call.context, service.executor)


def without_suffix(payload: Json, models: Models) -> Json:
    """Returns a body whose ``model`` ends with one of SUFFIXES as one with ``input_type``, unless a model has the whole
    name. Raises InvalidInput if the body has another ``input_type``."""
    name = payload.get("model") if isinstance(payload, dict) else None
    if not isinstance(name, str):
        return payload
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    names = models.names if suffix is not None else ()
    if suffix is None or name in names or name.removesuffix(suffix) not in names:
        return payload
    purpose = SUFFIXES[suffix]
    if payload.get("input_type") not in (None, purpose):
        got = describe(payload["input_type"], quote=True)
        raise InvalidInput("input_type", f"{purpose!r}, as in the name of the model", got)
    return {**payload, "model": name.removesuffix(suffix), "input_type": purpose}


def _wants_base64(parameters: Parameters) -> bool:
    """Whether vectors are base64. Jina has "base64" among the values of ``embedding_type``."""
    if parameters.get("embedding_type") == "base64":
        return True
    return parameters.choice("encoding_format", "float", ("float", "base64")) == "base64"


def read_query(
    parameters: Parameters, model: Model, budget: RequestBudget, token_inputs: bool = False
) -> tuple[Query, bool]:
    """Returns the query of a request, and whether ``input`` is a single text. Raises InvalidInput for token ids if
    ``token_inputs`` is false; see read_texts for other errors."""

    def read_ids(ids: list[Json], path: Path) -> Json:
        if not token_inputs:
            hint = (
                "ids of another tokenizer would silently give wrong vectors. Send text (LangChain: "
                "check_embedding_ctx_length=False), or start the service with --enable_token_inputs to send ids of "
                "this model's tokenizer"
            )
            raise InvalidInput(path, "text", "token ids", hint)
        return {"token_ids": ids}

    texts, single = read_texts(("input",), plain_texts(parameters.get("input"), budget), budget, read_ids)
    if parameters.flag(LATE_CHUNKING, False):
        if "representations" in parameters:
            raise InvalidInput("representations", f"no value beside {LATE_CHUNKING}, which has dense vectors")
        texts = [{"chunks": texts}]
    return Query(texts, _options(parameters, model), name="input"), single


def plain_texts(value: Json, budget: RequestBudget) -> Json:
    """Returns ``input`` with strings in place of Jina's {"text": string}. Other values stay as they are."""
    if not isinstance(value, list) or not value or type(value[0]) is int:  # a list of token ids may be longer
        return value
    budget.few("input", value)
    if not any(isinstance(item, dict) for item in value):
        return value
    return [item["text"] if _is_text(item) else item for item in value]


def _is_text(item: Json) -> bool:
    return isinstance(item, dict) and item.keys() == {"text"} and isinstance(item["text"], str)


def _options(parameters: Parameters, model: Model) -> dict[str, Json]:
    """Returns the parameters of the task. Fields of two APIs that mean the same can't be together."""
    options = unit_length(model) | move_if_present(parameters, *PARAMETERS) | read_truncation(parameters)
    for target in ("dimensions", "normalize"):
        field = parameters.one_of(*ALIASES[target])
        if field is not None:
            options[target] = parameters.get(field)
    if parameters.get("embedding_type") != "base64":
        options |= read_precision(parameters, *PRECISION)
    field = parameters.one_of(*PURPOSE)
    return options if field is None else options | read_purpose(parameters, field, model)


def to_base64(vector: Array) -> str:
    """Encodes a vector [D] as base64 of little-endian float32, the default format of OpenAI's client, or of bytes for
    a vector of another precision."""
    numbers = vector.astype("<f4", copy=False) if vector.dtype.kind == "f" else vector
    return b2a_base64(numbers.tobytes(), newline=False).decode("ascii")
