"""OpenShift AI's PREDICTOR_PROTOCOL, which may be a scheme: what it says for the options that are named after it."""

from __future__ import annotations


def scheme_as_switch(text: str) -> str | None:
    """https asks for TLS."""
    return {"https": "true", "http": "false"}.get(text.strip().lower())


def unless_scheme(text: str) -> str | None:
    """A protocol; None where it is a scheme, which says nothing about that."""
    return None if scheme_as_switch(text) else text
