"""What is compared. A system answers the cases of one model, from ``start`` to ``stop``."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cases import MINILM, Case, Cell, Model, load_tokenizer, texts_of
from benchmarks.load import (
    Body,
    Load,
    LoadFailed,
    Region,
    binary_bodies,
    check_prediction,
    ensemble_bodies,
    get,
    post,
    run_analyzer,
    run_wrk,
    v1_bodies,
)
from benchmarks.pairs import Checkout
from benchmarks.processes import READY_SECONDS, ServiceProcess, variables
from benchmarks.repository import ensemble_name
from hf_transformer.commands.local_triton import HOST, SHARED_MEMORY, ChildProcess, LocalTriton, free_ports, is_ready

WRK: Final = "Triton alone, wrk"
PERF_ANALYZER: Final = "Triton alone, perf_analyzer"
KSERVE: Final = "KServe SDK transformer"
ENSEMBLE: Final = "ensemble in Triton"
IN_MEMORY: Final = ", shared memory"
UNBATCHED: Final = "batching off"
DEFAULT: Final = "service, REST, shared memory"
"""The service with its default flags."""

SLOW_SECONDS: Final = 6
"""At least so long runs of real models, and of the KServe SDK with large outputs."""
WARM_UP_SECONDS: Final = 3
"""Longer than a run: on a busy machine a peer may have no answer within one second."""
PREPARING: Final = 3
"""Requests before every run."""
MANY: Final = 16
"""Connections from which on it matters whether texts share batches."""
COMPARED: Final = (1, 16, 32)
"""Numbers in flight at which figures over gRPC are compared."""
MOST_IN_FLIGHT: Final = 32
"""Of perf_analyzer, which has a thread for each: with 128 on two cores a run may never end."""
REGION_BYTES: Final = 256 * 2**20
"""At most so much for the outputs of wrk's requests. Two in flight may then share a place; nobody reads it."""
REGIONS: Final = "/v2/systemsharedmemory/region"


@dataclass(frozen=True, slots=True)
class Testbed:
    """What all systems share: the running Triton, the folder of models and logs, and the Python of the service.

    With ``own_python`` another checkout runs with the Python of its own .venv.
    """

    triton: LocalTriton
    folder: Path
    python: Path
    own_python: bool = False

    def texts_of(self, case: Case) -> list[str]:
        return texts_of(case, self.folder / case.model.name)


class System(ABC):
    """One thing that is measured. ``start`` begins, ``wait`` ends the starting; ``stop`` may be called at any time."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        self.name = name
        self.testbed = testbed
        self.model = model

    def takes(self, cell: Cell) -> bool:
        """Whether it can be measured in this cell."""
        return True

    def start(self) -> None:  # noqa: B027 - Triton runs already
        """Starts its process, if it has one, without waiting for it."""

    def wait(self) -> None:  # noqa: B027
        """Waits until it is ready. Raises LoadFailed or LoadError if that takes too long."""

    def stop(self) -> None:  # noqa: B027
        """Ends its process."""

    @property
    def child(self) -> ChildProcess | None:
        """Its process beside Triton, if it has one."""
        return None

    @abstractmethod
    def check(self, case: Case) -> None:
        """Sends one request and checks the answer. Raises ValueError if it is wrong."""

    def warm_up(self, cell: Cell) -> None:
        """Before the rounds: a load that is not counted."""
        self.measure(cell, WARM_UP_SECONDS)

    def prepare(self, case: Case) -> None:
        """Before every run: checks that it works, and restores what a run of another system may have undone."""
        for _ in range(PREPARING):
            self.check(case)

    @abstractmethod
    def measure(self, cell: Cell, seconds: int) -> Load:
        """Puts it under load. Raises LoadFailed."""


class WrkSystem(System):
    """A system that wrk puts under load: it answers POSTs to ``path`` on ``port``."""

    path: str
    port: int

    @abstractmethod
    def bodies(self, case: Case) -> list[Body]: ...

    def measure(self, cell: Cell, seconds: int) -> Load:
        return run_wrk(f"http://{HOST}:{self.port}{self.path}", self.bodies(cell.case), cell.connections, seconds)


class V1Server(WrkSystem):
    """A process of its own that answers KServe's V1 protocol."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        super().__init__(name, testbed, model)
        self.path = f"/v1/models/{model.name}:predict"

    def bodies(self, case: Case) -> list[Body]:
        return v1_bodies(self.testbed.texts_of(case))

    def check(self, case: Case) -> None:
        check_prediction(case, post(self.port, self.path, self.bodies(case)[0])["predictions"][0])


class Service(V1Server):
    """hf_transformer with these flags, of this checkout or another one."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, flags: Sequence[str], checkout: Checkout | None = None
    ) -> None:
        super().__init__(name, testbed, model)
        self._flags = [f"--task={model.task}", *flags]
        self._checkout = checkout
        self._process: ServiceProcess | None = None

    def start(self) -> None:
        testbed = self.testbed
        self._process = ServiceProcess(
            testbed.triton, testbed.folder, self.model.name, self._flags,
            python=testbed.python, checkout=self._checkout, own_python=testbed.own_python,
        )  # fmt: skip

    @property
    def process(self) -> ServiceProcess:
        assert self._process is not None
        return self._process

    def wait(self) -> None:
        self.port = self.process.wait().port

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    @property
    def child(self) -> ChildProcess:
        return self.process.child

    def measure(self, cell: Cell, seconds: int) -> Load:
        """A real model takes seconds to answer all connections once."""
        return super().measure(cell, max(seconds, SLOW_SECONDS) if self.model is MINILM else seconds)


class UnbatchedService(Service):
    """The service with batching off, which makes no difference with few connections."""

    def takes(self, cell: Cell) -> bool:
        return cell.connections >= MANY


class V2Service(Service):
    """The service asked in the open inference protocol: perf_analyzer sends texts, in turn, as BYTES."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, analyzer: Sequence[str], protocol: str,
        checkout: Checkout | None = None,
    ) -> None:  # fmt: skip
        """``analyzer`` is the command of perf_analyzer, ``protocol`` http or grpc."""
        super().__init__(name, testbed, model, (), checkout)
        self._analyzer = analyzer
        self._protocol = protocol

    def takes(self, cell: Cell) -> bool:
        """Where perf_analyzer's figures over gRPC are: each of its runs takes some seconds."""
        return cell.case.lengths == "9" and cell.connections in COMPARED

    def measure(self, cell: Cell, seconds: int) -> Load:
        port = self.process.grpc_port if self._protocol == "grpc" else self.port
        with tempfile.NamedTemporaryFile("w", prefix="hf-transformer-bench-", suffix=".json") as file:
            json.dump({"data": [{"text": [text]} for text in self.testbed.texts_of(cell.case)]}, file)
            file.flush()
            flags = ["-m", self.model.name, "-u", f"{HOST}:{port}", "-i", self._protocol]
            flags += ["--input-data", file.name, "--shape", "text:1"]
            return run_analyzer(self._analyzer, flags, variables(), cell.connections, seconds, self._answered)

    def _answered(self) -> int:
        """Requests that the service has answered, over whichever API."""
        lines = get(self.port, "/metrics").decode().splitlines()
        return round(sum(float(line.split()[-1]) for line in lines if line.startswith("hf_transformer_requests_total")))


class KServeTransformer(V1Server):
    """A transformer written with the KServe SDK, kserve_transformer.py; ``protocol`` is v2 (JSON) or grpc-v2."""

    def __init__(self, name: str, testbed: Testbed, model: Model, protocol: str = "v2") -> None:
        super().__init__(name, testbed, model)
        self._protocol = protocol
        self._child: ChildProcess | None = None

    def start(self) -> None:
        self._deadline = time.monotonic() + READY_SECONDS
        self.port = free_ports(1)[0]
        command = [
            *(sys.executable, "-m", "benchmarks.kserve_transformer"),
            *(f"--model_name={self.model.name}", f"--http_port={self.port}", "--enable_grpc=false", "--workers=1"),
            *(f"--predictor_host={self._address}", f"--predictor_protocol={self._protocol}"),
            *(f"--tokenizer={self.testbed.folder / self.model.name}", f"--task={self.model.task}"),
        ]
        log = self.testbed.folder / f"{self.model.name} kserve {self._protocol}.log"
        self._child = ChildProcess(command, variables(), log)

    def wait(self) -> None:
        assert self._child is not None
        while not is_ready(self.port, f"/v1/models/{self.model.name}"):
            if self._child.wait(0.05) or time.monotonic() > self._deadline:
                raise LoadFailed(f"{self.name} did not get ready:\n{self._child.output()[-4000:]}")

    def stop(self) -> None:
        if self._child is not None:
            self._child.terminate(10.0)
            self._child = None

    @property
    def child(self) -> ChildProcess | None:
        return self._child

    @property
    def _address(self) -> str:
        triton = self.testbed.triton
        return triton.http_address if self._protocol == "v2" else triton.grpc_address

    def takes(self, cell: Cell) -> bool:
        """A logit takes it a microsecond as JSON: of fill_mask only what ends in a reasonable time."""
        return not self._slow or (cell.case.lengths == "9" and cell.connections in (1, 16))

    def warm_up(self, cell: Cell) -> None:
        if not self._slow:
            super().warm_up(cell)

    def measure(self, cell: Cell, seconds: int) -> Load:
        return super().measure(cell, max(seconds, SLOW_SECONDS) if self._slow else seconds)

    @property
    def _slow(self) -> bool:
        return self.model.task == "fill_mask" and self._protocol == "v2"


class Ensemble(WrkSystem):
    """Tokenizing, model and decoding inside Triton."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        super().__init__(name, testbed, model)
        self.path, self.port = f"/v2/models/{ensemble_name(model)}/infer", testbed.triton.http_port

    def bodies(self, case: Case) -> list[Body]:
        return ensemble_bodies(self.testbed.texts_of(case))

    def check(self, case: Case) -> None:
        data = post(self.port, self.path, self.bodies(case)[0])["outputs"][0]["data"]
        check_prediction(case, data if case.model.task == "text_embedding" else data[0])


class TritonWithWrk(WrkSystem):
    """wrk sends tensors in Triton's binary form; outputs come back inline, or in shared memory."""

    def __init__(self, name: str, testbed: Testbed, model: Model, shared_memory: bool) -> None:
        super().__init__(name, testbed, model)
        self.path, self.port = f"/v2/models/{model.name}/infer", testbed.triton.http_port
        self._shared = shared_memory
        self._bodies: dict[Case, list[Body]] = {}
        self._regions: dict[Case, Region] = {}

    def bodies(self, case: Case) -> list[Body]:
        if case not in self._bodies:
            encode = load_tokenizer(self.testbed.folder / case.model.name).encode
            ids = [encode(text).ids for text in self.testbed.texts_of(case)]
            if self._shared:
                slot, name = self.model.output_bytes(case.tokens), f"hf_transformer_bench_{secrets.token_hex(6)}"
                region = self._regions[case] = Region(name, slot, max(1, min(len(ids), REGION_BYTES // slot)))
                with (SHARED_MEMORY / name).open("xb") as file:
                    os.posix_fallocate(file.fileno(), 0, region.size)
            self._bodies[case] = binary_bodies(self.model, ids, self._regions.get(case))
        return self._bodies[case]

    def prepare(self, case: Case) -> None:
        self.check(case)

    def check(self, case: Case) -> None:
        """Registers its memory again, since perf_analyzer unregisters all there is, and touches all of it."""
        bodies = self.bodies(case)
        if region := self._regions.get(case):
            self._unregister(region)
            content = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": region.size}).encode()
            post(self.port, f"{REGIONS}/{region.name}/register", Body(content))
        for body in bodies:
            shape = post(self.port, self.path, body)["outputs"][0]["shape"]
            if shape[-1] != self.model.width:
                raise ValueError(f"{case.name}: the output has the shape {shape}")

    def _unregister(self, region: Region) -> None:
        post(self.port, f"{REGIONS}/{region.name}/unregister", Body(b"{}"))

    def stop(self) -> None:
        """The files go in any case: Triton may be gone, or refuse because a request is still under way."""
        for region in self._regions.values():
            (SHARED_MEMORY / region.name).unlink(missing_ok=True)
        for region in self._regions.values():
            self._unregister(region)


class TritonWithPerfAnalyzer(System):
    """NVIDIA's load generator, in C++, straight to Triton, with the same number of tokens each time."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, analyzer: Sequence[str], protocol: str, shared_memory: bool
    ) -> None:
        """``analyzer`` is its command, ``protocol`` http or grpc; ``shared_memory`` whether outputs travel there."""
        super().__init__(name, testbed, model)
        self._analyzer = analyzer
        self._protocol = protocol
        self._memory = "system" if shared_memory else "none"

    def takes(self, cell: Cell) -> bool:
        """The shortest texts alone, and gRPC where it is compared: each of its runs takes some seconds."""
        counts = range(1, MOST_IN_FLIGHT + 1) if self._protocol == "http" else COMPARED
        return cell.case.lengths == "9" and cell.connections in counts

    def warm_up(self, cell: Cell) -> None:
        """Each run warms up by itself."""

    def check(self, case: Case) -> None:
        """Its answers stay in the program. Other systems check that Triton answers rightly."""

    def measure(self, cell: Cell, seconds: int) -> Load:
        triton, tokens = self.testbed.triton, cell.case.tokens
        flags = [
            *("-m", self.model.name, "-i", self._protocol),
            *("-u", triton.http_address if self._protocol == "http" else triton.grpc_address),
            *("--shape", f"input_ids:{tokens}", "--shape", f"attention_mask:{tokens}"),
            *(f"--shared-memory={self._memory}", f"--output-shared-memory-size={self.model.output_bytes(tokens)}"),
        ]
        return run_analyzer(self._analyzer, flags, variables(), cell.connections, seconds, self._successes)

    def _successes(self) -> int:
        """Requests that Triton has answered for this model."""
        stats = json.loads(get(self.testbed.triton.http_port, f"/v2/models/{self.model.name}/stats"))["model_stats"][0]
        return int(stats["inference_stats"]["success"]["count"])
