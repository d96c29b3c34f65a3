"""Stop-string matching across token boundaries, and replacing in a text that comes in pieces.

What may still become a match is held back, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence


def open_end(text: str, wanted: str) -> int:
    """Where the longest end of ``text`` begins that is a beginning of ``wanted``, but not all of it; the text's length
    where there is none."""
    first = wanted[0]
    place = text.find(first, max(0, len(text) - len(wanted) + 1))
    while place >= 0:
        if wanted.startswith(text[place:]):
            return place
        place = text.find(first, place + 1)
    return len(text)


class StopSearch:
    """Looks for stop strings in a text that comes in pieces.

    The one that is complete first ends the text; of several that are complete with the same character, the longest. So
    the result does not depend on the pieces.
    """

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether it has ended before a stop string."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        place = min(open_end(text, stop) for stop in self._stops)
        self._held = text[place:]
        return text[:place], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


class Replacing:
    """str.replace for a text in pieces: the results, joined, are the whole text with everything replaced."""

    __slots__ = ("_held", "_new", "_old")

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self._held = ""

    @property
    def held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """What is certain of the text so far."""
        *done, rest = (self._held + text).split(self._old)
        place = open_end(rest, self._old)
        self._held = rest[place:]
        done.append(rest[:place])
        return self._new.join(done)

    def flush(self) -> str:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        return held
