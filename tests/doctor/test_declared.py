"""What flags, files and a model's configuration say together, without a predictor."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from hf_transformer.commands.doctor.at_start import StartDiagnosis
from hf_transformer.commands.doctor.declared import declared
from hf_transformer.commands.doctor.findings import Finding
from hf_transformer.config.options import parse_config
from hf_transformer.model_parts import load_parts
from hf_transformer.model_wiring import fit_task
from hf_transformer.pair import BoundPair, Pair
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types import Json, ModelSpec, TensorSpec
from tests.triton_repository import DEMO_MODEL

IDS, MASK = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,))
LOGITS = TensorSpec("logits", "FP32", (-1, 1024))
GOOD = ModelSpec("bert", "1", (IDS, MASK), (LOGITS,), 8, dynamic_batching=True)


def pair_of(spec: ModelSpec, *flags: str, **model_config: Json) -> BoundPair:
    """The demo's files and a model, with other values in config.json."""
    config, _ = parse_config([f"--model_dir={DEMO_MODEL}", "--predictor_host=triton:8000", *flags], {})
    parts = load_parts(config)
    task = FillMask(replace(parts.task.settings, model_config={**parts.task.settings.model_config, **model_config}))
    reader, binding = fit_task(config, task, spec)
    return BoundPair(config, parts.tokenizer, reader, spec, binding)


def shaped(spec: ModelSpec, *leading: int, length: int = -1) -> ModelSpec:
    """The spec with more axes in front, and this sequence length."""
    inputs = tuple(replace(one, shape=(*leading, length)) for one in spec.inputs)
    outputs = tuple(replace(one, shape=(*leading, length, 1024)) for one in spec.outputs)
    return replace(spec, inputs=inputs, outputs=outputs)


def bad(pair: Pair) -> dict[str, Finding]:
    return {name: finding for name, finding in declared(pair) if finding.status == "warning"}


def said(pair: Pair) -> dict[str, str]:
    return {name: finding.found for name, finding in declared(pair)}


def test_a_good_pair() -> None:
    pair = pair_of(GOOD)
    assert bad(pair) == {}
    assert said(pair)["instances"] == "1 of the model, and up to 2 batches in flight"


def test_a_fixed_number_of_rows() -> None:
    found = bad(pair_of(replace(shaped(GOOD, 4), max_batch_size=0)))
    assert "the dims say 4 rows" in found["batch size"].found


def test_a_predictor_that_tells_nothing_of_batches() -> None:
    pair = pair_of(replace(shaped(GOOD, -1), max_batch_size=None))
    assert bad(pair) == {}
    assert "does not tell max_batch_size" in said(pair)["batch size"]
    assert said(pair)["dynamic batching"] == "the predictor does not tell"


@pytest.mark.parametrize(("size", "says"), [(1, "one text at a time"), (7, "which is small")])
def test_small_batches(size: int, says: str) -> None:
    assert says in bad(pair_of(replace(GOOD, max_batch_size=size)))["batch size"].found


def test_padding_that_the_model_sees() -> None:
    found = bad(pair_of(replace(shaped(GOOD, length=128), inputs=(TensorSpec("input_ids", "INT64", (128,)),))))
    assert list(found) == ["attention mask"]
    assert "takes the padding for text" in found["attention mask"].found


def test_no_mask_is_needed_for_one_text_at_a_time() -> None:
    found = bad(pair_of(replace(GOOD, inputs=(IDS,), max_batch_size=1)))
    assert list(found) == ["batch size"]


def test_a_fixed_length_above_the_tokenizers() -> None:
    pair = pair_of(shaped(GOOD, length=512))
    assert bad(pair) == {}
    assert said(pair)["text length"] == (
        "texts are cut at 128 tokens, padded to the 512 that the model always takes (config.json allows 128)"
    )


def test_a_decoupled_model_batches_by_itself() -> None:
    pair = pair_of(GOOD)
    other = Pair(pair.config, pair.tokenizer, pair.task, replace(GOOD, decoupled=True, dynamic_batching=False))
    assert list(said(other)) == ["dynamic batching", "instances", "vocabulary", "padding token"]
    assert bad(other) == {}


@pytest.mark.parametrize(
    ("declares", "says"),
    [
        (1023, "1024 tokens, more than config.json's vocab_size 1023"),
        (1200, "1024 tokens, far fewer than config.json's vocab_size 1200"),
    ],
)
def test_a_tokenizer_of_another_model(declares: int, says: str) -> None:
    pair = pair_of(replace(GOOD, outputs=(TensorSpec("logits", "FP32", (-1, 1200)),)), vocab_size=declares)
    assert says in bad(pair)["vocabulary"].found


def test_a_config_that_says_little() -> None:
    pair = pair_of(GOOD, vocab_size=None, pad_token_id=None, max_position_embeddings=None)
    assert bad(pair) == {}
    assert "config.json names no vocab_size" in said(pair)["vocabulary"]
    assert said(pair)["padding token"] == "config.json names none; id 0 is used"
    assert "config.json names no limit" in said(pair)["text length"]


async def test_each_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    diagnosis = StartDiagnosis()
    with caplog.at_level(logging.WARNING):
        diagnosis.look_soon(pair_of(replace(GOOD, dynamic_batching=False)))
        assert caplog.messages == []  # what is waiting comes first
        await asyncio.sleep(0)
        diagnosis.look_soon(pair_of(replace(GOOD, dynamic_batching=False)))
        diagnosis.look_soon(pair_of(replace(GOOD, dynamic_batching=False, max_batch_size=2)))
        await asyncio.sleep(0)
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        "model 'bert': dynamic batching: off: Triton merges no requests, so batches of several workers or services run "
        "one after the other",
        "model 'bert': batch size: max_batch_size is 2, which is small",
    ]
