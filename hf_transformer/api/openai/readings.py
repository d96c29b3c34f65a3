"""What requests say beside their prompts: clients send the same fields again and again, so these are read once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

import orjson

from hf_transformer.api.openai.generation import Fields
from hf_transformer.types import Json

T = TypeVar("T")

MOST: Final = 256
"""Readings that are kept."""
LONGEST: Final = 512
"""Bytes of JSON that fields may have whose reading is kept."""
SHORT: Final = 4096
"""Bytes of a body whose fields are written whatever they are, to be compared: looking at each of them first takes
longer."""


class Readings(Generic[T]):
    """What ``read`` makes of fields, kept by exactly what they are; what it refuses is read again.

    The tensors that a token model gets of a sampling are kept by it, too (generation/model_inputs.py).

    Args:
        read: makes something that nobody changes, of the fields alone; it may raise.
        apart: the names of fields that it does not get.
    """

    def __init__(self, read: Callable[[Fields], T], apart: Collection[str]) -> None:
        self._read = read
        self._apart = frozenset(apart)
        self._kept: dict[bytes, T] = {}

    def __call__(self, fields: Fields, size: int | None = None) -> T:
        """What they say; ``size`` is how many bytes of JSON they were read from, if that is known. Raises what
        ``read`` raises."""
        rest: dict[str, Json] = dict(fields)
        for name in self._apart & rest.keys():
            del rest[name]
        if (size is None or size > SHORT) and _is_long(rest):
            return self._read(rest)
        try:
            key = orjson.dumps(rest)
        except orjson.JSONEncodeError:  # lists in lists may be read more deeply than written
            return self._read(rest)
        found = self._kept.get(key)
        if found is None:
            found = self._read(rest)
            if len(key) <= LONGEST:
                if len(self._kept) == MOST:
                    self._kept.clear()
                self._kept[key] = found
        return found


def _is_long(fields: dict[str, Json]) -> bool:
    """Whether they certainly have more than LONGEST bytes of JSON. No more than so many values are looked at, where
    writing millions of them would hold up the event loop."""
    left = LONGEST
    found: list[Iterable[Json]] = [fields, fields.values()]
    for values in found:
        for value in values:
            kind = type(value)
            if kind in _SIZED:
                left -= len(value)
                if left < 0:
                    return True
                if kind is not str:
                    found.append(value)
                    if kind is dict:
                        found.append(value.values())
    return False


_SIZED = frozenset((str, list, dict))
