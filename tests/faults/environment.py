"""A Triton, the service in front of it and load on it, to do faults to."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import httpx
import psutil

from hf_transformer.commands.child_process import poll, session_members
from hf_transformer.commands.local_triton import SHARED_MEMORY, LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.predictor.region_files import PREFIX
from tests.faults.load import TIMEOUT, Load
from tests.faults.texts import MODEL, Text
from tests.support.service import Service
from tests.support.triton_environment import triton_environment

HERE = Path(__file__).parent
FLAGS = (
    f"--model_name={MODEL}",
    "--return_raw_logits=true",
    "--enable_predictor_health_check=true",
    f"--predictor_request_timeout_seconds={TIMEOUT:g}",
    "--enable_latency_logging=false",
)
REGION_BYTES = 4 << 20
SHARED_MEMORY_FLAGS = ("--predictor_shared_memory_min_bytes=1", f"--predictor_shared_memory_bytes={REGION_BYTES}")

INLINE_FLAGS = ("--predictor_shared_memory=off", "--predictor_request_retries=2")
"""Retries only here, so that both are tried, with them and without."""


class Setup(NamedTuple):
    """One way to reach the predictor."""

    protocol: Literal["v2", "grpc-v2"]
    shared_memory: bool

    @property
    def title(self) -> str:
        return f"{'REST' if self.protocol == 'v2' else 'gRPC'}, shared memory {'on' if self.shared_memory else 'off'}"


SETUPS = tuple(Setup(protocol, shared) for protocol in ("v2", "grpc-v2") for shared in (True, False))


class Use(NamedTuple):
    """What a service holds."""

    descriptors: int
    threads: int


class FaultEnvironment:
    """One Triton with one model; services in front of it, which end with it.

    Args:
        folder: empty; for the model repository.
        model_folder: see texts.write_model_folder.
    """

    def __init__(self, setup: Setup, folder: Path, model_folder: Path, texts: Sequence[Text]) -> None:
        self.setup = setup
        self.texts = texts
        self.model_folder = model_folder
        self.repository = folder / "repository"
        self.model = self.repository / MODEL
        shutil.copytree(HERE / "model_repository" / MODEL, self.model)
        shutil.copyfile(HERE / "known_logits.py", self.model / "1" / "known_logits.py")
        options = ["--disable-auto-complete-config"]
        self.triton = LocalTriton(
            self.repository, environment=triton_environment(), models=[MODEL], config_name=None, options=options
        )
        self._stack = ExitStack()
        self._loads = 0

    def __enter__(self) -> Self:
        self._stack.enter_context(self.triton)
        self._stack.callback(self.triton.kill)  # quicker than its end; the services end before
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def serve(self, *flags: str, host: str = HOST) -> Service:
        """Another service, not waited for; ends with the environment at the latest."""
        port = self.triton.http_port if self.setup.protocol == "v2" else self.triton.grpc_port
        memory = SHARED_MEMORY_FLAGS if self.setup.shared_memory else INLINE_FLAGS
        predictor = (f"--predictor_host={host}:{port}", f"--predictor_protocol={self.setup.protocol}")
        folder = f"--model_dir={self.model_folder}"
        return self._stack.enter_context(Service(*FLAGS, folder, *predictor, *memory, *flags, forked=False))

    def load(self, service: Service, *, until_refused: bool = False) -> Load:
        """Load on a service, not started."""
        self._loads += 1
        return Load(self.texts, service, self._loads, until_refused=until_refused)

    def control(self, **what: float | str) -> None:
        """Has the model misbehave from its next execution on; without arguments, no more."""
        new = self.model / "control.new"
        new.write_text(json.dumps(what))
        new.rename(self.model / "control.json")

    def ask_triton(self, method: str, path: str, body: str = "") -> int:
        """A call of Triton's REST API; its status."""
        url = f"http://{self.triton.http_address}/v2{path}"
        return httpx.request(method, url, content=body, timeout=60.0, trust_env=False, verify=False).status_code

    def repository_call(self, what: Literal["load", "unload"]) -> None:
        status = self.ask_triton("POST", f"/repository/models/{MODEL}/{what}", "{}")
        assert status == 200, f"{what}: {status}"

    def model_is_ready(self) -> bool:
        return self.ask_triton("GET", f"/models/{MODEL}/ready") == 200

    def stubs(self) -> list[int]:
        return members(self.triton.child.pid, "backend_stub")


def members(pid: int, program: str) -> list[int]:
    """The processes of a session whose command line has such a word."""
    pids = []
    for member in session_members(pid):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if program in " ".join(psutil.Process(member).cmdline()):
                pids.append(member)
    return pids


def use_of(service: Service) -> Use:
    """The present resources of a service without workers."""
    process = psutil.Process(service.process.pid)
    return Use(process.num_fds(), process.num_threads())


def settle(service: Service, before: Use, quarantine: int | None, seconds: float = 30.0) -> list[str]:
    """Waits until a service without load holds no more than it should; what it holds too much, if anything.

    quarantine: bytes that may be in quarantine; None where there is no shared memory.
    """

    def unsettled() -> list[str]:
        now = use_of(service)
        limits = [
            ("descriptors", now.descriptors, before.descriptors + 4),
            ("threads", now.threads, before.threads + 4),
            ("requests in flight", service.metric("hf_transformer_requests_in_flight"), 0),
        ]
        if quarantine is not None:
            memory = "hf_transformer_shared_memory"
            in_use = service.metric(f'{memory}_slots{{state="in_use"}}')
            lost = service.metric(f'{memory}_bytes{{state="quarantined"}}')
            limits += [("slots in use", in_use, 0), ("bytes in quarantine", lost, quarantine)]
        return [f"{name}: {value:g}, and not {most} at most" for name, value, most in limits if value > most]

    poll(lambda: not unsettled(), seconds)
    return unsettled()


def regions(service: Service) -> list[Path]:
    """A service's files in /dev/shm, as far as it speaks of them in its log."""
    names = re.findall(rf"{SHARED_MEMORY}/{PREFIX}\w+", service.log)
    return [Path(name) for name in sorted(set(names)) if Path(name).exists()]


def workers_of(service: Service) -> list[int]:
    """The workers that have started."""
    return _started(service, "server")


def batcher_of(service: Service) -> int:
    """The process that forms the batches of the workers, once it has started."""
    [pid] = _started(service, "batcher")
    return pid


def _started(service: Service, kind: str) -> list[int]:
    started = {int(pid) for pid in re.findall(rf"Started {kind} process \[(\d+)\]", service.log)}
    return [pid for pid in members(service.process.pid, "spawn_main") if pid in started]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
