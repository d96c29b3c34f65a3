"""text-embeddings-inference's API.

    POST /embed         {"inputs": text | [text]} -> [[0.1, ...]], normalized unless "normalize" is false
    POST /embed_all     {"inputs": text | [text]} -> [[[0.1, ...], ...]], a vector per token
    POST /embed_sparse  {"inputs": text | [text]} -> [[{"index": 1012, "value": 0.7}, ...]]
    POST /similarity    {"inputs": {"source_sentence": text, "sentences": [text]}} -> [0.9, ...]
    POST /rerank        {"query": text, "texts": [text]} -> [{"index": 1, "score": 0.9}, ...]
    POST /predict       {"inputs": text | [text, text] | [[text], ...]} -> [{"score": 0.9, "label": "joy"}, ...]
    POST /tokenize      {"inputs": text | [text]} -> [[{"id", "text", "special", "start", "stop"}, ...]]
    POST /decode        {"ids": [id] | [[id]]} -> [text]
    POST /vertex        {"instances": [body, ...]} -> {"predictions": [answer, ...]}
    POST /, /invocations    the route of the model's kind

A body with ``parameters`` at the last two has the form of Hugging Face's inference API, which huggingface_hub sends. It
serves every predictive task, in the format of transformers' pipelines.

Sources: https://github.com/huggingface/text-embeddings-inference, router/src/http/server.rs, and
https://huggingface.co/docs/inference-providers/tasks/index
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hf_transformer.api.bodies import choose_model
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.fields import representations, require_representation
from hf_transformer.api.dialects.routes import ALL, PREDICTIVE, DialectRoute
from hf_transformer.api.dialects.tei_form import (
    NAMES,
    TRUNCATION,
    byte_spans,
    characters,
    compute_headers,
    read_inputs,
    read_parameters,
    read_sequences,
    read_text,
    render_error,
    sparse_values,
    status_of,
    within_instance,
)
from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Service
from hf_transformer.api.tokenize import VALUES_PER_TOKEN, PreparedText, off_loop, read_tokenize
from hf_transformer.api.tokenize import decode as detokenize
from hf_transformer.errors import EmptyList, FieldError, InvalidInput, Path
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.labels import score_label
from hf_transformer.tasks.similarity import compare
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR, SPARSE, TOKEN_EMBEDDINGS
from hf_transformer.types.http import Response
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Answers, Context, Json, Query, RequestBudget
from hf_transformer.types.tokenization import Encoding

EMBEDDING, CLASSES = ("text_embedding",), ("sequence_classification", "rerank")
HUGGING_FACE_CLIENT = b"@huggingface/inference/"
"""User agent of the inference API's client for JavaScript. It sends no ``parameters`` unless its user sets some, and
refuses text-embeddings-inference's form."""
HUGGING_FACE: Mapping[str, Mapping[str, Json]] = {
    "sequence_classification": {},
    "token_classification": {"aggregation_strategy": "simple"},
}
"""The inference API's defaults that differ, by task."""
SPARSE_SIZE = 12_000
"""Numbers of dense vectors whose comparison takes as long as that of a sparse vector, 0.03 ms."""
STEP_BODIES = 8
"""Bodies of /vertex that begin in an iteration of the event loop, about 1 ms."""
WEIGHT_BYTES = 300
"""Bytes of a weight with its index in an object, and in JSON."""
SINGLE_INPUT = NAMES.then({("inputs", 0): ("inputs",)})
RERANK_NAMES = NAMES.then({("texts", 0, "texts"): ("texts",), ("texts", 0, "query"): ("query",)})
EMBED = ("inputs", *TRUNCATION, "prompt_name", "normalize", "dimensions")
EMBED_ALL = ("inputs", *TRUNCATION, "prompt_name")


@dataclass(frozen=True, slots=True)
class Ask:
    """The fields of a request to one model."""

    service: Service
    model: Model
    fields: Mapping[str, Json]
    context: Context
    budget: RequestBudget

    def inner_parameters(self) -> dict[str, Json]:
        """The field ``parameters``, which is empty if absent. Raises InvalidInput if it is no object."""
        value = self.fields.get("parameters")
        parameters: dict[str, Json] = expect({} if value is None else value, dict, "parameters", "an object")
        return parameters

    async def predict(self, instances: list[Json], parameters: Mapping[str, Json], name: str = "inputs") -> Answers:
        return await self.model.predict(Query(instances, parameters, name=name), self.context)


@dataclass(frozen=True, slots=True)
class Result:
    """The body of an answer, and the numbers of characters and tokens; None for a request without inference."""

    body: Json
    counts: tuple[int, int] | None = None


Run = Callable[[Ask], Awaitable[Result]]


async def _vectors(ask: Ask, known: tuple[str, ...], **parameters: Json) -> tuple[list[Json], tuple[int, int]]:
    """Returns the predictions for ``inputs``, and the counts of Result."""
    inputs = ask.fields.get("inputs")
    texts = read_inputs(inputs, ask.budget)
    ask.context.field_names = NAMES if len(texts) > 1 else SINGLE_INPUT
    answers = await ask.predict(texts, parameters | read_parameters(ask.fields, known, ask.context))
    return answers.predictions, (sum(map(characters, texts)), answers.tokens)


async def embed(ask: Ask) -> Result:
    """Returns a vector per text. Raises InvalidInput for a model without dense vectors."""
    require_representation(ask.model, DENSE)
    return Result(*await _vectors(ask, EMBED, normalize=True))


async def embed_all(ask: Ask) -> Result:
    """Returns a vector per token: of the model's last layer, or projected and normalized ones where it has these."""
    if ask.model.task.name == "feature_extraction":
        vectors, counts = await _vectors(ask, ("inputs", *TRUNCATION))
        return Result([vector[0] for vector in vectors], counts)
    name = MULTI_VECTOR if MULTI_VECTOR in representations(ask.model) else TOKEN_EMBEDDINGS
    vectors, counts = await _vectors(ask, EMBED_ALL, representations=[name])
    return Result([vector[name] for vector in vectors], counts)


async def embed_sparse(ask: Ask) -> Result:
    """Returns the weights of a text's tokens. A text without weights has an empty list."""
    vectors, counts = await _vectors(ask, EMBED_ALL, representations=[SPARSE])
    values, executor = sum(len(vector[SPARSE]["indices"]) for vector in vectors), ask.service.executor
    ask.budget.hold(values * WEIGHT_BYTES, "inputs")
    return Result(
        await off_loop(executor, values, lambda: [sparse_values(vector[SPARSE]) for vector in vectors]), counts
    )


async def similarity(ask: Ask) -> Result:
    """Returns the similarity of each sentence to the source: cosine, dot product (sparse) or MaxSim (multi-vector)."""
    fields = expect(ask.fields.get("inputs"), dict, "inputs", '{"source_sentence": text, "sentences": [text]}')
    source = read_text(("inputs", "source_sentence"), fields.get("source_sentence"))
    sentences = expect_items(fields.get("sentences"), ("inputs", "sentences"), "a list of texts")
    ask.budget.few(("inputs", "sentences"), sentences, 1)
    texts = [source, *(read_text(("inputs", "sentences", index), text) for index, text in enumerate(sentences))]
    fields = ask.inner_parameters()
    ask.context.field_names = _similarity_field
    parameters = read_parameters(fields, (*TRUNCATION, "prompt_name"), ask.context)
    answers = await ask.predict(texts, parameters)
    vectors = answers.predictions
    values = sum(getattr(vector, "size", SPARSE_SIZE) for vector in vectors)
    scores = await off_loop(ask.service.executor, values // VALUES_PER_TOKEN, lambda: compare(vectors[0], vectors[1:]))
    return Result(scores, (sum(map(len, texts)), answers.tokens))


def _similarity_field(path: Path) -> Path:
    """Converts a canonical path: the source is the first instance."""
    match path:
        case ("inputs", 0, *rest):
            return ("inputs", "source_sentence", *rest)
        case ("inputs", int(index), *rest):
            return ("inputs", "sentences", index - 1, *rest)
        case ("inputs",) | ("parameters",):
            return path
        case _:
            return ("parameters", *NAMES(path))


async def rerank(ask: Ask) -> Result:
    """Returns the texts' scores, the best first."""
    query, texts = read_text("query", ask.fields.get("query")), ask.fields.get("texts")
    texts = expect_items(texts, "texts", "a list of texts")
    ask.budget.few("texts", texts)
    ask.context.field_names = RERANK_NAMES
    parameters = read_parameters(ask.fields, ("query", "texts", *TRUNCATION, "raw_scores", "return_text"), ask.context)
    answers = await ask.predict([{"query": query, "texts": texts}], {"output_format": "kserve", **parameters}, "texts")
    ranks = [
        {"index": rank["index"], **({"text": rank["text"]} if "text" in rank else {}), "score": rank["score"]}
        for rank in answers.predictions[0]
    ]
    return Result(ranks, (len(query) * len(texts) + sum(map(len, texts)), answers.tokens))


async def predict(ask: Ask) -> Result:
    """Returns the scores of all labels for each text or pair, the best first."""
    if ask.fields.get("parameters") is not None and ask.model.task.name == "sequence_classification":
        return await pipeline(ask)
    sequences, is_single = read_sequences(ask.fields.get("inputs"), ask.budget)
    ask.context.field_names = SINGLE_INPUT if is_single else NAMES
    parameters = read_parameters(ask.fields, ("inputs", *TRUNCATION, "raw_scores"), ask.context)
    if ask.model.task.name == "rerank":
        for index, sequence in enumerate(sequences):
            if len(sequence) == 1:
                raise InvalidInput(("inputs", index), "a pair of texts, since the model ranks texts", "one text")
        pairs = [{"query": sequence[0], "texts": list(sequence[1:])} for sequence in sequences]
        answers = await ask.predict(pairs, {"output_format": "kserve", **parameters})
        label = score_label(ask.model.task.settings.model_config)
        scores = [[{"score": ranks[0]["score"], "label": label}] for ranks in answers.predictions]
    else:
        if expect(parameters.pop("raw_scores", False), bool, "raw_scores", "true or false"):
            parameters["function_to_apply"] = "none"
        texts = [dict(zip(("text", "text_pair"), sequence, strict=False)) for sequence in sequences]
        answers = await ask.predict(texts, {"output_format": "pipeline", "top_k": None, **parameters})
        scores = answers.predictions
    count = sum(len(text) for sequence in sequences for text in sequence)
    return Result(scores[0] if is_single else scores, (count, answers.tokens))


async def pipeline(ask: Ask) -> Result:
    """Answers a body of the inference API in the format of transformers' pipelines, with the task's parameters.

    As there, the labels of a single text are a list in a list, and those of zero_shot_classification are objects.
    """
    inputs, parameters = ask.fields.get("inputs"), ask.inner_parameters()
    instances = expect_items(inputs if isinstance(inputs, list) else [inputs], "inputs", "a text or a list of texts")
    ask.budget.few("inputs", instances)
    is_single = not isinstance(inputs, list)
    if is_single:
        ask.context.field_names = Names({("inputs", 0): ("inputs",)})
    classifies = ask.model.task.name == "sequence_classification"
    defaults = {"output_format": "pipeline", **({"top_k": None} if classifies else {})}
    answers = await ask.predict(instances, defaults | parameters)
    predictions = answers.predictions
    if ask.model.task.name == "zero_shot_classification":
        predictions = [
            [{"label": label, "score": score} for label, score in zip(one["labels"], one["scores"], strict=True)]
            for one in predictions
        ]
    body = predictions[0] if is_single and not classifies else predictions
    return Result(body, (sum(len(text) for text in instances if isinstance(text, str)), answers.tokens))


async def by_kind(ask: Ask) -> Result:
    """Answers with the route of the model's kind, and of the form of its inputs where a kind has several."""
    task, inputs = ask.model.task.name, ask.fields.get("inputs")
    ask.inner_parameters()  # also where the route has none, and lists the field as ignored
    if task == "text_embedding":
        if isinstance(inputs, dict):
            return await similarity(ask)
        return await {SPARSE: embed_sparse, MULTI_VECTOR: embed_all}.get(representations(ask.model)[0], embed)(ask)
    runs = {"rerank": rerank if inputs is None else predict, "sequence_classification": predict}
    return await {**runs, "feature_extraction": embed_all}.get(task, pipeline)(ask)


async def tokenize(ask: Ask) -> Result:
    """Returns the tokens of each text, with spans in bytes of the text with its prompt."""
    inputs, fields = ask.fields.get("inputs"), ("add_special_tokens", "prompt_name")
    texts = [inputs] if isinstance(inputs, str) else expect_items(inputs, "inputs", "a text or a list of texts")
    ask.budget.few("inputs", texts)
    texts = [read_text(("inputs", index), text) for index, text in enumerate(texts)]
    ask.context.field_names = NAMES.then({("instances",): ("inputs",)})
    read_parameters(ask.fields, ("inputs", *fields), ask.context)  # notes unknown fields
    parameters = {name: ask.fields[name] for name in fields if ask.fields.get(name) is not None}
    prepared, options = read_tokenize(Query(texts, parameters, name="inputs"), ask.model.task)
    windows = await ask.model.encode([text.prepared for text in prepared], options, ask.context)
    encodings = [encoding for [encoding] in windows]
    pairs, count = list(zip(prepared, encodings, strict=True)), sum(map(len, encodings))
    return Result(await off_loop(ask.service.executor, count, lambda: [tokens_of(*pair) for pair in pairs]))


def tokens_of(text: PreparedText, encoding: Encoding) -> list[Json]:
    """Renders the tokens of a text. A tokenizer without offsets gives names of tokens, and null spans."""
    tokens, special, whole = encoding.tokens or [], encoding.special_mask, str(text.prepared)
    encoded = whole.encode("utf-8", "surrogatepass")
    spans = None if encoding.offsets is None else byte_spans(whole, encoding.offsets)
    rendered: list[Json] = []
    for index, (number, token) in enumerate(zip(encoding.ids, tokens, strict=True)):
        is_special = special is not None and special[index] == 1
        start, stop = (None, None) if is_special or spans is None else spans[index]
        if start is not None:
            token = encoded[start:stop].decode("utf-8", "replace")
        rendered.append({"id": number, "text": token, "special": is_special, "start": start, "stop": stop})
    return rendered


async def decode(ask: Ask) -> Result:
    """Returns the text of each list of ids, without special tokens unless the request wants them."""
    ids = expect_items(ask.fields.get("ids"), "ids", "a list of token ids or a list of such lists")
    lists = ids if isinstance(ids[0], list) else [ids]
    ask.budget.few("ids", lists)
    if [] in lists:
        raise EmptyList(("ids", lists.index([])), "a list of token ids")
    ask.context.field_names = NAMES.then({("instances",): ("ids",)})
    read_parameters(ask.fields, ("ids", "skip_special_tokens"), ask.context)  # notes unknown fields
    skip = ask.fields.get("skip_special_tokens")
    skip = expect(True if skip is None else skip, bool, "skip_special_tokens", "true or false")
    return Result(await detokenize(ask.model, Query(lists, {}, name="ids"), ask.service.executor, skip, ask.context))


async def vertex(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Answers several bodies, each by the model's kind, within the limits of one request."""
    instances = expect_items(payload.get("instances"), "instances", "a list of bodies")
    call.budget.few("instances", instances)
    model = _choose(service, call, payload.get("model"), PREDICTIVE)
    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            for index, one in enumerate(instances):
                if index % STEP_BODIES == 0:
                    await asyncio.sleep(0)  # others have their turn
                tasks.append(group.create_task(_instance(service, model, one, index, call)))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    body = {"predictions": [task.result() for task in tasks]}
    return await reply_arrays(body, call.context, service.executor)


async def _instance(service: Service, model: Model, body: Json, index: int, call: Call) -> Json:
    whole = call.context
    fields = expect(body, dict, ("instances", index), "an object")
    context = Context(whole.request_id, whole.headers, deadline=whole.deadline)
    context.model_name, context.served_name, context.adapter = whole.model_name, whole.served_name, whole.adapter
    context.arrived, context.budget = whole.arrived, whole.budget
    ask = Ask(service, model, fields, context, call.budget)
    try:
        body = (await by_kind(ask)).body
        whole.values += context.values
        return body
    except FieldError as error:
        raise within_instance(error, index, context) from None
    finally:
        for name in context.ignored:
            note_ignored(name, whole.ignored)  # within the limit of the header


def _choose(service: Service, call: Call, name: Json, tasks: Sequence[str]) -> Model:
    """Chooses the model. As in the original, the only model answers under every name. Raises RequestError."""
    models, name = service.models, expect(name, str | None, "model", "a string")
    if name is not None and len(models.served) + len(models.absent) == 1 and name not in models.names:
        note_ignored("model", call.context.ignored)
        name = None
    return choose_model(service, call, name, tasks)


def _route(path: str, run: Run, tasks: tuple[str, ...], *fields: str) -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        model = _choose(service, call, payload.get("model"), tasks)
        defaults, given = HUGGING_FACE.get(model.task.name), payload.get("parameters")
        if defaults is not None and call.headers.get(b"user-agent", b"").startswith(HUGGING_FACE_CLIENT):
            if given is None or isinstance(given, dict):  # else the route refuses it
                payload = {**payload, "parameters": {**defaults, **(given or {})}}
        result = await run(Ask(service, model, payload, call.context, call.budget))
        headers = () if result.counts is None else compute_headers(*result.counts, call.context)
        return await reply_arrays(result.body, call.context, service.executor, *headers)

    return _dialect_route(path=path, handle=handle, fields=frozenset(fields))


_dialect_route = partial(DialectRoute, dialect="tei", render_error=render_error, status=status_of)
ROUTES = (
    _route("/embed", embed, EMBEDDING, "inputs"),
    _route("/embed_all", embed_all, (*EMBEDDING, "feature_extraction"), "inputs"),
    _route("/embed_sparse", embed_sparse, EMBEDDING, "inputs"),
    _route("/similarity", similarity, EMBEDDING, "inputs"),
    _route("/rerank", rerank, ("rerank",), "query", "texts"),
    _route("/predict", predict, CLASSES, "inputs"),
    _route("/tokenize", tokenize, ALL, "inputs"),
    _route("/decode", decode, ALL, "ids"),
    _route("/", by_kind, PREDICTIVE),
    _route("/invocations", by_kind, PREDICTIVE),
    _dialect_route(path="/vertex", handle=vertex, fields=frozenset(("instances",))),
)
