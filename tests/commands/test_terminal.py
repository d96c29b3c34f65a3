"""Colours, progress and tables: on a terminal, and without one."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Mapping

import pytest

from hf_transformer.commands.terminal import Terminal, bar, table


def printed(environ: Mapping[str, str], *, live: bool) -> str:
    """What a styled line, a progress line and a last line look like."""
    if not live:
        stream = io.StringIO()
        terminal = Terminal(environ, stream)
        terminal.progress("half")
        terminal.say(terminal.styled("done", "bold", "green"))
        return stream.getvalue()
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as file:
        terminal = Terminal(environ, file)
        terminal.progress("half")
        terminal.say(terminal.styled("done", "bold", "green"))
        text = ""
        while not text.endswith("done\x1b[0m\r\n" if terminal.coloured else "done\r\n"):
            text += os.read(master, 1000).decode()
    os.close(master)
    return text


@pytest.mark.parametrize(
    ("environ", "live", "expected"),
    [
        pytest.param({}, True, "\r\x1b[2mhalf\x1b[0m\x1b[K\r\x1b[K\x1b[1;32mdone\x1b[0m\r\n", id="a terminal"),
        pytest.param({"NO_COLOR": "1"}, True, "\rhalf\x1b[K\r\x1b[Kdone\r\n", id="without colours"),
        pytest.param({"TERM": "dumb"}, True, "done\r\n", id="a dumb terminal"),
        pytest.param({}, False, "done\n", id="a file"),
    ],
)
def test_what_a_terminal_gets(environ: Mapping[str, str], live: bool, expected: str) -> None:
    assert printed(environ, live=live) == expected


def test_a_table_is_aligned() -> None:
    text = table(["load", "p50"], [["1", "9.5"], ["32", "123.0"]], Terminal({}, io.StringIO()))
    assert text.splitlines() == ["load    p50", "1       9.5", "32    123.0"]


@pytest.mark.parametrize(("done", "expected"), [(-1, "[....]"), (0.5, "[##..]"), (2, "[####]")])
def test_bars(done: float, expected: str) -> None:
    assert bar(done, 4) == expected
