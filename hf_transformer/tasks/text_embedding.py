"""text_embedding: a vector per text, equal to the result of sentence-transformers for the same model folder.

Representations (representations.py) adds sparse vectors and vectors of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Literal, TypeAlias

import numpy as np

from hf_transformer.errors import ContextLengthExceeded, EmptyList, InvalidInput, Path, describe
from hf_transformer.tasks.base import (
    TOKENS,
    Axis,
    Expansion,
    OutputRole,
    Outputs,
    Overflow,
    SentenceTransformers,
    Task,
    TaskSettings,
    read_text,
)
from hf_transformer.tasks.declaration import (
    FULL_STRING,
    NUMBER,
    OPTIONAL_STRING,
    STRING,
    TEXT_SCHEMA,
    Demo,
    Example,
    Schema,
    array,
    closed,
)
from hf_transformer.tasks.late_chunking import FORMS, SpannedItem, check_pooling, read_spanned
from hf_transformer.tasks.long_texts import from_beginning, read_overflow, read_windows
from hf_transformer.tasks.multi_vector import DOCUMENT
from hf_transformer.tasks.options import (
    Format,
    MaxTokens,
    Prompt,
    PromptName,
    Stride,
    TaskParameters,
    Truncation,
    TruncationSide,
    read_prompt,
    read_strings,
)
from hf_transformer.tasks.pooling import (
    DEFAULT_HIDDEN_SIZE,
    ENCODER,
    hidden_axis,
    hidden_size,
    pool,
    require_finite_vectors,
    span_means,
    unit,
)
from hf_transformer.tasks.purposes import typed_prompt
from hf_transformer.tasks.quantization import BITS, BYTES, DATATYPES, quantize
from hf_transformer.tasks.sparse import Weights
from hf_transformer.tasks.tensors import FREE, json_tensor
from hf_transformer.tasks.tensors import OUTPUT as PREDICTIONS
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import (
    PLAIN,
    Encoding,
    PromptText,
    SpannedEncoding,
    TextInput,
    TokenIds,
    Tokenization,
)

NUMBERS_PER_VALUE = 4
"""Numbers of an embedding per value of --max_answer_values, since arrays are faster to write: 0.06 s per 1,000,000
numbers, compared with 0.4 s for objects. OpenAI's maximum of 2,048 inputs then allows up to 1,953 dimensions."""
NUMBER_BYTES = 26
"""Bytes of a number of an embedding: 12 in arrays and tensors, 14 in JSON."""
DENSE, SPARSE, MULTI_VECTOR = "dense", "sparse", "multi_vector"
"""The values of the parameter ``representations``."""
TOKEN_EMBEDDINGS = "token_embeddings"  # noqa: S105  # not a credential
"""A further value, as in sentence-transformers: the vectors that pooling reads, for models with dense vectors alone."""
REPRESENTATION: Schema = {"type": "string", "enum": [DENSE, SPARSE, MULTI_VECTOR, TOKEN_EMBEDDINGS]}
INDEX = {"type": "integer", "minimum": 0}
DENSE_SCHEMA = {"description": "A vector.", **array(NUMBER)}
VECTORS_SCHEMA = {"description": "A vector per token; for text_embedding.", **array(DENSE_SCHEMA)}
SPARSE_SCHEMA = {
    "description": "Weights of tokens of the vocabulary; for text_embedding.",
    **closed(
        ["indices", "values"],
        indices={"description": "Ids of tokens in ascending order.", **array(INDEX)},
        values=array(NUMBER),
    ),
}
INSTANCE_SCHEMAS: tuple[Schema, ...] = (
    TEXT_SCHEMA,
    {
        "description": "Token ids, with the special ones; for text_embedding.",
        **closed(["token_ids"], token_ids=array(INDEX, minItems=1)),
    },
    {
        "description": "A text in parts, or with spans in characters, for a vector of each (late chunking).",
        "anyOf": [
            closed(["chunks"], chunks=array(FULL_STRING, minItems=1)),
            closed(["text", "spans"], text=STRING, spans=array(array(INDEX, minItems=2, maxItems=2), minItems=1)),
        ],
    },
)
PREDICTION_SCHEMAS: tuple[Schema, ...] = (
    {**DENSE_SCHEMA, "minItems": 1, "description": "A vector; for text_embedding."},
    VECTORS_SCHEMA,
    SPARSE_SCHEMA,
    {
        "description": "The wanted representations; for text_embedding with representations.",
        **closed(
            dense=DENSE_SCHEMA, sparse=SPARSE_SCHEMA, multi_vector=VECTORS_SCHEMA, token_embeddings=VECTORS_SCHEMA
        ),
        "minProperties": 1,
    },
)
INFO_SCHEMAS: Mapping[str, Schema] = {
    "pooling": {**array(STRING), "description": "For text_embedding; empty without dense vectors."},
    "prompts": {"type": "object", "additionalProperties": STRING, "description": "For text_embedding."},
    "default_prompt_name": {**OPTIONAL_STRING, "description": "For text_embedding."},
}
PROMPTS = ("prompt", "prompt_name")
OUTPUT = "sentence_embedding"
CAT = "The cat sleeps on the sofa."
TEI_POOLING = {"cls": "cls", "mean": "mean", "lasttoken": "last_token"}
"""Names of text-embeddings-inference by pooling mode."""
KSERVE = SentenceTransformers(pooling=("mean",), normalize=True)
"""KServe's settings, for a model folder without sentence-transformers files."""


class Scale(Enum):
    """A value of ``normalize`` that an API sets and no client can send."""

    DENSE = "dense vectors have a length of 1 at every size, other representations that of the model's files"


Normalize: TypeAlias = Annotated[
    bool | None,
    about("Whether vectors have the length 1; V1 and V2 follow the model folder, and /v1/embeddings has this length."),
]
Dimensions: TypeAlias = Annotated[Positive | None, about("Leading components of a vector that are given.")]
WantedRepresentations: TypeAlias = Annotated[
    Json,
    about(
        "The representations in the answer, which is then an object; the default one, bare, if not given.",
        schema={"anyOf": [REPRESENTATION, array(REPRESENTATION, minItems=1), {"type": "null"}]},
    ),
]


class TextEmbeddingParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    normalize: Normalize = None
    dimensions: Dimensions = None
    prompt_name: PromptName = None
    prompt: Prompt = None
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    stride: Stride = None
    representations: WantedRepresentations = None
    precision: Annotated[
        Literal["float32", "int8", "uint8", "binary", "ubinary"],
        about("Numbers of a vector: floats, bytes, or bits in bytes."),
    ] = "float32"
    binary_zero: Annotated[bool, about("Whether a bit is set for 0; with binary or ubinary.")] = False
    input_type: Annotated[
        Literal["query", "document"] | None, about("Chooses the model's prompt, and the form of late interaction.")
    ] = None


@dataclass(frozen=True, slots=True)
class TextEmbeddingOptions:
    """The effect of a request's parameters.

    Attributes:
        prompt_from: the parameter that sets the prompt; None for the model's default.
        skips: the number of leading tokens to omit from pooling, in the first window and, if different, in the others.
        normalize: whether to normalize dense vectors before or after truncation to ``dimensions``.
        exact: whether vectors with fewer than ``dimensions`` components are an error.
        representations: the wanted ones of DENSE, SPARSE and MULTI_VECTOR.
        named: whether the answer is an object by representation; else it is the only representation itself.
        precision, binary_zero: see quantize.
        input_type: "query", "document", or "" if the request and the model say nothing.
        scale: the request's ``normalize`` for sparse vectors and vectors of tokens; None if the files decide.
    """

    prompt: str
    prompt_from: str | None
    skips: tuple[int, ...]
    normalize: Literal["before", "after", "no"]
    dimensions: int | None
    exact: bool
    overflow: Overflow
    tokenization: Tokenization
    representations: tuple[str, ...] = (DENSE,)
    named: bool = False
    precision: str = "float32"
    binary_zero: bool = False
    input_type: str = ""
    scale: bool | None = None


@dataclass(frozen=True, slots=True)
class PooledWindow:
    """A window's number of tokens, and its representations.

    Attributes:
        vectors: a dense vector, float32 [D], per element of ``skips``; empty without a dense representation.
        sparse: the sparse vector.
        token_vectors: vectors of tokens, float32 [kept, d].
        spans: the mean of each span's tokens in this window by the number of the span, for late chunking.
    """

    vectors: tuple[Array, ...]
    tokens: int
    sparse: Weights | None = None
    token_vectors: Array | None = None
    spans: Mapping[int, PooledWindow] = field(default_factory=dict)


Text = str | TokenIds | SpannedItem


def read_token_ids(ids: Json, path: Path, vocab_size: int) -> TokenIds:
    """Parses a list of token ids. Raises InvalidInput for any other form, or ids outside the vocabulary."""
    if ids == []:
        raise EmptyList(path, "a list of token ids")
    if not isinstance(ids, list):
        raise InvalidInput(path, "a list of token ids", describe(ids))
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocab_size:
        for index, number in enumerate(ids):
            if type(number) is not int or not 0 <= number < vocab_size:
                got = number if type(number) is int else describe(number)
                raise InvalidInput(path, f"token ids from 0 to {vocab_size - 1}", f"{got} at index {index}")
    return TokenIds(tuple(ids))


class TextEmbedding(Task[Text, TextEmbeddingOptions, PooledWindow]):
    """Reads token vectors [tokens, hidden] and pools them, or reads a pooled vector [D].

    In both formats, the answer is the vector, a float32 array [D].
    """

    name = "text_embedding"
    operation = "embeddings"
    has_windows = True
    reads_sentence_transformers = True
    options_type = TextEmbeddingParameters
    purpose = "Turns texts into vectors to compare"
    examples = (
        Example(
            "embeddings",
            {
                "instances": [
                    CAT,
                    "A cat is asleep on the couch.",
                    "The team won the match.",
                    {"text": "Our team was victorious in the match."},
                ]
            },
        ),
        Example(
            "short embeddings, with a prompt",
            {"instances": [CAT], "parameters": {"prompt": "query: ", "dimensions": 4}},
            "dimensions",
        ),
    )
    demo = Demo("minibert_mean", CAT)
    export_head = ENCODER
    instance_schemas = INSTANCE_SCHEMAS
    prediction_schemas = PREDICTION_SCHEMAS
    info_schemas = INFO_SCHEMAS
    available: tuple[str, ...] = (DENSE,)
    """The representations of the model, the default first."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self._files = settings.sentence_transformers or KSERVE
        inside = self._files.inside
        # pooler_output is absent: it is part of BERT's classification head, without training for similarity.
        names = ("sentence_embeddings", "text_embeds", "dense_vecs", "last_hidden_state", "token_embeddings")
        pooled = (Axis(name=f"embedding after {inside}" if inside else "embedding"),)
        by_token = (TOKENS, hidden_axis(settings.model_config))
        role = OutputRole(OUTPUT, pooled, names) if inside else OutputRole(OUTPUT, by_token, names, (pooled,))
        self.outputs = (role,)
        width = hidden_size(settings.model_config)
        self._size = width * max(len(self._files.pooling), 1) if width else DEFAULT_HIDDEN_SIZE
        self._known_size = width is not None and not inside

    def info(self) -> dict[str, Json]:
        files = self.settings.sentence_transformers or SentenceTransformers()
        prompts = {"prompts": files.prompts, "default_prompt_name": files.default_prompt_name}
        return {"pooling": self._pooling(files), **prompts}

    def tei_type(self) -> dict[str, Json]:
        files = self.settings.sentence_transformers or SentenceTransformers()
        if files.sparse is not None:
            return {"embedding": {"pooling": "splade"}}
        pooling = self._pooling(files)
        known = len(pooling) == 1 and pooling[0] in TEI_POOLING
        return {"embedding": {"pooling": TEI_POOLING[pooling[0]]} if known else {}}

    @staticmethod
    def _pooling(files: SentenceTransformers) -> tuple[str, ...]:
        """The modes of 1_Pooling; sparse vectors and vectors of tokens are not pooled, whatever the files have."""
        return () if files.sparse or files.late_interaction else files.pooling

    def options(self, parameters: Mapping[str, Json]) -> TextEmbeddingOptions:
        files, scale = self._files, parameters.get("normalize")
        if isinstance(scale, Scale):
            parameters = {**parameters, "normalize": None}
        request, present = self.read(TextEmbeddingParameters, parameters)
        scale = scale if isinstance(scale, Scale) else request.normalize
        dimensions = files.truncate_dim if request.dimensions is None else request.dimensions
        overflow = read_overflow(request, self.settings.on_overflow)
        tokenization = read_windows(request, present, self.settings, overflow, PLAIN, fit_stride=False)
        prompt_from = next((name for name in ("input_type", "prompt", "prompt_name") if name in present), None)
        if request.input_type is not None and (other := next((name for name in PROMPTS if name in present), None)):
            expected = f"input_type or {other}"
            raise InvalidInput(("parameters", "input_type"), expected, "both", "each chooses the prompt")
        input_type = request.input_type or (DOCUMENT if files.late_interaction else "")
        if input_type and prompt_from in (None, "input_type"):
            prompt = typed_prompt(files.prompts, input_type)
        else:
            prompt = read_prompt(request.prompt, request.prompt_name, files.prompts, files.default_prompt_name)
        skip = self._prompt_tokens(prompt) if prompt and not files.include_prompt else 0
        wanted, named = self._read_representations(request.representations)
        self._check_precision(request, present, wanted, scale)
        return TextEmbeddingOptions(
            prompt,
            prompt_from if prompt else None,
            (skip, 0) if skip and overflow == "window" else (skip,),
            "after" if request.precision in BYTES else self._when_to_normalize(scale),
            dimensions,
            request.dimensions is not None,
            overflow,
            tokenization,
            wanted,
            named,
            request.precision,
            request.binary_zero,
            input_type,
            None if scale is Scale.DENSE else scale,
        )

    def _read_representations(self, value: Json) -> tuple[tuple[str, ...], bool]:
        """Reads ``representations``: the wanted ones, and whether the request names them."""
        names = read_strings("representations", value)
        if names is None:
            return self.available[:1], False
        known = (DENSE, TOKEN_EMBEDDINGS) if self.available == (DENSE,) else self.available
        for name in names:
            if name not in known:
                expected = f"one of {', '.join(known)}, which the model has"
                raise InvalidInput(("parameters", "representations"), expected, repr(name[:40]))
        return tuple(dict.fromkeys(names)), True

    @staticmethod
    def _check_precision(
        request: TextEmbeddingParameters, present: Set[str], wanted: Sequence[str], scale: bool | Scale | None
    ) -> None:
        """Raises InvalidInput for parameters without effect on the wanted representations or the precision."""
        precision = request.precision
        if wanted in ((SPARSE,), (TOKEN_EMBEDDINGS,)):
            for name in ("dimensions", "precision"):
                if name in present and (name == "dimensions" or precision != "float32"):
                    alone = "sparse vectors" if wanted == (SPARSE,) else TOKEN_EMBEDDINGS
                    raise InvalidInput(("parameters", name), f"no value for {alone} alone")
        if "binary_zero" in present and precision not in BITS:
            raise InvalidInput(("parameters", "binary_zero"), f"no value without a precision of {' or '.join(BITS)}")
        if precision in BYTES and scale is False:
            expected = f"true for the precision {precision}, which is a range of unit vectors' components"
            raise InvalidInput(("parameters", "normalize"), expected, "false")

    def _when_to_normalize(self, scale: bool | Scale | None) -> Literal["before", "after", "no"]:
        """By default the model folder decides: its Normalize module runs before truncate_dim."""
        if scale is not None:
            return "after" if scale else "no"
        if self.settings.sentence_transformers is None:
            return "after"
        return "before" if self._files.normalize else "no"

    def _prompt_tokens(self, prompt: str) -> int:
        """Counts a prompt's tokens without a special token at the end, as sentence-transformers does."""
        encodings = self.settings.vocabulary.encode((self._cased(prompt), ""))
        ids, empty = (encoding.ids for encoding in encodings)
        count = len(ids) - (bool(ids) and ids[-1:] == empty[-1:])
        longest = self.settings.max_length
        if count > longest - 2:
            expected = f"at most {longest - 2} tokens, to leave room for a text in the model's {longest}"
            raise InvalidInput(("parameters", "prompt"), expected, str(count))
        return count

    def prompted(self, text: str, options: TextEmbeddingOptions) -> str:
        """The text after its prompt, in the model's case."""
        return self._composed(self._cased(options.prompt + text), options)

    def _composed(self, text: str, options: TextEmbeddingOptions) -> str:
        """Keeps special tokens of the prompt, if those of users are letters."""
        if not options.prompt or self.settings.vocabulary.user_tokens != "all":
            return text
        return PromptText(text, ((len(self._cased(options.prompt)), len(text)),))

    def _cased(self, text: str) -> str:
        return text.lower() if self._files.lower_case else text

    def item(self, instance: Json, path: Path, options: TextEmbeddingOptions) -> Text:
        if not isinstance(instance, dict) or instance.keys() != {"token_ids"}:
            if isinstance(instance, dict) and instance.keys() in FORMS:
                return self._read_spanned(instance, path, options)
            return read_text(instance, path)
        ids = instance["token_ids"]
        if options.prompt_from is not None:
            expected = "no value for token ids, which the model gets unchanged"
            raise InvalidInput(("parameters", options.prompt_from), expected)
        longest = self.settings.max_length
        if isinstance(ids, list) and len(ids) > longest:
            hint = "they are not truncated, since that would cut off their special tokens"
            expected = f"at most {longest} token ids, the model's length"
            raise ContextLengthExceeded(path, expected, str(len(ids)), hint, limit=longest)
        return read_token_ids(ids, path, self.settings.vocabulary.vocab_size)

    def _read_spanned(self, instance: dict[str, Json], path: Path, options: TextEmbeddingOptions) -> SpannedItem:
        if self.available != (DENSE,) or options.representations != (DENSE,):
            raise InvalidInput(path, "a text without chunks or spans, since the model has no dense vectors alone")
        check_pooling(self._files.pooling, self._files.inside, path)
        return read_spanned(instance, path)

    def tokenization(self, options: TextEmbeddingOptions) -> Tokenization:
        return from_beginning(options.tokenization)

    def texts(self, item: Text, options: TextEmbeddingOptions) -> Sequence[TextInput]:
        if isinstance(item, str):
            return (self.prompted(item, options),)
        # No prompt is prepended to token ids, since they are the complete text.
        if isinstance(item, TokenIds):
            return (item,)
        spanned = item.with_prompt(options.prompt, self._cased)
        return (replace(spanned, text=self._composed(spanned.text, options)),)

    def expansion(self, item: Text, options: TextEmbeddingOptions) -> Expansion | None:
        if not isinstance(item, SpannedItem):
            return None
        return Expansion(1, values=len(item.spans) * self._size // NUMBERS_PER_VALUE)

    def answer_size(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        """Counts NUMBERS_PER_VALUE numbers as one value. A span's vector has all dimensions until the answer."""
        numbers = self._dimensions(options)
        if isinstance(encoding, SpannedEncoding):
            numbers = self._size * len(encoding.spans)
        if TOKEN_EMBEDDINGS in options.representations:
            numbers += len(encoding) * self._size
        return -(-numbers // NUMBERS_PER_VALUE)

    def value_bytes(self, options: TextEmbeddingOptions, *, tensors: bool) -> int:
        return NUMBERS_PER_VALUE * NUMBER_BYTES

    def decode_cost(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        """Includes all tokens, since even a few dimensions require complete pooling."""
        if isinstance(encoding, SpannedEncoding):  # 500 numbers of a sum or a mean per microsecond
            return (len(encoding) + len(encoding.spans)) * self._size // 125
        return max(self._dimensions(options), len(encoding))

    def _dimensions(self, options: TextEmbeddingOptions) -> int:
        return min(options.dimensions or self._size, self._size)

    def decode(self, item: Text, encoding: Encoding, outputs: Outputs, options: TextEmbeddingOptions) -> PooledWindow:
        rows = outputs[OUTPUT]
        skips = options.skips
        if not isinstance(item, str):
            if isinstance(encoding, SpannedEncoding):
                return PooledWindow((), len(encoding), spans=_pool_spans(rows, encoding.spans))
            skips = (0,) * len(skips)  # token ids have no prompt to skip
        if rows.ndim == 1:
            return PooledWindow((rows.astype(np.float32),) * len(skips), len(encoding))
        # At least one token remains, although a prompt with a text can have fewer tokens than the prompt alone.
        vectors = (pool(rows, self._files.pooling, min(skip, len(rows) - 1)) for skip in skips)
        tokens = np.array(rows, np.float32) if TOKEN_EMBEDDINGS in options.representations else None
        return PooledWindow(tuple(vectors), len(encoding), token_vectors=tokens)

    def answer(self, item: Text, parts: Sequence[Sequence[PooledWindow]], options: TextEmbeddingOptions) -> Json:
        if isinstance(item, SpannedItem):
            vector = np.stack([self._span(item, index, parts[0], options) for index in range(len(item.spans))])
        elif not options.named:
            return self.dense(parts[0], options)
        else:
            values = {DENSE: self.dense, TOKEN_EMBEDDINGS: self._token_embeddings}
            return {name: values[name](parts[0], options) for name in options.representations}
        return {DENSE: vector} if options.named else vector

    @staticmethod
    def _token_embeddings(windows: Sequence[PooledWindow], options: TextEmbeddingOptions) -> Array:
        """The vectors of all tokens in all windows, float32 [tokens, hidden], special tokens included."""
        parts = [window.token_vectors for window in windows if window.token_vectors is not None]
        if not parts:
            expected = f"{DENSE}, since the model's output has a vector per text"
            raise InvalidInput(("parameters", "representations"), expected, repr(TOKEN_EMBEDDINGS))
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        require_finite_vectors(vectors)
        return vectors

    def _span(
        self, item: SpannedItem, index: int, windows: Sequence[PooledWindow], options: TextEmbeddingOptions
    ) -> Array:
        """The vector of a span from all windows: means, weighted by numbers of tokens, are the mean of all tokens."""
        parts = [window.spans[index] for window in windows if index in window.spans]
        if not parts:
            raise item.missing(index)
        if not parts[0].vectors:
            raise InvalidInput(item.path, "no value for a model whose output has a vector per text")
        return self.dense(parts, options)

    def dense(self, windows: Sequence[PooledWindow], options: TextEmbeddingOptions) -> Array:
        """The dense vector of a text, float32 [D] or quantized."""
        first, *following = windows
        vector = first.vectors[0]
        if following:
            vectors = np.stack([vector, *(part.vectors[-1] for part in following)])
            # The weights are numbers of tokens, so a short last window has little effect.
            weights = np.array([part.tokens for part in windows], np.float32)
            vector = (vectors * weights[:, np.newaxis]).sum(axis=0) / weights.sum()
        require_finite_vectors(vector)
        self.check_dimensions(len(vector), options)
        if options.normalize == "before":
            vector = unit(vector)
        vector = vector[: options.dimensions]
        if options.normalize == "after":
            vector = unit(vector)
        if options.precision == "float32":
            return vector
        return quantize(vector, options.precision, zero=options.binary_zero)

    @staticmethod
    def check_dimensions(size: int, options: TextEmbeddingOptions) -> None:
        """Raises InvalidInput if the request's ``dimensions`` exceed the vectors' ``size``."""
        if options.exact and options.dimensions is not None and options.dimensions > size:
            expected = f"at most {size}, the size of the model's vectors"
            raise InvalidInput(("parameters", "dimensions"), expected, str(options.dimensions))

    def tensor(self, predictions: Sequence[Json], options: TextEmbeddingOptions) -> Tensor:
        """FP32, INT8 or UINT8 [instances, dimensions]; BYTES [instances] of JSON for named representations."""
        if options.named:
            return json_tensor(predictions)
        return Tensor(PREDICTIONS, DATATYPES[options.precision], np.stack(predictions))

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        size = min(self._files.truncate_dim or self._size, self._size) if self._known_size else FREE
        return (TensorSpec(PREDICTIONS, "FP32", (FREE, size)),)


def _pool_spans(rows: Array, spans: Mapping[int, range]) -> dict[int, PooledWindow]:
    """The mean of each span's token vectors, by the number of the span. Without vectors for a pooled output."""
    if rows.ndim == 1:
        return {index: PooledWindow((), len(span)) for index, span in spans.items()}
    means = span_means(rows, [*spans.values()])
    return {index: PooledWindow((mean,), len(span)) for (index, span), mean in zip(spans.items(), means, strict=True)}
