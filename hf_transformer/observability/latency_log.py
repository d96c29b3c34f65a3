"""The line per request that says how long each stage took.

With the service's own logging the lines are put together without LogRecords and written some at a time: a record costs
40 microseconds, almost as much as all else that is done for a short request. With a logging configuration of the user's
each line is an ordinary record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from math import floor
from typing import TextIO

from hf_transformer.observability.json_log import REQUEST_ID, TIME_FORMAT, JsonFormatter, json_line
from hf_transformer.observability.milliseconds import SHORT, TEXTS, in_milliseconds
from hf_transformer.types import Context

NAME_OF_LATENCY = "hf_transformer.latency"
PERIOD = 0.1
"""Seconds that a line may wait for others."""


class LineHandler(logging.StreamHandler[TextIO]):
    """A stream of records, to which lines that are ready can be added too."""

    def write(self, lines: str) -> None:
        """Writes whole lines, as if they were records; what can't be written is lost, as a record would be."""
        try:
            with self.lock or nullcontext():
                self.stream.write(lines)
                self.flush()
        except (OSError, ValueError):
            self.handleError(logging.makeLogRecord({"msg": "lines of the latency log are lost"}))


class LatencyLog:
    """Lines in the form of KServe's (python/kserve/kserve/model.py), for tools that read them."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(NAME_OF_LATENCY)
        self._handler: LineHandler | None = None
        self._json = False
        self._lines: list[str] = []
        self._moment = 0
        self._time = self._prefix = ""

    def add(self, contexts: Sequence[Context]) -> None:
        """Logs requests that were answered just now."""
        if not self._lines:
            # Asked once per some lines: a handler may be added or taken away while the service runs.
            if not self._logger.isEnabledFor(logging.INFO):
                return
            self._handler = only_handler(self._logger)
            if self._handler is not None:
                self._json = isinstance(self._handler.formatter, JsonFormatter)
                asyncio.get_running_loop().call_later(PERIOD, self.flush)
        if self._handler is None:
            for context in contexts:
                self._logger.info("%s", _message(context), extra={REQUEST_ID: context.request_id})
            return
        now = time.time()
        if self._json:
            self._lines += [_json_line(now, context) for context in contexts]
            return
        moment = int(now * 1e3)
        if moment != self._moment:
            self._begin(moment)
        prefix = self._prefix
        for context in contexts:
            self._lines.append(f"{prefix}{_message(context)}\n")

    def _begin(self, moment: int) -> None:
        """How lines of a moment begin, in milliseconds since 1970."""
        second = moment // 1000
        if second != self._moment // 1000:
            self._time = time.strftime(TIME_FORMAT, time.localtime(second))
        self._moment = moment
        self._prefix = f"{self._time}.{moment % 1000:03d} INFO {NAME_OF_LATENCY}: "

    def flush(self) -> None:
        """Writes the lines that wait."""
        lines, self._lines = self._lines, []
        if lines and self._handler is not None:
            self._handler.write("".join(lines))


def _message(context: Context) -> str:
    before, predict, after = context.preprocess, context.predict, context.postprocess
    if before + predict + after <= SHORT:  # none is negative: all are short
        one, two = TEXTS[floor(before * 1e6 + 0.5)], TEXTS[floor(predict * 1e6 + 0.5)]
        three = TEXTS[floor(after * 1e6 + 0.5)]
    else:
        one, two, three = in_milliseconds(before), in_milliseconds(predict), in_milliseconds(after)
    return (
        f"requestId: {context.request_id}, preprocess_ms: {one}, explain_ms: 0, "
        f"predict_ms: {two}, postprocess_ms: {three}"
    )


def _json_line(now: float, context: Context) -> str:
    more = {REQUEST_ID: context.request_id, **milliseconds(context)}
    return json_line(now, "INFO", NAME_OF_LATENCY, _message(context), more) + "\n"


def milliseconds(context: Context) -> dict[str, float]:
    """The stages as fields of a line in JSON."""
    stages = {
        "preprocess_ms": context.preprocess,
        "queue_ms": context.queue,
        "predict_ms": context.predict,
        "postprocess_ms": context.postprocess,
    }
    return {name: round(seconds * 1e3, 3) for name, seconds in stages.items()}


def only_handler(logger: logging.Logger) -> LineHandler | None:
    """The service's own handler, if records of the logger go there and nowhere else, unfiltered and unchanged."""
    found: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += current.handlers
        current = current.parent if current.propagate else None
    if logger.filters or len(found) != 1:
        return None
    handler = found[0]
    plain = isinstance(handler, LineHandler) and not handler.filters and handler.level <= logging.INFO
    return handler if plain and isinstance(handler, LineHandler) else None
