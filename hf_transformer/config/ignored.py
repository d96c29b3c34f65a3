"""Flags and variables of KServe's runtime that are accepted, but change nothing in this service.

Setting one is mentioned once in the log: a manifest written for KServe starts unchanged, and nobody is
misled.
"""

from __future__ import annotations

from hf_transformer.config.option import Option
from hf_transformer.config.values import Text

GROUP = "Accepted without effect"


def no_meaning(name: str, help: str, why: str) -> Option:
    """An option that means nothing here: any value will do."""
    return Option(name, GROUP, help, Text(), no_effect=f"has no effect here: {why}")


IGNORED: tuple[Option, ...] = (
    no_meaning("backend", "KServe: the engine that runs the model.", "the predictor runs the model"),
    no_meaning("dtype", "KServe: the data type of the weights.", "the predictor holds the weights"),
    no_meaning("max_threads", "KServe: threads of the gRPC server.", "no thread pool serves requests"),
)
