"""Limits for JSON, of clients and of the predictor, checked before it is parsed.

A list of two bytes, ``[]``, becomes an object of 56 bytes that Python's garbage collector tracks, and a key becomes a
string and an entry of a hash table. 16 MB of these take a second and a gigabyte. Nothing else is answered meanwhile:
orjson holds the interpreter's lock, so a thread would not help. No sensible request has many of them, so they are
counted first, outside strings.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from hf_transformer.errors import TooLarge, describe
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array

SMALL = 64 * 1024
"""Bytes of a text that is parsed without counting: that takes a few milliseconds at worst."""
CHUNK = 256 * 1024
"""Bytes that are counted at a time; they and the arrays made of them fit into a processor's cache."""
PER_TEXT, BESIDE = 16, 10_000
"""Lists, objects and keys for each text of a request, and beside the texts. A text has about four at most: an object,
two keys, and a list of words or labels."""
VALUE_BYTES = 8
"""Bytes of the largest body for each value: a word or a token's id with its comma. Smaller bodies may have more."""
QUOTE, COMMA, COLON, BRACKET = b'",:['
OPENING = 0xDF
"""The bits that the two opening brackets, ``[`` and ``{``, have in common."""


@dataclass(slots=True)  # each V2 request makes one; a frozen one takes three times as long to make
class JsonLimits:
    """The most that a text may hold. ``parts`` are lists, objects and keys; ``values`` stand between commas; ``depth``
    is how many lists and objects may be within each other in a value that a chat template writes."""

    parts: int
    values: int
    depth: int = 64

    @classmethod
    def of(cls, max_texts: int, max_bytes: int, depth: int) -> JsonLimits:
        """The limits for requests with so many texts and so many bytes."""
        return cls(PER_TEXT * max_texts + BESIDE, max_bytes // VALUE_BYTES, depth)

    @classmethod
    def of_tensors(cls, max_elements: int) -> JsonLimits:
        """The limits for requests whose tensors have so many elements each."""
        parts = PER_TEXT * max_elements + BESIDE
        return cls(parts, parts)


ANSWER = JsonLimits(parts=100_000, values=4_000_000)
"""Of an answer of the predictor's: some lists for each token of a batch, and numbers as in 16 MB of outputs. Triton's
tensors are binary, and its JSON has a few hundred bytes."""
ANSWER_BYTES = 2**27
"""Bytes of JSON in an answer; counting what is in a gigabyte would hold the event loop for seconds too."""


def parse_json(text: bytes | memoryview, limits: JsonLimits) -> Json:
    """The value in a JSON text. Raises TooLarge, before parsing, for more than the limits allow, and Malformed for
    anything but JSON in UTF-8."""
    if len(text) > SMALL:
        check_size(bytes(text), limits)
    return _parse(text)


def parse_answer(text: bytes | memoryview) -> Json:
    """The value in a JSON text of the predictor's. Raises Malformed, before parsing, for more than ANSWER allows, and
    for anything but JSON in UTF-8."""
    if len(text) > ANSWER_BYTES:
        raise Malformed(f"body: {len(text)} bytes of JSON, at most {ANSWER_BYTES} are taken")
    if len(text) > SMALL and (excess := excess_of(bytes(text), ANSWER)):
        raise Malformed(f"body: {excess} are taken of a predictor")
    return _parse(text)


def _parse(text: bytes | memoryview) -> Json:
    """The value, made without passes of the garbage collector where it is large: they take three times as long as the
    rest. Nothing goes wrong if several threads do this at once."""
    pauses = len(text) > SMALL and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Malformed(f"body: not JSON: {exc}") from exc
    finally:
        if pauses:
            gc.enable()


def json_object(value: Json) -> dict[str, Any]:
    """The value if it is a JSON object. Raises Malformed otherwise."""
    if not isinstance(value, dict):
        raise Malformed(f"body: {describe(value)} is not a JSON object")
    return value


def check_size(text: bytes, limits: JsonLimits) -> None:
    """Raises TooLarge for more than the limits allow."""
    if excess := excess_of(text, limits):
        flags = "--max_instances, --max_sequences and --max_request_bytes"
        raise TooLarge.of(f"body: {excess} are taken, which follows from {flags}")


def check_depth(name: str, value: Json, limits: JsonLimits) -> None:
    """Raises TooLarge for a value of the field ``name`` with more lists and objects within each other than allowed.
    With indentation, JSON is as many times longer as it is deep."""
    level = [value]
    for _ in range(limits.depth + 1):
        level = [
            one
            for outer in level
            if isinstance(outer, dict | list)
            for one in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(one, dict | list)
        ]
        if not level:
            return
    raise TooLarge.of(f"{name}: lists and objects more than {limits.depth} deep in each other (--max_json_depth)")


def excess_of(text: bytes, limits: JsonLimits) -> str:
    """What a text has more than the limits allow, in words; empty if nothing.

    In a text that is not JSON the count is right up to the first mistake, where parsers stop.
    """
    parts, values = sum(map(text.count, (b"[", b"{", b":"))), text.count(b",")
    if parts > limits.parts or values > limits.values:  # some may be in strings, such as a prompt with code in it
        parts, values = count_outside_strings(text)
    if parts > limits.parts:
        return f"{parts} lists, objects and keys, at most {limits.parts}"
    return f"{values} values, at most {limits.values}" if values > limits.values else ""


def count_outside_strings(text: bytes) -> tuple[int, int]:
    """The numbers of lists, objects and keys in a JSON text, and of its commas, without those in strings."""
    if b"\\" in text:  # from left to right, so that of three backslashes the third is the quote's
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = commas = 0
    open_string = np.False_
    for start in range(0, len(text), CHUNK):
        chunk = np.frombuffer(text, np.uint8, min(CHUNK, len(text) - start), start)
        quotes: Array = chunk == QUOTE
        quotes[0] ^= open_string
        inside: Array = np.bitwise_xor.accumulate(quotes)
        open_string = inside[-1]
        parts += int(np.count_nonzero(((chunk & OPENING == BRACKET) | (chunk == COLON)) & ~inside))
        commas += int(np.count_nonzero((chunk == COMMA) & ~inside))
    return parts, commas
