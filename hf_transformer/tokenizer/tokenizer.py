"""Text to token ids and back, as transformers' AutoTokenizer does it, id for id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tokenizer.engine import Engine, PythonEngine, RustEngine, characters, too_many_tokens
from hf_transformer.tokenizer.load import LoadedTokenizer, choose_max_length, load_folder
from hf_transformer.tokenizer.vocabulary import MANY_IDS, TokenVocabulary
from hf_transformer.types import PLAIN, Encoding, Json, TextInput, Tokenization

INLINE_CHARACTERS = 2000
"""Up to this many characters are encoded on the event loop, more in a thread.

Measured on two busy cores with a vocabulary of 30,522 WordPiece tokens: 0.4 to 0.6 microseconds per character, so
about 1 ms at the limit, where the hop to a thread and back costs 0.06 to 0.15 ms.
"""

CHUNK, CHUNK_CHARACTERS = 64, 100_000
"""Texts, and about how many characters, that are encoded at a time: the library keeps the whole encodings until all of
them are done, which for a thousand long texts would be gigabytes, and other requests may be waiting for their turn."""

DETAILED = Tokenization(detail=True)

Result = TypeVar("Result")


class Tokenizer(TokenVocabulary):
    """One model's tokenizer. Threads and requests share it: no call changes what another one gives.

    ``max_length`` is the limit in tokens, special ones included. The other attributes are those of TokenVocabulary.
    """

    def __init__(self, loaded: LoadedTokenizer, engine: Engine, max_length: int) -> None:
        super().__init__(loaded)
        self._engine = engine
        self.max_length = max_length

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        """One encoding per text or pair: no padding, truncated to ``max_length``.

        With ``offsets``, an encoding has all its details. Raises InvalidInput.
        """
        return [windows[0] for windows in self.encode_windows(texts, DETAILED if offsets else PLAIN)]

    def encode_windows(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The encodings of each text: one, or with ``how.windows`` as many as a long text needs.

        Raises:
            InvalidInput: a text can't be encoded so.
            TooLarge: more than ``how.max_windows`` or ``how.max_tokens``.
        """
        return self._encode_chunks(_chunks(texts), how)

    def _encode_chunks(
        self, chunks: Iterable[Sequence[TextInput]], how: Tokenization, stop: threading.Event | None = None
    ) -> list[list[Encoding]]:
        """``stop`` ends the work early, between two chunks."""
        windows: list[list[Encoding]] = []
        left, tokens = how.max_windows, 0
        for chunk in chunks:
            if stop is not None and stop.is_set():
                break
            found = self._encode(chunk, replace(how, max_windows=max(left, 0)) if how.windows else how)
            windows += found
            if how.windows:
                left -= sum(map(len, found))
            if how.whole:
                tokens += sum(len(one) for [one] in found)
                if tokens > how.max_tokens:
                    raise too_many_tokens(how)
        return windows

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text, with the names of its tokens if they are asked for."""
        found = self._engine.encode(texts, how)
        if how.whole and how.detail:
            for [one] in found:
                names = {number: self.id_to_token(number) or "" for number in set(one.ids)}  # looked up and kept once
                one.tokens = [names[number] for number in one.ids]
        return found

    async def encode_off_loop(
        self, texts: Sequence[TextInput], executor: Executor, how: Tokenization = PLAIN, length: int | None = None
    ) -> list[list[Encoding]]:
        """``encode_windows`` that doesn't block the event loop: long texts are encoded in the executor.

        So are windows, and pairs of which one certain text is truncated, since these may wait for another request (see
        RustEngine). When the caller is cancelled the work in the executor ends soon too. ``length`` is the characters
        of all texts, if the caller knows.
        """
        if length is None:
            length = sum(map(characters, texts))
        if length <= INLINE_CHARACTERS and (how is PLAIN or how.whole or how == DETAILED):
            return self._encode_chunks((texts,), how) if how.whole else self._engine.encode(texts, how)
        return await _in_thread(executor, lambda stop: self._encode_chunks(_chunks(texts), how, stop))

    async def decode_off_loop(
        self, texts: Sequence[Sequence[int]], executor: Executor | None, skip_special_tokens: bool
    ) -> list[str]:
        """``decode`` for each, in the executor (None is the event loop's own) if there are many ids. That work ends
        soon when the caller is cancelled."""
        if sum(map(len, texts)) <= MANY_IDS:
            return [self.decode(ids, skip_special_tokens) for ids in texts]
        return await _in_thread(
            executor, lambda stop: [self.decode(ids, skip_special_tokens) for ids in texts if not stop.is_set()]
        )

    def first_token_id(self, text: str) -> int | None:
        """The id of a text's first token, special tokens left out; None for a text that has no tokens or can't be
        encoded."""
        try:
            [[found]] = self.encode_windows([text], Tokenization(whole=True, special_tokens=False))
        except InvalidInput:
            return None
        return found.ids[0] if found.ids else None

    def with_max_length(self, length: int) -> Tokenizer:
        """The same tokenizer with another limit in tokens."""
        if length == self.max_length:
            return self
        other = copy(self)
        other._engine, other.max_length = self._engine.with_max_length(length), length
        return other


async def _in_thread(executor: Executor | None, work: Callable[[threading.Event], Result]) -> Result:
    """What ``work`` gives. Its event is set when the caller is cancelled."""
    stop = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work, stop)
    finally:
        stop.set()


def _chunks(texts: Sequence[TextInput]) -> Iterator[Sequence[TextInput]]:
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == CHUNK or size >= CHUNK_CHARACTERS):
            yield texts[start:index]
            start, size = index, 0
        size += characters(text)
    if start < len(texts):
        yield texts[start:]


def load_tokenizer(
    folder: Path | str,
    model_config: Mapping[str, Json],
    *,
    max_model_len: int | None = None,
    at_most: int | None = None,
    lower_case: bool = True,
    special_tokens: bool = True,
    trust_remote_code: bool = False,
    word_cache: bool = True,
) -> Tokenizer:
    """Load the tokenizer of a folder.

    Args:
        folder: where tokenizer.json or the vocabulary files are.
        model_config: config.json, for the tokenizer's class and the longest sequence.
        max_model_len: the limit in tokens; None for the smaller of the tokenizer's and the model's, or 512.
        at_most: lowers that smaller one; nothing if ``max_model_len`` is given.
        lower_case: False switches lower-casing off; True leaves it as the model has it.
        special_tokens: whether [CLS], [SEP] and the like are added.
        trust_remote_code: whether the folder's own Python code may run.
        word_cache: whether the ids of words are kept (words.py).

    Raises:
        LoadError: the files are broken or missing, need code that is not allowed, or the limit does not fit.
    """
    loaded = load_folder(Path(folder), model_config, lower_case=lower_case, trust_remote_code=trust_remote_code)
    backend = loaded.backend
    max_length = choose_max_length(max_model_len, loaded.model_max_length, model_config)
    if at_most is not None and max_model_len is None:
        max_length = min(max_length, at_most)
    added = (backend or loaded.slow).num_special_tokens_to_add(False) if special_tokens else 0
    if max_length <= added:
        raise LoadError(f"a limit of {max_length} tokens leaves no room for text: {added} special tokens are added")
    if backend is None:
        return Tokenizer(loaded, PythonEngine(loaded.slow, max_length, special_tokens), max_length)
    side = loaded.truncation_side
    engine = RustEngine(backend, max_length, special_tokens=special_tokens, truncation_side=side, word_cache=word_cache)
    return Tokenizer(loaded, engine, max_length)
