"""The pure parts; that answers do not depend on neighbours is shown on the real predictor, in tests/integration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_transformer.core.batch import EncodingForm, Filling
from hf_transformer.core.contract import InputSignature, OutputSignature, Signature
from hf_transformer.errors import PredictorError
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types import Encoding, Tensor

IDS = InputSignature("input_ids", "input_ids", "INT64")
MASK = InputSignature("mask", "attention_mask", "INT64")
TYPES = InputSignature("types", "token_type_ids", "INT32")
LOGITS = OutputSignature("logits", "logits", "FP32", (TOKENS, Axis(name="vocabulary", minimum=5)))
MASKED = Signature((IDS, MASK, TYPES), (LOGITS,), 4, None, True, None, True)
UNMASKED = Signature((IDS,), (LOGITS,), 4, None, True, None, False)
RIGHT = Filling(pad_id=9, left=False)


def encoding(length: int) -> Encoding:
    return Encoding(list(range(1, length + 1)), [0] * (length - 1) + [1])


def form_of(signature: Signature, filling: Filling = RIGHT) -> EncodingForm:
    return EncodingForm(signature, filling)


def pack(encodings: list[Encoding], signature: Signature, filling: Filling = RIGHT) -> list[Tensor]:
    return form_of(signature, filling).pack(encodings).inputs


def test_padding_goes_where_the_tokenizer_has_it() -> None:
    ids, mask, types = pack([encoding(2), encoding(3)], MASKED)
    assert ids.data.tolist() == [[1, 2, 9], [1, 2, 3]]
    assert mask.data.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert types.data.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert [one.data.dtype.name for one in (ids, mask, types)] == ["int64", "int64", "int32"]
    left = pack([encoding(2), encoding(3)], MASKED, Filling(pad_id=9, left=True))
    assert left[0].data.tolist() == [[9, 1, 2], [1, 2, 3]]
    assert left[1].data.tolist() == [[0, 1, 1], [1, 1, 1]]


def test_fixed_shapes_are_filled_up() -> None:
    signature = replace(MASKED, exact_rows=3, length=4)
    ids, mask, _ = pack([encoding(2), encoding(1)], signature)
    assert ids.data.tolist() == [[1, 2, 9, 9], [1, 9, 9, 9], [1, 9, 9, 9]]
    assert mask.data.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]


def test_no_batch_axis() -> None:
    signature = replace(UNMASKED, max_rows=1, batch_axis=False)
    assert pack([encoding(2)], signature)[0].data.tolist() == [1, 2]


@pytest.mark.parametrize(("sizes", "allowed"), [((-1, 5), True), ((-1, -1), False)], ids=["known", "unknown"])
def test_more_bytes_of_outputs_only_where_their_sizes_are_known(sizes: tuple[int, ...], allowed: bool) -> None:
    signature = replace(MASKED, outputs=(replace(LOGITS, sizes=sizes),))
    form = EncodingForm(signature, RIGHT, max_tokens=100, max_output_bytes=120, more=lambda size: size <= 180)
    limits = form.limits(encoding(3))  # a row has 60 bytes
    assert [limits.allow(rows, 3, 3 * rows) for rows in (2, 3, 4)] == [True, allowed, False]


@pytest.mark.parametrize(
    ("datatype", "shape", "says"),
    [
        pytest.param("FP64", (2, 3, 5), "as FP64", id="datatype"),
        pytest.param("FP32", (2, 3), "expected [2, 3, -1]", id="rank"),
        pytest.param("FP32", (1, 3, 5), "expected [2, 3, -1]", id="rows"),
        pytest.param("FP32", (2, 2, 5), "expected [2, 3, -1]", id="tokens"),
        pytest.param("FP32", (2, 3, 4), "4 along vocabulary", id="vocabulary"),
    ],
)
def test_a_wrong_response_is_refused(datatype: str, shape: tuple[int, ...], says: str) -> None:
    form, items = form_of(MASKED), [encoding(3), encoding(3)]
    outputs = {"logits": Tensor("logits", datatype, np.zeros(shape))}
    with pytest.raises(PredictorError) as caught:
        next(form.unpack(items, form.pack(items), outputs))
    assert says in str(caught.value)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("batch_axis", [True, False], ids=["batch axis", "none"])
def test_each_item_gets_its_own_rows_without_padding(batch_axis: bool, left: bool) -> None:
    items = [encoding(2), encoding(3)] if batch_axis else [encoding(3)]
    form = form_of(replace(MASKED, batch_axis=batch_axis, max_rows=len(items)), replace(RIGHT, left=left))
    packed = form.pack(items)
    data = np.arange(len(items) * 3 * 5, dtype=np.float32).reshape(len(items), 3, 5)
    outputs = {"logits": Tensor("logits", "FP32", data if batch_axis else data[0])}
    found = [rows["logits"].tolist() for rows in form.unpack(items, packed, outputs)]
    if not batch_axis:
        assert found == [data[0].tolist()]
    else:
        assert found == [(data[0, 1:] if left else data[0, :2]).tolist(), data[1].tolist()]


def test_sizes_of_a_batch() -> None:
    known = replace(LOGITS, sizes=(-1, 5))
    form = form_of(replace(MASKED, outputs=(known, replace(LOGITS, name="free", sizes=(-1, -1)))))
    packed = form.pack([encoding(2), encoding(3)])
    assert packed.sizes == {"logits": 2 * 3 * 5 * 4}
    assert (packed.real, packed.padding) == (5, 1)
    assert form.pack([encoding(4)]).sizes == {"logits": 4 * 5 * 4}


def test_a_batch_without_padding() -> None:
    ids, mask, types = pack([encoding(3), encoding(3)], MASKED)
    assert ids.data.tolist() == [[1, 2, 3]] * 2 and types.data.tolist() == [[0, 0, 1]] * 2
    assert mask.data.tolist() == [[1, 1, 1]] * 2 and mask.data.dtype == np.int64
