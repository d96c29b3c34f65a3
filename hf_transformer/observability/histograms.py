"""Histograms that cost a fraction of a microsecond to add to, for what every request adds to.

prometheus_client's own take a lock per observation and look every bucket up from the first; these are for one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class LightHistogram(Collector):
    """One histogram, to be registered; only the event loop adds to it.

    Args:
        name: as it is exposed.
        text: what it counts.
        bounds: upper bounds of the buckets, ascending, without infinity.
        labels: names and values, the same for all observations.

    """

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._labels = dict(labels or {})
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Adds one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """The histogram as it is now; buckets hold what they have and all below them."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        buckets, total = [], 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family
