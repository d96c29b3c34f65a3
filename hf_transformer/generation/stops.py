"""Stop-string matching across token boundaries, and replacing in a text that comes in pieces.

Text is held back only while it may still become a match. At the end of the text ``held`` has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence


def open_end(text: str, wanted: str) -> int:
    """The index of the longest end of ``text`` that is a proper beginning of ``wanted``; the text's length if there is
    none."""
    first = wanted[0]
    place = text.find(first, max(0, len(text) - len(wanted) + 1))
    while place >= 0:
        if wanted.startswith(text[place:]):
            return place
        place = text.find(first, place + 1)
    return len(text)


class StopSearch:
    """Looks for stop strings in a text that comes in pieces.

    The first one to be complete ends the text; of several that are complete with the same character, the longest. So
    the result does not depend on the pieces.
    """

    __slots__ = ("_stops", "held")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string has ended it."""
        if not self._stops:
            return text, False
        text = self.held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)[1]], True
        place = min(open_end(text, stop) for stop in self._stops)
        self.held = text[place:]
        return text[:place], False


class StreamReplacer:
    """str.replace: the results, and ``held`` at the end, joined, are the whole text with everything replaced."""

    __slots__ = ("_new", "_old", "held")

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self.held = ""

    def push(self, text: str) -> str:
        """The text that is certain now."""
        *done, rest = (self.held + text).split(self._old)
        place = open_end(rest, self._old)
        self.held = rest[place:]
        done.append(rest[:place])
        return self._new.join(done)
