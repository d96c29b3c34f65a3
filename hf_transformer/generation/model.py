"""The served model of a generative task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_transformer.core.model import ServedModel
from hf_transformer.core.pipeline import TokenizingPipeline
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate  # imports Jinja


class GenerativeModel(ServedModel[GenerationPipeline | TokenizingPipeline]):
    """A model that generates text.

    Args:
        chat_template: renders the messages of a chat; None for a model without chats.
        options: the other arguments of ServedModel.
    """

    task: TextGeneration

    def __init__(
        self,
        name: str,
        task: TextGeneration,
        predictor: Predictor,
        build: Callable[[ModelSpec], GenerationPipeline | TokenizingPipeline],
        metrics: ModelMetrics,
        *,
        chat_template: ChatTemplate | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, task, predictor, build, metrics, **options)
        self.chat_template = chat_template

    def check(self, sampling: Sampling) -> None:
        """Raises what ``generate`` would raise for these parameters whatever the prompts are, before the prompts are
        made: NotReady, NoPredictor, InvalidInput or TooLarge."""
        self.pipeline.check(sampling)

    async def generate(self, request: GenerationRequest, context: Context) -> Generation:
        """Starts a request. Enter the Generation, then iterate over its pieces.

        Raises:
            NotReady: the model is not ready.
            NoPredictor: the model has no predictor.
            InvalidInput: the request is invalid.
            RequestError: the request can't be started.
        """
        generation = await self.pipeline.start(request, context)
        generation.set_callbacks(self._count_answer, self._count_failure)
        return generation
