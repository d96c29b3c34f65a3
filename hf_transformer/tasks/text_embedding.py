"""text_embedding: one vector per text, as sentence-transformers makes it from the same model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.tasks.base import (
    TOKENS,
    Axis,
    OutputRole,
    Overflow,
    SentenceTransformers,
    Task,
    TaskSettings,
    read_text,
)
from hf_transformer.tasks.parameters import Parameters, read_prompt
from hf_transformer.tasks.pooling import USUAL_SIZE, hidden_axis, hidden_size, pool, require_finite_vectors, unit
from hf_transformer.tasks.tensors import FREE
from hf_transformer.tasks.tensors import OUTPUT as PREDICTIONS
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, TokenIds, Tokenization

NUMBERS_PER_VALUE = 4
"""Numbers of an embedding per value of --max_answer_values."""
PARAMETERS = ("output_format", "normalize", "dimensions", "prompt_name", "prompt", "truncation", "stride")
OUTPUT = "sentence_embedding"
KSERVE = SentenceTransformers(pooling=("mean",), normalize=True)
"""As in KServe's runtime, for a folder without files of sentence-transformers."""


@dataclass(frozen=True, slots=True)
class TextEmbeddingOptions:
    """One request's choices.

    Attributes:
        prompt_from: the parameter that names the prompt, None for the model's own.
        skips: leading tokens that pooling leaves out, of a text's first window and, where it differs, of the others.
        normalize: whether it happens before or after the cut to ``dimensions``.
        exact: refuses vectors with fewer dimensions.
    """

    prompt: str
    prompt_from: str | None
    skips: tuple[int, ...]
    normalize: Literal["before", "after", "no"]
    dimensions: int | None
    exact: bool
    overflow: Overflow
    stride: int


@dataclass(frozen=True, slots=True)
class PooledWindow:
    """A window's vectors, float32 [D], one per element of ``skips``, and its number of tokens."""

    vectors: tuple[Array, ...]
    tokens: int


Text = str | TokenIds


def read_token_ids(given: Json, where: str, vocab_size: int) -> TokenIds:
    """A text in tokens.

    Raises:
        InvalidInput: not a list of ids that the tokenizer has.
    """
    if not isinstance(given, list) or not given:
        found = "an empty list" if given == [] else describe(given)
        raise InvalidInput.of(f"{where}: expected a list of token ids, got {found}")
    if set(map(type, given)) == {int} and min(given) >= 0 and max(given) < vocab_size:
        return TokenIds(tuple(given))
    for index, number in enumerate(given):
        if type(number) is not int:
            raise InvalidInput.of(f"{where}: token {index} is {describe(number)}, expected a whole number")
        if not 0 <= number < vocab_size:
            raise InvalidInput.of(f"{where}: token {index} is {number}, expected 0 to {vocab_size - 1}")
    return TokenIds(tuple(given))


class TextEmbedding(Task[Text, TextEmbeddingOptions, PooledWindow]):
    """Reads token vectors [tokens, hidden] and pools them, or takes a pooled vector [D] as it is.

    The answer per instance, in both formats, is the vector: a list of D floats (a float32 array).
    """

    name = "text_embedding"
    other_names = ("sentence_similarity", "sentence_embedding", "embedding")
    has_windows = True
    reads_sentence_transformers = True
    parameters = PARAMETERS

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self._files = settings.sentence_transformers or KSERVE
        inside = self._files.inside
        # Without pooler_output, which is BERT's classification head and not trained for similarity.
        names = ("sentence_embeddings", "text_embeds", "last_hidden_state", "token_embeddings")
        pooled = (Axis(name=f"embedding after {inside}" if inside else "embedding"),)
        by_token = (TOKENS, hidden_axis(settings.model_config))
        role = OutputRole(OUTPUT, pooled, names) if inside else OutputRole(OUTPUT, by_token, names, (pooled,))
        self.outputs = (role,)
        width = hidden_size(settings.model_config)
        self._size = width * max(len(self._files.pooling), 1) if width else USUAL_SIZE
        self._known_size = width is not None and not inside

    def options(self, parameters: Mapping[str, Json]) -> TextEmbeddingOptions:
        given = Parameters(parameters, self.parameters)
        given.choice("output_format", self.settings.output_format, ("kserve", "pipeline"))
        files = self._files
        exact = "dimensions" in given
        dimensions = given.integer("dimensions", 1, 1) if exact else files.truncate_dim
        overflow = self._read_overflow(given)
        prompt = read_prompt(given, files.prompts, files.default_prompt_name)
        stride = self.settings.max_length // 4 if self.settings.stride is None else self.settings.stride
        skip = self._prompt_tokens(prompt) if prompt and not files.include_prompt else 0
        return TextEmbeddingOptions(
            prompt,
            next((name for name in ("prompt", "prompt_name") if prompt and name in given), None),
            (skip, 0) if skip and overflow == "window" else (skip,),
            self._read_normalize(given),
            dimensions,
            exact,
            overflow,
            given.integer("stride", stride, 0),
        )

    def _read_normalize(self, given: Parameters) -> Literal["before", "after", "no"]:
        """By the parameter, else by the model folder, where the module comes before truncate_dim."""
        if "normalize" in given:
            return "after" if given.flag("normalize", True) else "no"
        if self.settings.sentence_transformers is None:
            return "after"
        return "before" if self._files.normalize else "no"

    def _read_overflow(self, given: Parameters) -> Overflow:
        overflow = self.settings.on_overflow
        if "truncation" in given:
            overflow = "truncate" if given.flag("truncation", True) else "error"
        if "stride" in given and overflow != "window":
            raise InvalidInput.of(
                "parameters.stride: only windows have it; start the service with --on_overflow=window "
                "and leave truncation out"
            )
        return overflow

    def _prompt_tokens(self, prompt: str) -> int:
        """The tokens of a prompt by itself, without a special one at its end, as sentence-transformers counts them."""
        ids, empty = (one.ids for one in self.settings.vocabulary.encode((self._cased(prompt), "")))
        count = len(ids) - (bool(ids) and ids[-1:] == empty[-1:])
        limit = self.settings.max_length
        if count >= limit - 1:
            raise InvalidInput.of(
                f"parameters.prompt: leaves no room for text in the {limit} tokens that the model takes"
            )
        return count

    def _cased(self, text: str) -> str:
        return text.lower() if self._files.lower_case else text

    def item(self, instance: Json, where: str, options: TextEmbeddingOptions) -> Text:
        if isinstance(instance, dict) and instance.keys() == {"token_ids"}:
            return self._read_token_ids(instance["token_ids"], where, options)
        return read_text(instance, where)

    def _read_token_ids(self, given: Json, where: str, options: TextEmbeddingOptions) -> TokenIds:
        if options.prompt_from is not None:
            raise InvalidInput.of(
                f"parameters.{options.prompt_from}: can't be put in front of token ids, which are used as they are"
            )
        longest = self.settings.max_length
        if isinstance(given, list) and len(given) > longest:
            raise TooLarge.of(
                f"{where}: {len(given)} token ids, at most {longest} are taken; they are not cut, since their special "
                "tokens would be lost"
            )
        return read_token_ids(given, where, self.settings.vocabulary.vocab_size)

    def texts(self, item: Text, options: TextEmbeddingOptions) -> Sequence[TextInput]:
        # Token ids are the whole text, so no prompt goes in front of them.
        return (item if isinstance(item, TokenIds) else self._cased(options.prompt + item),)

    def tokenization(self, options: TextEmbeddingOptions) -> Tokenization:
        return Tokenization(windows=True, stride=options.stride) if options.overflow == "window" else PLAIN

    def answer_size(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        """Four numbers of an array count as one value: 1,000,000 of them are written in 0.06 s, those of objects are
        made and written in 0.4 s. OpenAI's 2,048 inputs then fit into an answer up to 1,953 dimensions."""
        return -(-self._dimensions(options) // NUMBERS_PER_VALUE)

    def decode_cost(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        """All tokens are pooled, even for few components of the vector."""
        return max(self._dimensions(options), len(encoding))

    def _dimensions(self, options: TextEmbeddingOptions) -> int:
        return min(options.dimensions or self._size, self._size)

    def decode(
        self, item: Text, encoding: Encoding, outputs: Mapping[str, Array], options: TextEmbeddingOptions
    ) -> PooledWindow:
        rows = outputs[OUTPUT]
        # Token ids have no prompt that could be left out.
        skips = (0,) * len(options.skips) if isinstance(item, TokenIds) else options.skips
        if rows.ndim == 1:
            return PooledWindow((rows.astype(np.float32),) * len(skips), len(encoding))
        # One token is always left: prompt and text together can have fewer tokens than the prompt by itself.
        vectors = (pool(rows, self._files.pooling, min(skip, len(rows) - 1)) for skip in skips)
        return PooledWindow(tuple(vectors), len(encoding))

    def answer(self, item: Text, parts: Sequence[Sequence[PooledWindow]], options: TextEmbeddingOptions) -> Json:
        first, *others = parts[0]
        vector = first.vectors[0]
        if others:
            vectors = np.stack([vector, *(part.vectors[-1] for part in others)])
            # Windows are weighted by their tokens, so that a short rest counts for little.
            weights = np.array([part.tokens for part in parts[0]], np.float32)
            vector = (vectors * weights[:, np.newaxis]).sum(axis=0) / weights.sum()
        require_finite_vectors(vector)
        if options.exact and options.dimensions is not None and options.dimensions > len(vector):
            raise InvalidInput.of(
                f"parameters.dimensions: {options.dimensions}, but the model's vectors have {len(vector)}"
            )
        if options.normalize == "before":
            vector = unit(vector)
        vector = vector[: options.dimensions]
        return unit(vector) if options.normalize == "after" else vector

    def tensor(self, predictions: Sequence[Json], options: TextEmbeddingOptions) -> Tensor:
        """FP32 [instances, dimensions]."""
        return Tensor(PREDICTIONS, "FP32", np.stack(predictions))

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        size = min(self._files.truncate_dim or self._size, self._size) if self._known_size else FREE
        return (TensorSpec(PREDICTIONS, "FP32", (FREE, size)),)
