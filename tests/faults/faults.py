"""What is done to the predictor, to the machine and to the service, each with its beginning and its end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import SHARED_MEMORY
from tests.faults.environment import FaultEnvironment, workers_of
from tests.faults.load import Load
from tests.faults.private_namespace import hosts_file
from tests.faults.records import Kind
from tests.support.service import Service

NAME = "predictor.faults.test"
FILLING = SHARED_MEMORY / "filling"


@dataclass(frozen=True)
class Scene:
    """What a fault is done to."""

    environment: FaultEnvironment
    service: Service
    load: Load


Act = Callable[[Scene], None]


def nothing(scene: Scene) -> None:
    """For faults that are there from the start, or end by themselves."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Args:
        begin: does it. The load runs.
        end: ends it; the fault is over when this returns.
        hold: requests that are to end while it lasts.
        hold_seconds: how long it lasts at least.
        allowed: how requests may end beside right answers and documented errors.
        flags: of a service of its own; None takes the one that all other faults use.
        prepare: before the service of its own is started, and ``restore`` when all is over.
        host: name of the predictor.
        from_start: the fault is there before the first request.
        hidden: not even one error may be seen.
        private: it needs a mount namespace of our own.
        noticed: the model's path has to say 503 while the fault lasts, which lasts until then.
        may_end_triton: Triton itself may end by it, which is a fault of Triton's own: its Python backend can abort when
            the process of a model is gone (lock_exception, seen once in some hundred times with 24.10).
        abandons: calls end without a word, so slots of shared memory stay in quarantine until the region is replaced,
            which it is when half of it is lost or the predictor has restarted.
    """

    name: str
    title: str
    begin: Act
    end: Act = nothing
    hold: int = 300
    hold_seconds: float = 0.0
    allowed: frozenset[Kind] = frozenset()
    flags: tuple[str, ...] | None = None
    prepare: Callable[[FaultEnvironment], None] | None = None
    restore: Act = nothing
    host: str = "127.0.0.1"
    from_start: bool = False
    hidden: bool = False
    private: bool = False
    noticed: bool = False
    may_end_triton: bool = False
    abandons: bool = False


def kill(scene: Scene) -> None:
    scene.environment.triton.kill()


def restart(scene: Scene) -> None:
    scene.environment.triton.restart()


def terminate(scene: Scene) -> None:
    os.kill(scene.environment.triton.child.pid, signal.SIGTERM)
    assert scene.environment.triton.child.wait(30.0), "Triton did not end within 30 s of SIGTERM"


def unload(scene: Scene) -> None:
    scene.environment.repository_call("unload")


def load(scene: Scene) -> None:
    scene.environment.repository_call("load")
    assert poll(scene.environment.model_is_ready, 30.0)


def reload(scene: Scene) -> None:
    unload(scene)
    load(scene)


def kill_stubs(scene: Scene) -> None:
    killed = 0
    for pid in scene.environment.stubs():
        with suppress(ProcessLookupError):  # Triton ends one itself when another one is gone
            os.kill(pid, signal.SIGKILL)
            killed += 1
    assert killed


def misbehaving(**what: float | str) -> tuple[Act, Act]:
    """The model does so in every so many requests, and then no more."""
    return lambda scene: scene.environment.control(**what), lambda scene: scene.environment.control()


def fill_shared_memory(environment: FaultEnvironment) -> None:
    """Leaves nothing, in a /dev/shm that is ours alone."""
    with FILLING.open("wb") as file:
        free = os.statvfs(SHARED_MEMORY)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)


def other_version(scene: Scene) -> None:
    """Triton dies and comes back with a second version of the model, whose answers are others."""
    kill(scene)
    shutil.copytree(scene.environment.model / "1", scene.environment.model / "2")
    scene.load.versions = (1, 2)


def restart_with_other_version(scene: Scene) -> None:
    restart(scene)
    scene.load.versions = (2,)


def first_version_again(scene: Scene) -> None:
    kill(scene)
    shutil.rmtree(scene.environment.model / "2")
    restart(scene)


def with_labels(old: int, new: int, versions: tuple[int, ...]) -> Act:
    """Triton comes back with a model of so many labels; with fewer than config.json has, no answer is right."""

    def act(scene: Scene) -> None:
        kill(scene)
        config = scene.environment.model / "config.pbtxt"
        config.write_text(config.read_text().replace(f"dims: [ {old} ]", f"dims: [ {new} ]"))
        scene.load.versions = versions
        restart(scene)

    return act


def name_the_predictor(scene: Scene) -> None:
    with hosts_file().open("a") as file:
        file.write(f"127.0.0.1 {NAME}\n")


def forget_the_name(environment: FaultEnvironment) -> None:
    lines = hosts_file().read_text().splitlines(keepends=True)
    hosts_file().write_text("".join(line for line in lines if NAME not in line))


def kill_a_worker(scene: Scene) -> None:
    workers = workers_of(scene.service)
    assert len(workers) == 2, workers
    os.kill(workers[0], signal.SIGKILL)


FAULTS = (
    Fault("slow", "model slow: 0.3 s for each batch", *misbehaving(delay=0.3, every=1)),
    Fault("late", "every 20th batch answered after the timeout (1.3 s, timeout 1 s)",
          *misbehaving(delay=1.3, every=20), hold=2000, hold_seconds=10.0,
          flags=("--predictor_request_timeout_seconds=1", "--max_batches_in_flight=8")),
    Fault("raises", "every 3rd batch fails in the model", *misbehaving(fault="raises", every=3)),
    Fault("shape", "every 3rd batch with a label too few", *misbehaving(fault="wrong_shape", every=3)),
    Fault("rows", "every 3rd batch with a row too many", *misbehaving(fault="wrong_rows", every=3)),
    Fault("dtype", "every 3rd batch FP64 instead of FP32", *misbehaving(fault="wrong_dtype", every=3)),
    Fault("nan", "every 3rd batch NaN", *misbehaving(fault="nan", every=3)),
    Fault("unload", "model unloaded and loaded again", unload, load, noticed=True),
    Fault("stub", "the model's processes killed; model reloaded", kill_stubs, reload,
          hold=60, noticed=True, may_end_triton=True, abandons=True),
    Fault("too_slow", "model too slow: 4 s, beyond the timeout",
          *misbehaving(delay=4.0, every=1), hold=60, abandons=True),
    Fault("hang", "Triton hangs for 10 s (SIGSTOP, SIGCONT)",
          lambda scene: scene.environment.triton.child.suspend(), lambda scene: scene.environment.triton.child.resume(),
          hold=0, hold_seconds=10.0, noticed=True, abandons=True),
    Fault("kill", "Triton killed (SIGKILL) and restarted", kill, restart, noticed=True),
    Fault("terminate", "Triton ended (SIGTERM, it drains) and restarted", terminate, restart, noticed=True),
    Fault("version", "Triton restarted with another version",
          other_version, restart_with_other_version, restore=first_version_again),
    Fault("no_fit", "Triton restarted with a model that does not fit, then with the old one",
          with_labels(16, 12, ()), with_labels(12, 16, (1,)), noticed=True),
    Fault("shm_full", "/dev/shm full when the service starts", nothing, lambda scene: FILLING.unlink(),
          flags=(), prepare=fill_shared_memory, from_start=True, private=True, hidden=True),
    Fault("dns", "the predictor's name does not resolve at first", nothing, name_the_predictor,
          flags=(), prepare=forget_the_name, host=NAME, from_start=True, private=True, noticed=True),
    Fault("worker", "one of two workers killed (SIGKILL)", kill_a_worker, lambda scene: time.sleep(0.1),
          flags=("--workers=2",), allowed=frozenset({"dropped", "refused"})),
)  # fmt: skip
