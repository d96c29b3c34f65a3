"""What a service leaves in /dev/shm when it, or a worker of it, ends without a word: nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.faults.rig import kill, regions, workers_of
from tests.integration.conftest import MODEL_FOLDER
from tests.integration.hostile.wire import connected, unfinished
from tests.integration.server.processes import exit_code_of
from tests.service import Service, flags_for

SECONDS = 30.0
FLAGS = (
    "--predictor_shared_memory_min_bytes=1",
    "--predictor_shared_memory_bytes=1048576",
    "--grace_period_seconds=1000",
)


@pytest.fixture(autouse=True)
def _loaded(load: Callable[[str], None]) -> None:
    load("bert")


def serve(triton: LocalTriton, workers: int) -> Service:
    return Service(*flags_for("bert", MODEL_FOLDER, triton.http_address, "v2", (*FLAGS, f"--workers={workers}")))


def wait_for_regions(service: Service, count: int) -> None:
    service.wait_until("/v1/models/bert")
    assert poll(lambda: len(regions(service)) == count, SECONDS), service.log


def test_killed_workers(triton: LocalTriton) -> None:
    """One that is replaced, and one whose service ends before that."""
    with serve(triton, 2) as service:
        wait_for_regions(service, 2)
        first = regions(service)
        kill(workers_of(service)[0])
        assert poll(lambda: "is replaced" in service.log, SECONDS)
        assert [one.exists() for one in first].count(True) == 1  # its successor has hardly started
        wait_for_regions(service, 2)
        kill(workers_of(service)[0])
        assert service.stop() == 0
        assert regions(service) == []


def test_a_second_signal(triton: LocalTriton) -> None:
    with serve(triton, 2) as service:
        wait_for_regions(service, 2)
        with connected(service) as client:
            client.sendall(unfinished())

            def ended() -> bool:
                if service.process.exit_code is None:
                    os.kill(service.process.pid, signal.SIGTERM)
                return service.process.exit_code is not None

            assert poll(ended, SECONDS)
        assert exit_code_of(service) == 128 + signal.SIGTERM
        assert regions(service) == []
