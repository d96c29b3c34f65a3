"""A request with given timings."""

from __future__ import annotations

from typing import Any

from hf_transformer.observability.metrics import WORK, Metrics
from hf_transformer.types.request import Context


def measured(request_id: str = "r1", **timings: Any) -> Context:
    """A Context with these attributes set."""
    context = Context(request_id, {})
    for name, value in timings.items():
        setattr(context, name, value)
    return context


def work_shown(metrics: Metrics, model: str) -> tuple[float, ...]:
    """The gauges of waiting and running texts and tokens of a model, in the order of ``Work``."""
    shown = {family.name: family for family in metrics.shown()}
    return tuple(shown[f"hf_transformer_{name}"].series[model,][0] for name in WORK)
