"""One model as clients see it: not ready until the predictor is there and fits, then a pipeline."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from hf_transformer.errors import NotReady, PredictorTimeout, RequestError
from hf_transformer.metrics import Metrics
from hf_transformer.pipeline import Pipeline
from hf_transformer.predictors.base import Predictor
from hf_transformer.types import Context, Json, ModelSpec, Query

logger = logging.getLogger(__name__)
latency_logger = logging.getLogger("hf_transformer.latency")
texts_logger = logging.getLogger("hf_transformer.requests")

QUESTION_TIMEOUT = 5.0
"""Seconds that the predictor has to answer a question about its model; a hung one must not hold up the next try."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries to reach the predictor, doubling from the first to the longest."""


@dataclass(frozen=True, slots=True)
class RequestLogging:
    """What is logged of each request.

    ``latency``: a line with each stage's time. ``texts``: the instances themselves, strings cut to ``longest_text``
    characters (None: whole); off by default, since they are the users' own.
    """

    latency: bool = True
    texts: bool = False
    longest_text: int | None = None


class ServedModel:
    """Finds the predictor in the background and answers queries once it is found.

    Args:
        name: the model's name in every route.
        predictor: open, or to be opened around ``connect``.
        build: makes the pipeline for what the predictor says of the model; raises ContractError if it does not fit.
        check_health: whether ``ready`` asks the predictor each time (--enable_predictor_health_check).
        logging: what is logged of each request.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        build: Callable[[ModelSpec], Pipeline],
        metrics: Metrics,
        *,
        check_health: bool = False,
        logging: RequestLogging,
    ) -> None:
        self.name = name
        self._predictor = predictor
        self._build = build
        self._metrics = metrics
        self._check_health = check_health
        self._logging = logging
        self._pipeline: Pipeline | None = None
        self._reason = "the predictor has not been reached yet"

    async def connect(self) -> None:
        """Tries until the predictor has the model and the model fits; says in the log why not, once per reason."""
        pause = FIRST_PAUSE
        while True:
            try:
                spec = await self._describe()
                self._pipeline = self._build(spec)
            except RequestError as error:
                self._report(str(error))
            else:
                self._metrics.set_ready(True)
                logger.info("model %r is ready: version %s", self.name, spec.version or "unknown")
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _describe(self) -> ModelSpec:
        try:
            async with asyncio.timeout(QUESTION_TIMEOUT):
                if not await self._predictor.model_ready():
                    raise NotReady(f"the predictor says that model {self.name!r} is not ready")
                return await self._predictor.model_spec()
        except TimeoutError as error:
            raise PredictorTimeout(f"the predictor did not describe its model in {QUESTION_TIMEOUT:g} s") from error

    def _report(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            logger.warning("not ready, trying on: %s", reason)

    async def require_ready(self) -> None:
        """Raises NotReady, with the reason, while the model can't be asked."""
        self._ready_pipeline()
        if self._check_health:
            try:
                await self._describe()
            except RequestError as error:
                raise NotReady(f"model {self.name!r} is not ready: {error}") from error

    def _ready_pipeline(self) -> Pipeline:
        if self._pipeline is None:
            raise NotReady(f"model {self.name!r} is not ready: {self._reason}")
        return self._pipeline

    async def predict(self, query: Query, context: Context) -> list[Json]:
        """One answer per instance.

        Raises:
            NotReady: the predictor has not been found yet.
            RequestError: whatever else keeps the request from being answered.
        """
        pipeline = self._ready_pipeline()
        if self._logging.texts:
            shown = [_cut(instance, self._logging.longest_text) for instance in query.instances]
            texts_logger.info("requestId: %s, instances: %s", context.request_id, shown)
        answers = await pipeline(query, context)
        timings = context.timings
        self._metrics.observe(timings)
        if self._logging.latency:
            # The fields of KServe's line (python/kserve/kserve/model.py), for tools that read it.
            latency_logger.info(
                "requestId: %s, preprocess_ms: %.3f, explain_ms: 0, predict_ms: %.3f, postprocess_ms: %.3f",
                context.request_id,
                timings.preprocess * 1e3,
                timings.predict * 1e3,
                timings.postprocess * 1e3,
            )
        return answers


def _cut(value: Json, longest: int | None) -> Json:
    """The value with every string in it cut."""
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, dict):
        return {key: _cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    return value
