"""Texts of models that give logits: those that the model itself would write, alone and in company."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.core.scheduler import ConcurrencyLimit
from hf_transformer.errors import InvalidInput, PredictorError, TooLarge, TooManyRequests
from hf_transformer.generation import logits_model
from hf_transformer.generation.cache_budget import CacheBudget
from hf_transformer.generation.sampling import Chooser
from hf_transformer.generation.types import FinishReason, Prompt, Sampling
from hf_transformer.types import NUMPY_DTYPES, Tensor
from tests.generation.logits_bench import FORMS, GREEDY, PROMPTS, SIXTEEN, generator, write
from tests.generation.tiny_model import EOS, LONGEST, VOCABULARY, Form, TinyModel


def expected(form: Form, prompt: Sequence[int], count: int) -> list[int]:
    """With the end-of-sequence token, if it comes to that."""
    model = TinyModel()
    dtype = NUMPY_DTYPES[form.floats]
    if form.encoder_decoder:
        return model.greedy([1], count, prompt, dtype)
    return model.greedy(prompt, count, dtype=dtype)


def without_end(ids: list[int]) -> tuple[list[int], FinishReason]:
    return (ids[:-1], "stop") if ids[-1] == EOS else (ids, "length")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_greedy_texts_are_the_models_alone_and_in_company(form: Form) -> None:
    async with generator(form) as (made, predictor):
        alone = [(await write(made, prompt))[:2] for prompt in PROMPTS]
        assert alone == [without_end(expected(form, prompt, 12)) for prompt in PROMPTS]
        assert {finish for _, finish in alone} == {"stop", "length"}
        calls = len(predictor.calls)
        together = await asyncio.gather(*[write(made, prompt) for prompt in PROMPTS])
        assert [(ids, finish) for ids, finish, _ in together] == alone
        if form.max_batch_size:
            assert max(predictor.rows[calls:]) > 1
        assert made._budget.held == 0


@pytest.mark.parametrize("name", ["plain", "last, positions", "cache", "encoder-decoder, cache"])
async def test_seeded_texts_are_the_same_alone_and_in_company(name: str) -> None:
    form = FORMS[name]
    samplings = [Sampling(seed=seed, temperature=1.5, top_k=30, top_p=0.95, max_tokens=12) for seed in range(24)]
    async with generator(form) as (made, _):
        alone = [await write(made, prompt, how) for prompt, how in zip(PROMPTS, samplings, strict=True)]
        together = await asyncio.gather(*[write(made, *one) for one in zip(PROMPTS, samplings, strict=True)])
        assert together == alone
        model = TinyModel()
        for prompt, how, (ids, _, _) in zip(PROMPTS, samplings, alone, strict=True):
            start = [1] if form.encoder_decoder else list(prompt)
            chooser, text = Chooser(how, start, frozenset({EOS})), list(start)
            for token in ids:
                assert chooser.choose(model.next_logits(text, prompt if form.encoder_decoder else None))[0] == token
                text.append(token)


async def test_only_new_tokens_are_sent_once_there_is_a_cache() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        prompt = PROMPTS[0]
        ids, _, _ = await write(made, prompt, replace(GREEDY, ignore_eos=True, max_tokens=5))
        assert [call["input_ids"].tolist() for call in predictor.calls] == [
            [list(prompt)],
            *([[one]] for one in ids[:-1]),
        ]
        pasts = [call["past_key_values.0.key"].shape[2] for call in predictor.calls]
        assert pasts == [0, *range(len(prompt), len(prompt) + 4)]


async def test_an_encoders_cache_is_asked_for_once() -> None:
    async with generator(FORMS["encoder-decoder, cache"]) as (made, predictor):
        await write(made, PROMPTS[0], replace(GREEDY, ignore_eos=True, max_tokens=3))
        decoder = ["logits", "present.0.decoder.key", "present.0.decoder.value"]
        assert predictor.asked == [
            [*decoder, "present.0.encoder.key", "present.0.encoder.value"],
            decoder,
            decoder,
        ]


@pytest.mark.parametrize(
    ("sampling", "count", "finish"),
    [
        (Sampling(greedy=True, max_tokens=3, ignore_eos=True), 3, "length"),
        (Sampling(greedy=True, max_tokens=0), 0, "length"),
        (Sampling(greedy=True, max_tokens=1000, ignore_eos=True), LONGEST - len(PROMPTS[0]), "length"),
        (Sampling(greedy=True, ignore_eos=True), LONGEST - len(PROMPTS[0]), "length"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={EOS: 100.0}), 0, "stop"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={EOS: 100.0}, min_tokens=4), 4, "stop"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={EOS: 100.0}, ignore_eos=True), 9, "length"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={5: 100.0}, stop_token_ids=(5,)), 0, "stop"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={5: 100.0}, stop_token_ids=(5,), min_tokens=4), 4, "stop"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={5: 100.0}, stop_token_ids=(5,), ignore_eos=True), 0, "stop"),
        (Sampling(greedy=True, max_tokens=9, logit_bias={5: 100.0}, stop_token_ids=(6,)), 9, "length"),
    ],
    ids=[
        *("max_tokens", "none", "the model's length", "unbounded", "at once", "min_tokens", "ignore_eos"),
        *("stop token", "stop token, min_tokens", "stop token, ignore_eos", "another stop token"),
    ],
)
@pytest.mark.parametrize("name", ["plain", "cache"])
async def test_the_end_of_a_text(name: str, sampling: Sampling, count: int, finish: FinishReason) -> None:
    async with generator(FORMS[name]) as (made, _):
        ids, why, _ = await write(made, PROMPTS[0], sampling)
        assert (len(ids), why) == (count, finish)
        if sampling.ignore_eos and sampling.logit_bias:
            assert ids == [EOS] * count


async def test_every_parameter_is_honoured() -> None:
    async with generator(SIXTEEN) as (made, _):
        fields = {field for field in Sampling.__dataclass_fields__ if field not in ("n", "stop", "names")}
        assert made.honours == fields and made.kind == "logits"


async def test_log_probabilities_are_the_models_own() -> None:
    async with generator(SIXTEEN) as (made, _):
        how = replace(GREEDY, logprobs=3, logit_bias={5: 50.0}, max_tokens=2, ignore_eos=True)
        ids, _, scores = await write(made, PROMPTS[0], how)
        assert ids == [5, 5] and [score.id for score in scores] == ids
        logits = TinyModel().next_logits(PROMPTS[0])
        logprobs = logits - np.log(np.exp(logits).sum())
        assert scores[0].logprob == pytest.approx(logprobs[5], abs=1e-5)
        best = np.argsort(-logprobs)[:3]
        assert [token for token, _ in scores[0].top] == best.tolist()
        assert [score for _, score in scores[0].top] == pytest.approx(logprobs[best], abs=1e-5)


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ((), GREEDY, "no tokens"),
        ((3, VOCABULARY), GREEDY, "the token 50, but the model's are 0 to 49"),
        ((3, -1), GREEDY, "the token -1"),
        ((3,) * LONGEST, GREEDY, "has 64 tokens, and the model takes 64"),
        ((3,), replace(GREEDY, logit_bias={50: 1.0}, names={"logit_bias": "bias"}), "bias: the model has 50 tokens"),
        ((3,), replace(GREEDY, stop_token_ids=(3, 51)), "stop_token_ids: the model has 50 tokens, and none with the"),
    ],
    ids=["empty", "too large", "negative", "too long", "bias", "stop tokens"],
)
async def test_what_can_not_be_continued(ids: tuple[int, ...], sampling: Sampling, message: str) -> None:
    async with generator(SIXTEEN) as (made, predictor):
        with pytest.raises(InvalidInput, match=message):
            await write(made, ids, sampling)
        assert not predictor.calls


async def test_a_source_that_is_too_long() -> None:
    async with generator(FORMS["encoder-decoder"]) as (made, _):
        with pytest.raises(InvalidInput, match="65 tokens, the model takes 64"):
            await write(made, (3,) * (LONGEST + 1))
        assert (await write(made, (3,) * LONGEST, replace(GREEDY, max_tokens=1)))[1] == "length"


def wrong_datatype(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].datatype = "FP64"


def wrong_shape(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].data = tensors["logits"].data[:, :, :-1].copy()


def one_position(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].data = tensors["logits"].data[:, -1:].copy()


def only_new(tensors: dict[str, Tensor]) -> None:
    tensors["present.0.key"].data = tensors["present.0.key"].data[:, :, -1:].copy()


def nan(tensors: dict[str, Tensor]) -> None:
    tensors["logits"].data[0, -1, 7] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_datatype, "'logits' as FP64, its configuration says FP32"),
        (wrong_shape, r"shape \[1, 9, 49\], expected \(rows, positions, vocabulary\) \[1, 9, 50\]"),
        (one_position, r"dims of \[1, vocabulary\] say"),
        (only_new, "'present.0.key' as FP32 with the shape"),
        (nan, "not finite"),
    ],
    ids=["datatype", "vocabulary", "positions", "cache", "nan"],
)
@pytest.mark.parametrize("how", [GREEDY, Sampling(max_tokens=5)], ids=["greedy", "drawn"])
async def test_an_answer_that_is_not_what_was_promised(change: Any, message: str, how: Sampling) -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        predictor.change = lambda number, tensors: change(tensors)
        with pytest.raises(PredictorError, match=message):
            await write(made, range(3, 12), how)
        assert made._budget.held == 0


async def test_nan_of_one_text_is_nobody_elses() -> None:
    def change(number: int, tensors: dict[str, Tensor]) -> None:
        tensors["logits"].data[1, :, 0] = np.nan

    async with generator(SIXTEEN) as (made, predictor):
        predictor.change = change
        how = replace(GREEDY, max_tokens=1, ignore_eos=True)
        found = await asyncio.gather(*[write(made, (3 + one, 4), how) for one in range(3)], return_exceptions=True)
        assert predictor.rows == [3]
        assert [isinstance(one, PredictorError) for one in found] == [False, True, False]


async def test_the_canary_asks_once_beside_all_batches() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        predictor.held = True
        trial = asyncio.create_task(made.canary(Prompt("", (7, 8))))
        await predictor.turn()
        await predictor.release()
        await trial
        assert [call["input_ids"].tolist() for call in predictor.calls] == [[[7, 8]]]
        predictor.held = False
        predictor.change = lambda number, tensors: nan(tensors)
        with pytest.raises(PredictorError, match="'logits' with NaN"):
            await made.canary(Prompt("", (7, 8)))
        await made.close()


async def test_caches_have_a_limit() -> None:
    token = 2 * 2 * 8 * 4  # key and value, two heads, FP32
    async with generator(FORMS["cache"], caches=CacheBudget(20 * token)) as (made, predictor):
        predictor.held = True
        how = replace(GREEDY, max_tokens=6, ignore_eos=True)
        first = asyncio.create_task(write(made, range(3, 10), how))  # 7 tokens and 5 of the new ones
        await predictor.turn()
        assert made._budget.held == 12 * token
        with pytest.raises(TooManyRequests, match="--max_cache_bytes"):
            await write(made, range(3, 10), how)
        with pytest.raises(TooLarge, match="need 2688 bytes, --max_cache_bytes allows 2560"):
            await write(made, range(3, 10), replace(how, max_tokens=15))
        predictor.held = False
        await predictor.release()
        assert len((await first)[0]) == 6 and made._budget.held == 0
        assert len((await write(made, range(3, 10), how))[0]) == 6


async def test_room_for_a_cache_is_given_back_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise MemoryError

    async with generator(FORMS["cache"]) as (made, _):
        with monkeypatch.context() as patched:
            patched.setattr(logits_model, "Cache", none)
            with pytest.raises(MemoryError):
                await write(made, PROMPTS[0])
        assert made._budget.held == 0
        assert (await write(made, PROMPTS[0]))[0]


async def test_a_generator_shares_places_and_caches_with_the_one_before_it() -> None:
    token = 2 * 2 * 8 * 4  # key and value, two heads, FP32
    shared: dict[str, Any] = {"places": ConcurrencyLimit(0), "caches": CacheBudget(20 * token)}
    how = replace(GREEDY, max_tokens=6, ignore_eos=True)
    async with (
        generator(FORMS["cache"], **shared) as (old, at_old),
        generator(FORMS["cache"], **shared) as (new, at_new),
    ):
        at_old.held = True
        first = asyncio.create_task(write(old, range(3, 10), how))  # 7 tokens and 5 of the new ones
        await at_old.turn()
        with pytest.raises(TooManyRequests, match="--max_cache_bytes"):
            await write(new, range(3, 10), how)
        second = asyncio.create_task(write(new, (5,), replace(how, max_tokens=2)))
        await at_old.turn()
        assert (len(at_old.calls), len(at_new.calls)) == (1, 0)
        at_old.held = False
        await at_old.release()
        assert (len((await first)[0]), len((await second)[0])) == (6, 2)


async def test_an_encoder_decoder_that_has_nothing_to_begin_with() -> None:
    with pytest.raises(ContractError, match="decoder_start_token_id"):
        async with generator(FORMS["encoder-decoder"], decoder_start_ids=()):
            pass


async def test_never_more_batches_than_the_model_works_on() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.held = True
        tasks = []
        for prompt in PROMPTS[:4]:
            tasks.append(asyncio.create_task(write(made, prompt)))
            await predictor.turn()
        assert predictor.rows == [1]
        await predictor.release()
        assert predictor.rows == [1, 4]
        predictor.held = False
        await predictor.release()
        await asyncio.gather(*tasks)
