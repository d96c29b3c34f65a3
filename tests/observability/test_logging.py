"""Log lines as text and as JSON, the latency log, and the user's configuration."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import queue
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_transformer.api.errors import to_request_error
from hf_transformer.errors import ConfigError
from hf_transformer.observability.logging import (
    LATENCY_LOGGER,
    Backlog,
    JsonFormatter,
    LatencyLog,
    LineHandler,
    configure_logging,
    default_logging,
    names_of,
)
from hf_transformer.types.request import Context
from tests.observability.measured import measured

NAMES = ("", "uvicorn", "uvicorn.error", "hf_transformer", "hf_transformer.access", LATENCY_LOGGER, "probe")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} ")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")
LATENCY = "requestId: {}, preprocess_ms: 1.000, explain_ms: 0, predict_ms: 2.500, postprocess_ms: 0.125"


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    # All loggers, since a user's configuration disables those that it does not name.
    loggers = [logging.getLogger(name) for name in {*NAMES, *logging.root.manager.loggerDict}]
    before = [(log.level, log.handlers[:], log.propagate, log.disabled, log.filters[:]) for log in loggers]
    yield
    logging.captureWarnings(False)
    for logger, (level, handlers, propagate, disabled, filters) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:], logger.filters[:] = handlers, filters
        logger.propagate, logger.disabled = propagate, disabled


def lines(text: str) -> list[str]:
    """The lines of a log without their times."""
    assert all(LINE.match(line) for line in text.splitlines())
    return [LINE.sub("", line) for line in text.splitlines()]


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON log without their times."""
    entries = [json.loads(line) for line in text.splitlines()]
    assert all(TIME.fullmatch(entry.pop("time")) for entry in entries)
    return entries


def test_all_loggers_share_a_format_on_stderr_but_the_access_log(capsys: pytest.CaptureFixture[str]) -> None:
    existing = logging.getLogger("probe")
    configure_logging(logging.INFO)
    configure_logging(logging.INFO)  # a second time, as in workers
    logging.getLogger("hf_transformer.app").info("ready in %d ms", 3)
    logging.getLogger("uvicorn.error").info("started")
    existing.warning("careful")
    logging.getLogger("hf_transformer.access").info("GET / 200")
    out, err = capsys.readouterr()
    assert out == "GET / 200\n"
    assert lines(err) == [
        "INFO hf_transformer.app: ready in 3 ms",
        "INFO hf_transformer.server: started",
        "WARNING probe: careful",
    ]


def test_a_message_is_one_escaped_line_and_a_traceback_several(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(logging.INFO)
    try:
        raise ValueError("inside")
    except ValueError:
        logging.getLogger("a.b").exception("said: %s", "x\r\nforged\x1b[2J\x9b\u2028\u202e")
        logging.getLogger("a.b").debug("below the level")
    first, *traceback = capsys.readouterr().err.split("\n")
    assert first.endswith("a.b: said: x\\x0d\\x0aforged\\x1b[2J\\x9b\\u2028\\u202e")
    assert traceback[0] == "Traceback (most recent call last):" and "ValueError: inside" in traceback


def test_the_level_is_that_of_all_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    for level, words in ((logging.DEBUG, ["DEBUG", "ERROR"]), (logging.ERROR, ["ERROR"])):
        configure_logging(level)
        names = ("hf_transformer", "uvicorn.error", "probe")
        for name in names:
            logging.getLogger(name).debug("text")
            logging.getLogger(name).error("text")
        shown = ("hf_transformer", "hf_transformer.server", "probe")
        assert lines(capsys.readouterr().err) == [f"{word} {name}: text" for name in shown for word in words]


def test_json_logs_have_an_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging(logging.INFO, "json")
        warnings.warn("careful", UserWarning, stacklevel=1)
    logging.getLogger("uvicorn.error").error('two\nlines "quoted"', extra={"request_id": "r1"})
    logging.getLogger("hf_transformer.access").info("GET %s 200", "/", extra={"request_id": "r2"})
    out, err = capsys.readouterr()
    warning, error = objects(err)
    assert warning["logger"] == "py.warnings" and "careful" in warning["message"]
    expected: dict[str, Any] = {"level": "ERROR", "logger": "hf_transformer.server", "message": 'two\nlines "quoted"'}
    assert error == expected | {"request_id": "r1"}
    expected = {"level": "INFO", "logger": "hf_transformer.access", "message": "GET / 200"}
    assert objects(out) == [expected | {"request_id": "r2"}]
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("probe").exception("broken", stack_info=True)
    [line] = objects(capsys.readouterr().err)
    assert line["message"] == "broken"
    assert line["exception"].startswith("Traceback") and line["exception"].endswith("ValueError: inner")
    assert line["stack"].startswith("Stack")
    record = logging.makeLogRecord({"msg": "half \ud800", "created": 1_700_000_000.0075})
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["time"][19:23]) == ("half \\ud800", ".007")


INI = """\
[loggers]
keys=root
[handlers]
keys=console
[formatters]
keys=short
[logger_root]
level=INFO
handlers=console
[handler_console]
class=StreamHandler
formatter=short
args=(sys.stderr,)
[formatter_short]
format=<%(message)s>
"""


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".ini", ".conf"])
def test_a_users_configuration_replaces_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    settings = default_logging(logging.INFO)
    settings["formatters"]["line"] = {"format": "<%(message)s>"}
    path = tmp_path / f"logging{suffix}"
    dumps: dict[str, Any] = {".json": json.dumps, ".yaml": yaml.safe_dump, ".yml": yaml.safe_dump}
    path.write_text(dumps.get(suffix, lambda _: INI)(settings))
    configure_logging(logging.ERROR, file=str(path))
    logging.getLogger("probe").info("as the file says")
    assert capsys.readouterr().err == "<as the file says>\n"


@pytest.mark.parametrize(
    ("text", "silenced"), [('{"version": 1}', False), ('{"version": 1, "disable_existing_loggers": true}', True)]
)
def test_a_users_configuration_silences_other_loggers_only_if_it_asks_for_that(
    text: str, silenced: bool, tmp_path: Path
) -> None:
    existing = logging.getLogger("hf_transformer.app")
    (tmp_path / "own.json").write_text(text)
    configure_logging(logging.INFO, file=str(tmp_path / "own.json"))
    assert existing.disabled == silenced


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.json", None, "No such file or directory"),
        ("missing.ini", None, "No such file or directory"),
        ("text.json", "not json", "Expecting value"),
        ("list.json", "[]", "not a mapping"),
        ("empty.yaml", "", "not a mapping"),
        ("bad.yaml", "a: [1\nb: }", "not YAML"),
        ("version.yaml", "version: 7", "Unsupported version: 7"),
        ("class.json", '{"version": 1, "handlers": {"h": {"class": "no.Such"}}}', "Unable to configure handler"),
        ("level.json", '{"version": 1, "root": {"level": "LOUD"}}', "Unknown level"),
        ("text.ini", "not an ini", ""),
        ("bytes.json", b"\xff\xfe\xff", "can't decode"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value[:14] else "",
)
def test_an_invalid_configuration_file_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: str | bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        configure_logging(logging.INFO, file=str(path))
    message = str(caught.value)
    assert message.startswith(f"--log_config_file: {str(path)!r} can't be used: ")
    assert reason in message and "\n" not in message


# The latency log


@pytest.fixture
def latency() -> logging.Logger:
    """The latency logger, without propagation to others."""
    logger = logging.getLogger(LATENCY_LOGGER)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger


def log_by(handler: logging.Handler, logger: logging.Logger) -> LatencyLog:
    """A latency log with a single handler, without pytest's own."""
    logger.handlers[:] = [handler]
    return LatencyLog()


def add(log: LatencyLog, request_id: str) -> None:
    log.add(measured(request_id, preprocess=0.001, queue=0.0005, predict=0.0025, postprocess=0.000125))


async def test_latency_lines_are_written_together_and_look_like_records(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(logging.INFO)
    log = LatencyLog()
    add(log, "a")
    add(log, "b")
    assert capsys.readouterr().err == ""
    log.flush()
    log.flush()
    assert lines(capsys.readouterr().err) == [f"INFO {LATENCY_LOGGER}: {LATENCY.format(name)}" for name in "ab"]
    configure_logging(logging.INFO, "json")
    log = LatencyLog()
    add(log, 'r"1"')
    log.flush()
    stages = {"model": "", "preprocess_ms": 1.0, "queue_ms": 0.5, "predict_ms": 2.5, "postprocess_ms": 0.125}
    expected = {"level": "INFO", "logger": LATENCY_LOGGER, "message": LATENCY.format('r"1"'), "request_id": 'r"1"'}
    assert objects(capsys.readouterr().err) == [expected | stages]


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["the event loop", "another thread"])
async def test_latency_lines_precede_later_records(in_a_thread: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(logging.INFO)
    log, warn = LatencyLog(), logging.getLogger("probe").warning
    for name in "ab":
        add(log, name)
        await (asyncio.to_thread(warn, "after %s", name) if in_a_thread else asyncio.sleep(0, warn("after %s", name)))
    latencies = [f"INFO {LATENCY_LOGGER}: {LATENCY.format(name)}" for name in "ab"]
    expected = [latencies[0], "WARNING probe: after a", latencies[1], "WARNING probe: after b"]
    assert lines(capsys.readouterr().err) == expected


async def test_latency_lines_are_written_after_a_short_time(latency: logging.Logger) -> None:
    written = asyncio.Event()

    class Stream(io.StringIO):
        def flush(self) -> None:
            written.set()

    add(log_by(LineHandler(stream := Stream()), latency), "a")
    assert stream.getvalue() == ""
    async with asyncio.timeout(10):
        await written.wait()
    assert LATENCY.format("a") in stream.getvalue()


@pytest.mark.parametrize("where", ["logger", "handler"])
async def test_a_higher_level_switches_the_latency_log_off(latency: logging.Logger, where: str) -> None:
    handler = LineHandler(stream := io.StringIO())
    (latency if where == "logger" else handler).setLevel(logging.WARNING)
    add(log := log_by(handler, latency), "a")
    log.flush()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("is_latency", [True, False], ids=["latency lines", "records"])
async def test_json_lines_name_the_trace_of_a_request(is_latency: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(logging.INFO, "json")
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    context = Context("r1", {"traceparent": f"00-{trace_id}-{span_id}-01"})
    if is_latency:
        log = LatencyLog()
        log.add(context)
        log.flush()
    else:
        to_request_error(ZeroDivisionError(), context)
    [line] = objects(capsys.readouterr().err)
    assert (line["request_id"], line["trace_id"], line["span_id"]) == ("r1", trace_id, span_id)
    assert [names_of("r", header) for header in (None, "", "nonsense")] == [{"request_id": "r"}] * 3


@pytest.mark.parametrize("change", ["another handler", "two handlers", "a filter"])
async def test_other_handlers_and_filters_get_records(latency: logging.Logger, change: str) -> None:
    records: list[str] = []

    class RecordingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    latency.handlers[:] = []
    if change != "another handler":
        latency.addHandler(LineHandler(io.StringIO()))
    if change != "a filter":
        latency.addHandler(RecordingHandler())
    else:
        latency.addFilter(lambda record: bool(records.append(record.getMessage())))  # type: ignore[func-returns-value]
    add(LatencyLog(), "a")
    assert records == [LATENCY.format("a")]


async def test_a_write_that_fails_loses_its_lines_and_no_others(latency: logging.Logger) -> None:
    class Stream(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise BlockingIOError
            return super().write(text)

    handler = LineHandler(stream := Stream())
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    log = log_by(handler, latency)
    add(log, "lost")
    log.flush()
    stream.full = False
    add(log, "kept")
    log.flush()
    assert "kept" in stream.getvalue() and "lost" not in stream.getvalue()


async def test_each_latency_line_begins_with_its_time(latency: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_by(LineHandler(stream := io.StringIO()), latency)
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


def test_the_backlog_is_bounded_by_characters() -> None:
    backlog = Backlog(10)
    backlog.put_nowait("12345\n")
    backlog.put_nowait("67890\n")
    with pytest.raises(queue.Full):
        backlog.put_nowait("x\n")
    assert backlog.get_nowait() == "12345\n"
    backlog.put_nowait("x\n")
    assert [backlog.get_nowait() for _ in range(2)] == ["67890\n", "x\n"]
    with pytest.raises(queue.Empty):
        backlog.get_nowait()
