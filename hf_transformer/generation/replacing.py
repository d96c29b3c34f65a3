"""Searching a text that comes in pieces: what may still become a match is held back, and nothing else."""

from __future__ import annotations


def open_end(text: str, wanted: str) -> int:
    """Where the longest end of ``text`` begins that is a beginning of ``wanted``, but not all of it.

    The text's length where no end is.
    """
    first = wanted[0]
    place = text.find(first, max(0, len(text) - len(wanted) + 1))
    while place >= 0:
        if wanted.startswith(text[place:]):
            return place
        place = text.find(first, place + 1)
    return len(text)


class Replacing:
    """str.replace for a text in pieces: the pieces given, joined, are the whole text with everything replaced."""

    __slots__ = ("_held", "_new", "_old")

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self._held = ""

    def push(self, text: str) -> str:
        """What is certain of the text so far."""
        *done, rest = (self._held + text).split(self._old)
        place = open_end(rest, self._old)
        self._held = rest[place:]
        done.append(rest[:place])
        return self._new.join(done)

    @property
    def held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def flush(self) -> str:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        return held
