"""Log probabilities of prompts: those of the model itself, from the pass that the first new token needs anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.core.limits import Limits
from hf_transformer.errors import InvalidInput, PredictorError, TooLarge
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.sampling import score_prompt
from hf_transformer.generation.stream import SequenceAssembler
from hf_transformer.generation.types import Prompt, Sampling, Step, TokenScore
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor
from hf_transformer.types.tokenization import TokenIds
from tests.generation.scripted import LIMITS, PipelineHarness, ScriptedGenerator, asking, ids_of
from tests.generation.tiny_model import (
    EOS,
    GREEDY,
    LONGEST,
    PROMPTS,
    SCHEDULING,
    VARIANTS,
    VOCABULARY,
    ModelVariant,
    TinyModel,
    generator,
)
from tests.generation.tokenizers import ALL, load

SCORED = replace(GREEDY, prompt_logprobs=2, logprobs=2)
READING = [name for name, variant in VARIANTS.items() if variant.logits == "all" and not variant.encoder_decoder]
"""Variants that return the logits of all positions of a prompt."""


def log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max()
    found: Array = shifted - np.log(np.exp(shifted).sum())
    return found


def assert_scores(prompt: Prompt, top: int, dtype: Any = np.float32) -> None:
    """The prompt's scores are those of the tiny model, which reads every beginning of the prompt by itself."""
    first, *others = prompt.scores
    assert first == TokenScore(prompt.ids[0], None)
    assert [score.id for score in others] == list(prompt.ids[1:])
    for index, score in enumerate(others, 1):
        logits = TinyModel().next_logits(prompt.ids[:index]).astype(dtype)
        expected = log_softmax(logits)
        assert score.logprob == pytest.approx(expected[score.id], abs=1e-4)
        assert score.rank == (logits >= logits[score.id]).sum()
        best = np.argsort(-logits, kind="stable")[:top]
        assert [token for token, _ in score.top] == best.tolist()
        assert [value for _, value in score.top] == pytest.approx(expected[best], abs=1e-4)


async def steps_of(made: LogitsGenerator, prompt: Prompt, sampling: Sampling = SCORED) -> list[Step]:
    made.check([(prompt, sampling)])
    return [step async for step in made.generate(prompt, sampling, Context("id", {}))]


@pytest.mark.parametrize("name", READING)
async def test_scores_do_not_depend_on_the_neighbours_in_a_batch(name: str) -> None:
    variant = VARIANTS[name]
    async with generator(variant) as (made, predictor):
        prompts = [Prompt("", ids) for ids in PROMPTS]
        neighbours = [made.generate(Prompt("", ids), GREEDY, Context("id", {})) for ids in PROMPTS[:3]]

        async def read(steps: Any) -> list[Step]:
            return [step async for step in steps]

        found = await asyncio.gather(*(steps_of(made, prompt) for prompt in prompts), *map(read, neighbours))
        shared = max(predictor.rows) if variant.max_batch_size else 1
        assert shared > 1 or not variant.max_batch_size
    for prompt, steps in zip(prompts, found, strict=False):
        assert_scores(prompt, 2, NUMPY_DTYPES[variant.floats])
        new = [token for step in steps for token in step.ids]
        expected = TinyModel().greedy(prompt.ids, 12, dtype=NUMPY_DTYPES[variant.floats])
        assert new == [token for token in expected if token != EOS]


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_one_pass_scores_a_prompt(name: str, max_tokens: int) -> None:
    async with generator(VARIANTS[name]) as (made, predictor):
        prompt = Prompt("", PROMPTS[0])
        [step] = await steps_of(made, prompt, replace(SCORED, max_tokens=max_tokens, ignore_eos=True))
        assert (len(step.ids), len(step.scores), step.finish) == (max_tokens, max_tokens, "length")
        assert len(predictor.calls) == 1
        assert made._cache_budget.held == 0
    assert_scores(prompt, 2, NUMPY_DTYPES[VARIANTS[name].floats])


@pytest.mark.parametrize("name", ["plain", "cache"])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_all_texts_of_a_prompt_share_one_pass_and_its_scores(name: str, max_tokens: int) -> None:
    async with generator(VARIANTS[name]) as (made, predictor):
        prompt = Prompt("", PROMPTS[1])
        samplings = [
            Sampling(seed=seed, max_tokens=max_tokens, prompt_logprobs=0, ignore_eos=True) for seed in range(4)
        ]
        found = await asyncio.gather(*(steps_of(made, prompt, one) for one in samplings))
        assert predictor.rows[0] == 1 and len(predictor.calls) == max(max_tokens, 1)
        assert [sum(len(step.ids) for step in steps) for steps in found] == [max_tokens] * 4
        assert_scores(prompt, 0)
        scores = prompt.scores
        await steps_of(made, prompt, samplings[0])
        assert prompt.scores is scores


@pytest.mark.parametrize("size", [1, LONGEST])
async def test_a_prompt_may_fill_the_model_if_no_token_follows(size: int) -> None:
    async with generator(VARIANTS["cache"]) as (made, _):
        prompt = Prompt("", (PROMPTS[0] * LONGEST)[:size])
        [step] = await steps_of(made, prompt, replace(SCORED, max_tokens=0))
        assert step == Step(finish="length")
        assert_scores(prompt, 2)
        with pytest.raises(InvalidInput, match="expected a prompt of at most 64 tokens, got 65"):
            await steps_of(made, Prompt("", (3,) * (LONGEST + 1)), replace(SCORED, max_tokens=0))


async def test_an_end_token_has_a_score() -> None:
    async with generator(VARIANTS["plain"]) as (made, _):
        [step] = await steps_of(made, Prompt("", PROMPTS[0]), replace(SCORED, logit_bias={EOS: 100.0}))
        assert (step.ids, step.finish) == ((), "stop")
        [score] = step.scores
        expected = log_softmax(TinyModel().next_logits(PROMPTS[0]))[EOS]
        assert score.id == EOS and score.logprob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in READING])
async def test_other_models_say_why_they_have_none(name: str) -> None:
    async with generator(VARIANTS[name]) as (made, _):
        assert "prompt_logprobs" not in made.supported_fields
        why = "reads prompts in its encoder" if "encoder" in name else "returns the last position's logits"
        assert made.hints["prompt_logprobs"] == f"the model {why} only"


@pytest.mark.parametrize(
    ("variant", "most"),
    [(ModelVariant(), 20), (ModelVariant(length=LONGEST), 0), (ModelVariant(length=LONGEST), LONGEST)],
    ids=["free length", "fixed length, too much", "fixed length"],
)
async def test_a_pass_with_too_many_bytes_is_refused_before_it_begins(variant: ModelVariant, most: int) -> None:
    limit = (most or LONGEST - 1) * VOCABULARY * 4
    async with generator(variant, replace(SCHEDULING, max_batch_output_bytes=limit)) as (made, predictor):
        if most:
            await steps_of(made, Prompt("", (3,) * 20))
        if most == LONGEST:
            return
        calls = len(predictor.calls)
        named = replace(SCORED, names={"prompt_logprobs": "logprobs"})
        message = (
            rf"^parameters.logprobs: expected .* at most {limit} bytes .*\(--max_batch_output_bytes\), got \d+ bytes"
        )
        with pytest.raises(TooLarge, match=message):
            await steps_of(made, Prompt("", (3,) * 21), named)
        assert len(predictor.calls) == calls


async def test_logits_that_are_no_numbers_are_the_models_fault() -> None:
    def spoil(number: int, tensors: dict[str, Tensor]) -> None:
        tensors["logits"].data[0, 0, 7] = np.nan

    async with generator(VARIANTS["plain"]) as (made, predictor):
        predictor.change = spoil
        with pytest.raises(PredictorError, match="not finite numbers"):
            await steps_of(made, Prompt("", PROMPTS[0]))
        await steps_of(made, Prompt("", PROMPTS[0]), GREEDY)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("size", [10, 5000])
def test_scores_are_a_log_softmax(dtype: Any, size: int) -> None:
    random = np.random.default_rng(3)
    logits = (random.standard_normal((6, size)) * 5).astype(dtype)
    ids = [int(one) for one in random.integers(0, size, 7)]
    logits[2, ids[3]] = -np.inf
    logits[3, 3] = logits[3, ids[4]]
    scores = score_prompt(logits, ids, 1)
    assert scores[0] == TokenScore(ids[0], None)
    for row, score in zip(logits, scores[1:], strict=True):
        expected = log_softmax(row)
        assert score.logprob == pytest.approx(expected[score.id], abs=1e-4)
        [(likeliest, value)] = score.top
        assert likeliest == row.argmax() and value == pytest.approx(expected.max(), abs=1e-4)
        assert score.rank == np.count_nonzero(row >= row[score.id])
    assert scores[3].logprob == -np.inf and scores[3].rank == size


# Texts and offsets


def read(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> tuple[list[str], list[int]]:
    """Texts and offsets of the tokens of a prompt."""
    scores = [TokenScore(token, -0.5, ((token, -0.5), (5, -1.0)), 3) for token in ids]
    prompt = Prompt(text, tuple(ids), scores=scores)
    assembler = SequenceAssembler(Vocabulary(tokenizer), prompt, Sampling(), (0, 0), text)
    assembler.read_prompt()
    tokens = assembler.prompt_tokens
    assert [(token.id, token.rank, token.logprob) for token in tokens] == [(token, 3, -0.5) for token in ids]
    assert all([(one.id, one.rank) for one in token.top] == [(token.id, 1), (5, 2)] for token in tokens)
    piece = assembler.add(Step())
    assert piece is not None and piece.text == text and piece.prompt_tokens == tokens
    return [token.text for token in tokens], [token.offset for token in tokens]


def test_offsets_of_a_prompt_count_the_special_tokens_of_its_text(gpt2: Tokenizer) -> None:
    end = gpt2.token_to_id("<|endoftext|>")
    assert end is not None
    plain = ids_of(gpt2, "x é日. y")
    texts, starts = read(gpt2, plain, "x é日. y")
    assert starts == sorted(starts) and starts[:2] == [0, 1] and starts[-1] == 7 - len(texts[-1])
    both, shifted = read(gpt2, (end, *plain, end), "<|endoftext|>x é日. y<|endoftext|>")
    assert both == ["<|endoftext|>", *texts, "<|endoftext|>"]
    assert shifted == [0, *(start + 13 for start in starts), 20]
    # A tokenizer's own special tokens are not part of a text.
    assert read(gpt2, (end, *plain), "x é日. y")[1] == [0, *starts]


def test_offsets_of_a_prompt_do_not_count_a_dropped_space(tmp_path: Path) -> None:
    tokenizer = load(ALL["llama"](tmp_path / "llama"))
    ids = ids_of(tokenizer, "the cat is the")
    texts, starts = read(tokenizer, ids, "the cat is the")
    assert texts[0] == "<s>" and starts[:2] == [0, 0] and starts[-1] == len("the cat is")


def scored(prompt: Prompt, ids: Sequence[int], end: int) -> list[Step]:
    """Steps after a scored prompt, the last of them with an end token."""
    prompt.scores = [TokenScore(prompt.ids[0], None), *(TokenScore(token, -0.5) for token in prompt.ids[1:])]
    steps = [Step(ids=(token,), scores=(TokenScore(token, -0.25),)) for token in ids]
    return [*steps, Step(scores=(TokenScore(end, -0.125),), finish="stop")]


@pytest.mark.parametrize(
    ("stop", "text", "last"),
    [((), " paris.", (-0.125, "<|endoftext|>", 16)), (("is.",), " par", (-0.25, "ar", 11))],
    ids=["to the end token", "to a stop string"],
)
async def test_new_tokens_follow_those_of_the_echoed_prompt(
    harness: PipelineHarness, stop: tuple[str, ...], text: str, last: tuple[float, str, int]
) -> None:
    new, end = harness.ids(" paris."), harness.tokenizer.token_to_id("<|endoftext|>")
    assert end is not None
    script = ScriptedGenerator(lambda prompt, _: scored(prompt, new, end), supported_fields=["prompt_logprobs"])
    first, *following = await harness.read(
        script, asking("A text of", echo=True, logprobs=0, prompt_logprobs=0, stop=stop)
    )
    assert first.text.startswith("A text of")
    assert [token.id for token in first.prompt_tokens] == list(harness.ids("A text of"))
    assert first.prompt_tokens[0].logprob is None and not any(piece.prompt_tokens for piece in following)
    whole = first.text + "".join(piece.text for piece in following)
    tokens = [token for piece in (first, *following) for token in piece.tokens]
    assert whole == f"A text of{text}" and tokens[0].offset == len("A text of")
    assert (tokens[-1].logprob, tokens[-1].text, tokens[-1].offset) == last


async def test_an_end_token_is_left_out_without_echo(harness: PipelineHarness) -> None:
    new, end = harness.ids(" paris."), 0
    script = ScriptedGenerator(lambda prompt, _: scored(prompt, new, end), supported_fields=["prompt_logprobs"])
    pieces = await harness.read(script, asking(logprobs=0, prompt_logprobs=0))
    assert [token.id for piece in pieces for token in piece.tokens] == list(new)


async def test_log_probabilities_count_as_values_of_the_answer(harness: PipelineHarness) -> None:
    script = ScriptedGenerator(lambda prompt, _: scored(prompt, (), 0), supported_fields=["prompt_logprobs"])
    limits: Limits = replace(LIMITS, max_answer_values=60)
    for count, options in ((20, {"prompt_logprobs": 2}), (10, {"prompt_logprobs": 2, "n": 2, "seed": 1})):
        await harness.read(script, asking(TokenIds((7,) * count), **options), limits=limits)
        with pytest.raises(
            TooLarge, match=r"prompt_logprobs: expected at most 60 .*\(--max_answer_values\), got 6[36]"
        ):
            await harness.read(script, asking(TokenIds((7,) * (count + 1)), **options), limits=limits)
    await harness.read(script, asking(TokenIds((7,) * 63)), limits=limits)


async def test_a_prompt_of_the_models_length_needs_max_tokens_0(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    harness = PipelineHarness(gpt2, executor)
    script = ScriptedGenerator(lambda prompt, _: scored(prompt, (), 0), supported_fields=["prompt_logprobs"])
    for count, most in ((64, 1), (65, 0)):
        with pytest.raises(TooLarge, match=f"expected a prompt of at most {64 - most} tokens, got {count}"):
            await harness.read(script, asking(TokenIds((7,) * count), max_tokens=most, prompt_logprobs=0))
    [piece] = await harness.read(script, asking(TokenIds((7,) * 64), max_tokens=0, prompt_logprobs=0))
    assert len(piece.prompt_tokens) == 64
