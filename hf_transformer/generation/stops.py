"""Where a text ends that is to end before one of some strings, wherever the borders of its tokens lie."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.generation.replacing import open_end


class StopSearch:
    """Looks for stop strings in a text that comes in pieces.

    The one that is complete first ends the text; of several that are complete with the same character, the longest. So
    it does not matter how the text was cut into pieces. What may still become a stop string is held back until it
    can't.
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
        end: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (end is None or (start + len(stop), start) < end):
                end = start + len(stop), start
        if end is not None:
            self._held = ""
            return text[: end[1]], True
        place = min(open_end(text, stop) for stop in self._stops)
        self._held = text[place:]
        return text[:place], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held
