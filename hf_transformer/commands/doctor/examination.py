"""The input and output of checks, and the loop that runs them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Literal

from hf_transformer.app.loading import LoadedModel
from hf_transformer.app.pipelines import FittedBinding, ModelBinding
from hf_transformer.config.options import Config
from hf_transformer.core.label_vectors import LabelVectors
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import TransformerError
from hf_transformer.predictor.base import Address, Predictor, Transport
from hf_transformer.types.tensors import ModelSpec

logger = logging.getLogger(__name__)

Status = Literal["ok", "warning", "failed", "skipped"]
"""``warning``: the service works, but not optimally or not for all texts. ``skipped``: the check does not apply, or a
check in ``needs`` failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check: ``found`` describes the state, and ``change`` the remedy (empty without a problem).

    ``examine`` sets ``name``, the check's duration in ``seconds``, ``blocked`` if a check in ``needs`` failed, and
    ``repeated`` if the finding is that of an earlier model.
    """

    status: Status
    found: str
    change: str = ""
    name: str = ""
    seconds: float = 0.0
    blocked: bool = False
    repeated: bool = False


def ok(found: str) -> list[Finding]:
    return [Finding("ok", found)]


def warning(found: str, change: str) -> list[Finding]:
    return [Finding("warning", found, change)]


def failed(found: str, change: str) -> list[Finding]:
    return [Finding("failed", found, change)]


def skipped(found: str) -> list[Finding]:
    return [Finding("skipped", found)]


class Subject:
    """The state of an examination: the result of ``parse_config``, and the results of earlier checks.

    Each attribute below is set by a check. A check that reads the attribute depends on that check. ``admin`` reads
    the predictor's metadata and health. ``predictor`` shares the connections of ``admin`` and enforces a timeout.
    ``examine`` closes ``stack`` at the end. The models of a predictor share ``known``, its findings by check.
    """

    loaded: LoadedModel
    address: Address
    admin: Transport
    predictor: Predictor
    spec: ModelSpec
    binding: ModelBinding
    pipeline: Pipeline
    label_vectors: LabelVectors | None

    def __init__(
        self, config: Config, notes: Sequence[str], known: MutableMapping[str, Sequence[Finding]] | None = None
    ) -> None:
        self.config = config
        self.notes = notes
        self.known = {} if known is None else known
        self.stack = AsyncExitStack()

    @property
    def fitted(self) -> FittedBinding:
        """The binding of a predictive task. Raises TypeError for a model that generates text."""
        if not isinstance(self.binding, FittedBinding):
            raise TypeError(f"{self.binding.task.name} is not a predictive task")
        return self.binding


@dataclass(frozen=True, slots=True)
class Check:
    """A check in the doctor's table.

    The message of a TransformerError from ``run`` becomes the finding, with ``hint`` as the remedy. ``needs`` names the
    checks that must pass first. ``predictive`` skips the check for models that generate text. The findings of a check
    with ``again`` hold for all models of a predictor: ``again`` sets what ``run`` sets in the subject of a later model.
    """

    name: str
    run: Callable[[Subject], Awaitable[Sequence[Finding]]]
    needs: tuple[str, ...] = ()
    hint: str = "see the predictor's log"
    predictive: bool = False
    again: Callable[[Subject], Awaitable[None]] | None = None


async def examine(
    subject: Subject, checks: Sequence[Check], progress: Callable[[str], object] = lambda text: None
) -> AsyncIterator[Finding]:
    """Runs the checks in order and yields their findings. ``progress`` receives a line of text before each check."""
    unusable: set[str] = set()
    async with subject.stack:
        for number, check in enumerate(checks, 1):
            progress(f"checking {check.name} ({number} of {len(checks)}) ...")
            started = time.perf_counter()
            missing = [name for name in check.needs if name in unusable]
            repeated = check.name in subject.known
            findings = skipped(f"not run: it needs {missing[0]}") if missing else await _findings(check, subject)
            if check.again and not missing:
                subject.known.setdefault(check.name, findings)
            if missing or any(finding.status == "failed" for finding in findings):
                unusable.add(check.name)
            seconds = time.perf_counter() - started
            for finding in findings:
                yield replace(finding, name=check.name, seconds=seconds, blocked=bool(missing), repeated=repeated)


async def _findings(check: Check, subject: Subject) -> Sequence[Finding]:
    try:
        if check.again and (former := subject.known.get(check.name)):
            if all(finding.status != "failed" for finding in former):
                await check.again(subject)
            return former
        if check.predictive and not isinstance(subject.binding, FittedBinding):
            return skipped("does not apply to generated text")
        return await check.run(subject)
    except TransformerError as error:
        return failed(str(error), check.hint)
    except Exception as error:  # a bug in one check must not stop the others
        logger.exception("the check %r failed", check.name)
        return failed(f"the check has a bug: {type(error).__name__}", "report it, with the traceback above")
