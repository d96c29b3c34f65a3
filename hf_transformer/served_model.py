"""One model as clients see it: not ready until the predictor is there and fits, then a pipeline."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from hf_transformer.errors import NotReady, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.latency_log import LatencyLog
from hf_transformer.metrics import Metrics
from hf_transformer.pipeline import Pipeline
from hf_transformer.predictors.base import Predictor
from hf_transformer.tasks.base import Task
from hf_transformer.tokenizer import Tokenizer
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

logger = logging.getLogger(__name__)

QUESTION_TIMEOUT = 5.0
"""Seconds that the predictor has to answer a question about its model; a hung one must not hold up the next try."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries to reach the predictor, doubling from the first to the longest."""


class ServedModel:
    """Finds the predictor in the background and answers queries once it is found.

    Args:
        name: the model's name in every route.
        task: what it does.
        predictor: open, or to be opened around ``connect``.
        build: makes the pipeline for what the predictor says of the model; raises ContractError if it does not fit.
        check_health: whether ``ready`` asks the predictor each time (--enable_predictor_health_check).
        latency_log: gets a line per request that says how long each stage took.
        roster: the workers of this service, which are ready together; None if there is one.
    """

    def __init__(
        self,
        name: str,
        task: Task[Any, Any, Any],
        predictor: Predictor,
        build: Callable[[ModelSpec], Pipeline],
        metrics: Metrics,
        *,
        check_health: bool = False,
        latency_log: LatencyLog | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.name = name
        self.task = task
        self._predictor = predictor
        self._build = build
        self._metrics = metrics
        self._check_health = check_health
        self._latency_log = latency_log
        self._roster = roster
        self._pipeline: Pipeline | None = None
        self._spec: ModelSpec | None = None
        self._failing = False
        self._reason = "the predictor has not been reached yet"

    async def connect(self) -> None:
        """Tries until the predictor has the model and the model fits; says in the log why not, once per reason."""
        pause = FIRST_PAUSE
        while not await self._try():
            logger.debug("model %r is still not ready, trying again in %.1f s at most", self.name, pause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _try(self) -> bool:
        try:
            await self._bind()
        except RequestError as error:
            self._report(str(error))
        except Exception as error:
            # A fault of the service: without this the task would end in silence and the model never be ready.
            logger.exception("model %r can't be bound", self.name)
            self._report(f"internal error: {type(error).__name__}")
        return self._pipeline is not None

    async def _bind(self) -> None:
        """Builds the pipeline for what the predictor says of the model now, unless that is what it was built for."""
        spec = await self._describe()
        if self._pipeline is not None and spec == self._spec:
            return
        self._pipeline = None
        self._say(ready=False)
        self._pipeline = self._build(spec)
        self._spec = spec
        self._say(ready=True)
        logger.info("model %r is ready: version %s", self.name, spec.version or "unknown")

    async def _describe(self) -> ModelSpec:
        try:
            async with asyncio.timeout(QUESTION_TIMEOUT):
                if not await self._predictor.model_ready():
                    raise NotReady(
                        f"the predictor does not have {self.name!r}, or has not loaded it yet "
                        "(--model_name is its name there too)"
                    )
                return await self._predictor.model_spec()
        except TimeoutError as error:
            raise PredictorTimeout(f"the predictor did not describe its model in {QUESTION_TIMEOUT:g} s") from error

    def _report(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            logger.warning("not ready, trying on: %s", reason)

    async def require_ready(self) -> None:
        """Raises NotReady, with the reason, while the model can't be asked.

        With the health check the predictor is asked; if it has another model by now, that is bound instead.
        """
        if self._check_health:
            try:
                await self._bind()
            except RequestError as error:
                self._say(ready=False)
                raise NotReady(f"model {self.name!r} is not ready: {error}") from error
            self._say(ready=True)
        self._ready_pipeline()
        if self._roster is not None and (missing := self._roster.waiting_for):
            raise NotReady(f"model {self.name!r} is not ready: {missing} of the --workers are not yet")

    def _say(self, *, ready: bool) -> None:
        """To the metrics and the other workers."""
        self._metrics.set_ready(ready)
        if self._roster is not None:
            self._roster.say(ready=ready)

    def _ready_pipeline(self) -> Pipeline:
        if self._pipeline is None:
            raise NotReady(f"model {self.name!r} is not ready: {self._reason}")
        return self._pipeline

    async def predict(self, query: Query, context: Context) -> Answers:
        """One prediction per instance.

        Raises:
            NotReady: the predictor has not been found yet.
            RequestError: whatever else keeps the request from being answered.
        """
        pipeline = self._ready_pipeline()
        try:
            answers = await pipeline(query, context)
        except (PredictorError, PredictorTimeout, PredictorUnavailable) as error:
            self._note_failure(error)
            raise
        if self._failing:
            self._failing = False
            logger.info("the predictor answers again")
        self._metrics.observe(context.timings)
        if self._latency_log is not None:
            self._latency_log.add(context)
        return answers

    def describe(self) -> ModelDescription:
        """What the model is. Raises NotReady before the predictor has been found."""
        tokenizer = self._ready_pipeline().tokenizer
        return ModelDescription(
            name=self.name,
            version=self._spec.version if self._spec else "",
            task=self.task.name,
            inputs=tuple(field.spec for field in self.task.fields),
            outputs=self.task.tensor_specs,
            max_length=tokenizer.max_length,
        )

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

    def _note_failure(self, error: RequestError) -> None:
        """A line for the first of a row of failures: the metrics count them, the log says why."""
        if not self._failing:
            self._failing = True
            logger.warning("requests fail with %d: %s", error.status, error)
