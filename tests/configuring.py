"""Shorthands for tests of the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.config.option import Option
from hf_transformer.config.options import Config, parse_config
from hf_transformer.config.values import Boolean, Choice, Integer, Level, Names, Number
from hf_transformer.errors import ConfigError

HOST = "--predictor_host=triton:8000"
PATHS = ("ssl_certfile", "ssl_keyfile")


def parse(*argv: str, **environ: str) -> tuple[Config, list[str]]:
    return parse_config((HOST, *argv), environ)


def config(*argv: str, **environ: str) -> Config:
    return parse(*argv, **environ)[0]


def notes(*argv: str, **environ: str) -> list[str]:
    return parse(*argv, **environ)[1]


def error(*argv: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv, **environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def example(option: Option) -> tuple[str, Any]:
    """A text that differs from the default, and its value."""
    match option.convert:
        case Boolean():
            return ("no", False) if option.default else ("yes", True)
        case Choice() as choice:
            return choice.names[-1], choice.names[-1]
        case Integer() as integer:
            return str(integer.least + 1), integer.least + 1
        case Number():
            return "0.5", 0.5
        case Level():
            return "Debug", 10
        case Names() if option.name == "cors_allow_origin":
            return "https://a,http://b:1", ("https://a", "http://b:1")
        case Names():
            return "a,b", ("a", "b")
    if option.name == "access_log_format":
        return "%(h)s", "%(h)s"
    if option.name == "otlp_endpoint":
        return "http://collector:4318", "http://collector:4318"
    return (__file__, __file__) if option.name in PATHS else ("some-value", "some-value")
