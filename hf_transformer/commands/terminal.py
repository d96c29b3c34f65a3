"""What commands print for people: colours, tables and progress, which a file or a pipe gets without the extras."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

STYLES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""SGR parameters of ECMA-48, which every terminal understands."""


class Terminal:
    """A stream, stdout by default, that may be a terminal. In ``environ`` a ``NO_COLOR`` of any text and ``TERM=dumb``
    switch colours off, see https://no-color.org."""

    def __init__(self, environ: Mapping[str, str], stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.live = self._stream.isatty() and environ.get("TERM") != "dumb"
        """Whether a line can be drawn over."""
        self.coloured = self.live and not environ.get("NO_COLOR")
        self._drawn = ""
        self._next = 0.0

    @property
    def columns(self) -> int:
        """The width for texts, 72 to 120."""
        return min(120, max(72, shutil.get_terminal_size().columns))

    def styled(self, text: str, *styles: str) -> str:
        """The text with ANSI styles, or as it is where colours are off."""
        if not self.coloured or not text:
            return text
        return f"\x1b[{';'.join(str(STYLES[style]) for style in styles)}m{text}\x1b[0m"

    def say(self, text: str = "") -> None:
        """Prints a line at once, also into a pipe; a progress line is removed first."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def progress(self, text: str) -> None:
        """Shows what happens now, in place of what was shown so before. Prints nothing where no terminal is."""
        now = time.monotonic()
        if not self.live or text == self._drawn or now < self._next:
            return
        self._next = now + 0.1  # so that showing it costs nothing
        self._drawn = text
        # One column stays free: some terminals go on to the next line as soon as the last one is filled.
        shown = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r{self.styled(shown, 'dim')}\x1b[K", end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Removes the progress line."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._drawn, self._next = "", 0.0


def bar(done: float, width: int = 24) -> str:
    """A progress bar for a share from 0 to 1."""
    filled = round(min(max(done, 0.0), 1.0) * width)
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal) -> str:
    """Aligned columns: the first to the left, the others, which hold numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return "\n".join([terminal.styled(line(head), "bold"), *map(line, rows)])
