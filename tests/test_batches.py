"""The pure parts; that answers do not depend on neighbours is shown on the real predictor, in tests/integration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_transformer.batches import Filling, pack, verify
from hf_transformer.binding import Binding, InputBinding, OutputBinding
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
