"""/metrics of a service of several processes, in front of the real Triton."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.integration.conftest import MODEL_FOLDER
from tests.integration.grpc_client import request, stub
from tests.service import Service, flags_for

TEXT = "The capital of france is [MASK]."
V1 = 'hf_transformer_requests_total{api="v1",status="200"}'
GRPC = 'hf_transformer_requests_total{api="grpc",status="200"}'
STARTED = re.compile(r"Started server process \[(\d+)\]")


def settles(service: Service, name: str, value: float) -> bool:
    """Whether every worker that answers says this, twenty times in a row."""
    return all(service.metric(name) == value for _ in range(20))


def test_every_request_is_counted_whichever_worker_is_asked(triton: LocalTriton, load: Callable[[str], None]) -> None:
    load("bert")
    flags = flags_for("bert", MODEL_FOLDER, triton.http_address, "v2", ["--workers=2"])
    with Service(*flags) as service:
        service.wait_until("/v1/models/bert")
        for _ in range(30):
            service.predict([TEXT])
        for _ in range(10):  # each on a connection of its own, for one worker or the other
            with stub(service) as calls:
                calls.ModelInfer(request("bert", {"text": [TEXT]}))
        assert poll(lambda: settles(service, V1, 30), 20.0)
        assert poll(lambda: settles(service, GRPC, 10), 20.0)
        assert service.metric("hf_transformer_queue_seconds_count") == 40
        [stats] = service.client.get("/v2/models/bert/stats").json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == stats["inference_count"] == 40
        assert service.metric('hf_transformer_model_ready{model_name="bert"}') == 1
        workers = [int(one) for one in STARTED.findall(service.log)]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        assert poll(lambda: len(STARTED.findall(service.log)) == 3, 20.0), service.log
        assert poll(lambda: service.log.count("is ready: version") == 3, 20.0), service.log
        assert settles(service, V1, 30) and settles(service, GRPC, 10)
        assert service.stop() == 0
