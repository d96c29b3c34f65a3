"""Streams of requests, cut anywhere: one that holds what has no body yet does what one does that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.alike import BODY_BYTES, LEAVE, REFUSE, compared_alike
from tests.server.scripted import ANSWER, END, PAUSE, RESUME
from tests.server.test_known_heads_cut import REQUESTS, TAUGHT, USUAL
from tests.server.test_plain_heads import MESH
from tests.server.test_plain_heads_cut import OTHERS, PLAIN, stream
from tests.server.test_short_requests import post

HEAD = USUAL[:-4]
SENT = {
    **OTHERS,
    "another byte": post(b"text", "X: \xe9"),
    "as much as may be": post(b"a" * BODY_BYTES),
    "too much for a body": post(b"a" * (BODY_BYTES + 1)),
    "a length that is none": HEAD.replace(b": 4", b": 4a") + b"text",
    "a length with a nought": HEAD.replace(b": 4", b": 04") + b"text",
    "a negative length": HEAD.replace(b": 4", b": -4") + b"text",
    "a length without end": HEAD.replace(b": 4", b": " + b"9" * 3000),
}
STREAMS = 400


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("name", SENT)
async def test_head_and_body_by_themselves(name: str, known: bool) -> None:
    taught = [SENT[name], PLAIN, USUAL] if known else []
    head, end, body = SENT[name].partition(b"\r\n\r\n")
    for late in (False, True):
        pieces = [head + end, body] if body else [head + end]
        await compared_alike(taught, [*pieces, ANSWER, *pieces, ANSWER, USUAL], late=late)
        await compared_alike(taught, [USUAL, ANSWER, *pieces, PLAIN, ANSWER, HEAD, b"text"], late=late)
        await compared_alike(taught, [HEAD, b"text" + head + end, body + PLAIN], late=late)
        await compared_alike(taught, [HEAD, b"te", b"xt", ANSWER, head + end, body + HEAD, b"text"], late=late)


@pytest.mark.parametrize("taught", [[], [PLAIN]], ids=["new", "known"])
@pytest.mark.parametrize("name", ["plain", "a body that is a request", "a body that ends a head", "expect", "1.0"])
async def test_cut_at_every_byte(name: str, taught: list[bytes]) -> None:
    whole = PLAIN + SENT[name]
    for at in range(1, len(whole)):
        await compared_alike(taught, [whole[:at], whole[at:], PLAIN[:-4], b"text"])


@pytest.mark.parametrize("step", [END, LEAVE, REFUSE, PAUSE, RESUME, b"\0", b"text" + USUAL, b"texttext", USUAL])
@pytest.mark.parametrize("pieces", [[HEAD], [HEAD, b"te"], [HEAD + b"t", b"e", b"x"], [USUAL, HEAD], [PLAIN, HEAD]])
async def test_what_may_happen_meanwhile(pieces: list[bytes], step: bytes | str) -> None:
    afters: list[list[bytes | str]] = [[], [b"text"], [b"text", USUAL], [RESUME, b"te", b"xt"], [RESUME, b"text"]]
    for taught in ([], [USUAL]):
        for after in afters:
            steps = [*pieces, step, *after]
            await compared_alike(taught, steps)
            await compared_alike(taught, steps, keep_alive=0)


def test_streams() -> None:
    """With the client's answers read at once; what is paused or ends under others is for the tests above."""

    async def run() -> int:
        short = 0
        for seed in range(STREAMS):
            steps = [step for step in stream(seed) if isinstance(step, bytes) or step == ANSWER]
            site = await compared_alike([], steps, late=bool(seed % 2), keep_alive=65 * (seed % 4 < 2))
            short += len(site.app.taken)
        return short

    assert asyncio.run(run()) > STREAMS // 2  # else nothing was compared


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes | str]:
    """Requests, many of them in two reads, others cut or glued."""
    steps: list[bytes | str] = []
    pending = b""
    usual = [*REQUESTS[:2], post(b"a" * 50), post(b"text", *MESH)]
    for request in draw(st.lists(st.sampled_from(usual) | st.sampled_from(REQUESTS), min_size=1, max_size=6)):
        head, end, body = request.partition(b"\r\n\r\n")
        match draw(st.sampled_from(("halves", "halves", "whole", "cut", "joined"))):
            case "halves":
                steps.append(pending + head + end)
                pending = body
            case "whole":
                steps.append(pending + request)
                pending = b""
            case "cut":
                at = draw(st.integers(0, len(request)))
                steps.append(pending + request[:at])
                pending = request[at:]
            case "joined":
                pending += request
        if draw(st.booleans()):
            steps.append(pending)
            pending = b""
        steps += draw(st.lists(st.just(ANSWER), max_size=2))
    return [step for step in (*steps, pending, draw(st.sampled_from(("", LEAVE, REFUSE)))) if step]


@settings(max_examples=400, deadline=None)
@given(
    taught=st.sampled_from((TAUGHT, TAUGHT[:1], [])),
    steps=pieces(),
    late=st.booleans(),
    keep_alive=st.sampled_from((65, 0)),
)
def test_cut_anywhere(taught: list[bytes], steps: Sequence[bytes | str], late: bool, keep_alive: int) -> None:
    asyncio.run(compared_alike(taught, steps, late=late, keep_alive=keep_alive))
