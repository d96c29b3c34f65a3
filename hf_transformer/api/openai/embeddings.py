"""OpenAI's embeddings API: computes a vector for each text or list of token ids.

Token ids require --enable_token_inputs. The API also accepts the task's parameters, and the fields of Jina, Voyage,
NVIDIA NIM and vLLM, which have the same body and answer: {"text": string} in ``input`` is Jina's, and a model's name
with -query or -passage is NIM's.

Dense vectors have a length of 1, as OpenAI promises, at every size; ``normalize``: false keeps the model's length.

Sources: https://platform.openai.com/docs/api-reference/embeddings/create and those in api/retrieval.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct

from hf_transformer.api.bodies import (
    TASKS,
    TEXTS_OR_IDS,
    Unused,
    Usage,
    read_body,
    read_texts,
    refuse_ids,
    rename_fields,
    usage,
)
from hf_transformer.api.call import Call
from hf_transformer.api.documents import SINGLE_INPUT, TextObject, plain_texts, to_base64
from hf_transformer.api.generated_answers import Metadata
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import (
    EncodingFormat,
    MaxTokens,
    Precision,
    PromptName,
    VectorBody,
    read_precision,
    read_purpose,
    read_truncation,
    representations,
    unit_length,
)
from hf_transformer.api.service import Models, Service
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks.options import MAX_PROMPT_LENGTH
from hf_transformer.tasks.text_embedding import DENSE
from hf_transformer.types.fields import Form, Natural, NonEmpty, Positive, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query, RequestBudget

CHUNKS_OF_INPUT: Mapping[Path, Path] = {("input", 0): ("input",), ("input", 0, "chunks"): ("input",)}
"""The names of fields for late chunking, where ``input`` is one instance."""
SUFFIXES = {"-query": "query", "-passage": "passage"}
"""Endings of a model's name that mean an ``input_type``, as in NVIDIA NIM."""


class EmbeddingsRequest(VectorBody):
    input: Annotated[
        str | NonEmpty[Json],
        about(
            "A text, its token ids (--enable_token_inputs), or a list of such.",
            expected=TEXTS_OR_IDS,
            shown=(str, NonEmpty[str | TextObject], NonEmpty[Natural], NonEmpty[NonEmpty[Natural]]),
        ),
    ]
    encoding_format: EncodingFormat = "float"
    dimensions: Annotated[
        Positive | None, about("Leading components of a vector.", also=("output_dimension",), parameter="dimensions")
    ] = None
    normalize: Annotated[
        bool | None, about("Vectors with a length of 1.", also=("normalized", "use_activation"), parameter="normalize")
    ] = None
    precision: Annotated[
        Precision | None,
        about("The type of a vector's numbers; binary and ubinary have a bit each.", also=("output_dtype",)),
    ] = None
    embedding_type: Annotated[
        Precision | Literal["base64"] | None,
        about("Another form of precision, in Jina and NVIDIA NIM; base64 is encoding_format.", instead_of="precision"),
    ] = None
    binary_zero: Annotated[bool | None, about("A bit for a component of 0.", parameter="binary_zero")] = None
    representations: Annotated[
        str | NonEmpty[str] | None,
        about(
            "Representations of each text, which is then an object of them: dense, sparse, multi_vector.",
            parameter="representations",
        ),
    ] = None
    input_type: Annotated[
        str | None,
        about("The purpose of the texts, which chooses the prompt: query, document, passage, ...", also=("task",)),
    ] = None
    prompt: Annotated[
        str | None, about("A text before each text.", parameter="prompt", schema={"maxLength": MAX_PROMPT_LENGTH})
    ] = None
    prompt_name: PromptName = None
    max_tokens: MaxTokens = None
    stride: Annotated[Natural | None, about("Tokens that neighbouring windows share.", parameter="stride")] = None
    late_chunking: Annotated[bool, about("The texts as chunks of one, embedded in one pass.")] = False
    modality: Annotated[Json, only("text", because="the model reads texts")] = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    prompt_cache_retention: Unused = None
    metadata: Metadata = None
    store: Annotated[Json, only(True, False, because="the service stores nothing")] = None
    service_tier: Annotated[Json, only("auto", "default", because="the service has one tier")] = None


EMBEDDINGS = Form(EmbeddingsRequest)


async def create(service: Service, call: Call) -> Response:
    """Answers one request. Raises RequestError."""
    payload = without_suffix(call.json(), service.models)
    model, body = read_body(service, call, EMBEDDINGS, TASKS["embeddings"], payload)
    options = unit_length(model) | EMBEDDINGS.options(body) | read_truncation(body)
    options |= read_purpose(body.input_type, model, call.context)
    if body.embedding_type != "base64":
        options |= read_precision(body.embedding_type or body.precision)
    query, single = read_query(body, options, call.budget, service.token_inputs)
    if body.late_chunking or single:
        rename_fields(call.context, CHUNKS_OF_INPUT if body.late_chunking else SINGLE_INPUT)
    answers = await model.predict(query, call.context)
    predictions = answers.predictions[0] if body.late_chunking else answers.predictions
    # OpenAI's client asks for base64 by default, and leaves representations that are no vector of a text unchanged.
    wants_base64 = "base64" in (body.encoding_format, body.embedding_type) and body.representations is None
    base64 = wants_base64 and DENSE in representations(model)
    data = [
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(predictions)
    ]
    answer = {"object": "list", "data": data, "model": call.context.model_name, "usage": usage(answers)}
    return await reply_arrays(answer, call.context, service.executor)


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


def read_query(
    body: EmbeddingsRequest, options: dict[str, Json], budget: RequestBudget, token_inputs: bool = False
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
            raise refuse_ids(path, hint)
        return {"token_ids": ids}

    texts, single = read_texts(("input",), plain_texts(body.input, budget), budget, read_ids)
    if body.late_chunking:
        if body.representations is not None:
            raise InvalidInput("representations", "no value beside late_chunking, which has dense vectors")
        texts = [{"chunks": texts}]
    return Query(texts, options, name="input"), single


# The answer


class Embedding(Struct):
    object: Literal["embedding"]
    index: int
    embedding: Annotated[
        Json,
        about(
            "A vector, its base64, a representation by name, or vectors of tokens.",
            shown=(list[float], str, dict[str, Json], list[list[float]]),
        ),
    ]


class EmbeddingsResponse(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
