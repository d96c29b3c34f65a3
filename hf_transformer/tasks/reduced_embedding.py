"""text_embedding with a model whose graph ends in normalized vectors (``hf-transformer export --reduce``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.tasks.pooling import hidden_axis
from hf_transformer.tasks.text_embedding import OUTPUT, Pooled, Text, TextEmbedding, TextEmbeddingOptions
from hf_transformer.types import Array, Encoding

NORM = "embedding_norm"
ONE = Axis(name="1", minimum=1, maximum=1)


class ReducedEmbedding(TextEmbedding):
    """Reads ``sentence_embedding`` [D], of length 1, and ``embedding_norm`` [1], the length that it had.

    From both comes the vector before it was normalized, so that all answers are those of TextEmbedding: windows are
    averaged before that, and a request may ask for it so.
    """

    @property
    def outputs(self) -> tuple[OutputRole, ...]:
        return (OutputRole(OUTPUT, (hidden_axis(self.settings.model_config),)), OutputRole(NORM, (ONE,)))

    def decode(
        self, item: Text, encoding: Encoding, outputs: Mapping[str, Array], options: TextEmbeddingOptions
    ) -> Pooled:
        vector = outputs[OUTPUT].astype(np.float32) * outputs[NORM].astype(np.float32)
        return Pooled((vector,) * len(options.skips), len(encoding))
