"""A graph as model.onnx or model.pt, and proof that the file gives the same as the model: samples go through both."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_transformer.commands.export.checkpoint import Checkpoint, explained
from hf_transformer.commands.export.config_pbtxt import BATCH, DECODED, MASKS, SEQUENCE
from hf_transformer.commands.export.graph import Graph, LastEnd
from hf_transformer.core.batch_rules import BatchRules, batch_rules
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding

WEIGHTS = "model.onnx.data"  # beside model.onnx, where the weights don't fit into it
SHORT = "hi"
MIDDLE = "The capital of {0} is {0}."
LONGER = "A rather longer sentence {0}, so that the shorter ones are padded beside it, and a word nobody knows: qzxv."
MARKED = "It ended {1} here, {1} there and {0} at last {1}"
"""With special tokens of the tokenizer in the text itself, at {1}."""
LONG = " ".join([LONGER] * 30)
PAIR, OTHER_PAIR = (MIDDLE, LONGER), (MARKED, SHORT)
BATCHES: Sequence[Sequence[str | tuple[str, str]]] = (
    (MIDDLE, SHORT, LONGER),
    (SHORT,),
    (LONGER, LONGER),
    (LONG,),
    (SHORT, LONG, MIDDLE, MARKED),
    (MARKED, LONGER, SHORT, ""),
)
"""With mask tokens for fill_mask at {0}: none, one or several in a text, and none in a batch. The first one is traced:
its texts have different lengths."""
PAIRS = ((PAIR, OTHER_PAIR, (SHORT, SHORT)), (OTHER_PAIR,))
"""More batches, for tasks that read pairs."""
READ_PAIRS = ("sequence_classification", "zero_shot_classification", "rerank", "question_answering")
BATCH_TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3}
"""The most by which an answer in a batch may differ from that to the text alone, by precision."""
LONGEST = 512
"""Tokens of the longest text: more than the windows of attention that encoders have, such as ModernBERT's 128."""
DECODED_TOKENS = 3

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of texts, padded as the service pads it.

    ``expected`` is what the model as it was loaded gives for each text alone, without padding. ``alone`` has each
    text's own inputs, likewise. ``sizes`` are those of the batch's free axes, ``left`` says where padding stands.
    """

    inputs: Inputs
    expected: Sequence[Mapping[str, Array]]  # by output
    alone: Sequence[Inputs]
    sizes: Mapping[str, int]
    left: bool


def take_samples(graph: Graph, checkpoint: Checkpoint, settings: Namespace) -> list[Sample]:
    """Batches with the answers of the model itself, called as transformers' users do, in float32. Texts that never
    share a batch of the service (core.batch_rules) share none here.

    Raises ConfigError if a model for text generation sees the tokens that come after, LoadError if the model can't be
    called so.
    """
    masked = any(tensor.name == "attention_mask" for tensor in graph.inputs)
    rules = batch_rules(checkpoint.files.config, None)
    if isinstance(getattr(graph, "head", graph), LastEnd):  # this graph counts none
        rules = replace(rules, counted_id=None)
    tokenizer = checkpoint.tokenizer.with_max_length(min(LONGEST, checkpoint.tokenizer.max_length))
    blank = tokenizer.mask_token if checkpoint.task == "fill_mask" else "paris"
    named = tokenizer.special_tokens
    marks = " ".join(dict.fromkeys(named[name] for name in ("eos_token", "sep_token", "cls_token") if name in named))
    batches = [*BATCHES, *(PAIRS if checkpoint.task in READ_PAIRS else ())]
    with explained(f"{type(checkpoint.model).__name__} can't be asked for {checkpoint.task}"), torch.no_grad():
        if checkpoint.task == "text_generation":
            _require_causal(checkpoint)
        samples = []
        for texts in batches:
            filled = [
                text.format(blank, marks)
                if isinstance(text, str)
                else tuple(part.format(blank, marks) for part in text)
                for text in texts
            ]
            groups: dict[tuple[int, int], list[Encoding]] = {}
            for one in filter(len, tokenizer.encode(filled)):  # no tokens: an empty text, without special ones
                length = 0 if masked and not rules.equal_lengths else len(one)
                count = 0 if rules.counted_id is None else one.ids.count(rules.counted_id)
                groups.setdefault((length, count), []).append(one)
            samples += [_sample(graph, checkpoint, rules, masked, group) for group in groups.values()]
        return sorted(samples, key=lambda sample: len(sample.alone), reverse=True)


def _require_causal(checkpoint: Checkpoint) -> None:
    """transformers makes a causal model of an encoder's weights too, but it does not write text."""
    ids = torch.tensor([checkpoint.tokenizer.encode([LONGER])[0].ids])
    whole, cut = (checkpoint.model(input_ids=one).logits[0, 0] for one in (ids, ids[:, :-1]))
    if not torch.allclose(whole, cut, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            "--task=text_generation: its logits depend on the tokens that follow; it was trained for another task"
        )


def _sample(
    graph: Graph, checkpoint: Checkpoint, rules: BatchRules, masked: bool, encodings: Sequence[Encoding]
) -> Sample:
    """One batch, and each text's own answers."""
    pad_id = checkpoint.tokenizer.pad_id if rules.pad_id is None or not masked else rules.pad_id
    left = rules.left and masked
    head: Any = getattr(graph, "head", graph)  # of a reduction
    alone, expected = [], []
    for one in encodings:
        inputs = _inputs(graph, [one], pad_id, left)
        found = checkpoint.model(**inputs)
        whole = {output.name: getattr(found, output.name)[0].numpy() for output in head.outputs}
        alone.append(inputs)
        expected.append(graph.expected(whole, one.ids))
    width = max(map(len, encodings))
    masks = [sum(token == checkpoint.tokenizer.mask_id for token in one.ids) for one in encodings]
    sizes = {BATCH: len(encodings), SEQUENCE: width, DECODED: min(width, DECODED_TOKENS), MASKS: max(masks)}
    return Sample(_inputs(graph, encodings, pad_id, left), expected, alone, sizes, left)


def _inputs(graph: Graph, encodings: Sequence[Encoding], pad_id: int, left: bool) -> Inputs:
    """The graph's inputs for texts of one batch, padded to the longest."""
    width = max(map(len, encodings))

    def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> torch.Tensor:
        padding = [[fill] * (width - len(row)) for row in rows]
        return torch.tensor(
            [[*fills, *row] if left else [*row, *fills] for row, fills in zip(rows, padding, strict=True)]
        )

    ids = padded([one.ids for one in encodings], pad_id)
    made = {
        "input_ids": ids,
        "attention_mask": padded([[1] * len(one) for one in encodings]),
        "token_type_ids": padded([one.type_ids for one in encodings]),
        "decoder_input_ids": ids[:, :DECODED_TOKENS],
    }
    return {tensor.name: made[tensor.name] for tensor in graph.inputs}


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
    """Runs the samples through the file; the largest difference from the model's answers to each text alone, relative
    to a text's largest value, 1 at least.

    Raises LoadError if the file can't be run, an output differs by more than the tolerance or has another shape, or an
    answer depends on the other texts of its batch.
    """
    worst, rule = 0.0, BATCH_TOLERANCES[settings.precision]
    with explained(f"{path.name} was written, but does not run"):
        run = _onnx_runner(path) if settings.format == "onnx" else _torch_runner(path)
        for sample in samples:
            found = _run(graph, run, sample.inputs, path, sample.sizes)
            for row, (expected, alone) in enumerate(zip(sample.expected, sample.alone, strict=True)):
                shape = tuple(sample.inputs["input_ids"].shape)
                for name, difference in _differences(expected, found, row, sample.left):
                    if not difference <= settings.tolerance:  # NaN too
                        raise LoadError(
                            f"{path.name} differs from the model: {name} by {difference:.3g} for a text in a batch of "
                            f"the shape {shape}, and {settings.tolerance:g} is taken for the same (--tolerance)"
                        )
                    worst = max(worst, difference)
                if len(sample.alone) == 1 or settings.max_batch_size == 1:
                    continue
                single = {name: array[0] for name, array in _run(graph, run, alone, path).items()}
                for name, difference in _differences(single, found, row, sample.left):
                    if not difference <= rule:
                        raise LoadError(
                            f"{path.name}: an answer depends on the other texts of its batch: {name} changes by "
                            f"{difference:.3g} in one of the shape {shape}, and {rule:g} is taken for the same; export "
                            "it with --max_batch_size=1"
                        )
    return worst


def _run(
    graph: Graph, run: Run, inputs: Inputs, path: Path, sizes: Mapping[str, int] | None = None
) -> Mapping[str, Array]:
    """The outputs by name. Raises LoadError if one has another shape than the free axes' ``sizes`` say."""
    found = {}
    for output, array in zip(graph.outputs, run(inputs), strict=True):
        if sizes is not None:
            shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in output.axes)
            if array.shape != shape:
                raise LoadError(f"{path.name}: {output.name} has the shape {array.shape}, expected {shape}")
        found[output.name] = array
    return found


def _differences(
    expected: Mapping[str, Array], batch: Mapping[str, Array], row: int, left: bool
) -> list[tuple[str, float]]:
    """The difference of each output of one text of a batch, whose padding is left out."""
    found = {name: array[row] for name, array in batch.items()}
    if "probabilities" not in expected or "topk_ids" not in found:
        return [
            (name, _difference(array, found[name][-len(array) :] if left and array.ndim else found[name][: len(array)]))
            for name, array in expected.items()
            if name != "topk_ids"  # the order of equally likely tokens is free
        ]
    # So the scores are compared: the model's own of the tokens that were found, and its highest ones, so that none was
    # left out.
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
