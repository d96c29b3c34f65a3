"""Damages valid bodies, endlessly and fast; the same ``Random`` seed gives the same bodies again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import orjson

NUMBERS = (0, 1, 2, 3, 4, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**60, 2**63 - 1)
ODD_BYTES = (
    *(number.to_bytes(size, "little") for size in (1, 2, 4, 8) for number in NUMBERS if number < 256**size),
    *(b'"', b"[", b"]", b"{", b"}", b",", b":", b"\\", b"\\ud800", b"null", b"1e308", b"-1", b"[[[[", b'"":', b"\xff"),
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**64 - 1 as a varint
)
"""Pieces that codecs have stumbled over: limits of integers, JSON's own characters, what is not UTF-8."""

DEEP = "deep"
"""Stands for lists in lists, as deep as parsers of JSON take them; deeper than Python's own recursion goes."""
ODD_VALUES: tuple[Callable[[], Any], ...] = (
    *(
        lambda value=value: value
        for value in (None, True, False, "", "x", "BYTES", "INT64", "\0", "é" * 300, DEEP, 0.5, -0.0)
    ),
    *(lambda number=number: number for number in (-1, *NUMBERS, 2**64 - 1, 1e308)),
    list,
    dict,
    lambda: [[], []],
    lambda: [[1], 1],
    lambda: [2**40, 2**40],
    lambda: [0, 2**40],
    lambda: [2**40, 0],
    lambda: [1] * 40,
    lambda: [-1],
    lambda: ["a"] * 50,
    lambda: {"name": "text", "parameters": {"binary_data": True}},
    lambda: {"shared_memory_region": "x"},
)
"""What stands in JSON where something else was expected."""
ODD_KEYS = ("name", "data", "shape", "datatype", "parameters", "id", "binary_data_size", "binary_data_output", "x", "")


def dump(value: Any) -> bytes:
    """JSON text; DEEP becomes what no writer of JSON would write."""
    return orjson.dumps(value).replace(b'"%b"' % DEEP.encode(), b"[" * 1000 + b"]" * 1000)


def mutations(seed: bytes, random: Random) -> Iterator[bytes]:
    """Bodies that differ from a valid one in a few places, and lengths."""
    while True:
        body = bytearray(seed)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            _damage(body, random)
        yield bytes(body)


def _damage(body: bytearray, random: Random) -> None:
    start = random.randrange(len(body) + 1)
    end = min(start + random.choice((1, 1, 2, 4, 8, 64)), len(body))
    match random.randrange(7):
        case 0:
            body[start:end] = b""
        case 1:
            body[start:start] = body[start:end] * random.choice((1, 1, 2, 50))
        case 2:
            body[start:start] = random.choice(ODD_BYTES)
        case 3:
            piece = random.choice(ODD_BYTES)
            body[start : start + len(piece)] = piece
        case 4:
            del body[start:]
        case 5:
            body[start:end] = random.randbytes(end - start)
        case _:
            if start < len(body):
                body[start] ^= 1 << random.randrange(8)


def json_mutations(seed: Any, random: Random) -> Iterator[Any]:
    """JSON values that differ from a valid one in a few places."""
    while True:
        value = seed
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            value = _changed(value, random)
        yield value


def _changed(value: Any, random: Random) -> Any:
    """A copy with one change, at a depth that is as likely as any other."""
    if not isinstance(value, list | dict) or not value or random.random() < 0.15:
        return random.choice(ODD_VALUES)()
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = random.choice(places)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    match random.randrange(8):
        case 0:
            del copy[place]
        case 1 if isinstance(value, dict):
            copy[random.choice(ODD_KEYS)] = copy.pop(place)
        case 1:
            copy.insert(place, value[place])
        case 2 if isinstance(value, dict):
            copy[random.choice(ODD_KEYS)] = random.choice(ODD_VALUES)()
        case _:
            copy[place] = _changed(value[place], random)
    return copy
