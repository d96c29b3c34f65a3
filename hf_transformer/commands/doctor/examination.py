"""What checks get and give, and how they follow each other."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Literal

from hf_transformer.app.wiring import FittedBinding, LoadedModel, ModelBinding
from hf_transformer.config.options import Config
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import TransformerError
from hf_transformer.predictor.base import Address, Predictor, Transport
from hf_transformer.types.tensors import ModelSpec

logger = logging.getLogger(__name__)

Status = Literal["ok", "warning", "failed", "skipped"]
"""``warning``: it works, and could work better or will fail for some texts. ``skipped``: it could not, or need not, be
checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` is what there is, ``change`` what to do about it (a flag, an entry of config.pbtxt), empty where
    nothing is wrong.

    ``examine`` adds the ``name`` of the check, the ``seconds`` that its findings took together, and ``blocked`` where
    it was not made, because one that it needs failed.
    """

    status: Status
    found: str
    change: str = ""
    name: str = ""
    seconds: float = 0.0
    blocked: bool = False


def ok(found: str) -> list[Finding]:
    return [Finding("ok", found)]


def warning(found: str, change: str) -> list[Finding]:
    return [Finding("warning", found, change)]


def failed(found: str, change: str) -> list[Finding]:
    return [Finding("failed", found, change)]


def skipped(found: str) -> list[Finding]:
    return [Finding("skipped", found)]


class Subject:
    """What is examined: ``config`` and ``notes`` as ``parse_config`` gave them, and what checks have found out so far.

    Each attribute without a value is set by one check. A check that reads it names that check among its ``needs``.
    ``admin`` asks what the predictor says of itself. ``predictor`` makes calls over the same connections, with a bound
    in time. ``stack`` is closed at the end.
    """

    parts: LoadedModel
    address: Address
    admin: Transport
    predictor: Predictor
    spec: ModelSpec
    pair: ModelBinding
    pipeline: Pipeline

    def __init__(self, config: Config, notes: Sequence[str]) -> None:
        self.config = config
        self.notes = notes
        self.stack = AsyncExitStack()

    @property
    def bound(self) -> FittedBinding:
        """The pair of a predictive task."""
        if not isinstance(self.pair, FittedBinding):
            raise TypeError(f"{self.pair.task.name} is not a predictive task")
        return self.pair


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table. It is not made if one of ``needs`` has failed. If ``run`` raises a TransformerError, the
    finding is its message, and ``hint`` what to change. ``predictive``: not for models that generate text."""

    name: str
    run: Callable[[Subject], Awaitable[Sequence[Finding]]]
    needs: tuple[str, ...] = ()
    hint: str = "see the predictor's log"
    predictive: bool = False


async def examine(
    subject: Subject, checks: Sequence[Check], progress: Callable[[str], object] = lambda text: None
) -> AsyncIterator[Finding]:
    """Makes the checks, one after the other, and gives each finding as soon as it is there.

    ``progress`` gets a line about each check before it is made.
    """
    unusable: set[str] = set()
    async with subject.stack:
        for number, check in enumerate(checks, 1):
            progress(f"checking {check.name} ({number} of {len(checks)}) ...")
            started = time.perf_counter()
            missing = [name for name in check.needs if name in unusable]
            findings = skipped(f"not made: {missing[0]} comes first") if missing else await _findings(check, subject)
            if missing or any(one.status == "failed" for one in findings):
                unusable.add(check.name)
            seconds = time.perf_counter() - started
            for one in findings:
                yield replace(one, name=check.name, seconds=seconds, blocked=bool(missing))


async def _findings(check: Check, subject: Subject) -> Sequence[Finding]:
    try:
        if check.predictive and not isinstance(subject.pair, FittedBinding):
            return skipped("does not apply to generated text")
        return await check.run(subject)
    except TransformerError as error:
        return failed(str(error), check.hint)
    except Exception as error:  # our own bug in one check must not keep the others from being made
        logger.exception("the check %r failed", check.name)
        return failed(f"the check itself failed: {type(error).__name__}", "report this, with the traceback above")
