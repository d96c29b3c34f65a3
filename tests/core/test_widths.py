"""Batches whose widths are multiples of --pad_to_multiple_of; tests/integration shows that answers stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_transformer.core.batch import EncodingForm, Filling, Widths, widths_of
from hf_transformer.core.contract import ContractError, InputSignature, OutputSignature, Signature
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types import Encoding, Tensor, TensorSpec
from hf_transformer.wiring import filling, fit_task
from tests.doctor.test_advice import GOOD, pair_of

LOGITS = OutputSignature("logits", "logits", "FP32", (TOKENS, Axis(name="labels", minimum=1)), (-1, 2))
INPUTS = tuple(InputSignature(name, name, "INT64") for name in ("input_ids", "attention_mask"))
MASKED = Signature(INPUTS, (LOGITS,), 8, None, True, None, True)
EIGHTS = Filling(pad_id=9, left=False, widths=Widths(8, 100))


def encoding(length: int) -> Encoding:
    return Encoding([1] * length, [0] * length)


def form(signature: Signature = MASKED, filling: Filling = EIGHTS, max_tokens: int = 10**6) -> EncodingForm:
    return EncodingForm(signature, filling, max_tokens=max_tokens, max_output_bytes=10**9)


@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 40), (40, 40), (41, 41)]
)
def test_a_width_is_a_multiple_or_the_longest_and_never_less_than_the_text(tokens: int, width: int) -> None:
    assert Widths(16, 40).of(tokens) == width


def test_a_multiple_larger_than_the_longest_makes_one_width() -> None:
    assert {Widths(512, 100).of(tokens) for tokens in range(1, 101)} == {100}


def test_nothing_is_rounded_without_the_flag() -> None:
    assert widths_of(1, 512) is None
    assert widths_of(8, 100) == Widths(8, 100)


def test_a_batch_is_padded_to_a_multiple_and_says_what_of_it_is_padding() -> None:
    packed = form().pack([encoding(2), encoding(5)])
    ids, mask = (tensor.data.tolist() for tensor in packed.inputs)
    assert ids == [[1] * 2 + [9] * 6, [1] * 5 + [9] * 3]
    assert mask == [[1] * 2 + [0] * 6, [1] * 5 + [0] * 3]
    assert (packed.real, packed.padding) == (7, 9)
    assert packed.sizes == {"logits": 2 * 8 * 2 * 4}
    alone = form().pack([encoding(9)])
    assert (alone.inputs[0].shape, alone.real, alone.padding) == ((1, 16), 9, 7)
    full = form().pack([encoding(8)])
    assert (full.inputs[0].shape, full.real, full.padding) == ((1, 8), 8, 0)
    assert form().pack([encoding(99)]).inputs[0].shape == (1, 100)


def test_the_same_without_a_batch_axis() -> None:
    packed = form(replace(MASKED, max_rows=1, batch_axis=False)).pack([encoding(5)])
    assert [tensor.shape for tensor in packed.inputs] == [(8,), (8,)]


def test_an_answer_has_the_tokens_of_its_text_alone() -> None:
    items = [encoding(2), encoding(5)]
    packed = form().pack(items)
    data = np.arange(2 * 8 * 2, dtype=np.float32).reshape(2, 8, 2)
    rows = [one["logits"] for one in form().unpack(items, packed, {"logits": Tensor("logits", "FP32", data)})]
    assert [row.tolist() for row in rows] == [data[0, :2].tolist(), data[1, :5].tolist()]


def test_texts_of_one_width_are_equally_long_for_the_queue_and_its_limits() -> None:
    rounded, exact = form(max_tokens=40), form(filling=replace(EIGHTS, widths=None))
    assert [rounded.bucket(encoding(length))[1] for length in (1, 8, 9, 99, 100)] == [8, 8, 16, 100, 100]
    assert [exact.bucket(encoding(length))[1] for length in (1, 8, 9)] == [1, 8, 9]
    item = encoding(9)
    assert [rounded.limits(item).allow(rows, 16, 16 * rows) for rows in (2, 3)] == [True, False]


def flags(multiple: int = 16) -> tuple[str, ...]:
    return ("--model_name=bert", f"--pad_to_multiple_of={multiple}")


def test_the_longest_width_is_that_at_which_texts_are_cut() -> None:
    pair = pair_of(GOOD, *flags())
    assert filling(pair.config, pair.tokenizer, pair.signature).widths == Widths(16, 128)
    pair = pair_of(GOOD, *flags(), "--max_model_len=100")
    assert filling(pair.config, pair.tokenizer, pair.signature).widths == Widths(16, 100)
    pair = pair_of(GOOD, *flags(1))
    assert filling(pair.config, pair.tokenizer, pair.signature).widths is None


def test_a_model_that_would_read_the_padding_is_refused() -> None:
    pair = pair_of(GOOD, *flags())
    bare = replace(GOOD, inputs=tuple(one for one in GOOD.inputs if one.name != "attention_mask"))
    with pytest.raises(ContractError) as caught:
        fit_task(pair.config, pair.task, bare)
    [problem] = caught.value.problems
    assert problem.startswith("--pad_to_multiple_of=16: the model gets no attention_mask")
    assert "expected 1, or" in problem
    assert fit_task(pair_of(GOOD, *flags(1)).config, pair.task, bare)[1].masked is False


def test_a_mask_that_the_flags_leave_out_is_none() -> None:
    pair = pair_of(GOOD, *flags())
    config = replace(pair.config, tensor_input_names=("input_ids",))
    inputs = tuple(replace(one, optional=one.name != "input_ids") for one in GOOD.inputs)
    with pytest.raises(ContractError, match="add attention_mask to --tensor_input_names"):
        fit_task(config, pair.task, replace(GOOD, inputs=inputs))


@pytest.mark.parametrize("masked", [True, False], ids=["with a mask", "without"])
def test_a_fixed_length_is_what_counts(masked: bool) -> None:
    inputs = tuple(
        TensorSpec(one.name, one.datatype, (24,)) for one in GOOD.inputs if masked or one.name != "attention_mask"
    )
    outputs = tuple(replace(one, shape=(24, *one.shape[1:])) for one in GOOD.outputs)
    pair = pair_of(replace(GOOD, inputs=inputs, outputs=outputs), *flags())
    assert pair.signature.length == 24
    found = filling(pair.config, pair.tokenizer, pair.signature)
    assert found.widths is None
    assert form(pair.signature, found).pack([encoding(5)]).inputs[0].shape == (1, 24)
