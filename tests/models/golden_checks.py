"""For each task, whether a service gives the committed goldens: those of transformers and sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.integration import (
    test_feature_extraction,
    test_fill_mask,
    test_question_answering,
    test_rerank,
    test_sequence_classification,
    test_text_embedding,
    test_token_classification,
    test_zero_shot_classification,
)
from tests.integration.conftest import goldens
from tests.integration.generating import CASES, TOKENS
from tests.service import Service

__all__ = ["CHECKS", "PIPELINE", "goldens"]

PIPELINE = {"output_format": "pipeline"}


def generation(service: Service, model: str) -> None:
    """Greedy texts, some prompts of different lengths in one request."""
    kind = model.partition("_")[0]
    cases = CASES[kind][::3]
    found = service.predict([case["prompt"] for case in cases], {"max_new_tokens": TOKENS, "return_full_text": False})
    assert [answer["generated_text"] for (answer,) in found] == [case["text"] for case in cases]


CHECKS: Mapping[str, Callable[[Service, str], None]] = {
    "fill_mask": test_fill_mask.check_goldens,
    "sequence_classification": test_sequence_classification.check_goldens,
    "text_embedding": test_text_embedding.check_goldens,
    "feature_extraction": test_feature_extraction.check_goldens,
    "token_classification": test_token_classification.check_goldens,
    "question_answering": test_question_answering.check_goldens,
    "rerank": test_rerank.check_goldens,
    "zero_shot_classification": test_zero_shot_classification.check_goldens,
    "text_generation": generation,
    "text2text_generation": generation,
}
