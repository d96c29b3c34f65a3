"""The pure parts; that answers do not depend on neighbours is shown on the real predictor, in tests/integration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_transformer.core.packing import MOST_KEPT, MOST_SHAPES, EncodingForm, Filling, pack, verify
from hf_transformer.core.signature import Binding, InputBinding, OutputBinding
from hf_transformer.errors import PredictorError
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types import Encoding, Tensor

IDS = InputBinding("input_ids", "input_ids", "INT64")
MASK = InputBinding("mask", "attention_mask", "INT64")
TYPES = InputBinding("types", "token_type_ids", "INT32")
LOGITS = OutputBinding("logits", "logits", "FP32", (TOKENS, Axis(name="vocabulary", minimum=5)))
MASKED = Binding((IDS, MASK, TYPES), (LOGITS,), 4, None, True, None, True)
UNMASKED = Binding((IDS,), (LOGITS,), 4, None, True, None, False)
RIGHT = Filling(pad_id=9, left=False)


def encoding(length: int) -> Encoding:
    return Encoding(list(range(1, length + 1)), [0] * (length - 1) + [1])


def test_padding_goes_where_the_tokenizer_has_it() -> None:
    ids, mask, types = pack([encoding(2), encoding(3)], MASKED, RIGHT)
    assert ids.data.tolist() == [[1, 2, 9], [1, 2, 3]]
    assert mask.data.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert types.data.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert [one.data.dtype.name for one in (ids, mask, types)] == ["int64", "int64", "int32"]
    left = pack([encoding(2), encoding(3)], MASKED, Filling(pad_id=9, left=True))
    assert left[0].data.tolist() == [[9, 1, 2], [1, 2, 3]]
    assert left[1].data.tolist() == [[0, 1, 1], [1, 1, 1]]


def test_fixed_shapes_are_filled_up() -> None:
    binding = replace(MASKED, exact_rows=3, length=4)
    ids, mask, _ = pack([encoding(2), encoding(1)], binding, RIGHT)
    assert ids.data.tolist() == [[1, 2, 9, 9], [1, 9, 9, 9], [1, 9, 9, 9]]
    assert mask.data.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]


def test_no_batch_axis() -> None:
    binding = replace(UNMASKED, max_rows=1, batch_axis=False)
    assert pack([encoding(2)], binding, RIGHT)[0].data.tolist() == [1, 2]


def test_a_right_response_is_given_a_batch_axis() -> None:
    tensor = Tensor("logits", "FP32", np.zeros((3, 5), np.float32))
    assert verify(tensor, LOGITS, 1, 3, batch_axis=False).shape == (1, 3, 5)


@pytest.mark.parametrize(("sizes", "allowed"), [((-1, 5), True), ((-1, -1), False)], ids=["known", "unknown"])
def test_more_bytes_of_outputs_only_where_their_sizes_are_known(sizes: tuple[int, ...], allowed: bool) -> None:
    binding = replace(MASKED, outputs=(replace(LOGITS, sizes=sizes),))
    form = EncodingForm(binding, RIGHT, max_tokens=100, max_output_bytes=120, more=lambda size: size <= 180)
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
    tensor = Tensor("logits", datatype, np.zeros(shape))
    with pytest.raises(PredictorError) as caught:
        verify(tensor, LOGITS, 2, 3, batch_axis=True)
    assert says in str(caught.value)


def form_of(binding: Binding) -> EncodingForm:
    return EncodingForm(binding, RIGHT, max_tokens=10**6, max_output_bytes=10**9)


def zeros(*shape: int) -> dict[str, Tensor]:
    return {"logits": Tensor("logits", "FP32", np.zeros(shape, np.float32))}


@pytest.mark.parametrize("batch_axis", [True, False], ids=["batch axis", "none"])
def test_every_response_is_verified_though_shapes_come_again(batch_axis: bool) -> None:
    form = form_of(replace(MASKED, batch_axis=batch_axis, max_rows=4 if batch_axis else 1))
    items = [encoding(3)]
    packed = form.pack(items)

    def unpacked(datatype: str, *shape: int) -> list[float]:
        data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape if batch_axis else shape[1:])
        [rows] = form.unpack(items, packed, {"logits": Tensor("logits", datatype, data)})
        values: list[float] = rows["logits"].ravel().tolist()
        return values

    for _ in range(2):
        assert unpacked("FP32", 1, 3, 5) == list(range(15))
        assert unpacked("FP32", 1, 3, 6) == list(range(18))
        with pytest.raises(PredictorError, match="as FP16, its configuration says FP32"):
            unpacked("FP16", 1, 3, 5)
        with pytest.raises(PredictorError, match="with the shape"):
            unpacked("FP32", 1, 2, 5)
        with pytest.raises(PredictorError, match="4 along vocabulary"):
            unpacked("FP32", 1, 3, 4)


def test_a_shape_that_is_right_for_one_batch_is_not_for_another() -> None:
    form = form_of(MASKED)
    for lengths, wrong in (([3], (1, 2, 5)), ([2], (1, 3, 5)), ([3, 3], (1, 3, 5))):
        items = [encoding(length) for length in lengths]
        packed = form.pack(items)
        for _ in range(2):
            assert len(list(form.unpack(items, packed, zeros(len(lengths), lengths[0], 5)))) == len(items)
            with pytest.raises(PredictorError, match="with the shape"):
                list(form.unpack(items, packed, zeros(*wrong)))


def test_what_is_kept_of_shapes_is_bounded() -> None:
    form = form_of(MASKED)
    items = [encoding(1)]
    packed = form.pack(items)
    for size in range(5, 5 + MOST_SHAPES + 10):
        list(form.unpack(items, packed, zeros(1, 1, size)))
    assert 0 < len(form._promised) <= MOST_SHAPES


def test_sizes_of_a_batch() -> None:
    known = replace(LOGITS, sizes=(-1, 5))
    form = form_of(replace(MASKED, outputs=(known, replace(LOGITS, name="free", sizes=(-1, -1)))))
    for _ in range(2):
        assert form.pack([encoding(2), encoding(3)]).sizes == {"logits": 2 * 3 * 5 * 4}
        assert form.pack([encoding(4)]).sizes == {"logits": 4 * 5 * 4}
    packed = form.pack([encoding(2), encoding(3)])
    assert (packed.real, packed.padding) == (5, 1)


def test_a_mask_that_hides_nothing_is_shared_and_can_not_be_written_to() -> None:
    form = EncodingForm(MASKED, RIGHT, max_tokens=10**6, max_output_bytes=10**9)
    first, second, longer = (form.pack([encoding(length)] * 2) for length in (3, 3, 4))
    mask = first.inputs[1].data
    assert mask.tolist() == [[1, 1, 1]] * 2 and longer.inputs[1].data.tolist() == [[1, 1, 1, 1]] * 2
    assert second.inputs[1].data is mask and second.inputs[0].data is not first.inputs[0].data
    with pytest.raises(ValueError, match="read-only"):
        mask[0, 0] = 0
    large = form.pack([encoding(MOST_KEPT + 1)]).inputs[1].data
    assert large.shape == (1, MOST_KEPT + 1) and large.min() == 1
    assert form.pack([encoding(MOST_KEPT + 1)]).inputs[1].data is not large
