"""rerank with an embedding model: query and texts are encoded once each, and compared by their representations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hf_transformer.errors import InvalidInput, LoadError, Path
from hf_transformer.tasks.base import Expansion, Outputs, SentenceTransformers, TaskSettings
from hf_transformer.tasks.options import Format, MaxTokens, Stride, TaskParameters, Truncation, TruncationSide
from hf_transformer.tasks.representations import Representations, fit_outputs
from hf_transformer.tasks.rerank import (
    DocumentTokens,
    QueryTokens,
    RawScores,
    Rerank,
    RerankItem,
    RerankOptions,
    ReturnDocuments,
    TopN,
    TruncateDocument,
)
from hf_transformer.tasks.similarity import MAX_SIM, SIMILARITIES, SPARSE_SIMILARITIES, compare, cosine, sparse_dot
from hf_transformer.tasks.text_embedding import (
    NUMBERS_PER_VALUE,
    Dimensions,
    Normalize,
    TextEmbedding,
    TextEmbeddingOptions,
    WantedRepresentations,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import TensorSpec
from hf_transformer.types.tokenization import Encoding, TextInput, TunedText

OF_EMBEDDING = (
    *("dimensions", "normalize", "representations"),
    *("truncation", "truncation_side", "max_tokens", "stride"),
)
"""Parameters that text_embedding reads."""
COMPARED_VALUES = 16
"""Values of an embedding per value of --max_answer_values. The answer has only scores, but the vectors of all texts are
in memory until the last one is there: up to 256 MB with 1,000,000 values."""


class BiEncoderParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    top_n: TopN = None
    return_documents: ReturnDocuments = False
    raw_scores: RawScores = False
    truncate_document: TruncateDocument = True
    max_tokens_per_query: QueryTokens = None
    max_tokens_per_doc: DocumentTokens = None
    dimensions: Dimensions = None
    normalize: Normalize = None
    representations: WantedRepresentations = None
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    stride: Stride = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BiEncoderOptions(RerankOptions):
    """A request's parameters, with text_embedding's options for the query and for the texts."""

    query: TextEmbeddingOptions
    document: TextEmbeddingOptions


@dataclass(frozen=True, slots=True)
class RerankText:
    """The query or a text, alone. It may be cut to fewer tokens than the other side."""

    text: str
    is_query: bool


class BiEncoderRerank(Rerank):
    """Reads the outputs of text_embedding. Prompts and markers are those of queries and documents.

    A score is the similarity of both representations by the model's own function, by default the cosine of dense
    vectors, the dot product of sparse vectors, and MaxSim of vectors of tokens, in BGE-M3 divided by the query's number
    of vectors. The parameter raw_scores changes nothing, nor does truncate_document, since texts are cut each by
    itself. Options are BiEncoderOptions in all methods.

    Source: compute_colbert_score in FlagEmbedding/finetune/embedder/encoder_only/m3/modeling.py of FlagEmbedding 1.3.
    """

    reads_sentence_transformers = True
    special_tokens = 2  # each text is alone
    options_type = BiEncoderParameters

    def __init__(self, settings: TaskSettings, embedding: TextEmbedding | None = None) -> None:
        self._embedding = embedding or TextEmbedding(settings)
        self.hides_tokens = self._embedding.hides_tokens
        super().__init__(settings)

    def _read_outputs(self, settings: TaskSettings) -> None:
        self.outputs = self._embedding.outputs
        files = settings.sentence_transformers or SentenceTransformers()
        name, known = files.similarity, tuple(SPARSE_SIMILARITIES if files.sparse else SIMILARITIES)
        if name not in (*known, *MAX_SIM):
            raise LoadError(f"similarity_fn_name is {name[:60]!r}, expected one of {', '.join(known)}")
        self._dense = SIMILARITIES.get(name, cosine)
        self._sparse = SPARSE_SIMILARITIES.get(name, sparse_dot) if files.sparse else sparse_dot
        self._mean = name == "meanmaxsim" or files.late_interaction is None

    def fit(self, outputs: Sequence[TensorSpec]) -> BiEncoderRerank:
        """Returns the task for a model with these outputs. Raises ConfigError and LoadError as fit_outputs does."""
        embedding = fit_outputs(self._embedding, outputs)
        return self if not isinstance(embedding, TextEmbedding) else type(self)(self.settings, embedding)

    def with_max_length(self, length: int) -> BiEncoderRerank:
        """Returns the task for a model with a lower length in tokens."""
        embedding = self._embedding
        if not isinstance(embedding, Representations):
            return self
        return type(self)(self.settings, embedding.with_max_length(length))

    def options(self, parameters: Mapping[str, Json]) -> BiEncoderOptions:
        request, present = self.read(BiEncoderParameters, parameters)
        own = {name: parameters[name] for name in OF_EMBEDDING if name in present}
        query, document = (
            self._limited(self._embedding.options({**own, "input_type": kind}), most)
            for kind, most in (("query", request.max_tokens_per_query), ("document", request.max_tokens_per_doc))
        )
        if len(document.representations) > 1:
            got = ", ".join(document.representations)
            raise InvalidInput(("parameters", "representations"), "one representation to compare", got)
        return BiEncoderOptions(
            output_format=request.output_format,
            top_n=request.top_n,
            return_documents=request.return_documents,
            raw_scores=request.raw_scores,
            prompt="",
            overflow=document.overflow,
            tokenization=self._embedding.tokenization(document),
            window_score="max",
            query=query,
            document=document,
        )

    @staticmethod
    def _limited(options: TextEmbeddingOptions, most: int | None) -> TextEmbeddingOptions:
        """Adds the maximum of one side, which does not count special tokens."""
        if most is None:
            return options
        return replace(options, tokenization=replace(options.tokenization, max_each=(most,)))

    def expansion(self, item: RerankItem, options: Any) -> Expansion:
        return Expansion(1 + len(item.texts), len(item.query) + sum(map(len, item.texts)))

    def texts(self, item: RerankItem, options: Any) -> Sequence[TextInput]:
        query = self._embedding.prompted(item.query, options.query)
        own = self._embedding.tokenization(options.query)  # ColBERT's queries have a length of their own
        return [
            query if own == options.tokenization else TunedText(query, own),
            *(self._embedding.prompted(text, options.document) for text in item.texts),
        ]

    def of_text(self, item: RerankItem, index: int) -> RerankText:
        return RerankText(item.texts[index - 1], False) if index else RerankText(item.query, True)

    def text_path(self, path: Path, index: int) -> Path:
        return (*path, "texts", index - 1) if index else (*path, "query")

    def complete(self, item: Any, encoding: Encoding, options: Any) -> Encoding:
        return self._embedding.complete(item.text, encoding, _side(item, options))

    def answer_size(self, encoding: Encoding, options: Any) -> int:
        values = self._embedding.answer_size(encoding, options.document)
        return super().answer_size(encoding, options) + -(-values // COMPARED_VALUES)

    def value_bytes(self, options: Any, *, tensors: bool) -> int:
        return max(super().value_bytes(options, tensors=tensors), COMPARED_VALUES * NUMBERS_PER_VALUE * 4)

    def decode_cost(self, encoding: Encoding, options: Any) -> int:
        return self._embedding.decode_cost(encoding, options.document)

    def decode(self, item: Any, encoding: Encoding, outputs: Outputs, options: Any) -> Any:
        return self._embedding.decode(item.text, encoding, outputs, _side(item, options))

    def answer(self, item: RerankItem, parts: Sequence[Sequence[Any]], options: Any) -> Json:
        sides = (self.of_text(item, index) for index in range(len(parts)))
        query, *documents = (
            self._representation(side, windows, _side(side, options))
            for side, windows in zip(sides, parts, strict=True)
        )
        return self.ranked(item, compare(query, documents, self._dense, self._sparse, mean=self._mean), options)

    def _representation(self, side: RerankText, windows: Sequence[Any], options: TextEmbeddingOptions) -> Any:
        answer = self._embedding.answer(side.text, [windows], options)
        return answer[options.representations[0]] if options.named else answer


def _side(side: RerankText, options: BiEncoderOptions) -> TextEmbeddingOptions:
    return options.query if side.is_query else options.document
