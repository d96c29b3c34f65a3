"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed", "skipped"]
"""A warning is what works and could be better, or will fail for some texts; ``skipped`` is what could not, or need not,
be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` is what there is, ``change`` what to do about it, in the words of a flag or of config.pbtxt; empty
    where nothing is wrong."""

    status: Status
    found: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding of the check with this name, which took ``seconds`` together with its other findings. ``blocked`` says
    that the check was not made, for want of another one's success."""

    name: str
    status: Status
    found: str
    change: str
    seconds: float
    blocked: bool = False


def ok(found: str) -> list[Finding]:
    return [Finding("ok", found)]


def warning(found: str, change: str) -> list[Finding]:
    return [Finding("warning", found, change)]


def failed(found: str, change: str) -> list[Finding]:
    return [Finding("failed", found, change)]


def skipped(found: str) -> list[Finding]:
    return [Finding("skipped", found)]
