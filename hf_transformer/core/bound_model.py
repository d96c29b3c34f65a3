"""One model as the predictor has it: looked for until it is there and fits, and looked at again from then on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from hf_transformer.core.change import Sightings, asked_alike
from hf_transformer.core.failure_log import FailureLog
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.pipeline_users import Users
from hf_transformer.core.trial import SUSPECT_AFTER, Canary
from hf_transformer.errors import NotReady, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import ModelSpec
from hf_transformer.workers import Roster

logger = logging.getLogger(__name__)

QUESTION_TIMEOUT = 5.0
"""Seconds that the predictor has to answer all questions about its model, a trial included; a hung one must not hold up
the next try."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries to reach the predictor, doubling from the first to the longest."""
SETTLED_PAUSE = 1.0
"""Seconds between two looks at a predictor that was well at the first of them, whatever happens."""

AnyPipeline = Pipeline | GenerationPipeline


class BoundModel:
    """Finds the predictor in the background, and has a pipeline once it is found.

    Args:
        name: the model's name in every route.
        predictor: open, or to be opened around ``keep_bound``.
        build: makes the pipeline for what the predictor says of the model; raises ContractError if it does not fit.
        check_health: whether ``ready`` asks the predictor each time (--enable_predictor_health_check), and tries the
            model out when it answers nothing but errors.
        check_seconds: how long what the predictor says of the model is taken for true.
        roster: the workers of this service, which are ready together; None if there is one.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        build: Callable[[ModelSpec], AnyPipeline],
        metrics: Metrics,
        *,
        check_health: bool = False,
        check_seconds: float = 30.0,
        roster: Roster | None = None,
    ) -> None:
        self.name = name
        self._predictor = predictor
        self._build = build
        self._metrics = metrics
        self._check_health = check_health
        self._check_seconds = check_seconds
        self._roster = roster
        self._pipeline: AnyPipeline | None = None
        self._users: Users | None = None  # of a pipeline that generates
        self._spec: ModelSpec | None = None
        self._failures = FailureLog()
        self._away = False
        self._sightings = Sightings()
        self._at_once = False  # the next look may bind another model without having seen it twice
        self._healthy = True
        self._reason = "the predictor has not been reached yet"
        self._canary = Canary()
        self._doubt = asyncio.Event()
        self._looking: asyncio.Task[str] | None = None
        self._ending = False

    async def keep_bound(self) -> None:
        """Binds the model as soon as the predictor has it and it fits, and again when it is another one.

        Runs for as long as the service. Looks often as long as the model is not bound, and says in the log why, once
        per reason; with the health check also as long as it is not ready. Then every ``check_seconds``, and at once
        when requests have failed in a way that another model would explain, or are answered again.
        """
        pause = FIRST_PAUSE
        try:
            while True:
                self._doubt.clear()
                problem = await self.look()
                if self._pipeline is None or (problem and self._check_health):
                    logger.debug("model %r is still not ready, trying again in %.1f s at most", self.name, pause)
                    await asyncio.sleep(_jittered(pause))
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    pause = FIRST_PAUSE
                    await asyncio.sleep(_jittered(min(SETTLED_PAUSE, self._check_seconds)))
                    await self._until_doubt(_jittered(self._check_seconds))
        finally:
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.wait([self._looking])
            await self._canary.close()
            if self._users is not None:
                await self._users.close()

    async def _until_doubt(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._doubt.wait()

    async def look(self) -> str:
        """Why the model can't be asked now; empty if it can. All who ask at one time share one look at the predictor.

        It takes QUESTION_TIMEOUT at most.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> str:
        deadline = asyncio.get_running_loop().time() + QUESTION_TIMEOUT
        problem = ""
        try:
            pipeline = await self._bind()
            if self._check_health:
                await self._canary.check(pipeline.canary, deadline - asyncio.get_running_loop().time())
        except RequestError as error:
            problem = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            problem = "a question to the predictor was broken off"  # by the transport
        except Exception as error:
            # A fault of the service: without this the task would end in silence and the model never be ready.
            logger.exception("model %r can't be bound", self.name)
            problem = f"internal error: {type(error).__name__}"
        self._report(problem)
        return problem

    async def _bind(self) -> AnyPipeline:
        """Builds the pipeline for what the predictor says of the model now, unless that is what it was built for.

        Requests under way keep the pipeline that they have. Where nothing but the version differs all do.
        """
        spec = await self._describe()
        at_once = self._at_once or self._failures.failing
        self._at_once = False
        another = self._sightings.convince(spec, self._spec, at_once=at_once)
        if self._pipeline is None or another:
            if self._pipeline is None or not asked_alike(spec, self._spec):
                self._let_go()
                self._pipeline = pipeline = self._build(spec)
                self._users = Users(pipeline) if isinstance(pipeline, GenerationPipeline) else None
            self._spec = spec
            logger.info("model %r is ready: version %s", self.name, spec.version or "unknown")
        return self._pipeline

    def _let_go(self) -> None:
        """Of the pipeline: one that generates is closed once those that are in it have left."""
        self._pipeline = None
        if self._users is not None:
            self._users.retire()
            self._users = None

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

    def _report(self, problem: str) -> None:
        """Tells what a look at the predictor has found: the log if it is new, the metrics and the other workers."""
        if self._pipeline is None:
            if problem != self._reason:
                logger.warning("not ready, trying on: %s", problem)
            self._reason = problem
        elif self._check_health and bool(problem) is self._healthy:
            self._healthy = not problem
            if problem:
                logger.warning("the model is not ready any more: %s", problem)
            else:
                logger.info("the model is ready again")
        self._say(ready=self._pipeline is not None and not (problem and self._check_health))

    def begin_end(self) -> None:
        """Is not ready any more, so that no new requests are sent here; those that come all the same are answered."""
        self._ending = True
        self._say(ready=False)

    async def require_ready(self) -> None:
        """Raises NotReady, with the reason, while the model can't be asked.

        With the health check the predictor is asked; if it has another model by now, that is bound instead.
        """
        if self._ending:
            raise NotReady(f"model {self.name!r} is not ready: the service is shutting down")
        if self._check_health and (problem := await self.look()):
            raise NotReady(f"model {self.name!r} is not ready: {problem}")
        self._ready_pipeline()
        if self._roster is not None and (missing := self._roster.waiting_for):
            raise NotReady(f"model {self.name!r} is not ready: {missing} of the --workers are not yet")

    def _say(self, *, ready: bool) -> None:
        """To the metrics and the other workers."""
        ready = ready and not self._ending
        self._metrics.set_ready(ready)
        if self._roster is not None:
            self._roster.say(ready=ready)

    def _ready_pipeline(self) -> AnyPipeline:
        if self._pipeline is None:
            raise NotReady(f"model {self.name!r} is not ready: {self._reason}")
        return self._pipeline

    def _note_failure(self, error: RequestError) -> None:
        """What a failure says of the predictor, and whether to look at it again."""
        self._failures.failed(error)
        self._canary.failed(error)
        if isinstance(error, PredictorUnavailable | PredictorTimeout):
            self._away = True
        elif isinstance(error, PredictorError) and (self._away or self._canary.errors == SUSPECT_AFTER):
            self._look_soon()  # what has come back may be another model, or one that has died

    def _note_success(self) -> None:
        """The first request that is answered after failures."""
        self._failures.answered()
        self._canary.succeeded()
        if self._away:
            self._look_soon()

    def _look_soon(self) -> None:
        self._away = False
        self._at_once = True
        self._doubt.set()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
