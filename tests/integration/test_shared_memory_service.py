"""The service with shared memory: nothing left behind in /dev/shm, however it, a worker or its predecessor ended."""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from tests.faults.environment import batcher_of, kill, regions, workers_of
from tests.integration.conftest import Serve
from tests.support.raw_http import connected, post_head
from tests.support.service import Service
from tests.support.triton_26 import DISALLOWED

TEXT = "The capital of france is [MASK]."
SHARED = 'hf_transformer_shared_memory_batches_total{transfer="shared"}'
INLINE = 'hf_transformer_shared_memory_batches_total{transfer="inline_unregistered"}'
SMALL = "--predictor_shared_memory_min_bytes=1"
WORKERS = (SMALL, "--predictor_shared_memory_bytes=1048576", "--grace_period_seconds=1000", "--workers=2")
SECONDS = 30.0


def wait_for_regions(service: Service, count: int) -> list[Path]:
    service.wait_until("/v1/models/bert")
    assert poll(lambda: len(regions(service)) == count, SECONDS), service.log
    return regions(service)


def until_registered(service: Service) -> Path:
    """The region's file. Answers are right meanwhile."""
    service.wait_until("/v1/models/bert")
    assert service.predict([TEXT]) == ["paris"]
    assert poll(lambda: service.metric("hf_transformer_shared_memory_registered") == 1, SECONDS), service.log
    [file] = wait_for_regions(service, 1)  # another thread writes the log that names it
    return file


@contextmanager
def killed_with(service: Service, file: Path) -> Iterator[None]:
    """Kills a service. Its region's file stays during the context, as if no other service started.

    The services of other tests remove it when they start, so this locks the file, as a living owner does. One may be
    quicker: then the file gets its name back from a second one, which services leave alone.
    """
    second = file.with_name(f"second_name_of_{file.name}")
    second.hardlink_to(file)
    try:
        os.kill(service.process.pid, signal.SIGKILL)
        assert service.process.wait(SECONDS)
        with second.open("rb+") as lock:
            assert poll(lambda: locked(lock.fileno()), SECONDS), "the lock outlives its owner"
            with suppress(FileExistsError):
                file.hardlink_to(second)
            yield
    finally:
        second.unlink()


def locked(file: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@pytest.mark.only_triton_24
@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"], ids=["rest", "grpc"])
def test_the_service_leaves_nothing_and_removes_what_the_dead_have_left(serve: Serve, protocol: str) -> None:
    with serve.own("bert", protocol, SMALL) as living, serve.own("bert", protocol, SMALL) as killed:
        alive, dead = until_registered(living), until_registered(killed)
        with killed_with(killed, dead):
            assert dead.exists()
        with serve.own("bert", protocol, SMALL) as third:
            third.wait_until("/v1/models/bert")
            assert (alive.exists(), dead.exists()) == (True, False)
            region_file = until_registered(third)
            before = third.metric(SHARED)
            assert third.predict([TEXT]) == ["paris"]
            assert third.metric(SHARED) == before + 1
            assert third.stop() == 0
        assert (alive.exists(), region_file.exists()) == (True, False)
        assert living.predict([TEXT]) == ["paris"]
        assert living.stop() == 0
    assert not alive.exists()


@pytest.mark.only_triton_24
def test_killed_workers_and_batchers_leave_no_regions(serve: Serve) -> None:
    """The batcher has the only region. One batcher is replaced, and another one's service ends before that."""
    with serve.own("bert", "v2", *WORKERS) as service:
        [first] = wait_for_regions(service, 1)
        kill(workers_of(service)[0])
        assert poll(lambda: re.search(r"worker \d+ has died", service.log) is not None, SECONDS)
        assert regions(service) == [first] and first.exists()
        assert poll(lambda: len(workers_of(service)) == 2, SECONDS)
        kill(batcher_of(service))
        assert poll(lambda: not first.exists(), SECONDS)
        assert poll(lambda: re.search(r"batcher \d+ has died .* is replaced", service.log) is not None, SECONDS)
        [second] = wait_for_regions(service, 1)
        assert second != first
        service.wait_until("/v2/health/ready")
        assert service.predict([TEXT]) == ["paris"]
        kill(batcher_of(service))
        assert service.stop() == 0
        assert regions(service) == [] and not second.exists()


@pytest.mark.only_triton_24
def test_the_predictor_forgets_the_region_of_a_killed_batcher(serve: Serve, triton: LocalTriton) -> None:
    """After a minute, in which its calls end. The memory would stay as long as the predictor runs."""

    def known(region: Path) -> bool:
        return region.name in asked.get("/v2/systemsharedmemory/status").text

    # One client, without TLS: reading the certificates of authorities takes longer than a request.
    client = httpx.Client(base_url=f"http://{triton.http_address}", trust_env=False, verify=False)
    with client as asked, serve.own("bert", "v2", *WORKERS) as service:
        [first] = wait_for_regions(service, 1)
        assert poll(lambda: known(first), SECONDS)
        kill(batcher_of(service))
        assert poll(lambda: not known(first), 60.0 + SECONDS)
        [second] = regions(service)
        assert known(second) and second != first


@pytest.mark.only_triton_24
def test_a_batcher_outlives_a_killed_supervisor_only_until_its_workers_end(serve: Serve) -> None:
    with serve.own("bert", "v2", *WORKERS) as service:
        [file] = wait_for_regions(service, 1)
        children = [*workers_of(service), batcher_of(service)]
        kill(service.process.pid)
        assert poll(lambda: not any(psutil.pid_exists(pid) for pid in children), SECONDS)
        assert not file.exists()


@pytest.mark.only_triton_24
def test_a_second_signal_leaves_no_regions(serve: Serve) -> None:
    with serve.own("bert", "v2", *WORKERS) as service:
        [file] = wait_for_regions(service, 1)
        with connected(service) as client:
            client.sendall(post_head("content-length: 10"))

            def ended() -> bool:
                service.begin_stop()
                return service.process.exit_code is not None

            assert poll(ended, SECONDS)
        assert service.process.exit_code == 128 + signal.SIGTERM
        assert regions(service) == [] and not file.exists()


def test_several_workers_without_room_warn_once_and_all_work(serve: Serve) -> None:
    with serve.own("bert", "v2", SMALL, "--predictor_shared_memory_bytes=1099511627776", "--workers=2") as service:
        service.wait_until("/v1/models/bert")
        assert [service.predict([TEXT]) for _ in range(6)] == [["paris"]] * 6
        assert poll(lambda: "outputs travel inline" in service.log, SECONDS), service.log
        [line] = [line for line in service.log.splitlines() if "outputs travel inline" in line]
        assert " WARNING " in line and "1099511627776 bytes do not fit" in line
        name = "hf_transformer_shared_memory_registered"
        assert poll(lambda: service.metric(name, missing=-1.0) == 0, SECONDS), "the batcher's metrics are never shared"
        assert service.metric(SHARED) == 0


@pytest.mark.only_triton_26
@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"], ids=["rest", "grpc"])
def test_a_service_whose_regions_are_refused_answers_inline(serve: Serve, protocol: str) -> None:
    """Outputs come inline and are right, one line of the log says what to change, and no file stays."""
    with serve.own("bert", protocol, SMALL) as service:
        service.wait_until("/v1/models/bert")
        assert [service.predict([TEXT]) for _ in range(3)] == [["paris"]] * 3
        assert poll(lambda: "outputs travel inline" in service.log, SECONDS), service.log
        [line] = [line for line in service.log.splitlines() if "outputs travel inline" in line]
        assert " WARNING " in line and DISALLOWED in line and "/dev/shm" not in line
        assert service.metric(INLINE) == 3
        assert regions(service) == []
        assert service.stop() == 0


def test_off_registers_no_regions_and_has_no_metrics(serve: Serve) -> None:
    service = serve("bert", "v2", "--predictor_shared_memory=off", SMALL)
    assert service.predict([TEXT]) == ["paris"]
    assert regions(service) == []
    assert "hf_transformer_shared_memory" not in service.client.get("/metrics").text
