"""The contract between the predictor's model, the tokenizer and the task: the mapping of their tensors.

``fit_signature`` reports each mismatch in one sentence, with the required change at its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hf_transformer.errors import NotReady
from hf_transformer.tasks.base import Axis, InputRole, OutputRole
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, TensorSpec

INPUT_ROLES = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs that a tokenizer can provide."""

POSITIONAL = re.compile(r"(.+)__(\d+)$")
"""Numbered tensor names of Triton's PyTorch backend, such as INPUT__0."""

DEFAULT_MAX_ROWS = 32
"""Maximum rows per batch of a model with a dynamic batch axis and without max_batch_size."""


@dataclass(frozen=True, slots=True)
class InputSignature:
    """A model input. ``role`` is one of INPUT_ROLES or the name of an InputRole, ``datatype`` one of the Open Inference
    Protocol."""

    name: str
    role: str
    datatype: str

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return NUMPY_DTYPES[self.datatype]


@dataclass(frozen=True, slots=True)
class OutputSignature:
    """A model output. ``role`` is the name of the task's OutputRole.

    ``axes`` are the axes per instance. ``sizes`` are their sizes in the model's configuration; -1 is a dynamic axis.
    """

    name: str
    role: str
    datatype: str
    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]

    def row_bytes(self, width: int, *, guess: bool = False) -> int | None:
        """Returns the bytes of one instance's output in a batch of ``width`` tokens.

        For a dynamic axis the result is None, or with ``guess`` a lower bound from the axis's minimum.
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
    """The inputs and outputs of one model, and the shapes of its batches.

    Args:
        max_rows: the maximum number of instances in a batch.
        exact_rows: the fixed number of rows per batch, filled with copies; None if the number may vary.
        batch_axis: whether tensors have a batch axis.
        length: the fixed sequence length in tokens; None if the length may vary.
        masked: whether the model has an attention mask, which hides padding.
        extras: the inputs that the task's encodings fill.
    """

    inputs: tuple[InputSignature, ...]
    outputs: tuple[OutputSignature, ...]
    max_rows: int
    exact_rows: int | None
    batch_axis: bool
    length: int | None
    masked: bool
    extras: tuple[InputSignature, ...] = ()

    def output_bytes(self, width: int) -> int:
        """Returns the bytes of one instance's outputs for ``width`` tokens, or a lower bound if axes are dynamic."""
        return sum(output.row_bytes(width, guess=True) or 0 for output in self.outputs)


class ContractError(NotReady):
    """The predictor's model does not fit the tokenizer, the task or the flags. ``problems`` has all mismatches."""

    def __init__(self, model: str, problems: Sequence[str]) -> None:
        problems = tuple(dict.fromkeys(problems))  # an output with two roles can have the same problem twice
        super().__init__(f"model {model!r} does not fit the service. " + " ".join(problems))
        self.problems = problems


def fit_signature(
    spec: ModelSpec,
    roles: Sequence[OutputRole],
    *,
    extras: Sequence[InputRole] = (),
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    task: str,
) -> Signature:
    """Fits a model to a task.

    Args:
        roles: the outputs that the task reads.
        extras: the inputs that the task's encodings fill, by name and never by position.
        input_names: --tensor_input_names; empty selects all inputs of the model.
        output_names: --tensor_output_names, in the order of ``roles``; empty selects outputs by name and rank.
        task: the task's name, for messages.

    Raises:
        ContractError: the model does not fit. The message lists all mismatches.
    """
    problems: list[str] = []
    if spec.decoupled:
        problems.append(
            "It is decoupled (a stream of responses); predictive tasks need one response per request: set "
            "model_transaction_policy { decoupled: false } in config.pbtxt."
        )
    names = {role.name for role in extras}
    ordinary = replace(spec, inputs=tuple(tensor for tensor in spec.inputs if tensor.name not in names))
    inputs = _find_inputs(ordinary, [name for name in input_names if name not in names], problems)
    sent = {signature.name for signature in inputs}
    shapes = [tensor.shape for tensor in spec.inputs if tensor.name in sent]
    layout = _layout(spec, shapes, problems)
    leading = len(shapes[0]) - 1 if shapes and layout is not None else 0
    found = _find_extras(spec, extras, leading, task, problems)
    outputs = _find_outputs(spec, roles, output_names, leading, task, problems)
    if layout is not None:
        _check_token_axes(outputs, layout[3], problems)
    if problems or layout is None:
        raise ContractError(spec.name, problems)
    rows, exact, axis, length = layout
    masked = any(signature.role == "attention_mask" for signature in inputs)
    return Signature(inputs, outputs, rows, exact, axis, length, masked, found)


def role_from_numbered_name(name: str, roles: Sequence[str]) -> str:
    """Returns the role in a numbered name such as input_ids__0, and any other name unchanged."""
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
            # A mask of zeros and ones fits any numeric datatype. Ids need integers of more than 16 bits.
            if tensor.datatype not in (NUMPY_DTYPES if role == "attention_mask" else ("INT32", "INT64")):
                problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as INT64 or INT32.")
            bound.append(InputSignature(tensor.name, role, tensor.datatype))
        elif not tensor.optional:
            problems.append(_unfilled(tensor.name, wanted, spec))
    if not problems and not any(signature.role == "input_ids" for signature in bound):
        problems.append(f"No input_ids would be sent (the model's inputs are {names}); see --tensor_input_names.")
    return tuple(bound)


def _find_extras(
    spec: ModelSpec, roles: Sequence[InputRole], leading: int, task: str, problems: list[str]
) -> tuple[InputSignature, ...]:
    """Finds the inputs that the task fills. ``leading`` is the number of batch axes in the dims."""
    tensors, bound = {tensor.name: tensor for tensor in spec.inputs}, []
    for role in roles:
        tensor = tensors.get(role.name)
        if tensor is None:
            if role.optional:
                continue
            problems.append(f"It has no input {role.name!r}, which {task} needs; export the model again with it.")
        elif tensor.datatype not in role.datatypes or len(tensor.shape) != role.axes + leading:
            problems.append(
                f"Its input {role.name!r} is {tensor.datatype} {list(tensor.shape)}; {task} sends "
                f"{role.datatypes[0]} of {role.axes + leading} dims: export the model so."
            )
        else:
            bound.append(InputSignature(tensor.name, role.name, tensor.datatype))
    return tuple(bound)


def _unfilled(name: str, wanted: Sequence[str], spec: ModelSpec) -> str:
    if name in INPUT_ROLES:
        valid = [role for role in wanted if role in INPUT_ROLES]
        required = [tensor.name for tensor in spec.inputs if tensor.name in INPUT_ROLES and not tensor.optional]
        return (
            f"It requires the input {name!r}, which --tensor_input_names leaves out; "
            f"use --tensor_input_names={','.join(dict.fromkeys((*valid, *required)))} or drop the flag."
        )
    return (
        f"It requires the input {name!r}, which the service can't fill (the tokenizer makes {', '.join(INPUT_ROLES)}); "
        "export the model without it, mark it optional in config.pbtxt, or name the inputs with --tensor_input_names."
    )


Layout = tuple[int, int | None, bool, int | None]
"""The fields max_rows, exact_rows, batch_axis and length of Signature."""


def _layout(spec: ModelSpec, shapes: Sequence[tuple[int, ...]], problems: list[str]) -> Layout | None:
    """Reads the batch and sequence axes from the input shapes. Returns None after a mismatch.

    With max_batch_size > 0 Triton adds a batch axis to the configured dims. Otherwise the dims are complete: [-1, -1]
    includes a batch axis, and [-1] does not.
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
    return exact or DEFAULT_MAX_ROWS, exact, True, length


def _find_outputs(
    spec: ModelSpec, roles: Sequence[OutputRole], wanted: Sequence[str], leading: int, task: str, problems: list[str]
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
    """Finds an output by the flag or the role's name, else the only output, else the only output with a fitting
    datatype and rank."""
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
    """Adds mismatches of an output to ``problems``, and returns the axes that the task reads from it."""
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
        error = size > 0 and not axis.tokens and axis_error(axis, size)
        if error:
            problems.append(
                f"{label} has the dims {list(tensor.shape)}: {error}. Serve it with its own tokenizer and config.json."
            )
    return axes


def _check_token_axes(outputs: Sequence[OutputSignature], length: int | None, problems: list[str]) -> None:
    """Checks that outputs with a token axis have the sequence length of the inputs."""
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
    """Returns the reason why ``size`` is invalid for ``axis``, or an empty string if ``size`` is valid."""
    if axis.minimum <= size and (axis.maximum is None or size <= axis.maximum):
        return ""
    return f"{size} along {axis.name}, but {axis.why or f'expected at least {axis.minimum}'}"
