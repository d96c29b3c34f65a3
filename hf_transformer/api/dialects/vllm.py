"""vLLM's routes of pooling models and of the tokenizer. Its embeddings and rerank are OpenAI's (api/openai).

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html and vllm/entrypoints/pooling of
https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from hf_transformer.api.bodies import TEXTS_OR_IDS, ModelBody, Priority, Unused, read_texts, refuse_ids, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.chats import render_chat
from hf_transformer.api.dialects import generative_scoring
from hf_transformer.api.dialects.routes import ALL, DialectRoute, Kind, ListHead, TypedHandler, listed, typed_route
from hf_transformer.api.documents import SINGLE_INPUT, Document, read_document, read_documents, to_base64
from hf_transformer.api.error_forms import render_error
from hf_transformer.api.images import ChatImages
from hf_transformer.api.rendered import RenderChatRequest, TokenizeResponse, reply_tokens
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import (
    Dimensions,
    EmbedDtype,
    EncodingFormat,
    Endianness,
    LongTextBody,
    Padding,
    PairBody,
    VectorBody,
    read_pair_options,
    read_truncation,
    representations,
    require_representation,
    unit_length,
)
from hf_transformer.api.service import Model, Service, generative
from hf_transformer.api.tokenize import decode
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.labels import read_labels
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR, TextEmbedding
from hf_transformer.types.fields import Form, Natural, NonEmpty, about
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, Names
from hf_transformer.types.request import Answers, Json, Query, RequestBudget

SEQUENCE_CLASSIFICATION, EMBEDDING, TOKENS = SequenceClassification.name, TextEmbedding.name, FeatureExtraction.name
POOLING: Mapping[str, Mapping[str, str]] = {
    EMBEDDING: {"embed": DENSE, "token_embed": MULTI_VECTOR},
    TOKENS: {"token_embed": ""},
    SEQUENCE_CLASSIFICATION: {"classify": ""},
}
"""Values of ``task`` in /pooling by the model's task, the default first, each with its representation."""
NOT_FOR: Mapping[str, Sequence[str]] = {
    EMBEDDING: (),
    TOKENS: ("dimensions", "use_activation", "normalize"),
    SEQUENCE_CLASSIFICATION: ("dimensions", "normalize"),
}
"""Fields of /pooling that a model of this task has no use for."""


# Pairs


PairSide: TypeAlias = Annotated[
    str | dict[str, Json] | NonEmpty[Json] | None,
    about("A text, or a list of texts.", expected="a list of texts", shown=(str, Document, NonEmpty[str | Document])),
]
PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""Names of the two sides of /score."""
SIDES = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))


class ScoreRequest(PairBody):
    """One side with one text for several of the other, or as many texts on both."""

    queries: PairSide = None
    documents: PairSide = None
    items: PairSide = None
    text_1: PairSide = None
    text_2: PairSide = None
    data_1: PairSide = None
    data_2: PairSide = None
    embed_dtype: EmbedDtype = None
    endianness: Endianness = None


SCORE = Form(ScoreRequest)


async def score(service: Service, call: Call, model: Model, body: ScoreRequest) -> Response:
    """Scores pairs of texts: one text with each of several, or two lists of equal length."""
    sides, single = _read_sides(body, call.budget)
    (first, firsts), (second, seconds) = sides
    if len(firsts) == 1:
        instances: list[Json] = [{"query": firsts[0], "texts": seconds}]
    elif len(firsts) == len(seconds):
        instances = [{"query": query, "texts": [text]} for query, text in zip(firsts, seconds, strict=True)]
    else:
        raise InvalidInput(second, f"one text for each of the {len(firsts)} in {first}", str(len(seconds)))

    # The queries of the task's instances are the first side, their texts the second.
    index, text_index = (EACH, 0) if len(firsts) > 1 else (0, EACH)
    text: Path = (second,) if second in single else (second, EACH)
    texts = text if len(firsts) > 1 else (second,)
    rename_fields(
        call.context,
        {
            ("instances", index): texts,
            ("instances", index, "query"): (first,) if first in single else (first, index),
            ("instances", index, "texts"): texts,
            ("instances", index, "texts", text_index): text,
        },
    )
    options: dict[str, Json] = {"output_format": "kserve", **SCORE.options(body), **read_pair_options(body)}
    answers = await model.predict(Query(instances, options), call.context)
    scores = [one["score"] for ranked in answers.predictions for one in sorted(ranked, key=lambda one: one["index"])]
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    return await listed(service, call, "score", data, answers.tokens)


def _read_sides(body: ScoreRequest, budget: RequestBudget) -> tuple[list[tuple[str, list[str]]], set[str]]:
    """Returns the names and texts of both sides of the pairs, and which of them are a single text. Raises
    InvalidInput."""
    present = {name: value for name in SIDES if (value := getattr(body, name)) is not None}
    if tuple(present) not in PAIRS:
        expected = " or ".join(" and ".join(pair) for pair in PAIRS)
        raise InvalidInput("body", f"the fields {expected}", " and ".join(present) or "none of them")
    single = {name for name, value in present.items() if not isinstance(value, list)}
    sides = [
        (name, [read_document(value, (name,))] if name in single else read_documents(value, budget, field=name))
        for name, value in present.items()
    ]
    return sides, single


# Texts


class InputBody(VectorBody, kw_only=True):
    input: Annotated[
        str | NonEmpty[Json],
        about(
            "A text, its token ids (--enable_token_inputs), or a list of such.",
            expected=TEXTS_OR_IDS,
            shown=(str, NonEmpty[str], NonEmpty[Natural], NonEmpty[NonEmpty[Natural]]),
        ),
    ]


class ClassifyRequest(InputBody):
    use_activation: Annotated[bool, about("False for logits.")] = True


class PoolingRequest(InputBody):
    task: Annotated[
        Literal["embed", "token_embed", "classify"] | None, about("The kind of vectors; the model's by default.")
    ] = None
    encoding_format: EncodingFormat = "float"
    dimensions: Dimensions = None
    normalize: Annotated[
        bool | None, about("use_activation of older versions, for vectors.", parameter="normalize")
    ] = None
    use_activation: Annotated[
        bool | None, about("Vectors with a length of 1, or probabilities; false for logits.", instead_of="normalize")
    ] = None


CLASSIFY, POOL = Form(ClassifyRequest), Form(PoolingRequest)


def _read_input(body: InputBody, service: Service, call: Call, model: Model) -> list[Json]:
    """Returns the instances for ``input``. Raises InvalidInput."""

    def read_ids(ids: list[Json], path: Path) -> Json:
        if model.task.name != EMBEDDING or not service.token_inputs:
            raise refuse_ids(path, "only embeddings take them, with --enable_token_inputs")
        return {"token_ids": ids}

    texts, single = read_texts(("input",), body.input, call.budget, read_ids)
    if single:
        rename_fields(call.context, SINGLE_INPUT)
    return texts


async def classify(service: Service, call: Call, model: Model, body: ClassifyRequest) -> Response:
    """Returns the probabilities of all labels, in the order of the labels."""
    instances = _read_input(body, service, call, model)
    rows, answers = await _probabilities(model, call, instances, body, body.use_activation)
    labels = read_labels(model.task.settings.model_config)
    data = [
        {"index": index, "label": labels[row.index(max(row))], "probs": row, "num_classes": len(row)}
        for index, row in enumerate(rows)
    ]
    return await listed(service, call, "classify", data, answers.tokens)


async def _probabilities(
    model: Model, call: Call, instances: Sequence[Json], body: LongTextBody, use_activation: bool
) -> tuple[list[list[float]], Answers]:
    """Returns the scores of all labels of each text, in the order of the labels; logits without ``use_activation``."""
    options: dict[str, Json] = {"output_format": "pipeline", "top_k": None, **read_truncation(body)}
    if not use_activation:
        options["function_to_apply"] = "none"
    answers = await model.predict(Query(instances, options, name="input"), call.context)
    order = {label: index for index, label in enumerate(read_labels(model.task.settings.model_config))}
    rows = [sorted(prediction, key=lambda one: order[one["label"]]) for prediction in answers.predictions]
    return [[one["score"] for one in row] for row in rows], answers


async def pooling(service: Service, call: Call, model: Model, body: PoolingRequest) -> Response:
    """Returns vectors of texts or of their tokens, or probabilities, whichever the model has."""
    for name in NOT_FOR[model.task.name]:
        if (value := getattr(body, name)) is not None:
            raise InvalidInput(name, f"no value for a model of {model.task.name}", describe(value))
    kind = _read_kind(body.task, model)
    representation = POOLING[model.task.name][kind]
    instances = _read_input(body, service, call, model)
    if kind == "classify":
        rows, answers = await _probabilities(model, call, instances, body, body.use_activation is not False)
        vectors: list[Json] = [np.array(row, np.float32) for row in rows]
    else:
        # As in vLLM, the model's files decide whether vectors have a length of 1, after the cut to dimensions.
        options = unit_length(model, promised=False) if representation == DENSE else {}
        options |= POOL.options(body) | read_truncation(body)
        if body.use_activation is not None:
            options["normalize"] = body.use_activation
        if representation == MULTI_VECTOR:
            options["representations"] = MULTI_VECTOR
        answers = await model.predict(Query(instances, options, name="input"), call.context)
        vectors = [_vector(prediction, representation) for prediction in answers.predictions]
    base64 = body.encoding_format == "base64"
    data = [
        {"index": index, "object": "pooling", "data": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    return await listed(service, call, "pooling", data, answers.tokens)


def _read_kind(kind: str | None, model: Model) -> str:
    """Returns ``task``, by default the first that the model has. Raises InvalidInput for one that it lacks."""
    available = representations(model)
    kinds = [kind for kind, name in POOLING[model.task.name].items() if name in ("", *available)]
    if not kinds:
        require_representation(model, DENSE)
    if kind is not None and kind not in kinds:
        raise InvalidInput("task", f"one of {', '.join(kinds)}", repr(kind))
    return kinds[0] if kind is None else kind


def _vector(prediction: Json, representation: str) -> Json:
    """Returns the vector of a text, or its token vectors [tokens, D]."""
    if representation == MULTI_VECTOR:
        return prediction[MULTI_VECTOR]
    return prediction if representation else prediction[0]


# Tokenizer


class TokenizerBody(ModelBody, kw_only=True):
    user: Unused = None
    request_id: Unused = None
    cache_salt: Unused = None
    priority: Priority = None
    padding: Padding = None
    embed_dtype: EmbedDtype = None
    endianness: Endianness = None


class TokenizePromptRequest(TokenizerBody):
    prompt: Annotated[str, about("The text.")]
    add_special_tokens: Annotated[bool, about("The special tokens around the prompt.")] = True
    return_token_strs: Annotated[bool, about("The names of tokens in the answer.")] = False


class TokenizeChatRequest(RenderChatRequest):
    """A body of chat completions, and the form of the answer."""

    return_token_strs: Annotated[bool, about("The names of tokens in the answer.")] = False


class DetokenizeRequest(TokenizerBody):
    tokens: Annotated[list[Json], about("Token ids.", expected="a list of token ids", shown=(list[Natural],))]


class DetokenizeResponse(Struct):
    prompt: Annotated[str, about("The text.")]


TOKENIZE_PROMPT, TOKENIZE_CHAT, DETOKENIZE = (
    Form(TokenizePromptRequest),
    Form(TokenizeChatRequest),
    Form(DetokenizeRequest),
)


async def tokenize_prompt(service: Service, call: Call, model: Model, body: TokenizePromptRequest) -> Response:
    """Tokenizes a prompt."""
    special, strings = body.add_special_tokens, body.return_token_strs
    return await reply_tokens(service, call, model, body.prompt, "prompt", special=special, strings=strings)


async def tokenize_chat(service: Service, call: Call, model: Model, body: TokenizeChatRequest) -> Response:
    """Tokenizes a chat that the model's template renders."""
    chat_model = generative(model, "messages")
    images = ChatImages(chat_model, call.budget, renders=True)
    prompt = await render_chat(call, chat_model, body, images)
    special, strings = body.add_special_tokens or False, body.return_token_strs
    return await reply_tokens(service, call, model, prompt, "messages", special=special, strings=strings, images=images)


async def detokenize(service: Service, call: Call, model: Model, body: DetokenizeRequest) -> Response:
    """Returns the text of token ids, with special tokens."""
    call.context.field_names = Names(
        {("instances",): ("tokens",), ("instances", 0): ("tokens",), ("tokens", 0): ("tokens",)}
    )
    [prompt] = await decode(model, Query([body.tokens], {}, name="tokens"), service.executor, False, call.context)
    return await reply_arrays({"prompt": prompt}, call.context, service.executor)


# Answers


class Score(Struct):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(ListHead):
    data: list[Score]


class Class(Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(ListHead):
    data: list[Class]


class Pooled(Struct):
    index: int
    object: Literal["pooling"]
    data: Annotated[Json, about("A vector, a list of them, or base64.")]


class PooledList(ListHead):
    data: list[Pooled]


def _route(path: str, form: Form[Kind], tasks: Sequence[str], handle: TypedHandler[Kind], answer: Any) -> DialectRoute:
    return typed_route(path, "vllm", form, tasks, handle, render_error, answer)


ROUTES = (
    *[_route(path, SCORE, (Rerank.name,), score, ScoreList) for path in ("/score", "/v1/score")],
    *[
        _route(path, CLASSIFY, (SEQUENCE_CLASSIFICATION,), classify, ClassList)
        for path in ("/classify", "/v1/classify")
    ],
    *[_route(path, POOL, tuple(POOLING), pooling, PooledList) for path in ("/pooling", "/v1/pooling")],
    _route("/tokenize", TOKENIZE_PROMPT, ALL, tokenize_prompt, TokenizeResponse),
    _route("/tokenize", TOKENIZE_CHAT, ALL, tokenize_chat, TokenizeResponse),
    _route("/detokenize", DETOKENIZE, ALL, detokenize, DetokenizeResponse),
    _route("/generative_scoring", generative_scoring.FORM, GENERATIVE, generative_scoring.score, ScoreList),
)
