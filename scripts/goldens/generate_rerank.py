"""Compute the rerank goldens with sentence-transformers' CrossEncoder.

Needs torch, transformers 5, sentence-transformers and onnx. Every pair is run alone, unpadded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sentence_transformers
import torch
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree, near_tie
from tests.goldens.checkpoints import checkpoint
from tests.goldens.embedding_texts import BEST_TEXTS, QUERIES
from tests.goldens.hard_texts import HARD_TEXTS

ABOUT: Final = {
    "made_by": "scripts/goldens/generate_rerank.py",
    "tolerance": {"score_absolute": TOLERANCE},
    "model": "cross",
    "scores": "CrossEncoder(folder).predict([(query, text)]) per text, in the order of the texts: sigmoid of the logit",
    "raw_scores": "the same with activation_fn=torch.nn.Identity()",
    "rank": "CrossEncoder(folder).rank(query, texts, return_documents=True)",
    "near_tie": "two scores are too near each other to fix their order",
}


def everything(folder: Path) -> dict[str, Any]:
    """The contents of rerank.json."""
    model = sentence_transformers.CrossEncoder(str(checkpoint("cross", folder)), device="cpu")
    query = "Where does the cat sleep?"
    hard = {f"text_{name}": (query, [text, "Our cat naps on the sofa."]) for name, text in HARD_TEXTS.items()}
    asked = {
        f"query_{name}": (text, ["Our cat naps on the sofa.", "Anna lives in Berlin."])
        for name, text in HARD_TEXTS.items()
        if name.startswith(("emoji", "turkish", "accents", "chinese", "very_long", "space", "digits"))
    }
    cases = [case_of(model, name, query, texts) for name, (query, texts) in (QUERIES | hard | asked).items()]
    best = {case["id"]: case["rank"][0]["corpus_id"] for case in cases if case["id"] in BEST_TEXTS}
    must_agree("best texts", best, BEST_TEXTS)
    return {"about": ABOUT, "cases": cases}


def case_of(model: Any, name: str, query: str, texts: list[str]) -> dict[str, Any]:
    """One query with its texts."""

    def predict(**parameters: Any) -> list[float]:
        return [float(model.predict([(query, text)], **parameters)[0]) for text in texts]

    # batch_size=1, or the scores would depend on the padding a little.
    rank = model.rank(query, texts, return_documents=True, batch_size=1)
    case = {
        **{"id": name, "query": query, "texts": texts, "scores": predict()},
        "raw_scores": predict(activation_fn=torch.nn.Identity()),
        "rank": [{**entry, "score": float(entry["score"])} for entry in rank],
    }
    if near_tie([entry["score"] for entry in rank]):
        case["near_tie"] = True
    return case


if __name__ == "__main__":
    generate("rerank", everything, transformers, sentence_transformers)
