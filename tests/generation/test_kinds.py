"""Which kind of generative model it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.generation.kinds import choose_kind, make_generator
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import ModelSpec
from tests.generation.scripted_models import ScriptedModel, model, settings, spec

IDS = spec("input_ids", "INT64", -1)
TEXT = spec("text_input", "BYTES")
TOKENS = model((IDS, spec("input_lengths"), spec("request_output_len")), (spec("output_ids", "INT32", -1, -1),))
VLLM = model((TEXT, spec("stream", "BOOL", optional=True)), (spec("text_output", "BYTES", -1),), batch=0)
TUTORIAL = model((TEXT,), (spec("text", "BYTES", -1),), decoupled=False, batch=0)
LOGITS = model((IDS, spec("attention_mask", "INT64", -1)), (spec("logits", "FP32", -1, 100),), decoupled=False)
POSITIONAL = model((spec("INPUT__0", "INT64", -1),), (spec("OUTPUT__0", "FP32", -1, 100),), decoupled=False)
CACHED = model(
    (IDS, spec("past_key_values.0.key", "FP32", 4, -1, 8)),
    (spec("logits", "FP32", -1, 100), spec("present.0.key", "FP32", 4, -1, 8)),
    decoupled=False,
)
BOTH = model((IDS, TEXT), (spec("output_ids", "INT32", -1), spec("text_output", "BYTES")))
IMAGES = model((spec("image", "UINT8", -1, -1, 3),), (spec("label", "BYTES"),), decoupled=False)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (TOKENS, "tokens"),
        (VLLM, "text"),
        (TUTORIAL, "text"),
        (LOGITS, "logits"),
        (POSITIONAL, "logits"),
        (CACHED, "logits"),
        (BOTH, "tokens"),
    ],
    ids=["TensorRT-LLM", "vLLM", "tutorial", "logits", "positional", "cached", "tokens and text"],
)
def test_kinds(found: ModelSpec, kind: str) -> None:
    assert choose_kind(found, settings()) == kind


def test_the_flag_decides() -> None:
    assert choose_kind(BOTH, settings(interface="text")) == "text"
    assert choose_kind(IMAGES, settings(interface="tokens")) == "tokens"


def test_texts_with_other_names() -> None:
    found = model((spec("prompt", "BYTES"),), (spec("answer", "BYTES"),))
    assert choose_kind(found, settings(input_names=("prompt",), output_names=("answer",))) == "text"
    with pytest.raises(ContractError):
        choose_kind(found, settings(input_names=("prompt",)))


@pytest.mark.parametrize(
    "found", [IMAGES, model((), ()), model((TEXT,), (spec("score", "FP32"),))], ids=["1", "2", "3"]
)
def test_none_of_them(found: ModelSpec) -> None:
    with pytest.raises(ContractError, match=r"are of no kind of generative model.*--generation_interface") as caught:
        choose_kind(found, settings())
    for one in (*found.inputs, *found.outputs):
        assert f"{one.name} ({one.datatype})" in str(caught.value)


@pytest.mark.parametrize(
    ("found", "more", "kind"),
    [
        (TOKENS, {}, "tokens"),
        (VLLM, {}, "text"),
        (BOTH, {"interface": "text"}, "It requires the input 'input_ids'"),
        (LOGITS, {"interface": "tokens"}, "A token model has the inputs input_ids and request_output_len"),
        (LOGITS, {"interface": "text"}, "A text model has the input text_input"),
    ],
    ids=["tokens", "text", "forced, with too much", "not tokens", "not text"],
)
async def test_making_one(
    found: ModelSpec, more: dict[str, Any], kind: str, gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    def make() -> str:
        made = make_generator(found, ScriptedModel(), gpt2, settings(**more), executor=executor, metrics=Metrics("m"))
        return made.kind

    if kind in ("tokens", "text"):
        assert make() == kind
    else:
        with pytest.raises(ContractError, match=kind):
            make()
