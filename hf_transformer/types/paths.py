"""An API's names of fields, as a mapping of the service's paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hf_transformer.errors import Path

EACH: Final = -1
"""Any index in the paths of Names."""


class Names:
    """Maps paths by their beginnings, for ``Context.field_names``. The longest beginning applies, the rest follows.

        Names({("parameters",): (), ("inputs", 0): ("inputs",), ("items", EACH, "text"): ("items", EACH)})

    EACH stands for any index; a beginning with the index itself goes before. Such indices take the places of EACH in
    the new beginning, in order. A path that would become empty stays. Several mappings apply one after another.
    """

    __slots__ = ("_mappings",)

    def __init__(self, *mappings: Mapping[Path, Path]) -> None:
        self._mappings = mappings

    def __call__(self, path: Path) -> Path:
        for mapping in self._mappings:
            path = _renamed(mapping, path)
        return path

    def then(self, mapping: Mapping[Path, Path]) -> Names:
        """Names that apply another mapping to the paths of these."""
        return Names(*self._mappings, mapping)


TOP_LEVEL: Final = Names({("parameters",): ()})
"""The names of fields of an API whose bodies have the task's parameters beside their other fields."""


def _renamed(mapping: Mapping[Path, Path], path: Path) -> Path:
    if not (fitting := [head for head in mapping if _fits(head, path)]):
        return path
    head = max(fitting, key=lambda head: (len(head), -head.count(EACH)))
    indices = iter([given for part, given in zip(head, path, strict=False) if part == EACH])
    renamed = [next(indices) if part == EACH else part for part in mapping[head]]
    return (*renamed, *path[len(head) :]) or path


def _fits(head: Path, path: Path) -> bool:
    """Whether a path begins with the parts of ``head``."""
    if len(head) > len(path):
        return False
    pairs = zip(head, path, strict=False)
    return all(part == given or (part == EACH and isinstance(given, int)) for part, given in pairs)
