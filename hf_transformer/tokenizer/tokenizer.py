"""Text to token ids and back, as transformers' AutoTokenizer does it, id for id."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_transformer.errors import InvalidInput, LoadError, TooLarge
from hf_transformer.tokenizer.engine import Engine, RustEngine, characters, too_many_tokens
from hf_transformer.tokenizer.lexicon import MANY_IDS, python_words, rust_words
from hf_transformer.tokenizer.lexicon import Lexicon as Lexicon
from hf_transformer.tokenizer.tokenizer_fallback import PythonEngine, load_with_transformers, named_tokens
from hf_transformer.tokenizer.tokenizer_files import LoadedTokenizer, NotMirrored, load_fast
from hf_transformer.tokenizer.tokenizer_limits import choose_max_length
from hf_transformer.types import PLAIN, Encoding, Json, TextInput, TokenIds, Tokenization

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 2000
"""Up to this many characters are encoded on the event loop, more in a thread.

Measured on two busy cores with a vocabulary of 30,522 WordPiece tokens: 0.4 to 0.6 microseconds per character, so
about 1 ms at the limit, where the hop to a thread and back costs 0.06 to 0.15 ms.
"""

CHUNK, CHUNK_CHARACTERS = 64, 100_000
"""Texts, and about how many characters, that are encoded at a time: the library keeps what it cuts off of a text until
all of them are done, which for a thousand long ones would be gigabytes, and others may be waiting for their turn."""

USUAL = (PLAIN, Tokenization(detail=True))
"""What is encoded without waiting for anybody."""

_BARE = Tokenization(whole=True, special_tokens=False)

MASK_TOKENS = ("[MASK]", "<mask>")
"""Taken as the mask token where the settings name none and the vocabulary has one of them."""


class Tokenizer:
    """One model's tokenizer. Nothing that changes in it can be seen from outside, so threads and requests share it.

    Attributes: ``max_length``, the limit in tokens, special ones included; ``padding_side``, ``left`` or ``right``;
    ``pad_token_id``, None if there is no padding token; ``pad_id``, an id that always exists, for positions that are
    masked out; ``mask_token`` and ``mask_id``, None if there is no mask token; ``cls_id`` and ``unk_id``, None if
    there is no token that stands for the text, or for unknown words; ``marks_subwords``, whether a token that continues
    a word has a prefix (## of WordPiece); ``cleans_up``, whether ``decode`` removes spaces before punctuation
    (lexicon.CLEAN_UP); ``byte_level``, whether tokens are bytes in GPT-2's alphabet.
    """

    def __init__(
        self, engine: Engine, words: Lexicon, tokens: Mapping[str, str], *, max_length: int, padding_side: str
    ) -> None:
        self._engine = engine
        self._words = words
        self._tokens = tokens
        self.max_length = max_length
        self.padding_side = padding_side
        self.mask_token = tokens.get("mask_token") or next((text for text in MASK_TOKENS if words.to_id(text)), None)
        self.mask_id = words.to_id(self.mask_token) if self.mask_token else None
        self.cls_id = words.to_id(tokens["cls_token"]) if "cls_token" in tokens else None
        self.unk_id = words.to_id(tokens["unk_token"]) if "unk_token" in tokens else None
        self.marks_subwords = words.marks_subwords
        self.cleans_up = words.cleans_up
        self.byte_level = words.byte_level
        ids = [words.to_id(tokens[name]) for name in ("pad_token", "eos_token", "unk_token") if name in tokens]
        self.pad_token_id = words.to_id(tokens["pad_token"]) if "pad_token" in tokens else None
        self.pad_id = next((number for number in ids if number is not None), 0)

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Those with a name of their own, by it: bos_token, eos_token, pad_token and so on."""
        return self._tokens

    @property
    def vocab_size(self) -> int:
        """The highest id, plus one: what a model's logits need at least."""
        return self._words.size

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        """One encoding per text or pair: no padding, cut to ``max_length``.

        With ``offsets``, an encoding has all its details. Raises InvalidInput.
        """
        how = Tokenization(detail=True) if offsets else PLAIN
        return [windows[0] for windows in self.encode_windows(texts, how)]

    def encode_short(self, text: str) -> Encoding:
        """What ``encode`` gives for one text, with little around it. Raises InvalidInput."""
        return self._engine.encode_one(text)

    def ids(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """All ids of one text, which is not cut, with the special tokens that the service adds or without any.

        Raises InvalidInput.
        """
        return self._engine.ids(text, special_tokens=special_tokens)

    def encode_windows(
        self, texts: Sequence[TextInput], how: Tokenization, stop: threading.Event | None = None
    ) -> list[list[Encoding]]:
        """The encodings of each text: one, or with ``how.windows`` as many as a long text needs.

        ``stop`` ends it early, between two chunks, with whatever there is by then.

        Raises:
            InvalidInput: a text can't be encoded so.
            TooLarge: more than ``how.max_windows`` or ``how.max_tokens``.
        """
        windows: list[list[Encoding]] = []
        left, tokens = how.max_windows, 0
        for chunk in _chunks(texts):
            if stop is not None and stop.is_set():
                break
            found = self._encode(chunk, replace(how, max_windows=max(left, 0)) if how.windows else how)
            left -= sum(map(len, found))
            windows += found
            if how.whole:
                tokens += sum(len(one) for [one] in found)
                if tokens > how.max_tokens:
                    raise too_many_tokens(how)
        return windows

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text; those that are tokens already have one."""
        rest = [text for text in texts if not isinstance(text, TokenIds)]
        found = iter(self._engine.encode(rest, how) if rest else ())
        if how.whole and how.detail:
            found = ([self._named(one)] for [one] in found)
        return [[self._as_given(text, how)] if isinstance(text, TokenIds) else next(found) for text in texts]

    def _named(self, encoding: Encoding) -> Encoding:
        """With its tokens. Each name is looked up, and kept in memory, once."""
        names = {number: self.id_to_token(number) or "" for number in set(encoding.ids)}
        return replace(encoding, tokens=[names[number] for number in encoding.ids])

    def _as_given(self, text: TokenIds, how: Tokenization) -> Encoding:
        if len(text.ids) > self.max_length and not how.whole:
            raise TooLarge(
                f"{len(text.ids)} token ids in one text, and the model takes {self.max_length}; "
                "they are not cut, since their special tokens would be lost"
            )
        return Encoding(list(text.ids), [0] * len(text.ids))

    async def encode_off_loop(
        self, texts: Sequence[TextInput], executor: Executor, how: Tokenization = PLAIN
    ) -> list[list[Encoding]]:
        """``encode_windows`` that doesn't block the event loop: long texts go to the executor.

        So does all that is cut in another than the usual way, since it may have to wait for others (see RustEngine).
        When the caller is cancelled the work in the executor ends soon too.
        """
        if (
            how is PLAIN
            and len(texts) <= CHUNK
            and set(map(type, texts)) == {str}
            and sum(map(len, texts)) <= INLINE_CHARACTERS  # type: ignore[arg-type]  # all are strings
        ):
            return self._engine.encode(texts, PLAIN)
        if (how.whole or how in USUAL) and sum(map(characters, texts)) <= INLINE_CHARACTERS:
            return self.encode_windows(texts, how)
        stop = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, self.encode_windows, texts, how, stop)
        finally:
            stop.set()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of some ids, as AutoTokenizer.decode gives it."""
        return self._words.decode(ids, skip_special_tokens)

    def decode_unclean(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """``decode`` before the spaces are removed that ``cleans_up`` is about."""
        return self._words.decode_unclean(ids, skip_special_tokens)

    async def decode_off_loop(
        self, texts: Sequence[Sequence[int]], executor: Executor | None, skip_special_tokens: bool
    ) -> list[str]:
        """``decode`` for each, in the executor (None is the event loop's own) if there are many ids. That work ends
        soon when the caller is cancelled."""
        if sum(map(len, texts)) <= MANY_IDS:
            return [self.decode(ids, skip_special_tokens) for ids in texts]
        stop = threading.Event()

        def decode() -> list[str]:
            return [self.decode(ids, skip_special_tokens) for ids in texts if not stop.is_set()]

        try:
            return await asyncio.get_running_loop().run_in_executor(executor, decode)
        finally:
            stop.set()

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, None if there is no such token."""
        return self._words.to_id(token)

    def id_to_token(self, number: int) -> str | None:
        """The token with an id, None if there is no such id."""
        return self._words.to_token(number)

    def join_tokens(self, tokens: list[str]) -> str:
        """The text of some tokens, as AutoTokenizer.convert_tokens_to_string gives it."""
        return self._words.join(tokens)

    def first_token_id(self, text: str) -> int | None:
        """The id of a text's first token, special tokens left out; None for a text without tokens, which one that the
        tokenizer can't encode is, too."""
        try:
            [[found]] = self.encode_windows([text], _BARE)
        except InvalidInput:
            return None
        return found.ids[0] if found.ids else None

    def with_max_length(self, length: int) -> Tokenizer:
        """The same tokenizer with another limit in tokens; the two share nothing that changes."""
        if length == self.max_length:
            return self
        engine = self._engine.with_max_length(length)
        return Tokenizer(engine, self._words, self._tokens, max_length=length, padding_side=self.padding_side)


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

    Raises:
        LoadError: the files are broken or missing, need code that is not allowed, or the limit does not fit.
    """
    folder = Path(folder)
    loaded, slow = _load(folder, model_config, lower_case, trust_remote_code)
    own_limit = loaded.model_max_length if loaded else slow.model_max_length
    max_length = choose_max_length(max_model_len, own_limit, model_config)
    if at_most is not None and max_model_len is None:
        max_length = min(max_length, at_most)
    added = (loaded.backend if loaded else slow).num_special_tokens_to_add(False) if special_tokens else 0
    if max_length <= added:
        raise LoadError(f"a limit of {max_length} tokens leaves no room for text: {added} special tokens are added")
    if loaded is None:
        engine: Engine = PythonEngine(slow, max_length, special_tokens)
        words, tokens, side = python_words(slow), named_tokens(slow), slow.padding_side
    else:
        engine = RustEngine(
            loaded.backend, max_length, special_tokens=special_tokens, truncation_side=loaded.truncation_side
        )
        words, tokens, side = rust_words(loaded, slow), loaded.tokens, loaded.padding_side
    return Tokenizer(engine, words, tokens, max_length=max_length, padding_side=side)


def _load(
    folder: Path, config: Mapping[str, Json], lower_case: bool, trust_remote_code: bool
) -> tuple[LoadedTokenizer | None, Any]:
    """The Rust tokenizer, or None, and the tokenizer of transformers, or None where it is not needed."""
    if (folder / "tokenizer.json").is_file():
        try:
            return load_fast(folder, config, lower_case=lower_case), None
        except NotMirrored as exc:
            log.info("the tokenizer in %s is loaded by transformers (%s)", folder, exc)
    return load_with_transformers(folder, lower_case=lower_case, trust_remote_code=trust_remote_code)
