"""The metrics of a page in Prometheus' text format, and a service that has refused a request."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hf_transformer.commands.child_process import poll
from tests.support.polling import SECONDS
from tests.support.service import Service
from tests.support.triton_repository import held


@dataclass
class Shown:
    """A metric of a page: its type, and the values of its labels."""

    kind: str
    labels: dict[str, set[str]] = field(default_factory=dict)


def shown_by(text: str) -> dict[str, Shown]:
    """The metrics with a series, by the name that a query gives. A histogram's name is without its endings."""
    metrics: dict[str, Shown] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created") or not family.samples:  # prometheus_client's own, of each counter
            continue
        # The parser takes _total off the names of counters. Triton's have none.
        total = f"{family.name}_total"
        metric = metrics[total if f"# TYPE {total} " in text else family.name] = Shown(family.type)
        for sample in family.samples:
            for label, value in sample.labels.items():
                metric.labels.setdefault(label, set()).add(value)
    return metrics


def answer_and_refuse(service: Service, body: Any, repository: Path) -> None:
    """Sends two requests at a time to fault_slow with --max_concurrent_requests=1, which refuses one of them."""
    with ThreadPoolExecutor(1) as threads:
        with held(repository):
            first = threads.submit(service.post, body)
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 1, SECONDS)
            assert service.post(body).status_code == 429
        assert first.result().status_code == 200
