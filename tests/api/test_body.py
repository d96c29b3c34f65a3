"""Bodies: compressions, charsets, and how large they may be, alone and together."""

from __future__ import annotations

import gzip
import zlib

import pytest

from hf_transformer.api.body import read_body, to_utf8
from hf_transformer.core.limits import Admission, Place
from hf_transformer.errors import InvalidInput, RequestError, TooLarge, TooManyRequests, UnsupportedEncoding
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ClientGone
from tests.api.plain_request import PlainRequest

BODY = b'{"instances": ["a"]}'


def admission_of(max_bytes: int = 2**20) -> tuple[Admission, Metrics]:
    metrics = Metrics("m")
    return Admission(10, 1000, metrics, max_bytes), metrics


def refused(metrics: Metrics) -> bool:
    """Whether a request was counted that found no room for its bytes."""
    return b'hf_transformer_refused_requests_total{limit="bytes"} 1.0' in metrics.render()


async def read(*chunks: bytes, encoding: bytes = b"", length: bytes = b"") -> bytes:
    return await read_body(request(*chunks, encoding=encoding, length=length), 1000, Place(admission_of()[0]))


def request(*chunks: bytes, encoding: bytes = b"", length: bytes = b"") -> PlainRequest:
    lines = ((b"content-encoding", encoding), (b"content-length", length))
    return PlainRequest(*chunks, fields=[line for line in lines if line[1]])


@pytest.mark.parametrize(
    ("chunks", "encoding", "expected"),
    [
        ((BODY[:3], BODY[3:]), b"identity", BODY),
        ((b"x" * 400, b"x" * 600), b"", b"x" * 1000),  # a body of the limit is taken
        *[((gzip.compress(BODY),), name, BODY) for name in (b"gzip", b"GZIP", b"x-gzip")],
        ((gzip.compress(BODY[:7]) + gzip.compress(BODY[7:]),), b"gzip", BODY),
        # As Triton's clients send it; a raw stream and gzip are something else.
        ((zlib.compress(BODY),), b"Deflate", BODY),
    ],
)
async def test_bodies_that_are_taken(chunks: tuple[bytes, ...], encoding: bytes, expected: bytes) -> None:
    assert await read(*chunks, encoding=encoding) == expected


async def test_a_client_that_left_is_noticed() -> None:
    with pytest.raises(ClientGone):
        await read_body(PlainRequest(b"abc", leaves=True), 1000, Place(admission_of()[0]))


BROKEN = {
    "plain": (BODY, b"gzip", "gzip"),
    "cut off": (gzip.compress(BODY)[:-9], b"gzip", "gzip"),
    "empty": (b"", b"gzip", "gzip"),
    "followed by rubbish": (gzip.compress(BODY) + b"rest", b"gzip", "gzip"),
    "deflate": (zlib.compress(BODY), b"gzip", "gzip"),
    "many members": (gzip.compress(b"") * 17, b"gzip", "members"),
    "plain, deflate": (BODY, b"deflate", "says deflate"),
    "raw, deflate": (zlib.compress(BODY)[2:-4], b"deflate", "says deflate"),
    "gzip, deflate": (gzip.compress(BODY), b"deflate", "says deflate"),
    "cut off, deflate": (zlib.compress(BODY)[:-3], b"deflate", "says deflate"),
}


@pytest.mark.parametrize(("body", "encoding", "says"), BROKEN.values(), ids=BROKEN)
async def test_what_is_not_compressed_as_it_says(body: bytes, encoding: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await read(body, encoding=encoding)


LARGE = {
    "body": ((b"x" * 1001,), b"", b""),
    "chunks": ((b"x" * 600, b"x" * 600), b"", b""),
    "content-length": ((b"x",), b"", b"1001"),
    "decompressed": ((gzip.compress(b"x" * 1001),), b"gzip", b""),
    "members": ((gzip.compress(b"x" * 600) * 2,), b"gzip", b""),
    "bomb": ((gzip.compress(b"x" * 10_000_000)[:900],), b"gzip", b""),
    "deflate": ((zlib.compress(b"x" * 1001),), b"deflate", b""),
}


@pytest.mark.parametrize(("chunks", "encoding", "length"), LARGE.values(), ids=LARGE)
async def test_the_limit_holds(chunks: tuple[bytes, ...], encoding: bytes, length: bytes) -> None:
    with pytest.raises(TooLarge, match="1000 bytes"):
        await read(*chunks, encoding=encoding, length=length)


@pytest.mark.parametrize(
    ("encoding", "length", "error", "status"),
    [
        pytest.param(b"", b"1001", TooLarge, 413, id="too large"),
        pytest.param(b"gzip", b"1001", TooLarge, 413, id="too large, compressed"),
        pytest.param(b"", b"101", TooManyRequests, 429, id="no room"),
        pytest.param(b"br", b"9", UnsupportedEncoding, 415, id="another compression"),
        pytest.param(b"br", b"", UnsupportedEncoding, 415, id="another compression, chunked"),
    ],
)
async def test_what_the_head_says_is_refused_before_anything_is_read(
    encoding: bytes, length: bytes, error: type[RequestError], status: int
) -> None:
    admission, metrics = admission_of(200)
    Place(admission).hold(100)
    sent = request(b"x" * 99, encoding=encoding, length=length)
    with pytest.raises(error) as caught:
        await read_body(sent, 1000, Place(admission))
    assert (caught.value.status, sent.reads, admission.bytes) == (status, 0, 100)
    assert refused(metrics) == (status == 429)


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        (b"application/json; charset=UTF-8", "utf-8"),
        (b"application/json", "utf-8-sig"),
        (b"text/plain; charset=latin-1", "latin-1"),
        (b'application/json; charset="utf-16"; x=y', "utf-16"),
    ],
)
def test_charsets(content_type: bytes, charset: str) -> None:
    assert to_utf8('"é"'.encode(charset), {b"content-type": content_type}) == '"é"'.encode()


@pytest.mark.parametrize(
    ("charset", "error", "says"),
    [
        *[(name, UnsupportedEncoding, "is not taken") for name in ("klingon", "punycode", "base64", "utf-7", "\0")],
        ("x" * 9000, UnsupportedEncoding, "is not taken"),
        *[(name, InvalidInput, "charset") for name in ("ascii", "utf-16")],
    ],
)
def test_other_charsets_are_refused(charset: str, error: type[RequestError], says: str) -> None:
    with pytest.raises(error, match=says):
        to_utf8(b"\xff\xfe\xff", {b"content-type": b"text/plain; charset=" + charset.encode()})


async def test_bodies_have_a_limit_together() -> None:
    admission, metrics = admission_of(100)
    first, second = Place(admission), Place(admission)
    await read_body(PlainRequest(b"x" * 40, b"x" * 20), 100, first)
    with pytest.raises(TooManyRequests, match=r"have 90 bytes, --max_bytes_in_flight allows 100") as caught:
        await read_body(PlainRequest(b"x" * 30, b"x" * 11), 100, second)
    assert (caught.value.status, caught.value.retry_after, refused(metrics)) == (429, 1, True)
    assert admission.bytes == 90  # what came of it is there until it is given back
    second.leave()
    assert await read_body(PlainRequest(b"x" * 40), 100, second) == b"x" * 40
    for place in (first, second, second):
        place.leave()
    assert admission.bytes == 0


async def test_a_compressed_body_counts_as_what_it_becomes() -> None:
    admission, _ = admission_of(1000)
    sent = gzip.compress(b"x" * 900)
    with Place(admission) as place:
        await read_body(request(sent, encoding=b"gzip"), 1000, place)
        assert admission.bytes == 900
        with Place(admission) as other, pytest.raises(TooManyRequests):
            await read_body(request(sent, encoding=b"gzip"), 1000, other)
    assert admission.bytes == 0
