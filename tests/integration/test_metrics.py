"""The metrics that a running service shows, against their table in docs/metrics.md."""

from __future__ import annotations

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.conftest import ROOT, Serve
from tests.integration.grpc_client import request, stub
from tests.support.service import Service
from tests.support.shown_metrics import Shown, answer_and_refuse, shown_by

PAGE = ROOT / "docs" / "metrics.md"

TEXT = "The capital of france is [MASK]."


@pytest.fixture(scope="module")
def shown(serve: Serve, repository: Path) -> dict[str, Shown]:
    """All metrics by the name of the documentation, of a service that has answered and refused a request."""
    service = serve("fault_slow", "v2", "--max_concurrent_requests=1")
    answer_and_refuse(service, {"instances": [TEXT]}, repository)
    return shown_by(service.client.get("/metrics").text)


def test_page_lists_the_metrics_that_there_are(shown: dict[str, Shown]) -> None:
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = {
        name.strip().strip("`"): (
            kind.strip(),
            {label.strip().strip("`") for label in labels.split(",") if label.strip()},
        )
        for name, kind, labels in rows
    }
    assert len(listed) == len(rows), "a metric is listed twice"
    assert listed == {name: (metric.kind, set(metric.labels) - {"le"}) for name, metric in shown.items()}


V1 = 'hf_transformer_requests_total{api="v1",status="200"}'
GRPC = 'hf_transformer_requests_total{api="grpc",status="200"}'
STARTED = re.compile(r"Started server process \[(\d+)\]")


def settles(service: Service, name: str, value: float) -> bool:
    """Whether every worker that answers says this, twenty times in a row."""
    return all(service.metric(name, missing=0) == value for _ in range(20))


def test_texts_that_wait_or_run_are_those_of_all_workers(serve: Serve) -> None:
    with serve.own("fault_slow", "v2", "--workers=2", "--max_batches_in_flight=1") as service:
        service.wait_until("/v1/models/fault_slow")

        def texts() -> float:
            return sum(service.metric(f"hf_transformer_{state}_texts") for state in ("waiting", "running"))

        done = threading.Event()

        def send() -> None:
            while not done.is_set():
                assert service.post({"instances": [TEXT] * 3}).status_code == 200

        with ThreadPoolExecutor(4) as threads:
            sending = [threads.submit(send) for _ in range(4)]
            try:
                assert poll(lambda: texts() == 12, 30.0), "three of each client"
                assert poll(lambda: service.metric("hf_transformer_waiting_texts") > 0, 30.0)
            finally:
                done.set()
            for one in sending:
                one.result()
        assert poll(lambda: all(texts() == 0 for _ in range(20)), 20.0)


def test_every_request_is_counted_whichever_worker_is_asked(serve: Serve) -> None:
    with serve.own("bert", "grpc-v2", "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        for _ in range(30):
            service.predict([TEXT])
        for _ in range(10):  # each on a connection of its own, for one worker or the other
            with stub(service) as calls:
                calls.ModelInfer(request("bert", {"text": [TEXT]}))
        assert poll(lambda: settles(service, V1, 30), 20.0)
        assert poll(lambda: settles(service, GRPC, 10), 20.0)
        assert service.metric("hf_transformer_queue_seconds_count") == 40
        for api in ("v1", "v2", "grpc"):
            series = f'hf_transformer_request_seconds_count{{api="{api}",model_name="bert",status_class="5xx"}}'
            assert f"{series} 0.0" in service.client.get("/metrics").text, "without an error"

        def counted() -> tuple[int, int]:
            """Answers of the workers, and texts in the batcher's batches, which each process tells now and then."""
            [stats] = service.client.get("/v2/models/bert/stats").json()["model_stats"]
            return stats["inference_stats"]["success"]["count"], stats["inference_count"]

        assert poll(lambda: counted() == (40, 40), 20.0), counted()
        assert service.metric('hf_transformer_model_ready{model_name="bert"}') == 1
        workers = [int(one) for one in STARTED.findall(service.log)]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        assert poll(lambda: len(STARTED.findall(service.log)) == 3, 20.0), service.log
        assert poll(lambda: service.log.count("is ready: version") == 3, 20.0), service.log
        assert settles(service, V1, 30) and settles(service, GRPC, 10)
        assert service.stop() == 0
