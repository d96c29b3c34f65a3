"""The text of WordPiece tokens, several times as fast as the Rust library puts it together.

The library cleans every token by itself, in eleven passes. Where no token can need more than the common ones of these,
the tokens are joined and cleaned in one go, with the same result; otherwise the library's own decoder is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders

CLEANED = tuple((f" {mark}", mark) for mark in ".?!,")


class WordPieces:
    """Ids and tokens to text for a tokenizer that has a WordPiece decoder."""

    def __init__(self, backend: Tokenizer, decoder: decoders.WordPiece) -> None:
        self._backend = backend
        self._decoder = decoder
        self._prefix = f" {decoder.prefix}"
        self._cleaned = CLEANED if decoder.cleanup else ()
        self._special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}

    def join(self, tokens: Sequence[str]) -> str:
        """What the decoder makes of the tokens."""
        text = " ".join(tokens)
        # An apostrophe may begin a contraction, and tokens that are empty or have spaces in them look like others.
        if "'" in text or text.count(" ") >= len(tokens) or "" in tokens:
            return str(self._decoder.decode(list(tokens)))
        text = text.replace(self._prefix, "")
        for old, new in self._cleaned:
            text = text.replace(old, new)
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """What Tokenizer.decode makes of the ids."""
        to_token, left_out = self._backend.id_to_token, self._special if skip_special_tokens else ()
        found = map(to_token, ids)
        return self.join([token for token in found if token is not None and token not in left_out])
