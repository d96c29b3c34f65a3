"""What is made of a request's sampling, which clients ask for the same again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from hf_transformer.generation.types import Sampling

Made = TypeVar("Made")

KEPT: Final = 64


class PerSampling(Generic[Made]):
    """Keeps what ``make`` makes of a sampling, for the same object: what is alike is one, where the API has kept it."""

    def __init__(self, make: Callable[[Sampling], Made]) -> None:
        self._make = make
        self._kept: dict[int, tuple[Sampling, Made]] = {}  # by identity: a Sampling has no hash

    def __call__(self, sampling: Sampling) -> Made:
        """Raises what ``make`` raises."""
        kept = self._kept.get(id(sampling))
        if kept is not None:
            return kept[1]
        made = self._make(sampling)
        if len(self._kept) == KEPT:
            self._kept.clear()
        self._kept[id(sampling)] = sampling, made
        return made
