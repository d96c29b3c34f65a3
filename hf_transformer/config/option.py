"""Declaration of options. The parser, --help and the reference page read the declarations in ``Config``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from hf_transformer.errors import ConfigError, without_userinfo

PREFIX = "HF_TRANSFORMER_"
MODEL, ANSWERS, GENERATION, PREDICTOR = "Model and tokenizer", "Answers", "Text generation", "Predictor"
"""Groups of options that each model of a service may set for itself."""
MAX_QUOTED = 100
"""Maximum characters of an invalid value in an error message."""
LARGEST_INT32 = 2**31 - 1
BOOLEANS = dict.fromkeys(("true", "1", "yes", "on", "y", "t"), True) | dict.fromkeys(
    ("false", "0", "no", "off", "n", "f"), False
)
"""Words that KServe accepts as booleans."""
LEVELS = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50, "warn": 30, "fatal": 50}
"""Levels of the logging module by name. uvicorn adds ``trace``."""


OLD_NAMES_GO = "2.0.0"
"""The version that does not know the old names of flags (``aliases``) any more."""


def deprecation(name: str, instead: str, gone: str = OLD_NAMES_GO) -> str:
    """Returns the warning about a name that still works (docs/stability.md). ``gone`` is the version without it. The
    changelog has the name under Deprecated since an earlier minor version."""
    return f"{name} is deprecated: use {instead}; version {gone} does not know it"


class Secret(str):
    """A string with a masked repr()."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True)
class Converter:
    """Converts the text of a flag or variable to a value."""

    metavar: str  # placeholder in --help
    expects: str  # description of valid values for error messages
    read: Callable[[str], Any]  # converts a text; raises ValueError if invalid
    show: Callable[[Any], str] = str  # formats a value as users write it


def plain_text(metavar: str = "TEXT", expects: str = "a text", pattern: str = "(?s:.*)") -> Converter:
    """Accepts any text that matches ``pattern``."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return Converter(metavar, expects, read)


def integer(least: int = 0, most: int = LARGEST_INT32) -> Converter:
    """Accepts an integer in ASCII digits from ``least`` to ``most`` inclusive."""
    limits = f"of {least} or more" if most == LARGEST_INT32 else f"from {least} to {most}"

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return Converter("INT", f"an integer {limits}", read)


def number(above: float = 0.0, most: float = math.inf, *, zero: bool = False, metavar: str = "NUMBER") -> Converter:
    """Accepts a finite number greater than ``above``, or equal to ``above`` if ``zero``, and at most ``most``."""
    expects = f"a number of at least {above:g}" if zero else f"a number above {above:g}"

    def read(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and (value >= above if zero else value > above) and value <= most):
            raise ValueError(text)
        return value

    return Converter(metavar, expects if math.isinf(most) else f"{expects} and at most {most:g}", read, "{:g}".format)


def one_of(*names: str, why: str = "") -> Converter:
    """Accepts one of the names, ignoring case and separators. ``why`` explains the choice in error messages."""
    expects = ", ".join(names[:-1]) + f" or {names[-1]}" + (f" ({why})" if why else "")

    known = {name.replace("_", "-"): name for name in names}

    def read(text: str) -> str:
        word = re.sub(r"[-_ ]", "-", text.strip().lower())
        if word not in known:
            raise ValueError(text)
        return known[word]

    return Converter("|".join(names) if len(names) < 4 else "NAME", expects, read)


def name_list(metavar: str, expects: str, pattern: str = ".+") -> Converter:
    """Accepts distinct names separated by commas or spaces, with or without the brackets and quotes of a JSON list."""

    def read(text: str) -> tuple[str, ...]:
        bare = text.strip().removeprefix("[").removesuffix("]")
        names = tuple(name.strip("\"'") for name in re.split(r"[,\s]+", bare) if name)
        if not names or not all(re.fullmatch(pattern, name) for name in names) or len(set(names)) < len(names):
            raise ValueError(text)
        return names

    return Converter(metavar, expects, read, ",".join)


def _read_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in BOOLEANS:
        raise ValueError(text)
    return BOOLEANS[word]


def _read_level(text: str) -> int:
    word = text.strip().lower()
    level: int = LEVELS[word] if word in LEVELS else integer(0, 100).read(word)
    return level


BOOLEAN = Converter(
    "true|false", "true or false (or 1/0, yes/no, on/off)", _read_boolean, lambda value: str(value).lower()
)
TOKEN = Converter("TOKEN", "a text", Secret, repr)
"""A text that repr() and error messages mask."""
LOG_LEVEL = Converter(
    "LEVEL",
    "debug, info, warning, error, critical or a number from 0 to 100",
    _read_level,
    lambda value: next((name for name, level in LEVELS.items() if level == value), str(value)),
)


@dataclass(frozen=True)
class Variable:
    """An environment variable. ``read`` converts its text to the option's text; None leaves the option unset."""

    name: str
    read: Callable[[str], str | None] = lambda text: text


@dataclass(frozen=True)
class Option:
    """The declaration of an option."""

    name: str  # name of the flag, with underscores
    group: str  # section title in --help
    help: str
    convert: Converter
    default: Any = None
    variables: Sequence[str | Variable] = ()  # in addition to HF_TRANSFORMER_<NAME>
    aliases: tuple[str, ...] = ()  # old names of the flag
    default_text: str = ""  # describes a default that depends on other values
    many: bool = False  # the flag accepts several values
    may_be_empty: bool = False
    no_effect: str = ""  # the reason why the option has no effect

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def per_model(self) -> bool:
        """Whether each of several models may have a value of its own."""
        return self.group in (MODEL, ANSWERS, GENERATION, PREDICTOR)

    @property
    def boolean(self) -> bool:
        return self.convert is BOOLEAN

    @property
    def all_variables(self) -> tuple[Variable, ...]:
        """The option's own variable, then KServe's. The first variable with a value takes precedence."""
        variables = (PREFIX + self.name.upper(), *self.variables)
        return tuple(Variable(variable) if isinstance(variable, str) else variable for variable in variables)

    @property
    def shown_default(self) -> str:
        """The default as users write it; empty if the option has no default."""
        if self.default_text or self.default is None:
            return self.default_text
        return self.convert.show(self.default)


@dataclass(frozen=True)
class Setting:
    """A text for an option. ``source`` is the flag or variable as the user wrote it."""

    option: Option
    text: str
    source: str

    def value(self) -> Any:
        """Converts the text. Raises ConfigError with the source, the text and the expected form."""
        convert = self.option.convert
        if not self.text.strip() and not self.option.may_be_empty:
            raise self.error(convert.expects)
        try:
            return convert.read(self.text)
        except ValueError:
            raise self.error(convert.expects) from None

    def error(self, expected: str) -> ConfigError:
        """Returns the error for this text. Quotes the text unless it is a secret."""
        message = f"{self.source}: expected {expected}"
        if self.option.convert.read is Secret:
            return ConfigError(message)
        text = without_userinfo(self.text)
        return ConfigError(f"{message}, got {text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + '...'!r}")


def option(group: str, help: str, convert: Converter, default: Any = None, **more: Any) -> Any:
    """Declares an option as a dataclass field named like the flag. ``default`` may be a function that computes the
    value, or MISSING for a required option. ``more`` sets other attributes of Option."""
    metadata = {"group": group, "help": help, "convert": convert, **more}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(kind: type) -> tuple[Option, ...]:
    """Returns the options that a dataclass's fields declare, in order."""
    return tuple(
        Option(name=item.name, default=None if item.default is MISSING else item.default, **item.metadata)
        for item in fields(kind)
    )
