"""One model, from found to ready to replaced.

    SEARCHING --a look finds a model that fits--> READY --requests fail in a row--> SUSPECT
    SUSPECT --a trial inference or a request succeeds--> READY
    READY, SUSPECT --a look finds another model--> READY with that one, or SEARCHING if it does not fit

A look asks the predictor which model it has. A look that fails changes no state: with the health check the model is
not ready until a look succeeds, and requests are tried all the same.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from hf_transformer.errors import (
    PREDICTORS,
    InvalidInput,
    NotReady,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    RequestError,
)
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.logging import LatencyLog
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import Servable
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tensors import ModelDescription, ModelSpec
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

logger = logging.getLogger(__name__)

QUESTION_TIMEOUT = 5.0
"""Seconds that the predictor has to answer all questions of a look, a trial inference included."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two looks while the model is not ready, doubling from the first to the longest."""
SETTLED_PAUSE = 1.0
"""Seconds between two looks, whatever happens, while the model is ready."""
SUSPECT_AFTER = 3
"""Requests in a row that the model failed with an error of its own, before it is tried out."""
LOG_PAUSE = 10.0
"""Seconds between two lines on failing requests: good and bad requests may alternate."""


class PredictPipeline(Protocol):
    """What answers the requests of one model; see core/pipeline.py."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    async def __call__(self, query: Query, context: Context) -> Answers: ...
    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]: ...
    async def trial(self) -> None: ...


@runtime_checkable
class GeneratePipeline(PredictPipeline, Protocol):
    """The same for a model that generates text; see generation/pipeline.py, also for the types that are Any here."""

    @property
    def interface(self) -> str: ...
    @property
    def supported_fields(self) -> frozenset[str]: ...
    async def start(self, request: Any, context: Context) -> Any: ...


class State(Enum):
    """What is known of the model."""

    SEARCHING = "no model that fits was found; requests are answered with 503"
    READY = "requests are answered"
    SUSPECT = "requests are tried, and the next look tries the model out if the health check is on"


class ServedModel:
    """Finds the predictor's model in the background, and answers requests with its pipeline.

    Args:
        name: the model's name in every route.
        task: what it does.
        predictor: open, or to be opened around ``run``.
        build: makes the pipeline for what the predictor says of the model; raises ContractError if it does not fit.
        check_health: whether ``require_ready`` asks the predictor each time (--enable_predictor_health_check), and
            tries a suspect model out.
        check_seconds: seconds between two looks while all is well.
        latency_log: gets a line per request that says how long each stage took.
        board: tells which workers of this service are ready; None if there is one worker.
        chat_template: makes a prompt of a chat's messages; None for a model that does not chat.
    """

    def __init__(
        self,
        name: str,
        task: Servable,
        predictor: Predictor,
        build: Callable[[ModelSpec], PredictPipeline],
        metrics: Metrics,
        *,
        check_health: bool = False,
        check_seconds: float = 30.0,
        latency_log: LatencyLog | None = None,
        board: WorkerBoard | None = None,
        chat_template: Any = None,
    ) -> None:
        self.name = name
        self.task = task
        self.chat_template = chat_template
        self._predictor = predictor
        self._build = build
        self._metrics = metrics
        self._check_health = check_health
        self._check_seconds = check_seconds
        self._latency_log = latency_log
        self._board = board
        self._serving: Serving | None = None
        self._problem = "the predictor has not been reached yet"
        """Why the model is not ready; empty if it is."""
        self._candidate: ModelSpec | None = None
        """Another model than the served one, which the last look has found."""
        self._believes_at_once = False
        """Whether the next look may find another model without having seen it twice."""
        self._failures = FailureLog()
        self._errors = 0
        """Requests in a row that the model failed with an error of its own."""
        self._away = False
        """Whether the predictor could not be reached since the last look."""
        self._doubt = asyncio.Event()
        self._checking: asyncio.Task[str] | None = None
        self._ending = False

    @property
    def state(self) -> State:
        """See the module's docstring."""
        if self._serving is None:
            return State.SEARCHING
        return State.SUSPECT if self._errors >= SUSPECT_AFTER else State.READY

    # Requests

    async def predict(self, query: Query, context: Context) -> Answers:
        """One prediction per instance.

        Raises:
            NotReady: no model that fits was found yet.
            RequestError: whatever else keeps the request from being answered.
        """
        serving = self._serving
        if serving is None:
            raise self._not_ready()
        try:
            answers = await serving.pipeline(query, context)
        except PREDICTORS as error:
            self._note_failure(error)
            raise
        self._note_answer(context)
        return answers

    async def generate(self, request: Any, context: Context) -> Any:
        """The texts of a GenerationRequest as a Generation: enter what is given, then iterate.

        Raises:
            NotReady: no model that fits was found yet.
            InvalidInput: the model generates no text, or the request is wrong in itself.
            RequestError: whatever else keeps it from being begun.
        """
        generation = await self.generator.start(request, context)
        generation.set_callbacks(self._note_answer, self._note_failure)
        return generation

    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text, within the limits of a request; see Tokenizer.encode_windows.

        Raises:
            NotReady: no model that fits was found yet; it may take shorter texts than the tokenizer's files say.
            RequestError: a text can't be encoded, or they are over a limit.
        """
        return await self._require_serving().pipeline.encode(texts, how)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all requests. Raises NotReady before a model that fits was found."""
        return self._require_serving().pipeline.tokenizer

    @property
    def generator(self) -> GeneratePipeline:
        """What generates its texts. Raises NotReady as above, and InvalidInput if the model generates none."""
        found = self._require_serving().generating
        if found is None:
            raise InvalidInput.of(f"model {self.name!r} does {self.task.name}, which generates no text")
        return found

    def describe(self) -> ModelDescription:
        """What the model is. Raises NotReady before one that fits was found."""
        return self._require_serving().description

    def _require_serving(self) -> Serving:
        if self._serving is None:
            raise self._not_ready()
        return self._serving

    def _not_ready(self) -> NotReady:
        return NotReady(f"model {self.name!r} is not ready: {self._problem}")

    def _note_answer(self, context: Context) -> None:
        """Counts a request that was answered whole."""
        if self._failures.failing:
            self._failures.answered()
            self._errors = 0
            if self._away:
                self._look_soon()
        self._metrics.observe(context)
        if self._latency_log is not None:
            self._latency_log.add(context)

    def _note_failure(self, error: RequestError) -> None:
        """Counts a request that the predictor failed, and looks at the predictor again where that may explain it."""
        self._failures.failed(error)
        if not isinstance(error, PredictorError):
            self._away = True
        elif not isinstance(error, PredictorDenied):  # which says nothing of the model
            self._errors += 1
            if self._away or self._errors == SUSPECT_AFTER:
                self._look_soon()  # the predictor may be back with another model, or the model may have died

    def _look_soon(self) -> None:
        self._away = False
        self._believes_at_once = True
        self._doubt.set()

    # Looks

    async def run(self) -> None:
        """Looks at the predictor for as long as the service runs.

        Often while the model is not ready, then every ``check_seconds``, and at once when requests have failed in a way
        that another model would explain, or are answered again after the predictor was away.
        """
        pause = FIRST_PAUSE
        try:
            while True:
                self._doubt.clear()
                await self.check_predictor()
                if self._problem:
                    logger.debug("model %r is still not ready, trying again in %.1f s at most", self.name, pause)
                    await asyncio.sleep(_jittered(pause))
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                await asyncio.sleep(_jittered(min(SETTLED_PAUSE, self._check_seconds)))
                with suppress(TimeoutError):
                    # Not wait_for, which in Python 3.11 swallows a cancellation that comes as the event is set.
                    async with asyncio.timeout(_jittered(self._check_seconds)):
                        await self._doubt.wait()
        finally:
            if self._checking is not None:
                self._checking.cancel()
                await asyncio.wait([self._checking])

    @property
    def is_ready(self) -> bool:
        """True if the last check of the predictor found the model."""
        return not self._problem

    async def require_ready(self) -> None:
        """Raises NotReady, with the reason, while the model can't be asked.

        With the health check the predictor is asked, and another model of its is served from then on.
        """
        if self._ending:
            raise NotReady(f"model {self.name!r} is not ready: the service is shutting down")
        if self._check_health:
            await self.check_predictor()
        if self._problem:
            raise self._not_ready()
        if self._board is not None and (missing := self._board.waiting_for):
            raise NotReady(f"model {self.name!r} is not ready: {missing} of the --workers are not yet")

    def start_shutdown(self) -> None:
        """Makes the model not ready for good, so that no new clients come; requests are still answered."""
        self._ending = True
        self._show_ready()

    async def check_predictor(self) -> str:
        """Asks the predictor which model it has, and serves it if it fits. All who ask at one time share one look.

        Returns:
            Why the model is not ready; empty if it is. That takes QUESTION_TIMEOUT at most.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_predictor())
        return await asyncio.shield(self._checking)

    async def _check_predictor(self) -> str:
        deadline = asyncio.get_running_loop().time() + QUESTION_TIMEOUT
        problem = ""
        try:
            serving = self._serve(await self._ask(deadline))
            if self._check_health and self.state is State.SUSPECT:
                await self._try_out(serving.pipeline, deadline)
        except RequestError as error:
            problem = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            problem = "a question to the predictor was broken off"  # by the transport
        except Exception as error:
            # A fault of the service: without this the model would never become ready, and no log would say why.
            logger.exception("the predictor's model %r can't be served", self.name)
            problem = f"internal error: {type(error).__name__}"
        self._report(problem)
        return problem

    async def _ask(self, deadline: float) -> ModelSpec:
        try:
            async with asyncio.timeout_at(deadline):
                if not await self._predictor.model_ready():
                    raise NotReady(
                        f"the predictor does not have {self.name!r}, or has not loaded it yet "
                        "(--model_name is its name there too)"
                    )
                return await self._predictor.model_spec()
        except TimeoutError as error:
            raise PredictorTimeout(f"the predictor did not describe its model in {QUESTION_TIMEOUT:g} s") from error

    def _serve(self, spec: ModelSpec) -> Serving:
        """Serves a model that a look has found, unless it is served already. Requests under way keep their pipeline.

        Raises:
            ContractError: it does not fit; then no model is served.
        """
        serving = self._serving
        if serving is not None and not self._is_replaced(serving.spec, spec):
            return serving
        if serving is not None and replace(spec, version=serving.spec.version) == serving.spec:
            pipeline = serving.pipeline
        else:
            self._serving = None
            pipeline = self._build(spec)
        description = ModelDescription(
            name=self.name,
            version=spec.version,
            task=self.task.name,
            inputs=tuple([field.spec for field in self.task.fields]),
            outputs=self.task.tensor_specs,
            max_length=pipeline.tokenizer.max_length,
        )
        generating = pipeline if isinstance(pipeline, GeneratePipeline) else None
        self._serving = serving = Serving(pipeline, generating, spec, description)
        self._problem = ""
        logger.info("model %r is ready: version %s", self.name, spec.version or "unknown")
        return serving

    def _is_replaced(self, served: ModelSpec, found: ModelSpec) -> bool:
        """Model change detection: whether the model that a look has found takes the place of the served one.

        During a rolling update two versions answer behind one address, and each look may find another one. So another
        model has to be found twice in a row, unless requests fail or the predictor was away.
        """
        believed = self._believes_at_once or self._failures.failing or found == self._candidate
        self._believes_at_once = False
        self._candidate = None
        if found == served:
            return False
        if not believed:
            self._candidate = found
        return believed

    async def _try_out(self, pipeline: PredictPipeline, deadline: float) -> None:
        """One trial inference. A Python backend whose process has died fails every inference, and still says that the
        model is ready.

        Raises:
            NotReady: it fails, or takes too long.
        """
        reason = f"the last {self._errors} requests failed, and so does a trial"
        try:
            async with asyncio.timeout_at(deadline):
                await pipeline.trial()
        except TimeoutError as error:
            raise NotReady(f"{reason}: no answer in time") from error
        except PredictorDenied:
            pass  # the service itself may not ask, which says nothing of the model
        except RequestError as error:
            raise NotReady(f"{reason}: {error}") from error
        self._errors = 0

    def _report(self, problem: str) -> None:
        """Tells the log, the metrics and the other workers what a look has found."""
        if self._serving is None:
            if problem != self._problem:
                logger.warning(
                    "not ready, retrying: %s (hf-transformer doctor, with the same flags, says more)", problem
                )
        elif not self._check_health:
            problem = ""  # the requests show whether the model can be asked
        elif problem and not self._problem:
            logger.warning("the model is not ready any more: %s", problem)
        elif self._problem and not problem:
            logger.info("the model is ready again")
        self._problem = problem
        self._show_ready()

    def _show_ready(self) -> None:
        ready = not (self._problem or self._ending)
        self._metrics.ready.set(ready)
        if self._board is not None:
            self._board.set_ready(ready)


@dataclass(frozen=True, slots=True)
class Serving:
    """A pipeline while it is served. Requests under way keep the one that they began with."""

    pipeline: PredictPipeline
    generating: GeneratePipeline | None
    spec: ModelSpec
    description: ModelDescription


class FailureLog:
    """A log line when requests begin to fail, and one when they are answered again.

    There is at most one line of each kind in LOG_PAUSE seconds. ``clock`` gives seconds, for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failing = False
        """Whether the last request has failed."""
        self._clock = clock
        self._is_logged = False
        self._unlogged = 0
        self._not_before = -math.inf

    def failed(self, error: RequestError) -> None:
        """A request has failed."""
        self.failing = True
        now = self._clock()
        if self._is_logged or now < self._not_before:
            self._unlogged += 1
            return
        others = f" ({self._unlogged} more have failed since the last such line)" if self._unlogged else ""
        logger.warning("requests fail with %d: %s%s", error.status, error, others)
        self._is_logged = True
        self._unlogged = 0
        self._not_before = now + LOG_PAUSE

    def answered(self) -> None:
        """A request was answered after one that has failed."""
        self.failing = False
        if self._is_logged:
            self._is_logged = False
            logger.info("the predictor answers again")


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
