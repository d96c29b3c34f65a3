"""A request with given timings."""

from __future__ import annotations

from typing import Any

from hf_transformer.types.request import Context


def measured(request_id: str = "r1", **timings: Any) -> Context:
    """A Context with these attributes set."""
    context = Context(request_id, {})
    for name, value in timings.items():
        setattr(context, name, value)
    return context
