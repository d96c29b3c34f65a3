"""A request whose stages took a known time."""

from __future__ import annotations

from typing import Any

from hf_transformer.types.request import Context


def measured(request_id: str = "r1", **known: Any) -> Context:
    """A Context with these attributes."""
    context = Context(request_id, {})
    for name, value in known.items():
        setattr(context, name, value)
    return context
