"""Headers of image files, data URLs and limits."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import FieldError, InvalidInput, TooLarge
from hf_transformer.generation.images import CHUNK, Image, ImageLimits, read_header, read_image, split_data_url
from tests.support.images import FILES, base64, jpeg, png

PATH = ("messages", 0)
LIMITS = ImageLimits(file_bytes=10**6, pixels=10**6)


def read(text: str, limits: ImageLimits = LIMITS) -> Image:
    return read_image(text, limits, PATH, lambda size, path: None)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("width", "height"), [(3, 2), (1, 999), (640, 480)], ids=str)
def test_a_file_has_a_format_and_a_size(kind: str, width: int, height: int) -> None:
    media_type, make = FILES[kind]
    data = make(width, height)
    image = read(base64(data))
    assert (image.media_type, image.width, image.height) == (media_type, width, height)
    assert (image.size, image.digest) == (len(data), sha256(data).hexdigest())
    assert image.url == f"data:{media_type};base64,{base64(data)}"


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_ends_in_its_header_is_refused(kind: str) -> None:
    data = FILES[kind][1](3, 2)
    length = next(end for end in range(len(data) + 1) if _fits(data[:end]))
    assert length > 8 and not any(_fits(data[:end]) for end in range(0, length, max(1, length // 50)))


def _fits(data: bytes) -> bool:
    try:
        return bool(read_header(data))
    except (ValueError, IndexError):
        return False


@given(st.binary(max_size=200), st.sampled_from(sorted(FILES)))
def test_no_file_is_another_error(tail: bytes, kind: str) -> None:
    for start in (b"", FILES[kind][1](3, 2)[:12], FILES[kind][1](3, 2)[:20]):
        try:
            read(base64(start + tail))
        except FieldError as error:
            assert error.path == PATH


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="svg"),
        pytest.param(b"BM" + b"\0" * 60, id="bmp"),
        pytest.param(b"II*\0" + b"\0" * 60, id="tiff"),
        pytest.param(b"", id="empty"),
        pytest.param(jpeg(marker=0xC4), id="jpeg without a size"),
        pytest.param(b"\xff\xd8\xff" + b"\xd0\xff" * 5000, id="jpeg of markers alone"),
        pytest.param(b"\xff\xd8\xff\xe1\0\0" * 9, id="jpeg, length 0"),
        pytest.param(png(0, 5), id="no pixels"),
    ],
)
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        read(base64(data))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.rstrip("="), id="no padding"),
        pytest.param(lambda text: text + "=", id="more padding"),
        pytest.param(lambda text: text + "====", id="four more"),
        pytest.param(lambda text: text[:-4] + "====", id="four alone"),
        pytest.param(lambda text: text[:8] + "==" + text[8:-2], id="padding within"),
        pytest.param(lambda text: text[:4] + " " + text[5:], id="space"),
        pytest.param(lambda text: text[:4] + "\n" + text[5:], id="line break"),
        pytest.param(lambda text: text[:4] + "-" + text[5:], id="alphabet of URLs"),
        pytest.param(lambda text: text[:4] + "\u00e9" + text[5:], id="no ASCII"),
        pytest.param(lambda text: "A" * (CHUNK - 2) + "==" + text, id="padding at the end of a chunk"),
    ],
)
def test_base64_is_strict(change: object) -> None:
    text = base64(png(5, 7))
    assert text.endswith("=") and read(text)
    with pytest.raises(InvalidInput, match="base64 with its padding"):
        read(change(text))  # type: ignore[operator]


def test_a_large_file_is_read_in_chunks() -> None:
    data = png() + b"\0" * 3 * CHUNK
    assert read(base64(data), ImageLimits()).digest == sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("limits", "flag"),
    [
        pytest.param(ImageLimits(file_bytes=len(png()) - 1), "--max_image_bytes", id="bytes"),
        pytest.param(ImageLimits(pixels=5), "--max_image_pixels", id="pixels"),
    ],
)
def test_a_limit_names_its_flag(limits: ImageLimits, flag: str) -> None:
    with pytest.raises(TooLarge, match=flag):
        read(base64(png()), limits)
    assert read(base64(png()), ImageLimits(file_bytes=len(png()), pixels=6))


def test_bytes_are_counted_before_they_are_decoded() -> None:
    def hold(size: int, path: object) -> None:
        raise TooLarge("body", "fewer", str(size))

    with pytest.raises(TooLarge, match="fewer, got 66"):
        read_image("!" * 88, LIMITS, PATH, hold)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("data:image/svg+xml;base64,AAAA", id="svg"),
        pytest.param("data:text/html;base64,AAAA", id="html"),
        pytest.param("data:;base64,AAAA", id="no type"),
        pytest.param("data:,AAAA", id="nothing"),
        pytest.param("data:image/png,%89PNG", id="percent"),
        pytest.param("data:image/png;charset=utf-8,AAAA", id="parameter alone"),
        pytest.param("data:image/png;base64;x=y,AAAA", id="base64 not last"),
        pytest.param("data:image/png;base64AAAA", id="no comma"),
    ],
)
def test_another_data_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        split_data_url(url, PATH)


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:image/JPG;x=y;BASE64,", "data:image/webp; base64,"])
def test_a_data_url_has_its_base64(head: str) -> None:
    assert split_data_url(f"{head}QUJD", PATH) == "QUJD"
