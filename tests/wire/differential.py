"""Compares our protocol class with uvicorn's: damaged requests have to reach the application alike.

    python -m tests.wire.differential [--requests 60000] [--seed 1] [--only NUMBER]

If they differ, uvicorn's class gets the same bytes one by one, with time to answer, since it may drop bytes after
broken ones or after a request to upgrade. ``explained`` has to name the remaining differences. Our application must
never see a request that uvicorn's does not. Exits 1 for an unexplained difference.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import re
import sys
from collections import Counter
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.wire.connection import HEADER_BYTES, Mirror, Outcome, Seen, byte_by_byte, outcome
from tests.wire.corpus import SEQUENCES

LINES = (
    "Content-Length: 4", "Content-Length: 0", "Content-Length: 44", "Content-Length: +4", "Content-Length: 4, 4",
    "Transfer-Encoding: chunked", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding:\tchunked", "Transfer-Encoding : chunked", "Transfer-Encoding: identity", "TE: trailers",
    "Connection: close", "Connection: keep-alive", "Connection: Upgrade", "Connection: close, x", "Upgrade: h2c",
    "Host: y", "Host:", "X-Empty:", "Expect: 100-continue", "Expect: x", "Upgrade: websocket", "X-Long: " + "a" * 999,
)  # fmt: skip
PIECES = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"%", b"?", b"#", b"/", b"\xff", b"0\r\n\r\n", b"\r\n\r\n",
    b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.0", b"HTTP/2.0", b"POST", b"CONNECT ",
    b"5;a=b\r\n", b"-", b"f",
)  # fmt: skip
WHOLE = tuple(sent for name, sent in SEQUENCES.items() if name != "absolute, without a path")
UPGRADE_LINE = re.compile(rb"\nU(pgrade:)", re.IGNORECASE)
CLOSE_AFTER = re.compile(rb"\n0\r\n(.+\r\n)*Connection: close", re.IGNORECASE)
HOST_REFUSED = re.compile(rb"\r\nx-reason: (the request has .+ Host header|Host: expected)")
NO_PATH = re.compile(rb"://[^/ ]*[?\s]")


def mutated(number: int, seed: int) -> tuple[bytes, ...]:
    """The damaged request with this number, in pieces."""
    rng = random.Random(f"{seed} {number}")
    data = bytearray(rng.choice(WHOLE))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        damage(data, rng)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 2))))
    pieces = [bytes(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return tuple(piece for piece in pieces if piece)


def damage(data: bytearray, rng: random.Random) -> None:
    """Changes a random part of the data; header lines more often than bytes."""
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 1, 2, 5, 40))
    match rng.randrange(10):
        case 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        case 1:
            data[at:at] = rng.choice(PIECES)
        case 2:
            del data[at : at + size]
        case 3:
            data[at:at] = data[at : at + size]
        case 4:
            del data[at:]
        case 5:
            data += rng.choice(WHOLE)
        case 6:
            data[0:0] = rng.choice(WHOLE)
        case _:
            ends = [offset for offset in range(len(data)) if data[offset : offset + 2] == b"\r\n"]
            if ends:
                line = rng.choice(LINES).encode()
                start = rng.choice(ends)
                following = data.find(b"\r\n", start + 2)
                end = following if following > 0 and rng.random() < 0.3 else start
                data[start:end] = b"\r\n" + line


def uvicorns(mirror: Mirror) -> HttpToolsProtocol:
    config: Any = Config(mirror, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    return HttpToolsProtocol(config, ServerState(), {})


def explained(sent: bytes, mine: Outcome, uvicorn: Outcome) -> str | None:
    """The reason for a difference, None if it is unknown."""
    if not all(map(same, mine.seen, uvicorn.seen)):
        return None
    count = min(len(mine.seen), len(uvicorn.seen))
    seen_here, seen_there = mine.seen[count:], uvicorn.seen[count:]
    refused_there = not seen_there and uvicorn.statuses == [*mine.statuses[: len(uvicorn.statuses) - 1], 400]
    is_last = mine.done and bool(mine.seen) and mine.seen[-1].version != "1.1"
    if mine.done and mine.statuses[-1:] in ([501], [431]):
        return None if seen_here else f"{mine.statuses[-1]} here"
    if mine.done and mine.statuses[-1:] == [400] and HOST_REFUSED.search(mine.received):
        return None if seen_here else "a Host that is missing, repeated or invalid is refused here"
    if is_last and not seen_here and (seen_there or refused_there):
        return "only version 1.1 allows a further request here"
    if refused_there and NO_PATH.search(sent) and all(seen.raw_path == b"/" for seen in seen_here[:1]):
        return "an address without a path is refused there"
    if seen_here or seen_there:
        return None
    if CLOSE_AFTER.search(sent) and mine.statuses == [*uvicorn.statuses, 400]:
        return "Connection: close after a body is followed by 400 here"
    if mine.statuses != uvicorn.statuses:
        return None
    return "a fragment is no part of the path there" if b"#" in sent else "fields after a body are headers there"


def same(mine: Seen, uvicorn: Seen) -> bool:
    """Whether requests are equal apart from trailers, and from a fragment, which uvicorn's class drops."""
    raw_path, is_cut, _ = mine.raw_path.partition(b"#")
    query = b"" if is_cut else mine.query.partition(b"#")[0]
    mine = mine._replace(path=unquote(raw_path.decode("latin-1")), raw_path=raw_path, query=query)
    if (b"transfer-encoding", b"chunked") in ((name, value.lower()) for name, value in mine.headers):
        uvicorn = uvicorn._replace(headers=uvicorn.headers[: len(mine.headers)])
    return mine == uvicorn


def downgraded(seen: Seen) -> Seen:
    """A request without Upgrade, also if the header was renamed."""
    headers = tuple(line for line in seen.headers if line[0] not in (b"upgrade", b"xpgrade"))
    return seen._replace(headers=headers, body=seen.body.upper().replace(b"U", b"X"))


async def compare(number: int, seed: int) -> tuple[str | None, tuple[bytes, ...], Outcome, Outcome]:
    pieces = mutated(number, seed)
    mine, uvicorn = await outcome(*pieces), await outcome(*pieces, make=uvicorns)
    if not mine.is_in_order:
        return None, pieces, mine, uvicorn
    if mine.seen == uvicorn.seen and mine.statuses == uvicorn.statuses:
        return "the same", pieces, mine, uvicorn
    sent = b"".join(pieces)
    slow = await outcome(*byte_by_byte(sent), make=uvicorns)
    if mine.seen == slow.seen and mine.statuses == slow.statuses:
        return "the same once uvicorn has time", pieces, mine, slow
    kind = explained(sent, mine, slow)
    if kind is None and UPGRADE_LINE.search(sent):
        slow = await outcome(*byte_by_byte(UPGRADE_LINE.sub(rb"\nX\1", sent)), make=uvicorns)
        plain_mine, plain_slow = (replace(end, seen=tuple(map(downgraded, end.seen))) for end in (mine, slow))
        alike = plain_mine.seen == plain_slow.seen and plain_mine.statuses == plain_slow.statuses
        kind = "the same without Upgrade" if alike else explained(sent, plain_mine, plain_slow)
    return kind, pieces, mine, slow


async def run(requests: int, seed: int, only: int | None = None) -> tuple[Counter[str], list[str]]:
    """Counts of requests by kind of difference, and the unexplained differences."""
    kinds: Counter[str] = Counter()
    findings = []
    for number in range(requests) if only is None else [only]:
        try:
            kind, pieces, mine, uvicorn = await compare(number, seed)
        except Exception as error:  # any error of a protocol class
            kinds["failed"] += 1
            findings.append(f"{number}: {error!r} of {mutated(number, seed)!r}")
            continue
        kinds[kind or "unexplained"] += 1
        if kind is None or only is not None:
            findings.append(f"{number}: {pieces!r}\n  ours:    {summary(mine)}\n  uvicorn: {summary(uvicorn)}")
    return kinds, findings


def summary(end: Outcome) -> str:
    return f"{end.statuses} {[seen[:3] + seen[-2:] for seen in end.seen]} {'done' if end.done else 'open'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.wire.differential")
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only this request, always printed")
    arguments = parser.parse_args()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    kinds, findings = asyncio.run(run(arguments.requests, arguments.seed, arguments.only))
    print(*(f"{count:7,} {kind}" for kind, count in kinds.most_common()), *findings[:20], sep="\n")
    print(f"{len(findings)} findings; heads of more than {HEADER_BYTES} bytes are refused here")
    return 1 if findings and arguments.only is None else 0


if __name__ == "__main__":
    sys.exit(main())
