"""Parameters about the length of texts: truncation, windows and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import Overflow, TaskSettings
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import PLAIN, Side, Tokenization

TRUNCATION = ("truncation", "truncation_side", "max_tokens")
"""Names of the parameters of all predictive tasks."""
_LENGTHS = TRUNCATION[1:]
WINDOWS = ("stride", "window_score", "max_chunks_per_doc")
"""Names of the parameters that ``read_windows`` reads."""
_LENGTHS_AND_WINDOWS = (*_LENGTHS, *WINDOWS)
WindowScore = Literal["max", "mean"]
"""A text's logits: those of its best window, or the mean of all windows."""


def read_overflow(parameters: Parameters, default: Overflow) -> Overflow:
    """Treatment of an overlong text by the request's ``truncation``, or ``default``."""
    if "truncation" not in parameters:
        return default
    return "truncate" if parameters.flag("truncation", True) else "error"


def read_truncation(parameters: Parameters, settings: TaskSettings) -> Overflow:
    """Treatment of an overlong text in a task without windows."""
    return read_overflow(parameters, "error" if settings.on_overflow == "error" else "truncate")


def read_tokenization(checked: Parameters, base: Tokenization = PLAIN) -> Tokenization:
    """Adds the request's ``truncation_side`` and ``max_tokens`` to the task's tokenization options."""
    if not checked.has_any(_LENGTHS):  # as in most requests
        return base
    if "truncation_side" in checked:
        side = cast(Side, checked.choice("truncation_side", "right", ("left", "right")))
        base = replace(base, truncation_side=side)
    if "max_tokens" in checked:
        base = replace(base, max_length=checked.integer("max_tokens", 1, 1))
    return base


def from_beginning(tokenization: Tokenization) -> Tokenization:
    """Makes windows run from the beginning of a text, where its prompt is. They contain the whole text in any case."""
    return replace(tokenization, truncation_side="right") if tokenization.windows else tokenization


def default_stride(checked: Parameters, settings: TaskSettings) -> int:
    """The number of tokens that neighbouring windows share, if the request doesn't say: less with ``max_tokens``."""
    stride = settings.window_stride
    return min(stride, checked.integer("max_tokens", 1, 1) // 4) if "max_tokens" in checked else stride


def read_windows(
    checked: Parameters, settings: TaskSettings, overflow: Overflow, base: Tokenization, *, fit_stride: bool = True
) -> Tokenization:
    """Adds the request's windows to the task's tokenization options, and ``read_tokenization``.

    Raises:
        InvalidInput: a parameter of windows in a request without windows.
    """
    if overflow != "window" and not checked.has_any(_LENGTHS_AND_WINDOWS):
        return base
    options = read_tokenization(checked, base)
    if overflow == "window":
        stride = checked.integer("stride", default_stride(checked, settings), 0)
        most = checked.integer("max_chunks_per_doc", 1, 1) if "max_chunks_per_doc" in checked else None
        return replace(options, windows=True, stride=stride, fit_stride=fit_stride, max_windows_each=most)
    if checked.has_any(WINDOWS):
        name = next(name for name in WINDOWS if name in checked)
        hint = "start the service with --on_overflow=window and leave truncation out"
        raise InvalidInput(("parameters", name), "no value without windows", hint=hint)
    return options


def read_window_score(checked: Parameters) -> WindowScore:
    """Reads ``window_score``."""
    return cast(WindowScore, checked.choice("window_score", "max", ("max", "mean")))


def merge(windows: Sequence[Array], score: WindowScore, rank: Callable[[Array], Array]) -> Array:
    """Merges the logits [labels] of a text's windows: those of the window with the highest ``rank``, or their mean.

    ``rank`` maps logits [windows, labels] to numbers [windows].
    """
    if len(windows) == 1:
        return windows[0]
    logits = np.array(windows)
    merged: Array = logits[rank(logits).argmax()] if score == "max" else logits.mean(axis=0)
    return merged
