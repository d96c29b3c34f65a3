"""Parses JSON of clients and of the predictor, after checking it against limits.

The two bytes ``[]`` become an object of 56 bytes that Python's garbage collector tracks. A key becomes a string and an
entry of a hash table. 16 MB of these take a second and a gigabyte. They block all other requests, even from a thread,
since orjson holds the interpreter's lock. Ordinary requests have few, so a count outside strings precedes parsing.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from hf_transformer.errors import TooLarge, describe
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array

MAX_NESTING = 200
"""The deepest nesting of lists and objects in a JSON text. Answers repeat values of requests some levels deeper, and
orjson writes at most 254 levels."""
SMALL_BYTES = 64 * 1024
"""The largest text that is parsed without counting, which takes a few milliseconds at worst."""
_CHUNK_BYTES = 256 * 1024
"""The size of a step in counting. The step and its arrays fit into the CPU's cache."""
_PARTS_PER_TEXT, _EXTRA_PARTS = 16, 10_000
"""Lists, objects and keys allowed for each text of a request, and a constant in addition. A text needs about four: an
object, two keys, and a list of words or labels."""
_BYTES_PER_VALUE = 8
"""Bytes of the body limit for each allowed value. A word or a token id with its comma takes about as many."""
_QUOTE, _COMMA, _COLON, _BRACKET = b'",:['
_BRACKET_MASK = 0xDF
"""The bits that the two opening brackets, ``[`` and ``{``, have in common."""


_MIDDLE = np.int8(0x5C)
"""The number between those of ``[`` and ``]``."""
_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_EMPTY_STRING = re.compile(rb'"[^"]*"')
"""A string, of which only brackets are left."""


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


def parse_json(text: bytes | memoryview, limits: JsonLimits) -> Json:
    """The value in a client's JSON text. Raises TooLarge, before parsing, for a text over the limits or MAX_NESTING,
    and Malformed for invalid JSON or UTF-8."""
    if len(text) > SMALL_BYTES:
        check_size(bytes(text), limits)
    check_nesting(bytes(text), "body")
    return parse_unlimited(text)


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
        flags = "--max_instances, --max_sequences and --max_request_bytes"
        raise TooLarge("body", *excess, f"the limit follows from {flags}")


def check_nesting(text: bytes, path: str) -> None:
    """Raises TooLarge for a JSON text with lists and objects nested deeper than MAX_NESTING.

    A text has as many brackets as levels, so most texts need no more than two counts.
    """
    if text.count(b"[") + text.count(b"{") > MAX_NESTING and nesting_of(text) > MAX_NESTING:
        raise TooLarge(path, f"lists and objects nested at most {MAX_NESTING} deep")


def nesting_of(text: bytes) -> int:
    """The depth of the lists and objects of a JSON text, which is exact for valid JSON."""
    if b"\\" in text:  # as in count_outside_strings
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = _EMPTY_STRING.sub(b"", text.translate(None, _NO_STRUCTURE))
    # The two kinds of brackets differ in one bit, which the mask removes: [ and { open a level, ] and } close one.
    steps = _MIDDLE - (np.frombuffer(brackets, np.uint8) & _BRACKET_MASK).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def check_depth(path: str, value: Json, limits: JsonLimits) -> None:
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
    parts, values = sum(map(text.count, (b"[", b"{", b":"))), text.count(b",")
    if parts > limits.parts or values > limits.values:  # some may be in strings, such as a prompt with code in it
        parts, values = count_outside_strings(text)
    if parts > limits.parts:
        return f"at most {limits.parts} lists, objects and keys", str(parts)
    return (f"at most {limits.values} values", str(values)) if values > limits.values else None


def count_outside_strings(text: bytes) -> tuple[int, int]:
    """Counts lists, objects and keys, and commas, outside the strings of a JSON text."""
    if b"\\" in text:  # pairs first, from the left: the third of three backslashes escapes the quote
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = commas = 0
    open_string = np.False_
    for start in range(0, len(text), _CHUNK_BYTES):
        chunk = np.frombuffer(text, np.uint8, min(_CHUNK_BYTES, len(text) - start), start)
        quotes: Array = chunk == _QUOTE
        quotes[0] ^= open_string
        inside: Array = np.bitwise_xor.accumulate(quotes)
        open_string = inside[-1]
        parts += int(np.count_nonzero(((chunk & _BRACKET_MASK == _BRACKET) | (chunk == _COLON)) & ~inside))
        commas += int(np.count_nonzero((chunk == _COMMA) & ~inside))
    return parts, commas
