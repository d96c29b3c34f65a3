"""Log records as JSON, one object in one line each (--log_format=json)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import orjson

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
REQUEST_ID = "request_id"
"""The attribute of a record (given as ``extra``) that says which request it is about."""


def json_line(seconds: float, level: str, logger: str, message: str, more: Mapping[str, object]) -> str:
    """One line without its end; ``seconds`` since 1970, written in local time with its distance from UTC."""
    local = time.localtime(seconds)
    zone = time.strftime("%z", local)
    written = f"{time.strftime(TIME_FORMAT, local)}.{int(seconds % 1 * 1e3):03d}{zone[:3]}:{zone[3:]}"
    line = {"time": written, "level": level, "logger": logger, "message": message, **more}
    try:
        return orjson.dumps(line).decode()
    except orjson.JSONEncodeError:  # half of a surrogate pair, from a client
        return orjson.dumps({name: _sound(value) for name, value in line.items()}).decode()


def _sound(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, and where there are any ``request_id`` and ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, object] = {}
        if (request_id := getattr(record, REQUEST_ID, None)) is not None:
            more[REQUEST_ID] = request_id
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            more["exception"] = record.exc_text
        if record.stack_info:
            more["stack"] = self.formatStack(record.stack_info)
        return json_line(record.created, record.levelname, record.name, record.getMessage(), more)
