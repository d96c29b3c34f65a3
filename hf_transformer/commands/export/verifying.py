"""What was written gives what the model gives: the same texts through both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.samples import Inputs, Sample
from hf_transformer.commands.export.settings import ExportSettings
from hf_transformer.errors import LoadError

TOLERANCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""How far a value may be off by default: so much of the largest value of its output, and of 1 at least."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Verified:
    """The largest difference that was found, of so many batches, and how large it might have been."""

    difference: float
    batches: int
    tolerance: float


def verify(graph: Graph, path: Path, samples: Sequence[Sample], settings: ExportSettings) -> Verified:
    """Runs the samples through the file.

    Raises:
        LoadError: it can't be run, or an output differs by more than the tolerance or has another shape.
    """
    tolerance = TOLERANCES[settings.precision] if settings.tolerance is None else settings.tolerance
    worst = 0.0
    try:
        run = _onnx_runner(path, graph) if settings.format == "onnx" else _torch_runner(path)
        for sample in samples:
            worst = max(worst, _checked(graph, run(sample.inputs), sample, path, tolerance))
    except (RuntimeError, ValueError, TypeError, IndexError) as exc:
        # onnxruntime's and onnx's own errors are RuntimeErrors and ValueErrors.
        reason = " ".join(str(exc).split())[:400]
        raise LoadError(f"{path.name} was written, but does not run: {reason}") from exc
    return Verified(worst, len(samples), tolerance)


def _checked(graph: Graph, arrays: Sequence[Array], sample: Sample, path: Path, tolerance: float) -> float:
    """The largest difference of one batch."""
    shape = tuple(sample.inputs["input_ids"].shape)
    if len(arrays) != len(graph.outputs):
        raise LoadError(f"{path.name} gives {len(arrays)} outputs, expected {len(graph.outputs)}")
    found = {output.name: array for output, array in zip(graph.outputs, arrays, strict=True)}
    for output in graph.outputs:
        _require_axes(output.axes, found[output.name].shape, output.name)
    worst = 0.0
    for name, difference in _differences(sample, found).items():
        if not difference <= tolerance:  # NaN too
            raise LoadError(
                f"{path.name} differs from the model: {name} by {difference:.3g} for a batch of the shape {shape}, "
                f"and {tolerance:g} is taken for the same (--tolerance)"
            )
        worst = max(worst, difference)
    return worst


def _require_axes(axes: Sequence[str | int], shape: Sequence[int], name: str) -> None:
    """config.pbtxt says these."""
    fits = len(axes) == len(shape) and all(
        isinstance(axis, str) or axis == size for axis, size in zip(axes, shape, strict=True)
    )
    if not fits:
        raise LoadError(f"{name} has the shape {list(shape)}, and config.json stands for {list(axes)}")


def _differences(sample: Sample, found: Mapping[str, Array]) -> dict[str, float]:
    if "topk_ids" in found:
        return {"topk_scores": _of_top_tokens(sample, found["topk_ids"], found["topk_scores"])}
    return {name: _difference(name, sample, array, found[name]) for name, array in sample.expected.items()}


def _difference(name: str, sample: Sample, expected: Array, found: Array) -> float:
    if expected.shape != found.shape:
        raise LoadError(f"{name} has the shape {found.shape} where the model gives {expected.shape}")
    ids, mask = sample.inputs["input_ids"], sample.inputs.get("attention_mask")
    per_token = "decoder_input_ids" not in sample.inputs and expected.shape[:2] == tuple(ids.shape)
    if mask is not None and per_token:  # what stands at padding is nobody's
        shown = mask.numpy().astype(bool)
        expected, found = expected[shown], found[shown]
    return _relative(expected, found)


def _of_top_tokens(sample: Sample, best: Array, scores: Array) -> float:
    """The model's own probabilities of the tokens that were given, against those that came with them; and the
    likeliest against the likeliest, so that none was left out. By mask: ``expected`` has the rows of each text."""
    by_text = sample.expected["probabilities"]
    most = max(len(rows) for rows in by_text)
    if best.shape != scores.shape or best.shape[1] != most:
        raise LoadError(f"topk_ids and topk_scores have the shapes {best.shape} and {scores.shape} for {most} masks")
    worst = 0.0
    for row, rows in enumerate(by_text):
        for number, own in enumerate(rows):
            given = scores[row, number]
            worst = max(worst, _relative(own[best[row, number]], given))
            worst = max(worst, _relative(np.sort(own)[::-1][: len(given)], given))
    return worst


def _relative(expected: Array, found: Array) -> float:
    if not expected.size:
        return 0.0
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    return float(np.abs(expected - found).max() / max(1.0, np.abs(expected).max()))


def _onnx_runner(path: Path, graph: Graph) -> Callable[[Inputs], list[Array]]:
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: nobody can do anything about the warnings of its optimizer
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in graph.outputs]

    def run(inputs: Inputs) -> list[Array]:
        found: list[Array] = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return found

    return run


def _torch_runner(path: Path) -> Callable[[Inputs], list[Array]]:
    module = torch.jit.load(str(path))

    def run(inputs: Inputs) -> list[Array]:
        with torch.no_grad():
            found = module(*inputs.values())
        tensors = found if isinstance(found, tuple | list) else (found,)
        return [tensor.numpy() for tensor in tensors]

    return run
