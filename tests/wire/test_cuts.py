"""The same bytes in any pieces are the same requests, those that uvicorn's class sees, and get the same answers."""

from __future__ import annotations

import pytest

from tests.wire.connection import HEADER_BYTES, Outcome, ours, outcome
from tests.wire.corpus import CHUNKED, GET, SEQUENCES, UPGRADE, post, request
from tests.wire.differential import run

LONG = "X-Long: " + "a" * (HEADER_BYTES - 200)
TRAILERS = b"".join(b"X-%d: %s\r\n" % (number, b"b" * 500) for number in range(9))
SENT = {
    **SEQUENCES,
    "a long head": request("GET /g HTTP/1.1", LONG) * 2,
    "a head that is too long": request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long behind another": GET + request("GET /g HTTP/1.1", LONG, LONG) + GET,
    "a head that is too long behind an upgrade": request("GET /u HTTP/1.1", *UPGRADE)
    + request("GET /g HTTP/1.1", LONG, LONG),
    "trailers that are too long": GET + CHUNKED[:-2] + TRAILERS + b"\r\n" + GET,
    "a head of an upgrade that is too long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG, LONG) + GET,
    "a head of an upgrade that is long": GET + request("GET /u HTTP/1.1", *UPGRADE, LONG) + GET,
    "large bodies": post(b"x" * 5000) + post(b"y" * 5000),
}
STEP = 97
"""Between the cuts of what is long; the short is cut at every byte."""


def shown(found: Outcome) -> tuple[object, ...]:
    """All of it, but for the client's being asked for its body, which depends on what came along."""
    return found.seen, found.received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), found.done


@pytest.mark.parametrize("sent", SENT.values(), ids=list(SENT))
async def test_cut_at_every_byte_and_byte_by_byte(sent: bytes) -> None:
    whole = await outcome(ours, sent)
    assert whole.is_in_order
    assert all(seen.path != "/hidden" for seen in whole.seen)
    for cut in range(1, len(sent), 1 if len(sent) < 1000 else STEP):
        found = await outcome(ours, sent[:cut], sent[cut:])
        assert shown(found) == shown(whole), cut
    assert shown(await outcome(ours, *[bytes([byte]) for byte in sent])) == shown(whole)


async def test_damaged_requests_are_those_that_uvicorns_class_sees() -> None:
    """The whole test is ``python -m tests.wire.differential``."""
    kinds, findings = await run(1500, seed=1)
    assert findings == []
    assert kinds.total() == 1500 and kinds["the same"] > 750
