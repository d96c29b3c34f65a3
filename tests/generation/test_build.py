"""Construction of generators from the model's files, the flags and the predictor's description."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.app.loading import LoadedGenerativeModel, load_model
from hf_transformer.app.pipelines import PipelineBuilder
from hf_transformer.app.settings import scheduler_settings
from hf_transformer.config.options import Config
from hf_transformer.core.contract import ContractError
from hf_transformer.core.scheduler import MAX_STEP_OUTPUT_BYTES
from hf_transformer.errors import LoadError
from hf_transformer.generation.build import choose_interface, generator_settings, make_generator
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.logits_batch import StepBatchBuilder
from hf_transformer.generation.logits_sequence import LogitsSequence
from hf_transformer.generation.logits_signature import fit_logits
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GeneratorSettings, Prompt, Sampling
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from tests.api.generating import tokenizer_of
from tests.generation.scripted_models import ScriptedLLM, model, settings, spec
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODELS

FOLDER = DEMO_MODELS / "gpt2"


def read(folder: Path, model: dict[str, Any], generation: dict[str, Any] | None = None) -> GeneratorSettings:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return generator_settings(ModelFiles(folder, folder, model), tokenizer_of(), scheduling=settings().scheduling)


# The model's files

SEQ2SEQ = {"is_encoder_decoder": True}


@pytest.mark.parametrize(
    ("model", "generation", "eos", "pad", "start"),
    [
        ({"eos_token_id": 5, "pad_token_id": 6}, None, {5}, 6, ()),
        ({"eos_token_id": 5, "pad_token_id": 6}, {"eos_token_id": [7, 8]}, {7, 8}, 6, ()),
        ({"eos_token_id": 5}, {"eos_token_id": None, "pad_token_id": 9}, set(), 9, ()),
        ({"decoder_start_token_id": 0}, {}, set(), 0, ()),
        ({"eos_token_id": 2, "pad_token_id": -1}, None, {2}, 0, ()),
        (SEQ2SEQ | {"decoder_start_token_id": 0}, None, set(), 0, (0,)),
        (SEQ2SEQ | {"bos_token_id": 3}, None, set(), 0, (3,)),
        (SEQ2SEQ, {"decoder_start_token_id": 4, "forced_bos_token_id": 1}, set(), 0, (4, 1)),
    ],
    ids=["config", "several ends", "no end", "nothing", "no padding", "decoder", "its bos", "a forced one"],
)
def test_generation_config_overrides_the_token_ids_of_config(
    tmp_path: Path, model: Any, generation: Any, eos: set[int], pad: int, start: tuple[int, ...]
) -> None:
    found = read(tmp_path, model, generation)
    assert (set(found.eos_ids), found.pad_id, found.decoder_start_ids) == (eos, pad, start)


def test_an_invalid_token_id_is_a_load_error(tmp_path: Path) -> None:
    for name, value in (("eos_token_id", "</s>"), ("pad_token_id", 2**31)):
        with pytest.raises(LoadError, match=f"{name} in generation_config.json or .*: expected token ids, got"):
            read(tmp_path, {}, {name: value})
    with pytest.raises(LoadError, match="has no decoder_start_token_id"):
        read(tmp_path, SEQ2SEQ, {})


def test_the_architecture_selects_the_task(tmp_path: Path) -> None:
    flags = ["--temperature=0.5", "--max_new_tokens=9", "--chat_template={{ messages[0].content }}?"]
    parts = load_model(config(f"--model_dir={FOLDER}", *flags, MAX_LENGTH="40"))
    assert isinstance(parts, LoadedGenerativeModel) and parts.task.name == "text_generation"
    assert parts.chat_template is not None
    assert parts.chat_template.render([{"role": "user", "content": "Hi"}]) == "Hi?"
    generation = parts.task.settings.generation
    assert (generation.max_length, generation.temperature, generation.max_new_tokens) == (40, 0.5, 9)
    t5 = load_model(config(f"--model_dir={DEMO_MODELS / 't5'}"))
    assert isinstance(t5, LoadedGenerativeModel) and t5.task.name == "text2text_generation"
    assert t5.settings.decoder_start_ids


# The kind of a model

IDS = spec("input_ids", "INT64", -1)
TEXT = spec("text_input", "BYTES")
TOKENS = model((IDS, spec("input_lengths"), spec("request_output_len")), (spec("output_ids", "INT32", -1, -1),))
VLLM = model((TEXT, spec("stream", "BOOL", optional=True)), (spec("text_output", "BYTES", -1),), batch=0)
TUTORIAL = model((TEXT,), (spec("text", "BYTES", -1),), decoupled=False, batch=0)
LOGITS = model((IDS, spec("attention_mask", "INT64", -1)), (spec("logits", "FP32", -1, 100),), decoupled=False)
POSITIONAL = model((spec("INPUT__0", "INT64", -1),), (spec("OUTPUT__0", "FP32", -1, 100),), decoupled=False)
BOTH = model((IDS, TEXT), (spec("output_ids", "INT32", -1), spec("text_output", "BYTES")))
NAMED = model((spec("prompt", "BYTES"),), (spec("answer", "BYTES"),))
IMAGES = model((spec("image", "UINT8", -1, -1, 3),), (spec("label", "BYTES"),), decoupled=False)


@pytest.mark.parametrize(
    ("spec", "more", "interface"),
    [
        (TOKENS, {}, "tokens"),
        (VLLM, {}, "text"),
        (TUTORIAL, {}, "text"),
        (LOGITS, {}, "logits"),
        (POSITIONAL, {}, "logits"),
        (BOTH, {}, "tokens"),
        (BOTH, {"interface": "text"}, "text"),
        (NAMED, {"input_names": ("prompt",), "output_names": ("answer",)}, "text"),
    ],
    ids=["TensorRT-LLM", "vLLM", "tutorial", "logits", "positional", "tokens and text", "by the flag", "other names"],
)
def test_tensors_and_flags_select_the_interface(spec: ModelSpec, more: dict[str, Any], interface: str) -> None:
    assert choose_interface(spec, settings(**more)) == interface


@pytest.mark.parametrize(
    "spec", [IMAGES, model((), ()), model((TEXT,), (spec("score", "FP32"),)), NAMED], ids=["1", "2", "3", "4"]
)
def test_a_model_that_fits_no_interface_is_refused_with_its_tensors(spec: ModelSpec) -> None:
    with pytest.raises(ContractError, match=r"fit no interface of generative models.*--generation_interface") as caught:
        choose_interface(spec, settings())
    for tensor in (*spec.inputs, *spec.outputs):
        assert f"{tensor.name} ({tensor.datatype})" in str(caught.value)


@pytest.mark.parametrize(("spec", "kind"), [(TOKENS, "tokens"), (VLLM, "text")], ids=["tokens", "text"])
def test_pad_to_multiple_of_is_refused_for_token_and_text_models(
    spec: ModelSpec, kind: str, gpt2: Tokenizer, executor: ThreadPoolExecutor
) -> None:
    with pytest.raises(ContractError, match=f"--pad_to_multiple_of=8: a {kind} model takes unpadded .* expected 1, or"):
        make_generator(
            spec, ScriptedLLM(), gpt2, settings(pad_to_multiple_of=8), executor=executor, metrics=Metrics().of("m")
        )


# The flags

VOCABULARY = 50_257
INPUTS = tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask", "position_ids"))
PARTS = [f"{layer}.{part}" for layer in range(12) for part in ("key", "value")]
PLAIN = ModelSpec("m", "1", INPUTS, (TensorSpec("logits", "FP32", (-1, VOCABULARY)),), 64)
CACHED = replace(
    PLAIN,
    inputs=(*INPUTS, *(TensorSpec(f"past_key_values.{part}", "FP32", (12, -1, 64)) for part in PARTS)),
    outputs=(*PLAIN.outputs, *(TensorSpec(f"present.{part}", "FP32", (12, -1, 64)) for part in PARTS)),
)
"""GPT-2 as optimum exports it, in its original size."""


def options(*flags: str) -> Config:
    return config(f"--model_dir={FOLDER}", "--model_name=m", "--task=text_generation", *flags)


@pytest.mark.parametrize(("spec", "width"), [(CACHED, 200), (PLAIN, 80)], ids=["cache", "plain"])
def test_steps_of_sixteen_sequences_of_a_real_model_share_a_batch(spec: ModelSpec, width: int, gpt2: Tokenizer) -> None:
    signature = fit_logits(spec, gpt2, settings())
    prompt = Prompt("", (1,) * width)
    sequence = LogitsSequence(prompt, prompt.ids, (), Sampling(), frozenset(), 1, signature.caches)
    sequence.begin()
    if sequence.cache is not None:
        sequence.cache.length = width
    for flags in ([], [f"--max_batch_output_bytes={2**24}"], [f"--max_predictor_response_bytes={2**24}"]):
        form = StepBatchBuilder(signature, 0, scheduler_settings(options(*flags), 1, MAX_STEP_OUTPUT_BYTES))
        assert form.limits(sequence).allow(16, width, 16 * width) is (not flags)


def drawing(*names: str) -> ModelSpec:
    """A text model with these additional inputs."""
    inputs = [spec(name, "INT32" if name == "top_k" else "FP32", optional=True) for name in names]
    return replace(TUTORIAL, inputs=(TEXT, *inputs))


async def built(flags: Sequence[str], *specs: ModelSpec) -> list[GenerationPipeline]:
    """Builds a pipeline for each of a model's versions."""
    settings, pipelines = options(*flags), []
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(settings, load_model(settings), ScriptedLLM(), Metrics().of("m"), executor)
        for spec in specs:
            pipeline = build(spec)
            assert isinstance(pipeline, GenerationPipeline)
            pipelines.append(pipeline)
    return pipelines


async def test_a_replacement_model_shares_concurrency_limit_and_cache_budget() -> None:
    old, new = [pipeline._generator for pipeline in await built((), CACHED, PLAIN)]
    assert isinstance(old, LogitsGenerator) and isinstance(new, LogitsGenerator)
    assert (
        old._settings.concurrency_limit is new._settings.concurrency_limit
        and old._settings.concurrency_limit.count == 1
    )
    assert old._settings.cache_budget is new._settings.cache_budget


TOP_K = (
    "--do_sample=true with --top_k=50: this model is a text model without an input runtime_top_k or top_k or "
    "sampling_param_top_k; set --do_sample=false, or --top_k=0."
)


@pytest.mark.parametrize(
    ("spec", "flags", "problems"),
    [
        (TUTORIAL, ("--do_sample=true",), [TOP_K]),
        (TUTORIAL, ("--do_sample=true", "--top_p=0.9", "--temperature=2"), ["temperature=2", "top_k=50", "top_p=0.9"]),
        (drawing("temperature", "top_p"), ("--do_sample=true",), ["--top_k=50"]),
        (TUTORIAL, (), []),
        (TUTORIAL, ("--temperature=0.7", "--top_k=40"), []),
        (TUTORIAL, ("--do_sample=true", "--top_k=0"), []),
        (TUTORIAL, ("--do_sample=true", "--temperature=0"), []),
        (drawing("temperature", "top_k", "top_p"), ("--do_sample=true", "--temperature=0.7", "--top_p=0.9"), []),
        (PLAIN, ("--do_sample=true", "--temperature=0.7"), []),
    ],
)
async def test_default_sampling_that_the_model_does_not_support_is_refused(
    spec: ModelSpec, flags: tuple[str, ...], problems: list[str]
) -> None:
    if not problems:
        assert await built(flags, spec)
        return
    with pytest.raises(ContractError) as caught:
        await built(flags, spec)
    assert all(part in problem for part, problem in zip(problems, caught.value.problems, strict=True))
