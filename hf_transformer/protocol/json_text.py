"""JSON that a client has sent: parsed only once it is sure that it does not become far more than its bytes are.

A list of two bytes, ``[]``, becomes an object of 56 bytes that Python's garbage collector keeps an eye on, and a key of
an object becomes a string and a place in a hash table. 16 MB of these take a second and a gigabyte, during which
nothing else is answered: orjson holds the interpreter's lock, so that a thread would not help. No request that makes
sense has many of them. So they are counted first, outside strings, where brackets mean nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson

from hf_transformer.errors import TooLarge
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Array, Json

SMALL = 64 * 1024
"""Bytes of a text that is parsed without a look at it: that takes a few milliseconds, whatever is in it."""
CHUNK = 256 * 1024
"""Bytes that are looked at together; they and what is made of them fit into a processor's cache."""
PER_TEXT, BESIDE = 16, 10_000
"""Lists, objects and keys for each text of a request, and beside the texts. The most that a text has is about four: an
object, two keys, and a list of words or labels."""
VALUE_BYTES = 8
"""Of the largest body, for each value: a word or a token's id with its comma. A smaller body may have shorter ones."""
QUOTE, COMMA, COLON, BRACKET = b'",:['
OPENING = 0xDF
"""The bits of the two opening brackets, ``[`` and ``{``, that they have in common."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """What a text may hold. ``parts`` are lists, objects and keys; ``values`` what stands between commas."""

    parts: int
    values: int

    @classmethod
    def of(cls, max_texts: int, max_bytes: int) -> JsonLimits:
        """The limits for requests with so many texts and so many bytes."""
        return cls(PER_TEXT * max_texts + BESIDE, max_bytes // VALUE_BYTES)

    @classmethod
    def of_tensors(cls, max_elements: int) -> JsonLimits:
        """The limits for requests whose tensors have so many elements each."""
        parts = PER_TEXT * max_elements + BESIDE
        return cls(parts, parts)


def parse_json(text: bytes | memoryview, limits: JsonLimits) -> Json:
    """The value in a JSON text.

    Raises:
        Malformed: it is not JSON, or not UTF-8.
        TooLarge: it has more than the limits allow; that is found before it is parsed.
    """
    if len(text) <= SMALL:
        return _parse(text)
    check_size(bytes(text), limits)
    with collector_paused():
        return _parse(text)


def _parse(text: bytes | memoryview) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Malformed(f"body: not JSON: {exc}") from exc


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps Python's garbage collector from looking at a structure again and again while it is built, which would take
    three times as long as building it. Uses may stand in each other, and in several threads."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def check_size(text: bytes, limits: JsonLimits) -> None:
    """Raises TooLarge for more than the limits allow.

    Of a text that is not JSON, what stands before the first mistake is counted right; a parser comes no further.
    """
    parts, values = sum(map(text.count, (b"[", b"{", b":"))), text.count(b",")
    if parts > limits.parts or values > limits.values:
        # Only now it matters how many of them stand in strings, as in a prompt with code in it.
        parts, values = count_outside_strings(text)
    for found, most, what in (
        (parts, limits.parts, "lists, objects and keys"),
        (values, limits.values, "values"),
    ):
        if found > most:
            raise TooLarge(
                f"body: {found} {what}, at most {most} are taken, which follows from --max_instances, --max_sequences "
                "and --max_request_bytes"
            )


def count_outside_strings(text: bytes) -> tuple[int, int]:
    """How many lists, objects and keys begin in a JSON text, and how many commas it has, those in strings left out."""
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
