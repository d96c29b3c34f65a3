"""Incremental detokenization: token ids to text, at a cost per token that does not grow with the text.

The concatenated pieces equal Tokenizer.decode of all ids, without special tokens. A detokenizer buffers an incomplete
character, and text that a later token may change. Combining marks and joiners count as separate characters.

Each continuation has its own detokenizer. ``push`` adds an id and returns the text that can no longer change.
``flush`` returns the rest at the end; an incomplete character becomes U+FFFD, as in ``decode``. ``held`` is the number
of buffered characters; an incomplete character counts as one.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import TypeAlias

from hf_transformer.errors import PredictorError
from hf_transformer.generation.stops import StreamReplacer
from hf_transformer.tokenizer.tokenizer import CLEAN_UP, Tokenizer

REPLACEMENT = "\ufffd"
"""Output of a decoder for invalid or incomplete UTF-8."""
CONTEXT_TOKENS = 8
"""Number of prompt tokens to decode before the first new token. They determine whether a space precedes it."""
BYTE_CONTEXT_TOKENS = 4
"""Equivalent of CONTEXT_TOKENS for byte-level tokenizers. A character has up to 4 bytes, and a token at least one."""
MAX_PENDING_TOKENS = 32
"""Maximum number of buffered tokens. No character needs more, so the text is then returned without further waiting."""


def _byte_alphabet() -> Mapping[str, int]:
    """GPT-2's mapping of characters to bytes: printable Latin-1 characters map to their own code, U+0100 onwards to the
    rest.

    Source: bytes_to_unicode in GPT-2's encoder.py.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    remaining = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(remaining)}


class Vocabulary:
    """Cache of the texts and bytes of a tokenizer's tokens, shared by all sequences of a model. ``size`` is their
    number."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._alphabet = _byte_alphabet()
        self._letter = tokenizer.first_token_id("a")
        self.size = tokenizer.vocab_size
        self.is_special = cache(self._is_special)
        self.byte_string = cache(self._byte_string)
        self.whole_text = cache(self._whole_text)
        self.single_byte = cache(self._single_byte)
        self.text_and_bytes = cache(self._text_and_bytes)

    def continue_text(self, prompt: Sequence[int] = (), shown_tokens: Set[int] = frozenset()) -> Detokenizer:
        """Returns a detokenizer for the continuation of a prompt, or for an independent text if ``prompt`` is empty.

        ``shown_tokens`` are special tokens that are a part of the text.
        """
        context: list[int] = []
        byte_level = self.tokenizer.byte_level
        size = BYTE_CONTEXT_TOKENS if byte_level else CONTEXT_TOKENS
        for token in reversed(prompt):
            if not self.is_special(token):
                if byte_level and not context and self.whole_text(token):
                    break  # the prompt ends with a complete character
                context.append(token)
                if len(context) == size:
                    break
        context.reverse()
        detokenizer = ByteLevelDetokenizer(self, context) if byte_level else WindowDetokenizer(self, context)
        cleaned = CleanupDetokenizer(detokenizer) if self.tokenizer.cleans_up else detokenizer
        if not shown_tokens:
            return cleaned
        return ShowingDetokenizer(cleaned, {token: self.tokenizer.id_to_token(token) or "" for token in shown_tokens})

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, without special tokens."""
        return self.tokenizer.decode_unclean(ids, True)

    def _is_special(self, token: int) -> bool:
        """Whether decoded text omits a token: a special token, or an id that is missing from the tokenizer.

        Raises PredictorError for a number outside the range of token ids.
        """
        if not 0 <= token < 2**31:
            raise PredictorError(f"the predictor answered with the token id {token}")
        if self.tokenizer.id_to_token(token) is None:
            return True
        decode = self.tokenizer.decode_unclean
        return not decode((token,), True) and bool(decode((token,), False))

    def _byte_string(self, token: int) -> bytes:
        """Bytes of a byte-level token, empty for a special token.

        A token with characters outside the byte alphabet is plain text, as in the library's decoder.
        """
        name = "" if self.is_special(token) else self.tokenizer.id_to_token(token) or ""
        codes = [self._alphabet.get(character) for character in name]
        return name.encode() if None in codes else bytes(code for code in codes if code is not None)

    def _whole_text(self, token: int) -> str | None:
        """Text of a byte-level token, or None if its bytes are not valid UTF-8."""
        try:
            return self.byte_string(token).decode()
        except UnicodeDecodeError:
            return None

    def _single_byte(self, token: int) -> int | None:
        """Byte of a byte-fallback token (``<0xE2>``), or None for other tokens."""
        name = self.tokenizer.id_to_token(token) or ""
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">") and self.decode((token,)) != name:
            return int(name[3:5], 16)
        return None

    def _text_and_bytes(self, token: int) -> tuple[str, bytes]:
        """Text and bytes of a single token, including its leading space. The bytes may end within a character."""
        if self.is_special(token):
            text = self.tokenizer.id_to_token(token) or ""
            return text, text.encode()
        byte = None if self.tokenizer.byte_level else self.single_byte(token)
        if self.tokenizer.byte_level or byte is not None:
            raw = self.byte_string(token) if byte is None else bytes((byte,))
            return raw.decode(errors="replace"), raw
        # A decoder drops the leading space of the first token, so decode another token before it.
        before = () if self._letter is None else (self._letter,)
        text = self.decode((*before, token)).removeprefix(self.decode(before)) if before else self.decode((token,))
        return text, text.encode()


class ByteLevelDetokenizer:
    """Detokenizer for byte-level BPE. Concatenates the tokens' bytes and decodes them; invalid bytes become U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, context: Sequence[int]) -> None:
        self._byte_string = vocabulary.byte_string
        self._whole_text = vocabulary.whole_text
        self._decoder: codecs.IncrementalDecoder | None = None  # created for the first incomplete character
        self.held = 0
        if context:
            self._decode(b"".join(map(self._byte_string, context)))

    def push(self, token: int) -> str:
        text = None if self.held else self._whole_text(token)
        return self._decode(self._byte_string(token)) if text is None else text

    def flush(self) -> str:
        self.held = 0
        return "" if self._decoder is None else self._decoder.decode(b"", True)

    def _decode(self, data: bytes) -> str:
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoder.decode(data)
        self.held = int(bool(self._decoder.getstate()[0]))  # 1 if the text ends within a character
        return text


class WindowDetokenizer:
    """Detokenizer for all other tokenizers. Decodes the last few tokens with and without the new tokens.

    Combines byte-fallback tokens as soon as they form a character. The library drops a whole run of byte-fallback
    tokens if one byte is invalid. A stream can't revoke characters, so this class keeps those already returned.
    """

    def __init__(self, vocabulary: Vocabulary, context: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._context = list(context)
        self._new: list[int] = []
        self._bytes: list[int] = []
        self._byte_ids: list[int] = []

    def push(self, token: int) -> str:
        vocabulary = self._vocabulary
        if vocabulary.is_special(token):
            return ""
        byte = vocabulary.single_byte(token)
        if byte is not None:
            text = self._decode_new() if self._new else ""
            self._bytes.append(byte)
            self._byte_ids.append(token)
            return text + self._complete_characters()
        text = self._replace_bytes() if self._bytes else ""
        self._new.append(token)
        return text + self._decode_new(only_certain=len(self._new) < MAX_PENDING_TOKENS)

    def flush(self) -> str:
        return (self._replace_bytes() if self._bytes else "") + (self._decode_new() if self._new else "")

    @property
    def held(self) -> int:
        return int(bool(self._bytes))

    def _decode_new(self, only_certain: bool = False) -> str:
        """Text added by the new tokens. With ``only_certain`` it is empty while a later token may change it."""
        decode = self._vocabulary.decode
        before, after = decode(self._context), decode(self._context + self._new)
        certain = len(after) > len(before) and after.startswith(before) and not after.endswith(REPLACEMENT)
        if only_certain and not certain:
            return ""
        self._context, self._new = self._new, []
        return after[len(before) :]

    def _complete_characters(self) -> str:
        """Removes complete characters from the buffered bytes, and returns them."""
        text = ""
        while self._bytes:
            try:
                character = bytes(self._bytes).decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    break
                text += REPLACEMENT
                self._drop_bytes(1)
                continue
            # The first character of a text may be a space, which the decoder drops.
            text += character if self._context else self._vocabulary.decode(self._byte_ids)
            self._drop_bytes(len(self._bytes))
        return text

    def _replace_bytes(self) -> str:
        """Replaces each byte of an incomplete character with U+FFFD, as the library does."""
        count = len(self._bytes)
        self._drop_bytes(count)
        return REPLACEMENT * count

    def _drop_bytes(self, count: int) -> None:
        self._context = self._byte_ids[:count]
        del self._byte_ids[:count], self._bytes[:count]


class CleanupDetokenizer:
    """Wrapper of a detokenizer that removes spaces as clean_up_tokenization_spaces does."""

    def __init__(self, inner: ByteLevelDetokenizer | WindowDetokenizer) -> None:
        self._inner = inner
        self._replacers = [StreamReplacer(old, new) for old, new in CLEAN_UP]

    def push(self, token: int) -> str:
        text = self._inner.push(token)
        if text:
            for replacer in self._replacers:
                text = replacer.push(text)
        return text

    def flush(self) -> str:
        text = self._inner.flush()
        for replacer in self._replacers:
            text = replacer.push(text) + replacer.held
            replacer.held = ""
        return text

    @property
    def held(self) -> int:
        return self._inner.held + sum([len(replacer.held) for replacer in self._replacers])


class ShowingDetokenizer:
    """Wrapper of a detokenizer that returns some special tokens as text; ``texts`` are those by id."""

    def __init__(
        self, inner: ByteLevelDetokenizer | WindowDetokenizer | CleanupDetokenizer, texts: Mapping[int, str]
    ) -> None:
        self._inner = inner
        self._texts = texts
        self.flush = inner.flush

    def push(self, token: int) -> str:
        text = self._texts.get(token)
        return self._inner.push(token) if text is None else self._inner.flush() + text

    @property
    def held(self) -> int:
        return self._inner.held


Detokenizer: TypeAlias = ByteLevelDetokenizer | WindowDetokenizer | CleanupDetokenizer | ShowingDetokenizer
