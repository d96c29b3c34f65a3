"""Converters: the text of a flag or variable becomes a value.

A converter is called with the text and raises ValueError for a text that it refuses; ``expects`` says in a
few words what it takes (for error messages), ``metavar`` in one word (for --help), and ``text`` writes a
value as a user would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

LARGEST_INT32 = 2**31 - 1
TRUE_WORDS = ("true", "1", "yes", "on", "y", "t")
FALSE_WORDS = ("false", "0", "no", "off", "n", "f")
LEVELS: Mapping[str, int] = {
    "trace": 5,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "warn": 30,
    "fatal": 50,
}
"""Level names, lower case, to the numbers of the logging module; trace is uvicorn's own."""


class Secret(str):
    """A string that repr() does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Converter(Protocol):
    """What every converter offers."""

    @property
    def expects(self) -> str: ...
    @property
    def metavar(self) -> str: ...
    def __call__(self, text: str) -> Any: ...
    def text(self, value: Any) -> str: ...


@dataclass(frozen=True)
class Text:
    """Any text that matches ``pattern``."""

    metavar: str = "TEXT"
    expects: str = "a text"
    pattern: str = ""

    def __call__(self, text: str) -> str:
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ValueError(text)
        return text

    def text(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class SecretText(Text):
    """A text that neither repr() nor an error message shows."""

    def __call__(self, text: str) -> Secret:
        return Secret(super().__call__(text))

    def text(self, value: str) -> str:
        return "***"


@dataclass(frozen=True)
class Integer:
    """A whole number in ASCII digits from ``least`` to ``most``, both included."""

    least: int = 0
    most: int = LARGEST_INT32
    metavar: str = "INT"

    @property
    def expects(self) -> str:
        if self.most == LARGEST_INT32:
            return f"an integer of {self.least} or more"
        return f"an integer from {self.least} to {self.most}"

    def __call__(self, text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()):
            raise ValueError(text)
        number = int(text)
        if not self.least <= number <= self.most:
            raise ValueError(text)
        return number

    def text(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True)
class Number:
    """A finite number greater than ``above``."""

    above: float = 0.0
    most: float = math.inf
    zero: bool = False
    metavar: str = "NUMBER"

    @property
    def expects(self) -> str:
        start = f"a number of at least {self.above:g}" if self.zero else f"a number above {self.above:g}"
        return start if math.isinf(self.most) else f"{start} and at most {self.most:g}"

    def __call__(self, text: str) -> float:
        number = float(text)
        enough = number >= self.above if self.zero else number > self.above
        if not (math.isfinite(number) and enough and number <= self.most):
            raise ValueError(text)
        return number

    def text(self, value: float) -> str:
        return f"{value:g}"


@dataclass(frozen=True)
class Boolean:
    """True or false, in the words that KServe takes."""

    expects: str = "true or false (or 1/0, yes/no, on/off)"
    metavar: str = "true|false"

    def __call__(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in TRUE_WORDS + FALSE_WORDS:
            raise ValueError(text)
        return word in TRUE_WORDS

    def text(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice:
    """One of ``names``, in any case; ``others`` are further spellings of them, ``why`` explains in errors."""

    names: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    separator: str = "-"
    why: str = ""

    @property
    def expects(self) -> str:
        names = ", ".join(self.names[:-1]) + f" or {self.names[-1]}"
        return f"{names} ({self.why})" if self.why else names

    @property
    def metavar(self) -> str:
        return "|".join(self.names) if len(self.names) < 4 else "NAME"

    def __call__(self, text: str) -> str:
        word = re.sub(r"[-_ ]", self.separator, text.strip().lower())
        word = self.others.get(word, word)
        if word not in self.names:
            raise ValueError(text)
        return word

    def text(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class Names:
    """Names separated by commas or spaces; the brackets and quotes of a JSON list are dropped."""

    metavar: str = "NAME,..."
    expects: str = "different names separated by commas, such as input_ids,attention_mask"
    pattern: str = ".+"

    def __call__(self, text: str) -> tuple[str, ...]:
        bare = text.strip().removeprefix("[").removesuffix("]")
        names = tuple(name.strip("\"'") for name in re.split(r"[,\s]+", bare) if name)
        if not names or not all(re.fullmatch(self.pattern, name) for name in names) or len(set(names)) < len(names):
            raise ValueError(text)
        return names

    def text(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True)
class Level:
    """A logging level: a name in any case, or a number."""

    expects: str = "debug, info, warning, error, critical or a number from 0 to 100"
    metavar: str = "LEVEL"

    def __call__(self, text: str) -> int:
        word = text.strip().lower()
        return LEVELS[word] if word in LEVELS else Integer(0, 100)(word)

    def text(self, value: int) -> str:
        return next((name for name, level in LEVELS.items() if level == value), str(value))
