"""Text to token ids and back, as transformers' AutoTokenizer does it, id for id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.loading.tokenizer_fallback import PythonEngine, load_with_transformers, named_tokens
from hf_transformer.loading.tokenizer_files import LoadedTokenizer, NotMirrored, load_fast
from hf_transformer.loading.tokenizer_limits import choose_max_length
from hf_transformer.types import Encoding, Json, TextInput

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 2000
"""Up to this many characters are encoded on the event loop, more in a thread.

Measured on two busy cores with a vocabulary of 30,522 WordPiece tokens: 0.4 to 0.6 microseconds per character, so
about 1 ms at the limit, where the hop to a thread and back costs 0.06 to 0.15 ms.
"""

CHUNK = 64
"""Texts that are encoded at a time: the library keeps what it cuts off of a text until all of them are done, which for
a thousand long ones would be gigabytes."""

MASK_TOKENS = ("[MASK]", "<mask>")
"""Taken as the mask token where the settings name none and the vocabulary has one of them."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What clean_up_tokenization_spaces replaces, in this order."""


class Engine(Protocol):
    """What encodes: the Rust library, or a tokenizer written in Python."""

    def encode(self, texts: Sequence[TextInput], *, offsets: bool) -> list[Encoding]: ...
    def with_max_length(self, length: int) -> Engine: ...


class RustEngine:
    """A tokenizer of the Rust library. Its settings are made here and never change, so that threads can share it."""

    def __init__(
        self, backend: tokenizers.Tokenizer, max_length: int, *, special_tokens: bool, truncation_side: str
    ) -> None:
        backend.no_padding()
        backend.enable_truncation(max_length, stride=0, strategy="longest_first", direction=truncation_side)
        self._backend = backend
        self._max_length = max_length
        self._special_tokens = special_tokens
        self._truncation_side = truncation_side

    def encode(self, texts: Sequence[TextInput], *, offsets: bool) -> list[Encoding]:
        """One encoding per text. Raises InvalidInput for text that is not Unicode, or a pair that can't fit."""
        run = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        try:
            encoded = run(list(texts), add_special_tokens=self._special_tokens)
        except Exception as exc:  # the library raises TypeError for lone surrogates, else bare Exception
            raise InvalidInput(f"the tokenizer can't encode a text: {_reason(texts) or exc}") from exc
        return [self._convert(encoding, offsets) for encoding in encoded]

    def _convert(self, encoding: tokenizers.Encoding, offsets: bool) -> Encoding:
        ids = encoding.ids
        if len(ids) > self._max_length:
            # The library doesn't truncate at all where the special tokens alone are too many.
            raise InvalidInput(f"a pair of texts does not fit into {self._max_length} tokens")
        # Only a text that was cut is as long as the limit and has a rest; reading the rest costs time.
        truncated = len(ids) == self._max_length and bool(encoding.overflowing)
        if not offsets:
            return Encoding(ids, encoding.type_ids, truncated)
        return Encoding(ids, encoding.type_ids, truncated, encoding.offsets, encoding.special_tokens_mask)

    def with_max_length(self, length: int) -> RustEngine:
        """A copy that cuts elsewhere: the limit is a setting inside the Rust object."""
        return RustEngine(
            tokenizers.Tokenizer.from_str(self._backend.to_str()),
            length,
            special_tokens=self._special_tokens,
            truncation_side=self._truncation_side,
        )


def _reason(texts: Sequence[TextInput]) -> str | None:
    for text in texts:
        try:
            "".join(text).encode()
        except UnicodeEncodeError as exc:
            return f"it has a lone surrogate, {exc.object[exc.start]!r}, which is not Unicode text"
    return None


@dataclass(frozen=True, slots=True)
class Words:
    """A tokenizer's vocabulary and the way back from ids to text."""

    size: int
    to_id: Callable[[str], int | None]
    to_token: Callable[[int], str | None]
    decode: Callable[[Sequence[int], bool], str]
    encode_plain: Callable[[str], list[int]]


class Tokenizer:
    """One model's tokenizer. It has no state that changes, so threads and requests share it.

    Attributes: ``max_length``, the limit in tokens, special ones included; ``padding_side``, ``left`` or ``right``;
    ``pad_token_id``, None if there is no padding token; ``pad_id``, an id that always exists, for positions that are
    masked out; ``mask_token`` and ``mask_id``, None if there is no mask token.
    """

    def __init__(
        self, engine: Engine, words: Words, tokens: Mapping[str, str], *, max_length: int, padding_side: str
    ) -> None:
        self._engine = engine
        self._words = words
        self._tokens = tokens
        self.max_length = max_length
        self.padding_side = padding_side
        self.mask_token = tokens.get("mask_token") or next((text for text in MASK_TOKENS if words.to_id(text)), None)
        self.mask_id = words.to_id(self.mask_token) if self.mask_token else None
        ids = [words.to_id(tokens[name]) for name in ("pad_token", "eos_token", "unk_token") if name in tokens]
        self.pad_token_id = words.to_id(tokens["pad_token"]) if "pad_token" in tokens else None
        self.pad_id = next((number for number in ids if number is not None), 0)

    @property
    def vocab_size(self) -> int:
        """The highest id, plus one: what a model's logits need at least."""
        return self._words.size

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        """One encoding per text or pair: no padding, cut to ``max_length``.

        With ``offsets``, an encoding has the offsets and the mask of special tokens too. Raises InvalidInput.
        """
        encodings: list[Encoding] = []
        for start in range(0, len(texts), CHUNK):
            encodings += self._engine.encode(texts[start : start + CHUNK], offsets=offsets)
        return encodings

    async def encode_off_loop(
        self, texts: Sequence[TextInput], executor: Executor, *, offsets: bool = False
    ) -> list[Encoding]:
        """``encode`` that doesn't block the event loop: long texts go to the executor, which must have threads."""
        characters = sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts)
        if characters <= INLINE_CHARACTERS:
            return self.encode(texts, offsets=offsets)
        work = partial(self.encode, texts, offsets=offsets)
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of some ids, as AutoTokenizer.decode gives it."""
        return self._words.decode(ids, skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, None if there is no such token."""
        return self._words.to_id(token)

    def id_to_token(self, number: int) -> str | None:
        """The token with an id, None if there is no such id."""
        return self._words.to_token(number)

    def first_token_id(self, text: str) -> int | None:
        """The id of a text's first token, special tokens left out; None for a text without tokens."""
        ids = self._words.encode_plain(text)
        return ids[0] if ids else None

    def with_max_length(self, length: int) -> Tokenizer:
        """The same tokenizer with another limit in tokens; the two share nothing that changes."""
        if length == self.max_length:
            return self
        engine = self._engine.with_max_length(length)
        return Tokenizer(engine, self._words, self._tokens, max_length=length, padding_side=self.padding_side)


def load_tokenizer(
    folder: Path | str,
    model_config: Mapping[str, Json],
    *,
    max_model_len: int | None = None,
    lower_case: bool = True,
    special_tokens: bool = True,
    trust_remote_code: bool = False,
) -> Tokenizer:
    """Load the tokenizer of a folder.

    Args:
        folder: where tokenizer.json or the vocabulary files are.
        model_config: config.json, for the tokenizer's class and the longest sequence.
        max_model_len: the limit in tokens; None for the smaller of the tokenizer's and the model's, or 512.
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
    added = (loaded.backend if loaded else slow).num_special_tokens_to_add(False) if special_tokens else 0
    if max_length <= added:
        raise LoadError(f"a limit of {max_length} tokens leaves no room for text: {added} special tokens are added")
    if loaded is None:
        engine: Engine = PythonEngine(slow, max_length, special_tokens)
        words, tokens, side = _python_words(slow), named_tokens(slow), slow.padding_side
    else:
        engine = RustEngine(
            loaded.backend, max_length, special_tokens=special_tokens, truncation_side=loaded.truncation_side
        )
        words, tokens, side = _rust_words(loaded, slow), loaded.tokens, loaded.padding_side
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


def _rust_words(loaded: LoadedTokenizer, slow: Any) -> Words:
    backend = loaded.backend

    def decode(ids: Sequence[int], skip_special_tokens: bool) -> str:
        if slow is not None:
            return str(slow.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = backend.decode(ids, skip_special_tokens=skip_special_tokens)
        for old, new in CLEAN_UP if loaded.clean_up else ():
            text = text.replace(old, new)
        return text

    return Words(
        size=loaded.size,
        to_id=backend.token_to_id,
        to_token=backend.id_to_token,
        decode=decode,
        encode_plain=lambda text: backend.encode(text, add_special_tokens=False).ids,
    )


def _python_words(slow: Any) -> Words:
    vocab: dict[str, int] = slow.get_vocab()
    names = {number: token for token, number in vocab.items()}
    return Words(
        size=max(vocab.values(), default=-1) + 1,
        to_id=vocab.get,
        to_token=names.get,
        decode=lambda ids, skip: str(slow.decode(list(ids), skip_special_tokens=skip)),
        encode_plain=lambda text: list(slow(text, add_special_tokens=False)["input_ids"]),
    )
