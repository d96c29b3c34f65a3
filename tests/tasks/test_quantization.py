"""Quantized vectors against the rules and known values of sentence-transformers and vLLM."""

from __future__ import annotations

import numpy as np
import pytest

from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.quantization import PRECISIONS, quantize
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.tokenization import Encoding
from tests.tasks.task_settings import settings

KNOWN = np.array([1, -1, 0, 1, 1, 1, 1, 1, 1, -1], np.float32)


def test_bits_of_the_known_vector() -> None:
    assert quantize(KNOWN, "ubinary").tolist() == [159, 128]
    assert quantize(KNOWN, "binary").tolist() == [31, 0]
    assert quantize(np.stack([KNOWN] * 4), "ubinary").shape == (4, 2)
    assert quantize(KNOWN, "ubinary", zero=True).tolist() == [191, 128]
    assert quantize(KNOWN, "binary", zero=True).tolist() == [63, 0]


def test_bytes_are_steps_of_the_range_of_unit_vectors() -> None:
    """sentence-transformers 6.2 gives these values for ranges=[[-1, ...], [1, ...]]."""
    vector = np.array([-1, -0.999, -0.5, -0.004, 0, 0.004, 0.25, 0.999, 1], np.float32)
    assert quantize(vector, "uint8").tolist() == [0, 0, 63, 126, 127, 128, 159, 254, 254]
    assert quantize(vector, "int8").tolist() == [-128, -128, -65, -2, -1, 0, 31, 126, 126]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_text_has_the_same_result_alone_and_in_any_batch(precision: str) -> None:
    rows = np.random.default_rng(41).normal(size=(5, 12)).astype(np.float32) / 5
    together = quantize(rows, precision)
    assert together.shape == (5, 2 if "binary" in precision else 12)
    for row, quantized in zip(rows, together, strict=True):
        assert quantize(row, precision).tolist() == quantized.tolist()


def test_the_request_chooses_precision_after_dimensions() -> None:
    task = TextEmbedding(settings({"hidden_size": 10}))
    for parameters, expected in (
        ({"precision": "ubinary"}, [159, 128]),
        ({"precision": "ubinary", "dimensions": 8}, [159]),
        ({"precision": "binary", "dimensions": 8, "binary_zero": True}, [63]),
        ({"precision": "uint8", "dimensions": 2}, [217, 37]),
    ):
        options = task.options(parameters)
        part = task.decode("text", Encoding([1], [0]), {"sentence_embedding": KNOWN}, options)
        assert task.answer("text", [[part]], options).tolist() == expected


def test_bytes_are_of_unit_vectors_whatever_the_files_say() -> None:
    files = SentenceTransformers(normalize=False)
    task = TextEmbedding(TaskSettings({}, settings().vocabulary, sentence_transformers=files))
    options = task.options({"precision": "int8"})
    part = task.decode("text", Encoding([1], [0]), {"sentence_embedding": 100 * KNOWN}, options)
    unit = quantize(KNOWN / np.sqrt(np.float32(9)), "int8")
    assert task.answer("text", [[part]], options).tolist() == unit.tolist()
