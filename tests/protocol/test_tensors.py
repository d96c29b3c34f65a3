"""Tensor elements as bytes, as JSON and as arrays."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.protocol import tensors
from hf_transformer.protocol.tensors import Malformed, Unwritable, checked_shape, decode_json, decode_raw, raw_view
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor

NUMERIC = (*NUMPY_DTYPES, "BF16")


def encode_raw(datatype: str, data: Array) -> bytes:
    return bytes(raw_view(Tensor("t", datatype, data)))


@pytest.mark.parametrize("datatype", NUMPY_DTYPES)
def test_numbers_are_decoded_as_views(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], NUMPY_DTYPES[datatype])
    raw = encode_raw(datatype, array)
    decoded = decode_raw(datatype, (2, 3), memoryview(raw))
    assert decoded.dtype == NUMPY_DTYPES[datatype]
    np.testing.assert_array_equal(decoded, array)
    if datatype != "BOOL":
        assert np.shares_memory(decoded, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize(
    ("datatype", "data", "raw"),
    [
        ("INT32", np.array([[1, 2], [3, 4]], ">i4").T, np.array([1, 3, 2, 4], "<i4").tobytes()),
        ("INT32", np.array([7], np.int64), b"\7\0\0\0"),
        ("BF16", np.array([0x7F800001, 0xFFFFFFFF], "<u4").view("<f4"), b"\xc0\x7f\xc0\x7f"),
        ("BYTES", np.array(["é", b"\xff", "", b"abc"], np.object_), b"\2\0\0\0\xc3\xa9\1\0\0\0\xff\0\0\0\0\3\0\0\0abc"),
    ],
    ids=["byte order and layout", "integers are cast", "every NaN stays one", "strings are framed"],
)
def test_elements_are_written_in_the_layout_of_the_protocol(datatype: str, data: Any, raw: bytes) -> None:
    assert encode_raw(datatype, data) == raw


def test_floats_are_not_written_as_integers() -> None:
    with pytest.raises(Unwritable, match="t: expected data that INT32 can hold, got float64"):
        encode_raw("INT32", np.array([7.5]))


def test_any_byte_but_zero_is_true() -> None:
    assert decode_raw("BOOL", (3,), memoryview(b"\x00\x02\xff")).view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("shape", [(3,), (16, 512), (1, 8192)], ids=str)
def test_large_tensors_are_views_whatever_their_layout(datatype: str, shape: tuple[int, ...]) -> None:
    dtype = NUMPY_DTYPES.get(datatype, np.dtype("<f4"))
    array = np.arange(prod(shape)).reshape(shape).astype(dtype)
    for data in (array, np.asfortranarray(array), array[:, ::-1] if array.ndim > 1 else array[::-1]):
        data.flags.writeable = False
        view = raw_view(Tensor("t", datatype, data))
        assert bytes(view) == encode_raw(datatype, data)
        if datatype != "BF16":
            assert (len(view), bytes(view)) == (data.nbytes, data.tobytes())
    large = np.zeros((16, 512), dtype)
    view = raw_view(Tensor("t", datatype, large))
    assert np.shares_memory(np.frombuffer(view, np.uint8), large) == (datatype != "BF16")


def test_bfloat16_is_widened() -> None:
    raw = np.array([0x3F80, 0xC000, 0x7F80, 0x7FC0, 0x0001], "<u2").tobytes()
    decoded = decode_raw("BF16", (5,), memoryview(raw))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, np.array([1, -2, np.inf, np.nan, 2.0**-133], np.float32))
    assert encode_raw("BF16", decoded) == raw


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (1 + 2**-8 + 2**-20, 0x3F81), (3.4028235e38, 0x7F80)],
    ids=["tie to even, down", "tie to even, up", "nearest", "overflow"],
)
def test_bfloat16_rounds_to_the_nearest(value: float, bits: int) -> None:
    assert encode_raw("BF16", np.array(value, np.float32)) == bits.to_bytes(2, "little")


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        (b"\1\0\0", "3 bytes in all"),
        (b"\2\0\0\0a", "an end within element 0"),
        (b"\4\0\0\0abcd\1", "an end before element 1"),
        (b"\0\0\0\0\0\0\0\0!", "1 further bytes"),
        (b"\xff\xff\xff\xff\0\0\0\0", "an end within element 0"),
    ],
)
def test_lengths_of_raw_strings_are_checked(raw: bytes, got: str) -> None:
    with pytest.raises(Malformed, match=f"data: expected . BYTES elements.*, got {got}$"):
        decode_raw("BYTES", (2,) if len(raw) > 5 else (1,), memoryview(raw))


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_raw_data_needs_the_size_of_its_shape(size: int) -> None:
    with pytest.raises(Malformed, match=rf"data: expected 4 bytes for INT32 \[1\], got {size}"):
        decode_raw("INT32", (1,), memoryview(bytes(size)))


@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES"])
def test_empty_tensors_keep_their_shape(datatype: str) -> None:
    shape = (0, 2**40)
    assert decode_raw(datatype, shape, memoryview(b"")).shape == shape
    assert decode_json(datatype, shape, [[], []]).shape == shape


@pytest.mark.parametrize(
    "shape",
    [None, 3, "12", {"a": 1}, [-1], [1.0], [True], ["1"], [2**63], [0, 2**70], [2**20] * 3, [1] * 33],
    ids=repr,
)
def test_shapes_that_no_array_has_are_refused(shape: Any) -> None:
    with pytest.raises(Malformed, match=r"^shape: expected"):
        checked_shape(shape)


def test_a_large_shape_allocates_no_memory() -> None:
    shape = checked_shape([2**44])
    for datatype in ("FP32", "BYTES", "BF16", "BOOL"):
        with pytest.raises(Malformed, match="got 4"):
            decode_raw(datatype, shape, memoryview(b"1234"))
        with pytest.raises(Malformed, match="got 0"):
            decode_json(datatype, shape, [])


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("INT64", [[1, -(2**63)], [2**63 - 1, 4]], [[1, -(2**63)], [2**63 - 1, 4]]),
        ("UINT64", [2**64 - 1, 0, 1, 2], [[2**64 - 1, 0], [1, 2]]),
        ("FP32", [[[1], [2.5]], [[-0.5], [0]]], [[1, 2.5], [-0.5, 0]]),
        ("FP16", [1, 2, 3, 1e9], [[1, 2], [3, np.inf]]),
        ("BF16", [1, 2, 3, 4], [[1, 2], [3, 4]]),
        ("BOOL", [True, False, False, True], [[True, False], [False, True]]),
        ("BYTES", ["a", "é", "", "d"], [[b"a", "é".encode()], [b"", b"d"]]),
    ],
)
def test_json_is_decoded_flat_or_nested(datatype: str, data: Any, expected: Any) -> None:
    assert decode_json(datatype, (2, 2), data).tolist() == expected


WRONG_JSON = (
    *(
        ("INT64", data)
        for data in ("12", {"a": 1}, [1], [1, [2]], [1, 2.5], [1, True], [1, "2"], [1, None], [1, 2**63])
    ),
    *(("INT8", [1, 128]), ("UINT8", [1, -1]), ("FP32", ["1", 2]), ("FP64", [10**400, 2])),
    *(("BOOL", [0, 1]), ("BYTES", ["a", 1])),
)


@pytest.mark.parametrize(("datatype", "data"), WRONG_JSON, ids=repr)
def test_json_of_another_type_is_refused(datatype: str, data: Any) -> None:
    with pytest.raises(Malformed, match=r"^data: expected"):
        decode_json(datatype, (2,), data)


@given(st.binary(max_size=64), st.sampled_from([*NUMERIC, "BYTES"]), st.lists(st.integers(0, 9), max_size=4))
def test_any_bytes_decode_or_are_malformed(raw: bytes, datatype: str, shape: list[int]) -> None:
    try:
        decoded = decode_raw(datatype, tuple(shape), memoryview(raw))
    except Malformed:
        return
    assert decoded.shape == tuple(shape)


@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=20)), max_size=9))
def test_any_strings_can_be_written_and_read(values: list[bytes | str]) -> None:
    data = np.empty(len(values), np.object_)
    data[:] = values
    decoded = decode_raw("BYTES", (len(values),), memoryview(encode_raw("BYTES", data))).tolist()
    assert decoded == [value.encode() if isinstance(value, str) else value for value in values]


class UnreadableList(list[Any]):
    """A list with a length, whose elements must not be read."""

    def __iter__(self) -> Any:
        raise AssertionError("the elements were read")


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ((1,), UnreadableList([[]] * 1000), r"expected 1 elements for the shape \[1\], got 1000"),
        ((0,), UnreadableList([1, 2]), r"expected 0 elements for the shape \[0\], got 2"),
        ((2, 3), [[1] * 1000, [2]], r"expected 6 elements for the shape \[2, 3\], got 1001"),
        ((), [[1]], r"expected lists no deeper than the shape \[\]"),
    ],
    ids=["lists", "none", "level", "scalar"],
)
def test_json_that_does_not_fit_the_shape_is_not_flattened(
    shape: tuple[int, ...], data: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Malformed, match=r"lists no deeper than the shape \[1\], got a depth of 3 or more"):
        decode_json("INT64", (1,), [[[UnreadableList()]]])
    monkeypatch.setattr(tensors, "chain", None)
    with pytest.raises(Malformed, match=message):
        decode_json("INT64", shape, data)
