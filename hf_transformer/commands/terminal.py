"""Formatted output: colours, tables and progress lines. Files and pipes receive plain text."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

STYLES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""SGR parameters of ECMA-48, which every terminal supports."""


class Terminal:
    """An output stream, by default stdout, which may be a terminal.

    ``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` in ``environ`` disable colours.
    """

    def __init__(self, environ: Mapping[str, str], stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.live = self._stream.isatty() and environ.get("TERM") != "dumb"
        """Whether the stream is a terminal that can overwrite a line."""
        self.coloured = self.live and not environ.get("NO_COLOR")
        self._progress_line = ""
        self._next_update = 0.0

    @property
    def columns(self) -> int:
        """The width of the terminal, limited to the range from 72 to 120."""
        return min(120, max(72, shutil.get_terminal_size().columns))

    def styled(self, text: str, *styles: str) -> str:
        """Adds ANSI styles to the text, unless colours are disabled."""
        if not self.coloured or not text:
            return text
        return f"\x1b[{';'.join(str(STYLES[style]) for style in styles)}m{text}\x1b[0m"

    def say(self, text: str = "") -> None:
        """Removes the progress line, then prints and flushes a line."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def progress(self, text: str) -> None:
        """Replaces the progress line, at most ten times a second. Has no effect without a terminal."""
        now = time.monotonic()
        if not self.live or text == self._progress_line or now < self._next_update:
            return
        self._next_update = now + 0.1
        self._progress_line = text
        # Leaves the last column empty, because some terminals wrap a full line.
        line = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r{self.styled(line, 'dim')}\x1b[K", end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Removes the progress line."""
        if self._progress_line:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._progress_line, self._next_update = "", 0.0


def bar(done: float, width: int = 24) -> str:
    """A progress bar for a fraction from 0 to 1."""
    filled = round(min(max(done, 0.0), 1.0) * width)
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal) -> str:
    """Aligns the first column to the left and all other columns to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return "\n".join([terminal.styled(line(head), "bold"), *map(line, rows)])
