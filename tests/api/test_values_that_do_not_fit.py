"""Parameters that are right in themselves and that the model's own datatypes can't hold, through each API."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.types import ModelSpec
from tests.api.declared import declared
from tests.api.generating import PROMPT, post
from tests.generation.scripted_models import ids, model, spec, text

pytestmark = pytest.mark.asyncio

OUTPUTS = (spec("output_ids", "INT32", -1, -1), spec("sequence_length", "INT32", -1))
TOKENS = (
    spec("input_ids", "INT32", -1),
    spec("input_lengths"),
    spec("request_output_len", "INT8"),
    spec("min_length", "UINT8", optional=True),
    spec("seed", "INT8", optional=True),
    spec("top_k", "UINT8", optional=True),
)
TEXTS = (spec("text_input", "BYTES"), spec("max_tokens", "INT8"), spec("min_tokens", "UINT8", optional=True))
MODELS = {
    "tokens": (model(TOKENS, OUTPUTS), ids(5, 2)),
    "text, whole": (model(TEXTS, [spec("text_output", "BYTES")], decoupled=False), text("paris")),
}
PREDICT, GENERATE = "/v1/models/gpt2:predict", "/v2/models/gpt2/generate"
COMPLETIONS, CHAT = "/openai/v1/completions", "/openai/v1/chat/completions"
INFER = "/v2/models/gpt2/infer"
MESSAGES = [{"role": "user", "content": "hello"}]
TENSOR = {"name": "instances", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}


@pytest.mark.parametrize(("found", "answer"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (PREDICT, {"instances": [PROMPT], "parameters": {"max_new_tokens": 200, "stream": True}}, "parameters.max_new"),
        (INFER, {"inputs": [TENSOR], "parameters": {"max_new_tokens": 128}}, "parameters.max_new_tokens"),
        (GENERATE, {"text_input": PROMPT, "max_tokens": 128}, "max_tokens"),
        (f"{GENERATE}_stream", {"text_input": PROMPT, "max_tokens": 128}, "max_tokens"),
        (COMPLETIONS, {"model": "gpt2", "prompt": PROMPT, "max_tokens": 128}, "max_tokens"),
        (COMPLETIONS, {"model": "gpt2", "prompt": PROMPT, "max_tokens": 128, "n": 2, "stream": True}, "max_tokens"),
        (CHAT, {"model": "gpt2", "messages": MESSAGES, "max_completion_tokens": 128}, "max_completion_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_too_many_tokens_are_the_client_s_fault(
    found: ModelSpec, answer: Any, path: str, body: dict[str, Any], name: str
) -> None:
    async with declared(found, answer) as made:
        status, said = await post(made, path, body)
        assert status == 400, said
        message = said["error"]["message"] if "openai" in path else said["error"]
        assert message.startswith(name), message
        assert "is INT8, which can't hold" in message and message.endswith("expected at most 127")


@pytest.mark.parametrize(("found", "answer"), MODELS.values(), ids=MODELS)
async def test_who_asks_for_no_number_gets_what_there_can_be(found: ModelSpec, answer: Any) -> None:
    """The model's length leaves more than its input can say."""
    async with declared(found, answer) as made:
        status, _ = await post(made, CHAT, {"model": "gpt2", "messages": MESSAGES})
        assert status == 200
        sent = made.called.sent()
        assert (sent.get("request_output_len") or sent["max_tokens"]) == [[127]]


async def test_seeds_and_top_k_always_fit() -> None:
    found, answer = MODELS["tokens"]
    async with declared(found, answer) as made:
        for seed in (-1, 2**31, 2**63, -(2**63), 2**63 - 1, 2**64 - 1):
            fields = {"seed": seed, "top_k": 2**64 - 1, "n": 2}
            status, said = await post(made, COMPLETIONS, {"model": "gpt2", "prompt": PROMPT, **fields})
            assert status == 200, said
            assert made.called.sent()["seed"] == [[(seed + 1) % 128]], "that of the second text"
            assert made.called.sent()["top_k"] == [[255]]
