"""Reads one request's ``parameters``, each checked, none ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import describe
from hf_transformer.types import Json


class Parameters:
    """Typed access to a request's parameters.

    Args:
        parameters: as the client sent them.
        known: the names that the task takes.

    Raises:
        InvalidInput: a parameter has a name that the task does not know.
    """

    def __init__(self, parameters: Mapping[str, Json], known: Sequence[str]) -> None:
        for name in parameters:
            if name not in known:
                raise InvalidInput(f"parameters.{name[:40]}: unknown, expected one of {', '.join(known)}")
        self._given = {name: value for name, value in parameters.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._given.get(name, default)
        if not isinstance(value, bool):
            raise InvalidInput(f"parameters.{name}: expected true or false, got {describe(value)}")
        return value

    def integer(self, name: str, default: int, minimum: int) -> int:
        """A whole number of at least ``minimum``."""
        value = self._given.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(f"parameters.{name}: expected a whole number, got {describe(value)}")
        if value < minimum:
            raise InvalidInput(f"parameters.{name}: {value} is too small, expected {minimum} or more")
        return value

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of ``choices``."""
        value = self._given.get(name, default)
        if value not in choices:
            shown = repr(value[:40]) if isinstance(value, str) else describe(value)
            raise InvalidInput(f"parameters.{name}: {shown} is not one of {', '.join(choices)}")
        return str(value)

    def strings(self, name: str) -> list[str] | None:
        """A string or a list of strings; None if it was not given."""
        value = self._given.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return value
        raise InvalidInput(f"parameters.{name}: expected a string or a list of strings, got {describe(value)}")
