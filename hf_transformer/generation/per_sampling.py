"""What is made of a request's sampling, which clients ask for the same again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from hf_transformer.by_identity import ByIdentity
from hf_transformer.generation.types import Sampling

Made = TypeVar("Made")

KEPT: Final = 64


class PerSampling(Generic[Made]):
    """Keeps what ``make`` makes of a sampling, for the same object: what is alike is one, where the API has kept it."""

    def __init__(self, make: Callable[[Sampling], Made]) -> None:
        self._make = make
        self._kept = ByIdentity[tuple[Made]](KEPT)  # in a tuple: what is made may be None

    def __call__(self, sampling: Sampling) -> Made:
        """Raises what ``make`` raises."""
        kept = self._kept.get(id(sampling))
        if kept is not None:
            return kept[0]
        made = self._make(sampling)
        self._kept.keep(sampling, (made,))
        return made
