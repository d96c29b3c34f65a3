"""Admission of requests by number, tokens and bytes."""

from __future__ import annotations

import gc
import weakref

import pytest

from hf_transformer.core.limits import BYTES_PER_TOKEN, MAX_ESTIMATE_SHARE, Admission, AdmissionTicket
from hf_transformer.errors import TooManyRequests
from hf_transformer.observability.metrics import Metrics


def entered(admission: Admission, size: int) -> AdmissionTicket:
    """Admits a request of ``size`` bytes."""
    ticket = AdmissionTicket(admission)
    ticket.hold(size)
    ticket.enter()
    return ticket


def test_tokens_are_estimated_from_the_bytes_until_they_are_counted() -> None:
    admission = Admission(10, 1000, Metrics())
    ticket = entered(admission, 40)
    assert admission.tokens == 40 // BYTES_PER_TOKEN + 1
    for characters in (400, 4):  # texts of several pairs raise the estimate
        ticket.expect(characters)
        assert admission.tokens == 400 // BYTES_PER_TOKEN
    ticket.charge(7)
    assert (admission.requests, admission.tokens, admission.bytes) == (1, 7, 40)
    for _ in range(2):
        ticket.leave()
        assert (admission.requests, admission.tokens, admission.bytes) == (0, 0, 0)
    large = Admission(10, 1000, Metrics(), max_bytes=2**30)
    assert entered(large, 2**30).tokens == 1000 // MAX_ESTIMATE_SHARE


@pytest.mark.parametrize("size", [1, 10_000])
def test_small_and_large_requests_are_refused_alike(size: int) -> None:
    metrics = Metrics()
    admission = Admission(10, 1000, metrics)
    first = entered(admission, 100)
    first.charge(999)
    second = entered(admission, size)  # one token was left
    assert not admission.has_room
    with (
        AdmissionTicket(admission) as third,
        pytest.raises(TooManyRequests, match="--max_queued_tokens allows 1000") as refused,
    ):
        third.hold(size)
        third.enter()
    assert refused.value.retry_after
    first.leave()
    with entered(admission, size):
        assert admission.requests == 2
    second.leave()
    assert (admission.requests, admission.tokens, admission.bytes) == (0, 0, 0) and admission.has_room
    assert b'hf_transformer_refused_requests_total{limit="tokens"} 1.0' in metrics.render()


def test_requests_and_bytes_are_counted_too() -> None:
    metrics = Metrics()
    admission = Admission(1, 1000, metrics, max_bytes=100)
    for limit in ("requests", "tokens", "bytes"):
        assert f'hf_transformer_refused_requests_total{{limit="{limit}"}} 0.0'.encode() in metrics.render()
    with entered(admission, 90), pytest.raises(TooManyRequests, match="1 requests are in flight"):
        assert b"hf_transformer_requests_in_flight 1.0" in metrics.render()
        assert b"hf_transformer_tokens_in_flight 23.0" in metrics.render()
        assert not admission.has_room
        second = AdmissionTicket(admission)
        second.hold(10)
        with pytest.raises(TooManyRequests, match="have 100 bytes, 1 more would exceed --max_bytes_in_flight=100;"):
            second.hold(1)
        second.enter()
    for limit in ("requests", "bytes"):
        assert f'hf_transformer_refused_requests_total{{limit="{limit}"}} 1.0'.encode() in metrics.render()


class Cycle:
    """A reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_by_the_bytes_of_finished_requests() -> None:
    admission = Admission(10, 1000, Metrics(), collect_after=1000)
    gc.disable()
    try:
        left = weakref.ref(Cycle())
        for _ in range(10):
            assert left() is not None
            entered(admission, 100).leave()
        entered(admission, 1).leave()
        assert left() is None
    finally:
        gc.enable()
