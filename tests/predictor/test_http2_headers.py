"""Header blocks of HTTP/2: ours as any decoder reads them, and those of servers, whatever tables they keep."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor.http2_errors import Malformed
from hf_transformer.predictor.http2_frames import ErrorCode
from hf_transformer.predictor.http2_headers import HeaderReader, encode_fields, encode_post

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=200)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=400)


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(one[0], "latin-1"), str(one[1], "latin-1")) for one in Decoder(2**20).decode(block, raw=True)]


@pytest.mark.parametrize("tls", [True, False])
def test_the_beginning_of_a_request(tls: bool) -> None:
    assert decoded(encode_post("/a.B/C", "triton:8001", "application/grpc", tls=tls)) == [
        (":method", "POST"),
        (":scheme", "https" if tls else "http"),
        (":path", "/a.B/C"),
        (":authority", "triton:8001"),
        ("content-type", "application/grpc"),
    ]


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_fields_of_any_length(fields: list[tuple[str, str]]) -> None:
    assert decoded(encode_fields(fields)) == fields


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 127 + 2**14, 10**5])
def test_lengths_where_their_encoding_changes(length: int) -> None:
    assert decoded(encode_fields([("a", "x" * length)])) == [("a", "x" * length)]


def test_secrets_are_in_no_table() -> None:
    fields = [*Decoder().decode(encode_fields([("authorization", "Bearer x"), ("cookie", "a"), ("x-id", "7")]))]
    assert [field.indexable for field in fields] == [False, False, True]


def test_fields_of_a_server_that_uses_the_table_it_was_not_to_use() -> None:
    encoder, reader = Encoder(), HeaderReader()
    for number in range(50):
        fields = [(":status", "200"), ("content-type", "application/grpc"), ("number", str(number % 7))]
        assert reader.decode(encoder.encode(fields)) == dict(fields)


def test_a_server_that_gives_the_table_up() -> None:
    encoder, reader = Encoder(), HeaderReader()
    fields = [(":status", "200"), ("content-type", "application/grpc")]
    reader.decode(encoder.encode(fields))
    encoder.header_table_size = 0
    found = [reader.decode(encoder.encode(fields)) for _ in range(4)]
    assert found == [dict(fields)] * 4
    assert found[1] is found[2] is found[3] is not found[0], "equal blocks are read once"


def test_a_table_that_comes_back_makes_nothing_wrong() -> None:
    """An indexed field, 0x80 | 62, means what came last, as long as there is a table."""
    reader = HeaderReader()
    indexing = [b"\x40\x01a" + bytes((1,)) + value for value in (b"1", b"2")]
    assert reader.decode(b"\x20\x88") == {":status": "200"}
    assert [reader.decode(block) for block in indexing * 2] == [{"a": "1"}, {"a": "2"}] * 2
    with pytest.raises(Malformed):
        HeaderReader().decode(b"\xbe")
    assert reader.decode(b"\x3f\xe1\x1f\x88") == {":status": "200"}  # 4096 bytes again
    for number, block in enumerate(indexing * 2):
        reader.decode(block)
        assert reader.decode(b"\xbe") == {"a": str(number % 2 + 1)}


def test_repeated_fields_are_joined() -> None:
    assert HeaderReader().decode(encode_fields([("a", "1"), ("b", "2"), ("a", "3")])) == {"a": "1,3", "b": "2"}


def test_what_is_remembered_is_bounded() -> None:
    reader = HeaderReader()
    reader.decode(b"\x20")
    for number in range(1000):
        assert reader.decode(encode_fields([("a", str(number))])) == {"a": str(number)}
        reader.decode(encode_fields([("b", "x" * 1000 + str(number))]))
    assert len(reader._known) <= 32
    assert all(len(block) <= 256 for block in reader._known)


@pytest.mark.parametrize(
    "block",
    [
        b"\xff",
        b"\x80",
        b"\xbe",
        b"\x00\x05ab",
        b"\x3f\xe2\x1f",
        b"\x88\x20",
        b"\x00\x81\xff\x01a",
        b"\x00\x01a\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        encode_fields([("a", "x" * 20_000), ("b", "x" * 20_000)]),
    ],
    ids=["cut", "index 0", "no such index", "cut string", "large table", "late size", "huffman", "number", "too large"],
)
def test_blocks_that_are_none(block: bytes) -> None:
    with pytest.raises(Malformed, match="a header block can't be read") as caught:
        HeaderReader().decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_blocks_at_all(blocks: list[bytes]) -> None:
    """They are fields, or an error; and the same that a decoder finds which remembers nothing."""
    reader, plain = HeaderReader(), Decoder(2**15)
    for block in (b"\x20", *blocks, *blocks):
        try:
            expected = dict[str, str]()
            for name, value in plain.decode(block, raw=True):
                key, text = str(name, "latin-1"), str(value, "latin-1")
                expected[key] = f"{expected[key]},{text}" if key in expected else text
        except Exception:
            with pytest.raises(Malformed):
                reader.decode(block)
            return
        assert reader.decode(block) == expected
