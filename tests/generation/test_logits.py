"""Logits models: texts equal those of the model itself, alone and in shared batches."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hf_transformer.core.scheduler import ConcurrencyLimit
from hf_transformer.errors import InvalidInput, PredictorError, PredictorUnavailable, TooLarge
from hf_transformer.generation import logits_sequence
from hf_transformer.generation.cache import Cache, CacheBudget
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.sampling import TokenSampler
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, Step
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Tensor
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
    TinyPredictor,
    generator,
    write,
)

ENDLESS = Sampling(greedy=True, ignore_eos=True, max_tokens=40)
SEEDED = [Sampling(seed=seed, temperature=1.5, top_k=30, top_p=0.95, max_tokens=12) for seed in range(24)]
TOKEN = 2 * 2 * 8 * 4
"""Bytes per token of the cache: key and value, two heads, FP32."""


def expected(variant: ModelVariant, prompt: tuple[int, ...], count: int) -> tuple[list[int], FinishReason]:
    ids = greedy_ids(variant.encoder_decoder, variant.floats, prompt, count)
    return (ids[:-1], "stop") if ids[-1] == EOS else (ids, "length")


@cache
def greedy_ids(encoder_decoder: bool, floats: str, prompt: tuple[int, ...], count: int) -> list[int]:
    start, source = ([1], prompt) if encoder_decoder else (prompt, None)
    return TinyModel().greedy(start, count, source, NUMPY_DTYPES[floats])


def steps(made: LogitsGenerator, *ids: int) -> AsyncGenerator[Step, None]:
    return made.generate(Prompt("", ids), ENDLESS, Context("id", {}))


def first_tokens(predictor: TinyPredictor) -> list[list[int]]:
    """First token of each row of each call, which identifies the sequence in these tests."""
    return [call["input_ids"][:, 0].tolist() for call in predictor.calls]


def choices(
    made: LogitsGenerator, ids: Sequence[int], samplings: Sequence[Sampling] = SEEDED[:8]
) -> list[asyncio.Task[list[int]]]:
    """Several sequences of one prompt, as in a request with n > 1."""
    prompt = Prompt("", tuple(ids))

    async def read(sampling: Sampling) -> list[int]:
        return [token async for step in made.generate(prompt, sampling, Context("id", {})) for token in step.ids]

    return [asyncio.create_task(read(sampling)) for sampling in samplings]


# Texts


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
async def test_greedy_texts_equal_the_models_alone_and_in_shared_batches(variant: ModelVariant) -> None:
    async with generator(variant) as (made, predictor):
        alone = [(await write(made, prompt))[:2] for prompt in PROMPTS]
        assert alone == [expected(variant, prompt, 12) for prompt in PROMPTS]
        assert {finish for _, finish in alone} == {"stop", "length"}
        calls = len(predictor.calls)
        together = await asyncio.gather(*[write(made, prompt) for prompt in PROMPTS])
        assert [(ids, finish) for ids, finish, _ in together] == alone
        if variant.max_batch_size:
            assert max(predictor.rows[calls:]) > 1


@pytest.mark.parametrize("name", ["plain", "last, positions", "cache", "encoder-decoder, cache"])
async def test_seeded_texts_are_equal_alone_and_in_shared_batches(name: str) -> None:
    variant = VARIANTS[name]
    async with generator(variant) as (made, _):
        pairs = [*zip(PROMPTS, SEEDED, strict=True)]
        alone = [await write(made, *pair) for pair in pairs]
        together = await asyncio.gather(*[write(made, *pair) for pair in pairs])
        assert together == alone
        model = TinyModel()
        for prompt, sampling, (ids, _, _) in zip(PROMPTS, SEEDED, alone, strict=True):
            start = [1] if variant.encoder_decoder else list(prompt)
            sampler, text = TokenSampler(sampling, start, frozenset({EOS})), list(start)
            for token in ids:
                assert sampler.choose(model.next_logits(text, prompt if variant.encoder_decoder else None))[0] == token
                text.append(token)


async def test_with_a_cache_only_new_tokens_are_sent() -> None:
    async with generator(VARIANTS["cache"]) as (made, predictor):
        prompt = PROMPTS[0]
        ids, _, _ = await write(made, prompt, replace(GREEDY, ignore_eos=True, max_tokens=5))
        sent = [call["input_ids"].tolist() for call in predictor.calls]
        assert sent == [[list(prompt)], *([[one]] for one in ids[:-1])]
        pasts = [call["past_key_values.0.key"].shape[2] for call in predictor.calls]
        assert pasts == [0, *range(len(prompt), len(prompt) + 4)]


async def test_the_encoders_cache_is_requested_once() -> None:
    async with generator(VARIANTS["encoder-decoder, cache"]) as (made, predictor):
        await write(made, PROMPTS[0], replace(GREEDY, ignore_eos=True, max_tokens=3))
        decoder = ["logits", "present.0.decoder.key", "present.0.decoder.value"]
        first = [*decoder, "present.0.encoder.key", "present.0.encoder.value"]
        assert [call.given.outputs for call in predictor.calls] == [first, decoder, decoder]


BIASED = Sampling(greedy=True, max_tokens=9, logit_bias={EOS: 100.0})
STOPPED = Sampling(greedy=True, max_tokens=9, logit_bias={5: 100.0}, stop_token_ids=(5,))


@pytest.mark.parametrize(
    ("sampling", "count", "finish"),
    [
        (replace(ENDLESS, max_tokens=3), 3, "length"),
        (replace(ENDLESS, max_tokens=0), 0, "length"),
        (replace(ENDLESS, max_tokens=1000), LONGEST - len(PROMPTS[0]), "length"),
        (replace(ENDLESS, max_tokens=None), LONGEST - len(PROMPTS[0]), "length"),
        (BIASED, 0, "stop"),
        (replace(BIASED, min_tokens=4), 4, "stop"),
        (replace(BIASED, ignore_eos=True), 9, "length"),
        (STOPPED, 0, "stop"),
        (replace(STOPPED, min_tokens=4), 4, "stop"),
        (replace(STOPPED, ignore_eos=True), 0, "stop"),
        (replace(STOPPED, stop_token_ids=(6,)), 9, "length"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["plain", "cache"])
async def test_length_eos_and_stop_tokens_end_a_text(
    name: str, sampling: Sampling, count: int, finish: FinishReason
) -> None:
    async with generator(VARIANTS[name]) as (made, _):
        ids, why, _ = await write(made, PROMPTS[0], sampling)
        assert (len(ids), why) == (count, finish)
        if sampling.ignore_eos and EOS in sampling.logit_bias:
            assert ids == [EOS] * count


async def test_log_probabilities_ignore_bias_penalties_and_temperature() -> None:
    async with generator(ModelVariant()) as (made, _):
        how = replace(GREEDY, logprobs=3, logit_bias={5: 50.0}, max_tokens=2, ignore_eos=True)
        how = replace(how, greedy=False, temperature=0.1, top_k=2, repetition_penalty=1.5)
        ids, _, scores = await write(made, PROMPTS[0], how)
        assert ids == [5, 5] and [score.id for score in scores] == ids
        found = TinyModel().next_logits(PROMPTS[0])
        logprobs = found - np.log(np.exp(found).sum())
        assert scores[0].logprob == pytest.approx(logprobs[5], abs=1e-5)
        best = np.argsort(-logprobs)[:3]
        assert [token for token, _ in scores[0].top] == best.tolist()
        assert [score for _, score in scores[0].top] == pytest.approx(logprobs[best], abs=1e-5)


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ((3, VOCABULARY), GREEDY, "expected a prompt of the model's token ids, from 0 to 49, got 50"),
        ((3,) * LONGEST, GREEDY, "expected a prompt of at most 63 tokens, got 64"),
        (
            (3,),
            replace(GREEDY, logit_bias={50: 1.0}, names={"logit_bias": "bias"}),
            "^parameters.bias: expected .*, got 50",
        ),
        ((3,), replace(GREEDY, stop_token_ids=(3, 51)), "ters.stop_token_ids: expected .*, got 51"),
    ],
    ids=["too large", "too long", "bias", "stop tokens"],
)
async def test_ids_outside_the_models_vocabulary_and_long_prompts_are_refused(
    ids: tuple[int, ...], sampling: Sampling, message: str
) -> None:
    async with generator(ModelVariant()) as (made, predictor):
        with pytest.raises(InvalidInput, match=message):
            made.check([(Prompt("", ids), sampling)])
        with pytest.raises(InvalidInput, match=message):
            await write(made, ids, sampling)
        assert not predictor.calls


# Answers of the model


def retyped(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].datatype = "FP64"


def nan(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].data[0, -1, 7] = np.nan


def sliced(name: str, *part: Any) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].data = tensors[name].data[part].copy()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (retyped, "'logits' as FP64, its configuration says FP32"),
        (
            sliced("logits", ..., slice(None, -1)),
            r"shape \[1, 9, 49\], expected \(rows, positions, vocabulary\) \[1, 9, 50\]",
        ),
        (sliced("logits", slice(None), slice(-1, None)), r"set the dims \[1, vocabulary\] for"),
        (sliced("present.0.key", slice(None), slice(None), slice(-1, None)), "'present.0.key' as FP32 with the shape"),
        (nan, "not finite"),
    ],
    ids=["datatype", "vocabulary", "positions", "cache", "nan"],
)
async def test_invalid_outputs_are_predictor_errors_and_free_the_cache(change: Any, message: str) -> None:
    caches = CacheBudget(2**20)
    async with generator(VARIANTS["cache"], cache_budget=caches) as (made, predictor):
        predictor.change = lambda number, tensors: change(tensors)
        for how in (GREEDY, Sampling(max_tokens=5)):
            with pytest.raises(PredictorError, match=message):
                await write(made, range(3, 12), how)
        assert caches.held == 0


async def test_nan_fails_only_its_own_sequence() -> None:
    def change(number: int, tensors: dict[str, Tensor]) -> None:
        tensors["logits"].data[1, :, 0] = np.nan

    async with generator(ModelVariant()) as (made, predictor):
        predictor.change = change
        how = replace(GREEDY, max_tokens=1, ignore_eos=True)
        found = await asyncio.gather(*[write(made, (3 + one, 4), how) for one in range(3)], return_exceptions=True)
        assert predictor.rows == [3]
        assert [isinstance(one, PredictorError) for one in found] == [False, True, False]


async def test_a_trial_is_one_call_outside_the_batches() -> None:
    async with generator(VARIANTS["cache"]) as (made, predictor):
        await made.trial(Prompt("", (7, 8)))
        assert [call["input_ids"].tolist() for call in predictor.calls] == [[[7, 8]]]
        predictor.change = lambda number, tensors: nan(tensors)
        with pytest.raises(PredictorError, match="'logits' with NaN"):
            await made.trial(Prompt("", (7, 8)))


# Continuous batching


async def test_new_sequences_join_the_next_batch() -> None:
    async with generator(ModelVariant()) as (made, predictor):
        predictor.held = True
        tasks = [asyncio.create_task(write(made, (3,), ENDLESS))]
        await predictor.turn()
        tasks += [asyncio.create_task(write(made, (one,), ENDLESS)) for one in (4, 5)]
        await predictor.turn()
        assert predictor.rows == [1], "no more batches than the model runs at once"
        await predictor.release()
        tasks.append(asyncio.create_task(write(made, (6,), ENDLESS)))
        await predictor.turn()
        await predictor.release()
        await predictor.release()
        assert first_tokens(predictor) == [[3], [4, 5, 3], [6, 4, 5, 3], [6, 4, 5, 3]]
        seen = [call["attention_mask"].sum(axis=1).tolist() for call in predictor.calls[2:]]
        assert seen == [[1, 2, 2, 3], [2, 3, 3, 4]]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_slow_reader_delays_no_other_sequence_and_gets_one_step_ahead() -> None:
    async with generator(ModelVariant()) as (made, predictor):
        slow = steps(made, 7)
        tokens = [*(await anext(slow)).ids]
        assert len((await write(made, (3,), ENDLESS))[0]) == 40
        assert len([row for row in first_tokens(predictor) if 7 in row]) == 2
        async for step in slow:
            tokens += step.ids
        assert tokens == (await write(made, (7,), ENDLESS))[0]


@pytest.mark.parametrize("error", [PredictorUnavailable("down"), PredictorError("bad")], ids=["outage", "refusal"])
async def test_a_failed_step_ends_the_text_after_its_tokens(error: Exception) -> None:
    async with generator(ModelVariant()) as (made, predictor):
        predictor.faults[2] = error
        text = steps(made, 3)
        for _ in range(2):
            assert (await anext(text)).ids
        with pytest.raises(type(error), match=str(error)):
            await anext(text)


@pytest.mark.parametrize(
    ("limits", "most"),
    [({}, 16), ({"max_batch_tokens": 110}, 5), ({"max_batch_output_bytes": 3 * 20 * 50 * 4}, 3)],
    ids=["the model's rows", "tokens", "bytes of the outputs"],
)
async def test_batches_respect_rows_tokens_and_output_bytes(limits: dict[str, int], most: int) -> None:
    async with generator(ModelVariant(), replace(SCHEDULING, **limits)) as (made, predictor):
        prompts = [(number % 40 + 3, *[5] * 19) for number in range(24)]
        await asyncio.gather(*[write(made, prompt, replace(ENDLESS, max_tokens=3)) for prompt in prompts])
        for call in predictor.calls:
            rows, width = call["input_ids"].shape
            assert rows * width <= limits.get("max_batch_tokens", 10**9)
            assert rows * width * 50 * 4 <= limits.get("max_batch_output_bytes", 10**9)
        assert max(predictor.rows) == most


async def test_the_limit_of_output_bytes_counts_returned_caches() -> None:
    limit = 50 * 4 * 3 + TOKEN * 3 * 12
    async with generator(VARIANTS["cache"], replace(SCHEDULING, max_batch_output_bytes=limit)) as (made, predictor):
        await asyncio.gather(*[write(made, (one, *[5] * 7), replace(ENDLESS, max_tokens=6)) for one in range(3, 11)])
        for call in predictor.calls:
            assert sum(call.given.sizes.values()) <= limit or len(call["input_ids"]) == 1
        assert max(predictor.rows) == 3


async def test_positions_and_mask_let_sequences_of_different_lengths_share_a_batch() -> None:
    async with generator(VARIANTS["cache"]) as (made, predictor):
        await asyncio.gather(*[write(made, (3 + length,) * length, ENDLESS) for length in (1, 20)])
        assert predictor.rows[-20:] == [2] * 20
    async with generator(VARIANTS["cache, equal lengths"]) as (made, predictor):
        await asyncio.gather(*[write(made, (3 + length,) * length, ENDLESS) for length in (1, 20)])
        # Without positions, caches must have equal lengths; before there is a cache, padding on the right does no harm.
        assert predictor.rows == [2] + [1] * (2 * 39)


# Choices of one prompt


@pytest.mark.parametrize("name", ["plain", "cache", "cache, equal lengths", "cache, merged", "encoder-decoder, cache"])
async def test_choices_share_the_prompts_row_and_have_the_same_texts(name: str) -> None:
    async with generator(VARIANTS[name]) as (made, predictor):
        alone = [(await write(made, PROMPTS[0], how))[0] for how in SEEDED[:8]]
        calls = len(predictor.calls)
        assert await asyncio.gather(*choices(made, PROMPTS[0])) == alone
        assert len({*map(tuple, alone)}) > 4
        assert predictor.rows[calls : calls + 2] == [1, 8]


async def test_a_cancelled_choice_does_not_change_the_others() -> None:
    async with generator(VARIANTS["cache"]) as (made, predictor):
        alone = [(await write(made, PROMPTS[0], how))[0] for how in SEEDED[:8]]
        predictor.held = True
        tasks = choices(made, PROMPTS[0])
        await predictor.turn()
        tasks[0].cancel()
        await predictor.turn()
        predictor.held = False
        await predictor.release()
        assert (await asyncio.gather(*tasks, return_exceptions=True))[1:] == alone[1:]


# The budget of caches


async def test_every_end_of_a_sequence_frees_its_cache_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = CacheBudget(60 * TOKEN)
    async with generator(VARIANTS["cache"], cache_budget=caches) as (made, predictor):
        text = steps(made, 3)
        await anext(text)
        assert caches.held == 40 * TOKEN
        waiting = [asyncio.create_task(write(made, (one,), ENDLESS)) for one in (4, 5)]
        await predictor.turn()
        waiting[0].cancel()  # while it waits for memory
        await text.aclose()  # while the next sequence waits
        assert len((await waiting[1])[0]) == 40 and caches.held == 0
        with monkeypatch.context() as patched:
            patched.setattr(logits_sequence, "Cache", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await write(made, (3,), ENDLESS)
        assert caches.held == 0


async def test_a_cache_larger_than_the_budget_is_refused() -> None:
    async with generator(VARIANTS["cache"], cache_budget=CacheBudget(30 * TOKEN)) as (made, predictor):
        message = rf"at most {30 * TOKEN} bytes .*--max_cache_bytes.*, got {40 * TOKEN} bytes"
        with pytest.raises(TooLarge, match=message):
            made.check([(Prompt("", (3,)), replace(ENDLESS, max_tokens=2)), (Prompt("", (3,)), ENDLESS)])
        with pytest.raises(TooLarge, match=message):
            await write(made, (3,), ENDLESS)
        made.check([(Prompt("", (3,)), replace(ENDLESS, max_tokens=0))])
        assert not predictor.calls
    async with generator(VARIANTS["plain"], cache_budget=CacheBudget(1)) as (made, _):
        assert len((await write(made, (3,), ENDLESS))[0]) == 40, "this model has no cache"


async def test_generators_share_concurrency_limit_and_cache_budget() -> None:
    shared: dict[str, Any] = {"concurrency_limit": ConcurrencyLimit(0), "cache_budget": CacheBudget(60 * TOKEN)}
    async with (
        generator(VARIANTS["cache"], **shared) as (old, at_old),
        generator(VARIANTS["cache"], **shared) as (new, at_new),
    ):
        at_old.held = True
        first = asyncio.create_task(write(old, (3,), ENDLESS))
        await at_old.turn()
        large = asyncio.create_task(write(new, (4,), ENDLESS))
        small = asyncio.create_task(write(new, (5,), replace(ENDLESS, max_tokens=2)))
        await at_old.turn()
        assert (len(at_old.calls), len(at_new.calls)) == (1, 0)
        at_old.held = False
        await at_old.release()
        assert [len((await one)[0]) for one in (first, large, small)] == [40, 40, 2]


async def test_caches_are_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[weakref.ref[Cache]] = []

    class Watched(Cache):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            caches.append(weakref.ref(self))

    monkeypatch.setattr(logits_sequence, "Cache", Watched)
    async with generator(VARIANTS["cache"]) as (made, predictor):
        gc.collect()
        gc.disable()
        try:
            await write(made, PROMPTS[0], GREEDY)
            text = steps(made, 3)
            await anext(text)
            await text.aclose()
            predictor.faults[len(predictor.calls) + 1] = PredictorError("bad")
            with pytest.raises(PredictorError):
                await write(made, PROMPTS[1], ENDLESS)
            predictor.held = True
            tasks = choices(made, PROMPTS[0])
            await predictor.turn()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del tasks, task, text
            await predictor.release(50)
            predictor.calls.clear()  # ``wanted`` references the sequences
            assert len(caches) == 11 and [cache() for cache in caches] == [None] * 11
        finally:
            gc.enable()


# Widths that are multiples of --pad_to_multiple_of

MULTIPLE = 24
"""Does not divide LONGEST, so that the last width is the model's length."""
WIDTHS = {24, 48, LONGEST}
LONG = Sampling(greedy=True, ignore_eos=True)


@pytest.mark.parametrize(
    "name", ["plain", "last, positions", "fixed length", "cache", "encoder-decoder", "encoder-decoder, cache"]
)
async def test_padding_to_a_multiple_changes_no_text(name: str) -> None:
    variant = VARIANTS[name]
    prompts = [*PROMPTS[:12], (5,) * 30, (5,) * (LONGEST - 1)]
    async with generator(variant) as (made, _):
        expected = [await write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts]
    async with generator(variant, pad_to_multiple_of=MULTIPLE) as (made, predictor):
        assert [await write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts] == expected
        together = [write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts]
        assert await asyncio.gather(*together) == expected
        sent = {name: {call[name].shape[-1] for call in predictor.calls} for name in predictor.calls[0].inputs}
    free = WIDTHS if variant.length < 0 else {LONGEST}
    if variant.encoder_decoder:
        assert sent["input_ids"] == sent["attention_mask"] == free
        assert sent["decoder_input_ids"] == ({1, 24} if variant.past else {24})
    elif variant.past:
        assert sent["input_ids"] == {1, *free}
    else:
        assert sent["input_ids"] == sent["attention_mask"] == free


async def test_a_long_text_needs_few_padded_widths() -> None:
    async with generator(VARIANTS["plain"], pad_to_multiple_of=MULTIPLE) as (made, predictor):
        ids, finish, _ = await write(made, (5,), LONG)
    assert (len(ids), finish) == (LONGEST - 1, "length")
    widths = [call["input_ids"].shape[-1] for call in predictor.calls]
    assert widths == [24] * 24 + [48] * 24 + [LONGEST] * 15


@pytest.mark.parametrize("encoder_decoder", [False, True], ids=["decoder", "encoder-decoder"])
async def test_a_fixed_length_overrides_pad_to_multiple_of(encoder_decoder: bool) -> None:
    variant = ModelVariant(length=40, encoder_decoder=encoder_decoder)
    prompts = [(one,) * 30 for one in (5, 6, 7)]
    scheduling = replace(SCHEDULING, max_batch_tokens=3 * 40)
    async with generator(variant, scheduling, pad_to_multiple_of=MULTIPLE) as (made, predictor):
        texts = await asyncio.gather(*[write(made, prompt, replace(LONG, max_tokens=4)) for prompt in prompts])
        assert {data.shape[-1] for call in predictor.calls for data in call.inputs.values()} == {40}
        assert encoder_decoder or set(predictor.rows) == {3}, "the rows are limited by the padded tokens"
    async with generator(variant, scheduling) as (made, _):
        assert texts == [await write(made, prompt, replace(LONG, max_tokens=4)) for prompt in prompts]
