"""The latency line: written some at a time with our logging, an ordinary record with another."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import time
from collections.abc import Iterator

import pytest

from hf_transformer.observability.latency_log import NAME_OF_LATENCY, LatencyLog, LineHandler
from hf_transformer.types import Context, Timings

FIELDS = "requestId: {}, preprocess_ms: 1.000, explain_ms: 0, predict_ms: 2.500, postprocess_ms: 0.125"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The latency logger, cut off from all others."""
    logger = logging.getLogger(NAME_OF_LATENCY)
    before = logger.level, logger.handlers[:], logger.propagate, logger.filters[:]
    logger.handlers[:] = []
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    logger.level, logger.propagate = before[0], before[2]
    logger.handlers[:], logger.filters[:] = before[1], before[3]


def add(log: LatencyLog, request_id: str) -> None:
    log.add([Context(request_id, {}, Timings(0.001, 0.0, 0.0025, 0.000125))])


async def test_lines_leave_together_as_records_would_look(logger: logging.Logger) -> None:
    stream = io.StringIO()
    logger.handlers[:] = [LineHandler(stream)]
    log = LatencyLog()
    add(log, "a")
    add(log, "b")
    assert stream.getvalue() == ""
    log.flush()
    lines = stream.getvalue().splitlines()
    prefix = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO hf_transformer\.latency: ")
    assert all(prefix.match(line) for line in lines)
    assert [prefix.sub("", line) for line in lines] == [FIELDS.format("a"), FIELDS.format("b")]
    log.flush()
    assert len(stream.getvalue().splitlines()) == 2


async def test_nobody_has_to_flush(logger: logging.Logger) -> None:
    written = asyncio.Event()

    class Stream(io.StringIO):
        def flush(self) -> None:
            written.set()

    logger.handlers[:] = [LineHandler(Stream())]
    add(LatencyLog(), "a")
    async with asyncio.timeout(10):
        await written.wait()


@pytest.mark.parametrize("how", ["another handler", "two handlers", "a filter", "a level"])
async def test_other_logging_gets_records(logger: logging.Logger, how: str, caplog: pytest.LogCaptureFixture) -> None:
    records: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    ours = LineHandler(io.StringIO())
    logger.handlers[:] = []  # also pytest's own
    if how != "another handler":
        logger.addHandler(ours)
    if how in ("another handler", "two handlers"):
        logger.addHandler(Keeping())
    if how == "a filter":
        logger.addFilter(lambda record: bool(records.append(record.getMessage())))  # type: ignore[func-returns-value]
    if how == "a level":
        ours.setLevel(logging.WARNING)
        ours.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    add(LatencyLog(), "a")
    assert records == ([] if how == "a level" else [FIELDS.format("a")])


async def test_nothing_at_a_higher_level(logger: logging.Logger) -> None:
    stream = io.StringIO()
    logger.handlers[:] = [LineHandler(stream)]
    logger.setLevel(logging.WARNING)
    log = LatencyLog()
    add(log, "a")
    log.flush()
    assert stream.getvalue() == ""


async def test_a_write_that_fails_loses_its_lines_and_no_others(logger: logging.Logger) -> None:
    class Stream(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise BlockingIOError
            return super().write(text)

    stream = Stream()
    handler = LineHandler(stream)
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    logger.handlers[:] = [handler]
    log = LatencyLog()
    add(log, "lost")
    log.flush()
    stream.full = False
    add(log, "kept")
    log.flush()
    assert "kept" in stream.getvalue() and "lost" not in stream.getvalue()


async def test_lines_begin_with_the_moment_that_they_are_of(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    logger.handlers[:] = [LineHandler(stream)]
    log = LatencyLog()
    moments = [1_800_000_000.0, 1_800_000_000.0004, 1_800_000_000.25, 1_800_000_001.25, 1_800_003_600.999]
    for moment in moments:
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        add(log, "a")
    log.flush()
    expected = [
        time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)) + f".{int(moment % 1 * 1e3):03d} INFO"
        for moment in moments
    ]
    assert [line[: len(expected[0])] for line in stream.getvalue().splitlines()] == expected
