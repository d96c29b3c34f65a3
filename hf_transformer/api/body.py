"""Reads, decompresses and decodes request bodies, and converts JSON to UTF-8."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.errors import InvalidInput, TooLarge, UnsupportedEncoding
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.http import Request

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
CHARSET = re.compile(rb"""charset\s*=\s*"?([^\s;"]+)""", re.IGNORECASE)
CHARSETS = frozenset(
    ("utf-8", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le", "ascii", "iso8859-1", "cp1252")
)
"""Supported charsets of JSON bodies. Some other Python codecs take quadratic time."""
GZIP = ("gzip", zlib.MAX_WBITS | 16)  # 16 selects the gzip format (zlib manual, inflateInit2)
COMPRESSIONS = {b"gzip": GZIP, b"x-gzip": GZIP, b"deflate": ("deflate", zlib.MAX_WBITS)}
"""The name and zlib window bits of each compression. ``deflate`` is the zlib format, as in RFC 9110 and Triton."""
ENCODINGS = COMPRESSIONS.keys() | {b"", b"identity"}
JSON_TYPES = frozenset((b"application/json", b""))
"""Content types of UTF-8 JSON without a charset parameter."""
MAX_MEMBERS = 16
"""Maximum gzip members in a body. Each member copies the remaining body, which takes quadratic time."""


async def read_body(request: Request, limit: int, ticket: AdmissionTicket) -> bytes:
    """Checks the headers, then reads the body and decompresses gzip and deflate.

    Args:
        limit: maximum bytes, before and after decompression.
        ticket: counts the bytes of the body. The caller releases the ticket.

    Raises:
        ClientGone: the client disconnected before the end of the body.
        TooLarge: the body exceeds the limit.
        TooManyRequests: the service has no capacity for the body or for another request.
        InvalidInput: the body does not match Content-Encoding, or has too many gzip members.
        UnsupportedEncoding: the service does not support the Content-Encoding.
    """
    headers, admission = request.headers, ticket.admission
    admission.require()
    if (declared := int(headers.get(b"content-length", 0))) > 0:  # the HTTP parser accepts digits only
        if declared > limit:
            raise _too_large(limit)
        admission.require_bytes(declared)
    encoding = headers.get(b"content-encoding", b"")
    if encoding and (encoding := encoding.strip().lower()) not in ENCODINGS:
        raise UnsupportedEncoding(
            f"Content-Encoding: expected gzip, deflate or identity, got {encoding[:40].decode('latin-1')!r}"
        )
    body = await request.read()
    ticket.hold(len(body))
    if not request.at_end:
        pieces, size = [body], len(body)
        while size <= limit and (piece := await request.read()):
            ticket.hold(len(piece))
            pieces.append(piece)
            size += len(piece)
        body = b"".join(pieces)
    if len(body) > limit:
        raise _too_large(limit)
    if not encoding or encoding not in COMPRESSIONS:
        return body
    plain = _inflate(body, limit, *COMPRESSIONS[encoding])
    ticket.hold(len(plain) - len(body))
    return plain


def _inflate(body: bytes, limit: int, kind: str, window: int) -> bytes:
    inflated = bytearray()
    for _ in range(MAX_MEMBERS):  # gzip data may have several members (RFC 1952, 2.2)
        inflater = zlib.decompressobj(window)
        try:
            inflated += inflater.decompress(body, limit + 1 - len(inflated))
        except zlib.error:
            raise InvalidInput("body", f"{kind}, as Content-Encoding says", "another format") from None
        if len(inflated) > limit:
            raise _too_large(limit)
        if not inflater.eof:
            raise InvalidInput("body", f"a complete {kind} stream, as Content-Encoding says", "an incomplete one")
        body = inflater.unused_data
        if not body:
            return bytes(inflated)
    raise InvalidInput("body", f"at most {MAX_MEMBERS} {kind} members", "more")


def _too_large(limit: int) -> TooLarge:
    return TooLarge("body", f"at most {limit} bytes (--max_request_bytes)", "more")


def to_utf8(body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """Converts JSON text from the charset in Content-Type to UTF-8, and removes a UTF-8 byte order mark.

    Raises:
        UnsupportedEncoding: the charset is not in CHARSETS.
        InvalidInput: the body has bytes that the charset does not allow.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type in JSON_TYPES:
        return body.removeprefix(codecs.BOM_UTF8)
    match = CHARSET.search(content_type)
    charset = match[1].decode("latin-1").lower()[:40] if match else "utf-8"
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError):
        codec = ""
    if codec not in CHARSETS:
        raise UnsupportedEncoding(f"Content-Type: expected the charset UTF-8, got {charset!r}")
    if codec == "utf-8":
        return body.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode(codec).encode()
    except ValueError:
        raise InvalidInput("body", f"text in the charset {charset!r}, as Content-Type says", "other bytes") from None


def decoded(decode: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Calls a decoder of bodies. Raises InvalidInput in place of Malformed."""
    try:
        return decode(*args, **kwargs)
    except Malformed as error:
        raise InvalidInput(*error.args) from error
