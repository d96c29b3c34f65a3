"""What is compared. A subject answers the cases of one model, from start to stop."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from benchmarks.speed.bodies import Body, check_prediction, ensemble, v1
from benchmarks.speed.cases import REAL_MODELS, Case, Cell, Model
from benchmarks.speed.configs import ensemble_name
from benchmarks.speed.http_calls import post, ready
from benchmarks.speed.load import Load, LoadFailed, run_wrk
from benchmarks.speed.repository import hugging_face_folder
from benchmarks.speed.texts import texts_of, token_ids
from hf_transformer.commands.local_triton import HOST, ChildProcess, LocalTriton, free_ports

READY_SECONDS = 90.0
PORT_TAKEN = "already in use"
REAL_SECONDS = 6
WARM_UP_SECONDS = 3
"""Longer than a run: on a busy machine a peer may have no answer within one second."""
PREPARING = 3
"""Requests before every run."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all subjects share: the running Triton, the folder of models and logs, the variables of children."""

    triton: LocalTriton
    folder: Path
    environ: dict[str, str]
    texts: dict[Case, list[str]] = field(default_factory=dict)

    def texts_of(self, case: Case) -> list[str]:
        """The texts of a case, made once."""
        if case not in self.texts:
            self.texts[case] = texts_of(case, hugging_face_folder(self.folder, case.model))
        return self.texts[case]

    def ids_of(self, case: Case) -> list[list[int]]:
        """Their token ids."""
        return token_ids(self.texts_of(case), hugging_face_folder(self.folder, case.model))


class Subject(ABC):
    """One thing that is measured. ``start`` begins, ``wait`` ends the starting; ``stop`` may be called at any time."""

    kind: ClassVar[str]
    """service, bare or peer."""

    def __init__(self, name: str, ground: Ground, model: Model) -> None:
        self.name = name
        self.ground = ground
        self.model = model

    def takes(self, cell: Cell) -> bool:
        """Whether it can be measured so."""
        return True

    def start(self) -> None:  # noqa: B027 - most of the bare ones have nothing to do here
        """Start what is needed, without waiting for it."""

    def wait(self) -> None:  # noqa: B027 - as start
        """Wait until it is ready. Raises LoadFailed if it does not get there."""

    def stop(self) -> None:  # noqa: B027 - as start
        """End all that was started."""

    @property
    def child(self) -> ChildProcess | None:
        """The process beside Triton, if there is one."""
        return None

    @abstractmethod
    def check(self, case: Case) -> None:
        """Send one request and check the answer. Raises ValueError if it is wrong."""

    def warm_up(self, cell: Cell) -> None:
        """Before the rounds: a load that is not counted."""
        self.measure(cell, WARM_UP_SECONDS)

    def prepare(self, case: Case) -> None:
        """Before every run: make sure that it works, and has what a run of another subject may have taken from it.

        perf_analyzer unregisters all shared memory, that of others too.
        """
        for _ in range(PREPARING):
            self.check(case)

    @abstractmethod
    def measure(self, cell: Cell, seconds: int) -> Load:
        """Put it under load. Raises LoadFailed."""

    def seconds(self, cell: Cell, seconds: int) -> int:
        """How long a run has to be, when ``seconds`` are wanted."""
        return seconds


class WithWrk(Subject):
    """A subject that wrk can put under load."""

    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def bodies(self, case: Case) -> list[Body]: ...

    def measure(self, cell: Cell, seconds: int) -> Load:
        return run_wrk(self.url(), self.bodies(cell.case), cell.connections, self.seconds(cell, seconds))


class V1Server(WithWrk):
    """A process of its own that answers KServe's V1 protocol."""

    def __init__(self, name: str, ground: Ground, model: Model) -> None:
        super().__init__(name, ground, model)
        self._child: ChildProcess | None = None
        self._deadline = 0.0
        self.port = 0
        self.environ = ground.environ

    @abstractmethod
    def command(self, port: int) -> list[str]: ...

    def start(self) -> None:
        self._deadline = time.monotonic() + READY_SECONDS  # from here, since all start at once
        self._begin()

    def _begin(self) -> None:
        self.port = free_ports(1)[0]
        log = self.ground.folder / f"{self.model.name}, {self.name}.log".replace("/", " ")
        self._child = ChildProcess(self.command(self.port), self.environ, log)

    def wait(self) -> None:
        assert self._child is not None
        while not ready(self.port, f"/v1/models/{self.model.name}"):
            late = time.monotonic() > self._deadline
            if self._child.exit_code is not None and PORT_TAKEN in self._child.output() and not late:
                self._begin()  # between our choice of the port and its use another process has taken it
            elif self._child.exit_code is not None or late:
                raise LoadFailed(f"{self.name} did not get ready:\n{self._child.output_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._child is not None:
            self._child.terminate(10.0)
            self._child = None

    @property
    def child(self) -> ChildProcess | None:
        return self._child

    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v1/models/{self.model.name}:predict"

    def bodies(self, case: Case) -> list[Body]:
        return v1(self.ground.texts_of(case))

    def check(self, case: Case) -> None:
        answer = post(self.port, f"/v1/models/{self.model.name}:predict", self.bodies(case)[0])
        check_prediction(case, answer["predictions"][0])


class Service(V1Server):
    """hf_transformer with these flags, after those of the model."""

    kind = "service"

    MANY = 16

    def __init__(
        self, name: str, ground: Ground, model: Model, python: Path, flags: Sequence[str], *, only_many: bool = False
    ) -> None:
        """only_many: take part from MANY connections on, as a form that has no effect with fewer."""
        super().__init__(name, ground, model)
        self._python = python
        self._flags = flags
        self._least = self.MANY if only_many else 1

    def takes(self, cell: Cell) -> bool:
        return cell.connections >= self._least

    def seconds(self, cell: Cell, seconds: int) -> int:
        """A real model takes seconds to answer all connections once."""
        return max(seconds, REAL_SECONDS) if cell.case.model in REAL_MODELS else seconds

    def command(self, port: int) -> list[str]:
        grpc = "--predictor_protocol=grpc-v2" in self._flags
        triton = self.ground.triton
        return [
            *(str(self._python), "-m", "hf_transformer", f"--host={HOST}", f"--http_port={port}", "--grpc_port=0"),
            f"--model_name={self.model.name}",
            f"--model_dir={hugging_face_folder(self.ground.folder, self.model)}",
            f"--task={self.model.task}",
            f"--predictor_host={triton.grpc_address if grpc else triton.http_address}",
            *self.model.flags,
            *self._flags,
        ]


class KServeTransformer(V1Server):
    """A transformer written with the KServe SDK."""

    kind = "peer"
    SLOW_SECONDS = 6

    def __init__(self, name: str, ground: Ground, model: Model, python: Path) -> None:
        super().__init__(name, ground, model)
        self._python = python

    def command(self, port: int) -> list[str]:
        return [
            *(str(self._python), str(Path(__file__).with_name("kserve_transformer.py"))),
            *(f"--model_name={self.model.name}", f"--http_port={port}", "--enable_grpc=false", "--workers=1"),
            f"--predictor_host={self.ground.triton.http_address}",
            "--predictor_protocol=v2",
            f"--tokenizer={hugging_face_folder(self.ground.folder, self.model)}",
            f"--task={self.model.task}",
        ]

    def takes(self, cell: Cell) -> bool:
        """A logit takes it a microsecond: of fill_mask only what ends in a reasonable time."""
        return not self._slow(cell) or (cell.case.lengths == "9" and cell.connections in (1, 16))

    def warm_up(self, cell: Cell) -> None:
        if not self._slow(cell):
            super().warm_up(cell)

    def seconds(self, cell: Cell, seconds: int) -> int:
        return max(seconds, self.SLOW_SECONDS) if self._slow(cell) else seconds

    def _slow(self, cell: Cell) -> bool:
        return cell.case.model.task == "fill_mask"


class Ensemble(WithWrk):
    """Tokenizing, model and decoding inside Triton."""

    kind = "peer"

    def url(self) -> str:
        return f"http://{self.ground.triton.http_address}{self._path()}"

    def _path(self) -> str:
        return f"/v2/models/{ensemble_name(self.model)}/infer"

    def bodies(self, case: Case) -> list[Body]:
        return ensemble(self.ground.texts_of(case))

    def check(self, case: Case) -> None:
        data = post(self.ground.triton.http_port, self._path(), self.bodies(case)[0])["outputs"][0]["data"]
        check_prediction(case, data if case.model.task == "text_embedding" else data[0])
