"""One model as clients see it: not ready until the predictor is there and fits, then a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hf_transformer.core.bound_model import AnyPipeline, BoundModel
from hf_transformer.errors import PREDICTORS, InvalidInput
from hf_transformer.generation.chat import ChatTemplate
from hf_transformer.generation.pipeline import Generation
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.observability.latency_log import LatencyLog
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import Servable
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import (
    Answers,
    Context,
    Encoding,
    ModelDescription,
    ModelSpec,
    Query,
    TextInput,
    Tokenization,
)
from hf_transformer.workers import Roster


class ServedModel(BoundModel):
    """Answers requests with the pipeline of the model that the predictor has.

    Args:
        name, predictor, build, check_health, check_seconds, roster: see BoundModel.
        task: what it does.
        latency_log: gets a line per request that says how long each stage took.
        chat_template: what makes a prompt of a chat's messages; None for a model that does not chat.
    """

    def __init__(
        self,
        name: str,
        task: Servable,
        predictor: Predictor,
        build: Callable[[ModelSpec], AnyPipeline],
        metrics: Metrics,
        *,
        check_health: bool = False,
        check_seconds: float = 30.0,
        latency_log: LatencyLog | None = None,
        roster: Roster | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        super().__init__(
            name, predictor, build, metrics, check_health=check_health, check_seconds=check_seconds, roster=roster
        )
        self.task = task
        self.chat_template = chat_template
        self._latency_log = latency_log
        self._answered: list[Context] = []
        """Requests that are not in the metrics and the log yet."""
        self._described: tuple[ModelSpec | None, ModelDescription] | None = None
        """What the model is, and what the predictor said of it then."""

    async def predict(self, query: Query, context: Context) -> Answers:
        """One prediction per instance.

        Raises:
            NotReady: the predictor has not been found yet.
            RequestError: whatever else keeps the request from being answered.
        """
        pipeline, users = self._ready_pipeline(), self._users
        try:
            if users is None:
                answers = await pipeline(query, context)
            else:
                with users.one():
                    answers = await pipeline(query, context)
        except PREDICTORS as error:
            self._note_failure(error)
            raise
        self._note_answer(context)
        return answers

    async def generate(self, request: GenerationRequest, context: Context) -> Generation:
        """The texts of a request as they are written: enter what is given, then iterate.

        Raises:
            NotReady: the predictor has not been found yet.
            InvalidInput: the model generates no text, or the request is wrong in itself.
            RequestError: whatever else keeps it from being begun.
        """
        self._ready_pipeline()
        users = self._users
        if users is None:
            raise InvalidInput(f"model {self.name!r} does {self.task.name}, which generates no text")
        users.enter()
        try:
            generation = await users.pipeline.start(request, context)
        except BaseException:
            users.leave()
            raise
        generation.tell(self._note_answer, self._note_failure, users.leave)
        return generation

    def _note_answer(self, context: Context) -> None:
        """A request was answered whole; the answer, or the end of a stream, is yet to be sent."""
        if self._failures.failing:
            self._note_success()
        self._answered.append(context)
        if len(self._answered) == 1:
            asyncio.get_running_loop().call_soon(self._note_answers)

    def _note_answers(self) -> None:
        """Counts what was answered in the last turn of the event loop, now that the answers have been sent. It comes
        before whatever their clients ask for next."""
        answered, self._answered = self._answered, []
        self._log(answered)

    def _log(self, answered: Sequence[Context]) -> None:
        self._metrics.observe(answered)
        if self._latency_log is not None:
            self._latency_log.add(answered)

    def describe(self) -> ModelDescription:
        """What the model is. Raises NotReady before the predictor has been found."""
        tokenizer, spec = self._ready_pipeline().tokenizer, self._spec
        # Each request of the V2 protocol asks for it, and what it follows from rarely changes.
        if self._described is None or self._described[0] is not spec:
            about = ModelDescription(
                name=self.name,
                version=spec.version if spec else "",
                task=self.task.name,
                inputs=tuple(field.spec for field in self.task.fields),
                outputs=self.task.tensor_specs,
                max_length=tokenizer.max_length,
            )
            self._described = spec, about
        return self._described[1]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that requests are tokenized with. Raises NotReady before the predictor has been found."""
        return self._ready_pipeline().tokenizer

    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text, within the limits of a request; see Tokenizer.encode_windows.

        Raises:
            NotReady: before the predictor has been found, which may cut texts shorter than the tokenizer does.
            RequestError: a text can't be encoded, or they are over a limit.
        """
        return await self._ready_pipeline().encode(texts, how)
