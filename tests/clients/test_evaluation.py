"""lm-evaluation-harness: its likelihoods are those that Triton's logits give."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from hf_transformer.commands.local_triton import LocalTriton
from tests.clients.conftest import Run
from tests.integration.conftest import Serve
from tests.support.triton_repository import task_model_folder

MODEL = "gpt2_logits"
CAPITALS = {"france": "paris.", "italy": "rome.", "japan": "tokyo.", "peru": "lima.", "norway": "oslo."}
QUESTIONS = [
    {"question": f"The capital of {country} is", "choices": list(CAPITALS.values()), "answer": number}
    for number, country in enumerate(CAPITALS)
]
TEXTS = ["The capital of france is paris.", "日本 🇴 naïve", "A flag. " * 40]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "token ids": (MODEL, {}),
    "batches, side by side": (MODEL, {"batch_size": 7, "num_concurrent": 3}),
    "texts": (MODEL, {"batch_size": 4, "tokenized_requests": False}),
    "a cache": ("gpt2_past", {"batch_size": 7, "num_concurrent": 3}),
}


class Likelihood:
    """What Triton's model says, asked without the service."""

    def __init__(self, triton: LocalTriton) -> None:
        self._url = f"http://{triton.http_address}/v2/models/{MODEL}/infer"
        self.tokenizer = Tokenizer.from_file(str(task_model_folder(MODEL) / "tokenizer.json"))

    def of(self, context: list[Any], continuation: list[int]) -> tuple[float, bool]:
        """The log likelihood of a continuation, and whether each of its tokens is the likeliest."""
        ids = [*context, *continuation]
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": data}
            for name, data in (("input_ids", ids), ("attention_mask", [1] * len(ids)))
        ]
        [output] = httpx.post(self._url, json={"inputs": inputs}, trust_env=False).raise_for_status().json()["outputs"]
        logits = np.array(output["data"]).reshape(len(ids), -1)[len(context) - 1 : -1]
        shifted = logits - logits.max(axis=1, keepdims=True)
        scores = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        chosen = scores[np.arange(len(continuation)), continuation]
        return float(chosen.sum()), bool((logits.argmax(axis=1) == continuation).all())

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found


@pytest.mark.parametrize("way", WAYS)
def test_lm_evaluation_harness(client: Run, serve: Serve, triton: LocalTriton, way: str) -> None:
    model, options = WAYS[way]
    service, likelihood = serve(model), Likelihood(triton)
    serve.load(MODEL)
    end = likelihood.tokenizer.token_to_id("<|endoftext|>")
    task = {"tokenizer": str(task_model_folder(MODEL)), "questions": QUESTIONS, "texts": TEXTS, "options": options}
    results = client("lm_evaluation", service=service, **task)
    assert results["accuracy"] == 1.0 and len(results["answers"]) == len(CAPITALS) ** 2
    for (context, continuation), value, is_greedy in results["answers"]:
        start = likelihood.ids(context)
        expected, greedy = likelihood.of(start, likelihood.ids(context + continuation)[len(start) :])
        assert value == pytest.approx(expected, abs=1e-3), (context, continuation)
        assert is_greedy is greedy, (context, continuation)
    assert sum(is_greedy for *_, is_greedy in results["answers"]) == len(CAPITALS)
    assert [text for text, _ in results["texts"]] == TEXTS
    for text, value in results["texts"]:
        assert value == pytest.approx(likelihood.of([end], likelihood.ids(text))[0], abs=1e-3), text
