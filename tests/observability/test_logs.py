from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from hf_transformer.errors import ConfigError
from hf_transformer.observability.logging import configure_logging, default_logging

NAMES = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "hf_transformer", "hf_transformer.access", "probe")
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} ")


@dataclass(frozen=True)
class Settings:
    configure_logging: bool = True
    log_config_file: str | None = None
    log_level: int = logging.INFO
    log_format: Literal["text", "json"] = "text"


def state(name: str) -> tuple[int, list[logging.Handler], bool, bool]:
    logger = logging.getLogger(name)
    return logger.level, list(logger.handlers), logger.propagate, logger.disabled


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    # All there are: a configuration of the user's disables those that it does not name.
    before = {name: state(name) for name in {*NAMES, *logging.root.manager.loggerDict}}
    yield
    logging.captureWarnings(False)
    for name, (level, handlers, propagate, disabled) in before.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled


def lines(text: str) -> list[str]:
    """The lines of a log without their times."""
    assert all(LINE.match(line) for line in text.splitlines())
    return [LINE.sub("", line) for line in text.splitlines()]


def test_one_format_on_stderr_for_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    logging.getLogger("hf_transformer.app").info("ready in %d ms", 3)
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("probe").warning("careful")
    out, err = capsys.readouterr()
    assert out == ""
    assert lines(err) == [
        "INFO hf_transformer.app: ready in 3 ms",
        "INFO uvicorn.error: started",
        "WARNING probe: careful",
    ]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_the_level(capsys: pytest.CaptureFixture[str], level: int) -> None:
    configure_logging(Settings(log_level=level))
    for name in ("hf_transformer", "uvicorn.error", "probe"):
        logging.getLogger(name).debug("details")
        logging.getLogger(name).error("broken")
    expected = [("DEBUG", "details"), ("ERROR", "broken")] if level == logging.DEBUG else [("ERROR", "broken")]
    assert lines(capsys.readouterr().err) == [
        f"{word} {name}: {message}"
        for name in ("hf_transformer", "uvicorn.error", "probe")
        for word, message in expected
    ]


def test_uvicorns_access_log_is_silent_and_ours_is_bare_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_level=logging.ERROR))
    logging.getLogger("uvicorn.access").info('127.0.0.1 - "GET / HTTP/1.1" 200')
    logging.getLogger("hf_transformer.access").info("GET / 200")
    assert capsys.readouterr() == ("GET / 200\n", "")


def test_configuring_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    configure_logging(Settings())
    logging.getLogger("hf_transformer").info("once")
    assert lines(capsys.readouterr().err) == ["INFO hf_transformer: once"]


def test_loggers_that_exist_already_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("probe")
    configure_logging(Settings())
    logger.info("still here")
    assert lines(capsys.readouterr().err) == ["INFO probe: still here"]


@pytest.mark.parametrize("file", [None, "/no/such/file.json"])
def test_logging_can_be_left_alone(file: str | None) -> None:
    before = {name: state(name) for name in NAMES}
    configure_logging(Settings(configure_logging=False, log_config_file=file, log_level=logging.DEBUG))
    assert {name: state(name) for name in NAMES} == before


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
def test_a_file_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    settings = default_logging(logging.INFO)
    settings["formatters"]["line"] = {"format": "<%(message)s>"}
    path = tmp_path / f"logging{suffix}"
    dumps: dict[str, Any] = {".json": json.dumps, ".yaml": yaml.safe_dump, ".yml": yaml.safe_dump}
    dump = dumps.get(suffix, lambda _: INI)
    path.write_text(dump(settings))
    configure_logging(Settings(log_config_file=str(path), log_level=logging.ERROR))
    logging.getLogger("probe").info("as the file says")
    assert capsys.readouterr().err == "<as the file says>\n"


def test_a_file_that_names_no_logger_silences_none(tmp_path: Path) -> None:
    existing = logging.getLogger("hf_transformer.app")
    path = tmp_path / "logging.json"
    path.write_text('{"version": 1}')
    configure_logging(Settings(log_config_file=str(path)))
    assert not existing.disabled
    path.write_text('{"version": 1, "disable_existing_loggers": true}')
    configure_logging(Settings(log_config_file=str(path)))
    assert existing.disabled


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.json", None, "No such file or directory"),
        ("missing.yaml", None, "No such file or directory"),
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
def test_a_file_that_is_not_usable(tmp_path: Path, name: str, content: str | bytes | None, reason: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        configure_logging(Settings(log_config_file=str(path)))
    message = str(caught.value)
    assert message.startswith(f"--log_config_file: {str(path)!r} can't be used: ")
    assert reason in message and "\n" not in message
