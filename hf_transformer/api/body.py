"""Request bodies: bounded, decompressed, and in UTF-8, whatever the headers call them."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from hf_transformer.errors import InvalidInput, TooLarge, TooManyRequests, UnsupportedEncoding
from hf_transformer.protocol import json_text
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Json, Request

CHARSET = re.compile(rb"""charset\s*=\s*"?([^\s;"]+)""", re.IGNORECASE)
CHARSETS = frozenset(
    ("utf-8", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le", "ascii", "iso8859-1", "cp1252")
)
"""The charsets that JSON comes in. Not all that Python knows: some of its codecs take quadratic time."""
GZIP = frozenset((b"gzip", b"x-gzip"))
ENCODINGS = GZIP | {b"", b"identity"}
USUAL_TYPES = frozenset((b"application/json", b""))
MAX_MEMBERS = 16
"""Members of one gzip body: the rest is copied after each, so their number has to be bounded."""
MOST_HELD = 256 * 2**20
"""Bytes of all bodies where nobody says how many."""
GZIP_WINDOW = zlib.MAX_WBITS | 16
"""zlib's way of asking for a gzip header (zlib manual, inflateInit2)."""


class Bodies:
    """Counts the bytes of all requests' bodies that are there, whole or in part, in one process.

    Without it as many clients as there may be connections could each have us hold a body of the largest size.

    Args:
        most: bytes that there may be (--max_bytes_in_flight); no fewer than one request may have, or it would never
            come in.
        refused: is told "bytes" of each request that found no room.
    """

    def __init__(self, most: int = MOST_HELD, refused: Callable[[str], None] | None = None) -> None:
        self._most = most
        self._refused = refused
        self.held = 0

    def portion(self, size: int = 0) -> Portion:
        """What one request takes of it, until it is given back.

        Raises:
            TooManyRequests: there is no room for ``size`` bytes.
        """
        portion = Portion(self)
        if size:
            portion.add(size)
        return portion

    def take(self, size: int) -> None:
        """Counts bytes; fewer than none gives some back. Raises TooManyRequests where there is no room."""
        self.require(size)
        self.held += size

    def require(self, size: int) -> None:
        """Raises TooManyRequests if so many more bytes would not fit."""
        if size > 0 and self.held + size > self._most:
            raise self._no_room()

    def _no_room(self) -> TooManyRequests:
        """Counts a request that is refused, and says why."""
        if self._refused is not None:
            self._refused("bytes")
        return TooManyRequests(
            f"the requests that are there or on their way have {self.held} bytes, --max_bytes_in_flight allows "
            f"{self._most}; try again"
        )


class Portion:
    """The bytes of one request; as a context manager it gives them back at the end."""

    __slots__ = ("_bodies", "_size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0

    def require(self, size: int) -> None:
        """Raises TooManyRequests if so many more bytes would not fit. They are not counted."""
        self._bodies.require(size)

    def add(self, size: int) -> None:
        """Raises TooManyRequests if so many more bytes would not fit."""
        self._bodies.take(size)
        self._size += size

    def give_back(self) -> None:
        """The body is no longer there."""
        self._bodies.held -= self._size
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


async def read_body(request: Request, limit: int, portion: Portion) -> bytes:
    """Reads one request's body. What its head tells of it is looked at before.

    Args:
        limit: bytes, before and after decompression.
        portion: counts the bytes that are there; whoever made it gives them back.

    Returns:
        The body, decompressed if it was sent as gzip.

    Raises:
        ClientGone: the connection was closed before the body's end.
        TooLarge: over the limit; nothing beyond it was kept.
        TooManyRequests: all bodies together have no room for it.
        InvalidInput: not the gzip that the header says.
        UnsupportedEncoding: compressed in another way.
    """
    headers = request.headers
    declared = int(headers.get(b"content-length", b"0"))  # the parser takes digits only
    if declared > limit:
        raise _too_large(limit)
    portion.require(declared)
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in ENCODINGS:
        shown = encoding[:40].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding: {shown!r} is not understood; send gzip or no compression")
    pieces: list[bytes] = []
    size = 0
    while piece := await request.read():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        portion.add(len(piece))
        pieces.append(piece)
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if encoding not in GZIP:
        return body
    plain = _inflate(body, limit)
    portion.add(len(plain) - len(body))
    return plain


def _inflate(body: bytes, limit: int) -> bytes:
    inflated = bytearray()
    for _ in range(MAX_MEMBERS):  # a gzip file may have several members, one behind the other (RFC 1952, 2.2)
        inflater = zlib.decompressobj(GZIP_WINDOW)
        try:
            inflated += inflater.decompress(body, limit + 1 - len(inflated))
        except zlib.error:
            raise InvalidInput("Content-Encoding: says gzip, but the body is not gzip") from None
        if len(inflated) > limit:
            raise _too_large(limit)
        if not inflater.eof:
            raise InvalidInput("Content-Encoding: says gzip, but the body ends before the gzip stream does")
        body = inflater.unused_data
        if not body:
            return bytes(inflated)
    raise InvalidInput(f"Content-Encoding: the gzip body has more than {MAX_MEMBERS} members")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"body: larger than the {limit} bytes that are taken (--max_request_bytes)")


def to_utf8(body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """JSON text in UTF-8, from whatever charset the content type names; the content type itself is not looked at.

    Raises:
        UnsupportedEncoding: the charset is not one of CHARSETS.
        InvalidInput: the body is not in that charset.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type in USUAL_TYPES and body[:1] == b"{":
        return body
    found = CHARSET.search(content_type)
    charset = found[1].decode("latin-1").lower()[:40] if found else "utf-8"
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError):
        codec = ""
    if codec not in CHARSETS:
        raise UnsupportedEncoding(f"Content-Type: charset {charset!r} is not taken; send UTF-8")
    if codec == "utf-8":
        return body.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode(codec).encode()
    except ValueError:
        raise InvalidInput(f"body: not in the charset {charset!r} that Content-Type names") from None


def parse_json(body: bytes, limits: JsonLimits) -> Json:
    """The value in a JSON body in UTF-8.

    Raises:
        InvalidInput: it is not JSON.
        TooLarge: it has more lists, objects, keys or values than are taken; that is found before it is parsed.
    """
    try:
        return json_text.parse_json(body, limits)
    except Malformed as error:
        raise InvalidInput(str(error)) from None
