"""Requests from prompts to texts, with a generator that does as it is told."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.types import GenerationRequest, Prompt, Sampling
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import TokenIds
from tests.generation.scripted import PROMPT, asking, context, ids_of, pieces_of, pipeline_of, saying
from tests.generation.tokenizers import load, without_unknown


async def test_a_text_comes_in_pieces(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = saying(gpt2, " paris.")
    pipeline, asked = pipeline_of(gpt2, generator, executor), context()
    async with await pipeline.start(asking(), asked) as generation:
        pieces = [piece async for piece in generation]
    assert "".join(piece.text for piece in pieces) == " paris."
    assert pieces[-1].finish == "stop"
    assert generation.prompt_tokens == asked.tokens == len(ids_of(gpt2, PROMPT))
    assert generation.completion_tokens == sum(piece.count for piece in pieces) == len(ids_of(gpt2, " paris."))
    assert asked.predict > 0 and asked.preprocess > 0
    [(prompt, sampling)] = generator.asked
    assert prompt == Prompt(PROMPT, ids_of(gpt2, PROMPT), True)
    assert sampling.max_tokens == 64 - len(prompt.ids)


async def test_all_texts_are_written_at_the_same_time(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    together = asyncio.Barrier(6)
    generator = saying(gpt2, " paris", wait=together.wait)
    pieces = await pieces_of(pipeline_of(gpt2, generator, executor), asking("a", "b", n=3, seed=7))
    whole = {(one, two): "" for one in range(2) for two in range(3)}
    for piece in pieces:
        whole[piece.prompt, piece.choice] += piece.text
    assert set(whole.values()) == {" paris"}
    assert sum(piece.finish is not None for piece in pieces) == 6
    assert [(prompt.text, sampling.seed, sampling.n) for prompt, sampling in generator.asked] == [
        (text, seed, 1) for text in "ab" for seed in (7, 8, 9)
    ]


async def test_a_prompt_in_tokens_keeps_its_special_ones(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = saying(gpt2, " paris")
    end = gpt2.token_to_id("<|endoftext|>")
    assert end is not None
    await pieces_of(pipeline_of(gpt2, generator, executor), asking(TokenIds((end, *ids_of(gpt2, "x y")))))
    assert generator.asked[0][0].text == "<|endoftext|>x y"


async def test_no_new_tokens_are_no_question_to_the_model(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = saying(gpt2, " paris")
    [piece] = await pieces_of(pipeline_of(gpt2, generator, executor), asking(max_tokens=0, echo=True))
    assert (piece.text, piece.finish, piece.count) == (PROMPT, "length", 0)
    assert not generator.asked


async def test_special_tokens_are_added_where_asked(t5: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = saying(t5, " paris")
    pipeline = pipeline_of(t5, generator, executor)
    for special in (True, False):
        await pieces_of(pipeline, asking("paris", special_tokens=special))
    (first, _), (second, _) = generator.asked
    assert first.ids == (*second.ids, t5.token_to_id("</s>"))
    assert (first.special_tokens, second.special_tokens) == (True, False)


@pytest.mark.parametrize(
    ("options", "starts", "left"),
    [
        ({}, (), 50),
        ({"max_tokens": 7}, (), 7),
        ({"max_tokens": 70}, (), 50),
        ({"max_tokens": 7, "max_length": 20}, (), 7),
        ({"max_length": 20}, (), 6),
        ({"max_length": 200}, (), 50),
        ({}, (0,), 63),
        ({"max_length": 20}, (0,), 19),
        ({"max_tokens": 70}, (0,), 63),
    ],
    ids=str,
)
async def test_how_many_tokens_there_may_be(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, options: dict[str, int], starts: tuple[int, ...], left: int
) -> None:
    generator = saying(gpt2, " paris")
    pipeline = pipeline_of(gpt2, generator, executor, decoder_start_ids=starts)
    await pieces_of(pipeline, asking(TokenIds((5,) * 14), **options))
    assert generator.asked[0][1].max_tokens == left


LONG = TokenIds((5,) * 64)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (asking("x", LONG), TooLarge, r"instances\[1\]: the prompt has 64"),
        (asking(LONG, name="prompt", single=True), TooLarge, r"^prompt: the prompt has 64"),
        (asking(""), InvalidInput, r"instances\[0\]: the prompt has no tokens"),
        (asking(TokenIds((5, 100_000))), InvalidInput, "100000 is no token id; they go from 0 to"),
        (asking(TokenIds((-1, 5))), InvalidInput, "-1 is no token id"),
        (GenerationRequest(prompts=(), sampling=Sampling()), InvalidInput, "instances: expected at least one"),
        (asking("x" * 10_001, name="prompt", single=True), TooLarge, "^prompt: 10001 characters, at most 10000"),
        (asking("x" * 9999, "y" * 9999, "z" * 9999), TooLarge, "--max_total_length"),
        (
            asking(max_length=5, names={"max_length": "parameters.max_length"}),
            InvalidInput,
            r"^parameters.max_length: 5 ",
        ),
    ],
    ids=lambda value: None if isinstance(value, GenerationRequest) else str(value)[:30],
)
async def test_requests_that_are_refused(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, request_: GenerationRequest, error: type[Exception], message: str
) -> None:
    generator = saying(gpt2, " paris", honours={"min_tokens"})
    with pytest.raises(error, match=message):
        await pipeline_of(gpt2, generator, executor).start(request_, context())
    assert not generator.asked


async def test_an_encoder_takes_a_prompt_of_its_full_length(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> None:
    pipeline = pipeline_of(gpt2, saying(gpt2, " paris"), executor, decoder_start_ids=(0,))
    assert (await pieces_of(pipeline, asking(LONG)))[-1].finish == "stop"
    with pytest.raises(TooLarge, match=r"has 65 tokens, and the model takes 64$"):
        await pipeline.start(asking(TokenIds((5,) * 65)), context())


@pytest.mark.parametrize("drops", [False, True], ids=["refuses it", "finds no token in it"])
async def test_the_trial_of_a_tokenizer_of_few_words(tmp_path: Path, executor: ThreadPoolExecutor, drops: bool) -> None:
    tokenizer = load(without_unknown(tmp_path, "CGT", drops=drops))
    generator = saying(tokenizer, "C")
    await pipeline_of(tokenizer, generator, executor).trial()
    assert [prompt for prompt, _ in generator.asked] == [Prompt("<s>", (0,))]


async def test_a_decoders_own_text_begins_without_a_space(t5: Tokenizer, executor: ThreadPoolExecutor) -> None:
    generator = saying(t5, "the capital")
    for starts, text in (((0,), "the capital"), ((), " the capital")):
        pipeline = pipeline_of(t5, generator, executor, decoder_start_ids=starts)
        assert "".join(piece.text for piece in await pieces_of(pipeline, asking("It is"))) == text
