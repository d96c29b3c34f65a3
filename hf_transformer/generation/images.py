"""Images in chats: data URLs, headers of image files, and limits.

The service passes an image on as it is. It reads the header alone: the format, and the width and height, since a file
of some kilobytes may become gigabytes of pixels in the model's server.

Source: the formats' specifications, W3C PNG (11.2.1), ITU T.81 (B.1.1.3, B.2.2), GIF89a (18), RFC 9649 (WebP)
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from hf_transformer.errors import InvalidInput, Path, TooLarge

ImageForm = Literal["base64", "url"]
"""Form in which a model takes images: base64 and a rendered prompt, or URLs and a plain question."""
FORMATS: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
EXPECTED: Final = "a PNG, JPEG, WebP or GIF file"
DATA_URL: Final = "data:"
CHUNK: Final = 2**18
"""Characters of base64 that are decoded at a time, in about 0.3 ms: the decoder holds the interpreter's lock."""
MAX_SEGMENTS: Final = 1000
"""Segments before the size in a JPEG file; cameras write some dozens."""
SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of JPEG's segments with the image's size (SOF0 to SOF15)."""
STANDALONE: Final = frozenset((0x01, *range(0xD0, 0xD9)))
"""Markers of JPEG without a length."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a chat. ``size`` is its file's size in bytes, ``digest`` the file's SHA-256 in hex."""

    base64: str
    media_type: str
    width: int
    height: int
    size: int
    digest: str

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"{DATA_URL}{self.media_type};base64,{self.base64}"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of a request's images. ``hosts`` are those from which the service fetches images, and ``seconds`` the
    time for all of a request."""

    count: int = 16
    file_bytes: int = 8 * 2**20
    pixels: int = 2**25
    hosts: tuple[str, ...] = ()
    seconds: float = 10.0

    def check_bytes(self, size: int, path: Path) -> None:
        """Raises TooLarge for a file of too many bytes."""
        if size > self.file_bytes:
            raise TooLarge(path, f"an image of at most {self.file_bytes} bytes (--max_image_bytes)", str(size))

    def check_pixels(self, width: int, height: int, path: Path) -> None:
        """Raises TooLarge for an image of too many pixels, and InvalidInput for one without any."""
        if not width or not height:
            raise InvalidInput(path, "an image with pixels", f"{width} x {height}")
        if width * height > self.pixels:
            expected = f"an image of at most {self.pixels} pixels (--max_image_pixels)"
            raise TooLarge(path, expected, f"{width} x {height}")


def is_data_url(url: str) -> bool:
    return url[: len(DATA_URL)].lower() == DATA_URL


def split_data_url(url: str, path: Path) -> str:
    """Returns the base64 of a data URL. Raises InvalidInput for another media type or encoding.

    Source: RFC 2397
    """
    head, comma, data = url.partition(",")
    media_type, *parameters = head[len(DATA_URL) :].lower().split(";")
    kind = media_type.strip().replace("image/jpg", "image/jpeg")
    if kind not in FORMATS:
        raise InvalidInput(path, f"an image of the type {', '.join(FORMATS)}", repr(media_type[:40]))
    if not comma or [one.strip() for one in parameters][-1:] != ["base64"]:
        raise InvalidInput(path, "base64 in the data URL (data:image/png;base64,...)", "another encoding")
    return data


def read_image(base64: str, limits: ImageLimits, path: Path, hold: Callable[[int, Path], None]) -> Image:
    """Reads an image in base64. ``hold`` counts bytes before they are decoded. May take milliseconds.

    Raises:
        InvalidInput: the text is not base64, or not an image of a known format.
        TooLarge: the image exceeds a limit.
    """
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    limits.check_bytes(size, path)
    hold(size, path)
    expected = "base64 with its padding, without spaces"
    if len(base64) % 4:
        raise InvalidInput(path, expected, f"{len(base64)} characters, which is no multiple of 4")
    parts: list[bytes] = []
    try:
        for start in range(0, len(base64), CHUNK):
            part = a2b_base64(base64[start : start + CHUNK], strict_mode=True)
            if parts and len(parts[-1]) < CHUNK // 4 * 3:  # padding within the text
                raise Base64Error
            parts.append(part)
        if sum(map(len, parts)) != size:
            raise Base64Error
    except ValueError:
        raise InvalidInput(path, expected, "other characters, or padding in another position") from None
    return read_file(b"".join(parts), base64, limits, path)


def read_file(data: bytes, base64: str, limits: ImageLimits, path: Path) -> Image:
    """Reads the header of an image's file. Raises InvalidInput and TooLarge as ``read_image`` does."""
    try:
        media_type, width, height = read_header(data)
    except (ValueError, IndexError):
        raise InvalidInput(path, EXPECTED, "another file or a damaged one") from None
    limits.check_pixels(width, height, path)
    return Image(base64, media_type, width, height, len(data), sha256(data).hexdigest())


def read_header(data: bytes) -> tuple[str, int, int]:
    """Returns the media type, width and height of a file. Raises ValueError or IndexError for any other."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        return "image/png", _number(data, 16, 4), _number(data, 20, 4)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif", _number(data, 6, 2, "little"), _number(data, 8, 2, "little")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp", *_webp_size(data)
    if data[:3] == b"\xff\xd8\xff":
        return "image/jpeg", *_jpeg_size(data)
    raise ValueError


def _number(data: bytes, start: int, count: int, order: Literal["big", "little"] = "big") -> int:
    if start + count > len(data):
        raise ValueError
    return int.from_bytes(data[start : start + count], order)


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return _number(data, 24, 3, "little") + 1, _number(data, 27, 3, "little") + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _number(data, 21, 4, "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    raise ValueError


def _jpeg_size(data: bytes) -> tuple[int, int]:
    position = 2
    for _ in range(MAX_SEGMENTS):
        if data[position] != 0xFF:
            raise ValueError
        while data[position + 1] == 0xFF:  # fill bytes
            position += 1
        marker, position = data[position + 1], position + 2
        if marker in SIZES:
            return _number(data, position + 5, 2), _number(data, position + 3, 2)
        if marker not in STANDALONE:
            if marker in (0xD9, 0xDA):  # the pixels begin without a size
                raise ValueError
            length = _number(data, position, 2)
            if length < 2:
                raise ValueError
            position += length
    raise ValueError
