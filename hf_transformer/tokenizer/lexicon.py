"""A tokenizer's vocabulary, and the way back from ids to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import decoders

from hf_transformer.tokenizer.tokenizer_files import LoadedTokenizer
from hf_transformer.tokenizer.word_pieces import WordPieces

MANY_IDS = 2000
"""More ids than this are decoded by a method that lets other threads go on meanwhile; it takes up to 1 ms for them."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What clean_up_tokenization_spaces replaces, in this order."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """A tokenizer's vocabulary and the way back from ids to text.

    ``decode`` takes ids and whether special tokens are left out; ``decode_unclean`` is the same before spaces are
    removed (CLEAN_UP), if ``cleans_up``. ``byte_level`` says that tokens are bytes, written in GPT-2's alphabet.
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


def rust_words(loaded: LoadedTokenizer, slow: Any) -> Lexicon:
    """The words of a Rust tokenizer; ``slow`` is the one of transformers around it, if there is one."""
    backend, decoder = loaded.backend, loaded.backend.decoder
    pieces = WordPieces(backend, decoder) if slow is None and isinstance(decoder, decoders.WordPiece) else None
    join = " ".join if decoder is None else decoder.decode
    if slow is not None:
        join = slow.convert_tokens_to_string

    def decode_unclean(ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str
        if slow is not None:
            return _decode_slowly(slow, ids, skip_special_tokens)
        if len(ids) > MANY_IDS:
            [text] = backend.decode_batch([list(ids)], skip_special_tokens)
        else:
            text = (pieces or backend).decode(ids, skip_special_tokens)
        return text

    def decode(ids: Sequence[int], skip_special_tokens: bool) -> str:
        if slow is not None:
            return str(slow.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = decode_unclean(ids, skip_special_tokens)
        for old, new in CLEAN_UP if loaded.clean_up else ():
            text = text.replace(old, new)
        return text

    return Lexicon(
        size=loaded.size,
        to_id=backend.token_to_id,
        to_token=backend.id_to_token,
        decode=decode,
        decode_unclean=decode_unclean,
        cleans_up=loaded.clean_up if slow is None else bool(slow.clean_up_tokenization_spaces),
        byte_level=slow is None and isinstance(decoder, decoders.ByteLevel),
        join=join if pieces is None else pieces.join,
        marks_subwords=bool(getattr(backend.model, "continuing_subword_prefix", None)),
    )


def python_words(slow: Any) -> Lexicon:
    """The words of a tokenizer of transformers that is written in Python."""
    vocab: dict[str, int] = slow.get_vocab()
    names = {number: token for token, number in vocab.items()}
    return Lexicon(
        size=max(vocab.values(), default=-1) + 1,
        to_id=vocab.get,
        to_token=names.get,
        decode=lambda ids, skip: str(slow.decode(list(ids), skip_special_tokens=skip)),
        decode_unclean=lambda ids, skip: _decode_slowly(slow, ids, skip),
        cleans_up=bool(slow.clean_up_tokenization_spaces),
        byte_level=False,
        join=slow.convert_tokens_to_string,
        marks_subwords=False,
    )


def _decode_slowly(slow: Any, ids: Sequence[int], skip_special_tokens: bool) -> str:
    return str(slow.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))
