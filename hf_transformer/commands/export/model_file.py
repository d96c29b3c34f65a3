"""Writes a graph as model.onnx or model.pt, and compares its outputs with the original model's."""

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
from hf_transformer.commands.export.config_pbtxt import ENTRIES, MASKS
from hf_transformer.commands.export.graph import Graph, LastEosHead
from hf_transformer.core.batch_rules import BatchRules, batch_rules
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import TASK_CLASSES, TextGeneration
from hf_transformer.tasks.declaration import BATCH, DECODED, SEQUENCE
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding

WEIGHTS = "model.onnx.data"
"""The file for the weights of models that exceed the size limit of model.onnx."""
SHORT = "hi"
MIDDLE = "The capital of {0} is {0}."
LONGER = "A rather longer sentence {0}, so that the shorter ones are padded beside it, and a word nobody knows: qzxv."
MARKED = "It ended {1} here, {1} there and {0} at last {1}"
"""A text with the tokenizer's special tokens at {1}."""
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
"""Sample texts, with mask tokens for fill_mask at {0}. Some texts and batches have no mask token.

The trace uses the first batch, because its texts differ in length.
"""
PAIR_BATCHES = ((PAIR, OTHER_PAIR, (SHORT, SHORT)), (OTHER_PAIR,))
"""Additional batches of text pairs, for tasks that take pairs."""
BATCH_TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3}
"""The maximum difference between a text's outputs in a batch and alone, by precision."""
MAX_TOKENS = 512
"""Maximum length of a sample text, which exceeds the attention windows of encoders (128 tokens in ModernBERT)."""
DECODED_TOKENS = 3

Inputs = dict[str, torch.Tensor]
Run = Callable[[Inputs], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Sample:
    """A batch of sample texts with the service's padding.

    ``expected`` and ``alone`` have the original model's outputs and the inputs of each text, without padding. ``sizes``
    has the sizes of the dynamic axes. ``left`` means padding on the left.
    """

    inputs: Inputs
    expected: Sequence[Mapping[str, Array]]
    alone: Sequence[Inputs]
    sizes: Mapping[str, int]
    left: bool


def take_samples(graph: Graph, checkpoint: Checkpoint, settings: Namespace) -> list[Sample]:
    """Runs the original model in float32 on sample batches that core.batch_rules allows.

    Raises ConfigError if a model for text generation is not causal, LoadError if a call of the model fails.
    """
    masked = any(tensor.name == "attention_mask" for tensor in graph.inputs)
    rules = batch_rules(checkpoint.files.config, None)
    if isinstance(getattr(graph, "head", graph), LastEosHead):  # does not depend on the number of eos tokens
        rules = replace(rules, counted_id=None)
    tokenizer = checkpoint.tokenizer.with_max_length(min(MAX_TOKENS, checkpoint.tokenizer.max_length))
    blank = tokenizer.mask_token if checkpoint.task == FillMask.name else "paris"
    special = tokenizer.special_tokens
    marks = " ".join(
        dict.fromkeys(special[name] for name in ("eos_token", "sep_token", "cls_token") if name in special)
    )
    batches = [*BATCHES, *(PAIR_BATCHES if TASK_CLASSES[checkpoint.task].takes_pairs else ())]
    with explained(f"{type(checkpoint.model).__name__} can't run {checkpoint.task}"), torch.no_grad():
        if checkpoint.task == TextGeneration.name:
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
            for encoding in filter(len, tokenizer.encode(filled)):  # an empty text may have no tokens
                length = 0 if masked and not rules.equal_lengths else len(encoding)
                count = 0 if rules.counted_id is None else encoding.ids.count(rules.counted_id)
                groups.setdefault((length, count), []).append(encoding)
            samples += [_sample(graph, checkpoint, rules, masked, group) for group in groups.values()]
        return sorted(samples, key=lambda sample: len(sample.alone), reverse=True)


def _require_causal(checkpoint: Checkpoint) -> None:
    """Raises ConfigError if logits depend on later tokens: transformers loads encoder weights as causal models, too."""
    ids = torch.tensor([checkpoint.tokenizer.encode([LONGER])[0].ids])
    whole, shortened = (checkpoint.model(input_ids=part).logits[0, 0] for part in (ids, ids[:, :-1]))
    if not torch.allclose(whole, shortened, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            "--task=text_generation: the model's logits depend on later tokens; it was trained for another task"
        )


def _sample(
    graph: Graph, checkpoint: Checkpoint, rules: BatchRules, masked: bool, encodings: Sequence[Encoding]
) -> Sample:
    """Pads a batch, and calculates the expected outputs of each text."""
    pad_id = checkpoint.tokenizer.pad_id if rules.pad_id is None or not masked else rules.pad_id
    left = rules.left and masked
    head: Any = getattr(graph, "head", graph)  # the head inside a reduction
    alone, expected = [], []
    for encoding in encodings:
        inputs = padded_inputs(graph, [encoding], pad_id, left)
        result = checkpoint.model(**inputs)
        whole = {output.name: getattr(result, output.name)[0].numpy() for output in head.outputs}
        alone.append(inputs)
        expected.append(graph.expected(whole, encoding.ids))
    width = max(map(len, encodings))
    masks = [sum(token == checkpoint.tokenizer.mask_id for token in encoding.ids) for encoding in encodings]
    sizes = {BATCH: len(encodings), SEQUENCE: width, DECODED: min(width, DECODED_TOKENS), MASKS: max(masks)}
    return Sample(padded_inputs(graph, encodings, pad_id, left), expected, alone, sizes, left)


def padded_inputs(graph: Graph, encodings: Sequence[Encoding], pad_id: int, left: bool) -> Inputs:
    """The graph's inputs for one batch, padded to the longest text."""
    width = max(map(len, encodings))

    def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> torch.Tensor:
        padding = [[fill] * (width - len(row)) for row in rows]
        return torch.tensor(
            [[*fills, *row] if left else [*row, *fills] for row, fills in zip(rows, padding, strict=True)]
        )

    ids = padded([encoding.ids for encoding in encodings], pad_id)
    tensors = {
        "input_ids": ids,
        "attention_mask": padded([[1] * len(encoding) for encoding in encodings]),
        "token_type_ids": padded([encoding.type_ids for encoding in encodings]),
        "decoder_input_ids": ids[:, :DECODED_TOKENS],
    }
    return {tensor.name: tensors[tensor.name] for tensor in graph.inputs}


def write_model(graph: Graph, path: Path, form: str, inputs: Inputs) -> None:
    """Traces the graph with a batch of several texts, and writes model.onnx or model.pt with its weights.

    Raises LoadError if torch can't write this model in the format ``form``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with explained(f"torch can't write this model as {form}"), warnings.catch_warnings(), torch.no_grad():
        # Tracing warns about every shape; verify() checks the result.
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
    """Merges all weight files into a single file. All weights must fit into memory.

    Above 2 GB, the limit of a protobuf message, torch writes a separate file for each weight.
    """
    import onnx

    model = onnx.load(str(path))
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=WEIGHTS)


def _write_torchscript(graph: Graph, path: Path, inputs: Inputs) -> None:
    traced = torch.jit.trace(graph, tuple(inputs.values()), strict=False, check_trace=False)
    for module in traced.modules():
        for name in module._c._method_names():  # a method for each call in the graph
            _free_devices(module._c._get_method(name).graph)
    traced.save(str(path))


def _free_devices(graph: Any) -> None:
    """Replaces constants for the trace's device (CPU) with the device of the inputs."""
    tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
    for node in list(graph.nodes()):
        if tensors and node.kind() == "prim::Constant" and node.output().type().kind() == "DeviceObjType":
            device = graph.create("prim::device", [tensors[0]], 1)
            device.output().setType(torch._C.DeviceObjType.get())
            device.insertBefore(node)
            node.output().replaceAllUsesWith(device.output())


def verify(graph: Graph, path: Path, samples: Sequence[Sample], settings: Namespace) -> float:
    """Runs the written model on the samples; returns the largest difference from the original model's outputs.

    Differences are relative to the largest absolute value of a text's output, or to 1 for smaller values. Raises
    LoadError for a failed run, a wrong shape, a difference over the tolerance, or outputs that depend on the batch.
    """
    worst, batch_tolerance = 0.0, BATCH_TOLERANCES[settings.precision]
    with explained(f"the written {path.name} does not run"):
        run = _onnx_runner(path) if settings.format == "onnx" else _torch_runner(path)
        for sample in samples:
            batch = _run(graph, run, sample.inputs, path, sample.sizes)
            for row, (expected, alone) in enumerate(zip(sample.expected, sample.alone, strict=True)):
                shape = tuple(sample.inputs["input_ids"].shape)
                for name, difference in _differences(graph, expected, batch, row, sample.left):
                    if not difference <= settings.tolerance:  # also rejects NaN
                        raise LoadError(
                            f"{path.name} differs from the model: {name} by {difference:.3g} for a text in a batch of "
                            f"the shape {shape}, expected at most {settings.tolerance:g} (--tolerance)"
                        )
                    worst = max(worst, difference)
                if len(sample.alone) == 1 or settings.max_batch_size == 1:
                    continue
                single = {name: array[0] for name, array in _run(graph, run, alone, path).items()}
                for name, difference in _differences(graph, graph.comparable(single), batch, row, sample.left):
                    if not difference <= batch_tolerance:
                        raise LoadError(
                            f"{path.name}: outputs depend on the other texts of a batch: {name} changes by "
                            f"{difference:.3g} in one of the shape {shape}, expected at most {batch_tolerance:g}; "
                            "export the model with --max_batch_size=1"
                        )
    return worst


def _run(
    graph: Graph, run: Run, inputs: Inputs, path: Path, sizes: Mapping[str, int] | None = None
) -> Mapping[str, Array]:
    """Runs the model; returns outputs by name. Raises LoadError if a shape contradicts ``sizes`` of dynamic axes."""
    outputs = {}
    for output, array in zip(graph.outputs, run(inputs), strict=True):
        if sizes is not None:
            # The number of a sparse vector's entries is known from the outputs alone.
            known = {ENTRIES: array.shape[-1], **sizes}
            shape = tuple(known[axis] if isinstance(axis, str) else axis for axis in output.axes)
            if array.shape != shape:
                raise LoadError(f"{path.name}: {output.name} has the shape {array.shape}, expected {shape}")
        outputs[output.name] = array
    return outputs


def _differences(
    graph: Graph, expected: Mapping[str, Array], batch: Mapping[str, Array], row: int, left: bool
) -> list[tuple[str, float]]:
    """The difference of each output of the text in ``row``, without padding."""
    actual = graph.comparable({name: array[row] for name, array in batch.items()})
    if "probabilities" not in expected or "topk_ids" not in actual:
        return [
            (name, _difference(array, _part(actual[name], array.shape, left)))
            for name, array in expected.items()
            if name != "topk_ids"  # the order of equally probable tokens is undefined
        ]
    # Compares the scores with the model's for the same tokens, and with the highest scores, to detect a missing token.
    probabilities = expected["probabilities"]
    ids, scores = (actual[name][: len(probabilities)] for name in ("topk_ids", "topk_scores"))
    highest = np.sort(probabilities)[:, ::-1][:, : scores.shape[1]]
    same_tokens = np.take_along_axis(probabilities, ids, 1)
    return [("topk_scores", _difference(reference, scores)) for reference in (same_tokens, highest)]


def _part(padded: Array, shape: tuple[int, ...], left: bool) -> Array:
    """The values of a text in its row of a batch, where texts may have padded words and labels beside tokens."""
    if left and shape:
        return padded[-shape[0] :]
    return padded[tuple(slice(size) for size in shape)]


def _difference(expected: Array, actual: Array) -> float:
    if not expected.size:
        return 0.0
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    return float(np.abs(expected - actual).max() / max(1.0, np.abs(expected).max()))


def _onnx_runner(path: Path) -> Run:
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only; the optimizer's warnings need no action
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})


def _torch_runner(path: Path) -> Run:
    module = torch.jit.load(str(path))

    def run(inputs: Inputs) -> list[Array]:
        with torch.no_grad():
            return [tensor.numpy() for tensor in module(*inputs.values())]

    return run
