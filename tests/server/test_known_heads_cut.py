"""Streams of requests, cut anywhere: a server that knows their heads does what one does that knows none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.scripted import ANSWER, END, PAUSE, RESUME, compared
from tests.server.test_short_requests import CHUNKED, TARGET, post

USUAL = post()
INSIDE = post(USUAL, "X-Other: 1")
REQUESTS = [
    USUAL,
    post(b"more"),
    post(b"a longer text"),
    post(b"text", "X-Name: a value"),
    post(b""),
    INSIDE,
    post(b"\r\n\r\n"),
    post(b"text", target="/other"),
    post(b"text", "Connection: close"),
    post(b"text", "Expect: 100-continue"),
    post(b"text", version="1.0"),
    CHUNKED + b"2\r\nte\r\n2\r\nxt\r\n0\r\n\r\n",
    CHUNKED + b"%x\r\n%b\r\n0\r\nX: %b" % (len(USUAL), USUAL, USUAL),
    b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n",
    f"POST {TARGET} HTTP/1.1\r\nX: ".encode(),
    b"\r\n",
    b"no HTTP",
]
TAUGHT = REQUESTS[:7]


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes | str]:
    """Reads, and what happens between them."""
    steps: list[bytes | str] = []
    pending = b""
    for request in draw(st.lists(st.sampled_from(REQUESTS[:2]) | st.sampled_from(REQUESTS), min_size=1, max_size=8)):
        pending += request
        match draw(st.sampled_from(("whole", "whole", "cut", "joined"))):
            case "whole":
                steps.append(pending)
                pending = b""
            case "cut":
                at = draw(st.integers(0, len(pending)))
                steps.append(pending[:at])
                pending = pending[at:]
                if draw(st.booleans()):
                    steps.append(pending)
                    pending = b""
        steps += draw(st.lists(st.sampled_from((ANSWER, ANSWER, ANSWER, PAUSE, RESUME, END)), max_size=2))
    return [step for step in (*steps, pending) if step]


@settings(max_examples=300, deadline=None)
@given(
    taught=st.sampled_from((TAUGHT, TAUGHT[:1], [])),
    steps=pieces(),
    late=st.booleans(),
    keep_alive=st.sampled_from((65, 0)),
)
def test_cut_anywhere(taught: list[bytes], steps: Sequence[bytes | str], late: bool, keep_alive: int) -> None:
    asyncio.run(compared(taught, steps, late=late, keep_alive=keep_alive))


def test_heads_are_known_there() -> None:
    """Else the test above would compare nothing."""
    hits, _ = asyncio.run(compared(TAUGHT, [*TAUGHT, *TAUGHT]))
    assert hits == 2 * len(TAUGHT)
