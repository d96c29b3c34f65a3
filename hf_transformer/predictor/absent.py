"""The predictor of a model that the service only tokenizes for (--predictor_protocol=none)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hf_transformer.errors import NoPredictor
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.types.tensors import ModelSpec


class AbsentPredictor(Predictor):
    """No predictor. It is always ready, so that the tokenizer alone decides about readiness, and runs nothing."""

    def __init__(self, model_name: str) -> None:
        self._name = model_name

    async def model_spec(self) -> ModelSpec:
        """A model without tensors and version."""
        return ModelSpec(self._name, "", (), (), None)

    async def model_ready(self) -> bool:
        return True

    async def infer(self, call: ModelCall) -> Reply:
        """Raises NoPredictor."""
        raise NoPredictor(self._name)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Raises NoPredictor."""
        raise NoPredictor(self._name)
        yield {}
