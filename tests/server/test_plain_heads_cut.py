"""The same streams, cut and glued, before a server that reads plain heads and before one that leaves all to the parser.

Nothing here is left to chance or to a clock: each case is a number.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from hf_transformer.server.known_heads import KnownHeads
from tests.server.scripted import ANSWER, END, PAUSE, RESUME, Site, compared
from tests.server.test_plain_heads import MESH, Counted, mixed
from tests.server.test_short_requests import CHUNKED, post

PLAIN = post(b"text", "Connection: keep-alive", "X-Name: a b")
OTHERS = {
    "plain": PLAIN,
    "mesh": post(b"text", *MESH),
    "a body that is a request": post(PLAIN, "X-Inside: 1"),
    "a body that begins one": post(CHUNKED),
    "a body that is an empty line": post(b"\r\n"),
    "a body that ends a head": post(b"text\r\n\r\n"),
    "no body": post(b""),
    "close": post(b"text", "Connection: close"),
    "upgrade": post(b"text", "Connection: upgrade", "Upgrade: h2c"),
    "expect": post(b"text", "Expect: 100-continue"),
    "two lengths": post(b"text", "Content-Length: 5"),
    "1.0": post(b"text", version="1.0"),
    "another target": post(b"text", target="/other"),
    "requests in chunks": CHUNKED + b"%x\r\n%b\r\n0\r\nX: %b" % (len(PLAIN), PLAIN, PLAIN),
    "get": b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n",
    "empty line": b"\r\n",
    "line feed": b"\n",
    "null": b"\0",
    "a field that goes on": b"POST /short HTTP/1.1\r\nX-Field: ",
    "a body that goes on": post(b"a" * len(PLAIN))[: -len(PLAIN)],
    "too much": b"GET /" + b"a" * 5000,
}
EVENTS = (ANSWER, ANSWER, ANSWER, ANSWER, PAUSE, RESUME, END)
STREAMS = 600


async def cut_everywhere(whole: bytes, step: int) -> None:
    """In two reads, and a plain request in a third."""
    for at in range(0, len(whole) + 1, step):
        await compared([], [read for read in (whole[:at], whole[at:], PLAIN) if read])


@pytest.mark.parametrize("name", ["plain", "a body that is a request"])
async def test_cut_at_every_byte(name: str) -> None:
    await cut_everywhere(PLAIN + OTHERS[name], 1)


@pytest.mark.parametrize("name", OTHERS)
async def test_before_and_behind_others(name: str) -> None:
    await compared([], [OTHERS[name], PLAIN, PLAIN])
    await compared([], [PLAIN, OTHERS[name], PLAIN])
    for whole in (PLAIN + OTHERS[name], OTHERS[name] + PLAIN):
        await cut_everywhere(whole, max(11, len(whole) // 30))


def stream(seed: int) -> list[bytes | str]:
    """Requests, most of them plain, some changed, glued together or cut, and what happens in between."""
    draw = random.Random(seed)
    steps: list[bytes | str] = []
    pending = b""
    for number in range(draw.randint(1, 6)):
        match draw.choice(("plain", "plain", "mesh", "other", "mixed")):
            case "plain":
                pending += PLAIN
            case "mesh":
                pending += post(b"%d" % number, *draw.sample(MESH, 4), f"X-Number: {draw.random()}")
            case "other":
                pending += draw.choice(tuple(OTHERS.values()))
            case "mixed":
                pending += mixed(draw.randrange(2**32))
        match draw.choice(("whole", "whole", "whole", "cut", "glued")):
            case "whole":
                steps.append(pending)
                pending = b""
            case "cut":
                at = draw.randint(0, len(pending))
                steps.append(pending[:at])
                pending = pending[at:]
        steps += draw.choices(EVENTS, k=draw.choice((0, 0, 1, 2)))
    return [step for step in (*steps, pending) if step]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("keep_alive", [65, 0])
def test_streams(late: bool, keep_alive: int) -> None:
    async def run() -> int:
        plain = Counted()
        for seed in range(STREAMS // 4):
            await compared([], stream(seed), late=late, keep_alive=keep_alive)
            known = KnownHeads()
            known.plain = plain
            await Site(known, late=late, keep_alive=keep_alive).run(stream(seed))
        return plain.count

    assert asyncio.run(run()) > STREAMS // 40  # else nothing was compared


async def test_over_tls() -> None:
    await compared([], [PLAIN, post(b"text", *MESH), PLAIN, PLAIN], tls=True)
