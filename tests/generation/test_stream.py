"""A request's sequences while they are generated: order, back-pressure, deadlines, errors and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.core.limits import Admission, Place
from hf_transformer.errors import CallersDeadline, InvalidInput, PredictorError, PredictorTimeout, RequestError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.stream import QUEUED_PIECES, Assembler, Generation
from hf_transformer.generation.types import Piece, Prompt, Sampling, Step, TokenScore
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.scripted import (
    PROMPT,
    ScriptedGenerator,
    asking,
    context,
    endless,
    ids_of,
    pieces_of,
    pipeline_of,
    saying,
    steps,
)
from tests.generation.tokenizers import ALL, load
from tests.tiny_tokenizers.folders import of_bytes

CHOICES = pytest.mark.parametrize("choices", [1, 2], ids=["one text", "two texts"])


class Bench:
    """Pipelines of a scripted generator, and what their callbacks were called with."""

    def __init__(self, tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.called: list[object] = []

    def pipeline(self, generator: ScriptedGenerator, **options: Any) -> GenerationPipeline:
        return pipeline_of(self.tokenizer, generator, self.executor, **options)

    @asynccontextmanager
    async def streaming(
        self, generator: ScriptedGenerator, choices: int = 1, deadline: float | None = None, **options: Any
    ) -> AsyncGenerator[Generation, None]:
        running = await self.pipeline(generator, **options).start(asking(n=choices), context(deadline=deadline))
        running.tell(
            lambda context: self.called.append(context.request_id),
            lambda error: self.called.append(type(error)),
            lambda: self.called.append("left"),
        )
        async with running:
            yield running


@pytest.fixture
def bench(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> Bench:
    return Bench(gpt2, executor)


def failing(error: RequestError) -> ScriptedGenerator:
    # A copy: what is raised keeps all that its traceback leads to.
    return ScriptedGenerator(lambda *_: [Step(ids=(5,)), copy(error)])


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.02


@CHOICES
async def test_texts_that_are_read_whole(bench: Bench, choices: int) -> None:
    async with bench.streaming(saying(bench.tokenizer, " paris."), choices) as running:
        found = [piece async for piece in running]
        assert bench.called == ["r"]
        with pytest.raises(StopAsyncIteration):
            await anext(running)
    assert sum(piece.finish is not None for piece in found) == choices
    for choice in range(choices):
        assert "".join(piece.text for piece in found if piece.choice == choice) == " paris."
    assert running.completion_tokens == choices * len(ids_of(bench.tokenizer, " paris."))
    assert bench.called == ["r", "left"]


@CHOICES
async def test_leaving_early_ends_everything_at_once(bench: Bench, choices: int) -> None:
    generator, before = endless(), asyncio.all_tasks()
    async with bench.streaming(generator, choices) as running:
        await anext(running)
        assert generator.running == choices
    assert generator.running == 0 and asyncio.all_tasks() == before
    with pytest.raises(StopAsyncIteration):
        await anext(running)
    assert bench.called == ["left"], "it was not given whole"


@CHOICES
@pytest.mark.parametrize(
    ("error", "called"),
    [(PredictorError("it broke"), [PredictorError, "left"]), (InvalidInput("no such prompt"), ["left"])],
    ids=["the predictor's", "the client's"],
)
async def test_an_error_comes_after_the_pieces_before_it(
    bench: Bench, choices: int, error: RequestError, called: list[object]
) -> None:
    generator, read = failing(error), 0
    async with bench.streaming(generator, choices) as running:
        with pytest.raises(type(error), match=str(error)):
            async for _ in running:
                await asyncio.sleep(0.01)  # the error is there long before it is read
                read += 1
        assert generator.running == 0
    assert read == choices and bench.called == called


async def test_an_error_of_one_prompt_ends_the_others(bench: Bench) -> None:
    def script(prompt: Prompt, sampling: Sampling) -> Any:
        if prompt.text == "bad":
            return [Step(ids=(5,)), PredictorError("it broke")]
        return (Step(ids=(5,)) for _ in iter(int, 1))

    generator = ScriptedGenerator(script)
    with pytest.raises(PredictorError, match="it broke"):
        await pieces_of(bench.pipeline(generator), asking("good", "bad", "good"))
    assert generator.running == 0


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [(asyncio.CancelledError, PredictorError, "was cancelled"), (ZeroDivisionError, ZeroDivisionError, None)],
    ids=["a cancelled call", "a bug"],
)
async def test_other_exceptions_of_a_generator(bench: Bench, raised: Any, expected: Any, message: str | None) -> None:
    async def fails() -> None:
        raise raised

    with pytest.raises(expected, match=message):
        await pieces_of(bench.pipeline(saying(bench.tokenizer, " paris", wait=fails)), asking())


async def test_a_text_without_an_end_is_an_error(bench: Bench) -> None:
    with pytest.raises(PredictorError, match="without saying why"):
        await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: [Step(ids=(5,))])), asking())


@CHOICES
async def test_a_slow_reader_slows_the_model_down(bench: Bench, choices: int) -> None:
    generator = endless()
    async with bench.streaming(generator, choices) as running:
        for read in (1, 11):
            for _ in range(1 if read == 1 else 10):
                await anext(running)
            for _ in range(1000):
                await asyncio.sleep(0)
            # Pieces that were read, those in the queue, and one in each sequence's hand.
            assert generator.given == read + QUEUED_PIECES + choices


@CHOICES
@pytest.mark.parametrize("own", [False, True], ids=["the service's", "the caller's"])
async def test_a_deadline_while_the_model_works(bench: Bench, choices: int, own: bool) -> None:
    generator, expected = endless(wait=asyncio.Event().wait), CallersDeadline if own else PredictorTimeout
    options: dict[str, Any] = {"deadline": soon()} if own else {"timeout": 0.02}
    async with bench.streaming(generator, choices, **options) as running:
        with pytest.raises(expected, match="caller's deadline" if own else r"0\.02 s"):
            await anext(running)
    assert generator.running == 0 and bench.called == (["left"] if own else [PredictorTimeout, "left"])
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


@CHOICES
async def test_a_deadline_while_the_client_does_not_read(bench: Bench, choices: int) -> None:
    generator, metrics = endless(), Metrics("m")
    async with bench.streaming(generator, choices, timeout=0.05, metrics=metrics) as running:
        await anext(running)
        async with asyncio.timeout(20):
            while generator.running:  # noqa: ASYNC110 - nothing tells of a change
                await asyncio.sleep(0.001)
        for _ in range(2):
            with pytest.raises(CallersDeadline, match="not read in"):
                await anext(running)
    assert f'hf_transformer_generations_total{{finish="abandoned"}} {choices}.0' in metrics.render().decode()
    assert bench.called == ["left"], "it is no fault of the predictor's"


async def test_a_cancellation_at_the_deadline_is_still_one(bench: Bench) -> None:
    generator, when = endless(wait=asyncio.Event().wait), soon()
    reading = asyncio.create_task(pieces_of(bench.pipeline(generator), asking(), deadline=when))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(when, reading.cancel)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert generator.running == 0


async def test_tokens_are_charged_as_they_come(bench: Bench) -> None:
    admission = Admission(10, 1000, Metrics("m"))
    with Place(admission) as place:
        place.enter()
        async with await bench.pipeline(endless()).start(asking(), context(place=place)) as generation:
            assert admission.tokens == generation.prompt_tokens
            for _ in range(5):
                await anext(generation)
            assert admission.tokens == generation.prompt_tokens + generation.completion_tokens
            assert generation.completion_tokens >= 5
    assert admission.tokens == 0


async def test_text_is_charged_by_its_length_until_its_tokens_are_known(bench: Bench) -> None:
    metrics, gate = Metrics("m"), asyncio.Semaphore(0)
    admission, charged = Admission(10, 1000, metrics), list[int]()
    generator = ScriptedGenerator(lambda *_: [*[Step(text=" the capital")] * 9, Step(finish="stop")], wait=gate.acquire)
    with Place(admission) as place:
        place.enter()
        pipeline = bench.pipeline(generator, metrics=metrics)
        async with await pipeline.start(asking(), context(place=place)) as generation:
            while not charged or generation.completion_tokens == 0:
                assert metrics.generation.generated_tokens == 0, "this one only ever adds up"
                gate.release()
                await anext(generation)
                charged.append(admission.tokens - generation.prompt_tokens)
        assert charged[:9] == [12 * count // 4 for count in range(1, 10)]
        expected = len(ids_of(bench.tokenizer, " the capital" * 9))
        assert charged[9] == generation.completion_tokens == metrics.generation.generated_tokens == expected


async def test_metrics(bench: Bench) -> None:
    metrics = Metrics("m")
    await pieces_of(bench.pipeline(saying(bench.tokenizer, " a b c"), metrics=metrics), asking(n=2))
    async with bench.streaming(endless(), metrics=metrics) as running:
        await anext(running)
        assert "hf_transformer_generations_in_flight 1.0" in metrics.render().decode()
    with pytest.raises(PredictorError):
        await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: []), metrics=metrics), asking())
    shown = metrics.render().decode()
    prompt, new = len(ids_of(bench.tokenizer, PROMPT)), 2 * len(ids_of(bench.tokenizer, " a b c"))
    assert f"hf_transformer_prompt_tokens_total {3 * prompt}.0" in shown
    assert f"hf_transformer_generated_tokens_total {new + running.completion_tokens}.0" in shown
    assert "hf_transformer_generations_in_flight 0.0" in shown
    for finish, count in (("stop", 2), ("length", 0), ("abandoned", 1), ("error", 1)):
        assert f'hf_transformer_generations_total{{finish="{finish}"}} {count}.0' in shown
    assert "hf_transformer_time_to_first_token_seconds_count 2.0" in shown
    assert "hf_transformer_time_per_output_token_seconds_count 2.0" in shown


@pytest.mark.parametrize(
    ("script", "observed"),
    [
        ([Step(text=" par"), Step(text="is."), Step(finish="stop")], 1),
        ([Step(text=" paris.", finish="stop")], 0),
        ([Step(ids=(5, 6, 7), finish="stop")], 0),
        ([Step(ids=(5,)), Step(ids=(6,), finish="stop")], 1),
    ],
    ids=["text that comes", "text at once", "ids at once", "ids that come"],
)
async def test_the_time_per_token_is_observed_for_texts_that_come_in_steps(
    bench: Bench, script: list[Step], observed: int
) -> None:
    metrics = Metrics("m")
    await pieces_of(bench.pipeline(ScriptedGenerator(lambda *_: script), metrics=metrics), asking())
    assert f"hf_transformer_time_per_output_token_seconds_count {observed}.0" in metrics.render().decode()


# One text: steps become pieces


def assemble(tokenizer: Tokenizer, steps: Iterable[Step], **sampling: Any) -> list[Piece]:
    assembler = Assembler(Vocabulary(tokenizer), Prompt("a", ids_of(tokenizer, "a")), Sampling(**sampling), (2, 1))
    pieces = []
    for step in steps:
        piece = assembler.add(step)
        if piece is not None:
            pieces.append(piece)
            if piece.finish:
                break
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def scored(ids: Iterable[int]) -> list[Step]:
    return [Step(ids=(number,), scores=(TokenScore(number, -0.5, ((number, -0.5),)),)) for number in ids]


def test_a_piece_has_its_place_and_counts_its_tokens(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日.")
    pieces = assemble(gpt2, steps(ids, "length"))
    assert {(piece.prompt, piece.choice) for piece in pieces} == {(2, 1)}
    assert text_of(pieces) == " é日."
    # Tokens of half a character are counted with the piece that has it whole.
    assert sum(piece.count for piece in pieces) == len(ids) > len(pieces)
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


def test_a_stop_string_ends_the_text_within_a_step(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " one. two. three")
    [piece] = assemble(gpt2, [Step(ids=ids, finish="length")], stop=(". t",))
    assert (piece.text, piece.finish, piece.count) == (" one", "stop", len(ids))


def test_text_that_was_held_back_comes_with_the_end(gpt2: Tokenizer) -> None:
    pieces = assemble(gpt2, steps(ids_of(gpt2, " one. two")), stop=(" two three",))
    assert text_of(pieces) == " one. two" and pieces[-1].text == " two"
    half = gpt2.token_to_id("Ã")
    assert half is not None
    [piece] = assemble(gpt2, steps([half]))
    assert (piece.text, piece.count) == ("\ufffd", 1)
    [piece] = assemble(gpt2, [Step(finish="stop")])
    assert (piece.text, piece.finish, piece.count) == ("", "stop", 0)


def test_stop_strings_count_after_the_least_tokens_only(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, "\n\n\n\na\nb")
    assert gpt2.decode(ids[:2]) == "\n\n"
    for given in (steps(ids), [Step(ids=ids, finish="length")]):
        assert text_of(assemble(gpt2, given, stop=("\n",), min_tokens=4)) == "\n\n\n\na"
        assert text_of(assemble(gpt2, given, stop=("\n",), min_tokens=2)) == "\n\n"


def test_tokens_are_shown_with_their_text(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日 x")
    pieces = assemble(gpt2, [*scored(ids), Step(finish="stop")], logprobs=1)
    shown = [token for piece in pieces for token in piece.tokens]
    assert [token.logprob for token in shown] == [-0.5] * len(ids)
    assert [token.top[0].bytes for token in shown] == [token.bytes for token in shown]
    for piece in pieces:
        assert b"".join(token.bytes for token in piece.tokens).decode() == piece.text


def offsets(tokenizer: Tokenizer, ids: Iterable[int], **sampling: Any) -> tuple[str, list[int]]:
    """A text, and the offsets of its tokens, which do not depend on the steps."""
    one_by_one = scored(ids)
    whole = Step(ids=[one.ids[0] for one in one_by_one], scores=[one.scores[0] for one in one_by_one], finish="length")
    found = []
    for given in ([*one_by_one, Step(finish="length")], [whole]):
        pieces = assemble(tokenizer, given, logprobs=1, **sampling)
        found.append((text_of(pieces), [token.offset for piece in pieces for token in piece.tokens]))
    assert found[0] == found[1]
    return found[0]


CLEANS = {
    "tokenizer_class": "GPT2Tokenizer",
    "clean_up_tokenization_spaces": True,
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True,
}
MADE = {**ALL, "cleaned": of_bytes(CLEANS, "gpt2")}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_token_stands_where_its_character_does(name: str, tmp_path: Path) -> None:
    tokenizer = load(MADE[name](tmp_path / name))
    show, ids = Vocabulary(tokenizer).show, ids_of(tokenizer, "naïve 日本 🇴. x")[1 if name == "llama" else 0 :]
    text, found = offsets(tokenizer, ids)
    raw = [show(number)[1] for number in ids]
    starts = [b"".join(raw[:place]).decode(errors="ignore") for place in range(len(raw))]
    assert b"".join(raw).decode() == text and len(set(found)) < len(found)
    assert found == [len(start) for start in starts]


@pytest.mark.parametrize(
    ("name", "tokens", "text", "expected"),
    [
        ("gpt2", ["ð", "."], "\ufffd.", [0, 1]),
        ("gpt2", ["ð", "ð", "Ł", "ĩ", "´", "."], "\ufffd🇴.", [0, 1, 1, 1, 1, 2]),
        ("gpt2", ["a", "Ã"], "a\ufffd", [0, 1]),
        ("llama", ["<0xE2>", "<0xE2>", "<0x82>", "<0xAC>", "."], "\ufffd€.", [0, 1, 1, 1, 2]),
        ("llama", ["<0xE2>", "<0x82>", "▁the"], "\ufffd\ufffd the", [0, 0, 2]),
        ("cleaned", ["a", "Ġ", "n", "e", "w"], "a new", [0, 1, 2, 3, 4]),
        ("cleaned", ["a", "Ġ", "n", "Ã", "©", "."], "a né.", [0, 1, 2, 3, 3, 4]),
        ("cleaned", ["a", "Ġ", "'", "Ġ"], "a'", [0, 1, 2, 2]),
    ],
)
def test_offsets_of_broken_characters_and_of_spaces_that_go(
    name: str, tokens: list[str], text: str, expected: list[int], tmp_path: Path
) -> None:
    tokenizer = load(MADE[name](tmp_path / name))
    ids = [number for token in tokens if (number := tokenizer.token_to_id(token)) is not None]
    assert offsets(tokenizer, ids) == (text, expected)


def test_a_text_that_was_stopped_has_no_token_behind_it(gpt2: Tokenizer) -> None:
    assert offsets(gpt2, ids_of(gpt2, "é🇴. x"), stop=(". ",)) == ("é🇴", [0, 1, 1, 1, 1])
