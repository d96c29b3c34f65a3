"""rerank: a cross-encoder's relevance scores of texts for a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, ClassVar, TypeAlias

import numpy as np

from hf_transformer.errors import EmptyList, InvalidInput, LoadError, Path, TooLarge, describe
from hf_transformer.tasks.base import Expansion, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import INTEGER, NUMBER, STRING, Demo, Example, array, closed
from hf_transformer.tasks.labels import CLASSIFIER, read_labels, score_label, tei_labels, text_logits
from hf_transformer.tasks.long_texts import read_overflow, read_windows
from hf_transformer.tasks.numerics import require_numbers, sigmoid
from hf_transformer.tasks.options import (
    MAX_PROMPT_LENGTH,
    Format,
    MaxChunks,
    MaxTokens,
    OutputFormat,
    PromptName,
    Score,
    Stride,
    TaskParameters,
    Truncation,
    TruncationSide,
    WindowScore,
    read_prompt,
)
from hf_transformer.tasks.tensors import Field
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import PLAIN, Encoding, PromptText, TextInput, Tokenization

QUERY, TEXTS = "What is the capital of France?", ("The team won the match.", "Paris is the capital of France.")
NO_MAXIMUM = 2**31
RANK_BYTES = 400
"""Bytes of a text's index and score, which an API may render in other objects."""
ONLY_TEXT = Tokenization(only_second=True)


TopN: TypeAlias = Annotated[Positive | None, about("Texts in the answer; all if not given.")]
ReturnDocuments: TypeAlias = Annotated[
    bool, about("Whether the texts are given too; true by default in the OpenAI API.")
]
RawScores: TypeAlias = Annotated[bool, about("Logits instead of scores between 0 and 1.")]
TruncateDocument: TypeAlias = Annotated[bool, about("Whether only texts are cut and never the query.")]
QueryTokens: TypeAlias = Annotated[Positive | None, about("Tokens of the query at most, without special ones.")]
DocumentTokens: TypeAlias = Annotated[Positive | None, about("Tokens of each text at most, without special ones.")]


class RerankParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    top_n: TopN = None
    return_documents: ReturnDocuments = False
    raw_scores: RawScores = False
    prompt_name: PromptName = None
    prompt: Annotated[str | None, about("A text in front of the query.", schema={"maxLength": MAX_PROMPT_LENGTH})] = (
        None
    )
    instruction: Annotated[
        str | None, about("An instruction for a model whose template has one.", schema={"maxLength": MAX_PROMPT_LENGTH})
    ] = None
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    truncate_document: TruncateDocument = False
    max_tokens_per_query: QueryTokens = None
    max_tokens_per_doc: DocumentTokens = None
    stride: Stride = None
    window_score: Score = "max"
    max_chunks_per_doc: MaxChunks = None


@dataclass(frozen=True, slots=True)
class RerankOptions:
    """The effect of a request's parameters. ``top_n`` None returns all texts; ``raw_scores`` returns logits.

    ``prompt`` precedes queries of a model without template. ``instruction`` is for a template; None for its default.
    ``query_tokens`` is the maximum length of a query in a template.
    """

    output_format: OutputFormat
    top_n: int | None
    return_documents: bool
    raw_scores: bool
    prompt: str
    overflow: Overflow
    tokenization: Tokenization
    window_score: WindowScore
    instruction: str | None = None
    query_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RerankItem:
    """A query and its texts, at least one."""

    query: str
    texts: tuple[str, ...]


class Rerank(Task[RerankItem, RerankOptions, float]):
    """Reads ``logits`` [1] of each pair (query, text).

    The answer is a list with an object per text, in descending order of scores, then in the order of the texts:
        kserve          {"index", "score"}, as in text-embeddings-inference
        pipeline        {"corpus_id", "score"}, as in sentence-transformers' CrossEncoder.rank

    The parameter return_documents adds "text". The score is the sigmoid of the logit, or the logit itself if the
    model's activation function is torch's Identity.
    """

    name = "rerank"
    options_type: ClassVar[type[TaskParameters]] = RerankParameters
    has_windows = takes_pairs = True
    special_tokens = 3
    logits_hint = "leave it out, and send the parameter raw_scores"
    fields = (Field("query"), Field("texts", ("documents",), many=True))
    purpose = "Sorts documents by a query"
    examples = (
        Example("rerank", {"instances": [{"query": QUERY, "texts": [*TEXTS, "The cat sleeps on the sofa."]}]}),
        Example(
            "as a pipeline",
            {
                "instances": [{"query": "What do cats eat?", "documents": ["Paris is a city.", "Cats eat fish."]}],
                "parameters": {"output_format": "pipeline", "top_n": 1, "return_documents": True},
            },
            "pipeline",
        ),
    )
    demo = Demo("cross", {"query": QUERY, "texts": TEXTS})
    export_head = CLASSIFIER
    instance_schemas = (
        {
            "description": 'A query and the texts to rank; for rerank. "documents" is another name of "texts".',
            **closed(["query"], query=STRING, texts=array(STRING, minItems=1), documents=array(STRING, minItems=1)),
            "oneOf": [{"required": ["texts"]}, {"required": ["documents"]}],
        },
    )
    prediction_schemas = (
        {
            "description": "The texts, the best first; for rerank. Their number is corpus_id in the pipeline format.",
            **array(
                {
                    **closed(["score"], index=INTEGER, corpus_id=INTEGER, score=NUMBER, text=STRING),
                    "oneOf": [{"required": ["index"]}, {"required": ["corpus_id"]}],
                }
            ),
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self._template = settings.reranker.template
        self._sigmoid = has_sigmoid(settings.cross_encoder.activation_fn, settings.model_config)
        self._read_outputs(settings)

    def _read_outputs(self, settings: TaskSettings) -> None:
        """Sets ``outputs``. Raises LoadError for a model that doesn't fit."""
        # A head of sentence-transformers' modules leaves no labels in config.json.
        count = 1 if settings.cross_encoder.inside else len(read_labels(settings.model_config))
        if count != 1:
            raise LoadError(
                f"rerank needs a model that gives one score per pair, and config.json (id2label, num_labels; 2 if it "
                f"has neither) has {count} labels; a classifier is served with --task=sequence_classification"
            )
        self.outputs = (replace(text_logits(count), other_names=("scores",)),)

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        return {"query": "Where is it?", "texts": [text, text[: len(text) // 2 + 1]]}

    def tei_type(self) -> dict[str, Json]:
        return {"reranker": tei_labels((score_label(self.settings.model_config),))}

    def options(self, parameters: Mapping[str, Json]) -> RerankOptions:
        (request, present), files = self.read(RerankParameters, parameters), self.settings.cross_encoder
        prompt = read_prompt(request.prompt, request.prompt_name, files.prompts, files.default_prompt_name)
        overflow, most = read_overflow(request, self.settings.on_overflow), request.max_chunks_per_doc
        pairs = self._pairs(request, overflow)
        return RerankOptions(
            output_format=request.output_format,
            top_n=request.top_n,
            return_documents=request.return_documents,
            raw_scores=request.raw_scores,
            prompt=prompt,
            overflow=overflow,
            tokenization=read_windows(request, present, self.settings, overflow, pairs, most=most),
            window_score=request.window_score,
            instruction=self._instruction(request, present, prompt),
            query_tokens=request.max_tokens_per_query,
        )

    def _pairs(self, request: RerankParameters, overflow: Overflow) -> Tokenization:
        """Reads the tokenization of pairs. With a template the first text is more than the query, and is never cut."""
        pairs = pair_tokenization(request, overflow)
        if self._template is None:
            return pairs
        return replace(pairs, only_second=True, max_each=(NO_MAXIMUM, *pairs.max_each[1:]) if pairs.max_each else ())

    def _instruction(self, request: RerankParameters, present: Set[str], prompt: str) -> str | None:
        """Reads ``instruction``. In a model with a template, prompts are instructions, as in sentence-transformers 6.

        Raises InvalidInput for a model without instructions, or an instruction and a prompt.
        """
        instruction, template = request.instruction, self._template
        names = [name for name in ("instruction", "prompt", "prompt_name") if name in present]
        if instruction is not None and len(names) > 1:
            raise InvalidInput(("parameters", "instruction"), f"instruction or {names[1]}", "both")
        if instruction is not None and len(instruction) > MAX_PROMPT_LENGTH:
            expected = f"at most {MAX_PROMPT_LENGTH} characters"
            raise TooLarge(("parameters", "instruction"), expected, str(len(instruction)))
        if template is not None and template.instructed is not None:
            return instruction or prompt or None
        if names and (template is not None or instruction is not None):
            hint = "prompt puts a text before the query" if template is None else ""
            raise InvalidInput(("parameters", names[0]), "no value for a model without instructions", hint=hint)
        return None

    def item(self, instance: Json, path: Path, options: RerankOptions) -> RerankItem:
        if not isinstance(instance, dict) or instance.keys() not in ({"query", "texts"}, {"query", "documents"}):
            expected = '{"query": string, "texts": list of strings}'
            raise InvalidInput(path, expected, describe(instance), '"documents" is another name for "texts"')
        query = instance["query"]
        if not isinstance(query, str):
            raise InvalidInput((*path, "query"), "a string", describe(query))
        name = "texts" if "texts" in instance else "documents"
        texts = instance[name]
        if texts == []:
            raise EmptyList((*path, name), "a list of strings")
        if not isinstance(texts, list):
            raise InvalidInput((*path, name), "a list of strings", describe(texts))
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidInput((*path, name, index), "a string", describe(text))
        return RerankItem(query, tuple(texts))

    def expansion(self, item: RerankItem, options: RerankOptions) -> Expansion:
        return Expansion(len(item.texts), len(item.query) * len(item.texts) + sum(map(len, item.texts)))

    def texts(self, item: RerankItem, options: RerankOptions) -> Sequence[TextInput]:
        # The first text is made once: a copy for each pair may take a gigabyte.
        if self._template is None:
            query = PromptText.around(options.prompt, item.query) if options.prompt else item.query
            return [(query, text) for text in item.texts]
        return self._template.pairs(item.query, item.texts, options.instruction, options.query_tokens)

    def text_path(self, path: Path, index: int) -> Path:
        return (*path, "texts", index)

    def answer_size(self, encoding: Encoding, options: RerankOptions) -> int:
        return 2 + len(encoding) * options.return_documents

    def value_bytes(self, options: RerankOptions, *, tensors: bool) -> int:
        return RANK_BYTES // 2 * (2 if tensors else 1)

    def repeats_texts(self, options: RerankOptions) -> bool:
        return options.return_documents

    def decode(self, item: RerankItem, encoding: Encoding, outputs: Outputs, options: RerankOptions) -> float:
        require_numbers(outputs["logits"])
        return float(outputs["logits"][0])

    def answer(self, item: RerankItem, parts: Sequence[Sequence[float]], options: RerankOptions) -> Json:
        combine = max if options.window_score == "max" else fmean
        logits = np.array([windows[0] if len(windows) == 1 else combine(windows) for windows in parts], np.float32)
        return self.ranked(item, sigmoid(logits) if self._sigmoid and not options.raw_scores else logits, options)

    @staticmethod
    def ranked(item: RerankItem, scores: Array, options: RerankOptions) -> Json:
        """The answer for scores [texts]."""
        best = np.argsort(-scores, kind="stable")[: options.top_n].tolist()
        index_name = "index" if options.output_format == "kserve" else "corpus_id"
        answers: list[Json] = [{index_name: index, "score": float(scores[index])} for index in best]
        if options.return_documents:
            for answer, index in zip(answers, best, strict=True):
                answer["text"] = item.texts[index]
        return answers


def pair_tokenization(request: RerankParameters, overflow: Overflow) -> Tokenization:
    """The tokenization of a query and a text: windows and ``truncate_document`` cut only the text."""
    base = ONLY_TEXT if request.truncate_document or overflow == "window" else PLAIN
    most = tuple(
        NO_MAXIMUM if one is None else one for one in (request.max_tokens_per_query, request.max_tokens_per_doc)
    )
    return replace(base, max_each=most) if min(most) < NO_MAXIMUM else base


def has_sigmoid(activation_fn: str | None, model_config: Mapping[str, Json]) -> bool:
    """Whether the model's activation function is torch's Sigmoid, the default, and not Identity.

    Args:
        activation_fn: the value in config_sentence_transformers.json, if any; takes precedence.
        model_config: the content of config.json, where sentence-transformers before 6 saves the function.

    Raises:
        LoadError: the model has another activation function.
    """
    section = model_config.get("sentence_transformers")
    older = section.get("activation_fn") if isinstance(section, dict) else None
    name = activation_fn or older or model_config.get("sbert_ce_default_activation_function")
    if name is None:
        return True
    package, _, function = str(name).rpartition(".")
    if package.partition(".")[0] == "torch" and function in ("Sigmoid", "Identity"):
        return function == "Sigmoid"
    raise LoadError(
        f"the model names the activation function {str(name)[:100]!r}; "
        "rerank supports torch.nn.Sigmoid and torch.nn.Identity"
    )
