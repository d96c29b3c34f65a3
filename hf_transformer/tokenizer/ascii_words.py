"""The ids of a word in plain ASCII, put together from what the model gives for its parts."""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from hf_transformer.tokenizer.separable import Separable

Ids = tuple[int, ...]

PARTS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
}
"""Where pre-tokenizers split printable ASCII. Their own patterns mean other letters too, and whitespace."""
SPACE = "Ġ"
"""In GPT-2's alphabet of bytes, in which printable ASCII is itself."""
PRINTABLE = [chr(number) for number in range(ord("!"), ord("~") + 1)]
ALPHANUMERIC = re.compile("[A-Za-z0-9]")
LONGEST = 32
"""In characters. A longer chunk is no word, and may have many parts."""


class AsciiWords:
    """Encodes chunks of text between spaces, of printable ASCII, for a quarter of what the library takes for one.

    Of the tokenizers that separable.py lets pass, normalizers make small letters of such characters, or nothing, and
    pre-tokenizers split them as ``PARTS`` says; what the model makes of each part it tells itself. Added tokens are
    another matter, so a chunk must not have any character that was chosen of each: one that is no letter or digit.
    """

    def __init__(self, backend: Tokenizer, how: Separable, forbidden: set[str]) -> None:
        normalizer = backend.normalizer
        self._tokenize = backend.model.tokenize
        self._lower = normalizer is not None and normalizer.normalize_str("A") == "a"
        self._spaced, self._prefixed = how.spaced, how.prefixed
        allowed = re.escape("".join(char for char in PRINTABLE if char not in forbidden))
        self._plain = re.compile(f"[{allowed}]{{1,{LONGEST}}}").fullmatch
        self._parts = re.compile(PARTS[how.splitter], re.ASCII).findall

    @classmethod
    def of(cls, backend: Tokenizer, how: Separable) -> AsciiWords | None:
        """None where an added token can't be told by its characters."""
        forbidden = set()
        for text in how.added:
            if text.isascii():
                marks = ALPHANUMERIC.sub("", text)
                if not marks:
                    return None
                forbidden.add(marks[0])
        return cls(backend, how, forbidden)

    def ids(self, chunk: str, first: bool) -> Ids | None:
        """The ids of a chunk, None if it is of another kind. ``first``: no space stands before it in its text.

        Raises what the model raises: bare Exception where it lacks its token for unknown words.
        """
        if self._plain(chunk) is None:
            return None
        if self._lower:
            chunk = chunk.lower()
        if self._spaced and (self._prefixed or not first):
            chunk = SPACE + chunk
        tokenize = self._tokenize
        return tuple([token.id for part in self._parts(chunk) for token in tokenize(part)])
