"""The fit of models to the tokenizer, the task and the flags, and the messages of mismatches."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.core.contract import DEFAULT_MAX_ROWS, ContractError, Signature, fit_signature
from hf_transformer.tasks.base import TOKENS, Axis, OutputRole
from hf_transformer.types.tensors import ModelSpec, TensorSpec

VOCABULARY = Axis(name="vocabulary", minimum=100, maximum=227, why="config.json says vocab_size 100")
LOGITS = OutputRole("logits", (TOKENS, VOCABULARY))


def ids(name: str = "input_ids", *dims: int, datatype: str = "INT64", optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, dims or (-1,), optional)


def out(*dims: int, name: str = "logits", datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, datatype, dims or (-1, 100))


IDS, MASK, TYPES, OUT = ids(), ids("attention_mask"), ids("token_type_ids"), out()


def spec(*inputs: TensorSpec, outputs: Any = OUT, batch: int | None = 8, decoupled: bool = False) -> ModelSpec:
    outputs = (outputs,) if isinstance(outputs, TensorSpec) else outputs
    return ModelSpec("bert", "1", inputs or (IDS,), outputs, batch, decoupled)


def fit(model: ModelSpec, inputs: str = "", outputs: str = "") -> Signature:
    """``inputs`` and ``outputs`` are the values of the two flags."""
    names = [tuple(filter(None, flag.split(","))) for flag in (inputs, outputs)]
    return fit_signature(model, [LOGITS], input_names=names[0], output_names=names[1], task="fill_mask")


def problems(model: ModelSpec, inputs: str = "", outputs: str = "") -> tuple[str, ...]:
    with pytest.raises(ContractError) as caught:
        fit(model, inputs, outputs)
    return caught.value.problems


@pytest.mark.parametrize(
    ("inputs", "flag", "roles"),
    [
        ((IDS, MASK, TYPES), "", ["input_ids", "attention_mask", "token_type_ids"]),
        ((IDS,), "", ["input_ids"]),
        ((IDS, ids("attention_mask", optional=True)), "", ["input_ids", "attention_mask"]),
        ((IDS, ids("attention_mask", optional=True)), "input_ids", ["input_ids"]),
        ((IDS, ids("temperature", 1, datatype="FP32", optional=True)), "", ["input_ids"]),
        ((ids("INPUT__1"), ids("INPUT__0")), "input_ids,attention_mask", ["attention_mask", "input_ids"]),
        ((ids(datatype="INT32"),), "", ["input_ids"]),
    ],
    ids=["all known", "no mask", "optional", "optional and not named", "unknown optional", "positional", "int32"],
)
def test_inputs_are_sent_by_name_role_and_flag(inputs: tuple[TensorSpec, ...], flag: str, roles: list[str]) -> None:
    signature = fit(spec(*inputs), flag)
    assert [sent.role for sent in signature.inputs] == roles
    assert [sent.datatype for sent in signature.inputs] == [tensor.datatype for tensor in inputs][: len(roles)]
    assert signature.masked == ("attention_mask" in roles), "padding needs a mask"
    assert (signature.max_rows, signature.batch_axis, signature.length) == (8, True, None)


@pytest.mark.parametrize(
    ("dims", "outputs", "batch", "expected"),
    [
        pytest.param((-1,), (-1, 100), 0, (1, None, False, None), id="one instance at a time"),
        pytest.param((-1, -1), (-1, -1, 100), 0, (DEFAULT_MAX_ROWS, None, True, None), id="free batch axis"),
        pytest.param((4, -1), (4, -1, 100), 0, (4, 4, True, None), id="fixed batch"),
        pytest.param((-1, 32), (-1, 32, 100), 0, (DEFAULT_MAX_ROWS, None, True, 32), id="fixed length"),
        pytest.param((-1, -1), (-1, -1, 100), None, (DEFAULT_MAX_ROWS, None, True, None), id="metadata alone"),
    ],
)
def test_shapes_tell_the_batch_axis_without_max_batch_size(
    dims: Any, outputs: Any, batch: int | None, expected: Any
) -> None:
    signature = fit(spec(ids("input_ids", *dims), outputs=out(*outputs), batch=batch))
    assert (signature.max_rows, signature.exact_rows, signature.batch_axis, signature.length) == expected


@pytest.mark.parametrize(
    ("outputs", "name"),
    [
        pytest.param((out(name="output"),), "output", id="the only one"),
        pytest.param((out(8, name="pooled"), OUT), "logits", id="the name decides"),
        pytest.param((out(8, name="pooled"), out(name="output_1")), "output_1", id="then the rank"),
        pytest.param((out(-1, 128, datatype="FP16"),), "logits", id="a vocabulary padded by the runtime"),
    ],
)
def test_an_output_is_found_by_name_then_by_rank(outputs: tuple[TensorSpec, ...], name: str) -> None:
    assert [output.name for output in fit(spec(outputs=outputs)).outputs] == [name]


FIXED = spec(ids("input_ids", -1, 32), outputs=out(-1, 16, 100), batch=0)
ROWS = spec(ids("input_ids", 2, -1), ids("attention_mask", 4, -1), batch=0)


UNNAMED, NAMES = spec(ids("INPUT__0")), "input_ids,attention_mask"
MISMATCHES = {
    "no such input": (spec(), NAMES, "", "the model's inputs are input_ids"),
    "left out": (spec(IDS, MASK), "input_ids", "", f"use --tensor_input_names={NAMES}"),
    "not a tokenizer's": (spec(), "input_ids,pixels", "", "the tokenizer can't make"),
    "unknown required input": (spec(IDS, ids("pixels", 3)), "", "", "requires the input 'pixels'"),
    "positional, unnamed": (UNNAMED, "", "", "--tensor_input_names=input_ids"),
    "more names than inputs": (UNNAMED, NAMES, "", "drop 'attention_mask'"),
    "ids in FP32": (spec(ids(datatype="FP32")), "", "", "INT64 or INT32"),
    "rank": (spec(outputs=out(100)), "", "", "[tokens, vocabulary]"),
    "small": (spec(outputs=out(-1, 90)), "", "", "90 along vocabulary"),
    "large": (spec(outputs=out(-1, 600)), "", "", "vocab_size 100"),
    "not floats": (spec(outputs=out(datatype="INT64")), "", "", "is INT64"),
    "no such output": (spec(), "", "scores", "the model has logits"),
    "too many outputs named": (spec(), "", "a,b", "reads 1"),
    "two alike outputs": (spec(outputs=(out(name="a"), out(name="b"))), "", "", "--tensor_output_names"),
    "decoupled": (spec(decoupled=True), "", "", "decoupled"),
    "output of another length": (FIXED, "", "", "always has 16 tokens, its inputs 32"),
    "rows": (ROWS, "", "", "different numbers of rows, [2, 4]"),
}


@pytest.mark.parametrize(("model", "inputs", "outputs", "says"), MISMATCHES.values(), ids=MISMATCHES)
def test_mismatches_say_what_to_change(model: ModelSpec, inputs: str, outputs: str, says: str) -> None:
    (problem,) = problems(model, inputs, outputs)
    assert says in problem


def test_every_mismatch_is_reported_once() -> None:
    assert len(problems(spec(IDS, MASK, outputs=out(100), decoupled=True), "input_ids,token_type_ids")) == 4
    assert ContractError("bert", ["One.", "Two.", "One."]).problems == ("One.", "Two.")
    for problem in (left := problems(spec(IDS, MASK, TYPES), "input_ids")):
        assert "use --tensor_input_names=input_ids,attention_mask,token_type_ids or drop the flag." in problem
    assert len(left) == 2
