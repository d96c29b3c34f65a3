"""text-embeddings-inference's API.

At / and /invocations, a body with ``parameters`` has the form of Hugging Face's inference API, which huggingface_hub
sends. It serves every predictive task, in the format of transformers' pipelines.

Sources: https://github.com/huggingface/text-embeddings-inference, router/src/http/server.rs, and
https://huggingface.co/docs/inference-providers/tasks/index
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hf_transformer.api.bodies import choose_model, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import ALL, PREDICTIVE, DialectRoute
from hf_transformer.api.dialects.tei_form import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiKindRequest,
    TeiLabel,
    TeiPredictions,
    TeiPredictRequest,
    TeiPrompt,
    TeiRank,
    TeiRerankRequest,
    TeiSimilarityRequest,
    TeiToken,
    TeiTokenizeRequest,
    TeiVertexRequest,
    TeiWeight,
    byte_spans,
    characters,
    compute_headers,
    read,
    read_inputs,
    read_options,
    read_sequences,
    read_strings,
    render_error,
    sparse_values,
    status_of,
    within_instance,
)
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.retrieval import representations, require_representation
from hf_transformer.api.service import Model, Service
from hf_transformer.api.tokenize import VALUES_PER_TOKEN, PreparedText, off_loop, read_tokenize
from hf_transformer.api.tokenize import decode as detokenize
from hf_transformer.errors import EmptyList, FieldError, InvalidInput, Path
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.labels import score_label
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.similarity import compare
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR, SPARSE, TOKEN_EMBEDDINGS, TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification
from hf_transformer.types.fields import Form
from hf_transformer.types.http import Response
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Answers, Context, Json, Query, RequestBudget
from hf_transformer.types.tokenization import Encoding

EMBEDDING, CLASSES = (TextEmbedding.name,), (SequenceClassification.name, Rerank.name)
HUGGING_FACE_CLIENT = b"@huggingface/inference/"
"""User agent of the inference API's client for JavaScript. It sends no ``parameters`` unless its user sets some, and
refuses text-embeddings-inference's form."""
HUGGING_FACE: Mapping[str, Mapping[str, Json]] = {
    SequenceClassification.name: {},
    TokenClassification.name: {"aggregation_strategy": "simple"},
}
"""The inference API's defaults that differ, by task."""
SPARSE_SIZE = 12_000
"""Numbers of dense vectors whose comparison takes as long as that of a sparse vector, 0.03 ms."""
STEP_BODIES = 8
"""Bodies of /vertex that begin in an iteration of the event loop, about 1 ms."""
WEIGHT_BYTES = 300
"""Bytes of a weight with its index in an object, and in JSON."""
SINGLE_INPUT: Mapping[Path, Path] = {("inputs", 0): ("inputs",)}
RERANK_NAMES: Mapping[Path, Path] = {("texts", 0, "texts"): ("texts",), ("texts", 0, "query"): ("query",)}
EMBED, EMBED_ALL, SIMILARITY = Form(TeiEmbedRequest), Form(TeiEmbedAllRequest), Form(TeiSimilarityRequest)
RERANK, PREDICT, KIND, VERTEX = (
    Form(TeiRerankRequest),
    Form(TeiPredictRequest),
    Form(TeiKindRequest),
    Form(TeiVertexRequest),
)
TOKENIZE, DECODE, SIMILARITY_PARAMETERS = Form(TeiTokenizeRequest), Form(TeiDecodeRequest), Form(TeiPrompt)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to one model.

    Attributes:
        payload: the body.
        defaults: the parameters of a body without some, for HUGGING_FACE_CLIENT; None for other clients.
    """

    service: Service
    model: Model
    payload: Json
    context: Context
    budget: RequestBudget
    defaults: Mapping[str, Json] | None = None

    def parameters(self, sent: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
        """The field ``parameters``; None for a body without it."""
        return sent if self.defaults is None else {**self.defaults, **(sent or {})}

    async def predict(self, instances: list[Json], parameters: Mapping[str, Json], name: str = "inputs") -> Answers:
        return await self.model.predict(Query(instances, parameters, name=name), self.context)


@dataclass(frozen=True, slots=True)
class Result:
    """The body of an answer, and the numbers of characters and tokens; None for a request without inference."""

    body: Json
    counts: tuple[int, int] | None = None


Run = Callable[[Ask, Any], Awaitable[Result]]


async def _vectors(
    ask: Ask, inputs: str | list[Json], parameters: Mapping[str, Json]
) -> tuple[list[Json], tuple[int, int]]:
    """Returns the predictions for ``inputs``, and the counts of Result."""
    texts = read_inputs(inputs, ask.budget)
    if len(texts) == 1:
        rename_fields(ask.context, SINGLE_INPUT)
    answers = await ask.predict(texts, parameters)
    return answers.predictions, (sum(map(characters, texts)), answers.tokens)


async def embed(ask: Ask, body: TeiEmbedRequest) -> Result:
    """Returns a vector per text. Raises InvalidInput for a model without dense vectors."""
    require_representation(ask.model, DENSE)
    return Result(*await _vectors(ask, body.inputs, read_options(EMBED, body)))


async def embed_all(ask: Ask, body: TeiEmbedAllRequest) -> Result:
    """Returns a vector per token: of the model's last layer, or projected and normalized ones where it has these."""
    options = read_options(EMBED_ALL, body)
    if ask.model.task.name == FeatureExtraction.name:
        if options.pop("prompt_name", None) is not None:
            note_ignored("prompt_name", ask.context.ignored)
        vectors, counts = await _vectors(ask, body.inputs, options)
        return Result([vector[0] for vector in vectors], counts)
    name = MULTI_VECTOR if MULTI_VECTOR in representations(ask.model) else TOKEN_EMBEDDINGS
    vectors, counts = await _vectors(ask, body.inputs, {"representations": [name], **options})
    return Result([vector[name] for vector in vectors], counts)


async def embed_sparse(ask: Ask, body: TeiEmbedAllRequest) -> Result:
    """Returns the weights of a text's tokens. A text without weights has an empty list."""
    options = {"representations": [SPARSE], **read_options(EMBED_ALL, body)}
    vectors, counts = await _vectors(ask, body.inputs, options)
    values, executor = sum(len(vector[SPARSE]["indices"]) for vector in vectors), ask.service.executor
    ask.budget.hold(values * WEIGHT_BYTES, "inputs")
    return Result(
        await off_loop(executor, values, lambda: [sparse_values(vector[SPARSE]) for vector in vectors]), counts
    )


async def similarity(ask: Ask, body: TeiSimilarityRequest) -> Result:
    """Returns the similarity of each sentence to the source: cosine, dot product (sparse) or MaxSim (multi-vector)."""
    sentences = read_strings(body.inputs.sentences, ("inputs", "sentences"), ask.budget, 1)
    texts: list[Json] = [body.inputs.source_sentence, *sentences]
    ask.context.field_names = _similarity_field
    parameters = read(SIMILARITY_PARAMETERS, body.parameters or {}, ask.context, ("parameters",))
    ask.context.field_names = _similarity_field
    answers = await ask.predict(texts, read_options(SIMILARITY_PARAMETERS, parameters))
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
        case ("parameters", _, *_):
            return ("parameters", *SIMILARITY_PARAMETERS.client_names({})(path))
        case _:
            return path


async def rerank(ask: Ask, body: TeiRerankRequest) -> Result:
    """Returns the texts' scores, the best first."""
    query, texts = body.query, body.texts
    ask.budget.few("texts", texts)
    rename_fields(ask.context, RERANK_NAMES)
    options = {"output_format": "kserve", **read_options(RERANK, body)}
    answers = await ask.predict([{"query": query, "texts": texts}], options, "texts")
    ranks = [
        {"index": rank["index"], **({"text": rank["text"]} if "text" in rank else {}), "score": rank["score"]}
        for rank in answers.predictions[0]
    ]
    return Result(ranks, (len(query) * len(texts) + sum(map(len, texts)), answers.tokens))


async def predict(ask: Ask, body: TeiPredictRequest) -> Result:
    """Returns the scores of all labels for each text or pair, the best first."""
    classifies = ask.model.task.name == SequenceClassification.name
    if classifies and (parameters := ask.parameters(body.parameters)) is not None:
        return await _pipeline(ask, body.inputs, parameters)
    sequences, is_single = read_sequences(body.inputs, ask.budget)
    if is_single:
        rename_fields(ask.context, SINGLE_INPUT)
    options = read_options(PREDICT, body)
    if classifies:
        if options.pop("raw_scores", False):
            options["function_to_apply"] = "none"
        texts = [dict(zip(("text", "text_pair"), sequence, strict=False)) for sequence in sequences]
        answers = await ask.predict(texts, {"output_format": "pipeline", "top_k": None, **options})
        scores = answers.predictions
    else:
        if body.parameters is not None:
            note_ignored("parameters", ask.context.ignored)
        for index, sequence in enumerate(sequences):
            if len(sequence) == 1:
                raise InvalidInput(("inputs", index), "a pair of texts, since the model ranks texts", "one text")
        pairs = [{"query": sequence[0], "texts": list(sequence[1:])} for sequence in sequences]
        answers = await ask.predict(pairs, {"output_format": "kserve", **options})
        label = score_label(ask.model.task.settings.model_config)
        scores = [[{"score": ranks[0]["score"], "label": label}] for ranks in answers.predictions]
    count = sum(len(text) for sequence in sequences for text in sequence)
    return Result(scores[0] if is_single else scores, (count, answers.tokens))


async def pipeline(ask: Ask, body: TeiKindRequest) -> Result:
    """Answers a body of the inference API in the format of transformers' pipelines, with the task's parameters."""
    return await _pipeline(ask, body.inputs, ask.parameters(body.parameters) or {})


async def _pipeline(ask: Ask, inputs: Json, parameters: Mapping[str, Json]) -> Result:
    """See ``pipeline``.

    As in transformers, the labels of a single text are a list in a list, and those of zero_shot_classification are
    objects.
    """
    if inputs is None:
        raise InvalidInput("inputs", "a text or a list of texts", "nothing")
    instances = inputs if isinstance(inputs, list) else [inputs]
    if not instances:
        raise EmptyList("inputs", "a text or a list of texts")
    ask.budget.few("inputs", instances)
    is_single = not isinstance(inputs, list)
    # The task's parameters are no fields of their own here.
    ask.context.field_names = Names(SINGLE_INPUT if is_single else {})
    classifies = ask.model.task.name == SequenceClassification.name
    defaults = {"output_format": "pipeline", **({"top_k": None} if classifies else {})}
    answers = await ask.predict(instances, defaults | dict(parameters))
    predictions = answers.predictions
    if ask.model.task.name == ZeroShotClassification.name:
        predictions = [
            [{"label": label, "score": score} for label, score in zip(one["labels"], one["scores"], strict=True)]
            for one in predictions
        ]
    body = predictions[0] if is_single and not classifies else predictions
    return Result(body, (sum(len(text) for text in instances if isinstance(text, str)), answers.tokens))


async def by_kind(ask: Ask, body: TeiKindRequest) -> Result:
    """Answers with the route of the model's kind, and of the form of its inputs where a kind has several."""
    form, run = _kind(ask.model, body)
    return await run(ask, read(form, ask.payload, ask.context))


def _kind(model: Model, body: TeiKindRequest) -> tuple[Form[Any], Run]:
    """Returns the route of a model's kind."""
    task, predicts = model.task.name, (PREDICT, predict)
    if task == TextEmbedding.name:
        if isinstance(body.inputs, dict):
            return SIMILARITY, similarity
        runs: Mapping[str, tuple[Form[Any], Run]]
        runs = {SPARSE: (EMBED_ALL, embed_sparse), MULTI_VECTOR: (EMBED_ALL, embed_all)}
        return runs.get(representations(model)[0], (EMBED, embed))
    runs = {
        Rerank.name: (RERANK, rerank) if body.inputs is None else predicts,
        SequenceClassification.name: predicts,
        FeatureExtraction.name: (EMBED_ALL, embed_all),
    }
    return runs.get(task, (KIND, pipeline))


async def tokenize(ask: Ask, body: TeiTokenizeRequest) -> Result:
    """Returns the tokens of each text, with spans in bytes of the text with its prompt."""
    texts = read_strings([body.inputs] if isinstance(body.inputs, str) else body.inputs, ("inputs",), ask.budget)
    rename_fields(ask.context, {("instances",): ("inputs",)})
    prepared, options = read_tokenize(Query(texts, TOKENIZE.options(body), name="inputs"), ask.model.task)
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


async def decode(ask: Ask, body: TeiDecodeRequest) -> Result:
    """Returns the text of each list of ids, without special tokens unless the request wants them."""
    lists = body.ids if isinstance(body.ids[0], list) else [body.ids]
    ask.budget.few("ids", lists)
    if [] in lists:
        raise EmptyList(("ids", lists.index([])), "a list of token ids")
    rename_fields(ask.context, {("instances",): ("ids",)})
    query, skip = Query(lists, {}, name="ids"), body.skip_special_tokens
    return Result(await detokenize(ask.model, query, ask.service.executor, skip, ask.context))


async def vertex(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Answers several bodies, each by the model's kind, within the limits of one request."""
    body = read(VERTEX, payload, call.context)
    call.budget.few("instances", body.instances)
    model = _choose(service, call, body.model, PREDICTIVE)
    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            for index, one in enumerate(body.instances):
                if index % STEP_BODIES == 0:
                    await asyncio.sleep(0)  # others have their turn
                tasks.append(group.create_task(_instance(service, model, one, index, call)))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    answer = {"predictions": [task.result() for task in tasks]}
    return await reply_arrays(answer, call.context, service.executor)


async def _instance(service: Service, model: Model, body: Json, index: int, call: Call) -> Json:
    whole = call.context
    context = Context(whole.request_id, whole.headers, deadline=whole.deadline)
    context.model_name, context.served_name, context.adapter = whole.model_name, whole.served_name, whole.adapter
    context.arrived, context.budget = whole.arrived, whole.budget
    ask = Ask(service, model, body, context, call.budget)
    try:
        answer = (await by_kind(ask, KIND.read(body))).body
        whole.values += context.values
        return answer
    except FieldError as error:
        raise within_instance(error, index, context) from None
    finally:
        for name in context.ignored:
            note_ignored(name, whole.ignored)  # within the limit of the header


def _choose(service: Service, call: Call, name: str | None, tasks: tuple[str, ...]) -> Model:
    """Chooses the model. As in the original, the only model answers under every name. Raises RequestError."""
    models = service.models
    if name is not None and len(models.served) + len(models.absent) == 1 and name not in models.names:
        note_ignored("model", call.context.ignored)
        name = None
    return choose_model(service, call, name, tasks)


def _route(path: str, form: Form[Any], tasks: tuple[str, ...], run: Run, *answers: Any) -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        # The route of the model's kind reads the body again, and knows which of its fields are unknown.
        body = form.read(payload) if form is KIND else read(form, payload, call.context)
        model = _choose(service, call, body.model, tasks)
        is_hugging_face = call.headers.get(b"user-agent", b"").startswith(HUGGING_FACE_CLIENT)
        defaults = HUGGING_FACE.get(model.task.name) if is_hugging_face else None
        result = await run(Ask(service, model, payload, call.context, call.budget, defaults), body)
        headers = () if result.counts is None else compute_headers(*result.counts, call.context)
        return await reply_arrays(result.body, call.context, service.executor, *headers)

    return _dialect_route(path=path, handle=handle, form=form, tasks=tasks, answers=answers)


_dialect_route = partial(DialectRoute, dialect="tei", render_error=render_error, status=status_of)
ROUTES = (
    _route("/embed", EMBED, EMBEDDING, embed, list[list[float]]),
    _route("/embed_all", EMBED_ALL, (*EMBEDDING, FeatureExtraction.name), embed_all, list[list[list[float]]]),
    _route("/embed_sparse", EMBED_ALL, EMBEDDING, embed_sparse, list[list[TeiWeight]]),
    _route("/similarity", SIMILARITY, EMBEDDING, similarity, list[float]),
    _route("/rerank", RERANK, (Rerank.name,), rerank, list[TeiRank]),
    _route("/predict", PREDICT, CLASSES, predict, list[TeiLabel], list[list[TeiLabel]]),
    _route("/tokenize", TOKENIZE, ALL, tokenize, list[list[TeiToken]]),
    _route("/decode", DECODE, ALL, decode, list[str]),
    _route("/", KIND, PREDICTIVE, by_kind),
    _route("/invocations", KIND, PREDICTIVE, by_kind),
    _dialect_route(path="/vertex", handle=vertex, form=VERTEX, tasks=PREDICTIVE, answers=(TeiPredictions,)),
)
