"""Parses JSON of clients and of the predictor, after checking it against limits.

The two bytes ``[]`` become an object of 56 bytes that Python's garbage collector tracks. A key becomes a string and an
entry of a hash table. 16 MB of these take a second and a gigabyte. They block all other requests, even from a thread,
since orjson holds the interpreter's lock. Ordinary requests have few, so a count outside strings precedes parsing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from hf_transformer.errors import Path, TooLarge, describe
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array

MAX_NESTING = 200
"""The deepest nesting of lists and objects in a JSON text. Answers repeat values of requests some levels deeper, and
orjson writes at most 254 levels."""
SMALL_BYTES = 64 * 1024
"""The largest text that is parsed without exact counts, which takes a few milliseconds at worst."""
TINY_BYTES = 4 * 1024
"""The largest text whose parsed form does not count: it takes at most 40 times as many bytes."""
_CHUNK_BYTES = 256 * 1024
"""The size of a step in counting. The step and its arrays fit into the CPU's cache."""
_PARTS_PER_TEXT, _EXTRA_PARTS = 16, 10_000
"""Lists, objects and keys allowed for each text of a request, and a constant in addition. A text needs about four: an
object, two keys, and a list of words or labels."""
_BYTES_PER_VALUE = 8
"""Bytes of the body limit for each allowed value. A word or a token id with its comma takes about as many."""
_QUOTE, _COMMA, _COLON, _OPENS, _CLOSES, _BACKSLASH, _BLANK = b'",:[]\\ '
_NO_STRUCTURE = bytes(set(range(256)) - set(b'",:[]{}'))
_BRACKET_MASK = 0xDF
"""The bits that the two kinds of brackets have in common: ``[`` and ``{`` open a level, ``]`` and ``}`` close one."""
_PLACE_BYTES, _NUMBER_BYTES, _STRING_BYTES, _PART_BYTES = 10, 32, 64, 120
"""Bytes of a place in a list, of a number, of a string without its characters, and of a list, object or key."""


@dataclass(slots=True)  # each V2 request creates one; creating a frozen one takes three times as long
class JsonLimits:
    """Limits of a JSON text.

    Attributes:
        parts: the maximum number of lists, objects and keys.
        values: the maximum number of comma-separated values.
        depth: the maximum nesting depth of a value for a chat template.
    """

    parts: int
    values: int
    depth: int = 64

    @classmethod
    def of(cls, max_texts: int, max_bytes: int, depth: int) -> JsonLimits:
        """The limits for requests of at most ``max_texts`` texts and ``max_bytes`` bytes."""
        return cls(_PARTS_PER_TEXT * max_texts + _EXTRA_PARTS, max_bytes // _BYTES_PER_VALUE, depth)

    @classmethod
    def of_tensors(cls, max_elements: int) -> JsonLimits:
        """The limits for requests whose tensors have at most ``max_elements`` elements each."""
        parts = _PARTS_PER_TEXT * max_elements + _EXTRA_PARTS
        return cls(parts, parts)


ANSWER_LIMITS = JsonLimits(parts=100_000, values=4_000_000)
"""Limits of the predictor's JSON: some lists for each token of a batch, and the numbers of 16 MB of outputs. Triton's
own JSON takes a few hundred bytes, since its tensors are binary."""
MAX_ANSWER_BYTES = 2**27
"""The largest JSON of the predictor. Counting a gigabyte would block the event loop for seconds."""


def parse_json(text: bytes | memoryview, limits: JsonLimits, hold: Callable[[int], None] | None = None) -> Json:
    """The value in a client's JSON text. ``hold`` counts the bytes that it takes in addition to its text. Thread-safe.

    Raises TooLarge, before parsing, for a text over the limits or MAX_NESTING, whatever ``hold`` raises, and Malformed
    for invalid JSON or UTF-8.
    """
    size = require_parsable(bytes(text), limits)
    if hold is not None and size > len(text):
        hold(size - len(text))
    return parse_unlimited(text)


def require_parsable(text: bytes, limits: JsonLimits) -> int:
    """Returns about the bytes that a client's JSON text takes once it is parsed, 0 for a tiny one. Raises TooLarge for
    a text over the limits or MAX_NESTING. Thread-safe."""
    if len(text) <= TINY_BYTES:
        check_nesting(text, "body")
        return 0
    shape = Shape.at_most(text)
    if len(text) > SMALL_BYTES or shape.depth > MAX_NESTING:
        shape = Shape.of(text)
        if len(text) > SMALL_BYTES and (excess := shape.excess(limits)):
            raise _over(excess)
        if shape.depth > MAX_NESTING:
            raise _too_deep("body")
    return shape.parsed_bytes(text)


def parse_answer(text: bytes | memoryview) -> Json:
    """The value in the predictor's JSON text. Raises Malformed for invalid JSON or UTF-8, and before parsing for a text
    over ANSWER_LIMITS or MAX_ANSWER_BYTES."""
    if len(text) > MAX_ANSWER_BYTES:
        raise Malformed("body", f"at most {MAX_ANSWER_BYTES} bytes of JSON", str(len(text)))
    if len(text) > SMALL_BYTES and (excess := excess_of(bytes(text), ANSWER_LIMITS)):
        raise Malformed("body", *excess)
    try:
        check_nesting(bytes(text), "body")
    except TooLarge as error:
        raise Malformed("body", error.expected) from None
    return parse_unlimited(text)


def parse_unlimited(text: bytes | memoryview) -> Json:
    """Parses JSON, with the garbage collector disabled for a large text: its passes take three times as long as the
    rest. Thread-safe."""
    pauses = len(text) > SMALL_BYTES and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Malformed("body", "JSON in UTF-8", hint=str(exc)) from exc
    finally:
        if pauses:
            gc.enable()


def json_object(value: Json) -> dict[str, Any]:
    """The same value. Raises Malformed unless it is a JSON object."""
    if not isinstance(value, dict):
        raise Malformed("body", "a JSON object", describe(value))
    return value


def check_size(text: bytes, limits: JsonLimits) -> None:
    """Raises TooLarge for a text over the limits."""
    if excess := excess_of(text, limits):
        raise _over(excess)


def _over(excess: tuple[str, str]) -> TooLarge:
    flags = "--max_instances, --max_sequences and --max_request_bytes"
    return TooLarge("body", *excess, f"the limit follows from {flags}")


def check_nesting(text: bytes, path: Path | str) -> None:
    """Raises TooLarge for a JSON text with lists and objects nested deeper than MAX_NESTING.

    A text has as many brackets as levels, so most texts need no more than two counts.
    """
    if text.count(b"[") + text.count(b"{") > MAX_NESTING and Shape.of(text).depth > MAX_NESTING:
        raise _too_deep(path)


def _too_deep(path: Path | str) -> TooLarge:
    return TooLarge(path, f"lists and objects nested at most {MAX_NESTING} deep")


def check_depth(path: Path | str, value: Json, limits: JsonLimits) -> None:
    """Raises TooLarge for too deeply nested lists and objects, because a value's indented JSON grows with its depth."""
    level = [value]
    for _ in range(limits.depth + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise TooLarge(path, f"lists and objects nested at most {limits.depth} deep (--max_json_depth)")


def excess_of(text: bytes, limits: JsonLimits) -> tuple[str, str] | None:
    """The exceeded limit and the text's count, in words; None for a text within the limits.

    For invalid JSON, the count is exact up to the first error, where parsers stop.
    """
    if Shape.at_most(text).excess(limits) is None:
        return None
    return Shape.of(text).excess(limits)  # some may be in strings, such as a prompt with code in it


@dataclass(frozen=True, slots=True)
class Shape:
    """The lists, objects and keys (``parts``), the commas and quotes outside strings, and the nesting of a JSON text.

    ``quotes`` includes the quotes around strings. The depth is exact for valid JSON.
    """

    parts: int
    commas: int
    quotes: int
    depth: int

    @classmethod
    def at_most(cls, text: bytes) -> Shape:
        """Counts without regard to strings, which is faster: no number is too small."""
        opens = text.count(b"[") + text.count(b"{")
        return cls(opens + text.count(b":"), text.count(b","), text.count(b'"'), opens)

    @classmethod
    def of(cls, text: bytes) -> Shape:
        """Counts in steps, over the structural characters of each step."""
        parts = commas = quotes = level = depth = 0
        is_open, escapes = np.False_, False
        for start in range(0, len(text), _CHUNK_BYTES):
            chunk = text[start : start + _CHUNK_BYTES]
            if escapes or b"\\" in chunk:
                chunk, escapes = _without_escaped(chunk, escapes)
            kept = np.frombuffer(chunk.translate(None, _NO_STRUCTURE), np.uint8)
            if not len(kept):
                continue
            quoted: Array = kept == _QUOTE
            quotes += int(np.count_nonzero(quoted))
            quoted[0] ^= is_open
            inside: Array = np.bitwise_xor.accumulate(quoted)
            is_open = inside[-1]
            outside = ~inside
            folded = kept & _BRACKET_MASK
            opens, closes = (folded == _OPENS) & outside, (folded == _CLOSES) & outside
            opened = int(np.count_nonzero(opens))
            if opened or closes.any():
                steps = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
                depth, level = max(depth, level + int(steps.max())), level + int(steps[-1])
            parts += opened + int(np.count_nonzero((kept == _COLON) & outside))
            commas += int(np.count_nonzero((kept == _COMMA) & outside))
        return cls(parts, commas, quotes, depth)

    def excess(self, limits: JsonLimits) -> tuple[str, str] | None:
        """The exceeded limit and the count, in words; None within the limits."""
        if self.parts > limits.parts:
            return f"at most {limits.parts} lists, objects and keys", str(self.parts)
        return (f"at most {limits.values} values", str(self.commas)) if self.commas > limits.values else None

    def parsed_bytes(self, text: bytes) -> int:
        """About the bytes of the parsed text. A string's characters take as many bytes each as its widest one."""
        characters = len(text)
        if not text.isascii() or b"\\u" in text:
            encoded = np.frombuffer(text, np.uint8)
            characters -= int(np.count_nonzero(encoded & 0xC0 == 0x80))  # bytes that continue a character of UTF-8
            is_wide = encoded.max() >= 0xF0 or b"\\ud" in text or b"\\uD" in text
            characters *= 4 if is_wide else 2
        strings = self.quotes // 2
        others = max(self.commas - strings, 0)
        places = self.commas * _PLACE_BYTES
        return characters + places + strings * _STRING_BYTES + others * _NUMBER_BYTES + self.parts * _PART_BYTES


def _without_escaped(chunk: bytes, escapes: bool) -> tuple[bytes, bool]:
    """Returns a chunk with blanks in place of escaped characters, and whether it ends with a backslash that escapes.
    ``escapes`` is whether the chunk before did."""
    characters = np.frombuffer(chunk, np.uint8).copy()
    places = np.flatnonzero(characters == _BACKSLASH)
    begins = np.maximum.accumulate(np.where(np.diff(places, prepend=-2) != 1, places, 0))
    within = places - begins + (begins == 0) * escapes  # every second backslash of a run is escaped
    escaped = places[within & 1 == 0] + 1
    ends = bool(len(escaped)) and int(escaped[-1]) == len(chunk)
    characters[escaped[: len(escaped) - ends]] = _BLANK
    if escapes:
        characters[0] = _BLANK
    return characters.tobytes(), ends
