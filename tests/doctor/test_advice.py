"""What the model's files and configuration could do better, without a predictor."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from hf_transformer.app.wiring import BoundPair, Pair, fit_task, load_parts
from hf_transformer.commands.doctor.advice import ADVICE, StartAdvice
from hf_transformer.config.options import parse_config
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types import Json, ModelSpec, TensorSpec
from tests.triton_repository import DEMO_MODEL

IDS, MASK = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,))
LOGITS = TensorSpec("logits", "FP32", (-1, 1024))
GOOD = ModelSpec("bert", "1", (IDS, MASK), (LOGITS,), 8, dynamic_batching=True)
LARGER = replace(GOOD, outputs=(TensorSpec("logits", "FP32", (-1, 1200)),))


def pair_of(spec: ModelSpec, *flags: str, **model_config: Json) -> BoundPair:
    """The demo's files and a model, with other values in config.json."""
    config, _ = parse_config([f"--model_dir={DEMO_MODEL}", "--predictor_host=triton:8000", *flags], {})
    parts = load_parts(config)
    task = FillMask(replace(parts.task.settings, model_config={**parts.task.settings.model_config, **model_config}))
    reader, signature = fit_task(config, task, spec)
    return BoundPair(config, parts.tokenizer, reader, spec, signature)


def shaped(spec: ModelSpec, *leading: int, length: int = -1) -> ModelSpec:
    """The spec with more axes in front, and this sequence length."""
    inputs = tuple(replace(one, shape=(*leading, length)) for one in spec.inputs)
    outputs = tuple(replace(one, shape=(*leading, length, 1024)) for one in spec.outputs)
    return replace(spec, inputs=inputs, outputs=outputs)


def said(pair: Pair, *statuses: str) -> dict[str, str]:
    """What the checks find, by name, of those with one of these statuses."""
    return {name: one.found for name, check in ADVICE for one in check(pair) if one.status in statuses}


ONE = replace(GOOD, inputs=(IDS,), max_batch_size=1)
BLIND = shaped(replace(GOOD, inputs=(IDS,)), length=128)


@pytest.mark.parametrize(
    ("spec", "vocab_size", "name", "says"),
    [
        pytest.param(replace(shaped(GOOD, 4), max_batch_size=0), 1024, "batch size", "the dims say 4 rows", id="rows"),
        pytest.param(ONE, 1024, "batch size", "one text at a time", id="no mask is needed for one text"),
        pytest.param(BLIND, 1024, "attention mask", "takes the padding for text", id="visible padding"),
        pytest.param(LARGER, 1200, "vocabulary", "far fewer than config.json's vocab_size 1200", id="other tokenizer"),
    ],
)
def test_a_warning(spec: ModelSpec, vocab_size: int, name: str, says: str) -> None:
    found = said(pair_of(spec, vocab_size=vocab_size), "warning")
    assert list(found) == [name]
    assert says in found[name]


LITTLE: dict[str, Json] = {"vocab_size": None, "pad_token_id": None, "max_position_embeddings": None}


@pytest.mark.parametrize(
    ("spec", "changes", "name", "says"),
    [
        (GOOD, {}, "instances", "1 of the model, and up to 2 batches in flight"),
        (replace(shaped(GOOD, -1), max_batch_size=None), {}, "batch size", "batches of up to 32 are sent"),
        (replace(shaped(GOOD, -1), max_batch_size=None), {}, "dynamic batching", "the predictor does not tell"),
        (shaped(GOOD, length=512), {}, "text length", "128 tokens, padded to the 512 that the model always takes"),
        (GOOD, LITTLE, "vocabulary", "config.json names no vocab_size; the tokenizer has 1024 tokens"),
        (GOOD, LITTLE, "padding token", "config.json names none; id 0 is used"),
        (GOOD, LITTLE, "text length", "texts are cut at 128 tokens (config.json names no limit)"),
    ],
)
def test_no_warning(spec: ModelSpec, changes: dict[str, Json], name: str, says: str) -> None:
    pair = pair_of(spec, **changes)
    assert said(pair, "warning") == {}
    assert says in said(pair, "ok", "skipped")[name]


def test_a_model_that_generates_and_is_decoupled() -> None:
    pair = pair_of(GOOD)
    other = Pair(pair.config, pair.tokenizer, pair.task, replace(GOOD, decoupled=True, dynamic_batching=False))
    skipped = ["batch size", "attention mask", "text length", "dynamic batching"]
    assert list(said(other, "skipped")) == skipped
    assert said(other, "warning") == {}


async def test_each_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    advice, slow = StartAdvice(), replace(GOOD, dynamic_batching=False)
    with caplog.at_level(logging.WARNING):
        advice(pair_of(slow))
        assert caplog.messages == []  # requests that wait come first
        await asyncio.sleep(0)
        advice(pair_of(slow))
        advice(pair_of(replace(slow, max_batch_size=2)))
        await asyncio.sleep(0)
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        "model 'bert': dynamic batching: off: Triton merges no requests, so batches of several workers or services run "
        "one after the other",
        "model 'bert': batch size: max_batch_size is 2, which is small",
    ]
