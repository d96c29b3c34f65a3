"""Sets up logging: one format, text or JSON, on stderr for the service, its libraries and uvicorn."""

from __future__ import annotations

import configparser
import json
import logging
import logging.config
from pathlib import Path
from typing import Any, Literal, Protocol

from hf_transformer.errors import ConfigError
from hf_transformer.observability.json_log import TIME_FORMAT, JsonFormatter
from hf_transformer.observability.latency_log import LineHandler

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
LINES = f"{LineHandler.__module__}.{LineHandler.__qualname__}"
JSON = f"{JsonFormatter.__module__}.{JsonFormatter.__qualname__}"
ACCESS_LOGGER = "hf_transformer.access"
"""The logger of --access_log_format: its lines go to stdout as they are, as KServe's do, or in JSON like all others."""
UNUSABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    RuntimeError,
    configparser.Error,
)
"""What the logging module raises for a configuration that it can't use."""


class LogSettings(Protocol):
    """The part of Config that is needed here."""

    @property
    def configure_logging(self) -> bool: ...
    @property
    def log_config_file(self) -> str | None: ...
    @property
    def log_level(self) -> int: ...
    @property
    def log_format(self) -> Literal["text", "json"]: ...


def configure_logging(config: LogSettings) -> None:
    """Sets up logging as the configuration says; does nothing with --configure_logging=false.

    Raises:
        ConfigError: --log_config_file is missing or not usable.
    """
    if not config.configure_logging:
        return
    if config.log_config_file is None:
        logging.config.dictConfig(default_logging(config.log_level, config.log_format))
        # As text on stderr they would be in nobody's form; as records they are as the others.
        logging.captureWarnings(config.log_format == "json")
        return
    try:
        load_file(Path(config.log_config_file))
    except UNUSABLE as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else with_cause(exc)
        raise ConfigError(f"--log_config_file: {config.log_config_file!r} can't be used: {reason}") from exc


def default_logging(level: int, format: Literal["text", "json"] = "text") -> dict[str, Any]:
    """The service's dictConfig. uvicorn's own access log stays silent: --access_log_format replaces it."""
    json_lines = {"()": JSON}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": json_lines if format == "json" else {"format": FORMAT, "datefmt": TIME_FORMAT},
            "bare": json_lines if format == "json" else {"format": "%(message)s"},
        },
        "handlers": {
            "stderr": {"class": LINES, "formatter": "line", "stream": "ext://sys.stderr"},
            "stdout": {"class": "logging.StreamHandler", "formatter": "bare", "stream": "ext://sys.stdout"},
        },
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            "uvicorn": {"level": level, "handlers": [], "propagate": True},
            "uvicorn.error": {"level": level, "handlers": [], "propagate": True},
            "uvicorn.access": {"level": logging.CRITICAL + 1, "handlers": [], "propagate": False},
            ACCESS_LOGGER: {"level": logging.INFO, "handlers": ["stdout"], "propagate": False},
        },
    }


def load_file(path: Path) -> None:
    """Uses a dictConfig in JSON or YAML, or the ini form of fileConfig; raises one of UNUSABLE."""
    if path.suffix == ".json":
        logging.config.dictConfig(as_mapping(json.loads(path.read_text(encoding="utf-8"))))
    elif path.suffix in (".yaml", ".yml"):
        logging.config.dictConfig(as_mapping(read_yaml(path)))
    elif not path.is_file():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    else:
        logging.config.fileConfig(path, disable_existing_loggers=False, encoding="utf-8")


def read_yaml(path: Path) -> Any:
    """Reads a YAML file; PyYAML comes with huggingface_hub. Raises ValueError for one that is not YAML."""
    import yaml  # only here: most services have no such file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as exc:
        raise ValueError(f"not YAML: {exc}") from exc


def as_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    # The default, true, would silence the loggers that exist by now and are not named in the file: most of ours.
    return {"disable_existing_loggers": False, **value}


def with_cause(exc: BaseException) -> str:
    """An error in one line, with the reason that the logging module keeps in its cause."""
    words = str(exc) if exc.__cause__ is None else f"{exc}: {exc.__cause__}"
    return " ".join(words.split()) or type(exc).__name__
