"""Special tokens in texts of users as letters (``--user_special_tokens``).

A tokenizer searches each text for its added tokens first: ``[SEP]`` in a document becomes the token that separates
documents. LettersEncoder encodes such texts with a second tokenizer, which shares the model, and whose special tokens
have secret names. What a user writes never matches these, and is tokenized as any other text. Special tokens of a
template are replaced by their secret names first, so they stay tokens.

Texts without special tokens keep the ordinary way: ``needs`` is one search. Of some tokenizers, a search in the text is
not enough. A vocabulary of Unigram contains ``<s>`` as a piece, and some normalizers make ``<s>`` of ``＜s＞``. Then
``leaks`` counts the special tokens of an encoding.

Source: tokenizers 0.23, added_vocabulary.rs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from hf_transformer.tokenizer.prefixes import UNKNOWN
from hf_transformer.types.tokenization import PromptText, TextInput, UserTokens, Words

NOTHING = "(?!)"
"""Pattern without a match."""


def control_tokens(backend: Tokenizer, template: str = "") -> dict[int, AddedToken]:
    """Added tokens that steer a model, by id: the special ones, and those that the chat template writes.

    White space and words are in a template's text anyway, and steer nothing: some vocabularies add two line breaks, or
    the spaces before code. Empty for a tokenizer whose file already says that special tokens in texts are letters.
    """
    if backend.encode_special_tokens:
        return {}
    return {
        number: token
        for number, token in backend.get_added_tokens_decoder().items()
        if token.content and (token.special or (_is_sign(token.content) and token.content in template))
    }


def _is_sign(content: str) -> bool:
    """Whether a token is more than white space or a word."""
    bare = content.strip()
    return bool(bare) and not bare.isalnum()


def alternation(contents: Collection[str]) -> str:
    """Pattern of any of these strings, the longest match first, as the library searches them."""
    return "|".join(map(re.escape, sorted(contents, key=len, reverse=True))) or NOTHING


def starts_of(contents: Collection[str]) -> re.Pattern[str]:
    """Pattern of the first character of each of these strings in a text, also of strings that overlap."""
    return re.compile(f"(?=(?:{alternation(contents)}))(.)", re.DOTALL)


@dataclass(slots=True)
class LettersEncoding:
    """An encoding with the attributes of the library's."""

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]

    def __len__(self) -> int:
        return len(self.ids)


class LettersEncoder:
    """Encodes texts of users without their special tokens. Thread-safe.

    Args:
        backend: the tokenizer; its stages must not change any more.
        control: see ``control_tokens``; not empty.
        scope: the plain strings that are texts of users.

    Attributes:
        varies: whether texts may become special tokens that don't show them, see ``leaks``.
    """

    def __init__(self, backend: Tokenizer, control: Mapping[int, AddedToken], scope: UserTokens) -> None:
        self._scope = scope
        self._search = re.compile(alternation([token.content for token in control.values()])).search
        self._ids = frozenset(control).difference(_unknown(backend))  # any text may have unknown characters
        self._backend = twin = Tokenizer(backend.model)
        twin.normalizer, twin.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        twin.post_processor = backend.post_processor
        # Letters and digits in lower case pass all normalizers unchanged.
        secret = secrets.token_hex(16)
        added = backend.get_added_tokens_decoder()
        self._names = {token.content: f"q{secret}{number:08x}" for number, token in control.items()}
        names = {
            number: self._names[token.content] if number in control else token.content
            for number, token in added.items()
        }
        twin.add_tokens([_renamed(token, names[number]) for number, token in added.items()])
        made = {twin.token_to_id(name): number for number, name in names.items()}
        self._numbers: dict[int, int] = {new: number for new, number in made.items() if new is not None}
        """The ids of added tokens by those in the twin."""
        self.varies = any(token.normalized for token in control.values()) or self._has_pieces()
        self._expected: dict[tuple[int, bool], int] = {}

    def _has_pieces(self) -> bool:
        """Whether the model makes special tokens of letters."""
        texts = [text for content in self._names for text in (content, f" {content}", f"a{content}")]
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except Exception:  # a bare one: the vocabulary lacks some letters, and a token for unknown ones
            return True
        return any(not self._ids.isdisjoint(encoding.ids) for encoding in encodings)

    def needs(self, text: TextInput) -> bool:
        """Whether a text needs this class, because users' special tokens are in it."""
        if type(text) is str:
            return self._scope == "all" and self._search(text) is not None
        if isinstance(text, PromptText):
            return self._is_marked(text)
        if isinstance(text, tuple):
            return any(
                self._is_marked(part)
                if isinstance(part, PromptText)
                else self._scope != "none" and self._search(part) is not None
                for part in text
            )
        return isinstance(text, Words) and self._scope == "all" and any(map(self._search, text.words))

    def _is_marked(self, text: PromptText) -> bool:
        # The library's own way is exact for a text without letters, unless normalization makes tokens of other text.
        return self.varies or any(self._search(text, start, end) for start, end in text.letters)

    def leaks(self, text: TextInput, ids: Sequence[int], special_tokens: bool) -> bool:
        """Whether the library has made special tokens of a text that does not show them (``needs`` is false)."""
        if not self.varies or isinstance(text, PromptText):
            return False
        if not (self._scope == "all" or (self._scope == "pairs" and isinstance(text, tuple))):
            return False
        key = 1 + isinstance(text, tuple), special_tokens
        if key not in self._expected:
            empty = self._backend.encode("", "" if key[0] == 2 else None, add_special_tokens=special_tokens)
            self._expected[key] = self._count(empty.ids)
        return self._count(ids) > self._expected[key]

    def _count(self, ids: Sequence[int]) -> int:
        return sum(map(self._ids.__contains__, ids))

    def encode(self, text: TextInput, *, special_tokens: bool, detail: bool) -> LettersEncoding:
        """Encodes a text, pair or words without truncation. Without ``detail`` it has no offsets.

        Raises the library's errors.
        """
        run: Any = self._backend.encode_batch if detail else self._backend.encode_batch_fast
        if isinstance(text, Words):
            [encoded] = run([list(text.words)], is_pretokenized=True, add_special_tokens=special_tokens)
            return self._restore(encoded, ())
        prepared = [self._hide(part) for part in (text if isinstance(text, tuple) else (text,))]
        hidden = tuple(one for one, _ in prepared)
        [encoded] = run([hidden if len(hidden) > 1 else hidden[0]], add_special_tokens=special_tokens)
        return self._restore(encoded, [origins for _, origins in prepared])

    def _hide(self, text: Any) -> tuple[str, list[int] | None]:
        """Replaces the template's special tokens by their secret names.

        Also returns the index in ``text`` of each index of the result; None if nothing is replaced.
        """
        if not isinstance(text, PromptText):
            return text, None
        pieces: list[str] = []
        origins: list[int] = []
        position = 0
        for start, end in (*text.letters, (len(text), len(text))):
            while (match := self._search(text, position, start)) is not None:
                name = self._names[match[0]]
                pieces += text[position : match.start()], name
                origins += [*range(position, match.start()), *[match.start()] * len(name)]
                position = match.end()
            pieces.append(text[position:end])
            origins += range(position, end)
            position = end
        return "".join(pieces), [*origins, len(text)]

    def _restore(self, encoded: Any, origins: Sequence[list[int] | None]) -> LettersEncoding:
        """Gives special tokens their ids and places, and splits pieces of the vocabulary that spell them."""
        rows = zip(
            *(encoded.ids, encoded.type_ids, encoded.offsets, encoded.special_tokens_mask),
            *(encoded.word_ids, encoded.sequence_ids),
            strict=True,
        )
        columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
        for number, type_id, span, special, word, sequence in rows:
            items = [(number, span)]
            if not special:  # the post-processor's tokens have their own ids
                if origins and (back := origins[sequence]) is not None:
                    span = back[span[0]], back[span[1]]
                items = [(self._numbers.get(number, number), span)]
                if number in self._ids and number not in self._numbers:
                    items = self._split(number, *span)
            for item, part in items:
                for column, value in zip(columns, (item, type_id, part, special, word, sequence), strict=True):
                    column.append(value)
        return LettersEncoding(*columns)

    def _split(self, number: int, start: int, end: int) -> list[tuple[int, tuple[int, int]]]:
        """The ids and spans of the letters of a special token. They are separate: together they are a piece."""
        content = self._backend.model.id_to_token(number) or ""
        tokens = [token for part in (content[:1], content[1:]) if part for token in self._backend.model.tokenize(part)]
        if not self._ids.isdisjoint(token.id for token in tokens):
            tokens = [token for letter in content for token in self._backend.model.tokenize(letter)]
        spans, index = [], start
        for token in tokens:
            spans.append((index, index := min(end, index + len(token.value))))
        return [(token.id, span) for token, span in zip(tokens, spans, strict=True)]


def _unknown(backend: Tokenizer) -> Collection[int]:
    """Tokens of a character that no vocabulary contains; none for a model that refuses it."""
    try:
        return {token.id for token in backend.model.tokenize(UNKNOWN)}
    except Exception:  # the library raises bare Exception
        return ()


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
