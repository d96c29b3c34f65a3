"""Numbers of image tokens, against transformers' own arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.image_tokens import ImageTokens, ResizedImageTokens, read_image_tokens

QWEN2: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2}
QWEN3: dict[str, Any] = {"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "merge_size": 2}


def read(folder: Path, settings: Any, **model_config: Any) -> ImageTokens | None:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return read_image_tokens(folder, model_config)


@pytest.mark.parametrize(
    ("width", "height", "count"),
    [(28, 28, 4), (56, 56, 4), (640, 480, 391), (1024, 1024, 1369), (3000, 2000, 7597), (5000, 5000, 16129), (1, 1, 4)],
    ids=str,
)
def test_qwen2_vl(tmp_path: Path, width: int, height: int, count: int) -> None:
    tokens = read(tmp_path, QWEN2, model_type="qwen2_vl", image_token_id=7)
    assert tokens is not None and (tokens.token, tokens.count(width, height)) == (7, count)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """transformers' function, without torch."""
    source = __import__("transformers").__path__[0] + "/models/qwen2_vl/image_processing_qwen2_vl.py"
    text = Path(source).read_text()
    start = text.index("def smart_resize(")
    scope: dict[str, Any] = {"math": __import__("math")}
    exec(text[start : text.index("\n\n\n", start)], scope)
    result: tuple[int, int] = scope["smart_resize"](height, width, factor, min_pixels, max_pixels)
    return result


@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([(28, 3136, 12845056), (32, 65536, 10**6)]))
def test_sizes_are_those_of_transformers(width: int, height: int, settings: tuple[int, int, int]) -> None:
    tokens = ResizedImageTokens(0, *settings)
    if max(width, height) / min(width, height) > 200:
        with pytest.raises(ValueError, match="a factor of at most 200"):
            tokens.count(width, height)
    else:
        assert tokens.resized(height, width) == smart_resize(height, width, *settings)


def test_qwen3_vl_has_limits_by_size_and_larger_patches(tmp_path: Path) -> None:
    tokens = read(tmp_path, QWEN3, model_type="qwen3_vl", image_token_id=7)
    assert tokens == ResizedImageTokens(7, 32, 65536, 16777216)
    assert tokens.count(640, 480) == 300


@pytest.mark.parametrize(
    ("settings", "config", "processor", "count"),
    [
        pytest.param({"crop_size": {"height": 336, "width": 336}}, {}, None, 576, id="llava 1.5"),
        pytest.param({"crop_size": 224}, {"vision_config": {"patch_size": 32}}, None, 49, id="another size"),
        pytest.param({"crop_size": 336}, {"vision_feature_select_strategy": "full"}, None, 577, id="class token"),
        pytest.param({"crop_size": 336}, {}, {"patch_size": 16}, 441, id="the processor's patches"),
    ],
)
def test_llava(tmp_path: Path, settings: Any, config: Any, processor: Any, count: int) -> None:
    if processor:
        (tmp_path / "processor_config.json").write_text(json.dumps(processor))
    tokens = read(tmp_path, settings, model_type="llava", image_token_index=9, **config)
    assert tokens is not None and {tokens.count(*size) for size in ((1, 1), (300, 5000))} == {count}


def test_other_families_are_not_known(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN2, model_type="gemma3", image_token_id=1) is None
    assert read(tmp_path, {"do_center_crop": False, "size": {"shortest_edge": 336}}, model_type="llava",
                image_token_index=1) is None  # fmt: skip
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_image_tokens(tmp_path, {"model_type": "qwen2_vl", "image_token_id": 1}) is None


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        pytest.param({**QWEN2, "patch_size": 0}, {"image_token_id": 1}, id="patch"),
        pytest.param({**QWEN2, "max_pixels": "many"}, {"image_token_id": 1}, id="pixels"),
        pytest.param(QWEN2, {}, id="no token"),
        pytest.param(QWEN2, {"image_token_id": -1}, id="negative token"),
    ],
)
def test_a_value_of_another_form_is_an_error(tmp_path: Path, settings: Any, config: Any) -> None:
    with pytest.raises(LoadError):
        read(tmp_path, settings, model_type="qwen2_vl", **config)
