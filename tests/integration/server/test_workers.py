"""Workers of a running service: replaced when they die, and ended with it whenever its signal comes."""

from __future__ import annotations

import os
import signal

from hf_transformer.commands.local_triton import poll
from tests.integration.server.processes import PID, SECONDS, exit_code_of, service_with, signal_to


def test_workers_that_die_one_after_the_other_are_replaced_after_a_pause_that_is_logged_once() -> None:
    with service_with("--workers=2") as service:

        def started(workers: int) -> bool:
            return poll(lambda: service.log.count("startup complete") == workers, SECONDS)

        for workers in range(2, 5):
            assert started(workers)
            os.kill(int(PID.findall(service.log)[-1]), signal.SIGKILL)
        assert started(5)
        assert f"worker {PID.findall(service.log)[1]} has died (exit code -9) and is replaced" in service.log
        assert service.stop() == 0
        assert service.log.count("has died") - service.log.count("and is replaced") == 1
        assert service.log.count("soon after its start, as the one before it did") == 1


def test_a_signal_while_workers_start_ends_all_of_them() -> None:
    """tests/server/test_workers.py has the other moments."""
    with service_with("--workers=3") as service:
        assert service.port
        assert poll(lambda: bool(PID.findall(service.log)), SECONDS)
        signal_to(service, signal.SIGTERM)
        assert exit_code_of(service) == 0  # with none of them left
        assert "Traceback" not in service.log
