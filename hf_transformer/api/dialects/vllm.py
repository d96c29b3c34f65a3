"""vLLM's routes of pooling models and of the tokenizer. Its embeddings and rerank are OpenAI's (api/openai).

    POST /score, /v1/score        {"queries", "documents"}, or text_1 and text_2, data_1 and data_2, queries and items
                                  -> {"data": [{"index", "object": "score", "score"}]} in the order of the pairs
    POST /classify, /v1/classify  {"input"} -> {"data": [{"index", "label", "probs", "num_classes"}]}
    POST /pooling, /v1/pooling    {"input", "task"} -> {"data": [{"index", "object": "pooling", "data": [...]}]}
    POST /tokenize                {"prompt"} or {"messages"} -> {"count", "max_model_len", "tokens", "token_strs"}
    POST /detokenize              {"tokens"} -> {"prompt"}
    POST /generative_scoring      generative_scoring.py

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html and vllm/entrypoints/pooling of
https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hf_transformer.api.bodies import read_texts
from hf_transformer.api.call import Call
from hf_transformer.api.dialects import generative_scoring
from hf_transformer.api.dialects.fields import (
    PER_TEXT,
    TRUNCATION_FIELDS,
    move_if_present,
    read_document,
    read_documents,
    read_token_limits,
    read_truncation,
    representations,
    require_representation,
    unit_length,
)
from hf_transformer.api.dialects.render import CHAT_FIELDS, render_chat
from hf_transformer.api.dialects.routes import ALL, DialectRoute, Handler, listed, read_body
from hf_transformer.api.error_forms import render_error
from hf_transformer.api.openai.embeddings import SINGLE_INPUT, to_base64
from hf_transformer.api.openai.fields import IgnoredField, without_effect
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Service, generative
from hf_transformer.api.tokenize import decode
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks.labels import read_labels
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL, Names
from hf_transformer.types.request import Answers, Json, Query, RequestBudget
from hf_transformer.types.tokenization import Tokenization

IGNORED = (
    *without_effect("embeddings", "user", "request_id", "cache_salt", "priority", "padding"),
    IgnoredField("embed_dtype", (), ("float32",), "base64 contains float32"),
    *without_effect("embeddings", "endianness"),
)
"""Fields of all pooling routes without effect."""
INPUT_IGNORED = (*IGNORED, *without_effect("embeddings", "add_special_tokens"))
PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""Names of the two sides of /score."""
SIDES = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))
SEQUENCE_CLASSIFICATION, EMBEDDING, TOKENS = "sequence_classification", "text_embedding", "feature_extraction"
POOLING: Mapping[str, Mapping[str, str]] = {
    EMBEDDING: {"embed": DENSE, "token_embed": MULTI_VECTOR},
    TOKENS: {"token_embed": ""},
    SEQUENCE_CLASSIFICATION: {"classify": ""},
}
"""Values of ``task`` in /pooling by the model's task, the default first, each with its representation."""
NORMALIZE = ("use_activation", "normalize")
"""The names of one field of /pooling for vectors of texts; the second is that of older versions."""
NOT_FOR: Mapping[str, Sequence[str]] = {
    EMBEDDING: (),
    TOKENS: ("dimensions", *NORMALIZE),
    SEQUENCE_CLASSIFICATION: ("dimensions", "normalize"),
}
"""Fields of /pooling that a model of this task has no use for."""


# Pairs


async def score(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Scores pairs of texts: one text with each of several, or two lists of equal length."""
    known = (*SIDES, *PER_TEXT, "instruction", "use_activation", *TRUNCATION_FIELDS)
    model, parameters = read_body(service, call, payload, tasks=("rerank",), known=known, ignored=IGNORED)
    sides, single = _read_sides(parameters, call.budget)
    (first, firsts), (second, seconds) = sides
    if len(firsts) == 1:
        instances: list[Json] = [{"query": firsts[0], "texts": seconds}]
    elif len(firsts) == len(seconds):
        instances = [{"query": query, "texts": [text]} for query, text in zip(firsts, seconds, strict=True)]
    else:
        raise InvalidInput(second, f"one text for each of the {len(firsts)} in {first}", str(len(seconds)))

    # The queries of the task's instances are the first side, their texts the second.
    index, place = (EACH, 0) if len(firsts) > 1 else (0, EACH)
    text: Path = (second,) if second in single else (second, EACH)
    texts = text if len(firsts) > 1 else (second,)
    call.context.field_names = TOP_LEVEL.then(
        {
            ("instances", index): texts,
            ("instances", index, "query"): (first,) if first in single else (first, index),
            ("instances", index, "texts"): texts,
            ("instances", index, "texts", place): text,
        }
    )
    options: dict[str, Json] = {"output_format": "kserve"}
    options |= read_truncation(parameters) | read_token_limits(parameters)
    if "instruction" in parameters:
        options["instruction"] = parameters.string("instruction")
    if not parameters.flag("use_activation", True):
        options["raw_scores"] = True
    answers = await model.predict(Query(instances, options), call.context)
    scores = [one["score"] for ranked in answers.predictions for one in sorted(ranked, key=lambda one: one["index"])]
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    return await listed(service, call, "score", data, answers.tokens)


def _read_sides(parameters: Parameters, budget: RequestBudget) -> tuple[list[tuple[str, list[str]]], set[str]]:
    """Returns the names and texts of both sides of the pairs, and which of them are a single text. Raises
    InvalidInput."""
    present = tuple(name for name in SIDES if name in parameters)
    if present not in PAIRS:
        expected = " or ".join(" and ".join(pair) for pair in PAIRS)
        raise InvalidInput("body", f"the fields {expected}", " and ".join(present) or "none of them")
    single = {name for name in present if isinstance(parameters.get(name), str | dict)}
    texts = [parameters.get(name) for name in present]
    sides = [
        (name, [read_document(text, (name,))] if name in single else read_documents(text, budget, field=name))
        for name, text in zip(present, texts, strict=True)
    ]
    return sides, single


# Texts


def _read_input(
    parameters: Parameters, service: Service, budget: RequestBudget, model: Model
) -> tuple[Sequence[Json], bool]:
    """Returns the instances for ``input``, and whether it is a single text. Raises InvalidInput."""

    def read_ids(ids: list[Json], path: Path) -> Json:
        if model.task.name != EMBEDDING or not service.token_inputs:
            raise InvalidInput(path, "text", "token ids", "only embeddings take them, with --enable_token_inputs")
        return {"token_ids": ids}

    return read_texts(("input",), parameters.get("input"), budget, read_ids)


async def classify(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the probabilities of all labels, in the order of the labels."""
    known = ("input", "use_activation", *TRUNCATION_FIELDS)
    tasks = (SEQUENCE_CLASSIFICATION,)
    model, parameters = read_body(service, call, payload, tasks=tasks, known=known, ignored=INPUT_IGNORED)
    instances, single = _read_input(parameters, service, call.budget, model)
    if single:
        call.context.field_names = SINGLE_INPUT
    rows, answers = await _probabilities(model, call, instances, parameters)
    labels = read_labels(model.task.settings.model_config)
    data = [
        {"index": index, "label": labels[row.index(max(row))], "probs": row, "num_classes": len(row)}
        for index, row in enumerate(rows)
    ]
    return await listed(service, call, "classify", data, answers.tokens)


async def _probabilities(
    model: Model, call: Call, instances: Sequence[Json], parameters: Parameters
) -> tuple[list[list[float]], Answers]:
    """Returns the scores of all labels of each text, in the order of the labels; logits without ``use_activation``."""
    options: dict[str, Json] = {"output_format": "pipeline", "top_k": None, **read_truncation(parameters)}
    if not parameters.flag("use_activation", True):
        options["function_to_apply"] = "none"
    answers = await model.predict(Query(instances, options, name="input"), call.context)
    order = {label: index for index, label in enumerate(read_labels(model.task.settings.model_config))}
    rows = [sorted(prediction, key=lambda one: order[one["label"]]) for prediction in answers.predictions]
    return [[one["score"] for one in row] for row in rows], answers


async def pooling(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns vectors of texts or of their tokens, or probabilities, whichever the model has."""
    known = ("input", "task", "encoding_format", "dimensions", *NORMALIZE, *TRUNCATION_FIELDS)
    model, parameters = read_body(service, call, payload, tasks=tuple(POOLING), known=known, ignored=INPUT_IGNORED)
    for name in NOT_FOR[model.task.name]:
        if name in parameters:
            raise InvalidInput(name, f"no value for a model of {model.task.name}", describe(parameters.get(name)))
    kinds, kind = POOLING[model.task.name], _read_kind(parameters, model)
    base64 = parameters.choice("encoding_format", "float", ("float", "base64")) == "base64"
    instances, single = _read_input(parameters, service, call.budget, model)
    if single:
        call.context.field_names = SINGLE_INPUT
    if kind == "classify":
        rows, answers = await _probabilities(model, call, instances, parameters)
        vectors: list[Json] = [np.array(row, np.float32) for row in rows]
    else:
        # As in vLLM, the model's files decide whether vectors have a length of 1, after the cut to dimensions.
        options = unit_length(model, promised=False) if kinds[kind] == DENSE else {}
        options |= read_truncation(parameters) | _embedding_options(parameters, kinds[kind])
        answers = await model.predict(Query(instances, options, name="input"), call.context)
        vectors = [_vector(prediction, kinds[kind]) for prediction in answers.predictions]
    data = [
        {"index": index, "object": "pooling", "data": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    return await listed(service, call, "pooling", data, answers.tokens)


def _read_kind(parameters: Parameters, model: Model) -> str:
    """Returns ``task``, by default the first that the model has. Raises InvalidInput for one that it lacks."""
    available = representations(model)
    kinds = [kind for kind, name in POOLING[model.task.name].items() if name in ("", *available)]
    if not kinds:
        require_representation(model, DENSE)
    return parameters.choice("task", kinds[0], kinds)


def _embedding_options(parameters: Parameters, representation: str) -> dict[str, Json]:
    options: dict[str, Json] = {"representations": representation} if representation == MULTI_VECTOR else {}
    field = parameters.one_of(*NORMALIZE)
    return options | move_if_present(parameters, "dimensions", **({} if field is None else {field: "normalize"}))


def _vector(prediction: Json, representation: str) -> Json:
    """Returns the vector of a text, or its token vectors [tokens, D]."""
    if representation == MULTI_VECTOR:
        return prediction[MULTI_VECTOR]
    return prediction if representation else prediction[0]


# Tokenizer


async def tokenize(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Tokenizes a prompt, or a chat that the model's template renders."""
    known = ("prompt", "add_special_tokens", "return_token_strs", *CHAT_FIELDS)
    model, parameters = read_body(service, call, payload, tasks=ALL, known=known, ignored=IGNORED)
    is_chat = "messages" in parameters
    if is_chat and "prompt" in parameters:
        raise InvalidInput("messages", "prompt or messages", "both")
    if is_chat:
        text: str | None = await render_chat(service, call, generative(model, "messages"), parameters)
    else:
        text = parameters.string("prompt")
    if text is None:
        raise InvalidInput("prompt", "a string", "nothing")
    special = parameters.flag("add_special_tokens", not is_chat)
    strings = parameters.flag("return_token_strs", False)
    options = Tokenization(strings, whole=True, special_tokens=special, token_values=2)
    call.context.field_names = TOP_LEVEL.then({("instances",): ("prompt",), ("instances", 0): ("prompt",)})
    [[encoding]] = await model.encode([text], options, call.context)
    call.context.values = 2 * len(encoding)
    return await reply_arrays(
        {
            "count": len(encoding),
            "max_model_len": model.tokenizer.max_length,
            "tokens": encoding.ids,
            "token_strs": encoding.tokens if strings else None,
        },
        call.context,
        service.executor,
    )


async def detokenize(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the text of token ids, with special tokens."""
    model, parameters = read_body(service, call, payload, tasks=ALL, known=("tokens",), ignored=IGNORED)
    ids = parameters.get("tokens")
    if not isinstance(ids, list):
        raise InvalidInput("tokens", "a list of token ids", "nothing" if ids is None else describe(ids))
    call.context.field_names = Names(
        {("instances",): ("tokens",), ("instances", 0): ("tokens",), ("tokens", 0): ("tokens",)}
    )
    [prompt] = await decode(model, Query([ids], {}, name="tokens"), service.executor, False, call.context)
    return await reply_arrays({"prompt": prompt}, call.context, service.executor)


def _route(path: str, handle: Handler, *fields: str) -> DialectRoute:
    return DialectRoute(path=path, dialect="vllm", handle=handle, render_error=render_error, fields=frozenset(fields))


ROUTES = (
    *[_route(path, score) for path in ("/score", "/v1/score")],
    *[_route(path, classify) for path in ("/classify", "/v1/classify")],
    *[_route(path, pooling) for path in ("/pooling", "/v1/pooling")],
    _route("/tokenize", tokenize, "prompt"),
    _route("/tokenize", tokenize, "messages"),
    _route("/detokenize", detokenize),
    _route("/generative_scoring", generative_scoring.score),
)
