from __future__ import annotations

import pytest

from hf_transformer.core.contract import DEFAULT_BATCH, ContractError, InputSignature, Signature, fit_signature
from hf_transformer.tasks.base import TOKENS, Axis, OutputRole
from hf_transformer.types import ModelSpec, TensorSpec

LOGITS = OutputRole(
    "logits", (TOKENS, Axis(name="vocabulary", minimum=100, maximum=227, why="config.json says vocab_size 100"))
)
IDS = TensorSpec("input_ids", "INT64", (-1,))
MASK = TensorSpec("attention_mask", "INT64", (-1,))
TYPES = TensorSpec("token_type_ids", "INT64", (-1,))
OUT = TensorSpec("logits", "FP32", (-1, 100))


def spec(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (OUT,), batch: int | None = 8, decoupled: bool = False
) -> ModelSpec:
    return ModelSpec("bert", "1", inputs, outputs, batch, decoupled)


def fit(model: ModelSpec, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> Signature:
    return fit_signature(model, [LOGITS], input_names=inputs, output_names=outputs, task="fill_mask")


def problem(model: ModelSpec, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> str:
    with pytest.raises(ContractError) as caught:
        fit(model, inputs, outputs)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


def test_all_known_inputs_are_bound() -> None:
    signature = fit(spec(IDS, MASK, TYPES))
    assert [one.role for one in signature.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert (signature.max_rows, signature.batch_axis, signature.length, signature.masked) == (8, True, None, True)


def test_one_flag_names_all_inputs_that_are_left_out() -> None:
    with pytest.raises(ContractError) as caught:
        fit(spec(IDS, MASK, TYPES), ("input_ids",))
    assert len(caught.value.problems) == 2
    for told in caught.value.problems:
        assert "use --tensor_input_names=input_ids,attention_mask,token_type_ids or drop the flag." in told


def test_without_a_mask_nothing_may_be_padded() -> None:
    assert not fit(spec(IDS)).masked


def test_int32_is_kept() -> None:
    signature = fit(spec(TensorSpec("input_ids", "INT32", (-1,))))
    assert signature.inputs == (InputSignature("input_ids", "input_ids", "INT32"),)


@pytest.mark.parametrize(
    ("dims", "out", "rows", "exact", "axis", "length"),
    [
        pytest.param((-1,), (-1, 100), 1, None, False, None, id="one instance at a time"),
        pytest.param((-1, -1), (-1, -1, 100), DEFAULT_BATCH, None, True, None, id="free batch axis"),
        pytest.param((4, -1), (4, -1, 100), 4, 4, True, None, id="fixed batch"),
        pytest.param((-1, 32), (-1, 32, 100), DEFAULT_BATCH, None, True, 32, id="fixed length"),
    ],
)
def test_models_without_max_batch_size(
    dims: tuple[int, ...], out: tuple[int, ...], rows: int, exact: int | None, axis: bool, length: int | None
) -> None:
    model = spec(TensorSpec("input_ids", "INT64", dims), outputs=(TensorSpec("logits", "FP32", out),), batch=0)
    signature = fit(model)
    assert (signature.max_rows, signature.exact_rows, signature.batch_axis, signature.length) == (
        rows,
        exact,
        axis,
        length,
    )


def test_metadata_alone_counts_as_complete_shapes() -> None:
    model = spec(
        TensorSpec("input_ids", "INT64", (-1, -1)), outputs=(TensorSpec("logits", "FP32", (-1, -1, 100)),), batch=None
    )
    assert fit(model).max_rows == DEFAULT_BATCH


def test_an_optional_input_is_sent_if_known_and_left_out_if_not_named() -> None:
    optional = TensorSpec("attention_mask", "INT64", (-1,), optional=True)
    assert fit(spec(IDS, optional)).masked
    assert not fit(spec(IDS, optional), inputs=("input_ids",)).masked


def test_an_unknown_optional_input_does_not_matter() -> None:
    assert fit(spec(IDS, TensorSpec("temperature", "FP32", (1,), optional=True)))


def test_positional_names_follow_the_flag() -> None:
    model = spec(TensorSpec("INPUT__1", "INT64", (-1,)), TensorSpec("INPUT__0", "INT64", (-1,)))
    signature = fit(model, inputs=("input_ids", "attention_mask"))
    assert {one.name: one.role for one in signature.inputs} == {"INPUT__0": "input_ids", "INPUT__1": "attention_mask"}


def test_the_only_output_may_have_any_name() -> None:
    assert fit(spec(IDS, outputs=(TensorSpec("output", "FP32", (-1, 100)),))).outputs[0].name == "output"


def test_of_several_outputs_the_name_decides_then_the_rank() -> None:
    pooled = TensorSpec("pooled", "FP32", (8,))
    assert fit(spec(IDS, outputs=(pooled, OUT))).outputs[0].name == "logits"
    renamed = TensorSpec("output_1", "FP32", (-1, 100))
    assert fit(spec(IDS, outputs=(pooled, renamed))).outputs[0].name == "output_1"


def test_a_vocabulary_padded_by_the_runtime_fits() -> None:
    assert fit(spec(IDS, outputs=(TensorSpec("logits", "FP16", (-1, 128)),)))


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "says"),
    [
        pytest.param(
            spec(IDS), ("input_ids", "attention_mask"), (), "the model's inputs are input_ids", id="no such input"
        ),
        pytest.param(
            spec(IDS, MASK), ("input_ids",), (), "--tensor_input_names=input_ids,attention_mask", id="left out"
        ),
        pytest.param(spec(IDS), ("input_ids", "pixels"), (), "the tokenizer can't make", id="not a tokenizer's"),
        pytest.param(
            spec(IDS, TensorSpec("pixels", "FP32", (3,))),
            (),
            (),
            "requires the input 'pixels'",
            id="unknown required input",
        ),
        pytest.param(
            spec(TensorSpec("INPUT__0", "INT64", (-1,))),
            (),
            (),
            "--tensor_input_names=input_ids",
            id="positional, unnamed",
        ),
        pytest.param(spec(TensorSpec("input_ids", "FP32", (-1,))), (), (), "INT64 or INT32", id="ids in FP32"),
        pytest.param(
            spec(IDS, outputs=(TensorSpec("logits", "FP32", (100,)),)), (), (), "[tokens, vocabulary]", id="rank"
        ),
        pytest.param(
            spec(IDS, outputs=(TensorSpec("logits", "FP32", (-1, 90)),)), (), (), "90 along vocabulary", id="small"
        ),
        pytest.param(
            spec(IDS, outputs=(TensorSpec("logits", "FP32", (-1, 600)),)), (), (), "vocab_size 100", id="large"
        ),
        pytest.param(
            spec(IDS, outputs=(TensorSpec("logits", "INT64", (-1, 100)),)), (), (), "is INT64", id="not floats"
        ),
        pytest.param(spec(IDS), (), ("scores",), "the model has logits", id="no such output"),
        pytest.param(spec(IDS), (), ("a", "b"), "reads 1", id="too many outputs named"),
        pytest.param(
            spec(IDS, outputs=(TensorSpec("a", "FP32", (-1, 100)), TensorSpec("b", "FP32", (-1, 100)))),
            (),
            (),
            "--tensor_output_names",
            id="two alike outputs",
        ),
        pytest.param(spec(IDS, decoupled=True), (), (), "decoupled", id="decoupled"),
        pytest.param(
            spec(TensorSpec("INPUT__0", "INT64", (-1,))),
            ("input_ids", "attention_mask"),
            (),
            "drop 'attention_mask'",
            id="more names than positional inputs",
        ),
        pytest.param(
            spec(
                TensorSpec("input_ids", "INT64", (-1, 32)),
                outputs=(TensorSpec("logits", "FP32", (-1, 16, 100)),),
                batch=0,
            ),
            (),
            (),
            "always has 16 tokens, its inputs 32",
            id="output of another length",
        ),
        pytest.param(
            spec(
                TensorSpec("input_ids", "INT64", (2, -1)),
                TensorSpec("attention_mask", "INT64", (4, -1)),
                outputs=(OUT,),
                batch=0,
            ),
            (),
            (),
            "different numbers of rows, [2, 4]",
            id="rows",
        ),
    ],
)
def test_mismatches_say_what_to_change(
    model: ModelSpec, inputs: tuple[str, ...], outputs: tuple[str, ...], says: str
) -> None:
    assert says in problem(model, inputs, outputs)


def test_every_mismatch_is_reported() -> None:
    model = spec(IDS, MASK, outputs=(TensorSpec("logits", "FP32", (100,)),), decoupled=True)
    with pytest.raises(ContractError) as caught:
        fit(model, inputs=("input_ids", "token_type_ids"))
    assert len(caught.value.problems) == 4


def test_no_mismatch_is_said_twice() -> None:
    assert ContractError("bert", ["One.", "Two.", "One."]).problems == ("One.", "Two.")
