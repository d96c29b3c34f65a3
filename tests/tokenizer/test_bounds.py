"""Bounds on the cost of one request's texts, and work outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tokenizer.engine import Engine
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.tokenizer import (
    CHUNK_CHARACTERS,
    CHUNK_TEXTS,
    INLINE_CHARACTERS,
    INLINE_IDS,
    Tokenizer,
    load_tokenizer,
)
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds, Tokenization, Words
from tests.support.budgets import budget
from tests.support.triton_repository import DEMO_MODEL

LENGTH = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(DEMO_MODEL, {}, max_model_len=LENGTH)


PAIR = ("a b c", "d " * 60)


@pytest.mark.parametrize("stride", [0, 3, 9])
@pytest.mark.parametrize(
    "texts",
    [["a " * 5], ["a " * 14], ["a " * 15], ["a " * 100], ["capital " * 77], [PAIR], ["a " * 50] * (CHUNK_TEXTS + 3)],
    ids=["short", "full", "over", "long", "pieces", "pair", "chunks"],
)
def test_windows_are_allowed_up_to_the_limit(tokenizer: Tokenizer, texts: list[TextInput], stride: int) -> None:
    def windows(limit: int = 10**6) -> int:
        allowed = budget(max_sequences=limit)
        allowed.add_sequences(len(texts), "instances")
        options = Tokenization(windows=True, stride=stride, only_second=texts == [PAIR], budget=allowed)
        return sum(map(len, tokenizer.encode_windows(texts, options)))

    needed = windows()
    assert windows(needed) == needed
    if needed > 1:
        with pytest.raises(TooLarge, match="--max_sequences"):
            windows(needed - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Tokenization(windows=True, stride=14), "a stride of less than 14 tokens, .*, got 14"),
        (Tokenization(windows=True, max_length=2), "a length of more than 2 tokens, .*, got 2"),
    ],
)
def test_windows_without_room_for_text_are_refused(tokenizer: Tokenizer, options: Tokenization, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tokenizer.encode_windows(["a " * 50], options)


@pytest.mark.parametrize("text", ["a " * 20, TokenIds((1,) * 20)], ids=["text", "token ids"])
def test_tokens_of_a_request_are_bounded(tokenizer: Tokenizer, text: TextInput) -> None:
    def tokens(count: int, limit: int) -> int:
        options = Tokenization(detail=True, whole=True, special_tokens=False, max_tokens=limit)
        return sum(len(encoding) for [encoding] in tokenizer.encode_windows([text] * count, options))

    for count in (1, 3, CHUNK_TEXTS + 2):
        assert tokens(count, 20 * count) == 20 * count
        with pytest.raises(TooLarge, match=f"at most {20 * count - 1} tokens .*--max_answer_values"):
            tokens(count, 20 * count - 1)


def test_token_ids_are_encoded_unchanged_up_to_the_models_length(tokenizer: Tokenizer) -> None:
    ids = (7,) * LENGTH
    texts: list[TextInput] = ["a", TokenIds(ids), TokenIds(ids[:2]), "b"]
    assert [encoding.ids for encoding in tokenizer.encode(texts)][1:3] == [[*ids], [7, 7]]
    with pytest.raises(TooLarge, match=f"at most {LENGTH} token ids in a text, got {LENGTH + 1}"):
        tokenizer.encode([TokenIds((*ids, 7))])


class BlockingEngine(Engine):
    """Records the size and thread of each chunk, and blocks in it until ``go_on``."""

    max_length = LENGTH

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.threads: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        self.chunks.append(len(texts))
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.go_on.wait(30)
        return [[Encoding([1], [0])] for _ in texts]


def tokenizer_of(engine: Engine, decode: Callable[[Sequence[int], bool], str] | None = None) -> Tokenizer:
    tokenizer = Tokenizer(load_fast(DEMO_MODEL, {}, lower_case=True), engine, LENGTH)
    if decode is not None:
        tokenizer.decode = decode  # type: ignore[method-assign, assignment]
    return tokenizer


async def test_long_texts_are_encoded_in_a_thread() -> None:
    engine, half = BlockingEngine(), "x" * (INLINE_CHARACTERS // 2)
    engine.go_on.set()
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizing") as executor:
        for texts in ([half, half], [half, (half[1:], "x")], [half, (half, "x")]):
            encoded = await tokenizer_of(engine).encode_off_loop(texts, executor)  # type: ignore[arg-type]
            assert len(encoded) == 2
    assert engine.threads == [threading.main_thread().name] * 2 + ["tokenizing_0"]


async def test_cancelling_the_caller_stops_encoding() -> None:
    engine = BlockingEngine()
    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(tokenizer_of(engine).encode_off_loop(["x" * 5000] * (CHUNK_TEXTS * 10), executor))
        assert await asyncio.to_thread(engine.begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.go_on.set()
    assert len(engine.chunks) == 1


@pytest.mark.parametrize(
    ("texts", "chunks"),
    [
        (["a"] * (CHUNK_TEXTS + 1), [CHUNK_TEXTS, 1]),
        (["x" * CHUNK_CHARACTERS, "a", "b"], [1, 2]),
        ([("x" * CHUNK_CHARACTERS, "y"), Words(("a",))], [1, 1]),
        ([], []),
    ],
    ids=["texts", "characters", "pairs and words", "none"],
)
def test_chunks_are_bounded_by_texts_and_characters(texts: list[TextInput], chunks: list[int]) -> None:
    engine = BlockingEngine()
    engine.go_on.set()
    assert len(tokenizer_of(engine).encode_windows(texts, Tokenization())) == len(texts)
    assert engine.chunks == chunks


async def test_many_ids_are_decoded_in_a_thread_until_the_caller_is_cancelled() -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[str] = []

    def decode(ids: Sequence[int], skip: bool) -> str:
        threads.append(threading.current_thread().name)
        if len(ids) > 1:
            begun.set()
            assert go_on.wait(30)
        return str(len(ids))

    tokenizer = tokenizer_of(BlockingEngine(), decode)
    with ThreadPoolExecutor(1, "decoder") as executor:
        assert await tokenizer.decode_off_loop([[1]] * 3, executor, False) == ["1"] * 3
        assert threads == [threading.main_thread().name] * 3
        task = asyncio.create_task(tokenizer.decode_off_loop([[1] * INLINE_IDS] * 10, executor, False))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await tokenizer.decode_off_loop([[1] * (INLINE_IDS + 1)], executor, False) == [str(INLINE_IDS + 1)]
    assert threads[3:] == ["decoder_0"] * 2
