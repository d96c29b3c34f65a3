"""Delimiters of a response template, and their search in a text that is still being written.

A delimiter is a literal, a list of literals, or a regular expression of the ``regex`` package, as in transformers,
whose executor searches in the same way. Its partial matching tells whether the end of the text may begin a delimiter.

Patterns come with a checkpoint and are untrusted. A delimiter has at most MAX_DELIMITER characters, so no search looks
back further than that, and a search has a time limit. A Watch is fast where the text has no character that may begin
one of its delimiters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import regex

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Kind: TypeAlias = Literal["open", "close", "enter", "leave", "escape"]
"""Meaning of a delimiter: of a region, or within a structured region of a string or value."""
MAX_DELIMITER = 1024
"""Maximum number of characters of a delimiter. The longest known ones, of harmony, have about 120."""
SEARCH_SECONDS = 0.01
"""Time limit of a search. A usual one takes microseconds."""
_LOOKS_AROUND = re.compile(r"\(\?<[=!]|\\[bBGKmM]")
"""Constructs that depend on the characters before a match."""
_LAZY = re.compile(r"[*+?}]\?")
"""A quantifier that prefers a shorter match."""
_NAMED_CHARACTERS = re.compile(r"\\[xuUNpP]")
_SAMPLES = "éя中あ🙂\u2028\u00a0\u3000"
"""Characters outside ASCII of several classes."""
LAST_WINDOWS = (4096, 65_536, sys.maxsize)
"""Numbers of characters at the end of a text in which its last match is searched."""
MAX_TRIES = 5
"""Number of tries of a search on a machine that does other work."""


class PatternTimeout(Exception):
    """A pattern of the template exceeded its time limit."""


@dataclass(slots=True)
class LiteralMatch:
    """A match of a literal, with the methods of a pattern's match that are used here."""

    text: str
    first: int

    def start(self) -> int:
        return self.first

    def end(self) -> int:
        return self.first + len(self.text)

    def groupdict(self) -> dict[str, str]:
        return {}

    def __getitem__(self, group: int) -> str:
        return self.text


def _find(text: str, start: int, literal: str, is_end: bool) -> tuple[LiteralMatch | None, bool]:
    """First occurrence of a literal, or of its beginning at the end of the text."""
    at = text.find(literal, start)
    if at >= 0:
        return LiteralMatch(literal, at), False
    if is_end:
        return None, False
    at = max(start, len(text) - len(literal) + 1)
    while (at := text.find(literal[0], at)) >= 0:
        if literal.startswith(text[at:]):
            return LiteralMatch(literal, at), True
        at += 1
    return None, False


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A compiled delimiter.

    Attributes:
        literals: the texts of a literal delimiter; empty for a pattern.
        can_extend: whether one literal is the beginning of another.
        first: characters that may begin a match; None if any may, or if a match may be empty.
        candidates: a pattern of them, with white space where it may come first.
    """

    pattern: Any  # regex.Pattern
    literals: tuple[str, ...] = ()
    can_extend: bool = False
    first: FirstCharacters | None = field(init=False)
    candidates: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        first = self._first_characters()
        object.__setattr__(self, "first", first)
        anything = re.compile("", re.DOTALL) if first is None else _any_of([first], with_space=first.has_space)
        object.__setattr__(self, "candidates", anything)

    @classmethod
    def of_literals(cls, *literals: str) -> Delimiter:
        """Matches any of the literals, preferably a longer one."""
        ordered = sorted(dict.fromkeys(literals), key=len, reverse=True)
        can_extend = any(a != b and a.startswith(b) for a in ordered for b in ordered)
        return cls(regex.compile("|".join(map(regex.escape, ordered)), regex.DOTALL), tuple(ordered), can_extend)

    @classmethod
    def of_pattern(cls, pattern: str) -> Delimiter:
        """Compiles a pattern. Raises regex.error."""
        return cls(regex.compile(pattern, regex.DOTALL))

    @property
    def groups(self) -> frozenset[str]:
        """Names of its groups."""
        return frozenset(self.pattern.groupindex)

    def search(self, text: str, start: int, *, is_end: bool) -> tuple[Any, bool]:
        """First match from ``start``, and whether more text may change it. The match is None without any.

        Raises PatternTimeout.
        """
        if len(self.literals) == 1:
            return _find(text, start, self.literals[0], is_end)
        return self._timed(self._search, text, start, is_end)

    def last_end(self, text: str) -> int:
        """End of the last match, -1 without any. Searches from the end of the text, in windows that grow, because the
        text may be much longer than what follows its last match. Raises PatternTimeout."""
        end, length = -1, max(map(len, self.literals), default=MAX_DELIMITER)
        for window in LAST_WINDOWS:
            start = max(0, len(text) - window)
            end = self._timed(self._last_end, text, start)
            if not start or end > start + length:  # a match that begins before the window ends before this one
                break
        return end

    def _last_end(self, text: str, start: int) -> int:
        if self.literals:
            return max((at + len(each) for each in self.literals if (at := text.rfind(each, start)) >= 0), default=-1)
        return max((match.end() for match in self.pattern.finditer(text, start, timeout=SEARCH_SECONDS)), default=-1)

    def _timed(self, search: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Calls a search that raises TimeoutError. Raises PatternTimeout."""
        for _ in range(MAX_TRIES):
            began = thread_time()
            try:
                return search(*args, **kwargs)
            except TimeoutError:
                # The library counts seconds on the clock, in which a busy machine may have done other work.
                if thread_time() - began > SEARCH_SECONDS / 2:
                    break
        raise PatternTimeout(self.pattern.pattern)

    def _search(self, text: str, start: int, is_end: bool) -> tuple[Any, bool]:
        while True:
            match = self.pattern.search(text, start, partial=not is_end, timeout=SEARCH_SECONDS)
            if match is None:
                return None, False
            first = match.start()
            pending = not is_end and (match.partial or self._can_grow(text, match))
            if not is_end and not match.partial and first > start:
                # The library prefers a complete match to an earlier one that the end of the text cuts off.
                earlier = self._unfinished(text, max(start, len(text) - MAX_DELIMITER), first)
                if earlier is not None:
                    return earlier, True
            length = (len(text) if pending else match.end()) - first
            if length <= MAX_DELIMITER:
                return match, pending
            start = first + 1

    def _unfinished(self, text: str, start: int, end: int) -> Any:
        """First match between the positions that reaches the end of the text and may go on there."""
        for candidate in self.candidates.finditer(text, start, end):
            match = self.pattern.fullmatch(text, candidate.start(), partial=True, timeout=SEARCH_SECONDS)
            if match is not None:
                return match
        return None

    def _can_grow(self, text: str, match: Any) -> bool:
        """Whether more text may change a complete match: a longer literal, or a condition about the end of the text."""
        if match.end() == len(text):
            return match.start() == match.end() or not self.literals or self.can_extend
        if self.literals:
            return False
        if not _LAZY.search(self.pattern.pattern) and len(text) - match.start() <= MAX_DELIMITER:
            # A greedy pattern prefers a longer match, for example with an optional end that is not written yet.
            if self.pattern.fullmatch(text, match.start(), partial=True, timeout=SEARCH_SECONDS) is not None:
                return True
        longer = self.pattern.match(text + "\0", match.start(), timeout=SEARCH_SECONDS)
        return longer is None or longer.span() != match.span() or longer.groupdict() != match.groupdict()

    def _first_characters(self) -> FirstCharacters | None:
        if self.literals:
            return FirstCharacters(frozenset(literal[0] for literal in self.literals))
        source = self.pattern.pattern
        if _LOOKS_AROUND.search(source):
            return None
        has_space = source.startswith((r"\s*", r"\s+"))
        core = self.pattern
        if has_space:
            try:
                core = regex.compile(source[3:].removeprefix("+"), regex.DOTALL)
            except regex.error:
                return None
        try:
            if core.match("", timeout=SEARCH_SECONDS) is not None:
                return None
            candidates = {*map(chr, range(128)), *source, *_SAMPLES}
            first = {c for c in candidates if core.match(c, partial=True, timeout=SEARCH_SECONDS) is not None}
        except TimeoutError:
            return None
        is_wide = bool(_NAMED_CHARACTERS.search(source)) or any(ord(c) > 127 for c in first)
        return FirstCharacters(frozenset(first), has_space, is_wide)


class FirstCharacters(NamedTuple):
    """Characters that may begin a delimiter. ``has_space``: after any white space. ``is_wide``: and all but ASCII."""

    characters: frozenset[str]
    has_space: bool = False
    is_wide: bool = False


class Found(NamedTuple):
    """A delimiter in the text. ``number`` is the field's or the literal's."""

    kind: Kind
    number: int
    match: Any


class _Entry(NamedTuple):
    """A watched delimiter. ``first`` finds characters that may begin it, after white space if ``has_space``."""

    kind: Kind
    number: int
    name: str
    delimiter: Delimiter
    first: re.Pattern[str] | None
    has_space: bool


class Watch:
    """The delimiters that matter at one state of a parser. Immutable.

    ``entries`` are delimiters with their meaning, and the names that decide between equally long ones.
    """

    def __init__(self, entries: Sequence[tuple[Kind, int, str, Delimiter]]) -> None:
        firsts = [delimiter.first for *_, delimiter in entries]
        self._entries = tuple(
            _Entry(*entry, None if first is None else _any_of([first]), first is not None and first.has_space)
            for entry, first in zip(entries, firsts, strict=True)
        )
        known = [first for first in firsts if first is not None]
        self._first = _any_of(known) if len(known) == len(firsts) else None
        self._has_space = any(first.has_space for first in known)

    def passes(self, text: str) -> bool:
        """Whether a text has no character that may begin a delimiter, nor white space at its end."""
        return self._first is not None and self._first.search(text) is None and bool(text) and not text[-1].isspace()

    def scan(self, text: str, start: int, *, is_end: bool) -> tuple[Found | None, int]:
        """First delimiter that can no longer change, and the position up to which the text before it is certain.

        The earliest one counts, of these the longest, and an opening one before a closing one. Raises PatternTimeout.
        """
        end = len(text)
        if not is_end and self._first is not None and self._first.search(text, start) is None:
            return None, _space_before_end(text, start) if self._has_space else end
        best: Found | None = None
        best_key: tuple[int, int, bool, str] | None = None
        for kind, number, name, delimiter, first, has_space in self._entries:
            if first is not None and first.search(text, start) is None:
                if has_space and not is_end:
                    end = min(end, _space_before_end(text, start))
                continue
            match, pending = delimiter.search(text, start, is_end=is_end)
            if match is None:
                continue
            if pending:
                end = min(end, match.start())
                continue
            key = (match.start(), match.start() - match.end(), kind != "open", name)
            if best_key is None or key < best_key:
                best, best_key = Found(kind, number, match), key
        if best is not None and best.match.start() >= end:
            best = None
        return best, end


def _space_before_end(text: str, start: int) -> int:
    """Start of the white space at the end of the text, which a delimiter may begin with."""
    if text[-1:].isspace():
        return max(start, len(text.rstrip()), len(text) - MAX_DELIMITER)
    return len(text)


def _any_of(sets: Sequence[FirstCharacters], *, with_space: bool = False) -> re.Pattern[str]:
    """A pattern of any of the characters, and of white space."""
    characters = frozenset[str]().union(*(each.characters for each in sets))
    classes = r"\s" if with_space else ""
    classes += r"\x80-\U0010ffff" if any(each.is_wide for each in sets) else ""
    if not characters and not classes:
        return re.compile(r"(?!)")
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}{classes}]")
