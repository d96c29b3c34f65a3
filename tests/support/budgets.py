"""Limits and budgets of requests in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hf_transformer.core.budget import Budget
from hf_transformer.core.limits import Admission, AdmissionTicket, Limits
from hf_transformer.observability.metrics import Metrics

DEFAULTS = Limits(
    max_instances=2048,
    max_text_length=250_000,
    max_total_length=4_000_000,
    max_sequences=2048,
    max_answer_values=1_000_000,
    max_window_tokens=2**21,
)
"""The defaults of the flags."""


def limits(**changes: int) -> Limits:
    return replace(DEFAULTS, **changes)


def budget(**changes: int) -> Budget:
    """The budget of a request without admission."""
    return Budget(limits(**changes))


def few(count: int) -> Budget:
    """The budget of a request of at most ``count`` texts."""
    return budget(max_instances=count, max_sequences=count)


def admitted(max_bytes: int, max_tokens: int = 2**40, **changes: int) -> tuple[Budget, AdmissionTicket]:
    """The budget of a request, and its ticket in an admission with these limits of bytes and tokens."""
    ticket = AdmissionTicket(Admission(100, max_tokens, Metrics(), max_bytes))
    ticket.enter()
    return Budget(limits(**changes), ticket), ticket


def sharing(ticket: AdmissionTicket, **changes: Any) -> tuple[Budget, AdmissionTicket]:
    """The budget and the ticket of another request in the same admission."""
    other = AdmissionTicket(ticket.admission)
    other.enter()
    return Budget(limits(**changes), other), other
