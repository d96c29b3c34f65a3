"""Fields that APIs of embeddings, reranking and classification share, and the task's parameters that they become.

Sources: https://docs.cohere.com/reference/embed, https://api.jina.ai/redoc, https://docs.voyageai.com/reference,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html and
https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from hf_transformer.api.bodies import ModelBody, Priority, Unused, rename_fields
from hf_transformer.api.service import Model
from hf_transformer.core.pipeline import PredictivePipeline
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.options import MAX_PROMPT_LENGTH
from hf_transformer.tasks.purposes import input_type_of, prompt_for_purpose
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR, SPARSE, Scale, TextEmbedding
from hf_transformer.types.fields import Natural, Positive, about, only
from hf_transformer.types.request import Context, Json

Truncate: TypeAlias = Annotated[
    bool | Literal["END", "START", "NONE"], about(expected='"END" or true, "START", "NONE" or false')
]
Side: TypeAlias = Annotated[Literal["left", "right", "Left", "Right"], about(expected="left or right")]
Precision: TypeAlias = Literal["float", "float32", "int8", "uint8", "binary", "ubinary"]
EncodingFormat: TypeAlias = Annotated[
    Literal["float", "base64"], about("The form of vectors: arrays of numbers, or base64.")
]
Dimensions: TypeAlias = Annotated[Positive | None, about("Leading components of a vector.", parameter="dimensions")]
MaxTokens: TypeAlias = Annotated[Positive | None, about("A length below the model's.", parameter="max_tokens")]
PromptName: TypeAlias = Annotated[str | None, about("One of the model's prompts.", parameter="prompt_name")]
Purpose: TypeAlias = Annotated[
    str | None, about("The purpose of the texts, which chooses the prompt: query, document, passage, ...")
]
EmbedDtype: TypeAlias = Annotated[Json, only("float32", because="base64 contains float32, or the precision's type")]
Endianness: TypeAlias = Annotated[Json, only("native", "little", because="base64 contains little-endian numbers")]
Padding: TypeAlias = Annotated[Json, only("do_not_pad", because="texts are padded with an attention mask")]
SpecialTokens: TypeAlias = Annotated[Json, only(True, because="the service adds them (--disable_special_tokens)")]

TRUNCATES: Mapping[bool | str, dict[str, Json]] = {
    True: {"truncation": True},
    "END": {"truncation": True},
    "START": {"truncation": True, "truncation_side": "left"},
    False: {"truncation": False},
    "NONE": {"truncation": False},
}
"""Values of ``truncate`` as parameters of the task."""
PURPOSES = ("query", "search_query", "document", "passage", "search_document")
"""Common purposes of a text, for messages. Jina has retrieval.query and the like; see input_type_of."""
OTHER_PURPOSES = ("classification", "clustering", "text-matching", "separation")
"""Purposes of Cohere and Jina that choose a prompt of this name, if the model has one."""
VECTORS: Mapping[str, str] = {DENSE: "a vector per text", SPARSE: "sparse vectors", MULTI_VECTOR: "vectors of tokens"}
"""The representations in words."""


# Bodies


class LongTextBody(ModelBody, kw_only=True):
    """The fields for texts that are longer than the model."""

    truncation: Annotated[bool | None, about("Truncation of long texts; --on_overflow by default.")] = None
    truncate: Annotated[
        Truncate | None, about("Another form of truncation; START keeps the end of a text.", instead_of="truncation")
    ] = None
    truncation_side: Annotated[Side | None, about("The side that is cut off.", also=("truncation_direction",))] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("The length of a text; -1 for the model's, in vLLM.", instead_of="max_tokens"),
    ] = None


class RetrievalBody(LongTextBody, kw_only=True):
    """The fields without effect of vLLM's embeddings, rerank and pooling."""

    user: Unused = None
    request_id: Unused = None
    cache_salt: Unused = None
    priority: Priority = None
    padding: Padding = None


class VectorBody(RetrievalBody, kw_only=True):
    """The fields without effect of answers with vectors."""

    embed_dtype: EmbedDtype = None
    endianness: Endianness = None
    add_special_tokens: SpecialTokens = None


class PairBody(RetrievalBody, kw_only=True):
    """The fields for pairs of texts."""

    max_tokens_per_doc: Annotated[Natural | None, about("Maximum length of a document; 0 for no limit.")] = None
    max_tokens_per_query: Annotated[Natural | None, about("Maximum length of the query; 0 for no limit.")] = None
    instruction: Annotated[
        str | None,
        about(
            "An instruction for a model whose template has one.",
            parameter="instruction",
            schema={"maxLength": MAX_PROMPT_LENGTH},
        ),
    ] = None
    use_activation: Annotated[bool | None, about("False for logits, in vLLM.", instead_of="raw_scores")] = None


# Parameters of the task


def read_truncation(body: LongTextBody) -> dict[str, Json]:
    """Returns the task's parameters ``truncation``, ``truncation_side`` and ``max_tokens``, as far as a body has them.

    Raises InvalidInput for fields that contradict each other.
    """
    options: dict[str, Json] = {} if body.truncation is None else {"truncation": body.truncation}
    if body.truncate is not None:
        options |= TRUNCATES[body.truncate]
    if body.truncation_side is not None:
        if "truncation_side" in options:
            raise InvalidInput(("parameters", "truncation_side"), 'no value beside truncate: "START"')
        options["truncation_side"] = body.truncation_side.lower()
    count = body.truncate_prompt_tokens
    if count is not None:
        options.setdefault("truncation", True)
        if count == 0:
            raise InvalidInput("truncate_prompt_tokens", "a number of tokens, or -1 for the model's length", "0")
        if count > 0:
            options["max_tokens"] = count
    return options


def read_pair_options(body: PairBody) -> dict[str, Json]:
    """Returns the task's parameters for pairs, as far as a body has them. A limit of 0 is none, as in vLLM."""
    limits = {"max_tokens_per_doc": body.max_tokens_per_doc, "max_tokens_per_query": body.max_tokens_per_query}
    options: dict[str, Json] = {name: count for name, count in limits.items() if count}
    if body.use_activation is not None:
        options["raw_scores"] = not body.use_activation
    return options | read_truncation(body)


def read_precision(precision: str | None) -> dict[str, Json]:
    """Returns the parameter ``precision``, without one for floats."""
    return {} if precision in (None, "float", "float32") else {"precision": precision}


def read_purpose(name: str | None, model: Model, context: Context) -> dict[str, Json]:
    """Returns the parameter ``input_type`` or ``prompt_name`` for a text's purpose, which errors call the field that
    ``context.field_names`` has for input_type.

    A prompt of the whole purpose comes first: the files of some models have "retrieval.query" or "nl2code_document". A
    late-interaction model needs to know the side too. A model without prompts has one form for all purposes. Raises
    InvalidInput for a purpose that a model with prompts does not know.
    """
    if name is None:
        return {}
    purpose, files = input_type_of(name), model.task.settings.sentence_transformers
    prompts = files.prompts if files is not None else {}
    if purpose != name and not (purpose and files is not None and files.late_interaction):
        prompt = prompt_for_purpose(prompts, name)
        if prompt is not None:
            if context.field_names is not None:
                rename_fields(context, {("prompt_name",): context.field_names(("parameters", "input_type"))})
            return {"prompt_name": prompt}
    if purpose is not None:
        return {"input_type": purpose}
    if prompts and name not in OTHER_PURPOSES:
        known = dict.fromkeys((*PURPOSES, *OTHER_PURPOSES, *prompts))
        raise InvalidInput(("parameters", "input_type"), f"one of {', '.join(known)}", repr(name[:40]))
    return {}


# Models


def representations(model: Model) -> tuple[str, ...]:
    """The representations of a model for text_embedding, the default first. Raises NotReady until a model fits."""
    pipeline = model.pipeline
    task = pipeline.task if isinstance(pipeline, PredictivePipeline) else model.task
    return task.available if isinstance(task, TextEmbedding) else (DENSE,)


def require_representation(model: Model, name: str) -> None:
    """Raises InvalidInput for a model without a representation, whose answer would have another form."""
    available = representations(model)
    if name not in available:
        has = " and ".join(VECTORS[known] for known in available)
        raise InvalidInput("model", f"a model with {VECTORS[name]}", f"{model.name!r}, which has {has}")


def unit_length(model: Model, *, promised: bool = True) -> dict[str, Json]:
    """Returns the parameter ``normalize`` for dense vectors of length 1, unless a request says otherwise.

    Args:
        promised: whether the API promises this length for every model. Otherwise the model's files decide whether to
            normalize, and an answer with fewer ``dimensions`` has the length of a complete one.
    """
    files = model.task.settings.sentence_transformers
    return {"normalize": Scale.DENSE} if promised or files is None or files.normalize else {}
