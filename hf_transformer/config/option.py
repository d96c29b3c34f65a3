"""How an option is declared: one declaration gives its flag, variables, default, limits and help.

The fields of ``Config`` and the entries of ``ignored.IGNORED`` are declarations; the parser (arguments.py),
--help and the reference page (manual.py) all read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_transformer.config.values import Boolean, Converter
from hf_transformer.errors import ConfigError, without_userinfo

PREFIX = "HF_TRANSFORMER_"
SHOWN = 100
"""Characters of a bad value that an error message quotes."""


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    ``read`` gives what the variable's text means for this option, or None where it says nothing about it.
    """

    name: str
    read: Callable[[str], str | None] = lambda text: text


@dataclass(frozen=True)
class Option:
    """One declaration.

    ``name`` is the flag with underscores. ``aliases`` are old flags of the same meaning. ``switch``: a
    boolean usually written bare; the word after it is its value only where it can be one. ``many``: the words
    that follow are all values. ``may_be_empty``: an empty text is a value. ``no_effect``: why setting it
    changes nothing.
    """

    name: str
    group: str
    help: str
    convert: Converter
    default: Any = None
    variables: tuple[Variable, ...] = ()
    aliases: tuple[str, ...] = ()
    default_text: str = ""
    switch: bool = False
    many: bool = False
    may_be_empty: bool = False
    secret: bool = False
    no_effect: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def boolean(self) -> bool:
        return isinstance(self.convert, Boolean)

    @property
    def all_variables(self) -> tuple[Variable, ...]:
        """The option's own variable first, then those of KServe; the first one that is set counts."""
        return (Variable(PREFIX + self.name.upper()), *self.variables)

    @property
    def shown_default(self) -> str:
        """The default as a user would write it; empty if there is none."""
        if self.default_text or self.default is None:
            return self.default_text
        return self.convert.text(self.default)


@dataclass(frozen=True)
class Given:
    """A text given for an option; ``source`` is the flag or variable it came from, as the user wrote it."""

    option: Option
    text: str
    source: str

    def value(self) -> Any:
        """The converted value; raises ConfigError naming the source, the text and what was expected."""
        if not self.text.strip() and not self.option.may_be_empty:
            raise self.error(self.option.convert.expects)
        try:
            return self.option.convert(self.text)
        except ValueError:
            raise self.error(self.option.convert.expects) from None

    def error(self, expected: str) -> ConfigError:
        text = without_userinfo(self.text)
        shown = repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
        got = "" if self.option.secret else f", got {shown}"
        return ConfigError(f"{self.source}: expected {expected}{got}")


def option(
    group: str,
    help: str,
    convert: Converter,
    default: Any = None,
    *,
    variables: Iterable[str | Variable] = (),
    factory: Callable[[], Any] | None = None,
    required: bool = False,
    **more: Any,
) -> Any:
    """A dataclass field that is an option; its name is the flag. ``more`` are other attributes of Option."""
    declared = {
        "group": group,
        "help": help,
        "convert": convert,
        "default": default,
        "variables": as_variables(variables),
        **more,
    }
    metadata = {"option": declared}
    if required:
        return dataclasses.field(metadata=metadata)
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def as_variables(variables: Iterable[str | Variable]) -> tuple[Variable, ...]:
    return tuple(Variable(entry) if isinstance(entry, str) else entry for entry in variables)


def options_of(kind: type) -> tuple[Option, ...]:
    """The options that a dataclass's fields declare, in order."""
    return tuple(Option(name=field.name, **field.metadata["option"]) for field in dataclasses.fields(kind))


def by_flag(options: Iterable[Option]) -> Mapping[str, Option]:
    """Options by flag name and by alias (underscored, without the leading hyphens)."""
    return {name: option for option in options for name in (option.name, *option.aliases)}
