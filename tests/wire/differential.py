"""Our protocol class and uvicorn's own get the same damaged requests; what their application sees has to be the same.

    python -m tests.wire.differential [--requests 60000] [--seed 1] [--only NUMBER]

Where they differ, uvicorn's gets the same bytes one by one, with time to answer: what it sees then is what was sent,
whatever it drops behind broken bytes or a request to upgrade. What still differs has to have a name in ``explained``.
Whatever the name: our application never sees a request that uvicorn's does not, nor another answer to one. Exits 1
if there is anything else.
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
CLOSE_BEHIND = re.compile(rb"\n0\r\n(.+\r\n)*Connection: close", re.IGNORECASE)
HOST_REFUSED = re.compile(rb"\r\nx-why: (the request has .+ Host header|Host: expected)")
NO_PATH = re.compile(rb"://[^/ ]*[?\s]")


def mutated(number: int, seed: int) -> tuple[bytes, ...]:
    """The pieces of damaged request ``number``."""
    rng = random.Random(f"{seed} {number}")
    data = bytearray(rng.choice(WHOLE))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        damage(data, rng)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 2))))
    pieces = [bytes(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return tuple(piece for piece in pieces if piece)


def damage(data: bytearray, rng: random.Random) -> None:
    """Changes something somewhere; header lines more often than bytes."""
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
            ends = [place for place in range(len(data)) if data[place : place + 2] == b"\r\n"]
            if ends:
                line = rng.choice(LINES).encode()
                place = rng.choice(ends)
                following = data.find(b"\r\n", place + 2)
                until = following if following > 0 and rng.random() < 0.3 else place
                data[place:until] = b"\r\n" + line


def uvicorns(mirror: Mirror) -> HttpToolsProtocol:
    config: Any = Config(mirror, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    return HttpToolsProtocol(config, ServerState(), {})


def explained(sent: bytes, mine: Outcome, other: Outcome) -> str | None:
    """Why they differ, None where nothing explains it."""
    if not all(map(same, mine.seen, other.seen)):
        return None
    count = min(len(mine.seen), len(other.seen))
    seen_here, seen_there = mine.seen[count:], other.seen[count:]
    refused_there = not seen_there and other.statuses == [*mine.statuses[: len(other.statuses) - 1], 400]
    is_last = mine.done and bool(mine.seen) and mine.seen[-1].version != "1.1"
    if mine.done and mine.statuses[-1:] in ([501], [431]):
        return None if seen_here else f"{mine.statuses[-1]} here"
    if mine.done and mine.statuses[-1:] == [400] and HOST_REFUSED.search(mine.received):
        return None if seen_here else "a Host that is missing, repeated or invalid is refused here"
    if is_last and not seen_here and (seen_there or refused_there):
        return "nothing is read behind another version than 1.1"
    if refused_there and NO_PATH.search(sent) and all(seen.raw_path == b"/" for seen in seen_here[:1]):
        return "an address without a path is refused there"
    if seen_here or seen_there:
        return None
    if CLOSE_BEHIND.search(sent) and mine.statuses == [*other.statuses, 400]:
        return "Connection: close behind a body is followed by 400 here"
    if mine.statuses != other.statuses:
        return None
    return "a fragment is no part of the path there" if b"#" in sent else "fields behind a body are headers there"


def same(mine: Seen, other: Seen) -> bool:
    """Whether a request is the same but for the fields behind chunks, and a fragment, which uvicorn's class drops."""
    raw_path, is_cut, _ = mine.raw_path.partition(b"#")
    query = b"" if is_cut else mine.query.partition(b"#")[0]
    mine = mine._replace(path=unquote(raw_path.decode("latin-1")), raw_path=raw_path, query=query)
    if (b"transfer-encoding", b"chunked") in ((name, value.lower()) for name, value in mine.headers):
        other = other._replace(headers=other.headers[: len(mine.headers)])
    return mine == other


def downgraded(seen: Seen) -> Seen:
    """A request without Upgrade, whether it was renamed before or not."""
    headers = tuple(line for line in seen.headers if line[0] not in (b"upgrade", b"xpgrade"))
    return seen._replace(headers=headers, body=seen.body.upper().replace(b"U", b"X"))


async def compare(number: int, seed: int) -> tuple[str | None, tuple[bytes, ...], Outcome, Outcome]:
    pieces = mutated(number, seed)
    mine, other = await outcome(*pieces), await outcome(*pieces, make=uvicorns)
    if not mine.is_in_order:
        return None, pieces, mine, other
    if mine.seen == other.seen and mine.statuses == other.statuses:
        return "the same", pieces, mine, other
    sent = b"".join(pieces)
    slow = await outcome(*byte_by_byte(sent), make=uvicorns)
    if mine.seen == slow.seen and mine.statuses == slow.statuses:
        return "the same once uvicorn has time", pieces, mine, slow
    kind = explained(sent, mine, slow)
    if kind is None and UPGRADE_LINE.search(sent):
        slow = await outcome(*byte_by_byte(UPGRADE_LINE.sub(rb"\nX\1", sent)), make=uvicorns)
        one, another = (replace(found, seen=tuple(map(downgraded, found.seen))) for found in (mine, slow))
        alike = one.seen == another.seen and one.statuses == another.statuses
        kind = "the same without Upgrade" if alike else explained(sent, one, another)
    return kind, pieces, mine, slow


async def run(requests: int, seed: int, only: int | None = None) -> tuple[Counter[str], list[str]]:
    """How many requests ended how, and what nothing explains."""
    kinds: Counter[str] = Counter()
    findings = []
    for number in range(requests) if only is None else [only]:
        try:
            kind, pieces, mine, other = await compare(number, seed)
        except Exception as error:  # whatever the class does wrong
            kinds["failed"] += 1
            findings.append(f"{number}: {error!r} of {mutated(number, seed)!r}")
            continue
        kinds[kind or "unexplained"] += 1
        if kind is None or only is not None:
            findings.append(f"{number}: {pieces!r}\n  ours:    {shown(mine)}\n  uvicorn: {shown(other)}")
    return kinds, findings


def shown(found: Outcome) -> str:
    return f"{found.statuses} {[seen[:3] + seen[-2:] for seen in found.seen]} {'done' if found.done else 'open'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.wire.differential")
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this one, shown in any case")
    arguments = parser.parse_args()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    kinds, findings = asyncio.run(run(arguments.requests, arguments.seed, arguments.only))
    print(*(f"{count:7,} {kind}" for kind, count in kinds.most_common()), *findings[:20], sep="\n")
    print(f"{len(findings)} findings; heads of more than {HEADER_BYTES} bytes are refused here")
    return 1 if findings and arguments.only is None else 0


if __name__ == "__main__":
    sys.exit(main())
