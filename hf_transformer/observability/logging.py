"""Logging: text or JSON lines on stderr for the service and its libraries, and the latency log.

Each handler writes from a separate thread, so a blocked pipe or a full disk can't block the service. The handler drops
and counts lines if its backlog is full or a write fails.

The latency log has a line for each answered request. With the default configuration, it bypasses LogRecords and writes
several lines at once. A LogRecord takes 40 microseconds, almost as long as the rest of a short request. With a user's
logging configuration, each line is an ordinary LogRecord.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import logging
import logging.config
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import orjson

from hf_transformer.errors import ESCAPES, ConfigError
from hf_transformer.types.request import Context

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
REQUEST_ID, TRACE_ID, SPAN_ID = NAMES = ("request_id", "trace_id", "span_id")
"""Attributes of a LogRecord that identify the request, passed as ``extra``."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
ACCESS_LOGGER = "hf_transformer.access"
"""Logger of the access log. It writes lines without a prefix to stdout, as KServe does, or JSON lines."""
LATENCY_LOGGER = "hf_transformer.latency"
SHOWN_NAMES = {"uvicorn.error": "hf_transformer.server"}
"""Names in log lines by logger: uvicorn logs all events of the server under that name, not only errors."""
LATENCY_FLUSH_SECONDS = 0.1  # maximum buffering time of the latency log
BACKLOG_CHARACTERS = 2**20  # maximum size of the backlog
WRITE_CHARACTERS = 65_536  # approximate maximum size of one write
FLUSH_SECONDS = 1.0  # time limit for writing the backlog when the process ends
CONFIG_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    RuntimeError,
    configparser.Error,
)
"""Exceptions that the logging module raises for an invalid configuration."""


def configure_logging(level: int, format: Literal["text", "json"] = "text", file: str | None = None) -> None:
    """Configures logging.

    Args:
        level: numeric level of the logging module.
        format: the format of the lines.
        file: the user's configuration, which replaces the default: a dictConfig in .json or .yaml, else a fileConfig.

    Raises:
        ConfigError: the file is missing or invalid.
    """
    if file is None:
        logging.config.dictConfig(default_logging(level, format))
        # Redirect Python's warnings to the log, so that all lines on stderr are JSON.
        logging.captureWarnings(format == "json")
        return
    try:
        _load_file(Path(file))
    except CONFIG_ERRORS as exc:
        detail = exc.strerror if isinstance(exc, OSError) else None
        if not detail:  # the logging module keeps the reason in the cause
            detail = str(exc) if exc.__cause__ is None else f"{exc}: {exc.__cause__}"
        reason = " ".join(detail.split()) or type(exc).__name__
        raise ConfigError(f"--log_config_file: {file!r} can't be used: {reason}") from exc


def default_logging(level: int, format: Literal["text", "json"] = "text") -> dict[str, Any]:
    """Returns the default dictConfig."""
    as_json = {"()": f"{__name__}.JsonFormatter"}
    as_text = {"()": f"{__name__}.LineFormatter", "fmt": FORMAT, "datefmt": TIME_FORMAT}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": as_json if format == "json" else as_text,
            "bare": as_json if format == "json" else {"format": "%(message)s"},
        },
        "handlers": {
            "stderr": {"class": f"{__name__}.LineHandler", "formatter": "line", "stream": "ext://sys.stderr"},
            "stdout": {"class": f"{__name__}.LineHandler", "formatter": "bare", "stream": "ext://sys.stdout"},
        },
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {ACCESS_LOGGER: {"level": logging.INFO, "handlers": ["stdout"], "propagate": False}},
    }


def _load_file(path: Path) -> None:
    """Applies the user's configuration. Raises CONFIG_ERRORS."""
    if path.suffix not in (".json", ".yaml", ".yml"):
        path.open().close()  # raises for a missing file, unlike fileConfig
        logging.config.fileConfig(path, disable_existing_loggers=False, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        value = json.loads(text)
    else:
        import yaml  # imported late: few services have such a file

        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as exc:
            raise ValueError(f"not YAML: {exc}") from exc
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    # The default, true, would disable existing loggers that are missing in the file, such as most loggers of the
    # service.
    logging.config.dictConfig({"disable_existing_loggers": False, **value})


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and escapes control characters in its message. Tracebacks take several lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.name in SHOWN_NAMES:
            record = logging.makeLogRecord({**vars(record), "name": SHOWN_NAMES[record.name]})
        return super().formatMessage(record).translate(ESCAPES)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object in one line.

    Its keys are ``time``, ``level``, ``logger`` and ``message``, and if present ``request_id``, ``trace_id``,
    ``span_id``, ``exception`` and ``stack``.
    """

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, object] = {name: value for name in NAMES if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            more["exception"] = record.exc_text
        if record.stack_info:
            more["stack"] = self.formatStack(record.stack_info)
        name = SHOWN_NAMES.get(record.name, record.name)
        return json_line(record.created, record.levelname, name, record.getMessage(), more)


def names_of(request_id: str, traceparent: str | None) -> dict[str, object]:
    """Builds ``extra`` for a log record: the request id, and the trace and span ids of the traceparent."""
    match = _TRACEPARENT.match(traceparent) if traceparent else None
    if match is None:
        return {REQUEST_ID: request_id}
    return {REQUEST_ID: request_id, TRACE_ID: match[1], SPAN_ID: match[2]}


def json_line(seconds: float, level: str, logger: str, message: str, more: Mapping[str, object]) -> str:
    """Builds a JSON line without the newline. Converts ``seconds`` since 1970 to local time with the UTC offset."""
    local, offset = local_time(int(seconds))
    moment = f"{local}.{int(seconds % 1 * 1e3):03d}{offset}"
    line = {"time": moment, "level": level, "logger": logger, "message": message, **more}
    try:
        return orjson.dumps(line).decode()
    except orjson.JSONEncodeError:  # a lone surrogate, from a client
        escaped = {name: str(value).encode(errors="backslashreplace").decode() for name, value in line.items()}
        return orjson.dumps(escaped).decode()


@lru_cache(maxsize=2)
def local_time(second: int) -> tuple[str, str]:
    """Converts seconds since 1970 to local time and the UTC offset, such as +01:00.

    Cached, because many lines have the same second.
    """
    local = time.localtime(second)
    zone = time.strftime("%z", local)
    return time.strftime(TIME_FORMAT, local), f"{zone[:3]}:{zone[3:]}"


class Backlog(queue.Queue[str]):
    """Queue with its size measured in characters, because an item may contain the lines of thousands of requests."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self.size = 0

    def _qsize(self) -> int:
        return self.size

    def _put(self, item: str) -> None:
        super()._put(item)
        self.size += len(item)

    def _get(self) -> str:
        item = super()._get()
        self.size -= len(item)
        return item


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records and formatted lines to a stream. A thread writes them if the stream has a file descriptor.

    Attributes:
        lost: the number of dropped lines.
        write_older: writes lines that are older than a new record, and waited for others to be written with them.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.lost = 0
        self.write_older: Callable[[], None] = lambda: None
        self._waiting = Backlog(BACKLOG_CHARACTERS)
        self._thread: threading.Thread | None = None
        try:
            # Bypasses the stream: Python's exit would wait for a thread that blocks in it.
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write_older()
            self.write(self.format(record) + self.terminator)
        except Exception:
            self.handleError(record)

    def write(self, lines: str) -> None:
        """Writes complete lines, or queues them for the thread. Drops lines if the backlog is full."""
        if self._descriptor is None:
            self._write_through(lines)
            return
        try:
            self._waiting.put_nowait(lines)
        except queue.Full:
            self.lost += lines.count("\n")
        if self._thread is None:
            with self.lock or nullcontext():
                if self._thread is None:
                    self._thread = threading.Thread(target=self._keep_writing, name="log", daemon=True)
                    self._thread.start()

    def _write_through(self, lines: str) -> None:
        try:
            with self.lock or nullcontext():
                self.stream.write(lines)
                self.stream.flush()
        except (OSError, ValueError):
            self.handleError(logging.makeLogRecord({"msg": "lines of the log are lost"}))

    def _keep_writing(self) -> None:
        while True:
            texts = [self._waiting.get()]
            size = len(texts[0])
            while size < WRITE_CHARACTERS:
                try:
                    texts.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
                size += len(texts[-1])
            unwritten = memoryview("".join(texts).encode(errors="backslashreplace"))
            try:
                while unwritten:
                    unwritten = unwritten[os.write(cast(int, self._descriptor), unwritten) :]
            except OSError:
                self.lost += bytes(unwritten).count(b"\n")
            for _ in texts:
                self._waiting.task_done()

    def flush(self) -> None:
        """Waits until the backlog is written, up to FLUSH_SECONDS."""
        ends = time.monotonic() + FLUSH_SECONDS
        while self._waiting.unfinished_tasks and time.monotonic() < ends:
            time.sleep(0.001)


def lost_lines() -> int:
    """Number of dropped log lines since the start."""
    handlers = {*logging.getLogger().handlers, *logging.getLogger(ACCESS_LOGGER).handlers}
    return sum(handler.lost for handler in handlers if isinstance(handler, LineHandler))


class ModelLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines begin with the model's name; unchanged lines without a name."""

    def __init__(self, logger: logging.Logger, model_name: str) -> None:
        super().__init__(logger)
        self._prefix = f"model {model_name!r}: ".replace("%", "%%") if model_name else ""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs


class LatencyLog:
    """Log of request latencies in KServe's format (python/kserve/kserve/model.py), for tools that parse it."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(LATENCY_LOGGER)
        self._handler = only_handler(self._logger)
        self._json = self._handler is not None and isinstance(self._handler.formatter, JsonFormatter)
        self._lines: list[str] = []
        if self._handler is not None:
            self._handler.write_older = self.flush
        self._moment, self._prefix = 0, ""
        """Time of the last line in milliseconds since 1970, and its formatted prefix."""

    def add(self, context: Context) -> None:
        """Logs the latencies of an answered request."""
        if self._handler is None and not self._logger.isEnabledFor(logging.INFO):
            return
        before, predict, after = context.preprocess * 1e3, context.predict * 1e3, context.postprocess * 1e3
        message = (
            f"requestId: {context.request_id}, preprocess_ms: {before:.3f}, explain_ms: 0, "
            f"predict_ms: {predict:.3f}, postprocess_ms: {after:.3f}"
        )
        if self._handler is None:
            extra = names_of(context.request_id, context.headers.get("traceparent"))
            self._logger.info("%s", message, extra=extra)
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(LATENCY_FLUSH_SECONDS, self.flush)
        now = time.time()
        if self._json:
            more = {
                **names_of(context.request_id, context.headers.get("traceparent")),
                "model": context.served_name,
                "preprocess_ms": round(before, 3),
                "queue_ms": round(context.queue * 1e3, 3),
                "predict_ms": round(predict, 3),
                "postprocess_ms": round(after, 3),
            }
            self._lines.append(json_line(now, "INFO", LATENCY_LOGGER, message, more) + "\n")
        else:
            if (moment := int(now * 1e3)) != self._moment:
                self._moment = moment
                self._prefix = f"{local_time(moment // 1000)[0]}.{moment % 1000:03d} INFO {LATENCY_LOGGER}: "
            self._lines.append(f"{self._prefix}{message}\n")

    def flush(self) -> None:
        """Writes the buffered lines. Other threads call it before they write a record."""
        if not self._lines or self._handler is None:
            return
        with self._handler.lock or nullcontext():
            lines = self._lines[:]  # the event loop may append more meanwhile
            del self._lines[: len(lines)]
            self._handler.write("".join(lines))


def only_handler(logger: logging.Logger) -> LineHandler | None:
    """Returns the logger's LineHandler if it is the only handler of INFO records, without filters; else None."""
    handlers: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        handlers += current.handlers
        current = current.parent if current.propagate else None
    if logger.filters or len(handlers) != 1 or not logger.isEnabledFor(logging.INFO):
        return None
    handler = handlers[0]
    plain = not handler.filters and handler.level <= logging.INFO
    return handler if plain and isinstance(handler, LineHandler) else None
