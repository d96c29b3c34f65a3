"""For the cluster: whether the process runs, metrics, and this document."""

from __future__ import annotations

from hf_transformer.api.openapi.operations import Described, answer, question
from hf_transformer.tasks.schema_forms import STRING, Schema, record
from hf_transformer.types import Json

TAG = "operations"


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    document = answer({"type": "object"}, "An OpenAPI 3.1 document.")
    return {
        "/": question("alive", "Whether the process runs", TAG, answer(record({"status": STRING}), "It does.")),
        "/metrics": question("metrics", "Prometheus metrics", TAG, answer(STRING, "The metrics.", "text/plain")),
        "/openapi.json": question("openapi", "This document", TAG, document),
    }


def schemas(about: Described) -> dict[str, Schema]:
    """Components; there are none."""
    return {}
