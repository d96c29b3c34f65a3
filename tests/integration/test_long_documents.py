"""Windows, sides and maximum lengths: long texts have the answers of the texts that the client could have cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve, refused
from tests.support.service import Service

QUERY = "Who cooks dinner?"
WORDS = ("they cook the dinner and the city is on the sofa " * 3).split()
"""Words of one token each."""
SIZE, STRIDE = 24, 4
TOLERANCE = 1e-5
WINDOWS = ("--on_overflow=window", f"--max_model_len={SIZE}", f"--stride={STRIDE}")


def windows_of(words: list[str], room: int) -> list[str]:
    """The texts of windows of ``room`` words."""
    starts = range(0, len(words) - STRIDE, room - STRIDE)
    return [" ".join(words[start : start + room]) for start in starts]


def scores(service: Service, texts: list[str], **parameters: Any) -> list[float]:
    """The logits of texts, in their order."""
    instance = {"query": QUERY, "texts": texts}
    [answer] = service.predict([instance], {"raw_scores": True, **parameters})
    return [one["score"] for one in sorted(answer, key=lambda one: int(one["index"]))]


def test_a_document_has_the_score_of_its_best_or_mean_window(serve: Serve) -> None:
    service = serve("cross", "v2", *WINDOWS)
    room = SIZE - 3 - len(QUERY.replace("?", " ?").split())
    parts = scores(service, windows_of(WORDS, room))
    assert len(parts) > 1 and max(parts) - min(parts) > 1e-3
    document = [" ".join(WORDS), "short"]
    assert scores(service, document)[0] == pytest.approx(max(parts), abs=TOLERANCE)
    assert scores(service, document, window_score="mean")[0] == pytest.approx(np.mean(parts), abs=TOLERANCE)
    for count in (1, 2):
        found = scores(service, document, max_chunks_per_doc=count, window_score="mean")
        assert found[0] == pytest.approx(np.mean(parts[:count]), abs=TOLERANCE)
    backwards = scores(service, document, max_chunks_per_doc=1, truncation_side="left")
    assert backwards[0] == pytest.approx(scores(service, [" ".join(WORDS[-room:])])[0], abs=TOLERANCE)
    refused(service, [{"query": QUERY * 9, "texts": ["a"]}], {}, "first one leaves room for the second in 24 tokens")


def test_a_pair_is_cut_as_the_client_could_cut_it(serve: Serve) -> None:
    service = serve("cross")
    text = " ".join(WORDS)
    for most, kept in ((5, WORDS[:5]), (100, WORDS)):
        expected = scores(service, [" ".join(kept)])
        assert scores(service, [text], max_tokens_per_doc=most) == pytest.approx(expected, abs=TOLERANCE)
    query = len(QUERY.replace("?", " ?").split())
    for side, kept in (("left", WORDS[-4:]), ("right", WORDS[:4])):
        found = scores(service, [text], max_tokens=query + 7, truncate_document=True, truncation_side=side)
        assert found == pytest.approx(scores(service, [" ".join(kept)]), abs=TOLERANCE)
    [cut] = service.predict([{"query": QUERY, "texts": [text]}], {"max_tokens_per_query": 1, "raw_scores": True})
    [expected] = service.predict([{"query": QUERY.split()[0], "texts": [text]}], {"raw_scores": True})
    assert cut[0]["score"] == pytest.approx(expected[0]["score"], abs=TOLERANCE)


def test_classifiers_read_windows(serve: Serve) -> None:
    parameters = {"return_raw_logits": True}
    service = serve("sentiment", "v2", *WINDOWS)
    rows = np.array([[*result.values()] for result in service.predict(windows_of(WORDS, SIZE - 2), parameters)])
    found = (service.predict([" ".join(WORDS)], {**parameters, "window_score": way}) for way in ("max", "mean"))
    [best], [mean] = found
    certain = np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1).argmin()
    assert [*best.values()] == pytest.approx(rows[certain], abs=TOLERANCE)
    assert [*mean.values()] == pytest.approx(rows.mean(axis=0), abs=TOLERANCE)
    service = serve("nli", "v2", *WINDOWS)
    labels, template = ["sofa", "city"], "the {}"
    wanted = {"candidate_labels": labels, "hypothesis_template": template, "multi_label": True}
    together = service.predict([" ".join(WORDS)], wanted)[0]
    parts = service.predict(windows_of(WORDS, SIZE - 3 - 2), wanted)
    for label, score in zip(together["labels"], together["scores"], strict=True):
        each = [result["scores"][result["labels"].index(label)] for result in parts]
        assert score == pytest.approx(max(each), abs=TOLERANCE)


def test_late_chunks_are_means_of_the_vectors_of_one_pass(serve: Serve) -> None:
    chunks = ["The cat sleeps on the sofa.", "It is in the sun", "they cook dinner."]
    text = " ".join(chunks)
    features = serve("minibert_mean", "v2", "--task=feature_extraction")
    rows = np.array(features.predict([text])[0][0])
    counts = [len(features.predict([chunk])[0][0]) - 2 for chunk in chunks]
    edges = np.cumsum([1, *counts])
    assert edges[-1] == len(rows) - 1
    expected = np.stack([rows[start:end].mean(axis=0) for start, end in pairwise(edges)])
    service = serve("minibert_mean")
    found, same = service.predict(
        [{"chunks": chunks}, {"text": text, "spans": [[0, 27], [28, 44], [45, 62]]}], {"normalize": False}
    )
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    np.testing.assert_allclose(same, expected, atol=TOLERANCE)
    units = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    alone, [with_others, plain] = service.predict([{"chunks": chunks}]), service.predict([{"chunks": chunks}, "a cat"])
    np.testing.assert_allclose(alone[0], units, atol=TOLERANCE)
    np.testing.assert_allclose(with_others, units, atol=TOLERANCE)
    assert np.shape(plain) == (48,)
    refused(service, [{"chunks": ["a " * 300, "b"]}], {}, "instances[0].chunks[1]...not cut off")
    windows = serve("minibert_mean", "v2", "--on_overflow=window", "--stride=0")
    assert np.shape(windows.predict([{"chunks": ["a " * 300, "b"]}])[0]) == (2, 48)
    refused(serve("minibert_pooled"), [{"chunks": chunks}], {}, "instances[0]")
