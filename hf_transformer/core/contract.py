"""Whether a predictor's model, the tokenizer and the task fit together, and how their tensors map to each other.

Pure functions of what each side says of itself. The service calls ``fit_signature`` when it has reached the predictor;
every mismatch is reported in one sentence that ends with what to change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.errors import NotReady
from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, TensorSpec

INPUT_ROLES = ("input_ids", "attention_mask", "token_type_ids")
"""The tensors that a tokenizer makes."""

POSITIONAL = re.compile(r"(.+)__(\d+)$")
"""Names as Triton's PyTorch backend has them, INPUT__0, INPUT__1: the order alone tells what they are; see ``told``."""

DEFAULT_BATCH = 32
"""Rows per batch for a model with a free batch axis of its own, which has no max_batch_size to go by."""


@dataclass(frozen=True, slots=True)
class InputSignature:
    """A model input: its name, which of INPUT_ROLES goes into it, and the datatype to send."""

    name: str
    role: str
    datatype: str

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The same datatype, as numpy has it."""
        return NUMPY_DTYPES[self.datatype]


@dataclass(frozen=True, slots=True)
class OutputSignature:
    """A model output: its name, the role that reads it, its datatype, and its axes per instance.

    ``sizes`` are the sizes of the axes in the model's configuration, -1 for a free one.
    """

    name: str
    role: str
    datatype: str
    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]

    def row_bytes(self, width: int, *, guess: bool = False) -> int | None:
        """Bytes of one instance's output in a batch of ``width`` tokens.

        None where a free axis leaves it open, unless ``guess`` takes the least that the axis may have.
        """
        total = 2 if self.datatype == "BF16" else NUMPY_DTYPES[self.datatype].itemsize
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if axis.tokens:
                size = width
            elif size < 0:
                if not guess:
                    return None
                size = axis.minimum
            total *= size
        return total


@dataclass(frozen=True, slots=True)
class Signature:
    """How batches are built for one model, and what its outputs must look like.

    Args:
        inputs: the inputs to send.
        outputs: the outputs to ask for.
        max_rows: instances in a batch at most.
        exact_rows: the rows that every batch has, filled up where there are fewer instances; None if any number does.
        batch_axis: whether tensors have a batch dimension.
        length: the only sequence length that the model takes, in tokens; None if it takes any.
        masked: whether the model gets an attention mask, so that padding can't change its answers.
    """

    inputs: tuple[InputSignature, ...]
    outputs: tuple[OutputSignature, ...]
    max_rows: int
    exact_rows: int | None
    batch_axis: bool
    length: int | None
    masked: bool

    def output_bytes(self, width: int) -> int:
        """Bytes of all outputs of one instance in a batch of ``width`` tokens, a lower bound where axes are free."""
        return sum(output.row_bytes(width, guess=True) or 0 for output in self.outputs)


class ContractError(NotReady):
    """The predictor's model does not fit the tokenizer, the task or the flags; ``problems`` has a sentence for each."""

    def __init__(self, model: str, problems: Sequence[str]) -> None:
        problems = tuple(dict.fromkeys(problems))  # one output may stand for two roles, and fit neither
        super().__init__(f"model {model!r} does not fit the service. " + " ".join(problems))
        self.problems = problems


def fit_signature(
    spec: ModelSpec,
    roles: Sequence[OutputRole],
    *,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    task: str,
) -> Signature:
    """Fits a model to a task.

    Args:
        spec: what the predictor says of the model.
        roles: the outputs that the task reads.
        input_names: --tensor_input_names; none takes all that the model has.
        output_names: --tensor_output_names, in the order of ``roles``; none finds them by name and rank.
        task: the task's name, for messages.

    Raises:
        ContractError: with every mismatch that was found.
    """
    problems: list[str] = []
    if spec.decoupled:
        problems.append(
            "It is decoupled (a stream of responses); predictive tasks need one response per request: set "
            "model_transaction_policy { decoupled: false } in config.pbtxt."
        )
    inputs = _find_inputs(spec, input_names, problems)
    shapes = [tensor.shape for tensor in spec.inputs if tensor.name in {one.name for one in inputs}]
    layout = _layout(spec, shapes, problems)
    leading = len(shapes[0]) - 1 if shapes and layout is not None else 0
    outputs = _find_outputs(spec, roles, output_names, leading, task, problems)
    if layout is not None:
        _check_token_axes(outputs, layout[3], problems)
    if problems or layout is None:
        raise ContractError(spec.name, problems)
    rows, exact, axis, length = layout
    masked = any(one.role == "attention_mask" for one in inputs)
    return Signature(inputs, outputs, rows, exact, axis, length, masked)


def role_from_numbered_name(name: str, roles: Sequence[str]) -> str:
    """The role that a numbered name tells, input_ids__0 say; else the name itself."""
    numbered = POSITIONAL.match(name)
    return numbered[1] if numbered and numbered[1] in roles else name


def _find_inputs(spec: ModelSpec, wanted: Sequence[str], problems: list[str]) -> tuple[InputSignature, ...]:
    names = _names(spec.inputs)
    positional = all(
        POSITIONAL.match(role_from_numbered_name(tensor.name, INPUT_ROLES)) for tensor in spec.inputs
    ) and bool(spec.inputs)
    if positional and len(wanted) > len(spec.inputs):
        problems.append(
            f"--tensor_input_names has {len(wanted)} names, but the model's inputs are {names}; drop {wanted[-1]!r}."
        )
    if positional and not wanted:
        problems.append(
            f"Its inputs {names} have no telling names; say what they are, in their order, "
            "for example --tensor_input_names=input_ids,attention_mask."
        )
        return ()
    role_of = {name: name for name in wanted}
    if positional:
        order = sorted(spec.inputs, key=lambda tensor: int(tensor.name.rpartition("__")[2]))
        role_of = {tensor.name: role for tensor, role in zip(order, wanted, strict=False)}
    for name in wanted:
        if name not in INPUT_ROLES:
            problems.append(
                f"--tensor_input_names has {name!r}, which the tokenizer can't make; "
                f"name any of {', '.join(INPUT_ROLES)}."
            )
        elif not positional and name not in {
            role_from_numbered_name(tensor.name, INPUT_ROLES) for tensor in spec.inputs
        }:
            problems.append(
                f"--tensor_input_names has {name!r}, but the model's inputs are {names}; "
                "change the flag or the input's name in config.pbtxt."
            )
    bound = []
    for tensor in spec.inputs:
        name = tensor.name if positional else role_from_numbered_name(tensor.name, INPUT_ROLES)
        role = role_of.get(name) if wanted else name
        if role in INPUT_ROLES:
            # Masks are zeros and ones, which any numeric type holds; ids need whole numbers beyond 16 bits.
            if tensor.datatype not in (NUMPY_DTYPES if role == "attention_mask" else ("INT32", "INT64")):
                problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as INT64 or INT32.")
            bound.append(InputSignature(tensor.name, role, tensor.datatype))
        elif not tensor.optional:
            problems.append(_unfilled(tensor.name, wanted, spec))
    if not problems and not any(one.role == "input_ids" for one in bound):
        problems.append(f"No input_ids would be sent (the model's inputs are {names}); see --tensor_input_names.")
    return tuple(bound)


def _unfilled(name: str, wanted: Sequence[str], spec: ModelSpec) -> str:
    if name in INPUT_ROLES:
        given = [one for one in wanted if one in INPUT_ROLES]
        required = [one.name for one in spec.inputs if one.name in INPUT_ROLES and not one.optional]
        return (
            f"It requires the input {name!r}, which --tensor_input_names leaves out; "
            f"use --tensor_input_names={','.join(dict.fromkeys((*given, *required)))} or drop the flag."
        )
    return (
        f"It requires the input {name!r}, which nothing here fills (the tokenizer makes {', '.join(INPUT_ROLES)}); "
        "export the model without it, mark it optional in config.pbtxt, or name the inputs with --tensor_input_names."
    )


Layout = tuple[int, int | None, bool, int | None]
"""max_rows, exact_rows, batch_axis, length"""


def _layout(spec: ModelSpec, shapes: Sequence[tuple[int, ...]], problems: list[str]) -> Layout | None:
    """Reads the batch and sequence axes off the input shapes.

    With max_batch_size > 0 Triton adds the batch axis to the configured dims; with 0 the dims are complete, and
    [-1, -1] has a batch axis of its own while [-1] has none.
    """
    if not shapes:
        return None
    triton_batch = bool(spec.max_batch_size)
    ranks = (1,) if triton_batch else (1, 2)
    if len({len(shape) for shape in shapes}) > 1 or len(shapes[0]) not in ranks:
        shown = ", ".join(str(list(shape)) for shape in shapes)
        expected = "[-1] beside max_batch_size" if triton_batch else "[-1, -1], or [-1] for one instance at a time"
        problems.append(f"Its inputs have the dims {shown}; set dims: {expected} in config.pbtxt.")
        return None
    lengths = {shape[-1] for shape in shapes if shape[-1] > 0}
    if len(lengths) > 1:
        problems.append(f"Its inputs have different sequence lengths, {sorted(lengths)}; export them with one length.")
        return None
    rows = {shape[0] for shape in shapes if len(shape) == 2 and shape[0] > 0}
    if len(rows) > 1:
        problems.append(f"Its inputs have different numbers of rows, {sorted(rows)}; export them with one batch size.")
        return None
    length = lengths.pop() if lengths else None
    if triton_batch:
        return spec.max_batch_size or 1, None, True, length
    if len(shapes[0]) == 1:
        return 1, None, False, length
    exact = rows.pop() if rows else None
    return exact or DEFAULT_BATCH, exact, True, length


def _find_outputs(
    spec: ModelSpec,
    roles: Sequence[OutputRole],
    wanted: Sequence[str],
    leading: int,
    task: str,
    problems: list[str],
) -> tuple[OutputSignature, ...]:
    if wanted and len(wanted) != len(roles):
        needed = ", ".join(role.name for role in roles)
        problems.append(
            f"--tensor_output_names has {len(wanted)} names, but {task} reads {len(roles)}: {needed}; name as many."
        )
        return ()
    bound = []
    for index, role in enumerate(roles):
        tensor = _find_output(spec, role, wanted[index] if wanted else None, leading, problems)
        if tensor is None:
            continue
        before = len(problems)
        axes = _check_output(tensor, role, leading, task, problems)
        if len(problems) == before:
            bound.append(OutputSignature(tensor.name, role.name, tensor.datatype, axes, tensor.shape[leading:]))
    if len({output.name for output in bound}) < len(bound):
        needed = " and ".join(role.name for role in roles)
        problems.append(f"{task} reads {needed}, each an output of its own: export them so, or set --task.")
    return tuple(bound)


def _find_output(
    spec: ModelSpec, role: OutputRole, wanted: str | None, leading: int, problems: list[str]
) -> TensorSpec | None:
    """By the flag, else by the role's name, else the only output, else the only one that has the role's rank."""
    tensors = {tensor.name: tensor for tensor in spec.outputs}
    names = (role.name, *role.other_names)
    for tensor in spec.outputs:
        tensors.setdefault(role_from_numbered_name(tensor.name, names), tensor)
    for name in (wanted,) if wanted else names:
        if name in tensors:
            return tensors[name]
    if wanted:
        problems.append(
            f"--tensor_output_names has {wanted!r}, but the model has {_names(spec.outputs)}; change the flag."
        )
        return None
    ranks = {leading + len(axes) for axes in (role.axes, *role.other_axes)}
    fitting = [tensor for tensor in spec.outputs if tensor.datatype in role.datatypes and len(tensor.shape) in ranks]
    candidates = fitting if len(spec.outputs) > 1 else spec.outputs
    if len(candidates) == 1:
        return candidates[0]
    problems.append(
        f"Which of its outputs {_names(spec.outputs)} is {role.name!r} can't be told; set --tensor_output_names."
    )
    return None


def _check_output(
    tensor: TensorSpec, role: OutputRole, leading: int, task: str, problems: list[str]
) -> tuple[Axis, ...]:
    """Adds what is wrong with the output to ``problems``; gives the axes that it has, among those the task can read."""
    label = f"Its output {tensor.name!r}"
    if tensor.datatype not in role.datatypes:
        problems.append(
            f"{label} is {tensor.datatype}; {task} reads {', '.join(role.datatypes)}: name another or export it so."
        )
    readable = (role.axes, *role.other_axes)
    axes = next((axes for axes in readable if leading + len(axes) == len(tensor.shape)), None)
    if axes is None:
        expected = " or ".join(
            "[" + ", ".join([*["batch"] * leading, *(axis.name for axis in axes)]) + "]" for axes in readable
        )
        problems.append(
            f"{label} has the dims {list(tensor.shape)}, {task} reads {expected}; "
            "is it exported for another task? Export it for this one, or set --task or --tensor_output_names."
        )
        return role.axes
    for axis, size in zip(axes, tensor.shape[leading:], strict=True):
        wrong = size > 0 and not axis.tokens and axis_error(axis, size)
        if wrong:
            problems.append(
                f"{label} has the dims {list(tensor.shape)}: {wrong}. Serve it with its own tokenizer and config.json."
            )
    return axes


def _check_token_axes(outputs: Sequence[OutputSignature], length: int | None, problems: list[str]) -> None:
    """An output with a value per token has to be as long as the input is."""
    for output in outputs:
        for axis, size in zip(output.axes, output.sizes, strict=True):
            if axis.tokens and size > 0 and size != length:
                problems.append(
                    f"Its output {output.name!r} always has {size} tokens, its inputs {length or 'any number'}; "
                    "export both with the same sequence axis."
                )


def _names(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(tensor.name for tensor in tensors) or "none"


def axis_error(axis: Axis, size: int) -> str:
    """Why ``size`` can't be the size of ``axis``; empty if it can."""
    if axis.minimum <= size and (axis.maximum is None or size <= axis.maximum):
        return ""
    return f"{size} along {axis.name}, but {axis.why or f'expected at least {axis.minimum}'}"
