"""The lifecycle of the served model: search, readiness, failure and replacement.

    SEARCHING --a check finds a model that fits--> READY --consecutive requests fail--> SUSPECT
    SUSPECT --a trial inference or a request succeeds--> READY
    READY, SUSPECT --a check finds another model--> READY if the new model fits, else SEARCHING

A check asks the predictor for its model. A failed check changes no state. With --enable_predictor_health_check the
model is then not ready until a check succeeds, but the predictor still receives requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from hf_transformer.core.pipeline import Pipeline, PredictivePipeline, TokenizingPipeline
from hf_transformer.errors import PREDICTORS, NotReady, PredictorDenied, PredictorError, PredictorTimeout, RequestError
from hf_transformer.observability.logging import LatencyLog
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.absent import AbsentPredictor
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import Servable
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tensors import ModelDescription, ModelSpec
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

logger = logging.getLogger(__name__)

PipelineT_co = TypeVar("PipelineT_co", bound=Pipeline, covariant=True)

CHECK_TIMEOUT_SECONDS = 5.0
"""Timeout of one check, including its trial inference."""
SUSPECT_AFTER_ERRORS = 3
"""Consecutive model errors that make the model SUSPECT."""
FAILURE_LOG_SECONDS = 10.0
"""Minimum interval between two log lines about failed requests, since failures and answers may alternate."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The schedule of checks. All times are in seconds.

    Args:
        on_ready: whether readiness probes run a check, and whether checks run a trial inference on a SUSPECT model
            (--enable_predictor_health_check).
        interval: the interval between two checks of a ready model (--predictor_check_seconds).
        min_interval: the minimum interval between two checks of a ready model, even after failed requests.
        min_retry, max_retry: the first and the maximum retry interval. Each retry doubles the interval.
        timeout: the timeout of one check, including its trial inference.
    """

    on_ready: bool = False
    interval: float = 30.0
    min_interval: float = 1.0
    min_retry: float = 0.1
    max_retry: float = 2.0
    timeout: float = CHECK_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The origin of a model, and its names in addition to its own.

    Attributes:
        model_id, revision: the model on the Hugging Face hub; None for a local folder.
        aliases: further names of the model.
        adapters: names of LoRA adapters, which requests choose like a model.
        predictor_model: the predictor's name for the model; None for the model's own.
    """

    model_id: str | None = None
    revision: str | None = None
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    predictor_model: str | None = None


class State(Enum):
    """The state of the served model, see the diagram of the module."""

    SEARCHING = "no model fits yet; requests are answered with 503"
    READY = "requests are answered"
    SUSPECT = "requests are sent, and with the health check the next check runs a trial inference"


class ServedModel(Generic[PipelineT_co]):
    """Finds the predictor's model in the background, and answers requests with its pipeline.

    Args:
        name: the model's name in all routes.
        predictor: the model's predictor. It must be open while ``run`` runs.
        build: makes the pipeline for the predictor's model, and raises ContractError if the model does not fit.
        requires: checks what the model needs beside itself, before each check of it, until a deadline on the event
            loop's clock. Raises RequestError for what is missing.
        latency_log: logs the stage timings of each request; None disables this log.
        identity: the origin of the model, and its further names.

    Attributes:
        requests: the number of requests in flight that have chosen this model.
        on_change: called after each change of the readiness.
    """

    def __init__(
        self,
        name: str,
        task: Servable,
        predictor: Predictor,
        build: Callable[[ModelSpec], PipelineT_co],
        metrics: ModelMetrics,
        checks: CheckSettings | None = None,
        *,
        requires: Callable[[float], Awaitable[None]] | None = None,
        latency_log: LatencyLog | None = None,
        identity: ModelIdentity | None = None,
    ) -> None:
        self.name = name
        self._requires = requires
        self.task = task
        self.identity = identity or ModelIdentity()
        self.requests = 0
        self.on_change: Callable[[], None] = _ignore_change
        self._predictor = predictor
        self._build = build
        self._metrics = metrics
        self._checks = checks or CheckSettings()
        self._latency_log = latency_log
        self._serving: Serving[PipelineT_co] | None = None
        self._problem = "the predictor has not been reached yet"
        """The reason why the model is not ready; empty for a ready model."""
        self.lost = ""
        """The reason why a ready model can't answer, from the last check; empty if it can."""
        self._candidate: ModelSpec | None = None
        """A new model that the last check found instead of the served model."""
        self._replaces_at_once = False
        """Whether the next check may replace the model without confirmation by a second check."""
        self._failures = FailureLog(name)
        self._errors = 0
        """The number of consecutive model errors."""
        self._is_away = False
        """Whether the predictor was unreachable since the last check."""
        self._check_soon = asyncio.Event()
        self._checking: asyncio.Task[str] | None = None
        self._is_ending = False

    @property
    def names(self) -> tuple[str, ...]:
        """The model's name, its aliases and its adapters."""
        return (self.name, *self.identity.aliases, *self.identity.adapters)

    @property
    def state(self) -> State:
        if self._serving is None:
            return State.SEARCHING
        return State.SUSPECT if self._errors >= SUSPECT_AFTER_ERRORS else State.READY

    # Requests

    async def predict(self, query: Query, context: Context) -> Answers:
        """Returns one prediction per instance.

        Raises:
            NotReady: no model fits yet.
            RequestError: the request fails.
        """
        serving = self._serving
        if serving is None:
            raise self._not_ready()
        try:
            answers = await serving.pipeline(query, context)
        except PREDICTORS as error:
            self._count_failure(error)
            raise
        self._count_answer(context)
        return answers

    async def encode(self, texts: Sequence[TextInput], options: Tokenization, context: Context) -> list[list[Encoding]]:
        """Tokenizes texts, see Pipeline.encode. Raises NotReady until a model fits."""
        return await self.pipeline.encode(texts, options, context)

    @property
    def pipeline(self) -> PipelineT_co:
        """The pipeline of the served model. Raises NotReady until a model fits."""
        return self._require_serving().pipeline

    @property
    def has_predictor(self) -> bool:
        """Whether the model can be run, and not only its tokenizer (--predictor_protocol=none)."""
        return not isinstance(self._predictor, AbsentPredictor)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the served model. Raises NotReady until a model fits."""
        return self.pipeline.tokenizer

    def describe(self) -> ModelDescription:
        """Returns the model's name, version and tensors. Raises NotReady until a model fits."""
        return self._require_serving().description

    def _require_serving(self) -> Serving[PipelineT_co]:
        if self._serving is None:
            raise self._not_ready()
        return self._serving

    def _not_ready(self) -> NotReady:
        return NotReady(f"model {self.name!r} is not ready: {self._problem}")

    def _count_answer(self, context: Context) -> None:
        """Counts an answered request."""
        if self._failures.is_failing:
            self._failures.answered()
            self._errors = 0
            if self._is_away:
                self._request_check()
        self._metrics.observe(context)
        if self._latency_log is not None:
            self._latency_log.add(context)

    def _count_failure(self, error: RequestError) -> None:
        """Counts a request that failed in the predictor, and requests a check if a new model may be the cause."""
        self._failures.failed(error)
        if not isinstance(error, PredictorError):
            self._is_away = True
        elif not isinstance(error, PredictorDenied):  # a proxy before the model denies requests
            self._errors += 1
            if self._is_away or self._errors == SUSPECT_AFTER_ERRORS:
                self._request_check()

    def _request_check(self) -> None:
        self._is_away = False
        self._replaces_at_once = True
        self._check_soon.set()

    # Checks

    async def run(self) -> None:
        """Checks the predictor on the schedule of CheckSettings until cancellation.

        The next check runs earlier after consecutive model errors, and after an unreachable predictor answers again.
        """
        checks, retry = self._checks, self._checks.min_retry
        try:
            while True:
                self._check_soon.clear()
                await self.check_predictor()
                if self._problem:
                    logger.debug("model %r is still not ready, trying again in %.1f s at most", self.name, retry)
                    await asyncio.sleep(_jittered(retry))
                    retry = min(retry * 2, checks.max_retry)
                    continue
                retry = checks.min_retry
                await asyncio.sleep(_jittered(min(checks.min_interval, checks.interval)))
                with suppress(TimeoutError):
                    # wait_for in Python 3.11 ignores a cancellation in the iteration of the event loop that sets the
                    # event.
                    async with asyncio.timeout(_jittered(checks.interval)):
                        await self._check_soon.wait()
        finally:
            if self._checking is not None:
                self._checking.cancel()
                await asyncio.wait([self._checking])

    @property
    def is_ready(self) -> bool:
        """Whether the last check found a model that fits, and the service is not shutting down."""
        return not (self._problem or self._is_ending)

    @property
    def problem(self) -> str:
        """The reason why the model is not ready; empty for a ready model."""
        return self._problem

    async def check_replaced(self) -> str:
        """Checks the predictor as ``check_predictor`` does, and serves another model without confirmation."""
        self._replaces_at_once = True
        return await self.check_predictor()

    async def require_ready(self) -> None:
        """Runs a check if CheckSettings.on_ready is set. Raises NotReady with the reason if the model is not ready."""
        if self._is_ending:
            raise NotReady(f"model {self.name!r} is not ready: the service is shutting down")
        if self._checks.on_ready:
            await self.check_predictor()
        if self._problem:
            raise self._not_ready()

    def start_shutdown(self) -> None:
        """Makes the model permanently not ready, so that load balancers stop sending requests. The service still
        answers requests."""
        self._is_ending = True
        self._publish_ready()

    async def check_predictor(self) -> str:
        """Asks the predictor for its model, and serves the model if it fits. Concurrent callers share one check.

        Returns the reason for the failure of the check, or an empty string.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_predictor())
        return await asyncio.shield(self._checking)

    async def _check_predictor(self) -> str:
        deadline = asyncio.get_running_loop().time() + self._checks.timeout
        problem = ""
        try:
            if self._requires is not None:
                await self._requires(deadline)
            serving = self._serve(await self._ask(deadline))
            if self._checks.on_ready and self.state is State.SUSPECT:
                await self._run_trial(serving.pipeline, deadline)
        except RequestError as error:
            problem = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            problem = "a question to the predictor was broken off"  # by the transport
        except Exception as error:
            # A bug of the service. Without this handler the model would never become ready, and no log would say why.
            logger.exception("the predictor's model %r can't be served", self.name)
            problem = f"internal error: {type(error).__name__}"
        self._report(problem)
        return problem

    async def _ask(self, deadline: float) -> ModelSpec:
        try:
            async with asyncio.timeout_at(deadline):
                if not await self._predictor.model_ready():
                    flag, default = "--predictor_model", "--model_name is its name there too, unless {} is given"
                    name = self.identity.predictor_model
                    raise NotReady(
                        f"the predictor does not have {name or self.name!r}, or has not loaded it yet "
                        f"({flag if name else default.format(flag)})"
                    )
                return await self._predictor.model_spec()
        except TimeoutError as error:
            raise PredictorTimeout(f"the predictor did not describe its model in {self._checks.timeout:g} s") from error

    def _serve(self, spec: ModelSpec) -> Serving[PipelineT_co]:
        """Serves a new model of the predictor. Running requests keep their pipeline. Raises ContractError, and serves
        no model, if the new model does not fit."""
        serving = self._serving
        if serving is not None and not self._is_replaced(serving.spec, spec):
            return serving
        if serving is not None and replace(spec, version=serving.spec.version) == serving.spec:
            pipeline = serving.pipeline
        else:
            self._serving = None
            pipeline = self._build(spec)
        task = pipeline.task if isinstance(pipeline, PredictivePipeline) else self.task
        infers = not isinstance(pipeline, TokenizingPipeline)
        description = ModelDescription(
            name=self.name,
            version=spec.version,
            task=self.task.name,
            inputs=tuple([field.spec for field in self.task.fields]) if infers else (),
            outputs=task.tensor_specs if infers else (),
            max_length=pipeline.tokenizer.max_length,
        )
        self._serving = serving = Serving(pipeline, spec, description)
        self._problem = ""
        found = f"version {spec.version or 'unknown'}" if infers else "its tokenizer, without a predictor"
        logger.info("model %r is ready: %s", self.name, found)
        return serving

    def _is_replaced(self, served: ModelSpec, spec: ModelSpec) -> bool:
        """Whether ``spec``, the result of a check, replaces the served model.

        During a rolling update, checks may find the old or the new version at the same address. Two consecutive checks
        must find the same new model, unless requests fail or the predictor was unreachable.
        """
        is_confirmed = self._replaces_at_once or self._failures.is_failing or spec == self._candidate
        self._replaces_at_once = False
        self._candidate = None
        if spec == served:
            return False
        if not is_confirmed:
            self._candidate = spec
        return is_confirmed

    async def _run_trial(self, pipeline: Pipeline, deadline: float) -> None:
        """Runs one trial inference. After the process of a Python backend dies, Triton reports the model as ready, but
        every inference fails.

        Raises:
            NotReady: the trial inference fails or exceeds ``deadline``.
        """
        reason = f"the last {self._errors} requests failed, and so does a trial"
        try:
            async with asyncio.timeout_at(deadline):
                await pipeline.trial()
        except TimeoutError as error:
            raise NotReady(f"{reason}: no answer in time") from error
        except PredictorDenied:
            pass  # the trial inference has no credentials of a client
        except RequestError as error:
            raise NotReady(f"{reason}: {error}") from error
        self._errors = 0

    def _report(self, problem: str) -> None:
        """Reports the result of a check to the log, the metrics and the other workers."""
        self.lost = problem if self._serving is not None and not self._checks.on_ready else ""
        if self._serving is None:
            if problem != self._problem:
                advice = "(hf-transformer doctor, with the same flags, says more)"
                logger.warning("model %r is not ready, retrying: %s %s", self.name, problem, advice)
        elif not self._checks.on_ready:
            problem = ""  # without the health check, a failed check does not affect readiness
        elif problem and not self._problem:
            logger.warning("model %r is not ready any more: %s", self.name, problem)
        elif self._problem and not problem:
            logger.info("model %r is ready again", self.name)
        self._problem = problem
        self._publish_ready()

    def _publish_ready(self) -> None:
        self._metrics.ready.set(self.is_ready)
        self.on_change()


@dataclass(frozen=True, slots=True)
class Serving(Generic[PipelineT_co]):
    """A pipeline with two descriptions of its model: the predictor's and the service's."""

    pipeline: PipelineT_co
    spec: ModelSpec
    description: ModelDescription


class FailureLog:
    """Logs the first of consecutive failed requests, and the first answer after them.

    The log has at most one failure in FAILURE_LOG_SECONDS. ``name`` is the model's; ``clock`` returns seconds.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_failing = False
        """Whether the last request failed."""
        self._name = name
        self._clock = clock
        self._is_logged = False
        self._unlogged = 0
        self._not_before = -math.inf

    def failed(self, error: RequestError) -> None:
        """Records a failed request."""
        self.is_failing = True
        now = self._clock()
        if self._is_logged or now < self._not_before:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more have failed since the last such line)" if self._unlogged else ""
        logger.warning("requests to model %r fail with %d: %s%s", self._name, error.status, error, more)
        self._is_logged = True
        self._unlogged = 0
        self._not_before = now + FAILURE_LOG_SECONDS

    def answered(self) -> None:
        """Records the first answered request after a failed request."""
        self.is_failing = False
        if self._is_logged:
            self._is_logged = False
            logger.info("the predictor answers again for model %r", self._name)


def _ignore_change() -> None:
    """The callback of a model that is in no set of models."""


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
