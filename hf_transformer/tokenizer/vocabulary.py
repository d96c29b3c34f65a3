"""A tokenizer's vocabulary, and the way back from ids to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders

from hf_transformer.tokenizer.load import LoadedTokenizer

MANY_IDS = 2000
"""More ids than this are decoded by a method that lets other threads run meanwhile; it takes up to 1 ms for them."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What clean_up_tokenization_spaces replaces, in this order."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A tokenizer's vocabulary and the way back from ids to text.

    ``size`` is the highest id plus one. ``decode`` takes ids and whether special tokens are left out;
    ``decode_unclean`` is the same before spaces are removed (CLEAN_UP), if ``cleans_up``. ``marks_subwords``: a token
    that continues a word has a prefix. ``byte_level``: tokens are bytes, written in GPT-2's alphabet.
    """

    size: int
    to_id: Callable[[str], int | None]
    to_token: Callable[[int], str | None]
    decode: Callable[[Sequence[int], bool], str]
    join: Callable[[list[str]], str]
    marks_subwords: bool
    decode_unclean: Callable[[Sequence[int], bool], str]
    cleans_up: bool
    byte_level: bool


def rust_vocabulary(loaded: LoadedTokenizer) -> TokenTable:
    """The vocabulary of a Rust tokenizer that was loaded without transformers."""
    backend, decoder = loaded.backend, loaded.backend.decoder
    pieces = WordPieces(backend, decoder) if isinstance(decoder, decoders.WordPiece) else None
    decode_few, join = (pieces or backend).decode, (pieces.join if pieces else decoder.decode if decoder else " ".join)

    def decode_unclean(ids: Sequence[int], skip_special_tokens: bool) -> str:
        if len(ids) <= MANY_IDS:
            return decode_few(ids, skip_special_tokens)
        [text] = backend.decode_batch([list(ids)], skip_special_tokens)
        return str(text)

    def decode(ids: Sequence[int], skip_special_tokens: bool) -> str:
        text = decode_unclean(ids, skip_special_tokens)
        for old, new in CLEAN_UP if loaded.clean_up else ():
            text = text.replace(old, new)
        return text

    return TokenTable(
        size=loaded.size,
        to_id=backend.token_to_id,
        to_token=backend.id_to_token,
        decode=decode,
        join=join,
        marks_subwords=_marks_subwords(backend),
        decode_unclean=decode_unclean,
        cleans_up=loaded.clean_up,
        byte_level=isinstance(decoder, decoders.ByteLevel),
    )


def python_vocabulary(slow: Any, loaded: LoadedTokenizer | None) -> TokenTable:
    """The vocabulary of a tokenizer of transformers, and of its Rust part if it has one."""
    vocab: dict[str, int] = {} if loaded else slow.get_vocab()
    names = {number: token for token, number in vocab.items()}

    def decode(ids: Sequence[int], skip_special_tokens: bool, **options: bool) -> str:
        return str(slow.decode(list(ids), skip_special_tokens=skip_special_tokens, **options))

    return TokenTable(
        size=loaded.size if loaded else 1 + max(names, default=-1),
        to_id=loaded.backend.token_to_id if loaded else vocab.get,
        to_token=loaded.backend.id_to_token if loaded else names.get,
        decode=decode,
        join=slow.convert_tokens_to_string,
        marks_subwords=bool(loaded and _marks_subwords(loaded.backend)),
        decode_unclean=lambda ids, skip: decode(ids, skip, clean_up_tokenization_spaces=False),
        cleans_up=bool(slow.clean_up_tokenization_spaces),
        byte_level=False,
    )


def _marks_subwords(backend: Tokenizer) -> bool:
    return bool(getattr(backend.model, "continuing_subword_prefix", None))


class WordPieces:
    """WordPiece tokens to text, three to nine times as fast as the Rust library.

    The library cleans every token by itself, in eleven passes. Where no token can need more than the common ones of
    these, the tokens are joined and cleaned together, with the same result; else the library's decoder is called.
    """

    def __init__(self, backend: Tokenizer, decoder: decoders.WordPiece) -> None:
        self._backend = backend
        self._decoder = decoder
        self._prefix = f" {decoder.prefix}"
        self._cleaned = CLEAN_UP[:4] if decoder.cleanup else ()
        self._special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}

    def join(self, tokens: Sequence[str]) -> str:
        """The decoder's text of the tokens."""
        text = " ".join(tokens)
        # An apostrophe may begin a contraction, and tokens that are empty or have spaces in them look like others.
        if "'" in text or text.count(" ") >= len(tokens) or "" in tokens:
            return str(self._decoder.decode(list(tokens)))
        text = text.replace(self._prefix, "")
        for old, new in self._cleaned:
            text = text.replace(old, new)
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Tokenizer.decode's text of the ids."""
        to_token, left_out = self._backend.id_to_token, self._special if skip_special_tokens else ()
        found = map(to_token, ids)
        return self.join([token for token in found if token is not None and token not in left_out])
