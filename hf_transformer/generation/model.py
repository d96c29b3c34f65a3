"""The served model of a generative task."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

from hf_transformer.core.model import ServedModel
from hf_transformer.core.pipeline import TokenizingPipeline
from hf_transformer.generation.images import ImageForm, ImageLimits
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tokenizer.image_tokens import ImageTokens
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate  # imports Jinja
    from hf_transformer.generation.responses.counting import ReasoningCounter
    from hf_transformer.generation.responses.model import ModelResponses  # imports regex


class GenerativeModel(ServedModel[GenerationPipeline | TokenizingPipeline]):
    """A model that generates text.

    Args:
        chat_template: renders the messages of a chat; None for a model without chats.
        responses: reads reasoning and calls in answers; None to leave them as they are.
        image_limits: the limits of images in a chat.
        image_tokens: counts the tokens of images; None for a model whose processor is not known.
        end_ids: the tokens that end its texts.
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
        responses: ModelResponses | None = None,
        image_limits: ImageLimits | None = None,
        image_tokens: ImageTokens | None = None,
        end_ids: Set[int] = frozenset(),
        **options: Any,
    ) -> None:
        super().__init__(name, task, predictor, build, metrics, **options)
        self.chat_template = chat_template
        self.responses = responses
        self.end_ids = end_ids
        self.image_limits = image_limits or ImageLimits()
        self.image_tokens = image_tokens

    @property
    def image_form(self) -> ImageForm | None:
        """Form in which the predictor's model takes images; None for a model of texts. Raises NotReady."""
        pipeline = self.pipeline
        return pipeline.image_form if isinstance(pipeline, GenerationPipeline) else None

    def reasoning_counter(self) -> ReasoningCounter:
        """Counts the tokens of an answer's reasoning."""
        from hf_transformer.generation.responses.counting import ReasoningCounter

        return ReasoningCounter(self.pipeline.tokenizer)

    def count_unreadable(self, calls: int) -> None:
        """Counts calls of an answer that could not be read."""
        self._metrics.generation.unreadable_calls += calls

    @property
    def reasons_first(self) -> bool:
        """Whether a constraint holds after the reasoning only. Raises NotReady."""
        pipeline = self.pipeline
        return isinstance(pipeline, GenerationPipeline) and pipeline.reasons_first

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
