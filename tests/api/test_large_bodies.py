"""Large bodies: the bytes that they take once they are parsed count before they are parsed, beside the event loop."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest

from hf_transformer.api.call import Call
from hf_transformer.core.budget import Budget
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.errors import TooLarge, TooManyRequests
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.json_text import JsonLimits, parse_unlimited, require_parsable
from hf_transformer.types.request import Context
from tests.support.budgets import limits

LIMITS = JsonLimits(parts=10**6, values=10**6)
MEGABYTE = 2**20
BODIES: dict[str, Any] = {
    "short strings": [f"{number}" for number in range(50_000)],
    "numbers": [number + 0.5 for number in range(50_000)],
    "empty lists": [[] for _ in range(50_000)],
    "empty objects": [{} for _ in range(50_000)],
    "objects": [{f"k{number}": number} for number in range(20_000)],
    "a text with one wide character": "a" * 500_000 + "\U0001f600",
    "an ASCII text": "a" * 500_000,
}


@pytest.mark.parametrize("value", BODIES.values(), ids=BODIES)
def test_the_estimate_covers_what_a_text_takes_once_parsed(value: Any) -> None:
    text = orjson.dumps(value)
    tracemalloc.start()
    try:
        estimate, before = require_parsable(text, LIMITS), tracemalloc.get_traced_memory()[0]
        parsed = parse_unlimited(text)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert parsed == value
    assert taken * 0.95 < estimate < 3 * taken + MEGABYTE


def call(body: bytes, admission: Admission) -> Call:
    context = Context("1", {})
    ticket = context.ticket = AdmissionTicket(admission)
    budget = context.budget = Budget(limits(), ticket)
    ticket.hold(len(body))
    return Call({}, {}, body, context, LIMITS, budget, len(body))


def test_a_parsed_body_counts_before_it_exists() -> None:
    admission = Admission(10, 10**6, Metrics(), 12 * MEGABYTE)
    body = orjson.dumps({"ignored": ["a"] * 100_000})
    first, second = call(body, admission), call(body, admission)
    assert len(first.json()["ignored"]) == 100_000
    with pytest.raises(TooManyRequests, match="max_bytes_in_flight"):
        second.json()
    with pytest.raises(TooLarge, match="max_bytes_in_flight"):
        call(orjson.dumps({"ignored": ["a"] * 200_000}), Admission(10, 10**6, Metrics(), 12 * MEGABYTE)).json()


def test_the_body_is_released_once_it_is_parsed() -> None:
    made = call(b'{"a": 1}', Admission(10, 10**6, Metrics(), MEGABYTE))
    assert made.json() == {"a": 1} and made.body == b"" and made.size == 8
    assert made.json() == {"a": 1}


def test_null_is_a_body_too() -> None:
    made = call(b"null", Admission(10, 10**6, Metrics(), MEGABYTE))
    assert made.json() is None and made.json() is None
