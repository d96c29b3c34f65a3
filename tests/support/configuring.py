"""Shorthands for tests of the configuration."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hf_transformer.config.option import LOG_LEVEL, Option
from hf_transformer.config.options import Config, parse_config
from hf_transformer.errors import ConfigError

HOST = "--predictor_host=triton:8000"
PATHS = ("ssl_certfile", "ssl_keyfile")
EXAMPLES: dict[str, tuple[str, Any]] = {
    "cors_allow_origin": ("https://a,http://b:1", ("https://a", "http://b:1")),
    "allowed_hosts": ("a.example,*.b.example", ("a.example", "*.b.example")),
    "allowed_image_hosts": ("a.example,10.0.0.1:8443", ("a.example", "10.0.0.1:8443")),
    "access_log_format": ("%(h)s", "%(h)s"),
    "otlp_endpoint": ("http://collector:4318", "http://collector:4318"),
    "max_children": ("3", 3),
    **dict.fromkeys(PATHS, (__file__, __file__)),
}


def parse(*argv: str, **environ: str) -> tuple[Config, list[str]]:
    """The configuration and its notes, with a host of the predictor unless a variable gives one."""
    return parse_config(argv if "PREDICTOR_HOST" in environ else (HOST, *argv), environ)


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


def least(option: Option) -> int:
    """The smallest integer that an option takes."""
    found = re.search(r"-?\d+", option.convert.expects)
    assert found
    return int(found[0])


def example(option: Option) -> tuple[str, Any]:
    """A text that differs from the default, and its value."""
    if option.name in EXAMPLES:
        return EXAMPLES[option.name]
    if option.boolean:
        return ("no", False) if option.default else ("yes", True)
    if option.convert is LOG_LEVEL:
        return "Debug", 10
    kind = option.convert.metavar
    if kind == "INT":
        return str(least(option) + 1), least(option) + 1
    if kind in ("NUMBER", "SECONDS"):
        return ("0.25", 0.25) if option.default == 0.5 else ("0.5", 0.5)
    if kind == "NAME,...":
        return "a,b", ("a", "b")
    if " or " in option.convert.expects:  # one of several words
        word = option.convert.expects.partition(" (")[0].rpartition(" or ")[2]
        return word, word
    return "some-value", "some-value"
