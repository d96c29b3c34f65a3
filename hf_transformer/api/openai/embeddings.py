"""OpenAI's embeddings API: computes a vector for each text or list of token ids.

    {"model": "m", "input": string | [string] | [int] | [[int]], "encoding_format": "float" | "base64",
     "dimensions": 256, "user": "..."}
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}], "model": "m",
        "usage": {"prompt_tokens": 8, "total_tokens": 8}}

Token ids require --enable_token_inputs. The API also accepts the task's parameters: prompt, prompt_name, normalize (or
normalized), truncation (or truncate), stride.

Source: https://platform.openai.com/docs/api-reference/embeddings/create
"""

from __future__ import annotations

from binascii import b2a_base64

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.openai.fields import (
    TRUNCATE,
    field_name,
    ignored_fields,
    read_request,
    read_texts,
    read_truncation,
    usage,
)
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query
from hf_transformer.types.tensors import Array

PARAMETERS = ("dimensions", "prompt", "prompt_name", "normalize", "truncation", "stride")
"""Fields that are parameters of the task."""
FIELDS = ("model", "input", "encoding_format", *ignored_fields("embeddings"), "normalized", TRUNCATE, *PARAMETERS)


async def create(service: Service, call: Call) -> Response:
    """Answers one request. Raises RequestError."""
    model, parameters = read_request(service, call, "embeddings", FIELDS)
    sentences = model.task.settings.sentence_transformers if "input_type" in parameters else None
    if sentences is not None and sentences.prompts:
        raise InvalidInput("input_type", f"prompt_name in its place, one of {', '.join(sentences.prompts)}")
    base64 = parameters.choice("encoding_format", "float", ("float", "base64")) == "base64"
    query, single = read_query(parameters, service.max_texts, service.token_inputs)
    if single:
        call.context.field_names = _single_input
    answers = await model.predict(query, call.context)
    data = [
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(answers.predictions)
    ]
    body = {"object": "list", "data": data, "model": call.context.model_name, "usage": usage(answers)}
    return reply(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def _single_input(path: str) -> str:
    """Converts a canonical path to the client's field name if ``input`` is a single text."""
    return f"input{path[8:]}" if path.startswith("input[0]") else field_name(path)


def read_query(parameters: Parameters, max_texts: int, token_inputs: bool = False) -> tuple[Query, bool]:
    """Returns the query of a request, and whether ``input`` is a single text. Raises InvalidInput for token ids if
    ``token_inputs`` is false; see read_texts for other errors."""

    def read_ids(ids: list[Json], path: str) -> Json:
        if not token_inputs:
            hint = (
                "ids of another tokenizer would silently give wrong vectors. Send text (LangChain: "
                "check_embedding_ctx_length=False), or start the service with --enable_token_inputs to send ids of "
                "this model's tokenizer"
            )
            raise InvalidInput(path, "text", "token ids", hint)
        return {"token_ids": ids}

    texts, single = read_texts("input", parameters.get("input"), max_texts, read_ids)
    options = {name: parameters.get(name) for name in PARAMETERS if name in parameters}
    if parameters.one_of("normalize", "normalized") == "normalized":  # Jina's field name
        options["normalize"] = parameters.flag("normalized", True)
    return Query(texts, options | read_truncation(parameters), name="input"), single


def to_base64(vector: Array) -> str:
    """Encodes a vector [D] as base64 of little-endian float32, the default format of OpenAI's client."""
    return b2a_base64(vector.astype("<f4", copy=False).tobytes(), newline=False).decode("ascii")
