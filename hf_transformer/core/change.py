"""Which model is the one to bind, where a predictor does not always show the same."""

from __future__ import annotations

from dataclasses import replace

from hf_transformer.types import ModelSpec


class Sightings:
    """Finds out whether a model that differs from the bound one has taken its place.

    During a rolling update two versions answer behind one address, and each look may meet another one. To bind what
    the last look has met would build a pipeline for every look, and be no more right. So another model has to be seen
    twice in a row, unless something else speaks for it.
    """

    def __init__(self) -> None:
        self._last: ModelSpec | None = None

    def convince(self, spec: ModelSpec, bound: ModelSpec | None, *, at_once: bool) -> bool:
        """Takes note of what a look has met; whether it stands in for ``bound`` from now on.

        at_once: once is enough, because requests fail or the predictor was away.
        """
        if spec == bound:
            self._last = None
            return False
        if at_once or spec == self._last:
            self._last = None
            return True
        self._last = spec
        return False


def asked_alike(one: ModelSpec, other: ModelSpec | None) -> bool:
    """Whether two models differ in their version at most, so that what was built for one does for the other."""
    return other is not None and replace(one, version=other.version) == other
