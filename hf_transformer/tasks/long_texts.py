"""Parameters about the length of texts: truncation, windows and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Protocol

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import Overflow, TaskSettings
from hf_transformer.tasks.options import Lengths, Stride, WindowScore
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import PLAIN, Tokenization

WINDOWS = ("stride", "window_score", "max_chunks_per_doc")
"""Names of the parameters of windows."""


def read_overflow(given: Lengths, default: Overflow) -> Overflow:
    """Treatment of an overlong text by the request's ``truncation``, or ``default``."""
    return default if given.truncation is None else "truncate" if given.truncation else "error"


def read_truncation(given: Lengths, settings: TaskSettings) -> Overflow:
    """Treatment of an overlong text in a task without windows."""
    return read_overflow(given, "error" if settings.on_overflow == "error" else "truncate")


def read_tokenization(request: Lengths, base: Tokenization = PLAIN) -> Tokenization:
    """Adds the request's ``truncation_side`` and ``max_tokens`` to the task's tokenization options."""
    if request.truncation_side is not None:
        base = replace(base, truncation_side=request.truncation_side)
    return base if request.max_tokens is None else replace(base, max_length=request.max_tokens)


def from_beginning(tokenization: Tokenization) -> Tokenization:
    """Makes windows run from the beginning of a text, where its prompt is. They contain the whole text in any case."""
    return replace(tokenization, truncation_side="right") if tokenization.windows else tokenization


def default_stride(given: Lengths, settings: TaskSettings) -> int:
    """The number of tokens that neighbouring windows share, if the request doesn't say: less with ``max_tokens``."""
    stride = settings.window_stride
    return stride if given.max_tokens is None else min(stride, given.max_tokens // 4)


class WindowLengths(Lengths, Protocol):
    """The parameters about long texts of a task with windows."""

    stride: Stride


def read_windows(
    request: WindowLengths,
    present: Set[str],
    settings: TaskSettings,
    overflow: Overflow,
    base: Tokenization,
    *,
    fit_stride: bool = True,
    most: int | None = None,
) -> Tokenization:
    """Adds the request's windows to the task's tokenization options, and ``read_tokenization``.

    Args:
        present: the names of the request's parameters.
        most: the number of windows of a text to read; None for all.

    Raises:
        InvalidInput: a parameter of windows in a request without windows.
    """
    options = read_tokenization(request, base)
    if overflow == "window":
        stride = default_stride(request, settings) if request.stride is None else request.stride
        return replace(options, windows=True, stride=stride, fit_stride=fit_stride, max_windows_each=most)
    if not present.isdisjoint(WINDOWS):
        name = next(name for name in WINDOWS if name in present)
        hint = "start the service with --on_overflow=window and leave truncation out"
        raise InvalidInput(("parameters", name), "no value without windows", hint=hint)
    return options


def merge(windows: Sequence[Array], score: WindowScore, rank: Callable[[Array], Array]) -> Array:
    """Merges the logits [labels] of a text's windows: those of the window with the highest ``rank``, or their mean.

    ``rank`` maps logits [windows, labels] to numbers [windows].
    """
    if len(windows) == 1:
        return windows[0]
    logits = np.array(windows)
    merged: Array = logits[rank(logits).argmax()] if score == "max" else logits.mean(axis=0)
    return merged
