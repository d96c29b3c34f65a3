"""Small image files of all formats, made without a library."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable


def png(width: int = 3, height: int = 2) -> bytes:
    """A gray image; of many pixels only the header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height) if width * height < 10**6 else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif(width: int = 3, height: int = 2) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width: int = 3, height: int = 2, marker: int = 0xC2) -> bytes:
    """With metadata of two segments, and fill bytes, before the size."""
    metadata = b"\xff\xe1" + struct.pack(">H", 60_000) + b"\xff\xc0" * 29_999
    size = b"\xff\xff" + bytes((marker,)) + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + metadata * 2 + size + b"\xff\xda" + b"\0" * 8 + b"\xff\xd9"


def _riff(kind: bytes, data: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_lossy(width: int = 3, height: int = 2) -> bytes:
    return _riff(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 20)


def webp_lossless(width: int = 3, height: int = 2) -> bytes:
    return _riff(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 20)


def webp_extended(width: int = 3, height: int = 2) -> bytes:
    sizes = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return _riff(b"VP8X", b"\x10\0\0\0" + sizes)


FILES: dict[str, tuple[str, Callable[[int, int], bytes]]] = {
    "png": ("image/png", png),
    "gif": ("image/gif", gif),
    "jpeg": ("image/jpeg", jpeg),
    "webp, lossy": ("image/webp", webp_lossy),
    "webp, lossless": ("image/webp", webp_lossless),
    "webp, extended": ("image/webp", webp_extended),
}


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64(data)}"
