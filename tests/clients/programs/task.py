"""What every client program is given on its standard input, and how it answers on its standard output.

Given {"http", "grpc", "model", "requests": [{"inputs": {name: strings, or lists of strings}, "parameters"}]}, a program
answers {"answers": [output-0 as a list per request], ...}. Programs import nothing of the service.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

OUTPUT = "output-0"
SCHEDULING: dict[str, Any] = {
    **{"priority": 1, "timeout": 60_000_000},
    **{"sequence_id": 7, "sequence_start": True, "sequence_end": True},
}
"""Arguments of tritonclient that mean nothing to the service, but for the timeout in microseconds."""


def answer(program: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Runs the program on what stands on the standard input."""
    json.dump(program(json.load(sys.stdin)), sys.stdout)


def elements(value: Any) -> np.ndarray:
    """An input's strings as an object array of bytes."""
    array = np.array(value, dtype=np.object_)
    return np.vectorize(str.encode, otypes=[np.object_])(array)


def plain(array: Any) -> Any:
    """An output as JSON: bytes become strings."""
    if isinstance(array, list):
        return [plain(one) for one in array]
    if isinstance(array, np.ndarray):
        return plain(array.tolist())
    return array.decode() if isinstance(array, bytes) else array
