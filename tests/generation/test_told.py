"""Who started a generation is told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest

from hf_transformer.errors import InvalidInput, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.generation.writing import Generation
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context
from tests.generation.scripted import ScriptedGenerator, asking, context, endless, pipeline_of, saying

CHOICES = pytest.mark.parametrize("choices", [1, 2], ids=["one text", "two texts"])


class Told:
    """Keeps what it is told."""

    def __init__(self, generation: Generation) -> None:
        self.heard: list[object] = []
        generation.tell(self._succeeded, self._failed, self._left)

    def _succeeded(self, context: Context) -> None:
        self.heard.append(context.request_id)

    def _failed(self, error: RequestError) -> None:
        self.heard.append(type(error))

    def _left(self) -> None:
        self.heard.append("left")


@CHOICES
async def test_of_texts_that_were_given_whole(gpt2: Tokenizer, executor: ThreadPoolExecutor, choices: int) -> None:
    generation = await pipeline_of(gpt2, saying(gpt2, " paris."), executor).start(asking(n=choices), context())
    told, left = Told(generation), choices
    async with generation:
        async for piece in generation:
            assert not told.heard
            left -= piece.finish is not None
        assert (told.heard, left) == (["r"], 0)
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
    assert told.heard == ["r", "left"]


@CHOICES
async def test_of_texts_that_nobody_reads_to_their_end(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, choices: int
) -> None:
    generation = await pipeline_of(gpt2, endless(), executor).start(asking(n=choices), context())
    told = Told(generation)
    async with generation:
        await anext(generation)
    assert told.heard == ["left"]
    with pytest.raises(StopAsyncIteration):
        while True:
            await anext(generation)
    assert told.heard == ["left"], "what was left early was not given whole"


def failing(error: RequestError) -> ScriptedGenerator:
    def script(prompt: Prompt, sampling: Sampling) -> Iterable[Step | RequestError]:
        # Raised, a parameter would hold all that its traceback leads to, for as long as the tests run.
        return [Step(ids=(5,)), copy(error)]

    return ScriptedGenerator(script)


@CHOICES
@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (PredictorError("it broke"), [PredictorError, "left"]),
        (InvalidInput("no such prompt"), ["left"]),  # which says nothing of the predictor
    ],
    ids=["the predictor's", "the client's"],
)
async def test_of_an_error(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, choices: int, error: RequestError, heard: list[object]
) -> None:
    generation = await pipeline_of(gpt2, failing(error), executor).start(asking(n=choices), context())
    told = Told(generation)
    async with generation:
        with pytest.raises(type(error)):
            async for _ in generation:
                pass
    assert told.heard == heard


@CHOICES
async def test_of_a_deadline(gpt2: Tokenizer, executor: ThreadPoolExecutor, choices: int) -> None:
    never = asyncio.Event()
    pipeline = pipeline_of(gpt2, endless(wait=never.wait), executor, timeout=0.02)
    generation = await pipeline.start(asking(n=choices), context())
    told = Told(generation)
    async with generation:
        with pytest.raises(PredictorTimeout):
            await anext(generation)
    assert told.heard == [PredictorTimeout, "left"]
