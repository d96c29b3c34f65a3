"""text_embedding with sparse vectors and vectors of tokens, all from one pass of the model.

The model's output names say which representations it has, and its files how they are computed:

    dense         sentence_embedding [D], last_hidden_state [tokens, hidden], ...   as in text_embedding.py
    sparse        sparse_embedding [V]           pooled weights of the vocabulary
                  sparse_values, sparse_indices  the same without zeros, [N] each (hf-transformer export --reduce)
                  logits [tokens, V]             a masked language model's logits (SPLADE)
                  token_weights [tokens]         a weight per token of the text (BGE-M3's sparse_linear.pt)
    multi_vector  token_vectors [tokens, d]      projected vectors of all tokens (ColBERT, BGE-M3's colbert_linear.pt)
                  colbert_vecs [tokens - 1, d]   the same without the first token, as FlagEmbedding computes them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_transformer.tasks.base import TOKENS, Axis, OutputRole, Outputs, Task, TaskSettings
from hf_transformer.tasks.long_texts import from_beginning
from hf_transformer.tasks.multi_vector import DOCUMENT, QUERY, TokenVectors, unit_rows
from hf_transformer.tasks.pooling import DEFAULT_HIDDEN_SIZE, hidden_size, require_finite_vectors
from hf_transformer.tasks.quantization import BYTES, DATATYPES, quantize
from hf_transformer.tasks.reduced import NUMBERED, fit_reduced
from hf_transformer.tasks.sparse import SparsePooling, Weights, highest, lexical, merge, nonzero, splade, unit_weights
from hf_transformer.tasks.tensors import FREE, json_tensor
from hf_transformer.tasks.tensors import OUTPUT as PREDICTIONS
from hf_transformer.tasks.text_embedding import (
    DENSE,
    MULTI_VECTOR,
    NUMBERS_PER_VALUE,
    OUTPUT,
    SPARSE,
    PooledWindow,
    Text,
    TextEmbedding,
    TextEmbeddingOptions,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding, TokenIds, Tokenization

POOLED, WEIGHTS, VECTORS, SHIFTED = "sparse_embedding", "token_weights", "token_vectors", "colbert_vecs"
VALUES, INDICES = "sparse_values", "sparse_indices"
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    POOLED: ("sparse_embeddings", "logits"),
    WEIGHTS: ("sparse_weights", "sparse_vecs"),
    VECTORS: ("token_embeddings", "contextual", "last_hidden_state", OUTPUT),
    SHIFTED: (),
    VALUES: (),
}
ROLES: Mapping[str, str] = {
    **dict.fromkeys((POOLED, WEIGHTS, VALUES), SPARSE),
    **dict.fromkeys((VECTORS, SHIFTED), MULTI_VECTOR),
}
"""The representation of each role, the preferred role of a representation first."""
WEIGHTS_PER_TOKEN = 32
"""The estimated number of SPLADE's weights per token of the text, for limits."""
SPECIAL = ("cls_token", "eos_token", "pad_token", "unk_token")
"""The special tokens without a weight in BGE-M3."""
Answer = Mapping[str, Any]


class Representations(TextEmbedding):
    """Reads any of the outputs above. The answer is the default representation, the first of ``available``, or an
    object of those that the request names.

    Args:
        roles: the names of the roles that the model has, keys of ROLES or OUTPUT, at most one per representation.
        dense: the class of the task that reads dense vectors.
    """

    def __init__(
        self, settings: TaskSettings, roles: Sequence[str], dense: type[TextEmbedding] = TextEmbedding
    ) -> None:
        super().__init__(settings)
        self._given, self._roles = settings, tuple(roles)
        self._dense = dense(settings)
        config, files = settings.model_config, self._files
        size = config.get("vocab_size")
        self._vocabulary_size = size if isinstance(size, int) and size > 0 else None
        late = files.late_interaction
        self._sparse = files.sparse or SparsePooling()
        self._vector_size = (late.size if late else None) or hidden_size(config) or DEFAULT_HIDDEN_SIZE
        self._late = TokenVectors(late, settings.vocabulary, settings.max_length) if late else None
        if self._late and settings.stride is None:
            # A quarter of a document's length, which may be far below the model's.
            self.settings = replace(settings, stride=(self._late.room(DOCUMENT) or settings.max_length) // 4)
        self.hides_tokens = self._late is not None and self._late.hides_tokens
        self.available = tuple(DENSE if role == OUTPUT else ROLES[role] for role in roles)
        self.outputs = tuple(
            output for role in roles for output in (self._dense.outputs if role == OUTPUT else self._read_by(role))
        )
        self._dropped = _special_ids(settings)

    def with_max_length(self, length: int) -> Representations:
        """Returns the task for a model with a lower length in tokens."""
        return type(self)(replace(self._given, max_length=length), self._roles, type(self._dense))

    def _read_by(self, name: str) -> tuple[OutputRole, ...]:
        if name != VALUES:
            return (self._role(name),)
        axes = (Axis(name="weights", minimum=0),)
        return OutputRole(VALUES, axes), OutputRole(INDICES, axes, datatypes=("INT64", "INT32"))

    def _role(self, name: str) -> OutputRole:
        names = OTHER_NAMES[name]
        if name == POOLED:
            size = self._vocabulary_size
            why = "config.json says that the vocabulary has this size"
            vocabulary = Axis(name="vocabulary", minimum=size or 1, maximum=size, why=why if size else "")
            # The vector of a SparseAutoEncoder has another size than the vocabulary.
            axes = (Axis(name=f"weights after {self._sparse.inside}") if self._sparse.inside else vocabulary,)
            return OutputRole(name, axes, names, () if self._sparse.inside else ((TOKENS, vocabulary),))
        if name == WEIGHTS:
            return OutputRole(name, (TOKENS,), names, ((TOKENS, Axis(name="1", maximum=1)),))
        size = self._files.late_interaction.size if self._files.late_interaction else None
        why = "the files say that the projection has this size: export the model with its projection"
        vector = Axis(name="vector", minimum=size or 1, maximum=size, why=why if size else "")
        return OutputRole(name, (Axis(name="tokens - 1", minimum=0) if name == SHIFTED else TOKENS, vector), names)

    def tokenization(self, options: TextEmbeddingOptions) -> Tokenization:
        tokenization = options.tokenization
        room = self._late.room(options.input_type, tokenization.max_length) if self._late else None
        if room is not None:
            # A query is read once, since its length is fixed.
            windows = tokenization.windows and options.input_type != QUERY
            tokenization = replace(tokenization, max_length=room, windows=windows)
        return from_beginning(tokenization)

    def complete(self, item: Text, encoding: Encoding, options: TextEmbeddingOptions) -> Encoding:
        if self._late is None or isinstance(item, TokenIds) or not encoding.ids:
            return encoding
        return self._late.complete(encoding, options.input_type)

    def answer_size(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        wanted, size = options.representations, 0
        if DENSE in wanted:
            size += self._dimensions(options)
        if SPARSE in wanted:
            per_token = 1 if WEIGHTS in self._roles else WEIGHTS_PER_TOKEN
            size += 2 * per_token * len(encoding)
        if MULTI_VECTOR in wanted:
            size += len(encoding) * min(options.dimensions or self._vector_size, self._vector_size)
        return -(-size // NUMBERS_PER_VALUE)

    def decode_cost(self, encoding: Encoding, options: TextEmbeddingOptions) -> int:
        """Includes the pooling of logits: 160 numbers per microsecond for the maximum in FP16 (FP32 is faster), and 60
        for the sum."""
        cost = super().decode_cost(encoding, options)
        if SPARSE in options.representations and POOLED in self._roles:
            cost += len(encoding) * (self._vocabulary_size or 0) // (40 if self._sparse.strategy == "max" else 15)
        if MULTI_VECTOR in options.representations:
            cost += len(encoding) * self._vector_size // 500
        return cost

    def decode(self, item: Text, encoding: Encoding, outputs: Outputs, options: TextEmbeddingOptions) -> PooledWindow:
        wanted = options.representations
        sparse = self._decode_sparse(encoding, outputs) if SPARSE in wanted else None
        vectors = self._decode_vectors(encoding, outputs, options) if MULTI_VECTOR in wanted else None
        dense = self._dense.decode(item, encoding, outputs, options).vectors if DENSE in wanted else ()
        return PooledWindow(dense, len(encoding), sparse, vectors)

    def _decode_sparse(self, encoding: Encoding, outputs: Outputs) -> Weights:
        if WEIGHTS in outputs:
            weights = outputs[WEIGHTS].astype(np.float32).reshape(len(encoding))
            require_finite_vectors(weights)
            return lexical(weights, encoding.ids, self._dropped)
        if VALUES in outputs:
            values, indices = outputs[VALUES].astype(np.float32), outputs[INDICES].astype(np.int64)
            require_finite_vectors(values)
            order = np.argsort(indices[values > 0])
            return Weights(indices[values > 0][order], values[values > 0][order])
        rows = outputs[POOLED]
        pooled = splade(rows, self._sparse) if rows.ndim == 2 else rows
        require_finite_vectors(pooled)
        return nonzero(pooled)

    def _decode_vectors(self, encoding: Encoding, outputs: Outputs, options: TextEmbeddingOptions) -> Array:
        if SHIFTED in outputs:
            vectors = np.array(outputs[SHIFTED][: len(encoding) - 1], np.float32)
        elif self._late is None:  # BGE-M3 leaves out the first token
            vectors = np.array(outputs[VECTORS][1:], np.float32)
        else:
            vectors = self._late.select(outputs[VECTORS], encoding.ids, options.input_type)
        require_finite_vectors(vectors)
        return vectors

    def answer(self, item: Text, parts: Sequence[Sequence[PooledWindow]], options: TextEmbeddingOptions) -> Json:
        windows = parts[0]
        answers = {DENSE: self.dense, SPARSE: self._answer_sparse, MULTI_VECTOR: self._answer_vectors}
        values: dict[str, Json] = {name: answers[name](windows, options) for name in options.representations}
        return values if options.named else values[options.representations[0]]

    def _answer_sparse(self, windows: Sequence[PooledWindow], options: TextEmbeddingOptions) -> Answer:
        parts = [window.sparse for window in windows if window.sparse is not None]
        weights = parts[0] if len(parts) == 1 else merge(parts, self._sparse.strategy)
        if options.scale is None and self._sparse.normalize:
            weights = unit_weights(weights)  # the module precedes max_active_dims
        weights = highest(weights, self._sparse.max_active)
        return (unit_weights(weights) if options.scale else weights).answer()

    def _answer_vectors(self, windows: Sequence[PooledWindow], options: TextEmbeddingOptions) -> Array:
        parts = [window.token_vectors for window in windows if window.token_vectors is not None]
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.check_dimensions(vectors.shape[1], options)
        vectors = np.ascontiguousarray(vectors[:, : options.dimensions])
        normalize = self._late.files.normalize if self._late else True
        if options.precision in BYTES or (normalize if options.scale is None else options.scale):
            vectors = unit_rows(vectors)
        return quantize(vectors, options.precision, zero=options.binary_zero)

    def tensor(self, predictions: Sequence[Json], options: TextEmbeddingOptions) -> Tensor:
        """[instances, dimensions] of dense vectors; [instances, tokens, dimensions] of vectors of tokens, padded with
        zeros; else BYTES [instances] of JSON."""
        if options.named or options.representations == (SPARSE,):
            return json_tensor(predictions)
        if options.representations == (DENSE,):
            return super().tensor(predictions, options)
        longest = max(map(len, predictions))
        data = np.zeros((len(predictions), longest, predictions[0].shape[1]), predictions[0].dtype)
        for padded, vectors in zip(data, predictions, strict=True):
            padded[: len(vectors)] = vectors
        return Tensor(PREDICTIONS, DATATYPES[options.precision], data)

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        if self.available[0] == DENSE:
            return super().tensor_specs
        if self.available[0] == SPARSE:
            return (TensorSpec(PREDICTIONS, "BYTES", (FREE,)),)
        size = self._files.late_interaction.size if self._files.late_interaction else None
        return (TensorSpec(PREDICTIONS, "FP32", (FREE, FREE, size or FREE)),)

    def tensor_size(self, encodings: Any, options: TextEmbeddingOptions) -> int:
        if options.named or options.representations != (MULTI_VECTOR,):
            return 0
        return -(-self.padded_tokens(encodings) * self._vector_size // NUMBERS_PER_VALUE)


def fit_outputs(task: Task[Any, Any, Any], outputs: Sequence[TensorSpec]) -> Task[Any, Any, Any]:
    """Returns the task's form for a model with these outputs: reduced, with other representations, or the task itself.

    Raises:
        ConfigError: a flag requires outputs that the model lacks.
        LoadError: the tokenizer does not fit the files.
    """
    task = fit_reduced(task, (output.name for output in outputs))
    if not isinstance(task, TextEmbedding):
        return task
    roles = _find_roles(task.settings, {NUMBERED.sub("", output.name) for output in outputs})
    return task if roles == [OUTPUT] else Representations(task.settings, roles, type(task))


def _find_roles(settings: TaskSettings, names: set[str]) -> list[str]:
    """The roles of a model with outputs of these names, the default representation first."""
    files = settings.sentence_transformers
    present = [role for role in ROLES if role in names or (role == WEIGHTS and names & {*OTHER_NAMES[WEIGHTS]})]
    only = (SPARSE if files.sparse else MULTI_VECTOR if files.late_interaction else None) if files else None
    if only and only not in map(ROLES.get, present):
        present.append(POOLED if only == SPARSE else VECTORS)  # the contract finds the output
        names = set()
    elif files is None and names == {"logits"}:
        return [POOLED]  # a masked language model with --task=text_embedding
    # An output has one role: a model with token_vectors may also have last_hidden_state, for its dense vector.
    bound = {next((name for name in (role, *OTHER_NAMES[role]) if name in names), "") for role in present}
    rest = names - bound - {*ROLES, INDICES}
    dense = bool(rest & {OUTPUT, "dense_vecs"} if only else rest)
    by_representation = {ROLES[role]: role for role in reversed(present)}
    order = (MULTI_VECTOR, SPARSE) if files and files.late_interaction else (SPARSE, MULTI_VECTOR)
    roles = [by_representation[name] for name in order if name in by_representation]
    return [OUTPUT, *roles] if dense or not roles else roles


def _special_ids(settings: TaskSettings) -> Array:
    vocabulary = settings.vocabulary
    tokens = (vocabulary.special_tokens.get(name) for name in SPECIAL)
    ids = (vocabulary.token_to_id(token) for token in tokens if token)
    return np.array(sorted({number for number in ids if number is not None}), np.int64)
