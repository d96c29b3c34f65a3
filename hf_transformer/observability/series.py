"""Metrics in a short form, and light counters, gauges and histograms.

The classes of prometheus_client take a lock for each value, which adds several microseconds to a short request. Use the
light classes only on the event loop. prometheus_client also has an object for each sample: with fifty models, it takes
0.5 seconds to collect and render them. A Family has a list for each series, and is faster to collect, merge and render.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from math import floor

import numpy as np
from prometheus_client.utils import floatToGoString

ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
WITH_TOKENIZATION = frozenset(
    ("request_preprocess_seconds", "hf_transformer_request_seconds", "hf_transformer_time_to_first_token_seconds")
)
"""Durations that include the time to tokenize, whose sums are ``coarse``."""
HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(slots=True)
class Family:
    """A metric with all its series.

    Attributes:
        kind: counter, gauge or histogram.
        labels: names of the labels.
        bounds: a histogram's upper bounds of buckets in ascending order, without infinity.
        series: numbers by values of the labels. A counter has its total, and its creation time if it is known. A gauge
            has its value. A histogram has the count of each bucket, and the sum of all amounts.
    """

    name: str
    text: str
    kind: str
    labels: Sequence[str]
    bounds: Sequence[float]
    series: dict[tuple[str, ...], list[float]]


class LightCounter:
    """Counter that takes 0.2 microseconds per addition, exported as ``name`` + ``_total``.

    A counter without labels starts at 0. With labels, each series appears with its first value.
    """

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[object, ...], list[float]] = {}
        if not labels:
            self.add(0)

    def add(self, amount: int, *values: object) -> None:
        """Adds to the series with these label values. Creates a missing series."""
        try:
            self._series[values][0] += amount
        except KeyError:
            self._series[values] = [amount, time.time()]

    def families(self) -> Iterator[Family]:
        series = {tuple(map(str, values)): [*numbers] for values, numbers in self._series.items()}
        yield Family(self._name, self._text, "counter", self._labels, (), series)


class LightGauge:
    """Gauge without labels, 0 at first."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.set(0.0)

    def set(self, value: float) -> None:
        self._read: Callable[[], float] = lambda: value

    def set_function(self, read: Callable[[], float]) -> None:
        """Sets a function that returns the value at each scrape."""
        self._read = read

    def families(self) -> Iterator[Family]:
        yield Family(self._name, self._text, "gauge", (), (), {(): [float(self._read())]})


class LightHistogram:
    """Histogram that takes 0.4 microseconds per observation.

    ``bounds`` are the upper bounds of its buckets in ascending order, without infinity. A histogram without labels
    starts at 0. With labels, each series appears with its first value, or by ``show``.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._name, self._text, self._bounds, self._labels = name, text, bounds, labels
        self._series: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self.show()

    def show(self, *values: str) -> list[float]:
        """Returns the series with these label values. Creates a missing one, at 0."""
        return self._series.setdefault(values, [*(0 for _ in self._bounds), 0, 0.0])

    def observe(self, amount: float, *values: str) -> None:
        """Adds to the series with these label values. Creates a missing series."""
        try:
            series = self._series[values]
        except KeyError:
            series = self.show(*values)
        series[bisect_left(self._bounds, amount)] += 1
        series[-1] += amount

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Adds many amounts to the series without labels, each in a tenth of the time of ``observe``."""
        series = self._series[()]
        for bucket, count in enumerate(np.bincount(np.searchsorted(self._bounds, amounts)).tolist()):
            series[bucket] += count
        series[-1] += sum(amounts)

    def families(self) -> Iterator[Family]:
        series = {values: [*numbers] for values, numbers in self._series.items()}
        yield Family(self._name, self._text, "histogram", self._labels, self._bounds, series)


def text_of(families: Iterable[Family]) -> bytes:
    """Renders metrics in the Prometheus text format."""
    return "".join(chain.from_iterable(map(_lines, families))).encode()


def _lines(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield _head(name, family.text, family.kind)
    created: list[str] = []
    for values, numbers in family.series.items():
        named = zip(family.labels, values, strict=True)
        labels = sorted(f'{label}="{value.translate(ESCAPES)}"' for label, value in named)
        braces = f"{{{','.join(labels)}}}" if labels else ""
        if family.kind == "histogram":
            yield from _bucket_lines(name, labels, family.bounds, numbers[:-1])
            yield f"{name}_count{braces} {number(sum(numbers[:-1]))}\n"
            total = coarse(numbers[-1]) if name in WITH_TOKENIZATION else numbers[-1]
            yield f"{name}_sum{braces} {number(total)}\n"
        else:
            yield f"{name}{braces} {number(numbers[0])}\n"
            created += [f"{family.name}_created{braces} {number(since)}\n" for since in numbers[1:]]
    if created:
        yield _head(f"{family.name}_created", family.text, "gauge")
        yield from created


def coarse(seconds: float) -> float:
    """Rounds a sum of durations down to a quarter of a millisecond.

    Whoever reads a sum before and after a request would else know its duration to a microsecond. A word that the word
    cache knows takes some 45 microseconds less than a new one.
    """
    return floor(seconds * 4000) / 4000


@lru_cache(4096)
def number(value: float) -> str:
    """A number as prometheus_client writes it. Most numbers are small counts, so they are kept."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text.translate(HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def _bucket_lines(name: str, labels: list[str], bounds: Sequence[float], counts: Sequence[float]) -> Iterator[str]:
    """The lines of cumulative counts, with the label ``le`` in its alphabetical place."""
    place = bisect_left(labels, "le=")
    before, after = "".join(f"{label}," for label in labels[:place]), "".join(f",{label}" for label in labels[place:])
    for bound, count in zip((*map(float, bounds), "+Inf"), accumulate(counts), strict=True):
        yield f'{name}_bucket{{{before}le="{bound}"{after}}} {number(count)}\n'
