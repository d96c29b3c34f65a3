"""Dense, sparse and multi-vector embeddings of a text: the libraries' answers, from one pass of the model."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve, goldens, refused
from tests.support.service import Service

TOLERANCE = 1e-5
ALL = ["dense", "sparse", "multi_vector"]


def cases_of(model: str) -> list[Any]:
    cases = [case for case in goldens("sparse_and_token_vectors")["cases"] if case["model"] == model]
    assert len(cases) >= 15
    return cases


def assert_near(answer: Any, expected: Any) -> None:
    """A vector, vectors of tokens or a sparse vector: of the same size, each number within the tolerance.

    A weight below the tolerance may also be absent.
    """
    if isinstance(expected, dict):
        first, second = (dict(zip(one["indices"], one["values"], strict=True)) for one in (answer, expected))
        assert answer["indices"] == sorted(answer["indices"])
        assert all(abs(first.get(key, 0) - second.get(key, 0)) <= TOLERANCE for key in {*first, *second})
        return
    ours, theirs = np.array(answer), np.array(expected)
    assert ours.shape == theirs.shape and np.abs(ours - theirs).max() <= TOLERANCE


def check_goldens(service: Service, model: str) -> None:
    """All texts in one request, and each alone."""
    if model == "colbert":
        check_colbert(service)
        return
    cases = cases_of(model)
    wanted = [name for name in ALL if name in cases[0]]
    parameters = {"representations": wanted}
    together = service.predict([case["text"] for case in cases], parameters)
    alone = [service.predict([case["text"]], parameters)[0] for case in cases]
    for case, *answers in zip(cases, together, alone, strict=True):
        for answer in answers:
            assert list(answer) == wanted
            for name in wanted:
                if name in case:
                    assert_near(answer[name], case[name])


def check_colbert(service: Service) -> None:
    cases = cases_of("colbert")
    for kind in ("query", "document"):
        parameters = {"input_type": kind}
        together = service.predict([case["text"] for case in cases], parameters)
        alone = [service.predict([case["text"]], parameters)[0] for case in cases]
        for case, *answers in zip(cases, together, alone, strict=True):
            for answer in answers:
                assert np.array(answer).shape[1] == 80
                if kind in case:
                    assert_near(answer, case[kind])
                else:
                    assert_near(np.array(answer)[:, :16], case[f"{kind}_16"])


@pytest.mark.parametrize("model", ["splade", "m3", "colbert"])
def test_answers_are_the_libraries(serve: Serve, model: str, protocol: str) -> None:
    check_goldens(serve(model, protocol), model)


def counts(triton: LocalTriton, model: str) -> tuple[int, int]:
    """Texts and executions of a model since it was loaded."""
    url = f"http://{triton.http_address}/v2/models/{model}/stats"
    stats = httpx.get(url, timeout=10.0, trust_env=False, verify=False).raise_for_status().json()["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def test_three_representations_cost_one_pass(serve: Serve, triton: LocalTriton) -> None:
    service = serve("m3")
    text = cases_of("m3")[0]["text"]
    before = counts(triton, "m3")
    answer = service.predict([text], {"representations": ALL})[0]
    assert list(answer) == ALL and all(len(answer[name]) for name in ALL)
    after = counts(triton, "m3")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
    service.predict([text] * 5, {"representations": ALL})
    last = counts(triton, "m3")
    assert (last[0] - after[0], last[1] - after[1]) == (5, 1), "five texts of one length are one batch"


def test_a_text_without_weights_is_an_empty_sparse_vector(serve: Serve) -> None:
    for model in ("splade", "m3"):
        for parameters in ({}, {"normalize": True}, {"normalize": False}):
            texts = ["", "The cat sleeps on the sofa."]
            empty, other = serve(model).predict(texts, {"representations": "sparse", **parameters})
            assert empty == {"sparse": {"indices": [], "values": []}}
            assert other["sparse"]["indices"]


def test_representations_that_a_model_lacks_are_refused(serve: Serve) -> None:
    refused(serve("splade"), ["a"], {"representations": ["dense"]}, "parameters.representations...sparse")
    refused(serve("colbert"), ["a"], {"representations": ["sparse"]}, "parameters.representations...multi_vector")


def test_queries_have_32_vectors_and_documents_none_for_punctuation(serve: Serve) -> None:
    service = serve("colbert")
    queries = service.predict(["cat", "The cat sleeps on the sofa."], {"input_type": "query", "dimensions": 64})
    assert [np.array(vectors).shape for vectors in queries] == [(32, 64), (32, 64)]
    plain, marked = service.predict(["the cat", "the, cat!"], {"input_type": "document", "dimensions": 64})
    assert np.array(plain).shape == np.array(marked).shape == (5, 64)
