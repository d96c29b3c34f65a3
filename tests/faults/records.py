"""What became of each request, and what that says of a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["right", "error", "own deadline", "left", "refused", "dropped", "wrong", "hang", "bad error"]
"""right        the known answer
error           a documented status, with the body or details that belong to it
own deadline    DEADLINE_EXCEEDED to a client whose own short deadline has passed
left            the client closed the connection before the answer, on purpose
refused         no connection: nobody listened
dropped         the connection ended after the request was sent and before its answer
wrong           another answer
hang            no answer in time
bad error       an undocumented status, or an error without the form of one"""

COUNTED: tuple[Kind, ...] = ("right", "error", "refused", "dropped", "wrong", "hang", "bad error")
"""What a client that waits for its answer can see."""
RECOVERED = 0.99
"""Share of right answers from which on a service counts as recovered."""
LEAST_AFTER = 200
"""Requests that this share is taken of, at least."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Times in seconds of the monotonic clock; status 0 where there was no answer."""

    sent: float
    ended: float
    api: Literal["rest", "grpc"]
    kind: Kind
    status: int = 0
    says: str = ""


def recovery(records: Collection[Record], ended: float) -> tuple[float, float] | None:
    """Seconds from the end of a fault to the first right answer, and to the time from which on 99 % were right.

    None while the last 200 requests since then are not yet so.
    """
    after = sorted(
        (record for record in records if record.ended >= ended and record.kind in COUNTED),
        key=lambda record: record.ended,
    )
    bad = [record.kind != "right" for record in after]
    if len(after) < LEAST_AFTER or sum(bad[-LEAST_AFTER:]) > (1 - RECOVERED) * LEAST_AFTER:
        return None
    start, wrong = len(after), 0
    for index in reversed(range(len(after))):
        wrong += bad[index]
        if not bad[index] and wrong <= (1 - RECOVERED) * (len(after) - index):
            start = index
    first = next(record.ended for record in after if record.kind == "right")
    return first - ended, after[start].ended - ended


def statuses(records: Sequence[Record]) -> Counter[int]:
    """How many clean errors there were of each HTTP status; those over gRPC by the status that they stand for."""
    return Counter(one.status for one in records if one.kind == "error")


def kinds(records: Sequence[Record]) -> Counter[Kind]:
    return Counter(one.kind for one in records)
