"""Request bodies: bounded, decompressed, and in UTF-8, whatever the headers call them."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Mapping

from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.errors import InvalidInput, TooLarge, UnsupportedEncoding
from hf_transformer.types.http import Request

CHARSET = re.compile(rb"""charset\s*=\s*"?([^\s;"]+)""", re.IGNORECASE)
CHARSETS = frozenset(
    ("utf-8", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le", "ascii", "iso8859-1", "cp1252")
)
"""The charsets that JSON comes in. Not all that Python knows: some of its codecs take quadratic time."""
GZIP = ("gzip", zlib.MAX_WBITS | 16)  # zlib's way of asking for a gzip header (zlib manual, inflateInit2)
COMPRESSIONS = {b"gzip": GZIP, b"x-gzip": GZIP, b"deflate": ("deflate", zlib.MAX_WBITS)}
"""Name and window of each compression. ``deflate`` is zlib's format, as in RFC 9110 and in Triton's clients."""
ENCODINGS = COMPRESSIONS.keys() | {b"", b"identity"}
USUAL_TYPES = frozenset((b"application/json", b""))
MAX_MEMBERS = 16
"""Members of one compressed body: the rest is copied after each, so their number has to be bounded."""


async def read_body(request: Request, limit: int, place: AdmissionTicket) -> bytes:
    """A request's body, decompressed if it was sent as gzip or deflate. What its head tells of it is looked at before.

    Args:
        limit: bytes, before and after decompression.
        place: counts the bytes that are there; whoever made it gives them back.

    Raises:
        ClientGone: the connection was closed before the body's end.
        TooLarge: over the limit; nothing beyond it was kept.
        TooManyRequests: there is no room for it, or for another request.
        InvalidInput: not compressed as the header says.
        UnsupportedEncoding: compressed in another way.
    """
    headers, admission = request.headers, place.admission
    admission.require()
    if (declared := int(headers.get(b"content-length", 0))) > 0:  # the parser takes digits only
        if declared > limit:
            raise _too_large(limit)
        admission.require_bytes(declared)
    encoding = headers.get(b"content-encoding", b"")
    if encoding and (encoding := encoding.strip().lower()) not in ENCODINGS:
        shown = encoding[:40].decode("latin-1")
        raise UnsupportedEncoding(
            f"Content-Encoding: {shown!r} is not understood; send gzip, deflate or no compression"
        )
    body = await request.read()
    place.hold(len(body))
    if not request.at_end:
        pieces, size = [body], len(body)
        while size <= limit and (piece := await request.read()):
            place.hold(len(piece))
            pieces.append(piece)
            size += len(piece)
        body = b"".join(pieces)
    if len(body) > limit:
        raise _too_large(limit)
    if not encoding or encoding not in COMPRESSIONS:
        return body
    plain = _inflate(body, limit, *COMPRESSIONS[encoding])
    place.hold(len(plain) - len(body))
    return plain


def _inflate(body: bytes, limit: int, kind: str, window: int) -> bytes:
    inflated = bytearray()
    for _ in range(MAX_MEMBERS):  # a gzip file may have several members, one behind the other (RFC 1952, 2.2)
        inflater = zlib.decompressobj(window)
        try:
            inflated += inflater.decompress(body, limit + 1 - len(inflated))
        except zlib.error:
            raise InvalidInput.of(f"Content-Encoding: says {kind}, but the body is not {kind}") from None
        if len(inflated) > limit:
            raise _too_large(limit)
        if not inflater.eof:
            raise InvalidInput.of(f"Content-Encoding: says {kind}, but the body ends before the {kind} stream does")
        body = inflater.unused_data
        if not body:
            return bytes(inflated)
    raise InvalidInput.of(f"Content-Encoding: the {kind} body has more than {MAX_MEMBERS} members")


def _too_large(limit: int) -> TooLarge:
    return TooLarge.of(f"body: larger than the {limit} bytes that are taken (--max_request_bytes)")


def to_utf8(body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """JSON text in UTF-8, from whatever charset the content type names; the content type itself is not looked at.

    Raises UnsupportedEncoding for a charset that is not in CHARSETS, InvalidInput for a body in another one.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type in USUAL_TYPES:
        return body.removeprefix(codecs.BOM_UTF8)
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
        raise InvalidInput.of(f"body: not in the charset {charset!r} that Content-Type names") from None
