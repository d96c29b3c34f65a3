"""Compute the goldens of sparse and multi-vector embeddings.

By sentence-transformers' SparseEncoder and MultiVectorEncoder; those of BGE-M3 by the formulas of FlagEmbedding's
BGEM3FlagModel. Needs torch, transformers 5, sentence-transformers 6.2 and onnx. Every text is run alone, unpadded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sentence_transformers
import torch
import transformers
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from torch.nn.functional import normalize

from scripts.goldens.golden_files import TOLERANCE, generate
from tests.goldens.checkpoints import checkpoint
from tests.goldens.embedding_texts import TEXTS
from tests.goldens.hard_texts import HARD_TEXTS

ABOUT: Final = {
    "made_by": "scripts/goldens/generate_sparse_and_token_vectors.py",
    "tolerance": {"component_absolute": TOLERANCE},
    "splade": "SparseEncoder(folder).encode(text)",
    "m3": "dense by SentenceTransformer(folder).encode(text); sparse and multi_vector by FlagEmbedding's formulas",
    "colbert": "MultiVectorEncoder(folder).encode_query(text) and encode_document(text); query_16 and document_16 have "
    "16 of 80 components, not normalized again",
    "sparse": "indices in ascending order, and values",
}
SKIPPED: Final = ("<s>", "</s>", "<pad>", "<unk>")
"""Tokens without a lexical weight in FlagEmbedding."""
FEW: Final = 3
"""Texts with all 80 components of a ColBERT vector; the others have 16, to keep the file small."""


def sparse(vector: torch.Tensor) -> dict[str, Any]:
    """The components of a dense vector [V] that are not zero."""
    indices = vector.nonzero()[:, 0]
    return {"indices": indices.tolist(), "values": vector[indices].tolist()}


class Goldens:
    """The models."""

    def __init__(self, folder: Path) -> None:
        self.splade = SparseEncoder(str(checkpoint("splade", folder)), device="cpu")
        self.colbert = MultiVectorEncoder(str(checkpoint("colbert", folder)), device="cpu")
        m3 = checkpoint("m3", folder)
        self.m3 = SentenceTransformer(str(m3), device="cpu")
        self.linear = {name: torch.load(m3 / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert")}

    def everything(self) -> dict[str, Any]:
        """The contents of sparse_and_token_vectors.json."""
        hard = {name: text for name, text in HARD_TEXTS.items() if len(text) < 60}
        cases = [case(name, text) for case in (self.splade_case, self.m3_case) for name, text in (TEXTS | hard).items()]
        texts = list((TEXTS | hard).items())[::3]
        cases += [self.colbert_case(name, text, short=number >= FEW) for number, (name, text) in enumerate(texts)]
        return {"about": ABOUT, "cases": cases}

    def splade_case(self, name: str, text: str) -> dict[str, Any]:
        vector = self.splade.encode([text], convert_to_sparse_tensor=False, show_progress_bar=False)[0]
        return {"model": "splade", "id": name, "text": text, "sparse": sparse(vector)}

    def m3_case(self, name: str, text: str) -> dict[str, Any]:
        dense = self.m3.encode([text], show_progress_bar=False)[0]
        inputs = self.m3.tokenizer([text], truncation=True, max_length=self.m3.max_seq_length, return_tensors="pt")
        hidden = self.m3[0].auto_model(**inputs).last_hidden_state[0]
        weights = torch.relu(hidden @ self.linear["sparse"]["weight"].T + self.linear["sparse"]["bias"])[:, 0]
        # FlagEmbedding's colbert_vecs leave out the first token.
        vectors = normalize(hidden[1:] @ self.linear["colbert"]["weight"].T + self.linear["colbert"]["bias"], dim=-1)
        skipped = self.m3.tokenizer.convert_tokens_to_ids(list(SKIPPED))
        best: dict[int, float] = {}
        for number, weight in zip(inputs["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if number not in skipped and weight > best.get(number, 0):
                best[number] = weight
        found = {"indices": sorted(best), "values": [best[number] for number in sorted(best)]}
        case = {"model": "m3", "id": name, "text": text, "dense": dense, "sparse": found}
        return case | ({"multi_vector": vectors} if name in TEXTS else {})

    def colbert_case(self, name: str, text: str, *, short: bool) -> dict[str, Any]:
        answers = {
            "query": self.colbert.encode_query([text], show_progress_bar=False)[0],
            "document": self.colbert.encode_document([text], show_progress_bar=False)[0],
        }
        if short:
            answers = {f"{kind}_16": vectors[:, :16] for kind, vectors in answers.items()}
        return {"model": "colbert", "id": name, "text": text, **answers}


if __name__ == "__main__":
    generate(
        "sparse_and_token_vectors", lambda folder: Goldens(folder).everything(), transformers, sentence_transformers
    )
