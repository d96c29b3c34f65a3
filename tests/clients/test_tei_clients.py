"""Clients of text-embeddings-inference that know nothing but the service's URL get what V1 answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Run
from tests.integration.conftest import Serve

TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!", "They cook dinner together."]


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(np.array(found), np.array(expected), atol=1e-5, rtol=0))


def test_vectors(serve: Serve, client: Run) -> None:
    service = serve("minibert_mean")
    expected = np.array(service.predict(TEXTS, {"normalize": True}))
    results = client("tei_clients", "embedding", service=service, texts=TEXTS)
    for name in ("hub", "langchain", "haystack"):
        assert close(results[name], expected), name
    assert close(results["one"], expected[:1])
    assert close(results["langchain_query"], expected[0]) and close(results["haystack_text"], expected[0])
    assert close(results["raw"], service.predict(TEXTS, {"normalize": False}))
    assert close(results["short"], service.predict(TEXTS, {"normalize": True, "dimensions": 4}))
    assert close(results["similarity"], expected @ expected[0])
    assert close(results["async"]["hub"], expected) and close(results["async"]["langchain"], expected)
    assert close(results["async"]["similarity"], expected @ expected[0])


def test_ranks(serve: Serve, client: Run) -> None:
    service = serve("cross")
    query = "Who cooks dinner?"
    found = client("tei_clients", "ranking", service=service, texts=TEXTS, query=query)
    for name, raw in (("scores", False), ("raw", True)):
        [ranks] = service.predict([{"query": query, "texts": TEXTS}], {"raw_scores": raw})
        assert found[name] == [[rank["index"], rank["score"]] for rank in ranks]


@pytest.mark.parametrize(
    ("model", "method", "arguments", "parameters"),
    [
        ("sentiment", "text_classification", {"text": TEXTS[0]}, {"top_k": None}),
        ("sentiment", "text_classification", {"text": TEXTS[0], "top_k": 1}, {"top_k": 1}),
        ("ner", "token_classification", {"text": "Angela lives in Paris."}, {}),
        ("bert", "fill_mask", {"text": "The capital of france is [MASK].", "top_k": 2}, {"top_k": 2}),
    ],
)
def test_pipelines(
    serve: Serve, client: Run, model: str, method: str, arguments: dict[str, Any], parameters: dict[str, Any]
) -> None:
    service = serve(model)
    found = client("tei_clients", "pipelines", service=service, method=method, arguments=arguments)["found"]
    [expected] = service.predict([arguments["text"]], {"output_format": "pipeline", **parameters})
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert {name: value for name, value in one.items() if value is not None} == other


def test_answers_to_a_question(serve: Serve, client: Run) -> None:
    service = serve("squad")
    arguments = {"question": "Where does Angela live?", "context": "Angela lives in Paris."}
    found = client("tei_clients", "pipelines", service=service, method="question_answering", arguments=arguments)
    [expected] = service.predict([arguments], {"output_format": "pipeline"})
    assert found["found"] == expected and expected["answer"]


def test_labels_of_the_client_s_choice(serve: Serve, client: Run) -> None:
    service = serve("nli")
    labels = ["sport", "rain", "food"]
    arguments = {"text": TEXTS[1], "candidate_labels": labels}
    found = client("tei_clients", "pipelines", service=service, method="zero_shot_classification", arguments=arguments)
    [expected] = service.predict([TEXTS[1]], {"output_format": "pipeline", "candidate_labels": labels})
    assert [one["label"] for one in found["found"]] == expected["labels"]
    assert [one["score"] for one in found["found"]] == expected["scores"]
