"""Counters that cost a fraction of a microsecond to add to, for what every request adds to.

prometheus_client's own take a lock each time; these are for one thread, and become its at a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Metric
from prometheus_client.registry import Collector


class LightCounter(Collector):
    """One counter with labels, to be registered; only the event loop adds to it.

    Args:
        name: as it is exposed, without ``_total``.
        text: what it counts.
        labels: their names.
    """

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._counter = Counter(name, text, labels, registry=None)
        self._new: dict[tuple[object, ...], int] = {}
        """What was added since the last scrape, by the labels' values."""

    def add(self, amount: int, *values: object) -> None:
        """Adds to what has these values of the labels; one that is new is shown from now on."""
        try:
            self._new[values] += amount
        except KeyError:
            self._counter.labels(*values)
            self._new[values] = amount

    def collect(self) -> Iterable[Metric]:
        """The counter as it is now."""
        for values, amount in self._new.items():
            self._counter.labels(*values).inc(amount)
            self._new[values] = 0
        return self._counter.collect()

    def describe(self) -> Iterable[Metric]:
        """Its name, for the registry."""
        return self._counter.describe()
