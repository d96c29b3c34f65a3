"""Header blocks of HTTP/2 (HPACK, RFC 7541). No sockets.

Ours need no state: every field is written out, or stands in the static table. Those of servers are read with ``hpack``,
and what most of them are, the same bytes again and again, is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hpack import Decoder, HPACKError

from hf_transformer.predictor.http2_errors import Malformed
from hf_transformer.predictor.http2_frames import ErrorCode

LARGEST_BLOCK: Final = 2**15
"""Bytes of a header block, and of its fields as HPACK counts them (RFC 7541, 4.1)."""

FIRST_TABLE: Final = 4096
"""Bytes of a dynamic table before anything is said of it."""
NO_TABLE: Final = b"\x20"
"""At the beginning of a header block: the dynamic table has no room from here on."""

_PLAIN, _NEVER_INDEXED = b"\x00", b"\x10"
_SECRET: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
"""What no server on the way may keep in a table (RFC 7541, 7.1.3)."""

_METHOD_POST, _SCHEME_HTTP, _SCHEME_HTTPS = b"\x83", b"\x86", b"\x87"
_PATH, _AUTHORITY, _CONTENT_TYPE = b"\x04", b"\x01", b"\x0f\x10"
"""Names in the static table, each with a value that is in no table."""

_REMEMBERED = 32
_REMEMBERED_BYTES = 256
"""Blocks that are kept, and bytes of each. Errors, whose messages differ, push nothing out for long."""


def encode_post(path: str, authority: str, content_type: str, *, tls: bool) -> bytes:
    """The beginning of the header block of a POST request."""
    scheme = _SCHEME_HTTPS if tls else _SCHEME_HTTP
    return b"".join(
        (
            *(_METHOD_POST, scheme, _PATH, _string(path.encode()), _AUTHORITY, _string(authority.encode())),
            *(_CONTENT_TYPE, _string(content_type.encode())),
        )
    )


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """Fields as a part of a header block; names are lower-case, values latin-1."""
    return b"".join([(_USUAL.get(name) or _name(name)) + _string(value.encode("latin-1")) for name, value in fields])


def _name(name: str) -> bytes:
    """What stands before a field's value."""
    return (_NEVER_INDEXED if name in _SECRET else _PLAIN) + _string(name.encode())


def _string(text: bytes) -> bytes:
    """A string literal without Huffman's code (RFC 7541, 5.2)."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    encoded = bytearray(b"\x7f")
    length -= 0x7F
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text


_USUAL: Final = {name: _name(name) for name in ("authorization", "traceparent", "tracestate", "x-request-id")}


class HeaderReader:
    """The header blocks of one connection, in the order in which they come.

    A block is remembered only while the dynamic table has no room: it then means the same whatever came before. That is
    what we announce (SETTINGS_HEADER_TABLE_SIZE of 0), and servers confirm it at the beginning of their next block. The
    blocks of one that ignores it are read one by one.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(LARGEST_BLOCK)
        self._stateless = False
        self._known: dict[bytes, Mapping[str, str]] = {}

    def decode(self, block: bytes) -> Mapping[str, str]:
        """The fields by name; the values of a repeated one are joined by commas.

        Raises:
            Malformed: it is no header block, or its fields are too large. The connection is of no use any more.
        """
        if self._stateless:
            found = self._known.get(block)
            if found is not None:
                return found
        stateless = self._stateless and not _resizes(block)
        fields: dict[str, str] = {}
        try:
            for name, value in self._decoder.decode(block, raw=True):
                key, text = str(name, "latin-1"), str(value, "latin-1")
                fields[key] = f"{fields[key]},{text}" if key in fields else text
        except (HPACKError, ValueError) as exc:
            raise Malformed(f"a header block can't be read: {exc}"[:200], ErrorCode.COMPRESSION_ERROR) from exc
        self._stateless = self._decoder.header_table_size == 0
        if stateless and len(block) <= _REMEMBERED_BYTES:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            self._known[block] = fields
        return fields


def _resizes(block: bytes) -> bool:
    """Whether it begins with a change of the dynamic table's size, which can stand only there (RFC 7541, 4.2)."""
    return bool(block) and block[0] & 0xE0 == 0x20
