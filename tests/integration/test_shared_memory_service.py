"""The service with shared memory: nothing left behind, however it or its predecessor ended."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import LocalTriton, poll
from hf_transformer.predictor.shared_memory import FOLDER, PREFIX
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.service import Service, flags_for

TEXT = "The capital of france is [MASK]."
SHARED = 'hf_transformer_shared_memory_batches_total{transfer="shared"}'


@pytest.fixture
def loaded(triton: LocalTriton, serve: Serve) -> LocalTriton:
    """With the model that the services here ask for."""
    serve("bert", "v2")
    return triton


def start(loaded: LocalTriton, protocol: str, *flags: str) -> Service:
    address = loaded.http_address if protocol == "v2" else loaded.grpc_address
    more = ("--predictor_shared_memory_min_bytes=1", *flags)
    return Service(*flags_for("bert", MODEL_FOLDER, address, protocol, more))


def until_registered(service: Service) -> Path:
    """The region's file. Answers are right meanwhile."""
    service.wait_until("/v1/models/bert")
    assert service.predict([TEXT]) == ["paris"]
    assert poll(lambda: service.metric("hf_transformer_shared_memory_registered") == 1, 20.0), service.log
    found = re.search(rf"{FOLDER}/{PREFIX}[0-9a-f]+", service.log)
    assert found is not None, service.log
    return Path(found[0])


def test_the_service_leaves_nothing_and_removes_what_the_dead_have_left(loaded: LocalTriton, protocol: str) -> None:
    with start(loaded, protocol) as living, start(loaded, protocol) as killed:
        alive, dead = until_registered(living), until_registered(killed)
        assert alive.exists() and dead.exists()
        os.kill(killed.process.pid, signal.SIGKILL)
        assert killed.process.wait(20.0)
        with start(loaded, protocol) as third:
            third.wait_until("/v1/models/bert")
            assert (alive.exists(), dead.exists()) == (True, False)
            own = until_registered(third)
            before = third.metric(SHARED)
            assert third.predict([TEXT]) == ["paris"]
            assert third.metric(SHARED) == before + 1
            assert third.stop() == 0
        assert (alive.exists(), own.exists()) == (True, False)
        assert living.predict([TEXT]) == ["paris"]
        assert living.stop() == 0
    assert not alive.exists()


def test_of_several_workers_without_room_one_warns_and_all_work(loaded: LocalTriton) -> None:
    with start(loaded, "v2", "--predictor_shared_memory_bytes=1099511627776", "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        assert [service.predict([TEXT]) for _ in range(6)] == [["paris"]] * 6
        assert poll(lambda: service.log.count("outputs travel inline") == 2, 20.0), service.log
        assert len(re.findall(r" WARNING .*outputs travel inline", service.log)) == 1
        assert "1099511627776 bytes do not fit" in service.log
        assert service.metric("hf_transformer_shared_memory_registered") == 0


def test_off_is_off(serve: Serve) -> None:
    service = serve("bert", "v2", "--predictor_shared_memory=off", "--predictor_shared_memory_min_bytes=1")
    assert service.predict([TEXT]) == ["paris"]
    assert PREFIX not in service.log
    assert "hf_transformer_shared_memory" not in service.client.get("/metrics").text
