"""A tokenizer's vocabulary, and the way back from ids to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import decoders

from hf_transformer.tokenizer.load import LoadedTokenizer

MANY_IDS = 2000
"""More ids than this are decoded by a method that lets other threads run meanwhile; it takes up to 1 ms for them."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What clean_up_tokenization_spaces replaces, in this order."""


MASK_TOKENS = ("[MASK]", "<mask>")
"""Taken as the mask token where the settings name none and the vocabulary has one of them."""


class TokenVocabulary:
    """A tokenizer's vocabulary, and the way back from ids to text.

    Attributes: ``special_tokens``, those with a name of their own, by it (``pad_token`` and so on); ``pad_token_id``,
    None if there is no padding token; ``pad_id``, an id that always exists, for positions that are masked out;
    ``mask_token`` and ``mask_id``, None if there is no mask token; ``cls_id`` and ``unk_id``, None if there is no token
    that stands for the text, or for unknown words; ``vocab_size``, the highest id plus one, what a model's logits need
    at least; ``padding_side``, ``left`` or ``right``; ``marks_subwords``, whether a token that continues a word has a
    prefix (## of WordPiece); ``cleans_up``, whether ``decode`` removes spaces before punctuation (CLEAN_UP);
    ``byte_level``, whether tokens are bytes in GPT-2's alphabet.
    """

    token_to_id: Callable[[str], int | None]
    """The id of a token, None if there is no such token."""
    id_to_token: Callable[[int], str | None]
    """The token with an id, None if there is no such id."""
    join_tokens: Callable[[list[str]], str]
    """The text of some tokens, as AutoTokenizer.convert_tokens_to_string gives it."""

    def __init__(self, loaded: LoadedTokenizer) -> None:
        backend, self._slow = loaded.backend, loaded.slow
        vocab: dict[str, int] = {} if backend else self._slow.get_vocab()
        names = {number: token for token, number in vocab.items()}
        self.token_to_id = backend.token_to_id if backend else vocab.get
        self.id_to_token = backend.id_to_token if backend else names.get
        decoder = None if backend is None or self._slow is not None else backend.decoder
        self._backend: Any = backend
        self._few: Any = WordPieces(backend, decoder) if isinstance(decoder, decoders.WordPiece) else backend
        self.join_tokens = " ".join if decoder is None else decoder.decode
        if self._slow is not None:
            self.join_tokens = self._slow.convert_tokens_to_string
        elif isinstance(self._few, WordPieces):
            self.join_tokens = self._few.join
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

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of some ids, as AutoTokenizer.decode gives it."""
        if self._slow is not None:
            return str(self._slow.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = self.decode_unclean(ids, skip_special_tokens)
        for old, new in CLEAN_UP if self.cleans_up else ():
            text = text.replace(old, new)
        return text

    def decode_unclean(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """``decode`` before the spaces are removed that ``cleans_up`` is about."""
        if self._slow is not None:
            options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
            return str(self._slow.decode(list(ids), **options))
        if len(ids) <= MANY_IDS:
            return str(self._few.decode(ids, skip_special_tokens))
        return str(self._backend.decode_batch([list(ids)], skip_special_tokens)[0])


class WordPieces:
    """WordPiece tokens to text, three to nine times as fast as the Rust library.

    The library cleans every token by itself, in eleven passes. Where no token can need more than the common ones of
    these, the tokens are joined and cleaned together, with the same result; else the library's decoder is called.
    """

    def __init__(self, backend: Any, decoder: decoders.WordPiece) -> None:
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
