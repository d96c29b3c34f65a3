"""JSON of large answers, written in a thread in steps of a few milliseconds.

orjson holds the interpreter's lock while it writes, so a single call for an answer of a million numbers would block all
other requests for 60 ms, also from a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor

import numpy as np
import orjson

from hf_transformer.core.pipeline import INLINE_VALUES
from hf_transformer.types.request import Context, Json

STEP_NUMBERS, STEP_ITEMS = 20_000, 500
"""Numbers of an array, and elements of a list, that a step writes: 1 to 5 ms."""
MAX_DEPTH = 4
"""Depth down to which the elements of lists and objects are written in steps of their own."""


def is_large(context: Context) -> bool:
    """Whether the answer to a request is to be written in a thread."""
    return context.values > INLINE_VALUES


def write_small(answer: Json) -> bytes:
    """Returns the JSON of an answer, which may contain numpy arrays."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


async def write_large(answer: Json, executor: Executor | None) -> bytes:
    """Returns the JSON of an answer, written in a thread."""
    return await asyncio.get_running_loop().run_in_executor(executor, write_in_steps, answer)


def write_in_steps(answer: Json) -> bytes:
    """Returns the same bytes as a single call of orjson."""
    return b"".join(_pieces(answer, 0))


def _pieces(value: Json, depth: int) -> Iterator[bytes]:
    if isinstance(value, dict) and depth < MAX_DEPTH:
        yield from _joined(b"{", ((orjson.dumps(key) + b":", member) for key, member in value.items()), b"}", depth)
    elif isinstance(value, np.ndarray) and value.size > STEP_NUMBERS:
        if value.ndim > 1:
            yield from _joined(b"[", ((b"", row) for row in value), b"]", depth)
        else:
            rows = np.array_split(value, -(-value.size // STEP_NUMBERS))
            yield b"[" + b",".join([write_small(row)[1:-1] for row in rows]) + b"]"
    elif isinstance(value, list | tuple) and value and depth < MAX_DEPTH:
        if _is_nested(value[0]):
            yield from _joined(b"[", ((b"", element) for element in value), b"]", depth)
        else:
            steps = (value[start : start + STEP_ITEMS] for start in range(0, len(value), STEP_ITEMS))
            yield b"[" + b",".join([write_small(step)[1:-1] for step in steps]) + b"]"
    else:
        yield write_small(value)


def _joined(begin: bytes, members: Iterator[tuple[bytes, Json]], end: bytes, depth: int) -> Iterator[bytes]:
    """Yields the pieces of a list or object."""
    for prefix, member in members:
        yield begin + prefix
        yield from _pieces(member, depth + 1)
        begin = b","
    yield b"[]" if begin == b"[" else b"{}" if begin == b"{" else end


def _is_nested(value: Json) -> bool:
    """Whether an element is written in steps of its own: a list, an array, or an object with one of these."""
    if isinstance(value, dict):
        return any(isinstance(member, list | dict | np.ndarray) for member in value.values())
    return isinstance(value, list | tuple | np.ndarray)
