"""feature_extraction: a vector per token from the model's last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.tasks.base import TOKENS, Encodings, OutputRole, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import NUMBER, Demo, Example, array
from hf_transformer.tasks.long_texts import read_tokenization, read_truncation
from hf_transformer.tasks.options import Format, MaxTokens, TaskParameters, Truncation, TruncationSide
from hf_transformer.tasks.pooling import DEFAULT_HIDDEN_SIZE, ENCODER, hidden_axis, hidden_size, require_finite_vectors
from hf_transformer.tasks.tensors import FREE, ragged_tensor
from hf_transformer.tasks.tensors import OUTPUT as PREDICTIONS
from hf_transformer.tasks.text_embedding import NUMBER_BYTES
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding, Tokenization

OUTPUT = "last_hidden_state"


class FeatureExtractionParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None


@dataclass(frozen=True, slots=True)
class FeatureExtractionOptions:
    """The effect of a request's parameters."""

    overflow: Overflow
    tokenization: Tokenization


class FeatureExtraction(Task[str, FeatureExtractionOptions, Array]):
    """Reads ``last_hidden_state`` [tokens, hidden].

    The answer, in both formats, equals transformers' feature-extraction pipeline for a single text: a float32 array
    [1, tokens, hidden], including special tokens.
    """

    name = "feature_extraction"
    options_type = FeatureExtractionParameters
    purpose = "Turns each token of a text into a vector"
    examples = (Example("a vector per token", {"instances": ["The cat sleeps on the sofa."]}),)
    demo = Demo("minibert_mean", "cat", served_name="minibert_tokens")
    export_head = ENCODER
    prediction_schemas = (
        {
            "description": "A vector per token, in one list; for feature_extraction.",
            **array(array(array(NUMBER)), minItems=1, maxItems=1),
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        axes = (TOKENS, hidden_axis(settings.model_config))
        self.outputs = (OutputRole(OUTPUT, axes, ("token_embeddings", "hidden_states")),)
        self._width = hidden_size(settings.model_config)
        self._size = self._width or DEFAULT_HIDDEN_SIZE

    def options(self, parameters: Mapping[str, Json]) -> FeatureExtractionOptions:
        given, _ = self.read(FeatureExtractionParameters, parameters)
        return FeatureExtractionOptions(read_truncation(given, self.settings), read_tokenization(given))

    def answer_size(self, encoding: Encoding, options: FeatureExtractionOptions) -> int:
        return len(encoding) * self._size

    def value_bytes(self, options: FeatureExtractionOptions, *, tensors: bool) -> int:
        return NUMBER_BYTES

    def decode(self, item: str, encoding: Encoding, outputs: Outputs, options: FeatureExtractionOptions) -> Array:
        vectors = np.array(outputs[OUTPUT], np.float32, order="C")
        require_finite_vectors(vectors)
        return vectors[np.newaxis]

    def tensor(self, predictions: Sequence[Json], options: FeatureExtractionOptions) -> Tensor:
        """FP32 [instances, 1, tokens, hidden], padded with zeros."""
        return ragged_tensor([vectors for (vectors,) in predictions], "FP32", 0)

    def tensor_size(self, encodings: Encodings, options: FeatureExtractionOptions) -> int:
        return self.padded_tokens(encodings) * self._size

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(PREDICTIONS, "FP32", (FREE, 1, FREE, self._width or FREE)),)
