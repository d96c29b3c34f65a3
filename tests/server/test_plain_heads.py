"""What is read without the parser of HTTP is what the parser reads: byte for byte, for whatever a client sends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.server.plain_heads import LONGEST, LONGEST_NAME, MOST_FIELDS, MOST_NAMES, PlainHeads
from tests.server.scripted import ANSWER, PAUSE, RESUME, Site, compared
from tests.server.test_short_requests import CHUNKED, TARGET, post

MESH = [
    "user-agent: python-httpx/0.27.0",
    "accept: */*",
    "Content-Type: application/json",
    "X-Forwarded-For: 10.1.2.3, 127.0.0.6",
    "x-forwarded-proto: http",
    "x-envoy-attempt-count: 1",
    "x-request-id: 0f5a3b1c-1234-4abc-9def-0123456789ab",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "x-b3-traceid: 4bf92f3577b34da6a3ce929d0e0e4736",
    "x-b3-sampled: 0",
]
FRAMED = [
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "transfer-encoding:chunked",
    "Transfer-Encoding : chunked",
    "Content-Length: 4",
    "content-length: 4",
    "Content-Length: 5",
    "Content-Length: 4, 4",
    "Content-Length: +4",
    "Content-Length: 04",
    "Content-Length:4",
    "Content-Length: 4 ",
    "Content-Length:  4",
    "Content_Length: 4",
    "Connection: close",
    "Connection: Keep-Alive",
    "Connection: keep-alive, close",
    "Connection: upgrade",
    "Connection: content-length",
    "Proxy-Connection: close",
    "Upgrade: websocket",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Host: y",
    "X-Name:",
    "X-Name: ",
    "X-Name:a",
    "X-Name:\ta",
    "X-Name: a ",
    "X-Name: a\t",
    "X-Name: a\tb",
    "X-Name: a\xe9b",
    "X-Name: a:b: c",
    "X-Name : a",
    " X-Name: a",
    "\tX-Name: a",
    "X(Name): a",
    ": a",
    "a",
    "",
    "POST /short HTTP/1.1",
]
HARMLESS = {"Connection: Keep-Alive", "Content_Length: 4", "Host: y", "X-Name: a:b: c", "X-Name: a "}
ENDS = [
    b"\n",
    b"\r",
    b"\r\r\n",
    b"\n\r",
    b"\r\n\r\n",
    b"\r\n ",
    b"\r\n\t",
    b" \r\n",
    b"\0\r\n",
    b"\x0b\r\n",
    b"\x85\r\n",
]


class Parsed:
    """What the parser that uvicorn uses, set as uvicorn sets it, makes of one read."""

    def __init__(self, data: bytes) -> None:
        self.target = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.ended = 0
        self.keep_alive = self.upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser.feed_data(data)
        self.method, self.version = self._parser.get_method(), self._parser.get_http_version()

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1
        self.keep_alive, self.upgrade = self._parser.should_keep_alive(), self._parser.should_upgrade()


def is_read(data: bytes) -> bool:
    """Whether a read is not for the parser, which has to say the same of it then."""
    read = PlainHeads().read(data, LONGEST)
    if read is None:
        return False
    target, headers, end, length = read
    assert length == len(data) - end
    parsed = Parsed(data)  # it raises where it refuses
    assert (parsed.begun, parsed.ended, parsed.method, parsed.version) == (1, 1, b"POST", "1.1")
    assert parsed.keep_alive and not parsed.upgrade and b"expect" not in dict(headers)
    assert (target, list(headers), data[end:]) == (parsed.target, parsed.headers, parsed.body)
    return True


def lines_changed(data: bytes) -> Iterator[bytes]:
    """Lines left out, doubled, ended in other ways, and odd ones before each."""
    head, body = data.split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for at in range(len(lines) + 1):
        before, after = lines[:at], lines[at:]
        yield b"\r\n".join([*before, *after[1:], b"", body])
        yield b"\r\n".join([*before, *after[:1], *after, b"", body])
        for odd in FRAMED:
            yield b"\r\n".join([*before, odd.encode("latin-1"), *after, b"", body])
        for end in ENDS:
            yield b"\r\n".join(before) + end + b"\r\n".join([*after, b"", body])


def bytes_changed(data: bytes, values: Sequence[int]) -> Iterator[bytes]:
    """Each byte left out, doubled, another one, and with another one before it; and each shorter read."""
    for at in range(len(data)):
        yield data[:at]
        yield data[:at] + data[at + 1 :]
        yield data[: at + 1] + data[at:]
        for value in values:
            yield data[:at] + bytes([value]) + data[at + 1 :]
            yield data[:at] + bytes([value]) + data[at:]


@pytest.mark.parametrize("lines", [[], ["Connection: keep-alive"], MESH], ids=["plain", "kept alive", "mesh"])
def test_usual_ones_are_read(lines: list[str]) -> None:
    assert is_read(post(b"text", *lines)) and is_read(post(b"", *lines))


def test_as_many_fields_as_there_may_be_are_read() -> None:
    assert is_read(post(b"text", *[f"X-{number}: a" for number in range(MOST_FIELDS - 2)]))


@pytest.mark.parametrize(
    "data",
    [
        post()[:-1],
        post() + b"t",
        post() + post(),
        b"\r\n" + post(),
        CHUNKED + b"4\r\ntext\r\n0\r\n\r\n",
        post(version="1.0"),
        post(target="http://x/short"),
        post(target="/short?a=1"),
        post(target="/short#a"),
        post(target="*"),
        post(target='/"short"'),
        post(b"text", f"X: {'a' * LONGEST}"),
        post(b"text", *["X: a"] * (MOST_FIELDS - 1)),
        post().replace(b"POST", b"PUT"),
        post().replace(b"POST", b"post"),
        post().replace(b"Content-Length: 4\r\n", b""),
        *(post(b"text", line) for line in FRAMED if line not in HARMLESS),
    ],
)
def test_others_are_left_to_the_parser(data: bytes) -> None:
    assert not is_read(data)


def test_every_byte_of_a_request() -> None:
    cases = list(bytes_changed(post(b"text", "Connection: keep-alive", "X-Name: a b"), range(256)))
    assert 1000 < sum(map(is_read, cases)) < len(cases) / 2


def test_every_line_of_a_request() -> None:
    cases = list(lines_changed(post(b"text", "Connection: keep-alive", *MESH)))
    assert 50 < sum(map(is_read, cases)) < len(cases) / 3


def mixed(seed: int) -> bytes:
    """A request with one to four changes."""
    draw = random.Random(seed)
    data = post(b"text", *draw.sample(MESH, 3), *draw.choices(FRAMED, k=draw.choice((0, 0, 1))))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        piece = draw.choice((b"", *ENDS, b":", b": ", b" ", bytes([draw.randrange(256)]), data[at : at + 20], post()))
        data = data[:at] + piece + data[at + draw.randint(0, 2) :]
    return data


def test_several_changes() -> None:
    assert sum(is_read(mixed(seed)) for seed in range(20_000)) > 200


PIECES = [*bytes_changed(post(), b"\r\n :"), *lines_changed(post(b"text", *MESH[-2:]))]


@settings(max_examples=300, deadline=None)
@given(
    reads=st.lists(
        st.sampled_from(PIECES) | st.integers(0, 2**32).map(mixed) | st.just(post()), min_size=1, max_size=4
    ),
    late=st.booleans(),
    events=st.sampled_from(([], [ANSWER], [PAUSE], [ANSWER, RESUME])),
)
def test_connections(reads: list[bytes], late: bool, events: list[bytes | str]) -> None:
    """With a server that reads such heads they go as with one that does not, whatever comes behind what."""
    asyncio.run(compared([], [step for read in reads if read for step in (read, *events)], late=late))


async def test_the_application_gets_what_it_would_have_got() -> None:
    _, wire = await compared([], [post(b"text", *MESH, f"X-Number: {number}") for number in range(5)])
    assert wire.written.count(b"short:text") == 5


class Counted(PlainHeads):
    """Counts what it is asked for, and what it reads."""

    count = asked = 0

    def read(self, data: bytes, longest: int, held: int = 0) -> object:  # type: ignore[override]  # passes on what it gets
        self.asked += 1
        found = super().read(data, longest, held)
        self.count += found is not None
        return found


async def test_each_of_them_is_read_here() -> None:
    known = KnownHeads()
    known.plain = plain = Counted()
    site = Site(known)
    await site.run([post(b"text", *MESH, f"X-Number: {number}") for number in range(500)])
    assert plain.count == 500 and len(site.app.taken) == 500
    assert len(known) == 0


async def test_a_head_whose_body_comes_by_itself_is_read_once() -> None:
    known = KnownHeads()
    known.plain = plain = Counted()
    data = post(b"text", *MESH)
    wire = await Site(known, body_bytes=4).run([data[:-4], data[-4:]] * 3)
    assert plain.asked == plain.count == 2  # it is known then
    assert wire.written.count(b"short:text") == 3


async def test_the_limit_of_the_server_counts() -> None:
    site = Site(KnownHeads())
    for size, answer in ((3900, b"short:text"), (4100, b"431")):
        wire = await site.run([post(b"text", f"X: {'a' * size}")])
        assert answer in wire.written


async def test_an_application_without_a_way_for_it() -> None:
    wire = await Site(KnownHeads()).run([post(b"text", target="/other")] * 2)
    assert wire.written.count(b"long:text") == 2


def test_only_names_are_remembered_and_not_many() -> None:
    heads = PlainHeads()
    for number in range(3 * MOST_NAMES):
        assert heads.read(post(b"text", f"X-{number}: secret"), LONGEST) is not None
        assert len(heads) <= MOST_NAMES
    before = len(heads)
    assert heads.read(post(b"text", f"{'X' * (LONGEST_NAME + 1)}: a"), LONGEST) is not None
    assert len(heads) == before and TARGET.encode() not in heads._names and b"secret" not in b"".join(heads._names)
