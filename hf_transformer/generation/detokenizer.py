"""Token ids to text, a token at a time, at a cost that does not grow with the text.

The pieces, joined, are what Tokenizer.decode makes of all ids, without special tokens. Half a character is held back
until it is whole, and so is text that a later token may still change; combining marks and joiners are characters of
their own.

A detokenizer has the text of one continuation: ``push`` takes one more id and returns the text that is certain,
``flush`` returns the rest at the end (half a character becomes U+FFFD, as in ``decode``). ``held`` counts the
characters that are held back; one that is not whole yet counts as one.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias

from hf_transformer.errors import PredictorError
from hf_transformer.generation.stops import StreamReplacer
from hf_transformer.tokenizer.tokenizer import CLEAN_UP, Tokenizer

UNKNOWN = "\ufffd"
"""A decoder's character for bytes that are no character, or not yet."""
CONTEXT = 8
"""Tokens of the prompt that a text is continued from: a space before the first new token depends on there being one."""
HALF = 4
"""The same for byte-level tokenizers: bytes of the longest character; each token is a byte at least."""
MOST_PENDING = 32
"""After so many tokens without certain text, the text is given as it is: no character needs so many."""

_UTF8: Final = codecs.getincrementaldecoder("utf-8")


def _byte_alphabet() -> Mapping[str, int]:
    """GPT-2's characters for the 256 bytes: printable ones of Latin-1 stand for themselves, the others follow at 256.

    Source: bytes_to_unicode in GPT-2's encoder.py.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Vocabulary:
    """The texts and bytes of a tokenizer's tokens, looked up once each. All texts of a model share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._alphabet = _byte_alphabet()
        self._plain = tokenizer.first_token_id("a")
        self.is_special = cache(self._is_special)
        self.byte_string = cache(self._byte_string)
        self.whole_text = cache(self._whole_text)
        self.single_byte = cache(self._single_byte)
        self.show = cache(self._show)

    def continue_text(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for the text after the ids of a prompt, or without ids for a text of its own."""
        context: list[int] = []
        byte_level = self.tokenizer.byte_level
        most = HALF if byte_level else CONTEXT
        for number in reversed(prompt):
            if not self.is_special(number):
                if byte_level and not context and self.whole_text(number):
                    break  # the prompt ends with a whole character: nothing is open
                context.append(number)
                if len(context) == most:
                    break
        context.reverse()
        made = Bytes(self, context) if byte_level else Window(self, context)
        return CleanupDetokenizer(made) if self.tokenizer.cleans_up else made

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special ones left out."""
        return self.tokenizer.decode_unclean(ids, True)

    def _is_special(self, number: int) -> bool:
        """Whether a token is left out of a text: special ones, and ids that the model has and the tokenizer does not.
        Raises PredictorError for what can't be a token's id."""
        if not 0 <= number < 2**31:
            raise PredictorError(f"the predictor gave {number} as a token's id")
        if self.tokenizer.id_to_token(number) is None:
            return True
        decode = self.tokenizer.decode_unclean
        return not decode((number,), True) and bool(decode((number,), False))

    def _byte_string(self, number: int) -> bytes:
        """The bytes of a byte-level token; none of a special one. As in the library's decoder, a token with other
        characters than the alphabet's is plain text."""
        token = "" if self.is_special(number) else self.tokenizer.id_to_token(number) or ""
        places = [self._alphabet.get(character) for character in token]
        return token.encode() if None in places else bytes(place for place in places if place is not None)

    def _whole_text(self, number: int) -> str | None:
        """The text of a byte-level token, None if it begins or ends within a character."""
        try:
            return self.byte_string(number).decode()
        except UnicodeDecodeError:
            return None

    def _single_byte(self, number: int) -> int | None:
        """The byte that a token of byte fallback (``<0xE2>``) stands for, None for any other token."""
        token = self.tokenizer.id_to_token(number) or ""
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">") and self.decode((number,)) != token:
            return int(token[3:5], 16)
        return None

    def _show(self, number: int) -> tuple[str, bytes]:
        """A token by itself, with the space before it, as text and as bytes, which may be part of a character."""
        if self.is_special(number):
            text = self.tokenizer.id_to_token(number) or ""
            return text, text.encode()
        byte = None if self.tokenizer.byte_level else self.single_byte(number)
        if self.tokenizer.byte_level or byte is not None:
            raw = self.byte_string(number) if byte is None else bytes((byte,))
            return raw.decode(errors="replace"), raw
        # Behind another token it has the space that it would lose as the first of a text.
        before = () if self._plain is None else (self._plain,)
        text = self.decode((*before, number)).removeprefix(self.decode(before)) if before else self.decode((number,))
        return text, text.encode()


class Bytes:
    """For byte-level BPE: the tokens' bytes, joined, are the text; what is invalid becomes U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, context: Sequence[int]) -> None:
        self._byte_string = vocabulary.byte_string
        self._whole_text = vocabulary.whole_text
        self._decoder: codecs.IncrementalDecoder | None = None  # once a token is not whole characters
        self.held = 0
        if context:
            self._decode(b"".join(map(self._byte_string, context)))

    def push(self, number: int) -> str:
        text = None if self.held else self._whole_text(number)
        return self._decode(self._byte_string(number)) if text is None else text

    def flush(self) -> str:
        return "" if self._decoder is None else self._decoder.decode(b"", True)

    def _decode(self, data: bytes) -> str:
        if self._decoder is None:
            self._decoder = _UTF8("replace")
        text = self._decoder.decode(data)
        self.held = int(bool(self._decoder.getstate()[0]))  # whether the text ends within a character
        return text


class Window:
    """For all other tokenizers: the last few tokens are decoded with and without the new ones.

    Tokens of byte fallback are joined here as soon as they are a character. (The library drops a whole row of them if
    any part is not valid; here the characters that were given stay.)
    """

    def __init__(self, vocabulary: Vocabulary, context: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._context = list(context)
        self._new: list[int] = []
        self._bytes: list[int] = []
        self._byte_ids: list[int] = []

    def push(self, number: int) -> str:
        vocabulary = self._vocabulary
        if vocabulary.is_special(number):
            return ""
        byte = vocabulary.single_byte(number)
        if byte is not None:
            text = self._give() if self._new else ""
            self._bytes.append(byte)
            self._byte_ids.append(number)
            return text + self._characters()
        text = self._broken() if self._bytes else ""
        self._new.append(number)
        return text + self._give(unless_open=len(self._new) < MOST_PENDING)

    def flush(self) -> str:
        return (self._broken() if self._bytes else "") + (self._give() if self._new else "")

    @property
    def held(self) -> int:
        return int(bool(self._bytes))

    def _give(self, unless_open: bool = False) -> str:
        """The text that the new tokens add. With ``unless_open`` there is none until it is certain."""
        decode = self._vocabulary.decode
        before, after = decode(self._context), decode(self._context + self._new)
        certain = len(after) > len(before) and after.startswith(before) and not after.endswith(UNKNOWN)
        if unless_open and not certain:
            return ""
        self._context, self._new = self._new, []
        return after[len(before) :]

    def _characters(self) -> str:
        """The whole characters among the bytes."""
        text = ""
        while self._bytes:
            try:
                character = bytes(self._bytes).decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    break
                text += UNKNOWN
                self._leave(1)
                continue
            # The first character of a text may be a space that the decoder drops.
            text += character if self._context else self._vocabulary.decode(self._byte_ids)
            self._leave(len(self._bytes))
        return text

    def _broken(self) -> str:
        """Bytes that no others follow: one U+FFFD each, as in the library."""
        count = len(self._bytes)
        self._leave(count)
        return UNKNOWN * count

    def _leave(self, count: int) -> None:
        self._context = self._byte_ids[:count]
        del self._byte_ids[:count], self._bytes[:count]


class CleanupDetokenizer:
    """Another one's text without the spaces that clean_up_tokenization_spaces removes."""

    def __init__(self, inner: Bytes | Window) -> None:
        self._inner = inner
        self._passes = [StreamReplacer(old, new) for old, new in CLEAN_UP]

    def push(self, number: int) -> str:
        text = self._inner.push(number)
        if text:
            for one in self._passes:
                text = one.push(text)
        return text

    def flush(self) -> str:
        text = self._inner.flush()
        for one in self._passes:
            text = one.push(text) + one.held
        return text

    @property
    def held(self) -> int:
        return self._inner.held + sum([len(one.held) for one in self._passes])


Detokenizer: TypeAlias = Bytes | Window | CleanupDetokenizer
