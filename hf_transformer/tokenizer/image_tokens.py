"""Numbers of an image's tokens in a prompt, by the arithmetic of the model family's processor.

Families whose arithmetic needs no pixels, by ``model_type`` of config.json:

    qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe    patches of the resized image, merged in squares
    llava                                           patches of an image of one size

The chat template writes one placeholder token per image, in place of which the model reads this many.

Source: transformers 5.22, models/qwen2_vl/image_processing_qwen2_vl.py and models/llava/processing_llava.py
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import positive, read_json
from hf_transformer.types.request import Json

FILE: Final = "preprocessor_config.json"
QWEN: Final[Mapping[str, int]] = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16, "qwen3_vl_moe": 16}
"""Families with the processor of Qwen2-VL, and the usual size of their patches."""
MAX_RATIO: Final = 200
"""Maximum of the longer side over the shorter one, in Qwen2-VL."""


class ImageTokens(ABC):
    """Numbers of tokens of a model's images.

    Attributes:
        token: the id of the placeholder, and of each token of an image.
    """

    token: int

    @abstractmethod
    def count(self, width: int, height: int) -> int:
        """The number of tokens of an image. Raises ValueError for a form that the processor refuses."""


@dataclass(frozen=True, slots=True)
class FixedImageTokens(ImageTokens):
    """The same number for each image, which the processor brings to one size."""

    token: int
    number: int

    def count(self, width: int, height: int) -> int:
        return self.number


@dataclass(frozen=True, slots=True)
class ResizedImageTokens(ImageTokens):
    """A number by an image's form: the image is resized to multiples of a merged patch, within limits of pixels."""

    token: int
    factor: int
    min_pixels: int
    max_pixels: int

    def count(self, width: int, height: int) -> int:
        if max(width, height) > MAX_RATIO * min(width, height):
            raise ValueError(f"an image whose sides differ by a factor of at most {MAX_RATIO}")
        rows, columns = self.resized(height, width)
        return (rows // self.factor) * (columns // self.factor)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The sides of the resized image, in pixels; ``smart_resize`` of transformers."""
        factor, pixels = self.factor, height * width
        sides = round(height / factor) * factor, round(width / factor) * factor
        if sides[0] * sides[1] > self.max_pixels:
            beta = math.sqrt(pixels / self.max_pixels)
            return (
                max(factor, math.floor(height / beta / factor) * factor),
                max(factor, math.floor(width / beta / factor) * factor),
            )
        if sides[0] * sides[1] < self.min_pixels:
            beta = math.sqrt(self.min_pixels / pixels)
            return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
        return sides


def read_image_tokens(folder: Path, model_config: Mapping[str, Json]) -> ImageTokens | None:
    """Reads the processor of a model's folder. None for a family whose arithmetic is not known, and without the file.

    Raises LoadError for a value of another form.
    """
    family = model_config.get("model_type")
    if family not in (*QWEN, "llava") or not (folder / FILE).is_file():
        return None
    settings = read_json(folder / FILE, required=True)
    names = ("image_token_id", "image_token_index")
    token = next((model_config[name] for name in names if name in model_config), None)
    if type(token) is not int or token < 0:
        raise LoadError(f"config.json: expected the id of a token as {names[0]}")
    return (
        _read_llava(folder, settings, model_config, token) if family == "llava" else _read_qwen(settings, token, family)
    )


def _read_qwen(settings: Mapping[str, Any], token: int, family: str) -> ResizedImageTokens:
    size = settings.get("size") or {}
    size = size if isinstance(size, dict) else {}
    factor = _size(settings, "patch_size", QWEN[family]) * _size(settings, "merge_size", 2)
    return ResizedImageTokens(
        token,
        factor,
        _size(settings, "min_pixels", _size(size, "shortest_edge", 56 * 56)),
        _size(settings, "max_pixels", _size(size, "longest_edge", 28 * 28 * 1280)),
    )


def _read_llava(
    folder: Path, settings: Mapping[str, Any], model_config: Mapping[str, Any], token: int
) -> FixedImageTokens | None:
    processor = read_json(folder / "processor_config.json", required=False)
    vision = model_config.get("vision_config") or {}
    side = settings.get("crop_size") if settings.get("do_center_crop", True) else settings.get("size")
    if isinstance(side, dict):
        if not {"height", "width"} <= side.keys():  # the image keeps its form
            return None
        height, width = _size(side, "height", 336), _size(side, "width", 336)
    else:
        height = width = _size({"crop_size": side}, "crop_size", 336)
    patch = _size(processor, "patch_size", _size(vision, "patch_size", 14))
    strategy = processor.get("vision_feature_select_strategy") or model_config.get("vision_feature_select_strategy")
    further = 1 if strategy == "full" else 0  # the class token of the vision encoder
    return FixedImageTokens(token, (height // patch) * (width // patch) + further)


def _size(settings: Mapping[str, Any], name: str, default: int) -> int:
    """A positive number. Raises LoadError for any other value."""
    if settings.get(name) is None:
        return default
    if (value := positive(settings[name])) is None:
        raise LoadError(f"{FILE}: {name}: expected a positive number, got {settings[name]!r:.100}")
    return value
