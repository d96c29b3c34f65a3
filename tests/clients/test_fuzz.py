"""A million damaged bodies through each codec: no errors but ours, and no memory that the body does not justify.

Damaged bodies to each route of services for all tasks: none is answered as a fault of the service.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.route_fuzzing import Outcome, fuzz_grpc, fuzz_http
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request
from tests.protocol.fuzzing import GrpcBodies, RestBodies
from tests.support.service import Service

BODIES = 1_000_000
ROUTE_BODIES = int(os.environ.get("HF_TRANSFORMER_FUZZED_BODIES", "60"))
"""Bodies for each route of each service; a search for new faults sends more."""
ROUTE_SEED = int(os.environ.get("HF_TRANSFORMER_FUZZ_SEED", "1"))
MIN_ROUTES = 40
GENERATES = ("--max_new_tokens=4", "--max_sequences=8")
SERVED = {
    "fill_mask": ("bert", "v2"),
    "token_classification": ("ner", "grpc-v2"),
    "question_answering": ("squad", "v2"),
    "sequence_classification": ("sentiment", "grpc-v2"),
    "zero_shot_classification": ("nli", "v2"),
    "text_embedding": ("minibert_mean", "v2", "--enable_token_inputs"),
    "representations": ("m3", "v2"),
    "late_interaction": ("colbert", "v2"),
    "rerank": ("cross", "grpc-v2"),
    "logits": ("gpt2_logits", "v2", *GENERATES),
    "tokens": ("gpt2_tokens", "grpc-v2", "--enable_structured_output", *GENERATES),
    "text": ("gpt2_vllm", "grpc-v2", *GENERATES),
    "text2text_generation": ("t5_logits", "v2", *GENERATES),
}
"""Model, protocol and flags."""


@pytest.mark.parametrize("fuzz", [RestBodies().fuzz, GrpcBodies().fuzz], ids=["rest", "grpc"])
def test_a_million_mutated_bodies(fuzz: Callable[..., int]) -> None:
    fuzz(BODIES, seed=1)


def assert_no_faults(service: Service, outcomes: dict[str, Outcome]) -> None:
    faults = [fault for outcome in outcomes.values() for fault in outcome.faults]
    trace = service.log.partition("Traceback")[2][:5000]
    assert not faults and not trace, f"{len(faults)} faults:\n" + "\n".join(faults[:20]) + trace


@pytest.mark.parametrize("served", SERVED)
def test_no_route_answers_a_body_with_a_fault(serve: Serve, served: str) -> None:
    service = serve(*SERVED[served])
    outcomes = fuzz_http(service, ROUTE_BODIES, ROUTE_SEED)
    assert_no_faults(service, outcomes)
    assert len(outcomes) >= MIN_ROUTES and all(sum(one.statuses.values()) == ROUTE_BODIES for one in outcomes.values())
    assert any("200" in one.statuses for one in outcomes.values())


@pytest.mark.parametrize("served", SERVED)
def test_no_grpc_method_answers_a_message_with_a_fault(serve: Serve, served: str) -> None:
    service = serve(*SERVED[served])
    inputs: list[dict[str, Any]] = [
        {"text": ["The capital of France is [MASK]."]},
        {"question": ["Who?"], "context": ["I am Ann."]},
    ]
    inputs += [{"query": ["rain"], "texts": [["rain", "sun"]]}, {"text_input": ["Hello"]}, {"prompt": ["Hello"]}]
    valid = [request(service.model, one, parameters={"max_tokens": 2}) for one in inputs]
    assert_no_faults(service, fuzz_grpc(service, valid, ROUTE_BODIES, ROUTE_SEED))
