"""What a model that generates is built from: the flags, and what is kept when it is bound anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from hf_transformer.config.options import Config
from hf_transformer.core.contract import ContractError
from hf_transformer.core.queue import BatchLimits
from hf_transformer.generation.logits_batches import StepForm
from hf_transformer.generation.logits_model import LogitsGenerator
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.model_parts import load_parts
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ModelSpec, TensorSpec
from tests.configuring import config
from tests.generation.scripted_models import ScriptedModel, model, spec
from tests.generation.tiny_model import Form, TinyPredictor
from tests.triton_repository import DEMO_MODELS

VOCABULARY = 50_257
INPUTS = tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask", "position_ids"))
LOGITS = TensorSpec("logits", "FP32", (-1, VOCABULARY))
PARTS = [f"{layer}.{part}" for layer in range(12) for part in ("key", "value")]
PAST = tuple(TensorSpec(f"past_key_values.{part}", "FP32", (12, -1, 64)) for part in PARTS)
PRESENT = tuple(TensorSpec(f"present.{part}", "FP32", (12, -1, 64)) for part in PARTS)
PLAIN = ModelSpec("m", "1", INPUTS, (LOGITS,), 64)
CACHED = ModelSpec("m", "1", (*INPUTS, *PAST), (LOGITS, *PRESENT), 64)
"""GPT-2 as optimum exports it, in the size in which it was published."""


def options(*flags: str) -> Config:
    return config(f"--model_dir={DEMO_MODELS / 'gpt2'}", "--model_name=m", "--task=text_generation", *flags)


def generators(settings: Config, *specs: ModelSpec) -> list[LogitsGenerator]:
    """One after the other, as a model is bound anew."""
    found = []
    with ThreadPoolExecutor(1) as executor:
        build = pipeline_builder(settings, load_parts(settings), TinyPredictor(Form()), Metrics("m"), executor)
        for spec in specs:
            made = build(spec)
            assert isinstance(made, GenerationPipeline) and isinstance(made._generator, LogitsGenerator)
            found.append(made._generator)
    return found


def limits(made: LogitsGenerator, width: int) -> BatchLimits:
    """Those of texts of so many tokens, which have begun where there is a cache."""
    form = made._scheduler._form
    assert isinstance(form, StepForm)
    cache = SimpleNamespace(length=width) if form._binding.caches else None
    return form.limits(SimpleNamespace(tokens=np.zeros(width + 1), source=np.zeros(0), cache=cache))


@pytest.mark.asyncio
@pytest.mark.parametrize(("spec", "width"), [(CACHED, 200), (PLAIN, 80)], ids=["cache", "plain"])
async def test_sixteen_texts_of_a_real_model_step_together(spec: ModelSpec, width: int) -> None:
    [made] = generators(options(), spec)
    assert limits(made, width).allow(16, width, 16 * width)
    [made] = generators(options(f"--max_batch_output_bytes={2**24}"), spec)
    assert not limits(made, width).allow(16, width, 16 * width)
    [made] = generators(options(f"--max_predictor_response_bytes={2**24}"), spec)
    assert not limits(made, width).allow(16, width, 16 * width)


@pytest.mark.asyncio
async def test_a_model_that_is_bound_anew_keeps_its_places_and_the_room_for_caches() -> None:
    old, new = generators(options("--max_cache_bytes=1000000"), CACHED, PLAIN)
    assert old._scheduler._limit is new._scheduler._limit
    assert old._scheduler._limit.count == 1, "one for each of the model's instances"
    assert old._budget is new._budget


TUTORIAL = model((spec("text_input", "BYTES"),), (spec("text_output", "BYTES", -1),), decoupled=False, batch=0)
"""A text model that takes nothing but the text."""


def drawing(*names: str) -> ModelSpec:
    """A text model that takes these too."""
    inputs = [spec(name, "INT32" if name == "top_k" else "FP32", optional=True) for name in names]
    return model((*TUTORIAL.inputs, *inputs), TUTORIAL.outputs, decoupled=False, batch=0)


def bound(found: ModelSpec, *flags: str) -> object:
    settings = options(*flags)
    with ThreadPoolExecutor(1) as executor:
        return pipeline_builder(settings, load_parts(settings), ScriptedModel(), Metrics("m"), executor)(found)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("found", "flags", "problems"),
    [
        (
            TUTORIAL,
            ("--do_sample=true",),
            [
                "--do_sample=true with --top_k=50: this model is a text model without an input runtime_top_k or top_k, "
                "so it can't be told; set --do_sample=false, or --top_k=0."
            ],
        ),
        (TUTORIAL, ("--do_sample=true", "--top_p=0.9", "--temperature=2"), ["temperature=2", "top_k=50", "top_p=0.9"]),
        (drawing("temperature", "top_p"), ("--do_sample=true",), ["--top_k=50"]),
    ],
    ids=["do_sample", "all", "top_k is missing"],
)
async def test_defaults_of_sampling_that_the_model_can_not_be_told(
    found: ModelSpec, flags: tuple[str, ...], problems: list[str]
) -> None:
    with pytest.raises(ContractError) as caught:
        bound(found, *flags)
    assert len(caught.value.problems) == len(problems)
    assert all(part in problem for part, problem in zip(problems, caught.value.problems, strict=True))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("found", "flags"),
    [
        (TUTORIAL, ()),
        (TUTORIAL, ("--temperature=0.7", "--top_k=40")),
        (TUTORIAL, ("--do_sample=true", "--top_k=0")),
        (TUTORIAL, ("--do_sample=true", "--temperature=0")),
        (drawing("temperature", "top_k", "top_p"), ("--do_sample=true", "--temperature=0.7", "--top_p=0.9")),
        (PLAIN, ("--do_sample=true", "--temperature=0.7")),
    ],
    ids=["nothing", "without sampling", "neutral", "the likeliest", "all", "logits"],
)
async def test_defaults_of_sampling_that_it_can(found: ModelSpec, flags: tuple[str, ...]) -> None:
    assert isinstance(bound(found, *flags), GenerationPipeline)
