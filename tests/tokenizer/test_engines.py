"""Bounds on what one request's texts can cost, found before the work is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tokenizer.engine import Engine
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.tokenizer import CHUNK, CHUNK_CHARACTERS, MANY_IDS, Tokenizer, load_tokenizer
from hf_transformer.types import Encoding, TextInput, TokenIds, Tokenization, Words

FOLDER = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"
LENGTH = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(FOLDER, {}, max_model_len=LENGTH)


def windows(tokenizer: Tokenizer, text: TextInput, how: Tokenization) -> int:
    return len(tokenizer.encode_windows([text], how)[0])


@pytest.mark.parametrize("stride", [0, 3, 13])
@pytest.mark.parametrize("text", ["a " * 5, "a " * 14, "a " * 15, "a " * 100, "capital " * 77])
def test_as_many_windows_as_needed_are_allowed_and_no_fewer(tokenizer: Tokenizer, text: str, stride: int) -> None:
    needed = windows(tokenizer, text, Tokenization(windows=True, stride=stride))
    assert windows(tokenizer, text, Tokenization(windows=True, stride=stride, max_windows=needed)) == needed
    if needed > 1:
        with pytest.raises(TooLarge, match="--max_sequences"):
            windows(tokenizer, text, Tokenization(windows=True, stride=stride, max_windows=needed - 1))


def test_windows_of_several_texts_count_together(tokenizer: Tokenizer) -> None:
    texts = ["a " * 50] * (CHUNK + 3)
    needed = sum(map(len, tokenizer.encode_windows(texts, Tokenization(windows=True))))
    assert len(tokenizer.encode_windows(texts, Tokenization(windows=True, max_windows=needed))) == len(texts)
    with pytest.raises(TooLarge):
        tokenizer.encode_windows(texts, Tokenization(windows=True, max_windows=needed - 1))


def test_a_pair_counts_what_is_cut_of_it(tokenizer: Tokenizer) -> None:
    how = Tokenization(windows=True, stride=2, only_second=True)
    pair = ("a b c", "d " * 60)
    needed = windows(tokenizer, pair, how)
    assert needed > 5
    with pytest.raises(TooLarge):
        windows(tokenizer, pair, Tokenization(windows=True, stride=2, only_second=True, max_windows=needed - 1))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (Tokenization(windows=True, stride=14), "a stride of 14 tokens is too long for windows of 14"),
        (Tokenization(windows=True, max_length=2), "no room"),
    ],
)
def test_windows_that_can_not_be(tokenizer: Tokenizer, how: Tokenization, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        windows(tokenizer, "a " * 50, how)


class Waiting(Engine):
    """An engine that waits in its first chunk, and counts the chunks."""

    max_length = LENGTH

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        self.chunks.append(len(texts))
        self.begun.set()
        assert self.go_on.wait(30)
        return [[Encoding([1], [0])] for _ in texts]


def tokenizer_of(engine: Engine, decode: Callable[[Sequence[int], bool], str] | None = None) -> Tokenizer:
    found = Tokenizer(load_fast(FOLDER, {}, lower_case=True), engine, LENGTH)
    if decode is not None:
        found.decode = decode  # type: ignore[method-assign, assignment]
    return found


async def test_the_work_ends_with_its_caller() -> None:
    engine = Waiting()
    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(tokenizer_of(engine).encode_off_loop(["x" * 5000] * (CHUNK * 10), executor))
        assert await asyncio.to_thread(engine.begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.go_on.set()
    assert len(engine.chunks) == 1


@pytest.mark.parametrize(
    ("texts", "chunks"),
    [
        (["a"] * (CHUNK + 1), [CHUNK, 1]),
        (["x" * CHUNK_CHARACTERS, "a", "b"], [1, 2]),
        ([("x" * CHUNK_CHARACTERS, "y"), Words(("a",))], [1, 1]),
        ([], []),
    ],
)
def test_chunks_are_bounded_by_texts_and_characters(texts: list[TextInput], chunks: list[int]) -> None:
    engine = Waiting()
    engine.go_on.set()
    assert len(tokenizer_of(engine).encode_windows(texts, Tokenization())) == len(texts)
    assert engine.chunks == chunks


@pytest.mark.parametrize("text", ["a " * 20, TokenIds((1,) * 20)])
def test_tokens_of_a_request_are_bounded(tokenizer: Tokenizer, text: TextInput) -> None:
    def tokens(count: int, limit: int) -> int:
        how = Tokenization(detail=True, whole=True, special_tokens=False, max_tokens=limit)
        return sum(len(one) for [one] in tokenizer.encode_windows([text] * count, how))

    for count in (1, 3, CHUNK + 2):
        assert tokens(count, 20 * count) == 20 * count
        with pytest.raises(TooLarge, match=f"more than {20 * count - 1} tokens .*--max_answer_values"):
            tokens(count, 20 * count - 1)


def test_whole_texts_wait_for_nobody(tokenizer: Tokenizer) -> None:
    """Windows of one request at a time; whole texts meanwhile."""
    engine: Any = tokenizer._engine
    with engine._lock, ThreadPoolExecutor(1) as executor:
        [[found]] = executor.submit(tokenizer.encode_windows, ["a " * 50], Tokenization(whole=True)).result(30)
    assert len(found) == 52


async def test_many_ids_are_decoded_in_a_thread_as_long_as_somebody_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def decode(ids: Sequence[int], skip: bool) -> str:
        threads.append(threading.current_thread())
        if len(ids) > 1:
            begun.set()
            assert go_on.wait(30)
        return str(len(ids))

    tokenizer = tokenizer_of(Waiting(), decode)
    executor = ThreadPoolExecutor(1, "decoder")
    assert await tokenizer.decode_off_loop([[1]] * 3, executor, False) == ["1"] * 3
    assert threads == [threading.main_thread()] * 3
    task = asyncio.create_task(tokenizer.decode_off_loop([[1] * MANY_IDS] * 10, executor, False))
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert await tokenizer.decode_off_loop([[1] * (MANY_IDS + 1)], executor, False) == [str(MANY_IDS + 1)]
    assert len(threads) == 5 and {thread.name for thread in threads[3:]} == {"decoder_0"}
    executor.shutdown()
