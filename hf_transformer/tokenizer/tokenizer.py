"""Text to token ids and back, as transformers' AutoTokenizer does it, id for id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import decoders

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tokenizer.engine import Engine, PythonEngine, RustEngine, characters, too_many_tokens
from hf_transformer.tokenizer.load import LoadedTokenizer, choose_max_length, load_folder
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization

INLINE_CHARACTERS = 2000
"""Texts up to this length together are encoded on the event loop, longer ones in a thread.

Measured on two busy cores with a vocabulary of 30,522 WordPiece tokens: 0.4 to 0.6 microseconds per character, so
about 1 ms at the limit. The hop to a thread and back costs 0.06 to 0.15 ms.
"""

CHUNK_TEXTS, CHUNK_CHARACTERS = 64, 100_000
"""Texts in one call of the library, and the characters after which a chunk takes no further text. The library keeps all
encodings of a call, gigabytes for a thousand long texts."""

INLINE_IDS = 2000
"""Up to this many ids are decoded with the GIL held, in about 1 ms; more by a method that releases it."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""The replacements of clean_up_tokenization_spaces, in order."""

MASK_TOKENS = ("[MASK]", "<mask>")
"""Candidates for the mask token if the settings name none."""

Result = TypeVar("Result")


class Tokenizer:
    """One model's tokenizer. Thread-safe: no call changes the result of another.

    Attributes:
        max_length: the limit in tokens, special ones included.
        special_tokens: the named special tokens (``pad_token`` and so on), by name.
        pad_token_id: the id of the padding token.
        pad_id: an id that always exists, for masked positions.
        mask_token, mask_id: the mask token and its id.
        cls_id, unk_id: the ids of the classification token and of the token for unknown words.
        vocab_size: the highest id plus one, the least number of columns in a model's logits.
        padding_side: ``left`` or ``right``.
        marks_subwords: whether tokens that continue a word have a prefix (## of WordPiece).
        cleans_up: whether ``decode`` removes spaces before punctuation (CLEAN_UP).
        byte_level: whether tokens are bytes in GPT-2's alphabet.

    Missing tokens and their ids are None.
    """

    token_to_id: Callable[[str], int | None]
    """The id of a token, None for an unknown token."""
    id_to_token: Callable[[int], str | None]
    """The token of an id, None for an unknown id."""
    join_tokens: Callable[[list[str]], str]
    """Joins tokens into text, like AutoTokenizer.convert_tokens_to_string."""

    def __init__(self, loaded: LoadedTokenizer, engine: Engine, max_length: int) -> None:
        self._engine = engine
        self.max_length = max_length
        backend, self._slow = loaded.backend, loaded.slow
        self._backend: Any = backend
        vocab: dict[str, int] = {} if backend else self._slow.get_vocab()
        names = {number: token for token, number in vocab.items()}
        self.token_to_id = backend.token_to_id if backend else vocab.get
        self.id_to_token = backend.id_to_token if backend else names.get
        decoder = None if backend is None or self._slow is not None else backend.decoder
        self.join_tokens = " ".join if decoder is None else decoder.decode
        if self._slow is not None:
            self.join_tokens = self._slow.convert_tokens_to_string
        self.vocab_size = loaded.size
        self.padding_side = loaded.padding_side
        self.cleans_up = loaded.cleans_up
        self.byte_level = isinstance(decoder, decoders.ByteLevel)
        self.marks_subwords = bool(backend and getattr(backend.model, "continuing_subword_prefix", None))
        self.special_tokens = tokens = loaded.tokens
        ids = {name: self.token_to_id(token) for name, token in tokens.items()}
        self.cls_id, self.unk_id, self.pad_token_id = map(ids.get, ("cls_token", "unk_token", "pad_token"))
        usable = (self.pad_token_id, ids.get("eos_token"), self.unk_id)
        self.pad_id = next((number for number in usable if number is not None), 0)
        self.mask_token = tokens.get("mask_token") or next(
            (text for text in MASK_TOKENS if self.token_to_id(text)), None
        )
        self.mask_id = self.token_to_id(self.mask_token) if self.mask_token else None

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        """One encoding per text or pair, without padding, truncated to ``max_length``.

        ``offsets`` fills in all lists of Encoding. Raises InvalidInput.
        """
        return [windows[0] for windows in self.encode_windows(texts, Tokenization(detail=True) if offsets else PLAIN)]

    def encode_windows(
        self, texts: Sequence[TextInput], options: Tokenization, stop: threading.Event | None = None
    ) -> list[list[Encoding]]:
        """Encodes each text into one encoding, or into several windows with ``options.windows``.

        ``stop`` ends the work early, between two chunks of texts.

        Raises:
            InvalidInput: a text can't be encoded with these options.
            TooLarge: more than ``options.max_windows`` or ``options.max_tokens``.
        """
        encodings: list[list[Encoding]] = []
        remaining_windows, tokens = options.max_windows, 0
        for chunk in _chunks(texts):
            if stop is not None and stop.is_set():
                break
            chunk_options = replace(options, max_windows=max(remaining_windows, 0)) if options.windows else options
            encoded = self._encode(chunk, chunk_options)
            encodings += encoded
            if options.windows:
                remaining_windows -= sum(map(len, encoded))
            if options.whole:
                tokens += sum(len(encoding) for [encoding] in encoded)
                if tokens > options.max_tokens:
                    raise too_many_tokens(options)
        return encodings

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """The windows of each text. Whole texts with details also get the names of their tokens."""
        encodings = self._engine.encode(texts, options)
        if options.whole and options.detail:
            for [encoding] in encodings:
                names = {number: self.id_to_token(number) or "" for number in set(encoding.ids)}  # each looked up once
                encoding.tokens = [names[number] for number in encoding.ids]
        return encodings

    async def encode_off_loop(
        self, texts: Sequence[TextInput], executor: Executor, options: Tokenization = PLAIN, length: int | None = None
    ) -> list[list[Encoding]]:
        """``encode_windows`` without blocking the event loop: the executor encodes long texts.

        Cancelling the caller stops the executor's work after the current chunk. ``length`` is the number of characters
        in all texts, if known.
        """
        if length is None:
            length = sum(map(characters, texts))
        if length <= INLINE_CHARACTERS:
            return self._encode(texts, options)
        return await _in_thread(executor, lambda stop: self.encode_windows(texts, options, stop))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of some ids, like AutoTokenizer.decode."""
        if self._slow is not None:
            return str(self._slow.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = self.decode_unclean(ids, skip_special_tokens)
        for old, new in CLEAN_UP if self.cleans_up else ():
            text = text.replace(old, new)
        return text

    def decode_unclean(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """``decode`` without the clean-up of spaces (CLEAN_UP)."""
        if self._slow is not None:
            options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
            return str(self._slow.decode(list(ids), **options))
        if len(ids) <= INLINE_IDS:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        return str(self._backend.decode_batch([list(ids)], skip_special_tokens)[0])

    async def decode_off_loop(
        self, texts: Sequence[Sequence[int]], executor: Executor | None, skip_special_tokens: bool
    ) -> list[str]:
        """``decode`` for each text, in the executor if there are many ids; None is the event loop's own executor.

        Cancelling the caller stops the executor's work after the current text.
        """
        if sum(map(len, texts)) <= INLINE_IDS:
            return [self.decode(ids, skip_special_tokens) for ids in texts]
        return await _in_thread(
            executor, lambda stop: [self.decode(ids, skip_special_tokens) for ids in texts if not stop.is_set()]
        )

    def first_token_id(self, text: str) -> int | None:
        """The id of a text's first token that is not special; None if it has no tokens or can't be encoded."""
        try:
            [[encoding]] = self.encode_windows([text], Tokenization(whole=True, special_tokens=False))
        except InvalidInput:
            return None
        return encoding.ids[0] if encoding.ids else None

    def with_max_length(self, length: int) -> Tokenizer:
        """A copy with another limit in tokens."""
        if length == self.max_length:
            return self
        tokenizer = copy(self)
        tokenizer._engine, tokenizer.max_length = self._engine.with_max_length(length), length
        return tokenizer


async def _in_thread(executor: Executor | None, work: Callable[[threading.Event], Result]) -> Result:
    """Runs ``work`` in the executor, and sets its event when the caller is cancelled."""
    stop = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work, stop)
    finally:
        stop.set()


def _chunks(texts: Sequence[TextInput]) -> Iterator[Sequence[TextInput]]:
    """Splits texts into chunks of up to CHUNK_TEXTS. A chunk that reaches CHUNK_CHARACTERS takes no further text."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == CHUNK_TEXTS or size >= CHUNK_CHARACTERS):
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
    """Loads the tokenizer of a folder.

    Args:
        folder: the folder of tokenizer.json or the vocabulary files.
        model_config: config.json, for the tokenizer's class and the longest sequence.
        max_model_len: the limit in tokens; None for the smaller of the tokenizer's and the model's, or 512.
        at_most: an upper bound for the limit, ignored with ``max_model_len``.
        lower_case: False switches lower-casing off; True keeps the model's setting.
        special_tokens: whether to add [CLS], [SEP] and the like.
        trust_remote_code: whether the folder's own Python code may run.
        word_cache: whether to cache the ids of words (words.py).

    Raises:
        LoadError: the files are broken or missing, need code that is not allowed, or the limit is too large or small.
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
