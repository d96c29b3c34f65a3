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


async def read(*chunks: bytes, encoding: bytes = b"", limit: int = 1000, length: bytes = b"") -> bytes:
    return await read_body(request(*chunks, encoding=encoding, length=length), limit, Place(admission_of()[0]))


def request(*chunks: bytes, encoding: bytes = b"", length: bytes = b"") -> PlainRequest:
    lines = ((b"content-encoding", encoding), (b"content-length", length))
    return PlainRequest(*chunks, fields=[line for line in lines if line[1]])


async def test_chunks_are_joined() -> None:
    assert await read(BODY[:3], BODY[3:], encoding=b"identity") == BODY
    assert await read(b"x" * 400, b"x" * 600) == b"x" * 1000, "a body of the limit is taken"


async def test_a_client_that_left_is_noticed() -> None:
    with pytest.raises(ClientGone):
        await read_body(PlainRequest(b"abc", leaves=True), 1000, Place(admission_of()[0]))


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"x-gzip"])
async def test_gzip_is_honoured(encoding: bytes) -> None:
    assert await read(gzip.compress(BODY), encoding=encoding) == BODY


async def test_deflate_is_zlibs_format() -> None:
    """As Triton's clients send it; a raw stream and gzip are something else."""
    assert await read(zlib.compress(BODY), encoding=b"Deflate") == BODY
    for other in (BODY, zlib.compress(BODY)[2:-4], gzip.compress(BODY), zlib.compress(BODY)[:-3]):
        with pytest.raises(InvalidInput, match="says deflate"):
            await read(other, encoding=b"deflate")
    with pytest.raises(TooLarge):
        await read(zlib.compress(b"x" * 1001), encoding=b"deflate")


async def test_gzip_members_are_joined() -> None:
    assert await read(gzip.compress(BODY[:7]) + gzip.compress(BODY[7:]), encoding=b"gzip") == BODY


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(BODY, id="plain"),
        pytest.param(gzip.compress(BODY)[:-9], id="cut off"),
        pytest.param(b"", id="empty"),
        pytest.param(gzip.compress(BODY) + b"rest", id="followed by rubbish"),
        pytest.param(zlib.compress(BODY), id="deflate"),
    ],
)
async def test_what_is_not_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="gzip"):
        await read(body, encoding=b"gzip")


async def test_other_compressions_are_refused() -> None:
    with pytest.raises(UnsupportedEncoding, match="'br'"):
        await read(BODY, encoding=b"br")


@pytest.mark.parametrize(
    ("chunks", "encoding", "length"),
    [
        pytest.param((b"x" * 1001,), b"", b"", id="body"),
        pytest.param((b"x" * 600, b"x" * 600), b"", b"", id="chunks"),
        pytest.param((b"x",), b"", b"1001", id="content-length"),
        pytest.param((gzip.compress(b"x" * 1001),), b"gzip", b"", id="decompressed"),
        pytest.param((gzip.compress(b"x" * 600) * 2,), b"gzip", b"", id="members"),
        pytest.param((gzip.compress(b"x" * 10_000_000)[:900],), b"gzip", b"", id="bomb"),
    ],
)
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


@pytest.mark.parametrize("charset", ["klingon", "punycode", "base64", "utf-7", "x" * 9000, "\0"])
def test_other_charsets_are_refused(charset: str) -> None:
    with pytest.raises(UnsupportedEncoding, match="is not taken"):
        to_utf8(b"{}", {b"content-type": b"text/plain; charset=" + charset.encode()})


async def test_many_gzip_members_are_refused() -> None:
    with pytest.raises(InvalidInput, match="members"):
        await read(gzip.compress(b"") * 17, encoding=b"gzip")


@pytest.mark.parametrize("charset", [b"ascii", b"utf-16"])
def test_a_body_in_another_charset_is_refused(charset: bytes) -> None:
    with pytest.raises(InvalidInput, match="charset"):
        to_utf8(b"\xff\xfe\xff", {b"content-type": b"text/plain; charset=" + charset})


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
