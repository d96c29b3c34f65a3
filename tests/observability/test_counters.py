"""Counters that look like prometheus_client's own."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from hf_transformer.observability.counters import LightCounter


def shown(registry: CollectorRegistry) -> list[str]:
    """The lines, without the times at which the counters were made."""
    return [re.sub(r"(_created\{.*\}) .*", r"\1", line) for line in generate_latest(registry).decode().splitlines()]


def test_the_same_exposition_as_the_librarys_at_every_scrape() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightCounter("requests", "Some text.", "api", "status")
    ours.register(light)
    full = Counter("requests", "Some text.", ["api", "status"], registry=theirs)
    assert shown(ours) == shown(theirs)
    for added in ([(1, "v1", 200), (1, "v2", 400), (3, "v1", 200)], [], [(0, "grpc", 500)], [(2, "grpc", 500)]):
        for amount, api, status in added:
            light.add(amount, api, status)
            full.labels(api, str(status)).inc(amount)
        for _ in range(2):
            assert shown(ours) == shown(theirs)


def test_one_is_shown_as_made_when_it_was_first_added_to() -> None:
    registry = CollectorRegistry()
    light = LightCounter("tokens", "Tokens.", "kind")
    registry.register(light)

    def created() -> float | None:
        return registry.get_sample_value("tokens_created", {"kind": "real"})

    light.add(1, "real")
    first = created()
    light.add(1, "real")
    assert first is not None and created() == first
    assert registry.get_sample_value("tokens_total", {"kind": "real"}) == 2
