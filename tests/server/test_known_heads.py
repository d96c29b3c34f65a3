"""A head that was there before is not parsed again, and nobody can tell."""

from __future__ import annotations

import pytest

from hf_transformer.server.connection import SILENT
from hf_transformer.server.known_heads import MOST, MOST_FIELDS, MOST_SEEN, KnownHead, KnownHeads
from hf_transformer.server.short_requests import PATIENCE, PAUSE
from tests.server import scripted
from tests.server.scripted import ANSWER, END, RESUME, Site, compared, turns
from tests.server.test_short_requests import CHUNKED, TARGET, post

USUAL = post()
GET = b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n"
INSIDE = post(b"a" * len(USUAL))[: -len(USUAL)]
"""The head of a request whose body is as long as another request."""
IN_CHUNKS = CHUNKED + b"2\r\nte\r\n2\r\nxt\r\n0\r\n\r\n"

READS: dict[str, tuple[int, list[bytes | str]]] = {
    "one": (1, [USUAL]),
    "one after the other": (3, [USUAL, USUAL, USUAL]),
    "another body": (1, [post(b"more")]),
    "another length": (0, [post(b"longer")]),
    "another byte": (0, [post(b"text", "Y: 1")]),
    "the head in two": (0, [USUAL[:20], USUAL[20:]]),
    "head and body": (0, [USUAL[:-4], USUAL[-4:]]),
    "the body in two": (0, [USUAL[:-1], USUAL[-1:]]),
    "a body that is not whole": (0, [USUAL[:-1]]),
    "known behind one in two": (0, [USUAL[:-1], USUAL[-1:], USUAL]),
    "known again behind that": (1, [USUAL[:-1], USUAL[-1:], USUAL, USUAL]),
    "two in one read": (0, [USUAL + USUAL]),
    "the second is not whole": (0, [USUAL + USUAL[:-1], USUAL[-1:]]),
    "the second is a piece of a head": (0, [USUAL + USUAL[:9], USUAL]),
    "something behind": (0, [USUAL + b"no HTTP"]),
    "something behind, in a read of its own": (1, [USUAL, b"no HTTP", USUAL]),
    "a line behind": (1, [USUAL + b"\r\n", USUAL]),
    "a line before": (1, [b"\r\n", USUAL]),
    "in a field": (0, [b"POST /short HTTP/1.1\r\nX-Field: ", USUAL]),
    "in a target": (0, [b"POST /other?", USUAL]),
    "in a body": (0, [INSIDE, USUAL]),
    "in a body, then by itself": (0, [INSIDE, USUAL, USUAL]),
    "in a body that is too short": (0, [INSIDE + b"a", USUAL]),
    "in a chunk": (0, [CHUNKED + b"%x\r\n" % len(USUAL), USUAL, b"\r\n0\r\n\r\n"]),
    "in a field behind chunks": (0, [CHUNKED + b"1\r\na\r\n0\r\nX-Field: ", USUAL]),
    "behind chunks": (1, [IN_CHUNKS, USUAL]),
    "behind one of another kind": (1, [GET, USUAL, USUAL]),
    "behind what is no HTTP": (0, [b"no HTTP\r\n\r\n", USUAL]),
    "behind one that is refused": (1, [USUAL, b"GET /" + b"a" * 5000, USUAL]),
    "when the server ends": (1, [END, USUAL, USUAL]),
    "while the client takes nothing": (0, [scripted.PAUSE, USUAL, RESUME]),
}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("name", READS)
async def test_odd_reads(name: str, late: bool) -> None:
    hits, reads = READS[name]
    steps = [step for read in reads for step in (read, ANSWER)] if late else reads
    found, wire = await compared([USUAL], steps, late=late)
    assert found == hits
    assert wire.written or reads == [USUAL[:-1]] or "field" in name


async def test_behind_one_that_is_worked_on() -> None:
    hits, wire = await compared([USUAL], [USUAL, USUAL, USUAL, ANSWER], late=True)
    assert hits == 1 and wire.written.count(b"short:") == 1 and wire.written.count(b"long:") == 2


async def test_the_bytes_of_an_answer() -> None:
    _, wire = await compared([USUAL], [USUAL])
    lines = [b"HTTP/1.1 200 OK", b"%b: %b" % scripted.DATE, b"content-type: text/plain", b"content-length: 10"]
    assert wire.written == b"\r\n".join((*lines, b"", b"short:text"))


MANY = [f"X-{number}: a" for number in range(MOST_FIELDS - 1)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"text", "Connection: close"),
        post(b"text", "Expect: 100-continue"),
        post(b"text", "Expect: something else"),
        post(b"text", "Content-Length: 4"),
        post(b"text", "Transfer-Encoding: chunked"),
        post(b"text", "Upgrade: websocket"),
        post(b"text", "Connection: upgrade", "Upgrade: websocket"),
        post(b"text", version="1.0"),
        post(b"text", target="/other"),
        post(b"text", target=f"{TARGET}?a"),
        post(b"text", *MANY),
        post(b"text", f"X: {'a' * 2048}"),
        USUAL.replace(b"Length: 4", b"Length: 04"),
        USUAL.replace(b"POST", b"PUT"),
        USUAL.replace(b"Content-Length: 4\r\n", b"")[:-4],
        USUAL.replace(b"\r\n\r\n", b"\n\n"),
        USUAL.replace(b"\r\n\r\n", b"\r\n\r\n\r\n\r\n"),
        IN_CHUNKS,
        USUAL + USUAL,
        USUAL + b"\r\n",
        GET,
    ],
)
async def test_heads_that_are_never_kept(request_bytes: bytes) -> None:
    hits, _ = await compared([request_bytes, request_bytes], [request_bytes, request_bytes])
    assert hits == 0


@pytest.mark.parametrize(
    "request_bytes", [post(b""), post(b"text", *MANY[:-1]), post(b"text", "Authorization: Bearer a", "X-Request-Id: b")]
)
async def test_heads_that_are_kept(request_bytes: bytes) -> None:
    hits, _ = await compared([request_bytes], [request_bytes, request_bytes])
    assert hits == 2


async def test_a_head_is_kept_from_its_second_time() -> None:
    site = Site(KnownHeads())
    await site.run([USUAL] * 5)
    assert (site.hits, len(site.known)) == (3, 1)


async def test_a_head_whose_body_did_not_come_along_is_not_taken_for_the_next_one() -> None:
    first, second = post(b"text"), post(b"ab", "X: 1")
    pieces: list[bytes | str] = [first[:-2], first[-2:]]
    hits, wire = await compared([], [first, *pieces, second, *pieces])
    assert hits == 0 and wire.written.count(b"long:text") == 2


async def test_without_keep_alive_the_next_request_is_not_cut_off() -> None:
    """uvicorn's timer, which closes the connection, runs when the next request is read."""
    unread = KnownHeads(0)
    unread.plain = scripted.Unread()
    for known in (KnownHeads(), KnownHeads(0), unread):
        site = Site(known, late=True, keep_alive=0)
        await site.teach(USUAL)
        connection, wire = site.connect()
        connection.data_received(USUAL)
        site.answer()
        connection.data_received(USUAL)
        await turns()
        assert not wire.closing and len(site.app.taken) == 2
        site.answer()
        await turns()
        assert wire.closing and wire.written.count(b"short:text") == 2


async def test_nothing_is_begun_on_a_connection_that_is_closed_or_was_refused() -> None:
    site = Site(KnownHeads())
    await site.teach(USUAL)
    for end in ("close", "refuse"):
        connection, wire = site.connect()
        if end == "close":
            wire.close()
        else:
            connection.refuse(503, "no")
        connection.data_received(USUAL)
        await turns()
        assert not site.app.taken and b"short:" not in wire.written


async def test_what_a_client_does_is_seen_by_the_sweeper() -> None:
    site = Site(KnownHeads(), late=True)
    await site.teach(USUAL)
    connection, _ = site.connect()
    new = connection.state()
    assert new is not None and new.kind == SILENT
    before = new
    for _ in range(2):
        connection.data_received(USUAL)
        assert connection.state() is None  # it waits for us
        site.answer()
        after = connection.state()
        assert after is not None and after.kind == SILENT and not after.is_still(before)
        still = connection.state()
        assert still is not None and still.is_still(after)
        before = after
    assert site.hits == 2


async def test_a_client_that_leaves_ends_the_work() -> None:
    site = Site(KnownHeads(), late=True)
    await site.teach(USUAL)
    connection, wire = site.connect()
    connection.data_received(USUAL)
    assert site.hits == 1 and not site.app.cancelled.is_set()
    connection.connection_lost(None)
    assert site.app.cancelled.is_set()
    site.answer()
    assert not wire.written


class Counted(KnownHeads):
    """Counts the look-ups."""

    count = 0

    def find(self, head: bytes) -> KnownHead | None:
        self.count += 1
        return super().find(head)


async def test_a_client_with_a_new_head_each_time_is_not_looked_up_for_ever() -> None:
    heads = Counted()
    site = Site(heads)
    await site.teach(USUAL)
    connection, _ = site.connect()
    heads.count = 0
    for number in range(2 * PATIENCE):
        connection.data_received(post(b"text", f"X-Id: {number}"))
    assert site.hits == 0 and heads.count == PATIENCE + PATIENCE // PAUSE
    for _ in range(PAUSE):
        connection.data_received(USUAL)
    assert site.hits > 0  # all the same
    before = site.hits
    for _ in range(9):
        connection.data_received(USUAL)
    assert site.hits == before + 9


def known(length: int = 4) -> KnownHead:
    return KnownHead(lambda body, scheme, response: bool, length)


def usual(head: bytes, length: int = 4) -> tuple[bytes, list[tuple[bytes, bytes]], KnownHead]:
    return head, [(b"content-length", b"%d" % length)], known(length)


def test_the_number_of_heads_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(5 * MOST):
        heads.keep(*usual(b"%d" % number))
        assert len(heads) <= 2 * MOST
    assert heads.find(b"%d" % (5 * MOST - 1)) is not None and heads.find(b"0") is None


def test_heads_that_are_asked_for_stay() -> None:
    heads = KnownHeads()
    heads.keep(*usual(b"often"))
    for number in range(5 * MOST):
        heads.keep(*usual(b"%d" % number))
        assert heads.find(b"often") is not None


def test_heads_that_come_once_are_not_kept_in_mind_for_ever() -> None:
    heads = KnownHeads()
    assert not heads.comes_again(b"head") and heads.comes_again(b"head")
    for number in range(MOST_SEEN):
        assert not heads.comes_again(b"%d" % number)
    assert not heads.comes_again(b"head")


def test_a_length_that_is_not_the_bodys() -> None:
    heads = KnownHeads()
    head, headers, _ = usual(b"head")
    heads.keep(head, headers, known(5))
    assert heads.find(head) is None
