"""Clients of Cohere, Voyage, Jina and NVIDIA NIM that know nothing but the service's URL get what V1 answers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from tests.clients.conftest import Run
from tests.integration.conftest import Serve

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!", "They cook dinner together."]
QUERY = "Who cooks dinner?"


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(np.array(found), np.array(expected), atol=1e-5, rtol=0))


def test_vectors(serve: Serve, client: Run) -> None:
    service = serve("minibert_mean")
    results = client("retrieval_clients", "embedding", service=service, texts=TEXTS)
    for kind in ("query", "document"):
        expected = service.predict(TEXTS, {"input_type": kind})
        for name, vectors in results[kind].items():
            assert close(vectors, expected), (kind, name)
    assert close(results["jina"], service.predict(TEXTS))
    short = np.array(service.predict(TEXTS, {"input_type": "query", "dimensions": 16, "normalize": True}), np.float32)
    types = results["types"]
    assert close(types["float"], short)
    assert close([np.frombuffer(base64.b64decode(vector), "<f4") for vector in types["base64"]], short)
    assert types["ubinary"] == np.packbits(short >= 0, axis=1).tolist()
    assert types["binary"] == (np.array(types["ubinary"]) - 128).tolist()
    assert types["uint8"] == (np.array(types["int8"]) + 128).tolist()
    for name, precision in (("voyage_int8", "int8"), ("voyage_ubinary", "ubinary")):
        assert results[name] == service.predict(TEXTS, {"input_type": "query", "precision": precision})
    chunks = service.predict([{"chunks": TEXTS}, {"chunks": TEXTS[:1]}], {"input_type": "document"})
    assert all(close(vector, other) for vector, other in zip(results["late"], chunks, strict=True))
    assert service.model in results["models"]
    for name, kind in (("cohere_long", "BadRequestError"), ("voyage_long", "InvalidRequestError")):
        found_kind, message = results["errors"].pop(name)
        assert found_kind == kind and "maximum context length is 128 tokens" in message
    for name, (kind, message) in results["errors"].items():
        assert kind != "none" and ("999" if name == "nim" else "a served model") in message, (name, kind, message)


def test_ranks(serve: Serve, client: Run) -> None:
    service = serve("cross")
    results = client("retrieval_clients", "ranking", service=service, texts=TEXTS, query=QUERY)
    for name, raw in (("scores", False), ("logits", True)):
        [ranks] = service.predict([{"query": QUERY, "texts": TEXTS}], {"raw_scores": raw})
        for ranked in results[name].values() if name == "scores" else [results[name]]:
            assert [index for index, _ in ranked] == [one["index"] for one in ranks]
            assert close([score for _, score in ranked], [one["score"] for one in ranks])
    assert results["top"] == results["top_voyage"] == results["scores"]["cohere"][:1]
    assert results["documents"] == [TEXTS[index] for index, _ in results["scores"]["cohere"]]
    for kind, message in results["errors"].values():
        assert kind != "none" and "documents: expected a list of texts, got an empty list" in message
