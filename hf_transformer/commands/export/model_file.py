"""A graph as model.onnx or model.pt, and proof that the file gives the same as the model: samples go through both."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_transformer.commands.export.checkpoint import Checkpoint, explained
from hf_transformer.commands.export.config_pbtxt import BATCH, DECODED, MASKS, SEQUENCE
from hf_transformer.commands.export.graph import Graph
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.types import Array, Encoding

WEIGHTS = "model.onnx.data"  # beside model.onnx, where the weights don't fit into it
SHORT = "hi"
MIDDLE = "The capital of {0} is {0}."
LONGER = "A rather longer sentence {0}, so that the shorter ones are padded beside it, and a word nobody knows: qzxv."
LONG = " ".join([LONGER] * 20)
BATCHES = ((MIDDLE, SHORT, LONGER), (SHORT,), (LONGER, LONGER), (LONG,), (SHORT, LONG, MIDDLE))
"""With mask tokens for fill_mask at {0}: none, one or several in a text, and none in a batch."""
BATCHES_WITHOUT_MASK = ((LONGER, LONGER), (SHORT,), (MIDDLE,), (LONG,))
"""Without an attention mask a model can't tell padding from text, so these batches have none."""
LONGEST = 300
"""Tokens of the longest text: more than the windows of attention that encoders have, such as ModernBERT's 128."""
DECODED_TOKENS = 3

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of texts. ``expected`` is what the model as it was loaded gives for each text, without padding."""

    inputs: Inputs
    expected: Sequence[Mapping[str, Array]]  # by output
    sizes: Mapping[str, int]  # of the batch's free axes


def take_samples(graph: Graph, checkpoint: Checkpoint, settings: Namespace) -> list[Sample]:
    """Batches with the answers of the model itself, called as transformers' users do, in float32. Raises ConfigError if
    a model for text generation sees the tokens that come after, LoadError if the model can't be called so."""
    masked = any(tensor.name == "attention_mask" for tensor in graph.inputs)
    batches = BATCHES if masked else BATCHES_WITHOUT_MASK
    tokenizer = checkpoint.tokenizer.with_max_length(min(LONGEST, checkpoint.tokenizer.max_length))
    blank = tokenizer.mask_token if checkpoint.task == "fill_mask" else "paris"
    with explained(f"{type(checkpoint.model).__name__} can't be asked for {checkpoint.task}"), torch.no_grad():
        if checkpoint.task == "text_generation":
            _require_causal(checkpoint)
        return [
            _sample(graph, checkpoint, tokenizer.encode([text.format(blank) for text in texts])) for texts in batches
        ]


def _require_causal(checkpoint: Checkpoint) -> None:
    """transformers makes a causal model of an encoder's weights too, but it does not write text."""
    ids = torch.tensor([checkpoint.tokenizer.encode([LONGER])[0].ids])
    whole, cut = (checkpoint.model(input_ids=one).logits[0, 0] for one in (ids, ids[:, :-1]))
    if not torch.allclose(whole, cut, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            "--task=text_generation: its logits depend on the tokens that follow; it was trained for another task"
        )


def _sample(graph: Graph, checkpoint: Checkpoint, encodings: Sequence[Encoding]) -> Sample:
    """One batch, padded as the service pads it."""
    width = max(map(len, encodings))

    def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])

    ids = padded([one.ids for one in encodings], checkpoint.tokenizer.pad_id)
    made = {
        "input_ids": ids,
        "attention_mask": padded([[1] * len(one) for one in encodings]),
        "token_type_ids": padded([one.type_ids for one in encodings]),
        "decoder_input_ids": ids[:, :DECODED_TOKENS],
    }
    inputs = {tensor.name: made[tensor.name] for tensor in graph.inputs}
    found = checkpoint.model(**inputs)
    head: Any = getattr(graph, "head", graph)  # of a reduction
    expected = []
    for row, one in enumerate(encodings):
        whole = {
            output.name: getattr(found, output.name)[row, : len(one) if SEQUENCE in output.axes else None].numpy()
            for output in head.outputs
        }
        expected.append(graph.expected(whole, one.ids))
    masks = [sum(token == checkpoint.tokenizer.mask_id for token in one.ids) for one in encodings]
    sizes = {BATCH: len(encodings), SEQUENCE: width, DECODED: min(width, DECODED_TOKENS), MASKS: max(masks)}
    return Sample(inputs, expected, sizes)


def write_model(graph: Graph, path: Path, form: str, inputs: Inputs) -> None:
    """Writes model.onnx or model.pt with its weights. The graph is traced with ``inputs``, a batch of several texts.
    Raises LoadError where torch can't make such a file of this model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with explained(f"torch can't write this model as {form}"), warnings.catch_warnings(), torch.no_grad():
        # Tracing warns of every shape that it sees; the result is compared with the model.
        warnings.simplefilter("ignore")
        (_write_onnx if form == "onnx" else _write_torchscript)(graph, path, inputs)


def _write_onnx(graph: Graph, path: Path, inputs: Inputs) -> None:
    torch.onnx.export(
        graph,
        tuple(inputs.values()),
        str(path),
        input_names=[tensor.name for tensor in graph.inputs],
        output_names=[tensor.name for tensor in graph.outputs],
        dynamic_axes={
            tensor.name: {number: axis for number, axis in enumerate(tensor.axes) if isinstance(axis, str)}
            for tensor in (*graph.inputs, *graph.outputs)
        },
        opset_version=17,  # old enough for every Triton container since 2023
        # The tracing exporter: the newer one stores shared embeddings twice.
        dynamo=False,
    )
    if len(list(path.parent.iterdir())) > 1:
        gather_weights(path)


def gather_weights(path: Path) -> None:
    """Puts all weights into one file, where torch writes one file for each; takes memory for all of them.

    torch does so above 2 GB, the most that a protobuf message can hold.
    """
    import onnx

    model = onnx.load(str(path))
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=WEIGHTS)


def _write_torchscript(graph: Graph, path: Path, inputs: Inputs) -> None:
    traced = torch.jit.trace(graph, tuple(inputs.values()), strict=False, check_trace=False)
    for module in traced.modules():
        for name in module._c._method_names():  # one for each time that it is called
            _free_devices(module._c._get_method(name).graph)
    traced.save(str(path))


def _free_devices(graph: Any) -> None:
    """Makes tensors on the device of the inputs. A trace has the device that it ran on, the CPU, as a constant."""
    tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
    for node in list(graph.nodes()):
        if tensors and node.kind() == "prim::Constant" and node.output().type().kind() == "DeviceObjType":
            device = graph.create("prim::device", [tensors[0]], 1)
            device.output().setType(torch._C.DeviceObjType.get())
            device.insertBefore(node)
            node.output().replaceAllUsesWith(device.output())


def verify(graph: Graph, path: Path, samples: Sequence[Sample], settings: Namespace) -> float:
    """Runs the samples through the file; the largest difference, relative to a text's largest value, 1 at least.
    Raises LoadError if it can't be run, or an output differs by more than the tolerance or has another shape."""
    worst = 0.0
    with explained(f"{path.name} was written, but does not run"):
        run = _onnx_runner(path) if settings.format == "onnx" else _torch_runner(path)
        for sample in samples:
            found = {}
            for output, array in zip(graph.outputs, run(sample.inputs), strict=True):
                shape = tuple(sample.sizes[axis] if isinstance(axis, str) else axis for axis in output.axes)
                if array.shape != shape:
                    raise LoadError(f"{path.name}: {output.name} has the shape {array.shape}, expected {shape}")
                found[output.name] = array
            for row, expected in enumerate(sample.expected):
                for name, difference in _differences(expected, {name: found[name][row] for name in found}):
                    if not difference <= settings.tolerance:  # NaN too
                        raise LoadError(
                            f"{path.name} differs from the model: {name} by {difference:.3g} for a batch of the shape "
                            f"{tuple(sample.inputs['input_ids'].shape)}, and {settings.tolerance:g} is taken for the "
                            "same (--tolerance)"
                        )
                    worst = max(worst, difference)
    return worst


def _differences(expected: Mapping[str, Array], found: Mapping[str, Array]) -> list[tuple[str, float]]:
    """The difference of each output of one text, whose padding is left out."""
    if "topk_ids" not in found:
        return [(name, _difference(array, found[name][: len(array)])) for name, array in expected.items()]
    # The order of equally likely tokens is free, so the scores are compared: the model's own of the tokens that were
    # found, and its highest ones, so that none was left out.
    own = expected["probabilities"]
    ids, scores = (found[name][: len(own)] for name in ("topk_ids", "topk_scores"))
    highest = np.sort(own)[:, ::-1][:, : scores.shape[1]]
    return [("topk_scores", _difference(one, scores)) for one in (np.take_along_axis(own, ids, 1), highest)]


def _difference(expected: Array, found: Array) -> float:
    if not expected.size:
        return 0.0
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    return float(np.abs(expected - found).max() / max(1.0, np.abs(expected).max()))


def _onnx_runner(path: Path) -> Run:
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: nobody can do anything about the warnings of its optimizer
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})


def _torch_runner(path: Path) -> Run:
    module = torch.jit.load(str(path))

    def run(inputs: Inputs) -> list[Array]:
        with torch.no_grad():
            return [tensor.numpy() for tensor in module(*inputs.values())]

    return run
