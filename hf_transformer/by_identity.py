"""What is made of objects that come again: the very same ones, which may have no hash."""

from __future__ import annotations

from typing import TypeVar

Made = TypeVar("Made")


class ByIdentity(dict[int, Made]):
    """What was made of objects, by their ``id()``; the objects too, so that no other one gets that.

    ``most`` are kept: then all are forgotten, which costs less than knowing which was used last.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._objects: list[object] = []

    def keep(self, one: object, made: Made) -> None:
        """Keeps what was made of an object that does not change any more."""
        if len(self) >= self._most:
            self.clear()
            self._objects.clear()
        self[id(one)] = made
        self._objects.append(one)
