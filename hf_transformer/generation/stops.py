"""Stop-string matching across token boundaries, and string replacement in streamed text.

Both classes buffer text only while it may become part of a match. At the end of the text, ``held`` is the remaining
text.
"""

from __future__ import annotations

from collections.abc import Sequence


def partial_match(text: str, pattern: str) -> int:
    """Start of the longest suffix of ``text`` that is a proper prefix of ``pattern``; the text's length without a
    match."""
    start = text.find(pattern[0], max(0, len(text) - len(pattern) + 1))
    while start >= 0:
        if pattern.startswith(text[start:]):
            return start
        start = text.find(pattern[0], start + 1)
    return len(text)


class StopSearch:
    """Searches a streamed text for stop strings.

    The first complete stop string ends the text. If several stop strings end at the same position, the longest applies.
    The result does not depend on the chunk boundaries.

    Attributes:
        matched: the stop string that ended the text.
    """

    __slots__ = ("_stops", "held", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Adds a chunk. Returns the text that can no longer change, and whether a stop string ended the text."""
        if not self._stops:
            return text, False
        text = self.held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            end, start = min(matches)
            self.held, self.matched = "", text[start:end]
            return text[:start], True
        end = min(partial_match(text, stop) for stop in self._stops)
        self.held = text[end:]
        return text[:end], False


class StreamReplacer:
    """``str.replace`` for streamed text. The results of ``push`` and the final ``held`` form the replaced text."""

    __slots__ = ("_new", "_old", "held")

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self.held = ""

    def push(self, text: str) -> str:
        """Adds a chunk. Returns the text that can no longer change."""
        *parts, rest = (self.held + text).split(self._old)
        end = partial_match(rest, self._old)
        self.held = rest[end:]
        return self._new.join([*parts, rest[:end]])
