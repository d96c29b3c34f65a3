"""Finds out whether a model still infers, when its requests say that it may not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hf_transformer.errors import NotReady, PredictorDenied, PredictorError, RequestError

SUSPECT_AFTER = 3
"""Requests in a row that the predictor answered with an error of its own, before the model is tried out."""

LAST_SECONDS = 1.0
"""How long the end waits for a trial that was cancelled."""


class Canary:
    """Tries a model out that seems broken: a Python backend whose process has died answers every inference with 500,
    and the question whether it is ready with yes.

    Nothing is sent as long as requests succeed, and one trial at a time otherwise.
    """

    def __init__(self) -> None:
        self.errors = 0
        """Requests in a row that ended in PredictorError."""
        self._trial: asyncio.Future[None] | None = None

    def failed(self, error: RequestError) -> None:
        """A request has failed. Only an error of the predictor's own counts; others say nothing of the model."""
        if isinstance(error, PredictorError) and not isinstance(error, PredictorDenied):
            self.errors += 1

    def succeeded(self) -> None:
        """A request was answered."""
        self.errors = 0

    @property
    def suspects(self) -> bool:
        """Whether the model has to be tried out."""
        return self.errors >= SUSPECT_AFTER

    async def check(self, infer: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Tries the model out if that is necessary.

        Args:
            infer: one inference, whose answer is right if it raises nothing.
            seconds: how long it may take.

        Raises:
            NotReady: it fails, or takes longer; then it is cancelled, and another one waits for its end.
        """
        if not self.suspects:
            return
        if self._trial is None or self._trial.cancelled():
            self._trial = asyncio.ensure_future(infer())
        trial = self._trial
        # Not with a timeout around it: some calls can't be cut short, see RetryingPredictor.
        await asyncio.wait([trial], timeout=max(seconds, 0.0))
        reason = f"the last {self.errors} requests failed, and so does a trial"
        if not trial.done():
            trial.cancel()
            raise NotReady(f"{reason}: no answer in time")
        self._trial = None
        try:
            trial.result()
        except PredictorDenied:
            pass  # it has no client's permission to ask, which says nothing of the model
        except RequestError as error:
            raise NotReady(f"{reason}: {error}") from error
        except asyncio.CancelledError as error:
            raise NotReady(f"{reason}: it was broken off") from error
        self.errors = 0

    async def close(self) -> None:
        """Ends a trial. One that can't be cut short ends with the predictor's connections, which are closed next."""
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait([self._trial], timeout=LAST_SECONDS)
