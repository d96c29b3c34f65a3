"""--log_format=json: one object in one line, whatever is logged."""

from __future__ import annotations

import json
import logging
import re
import warnings
from typing import Any

import pytest

from hf_transformer.observability.json_log import JsonFormatter
from hf_transformer.observability.latency_log import NAME_OF_LATENCY, LatencyLog
from hf_transformer.observability.logging import configure_logging
from hf_transformer.types import Context, Timings
from tests.observability.test_logs import Settings, restored_logging

__all__ = ["restored_logging"]

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")


def written(text: str) -> list[dict[str, Any]]:
    """The lines without their times."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(TIME.fullmatch(line.pop("time")) for line in lines)
    return lines


def test_everybody_writes_objects(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format="json"))
    logging.getLogger("hf_transformer.app").info("ready in %d ms", 3)
    logging.getLogger("uvicorn.error").error('two\nlines "quoted"', extra={"request_id": "r1"})
    logging.getLogger("hf_transformer.access").info("GET / 200", extra={"request_id": "r2"})
    out, err = capsys.readouterr()
    assert written(err) == [
        {"level": "INFO", "logger": "hf_transformer.app", "message": "ready in 3 ms"},
        {"level": "ERROR", "logger": "uvicorn.error", "message": 'two\nlines "quoted"', "request_id": "r1"},
    ]
    assert written(out) == [
        {"level": "INFO", "logger": "hf_transformer.access", "message": "GET / 200", "request_id": "r2"}
    ]


def test_a_traceback_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format="json"))
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("probe").exception("broken", stack_info=True)
    [line] = written(capsys.readouterr().err)
    assert line["message"] == "broken"
    assert line["exception"].startswith("Traceback") and line["exception"].endswith("ValueError: inner")
    assert line["stack"].startswith("Stack")


def test_warnings_are_records(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging(Settings(log_format="json"))
        warnings.warn("careful", UserWarning, stacklevel=1)
        configure_logging(Settings())
    [line] = written(capsys.readouterr().err)
    assert line["logger"] == "py.warnings" and "careful" in line["message"]


def test_text_that_is_no_unicode_is_escaped() -> None:
    record = logging.makeLogRecord({"msg": "half \ud800", "levelname": "INFO", "name": "probe"})
    assert json.loads(JsonFormatter().format(record))["message"] == "half \\ud800"


def test_seconds_have_three_digits() -> None:
    record = logging.makeLogRecord({"msg": "", "created": 1_700_000_000.0075})
    assert json.loads(JsonFormatter().format(record))["time"][19:23] == ".007"


async def test_the_latency_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format="json"))
    log = LatencyLog()
    log.add([Context('r"1"', {}, Timings(0.001, 0.0005, 0.0025, 0.000125)), Context("r2", {}, Timings())])
    assert capsys.readouterr().err == ""
    log.flush()
    first, second = written(capsys.readouterr().err)
    message = 'requestId: r"1", preprocess_ms: 1.000, explain_ms: 0, predict_ms: 2.500, postprocess_ms: 0.125'
    stages = {"preprocess_ms": 1.0, "queue_ms": 0.5, "predict_ms": 2.5, "postprocess_ms": 0.125}
    about = {"level": "INFO", "logger": NAME_OF_LATENCY, "message": message, "request_id": 'r"1"'}
    assert first == about | stages
    assert second["request_id"] == "r2"
