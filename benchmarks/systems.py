"""Systems under test: the service, Triton alone, and peers. A system answers the cases of one model."""

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

MIN_SLOW_SECONDS: Final = 6
"""Minimum duration of runs of real models, and of the KServe SDK with large outputs."""
WARM_UP_SECONDS: Final = 3
"""Longer than a run, because on a busy machine a peer may take over a second for an answer."""
PREPARATORY_REQUESTS: Final = 3
"""Requests before each run."""
MIN_BATCHED_CONNECTIONS: Final = 16
"""Connections from which batching matters."""
GRPC_CONNECTIONS: Final = (1, 16, 32)
"""Numbers of connections for measurements over gRPC."""
MAX_IN_FLIGHT: Final = 32
"""Limit of perf_analyzer, which has a thread for each request: with 128 on two cores it may hang."""
MAX_REGION_BYTES: Final = 256 * 2**20
"""Shared memory for outputs of wrk's requests. Requests in flight may share a slot, since nothing reads it."""
REGIONS_PATH: Final = "/v2/systemsharedmemory/region"


@dataclass(frozen=True, slots=True)
class Testbed:
    """Shared resources of all systems: Triton, the folder of models and logs, and the Python of the service.

    With ``own_python`` another checkout runs with the Python of its .venv.
    """

    triton: LocalTriton
    folder: Path
    python: Path
    own_python: bool = False

    def texts_of(self, case: Case) -> list[str]:
        return texts_of(case, self.folder / case.model.name)


class System(ABC):
    """A system under test. ``start`` begins its start-up, ``wait`` completes it; ``stop`` may come at any time."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        self.name = name
        self.testbed = testbed
        self.model = model

    def takes(self, cell: Cell) -> bool:
        """Whether the benchmark measures it in this cell."""
        return True

    def start(self) -> None:  # noqa: B027 - no process by default
        """Starts its process, if any, without waiting for it."""

    def wait(self) -> None:  # noqa: B027
        """Waits until it is ready. Raises LoadFailed or LoadError after a timeout."""

    def stop(self) -> None:  # noqa: B027
        """Ends its process."""

    @property
    def child(self) -> ChildProcess | None:
        """Its own process besides Triton, if any."""
        return None

    @abstractmethod
    def check(self, case: Case) -> None:
        """Sends one request. Raises ValueError for a wrong answer."""

    def warm_up(self, cell: Cell) -> None:
        """Puts an uncounted load on it before the rounds."""
        self.measure(cell, WARM_UP_SECONDS)

    def prepare(self, case: Case) -> None:
        """Checks it before each run, and restores state that another system's run may have changed."""
        for _ in range(PREPARATORY_REQUESTS):
            self.check(case)

    @abstractmethod
    def measure(self, cell: Cell, seconds: int) -> Load:
        """Puts it under load and returns the figures. Raises LoadFailed."""


class WrkSystem(System):
    """A system that gets its load from wrk: POSTs to ``path`` on ``port``."""

    path: str
    port: int

    @abstractmethod
    def bodies(self, case: Case) -> list[Body]: ...

    def measure(self, cell: Cell, seconds: int) -> Load:
        return run_wrk(f"http://{HOST}:{self.port}{self.path}", self.bodies(cell.case), cell.connections, seconds)


class V1Server(WrkSystem):
    """A process that answers KServe's V1 protocol."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        super().__init__(name, testbed, model)
        self.path = f"/v1/models/{model.name}:predict"

    def bodies(self, case: Case) -> list[Body]:
        return v1_bodies(self.testbed.texts_of(case))

    def check(self, case: Case) -> None:
        check_prediction(case, post(self.port, self.path, self.bodies(case)[0])["predictions"][0])


class Service(V1Server):
    """hf_transformer with these flags, from this or another checkout."""

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
        """Runs a real model longer, because it takes seconds to answer all connections once."""
        return super().measure(cell, max(seconds, MIN_SLOW_SECONDS) if self.model is MINILM else seconds)


class UnbatchedService(Service):
    """The service with batching off, measured with many connections only."""

    def takes(self, cell: Cell) -> bool:
        return cell.connections >= MIN_BATCHED_CONNECTIONS


class V2Service(Service):
    """The service with the open inference protocol: perf_analyzer sends texts as BYTES, in rotation."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, analyzer: Sequence[str], protocol: str,
        checkout: Checkout | None = None,
    ) -> None:  # fmt: skip
        """``analyzer`` is the command of perf_analyzer, ``protocol`` http or grpc."""
        super().__init__(name, testbed, model, (), checkout)
        self._analyzer = analyzer
        self._protocol = protocol

    def takes(self, cell: Cell) -> bool:
        """Takes the cells of perf_analyzer over gRPC, because each run takes some seconds."""
        return cell.case.lengths == "9" and cell.connections in GRPC_CONNECTIONS

    def measure(self, cell: Cell, seconds: int) -> Load:
        port = self.process.grpc_port if self._protocol == "grpc" else self.port
        with tempfile.NamedTemporaryFile("w", prefix="hf-transformer-bench-", suffix=".json") as file:
            json.dump({"data": [{"text": [text]} for text in self.testbed.texts_of(cell.case)]}, file)
            file.flush()
            flags = ["-m", self.model.name, "-u", f"{HOST}:{port}", "-i", self._protocol]
            flags += ["--input-data", file.name, "--shape", "text:1"]
            return run_analyzer(self._analyzer, flags, variables(), cell.connections, seconds, self._answered)

    def _answered(self) -> int:
        """The number of the service's answers over all APIs."""
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
        """Leaves out fill_mask's slow cells: it takes a microsecond for each logit as JSON."""
        return not self._slow or (cell.case.lengths == "9" and cell.connections in (1, 16))

    def warm_up(self, cell: Cell) -> None:
        if not self._slow:
            super().warm_up(cell)

    def measure(self, cell: Cell, seconds: int) -> Load:
        return super().measure(cell, max(seconds, MIN_SLOW_SECONDS) if self._slow else seconds)

    @property
    def _slow(self) -> bool:
        return self.model.task == "fill_mask" and self._protocol == "v2"


class Ensemble(WrkSystem):
    """An ensemble in Triton of tokenizing, model and decoding."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        super().__init__(name, testbed, model)
        self.path, self.port = f"/v2/models/{ensemble_name(model)}/infer", testbed.triton.http_port

    def bodies(self, case: Case) -> list[Body]:
        return ensemble_bodies(self.testbed.texts_of(case))

    def check(self, case: Case) -> None:
        data = post(self.port, self.path, self.bodies(case)[0])["outputs"][0]["data"]
        check_prediction(case, data if case.model.task == "text_embedding" else data[0])


class TritonWithWrk(WrkSystem):
    """Triton alone: wrk sends tensors in the binary form; outputs come in the response or in shared memory."""

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
                region = self._regions[case] = Region(name, slot, max(1, min(len(ids), MAX_REGION_BYTES // slot)))
                with (SHARED_MEMORY / name).open("xb") as file:
                    os.posix_fallocate(file.fileno(), 0, region.size)
            self._bodies[case] = binary_bodies(self.model, ids, self._regions.get(case))
        return self._bodies[case]

    def prepare(self, case: Case) -> None:
        self.check(case)

    def check(self, case: Case) -> None:
        """Registers its region again, because perf_analyzer unregisters all regions, and touches all of it."""
        bodies = self.bodies(case)
        if region := self._regions.get(case):
            self._unregister(region)
            content = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": region.size}).encode()
            post(self.port, f"{REGIONS_PATH}/{region.name}/register", Body(content))
        for body in bodies:
            shape = post(self.port, self.path, body)["outputs"][0]["shape"]
            if shape[-1] != self.model.width:
                raise ValueError(f"{case.name}: the output has the shape {shape}")

    def _unregister(self, region: Region) -> None:
        post(self.port, f"{REGIONS_PATH}/{region.name}/unregister", Body(b"{}"))

    def stop(self) -> None:
        """Removes the files first: Triton may be gone, or refuse to unregister a region in use."""
        for region in self._regions.values():
            (SHARED_MEMORY / region.name).unlink(missing_ok=True)
        for region in self._regions.values():
            self._unregister(region)


class TritonWithPerfAnalyzer(System):
    """Triton alone with NVIDIA's load generator perf_analyzer, and a fixed number of tokens."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, analyzer: Sequence[str], protocol: str, shared_memory: bool
    ) -> None:
        """``analyzer`` is the command, ``protocol`` http or grpc; ``shared_memory`` applies to outputs."""
        super().__init__(name, testbed, model)
        self._analyzer = analyzer
        self._protocol = protocol
        self._memory = "system" if shared_memory else "none"

    def takes(self, cell: Cell) -> bool:
        """Takes few cells, because each run takes some seconds: the shortest texts, gRPC with GRPC_CONNECTIONS."""
        counts = range(1, MAX_IN_FLIGHT + 1) if self._protocol == "http" else GRPC_CONNECTIONS
        return cell.case.lengths == "9" and cell.connections in counts

    def warm_up(self, cell: Cell) -> None:
        """Does nothing: perf_analyzer warms up in each run."""

    def check(self, case: Case) -> None:
        """Does nothing: perf_analyzer does not return answers, and other systems check Triton's."""

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
        """The number of Triton's answers for this model."""
        stats = json.loads(get(self.testbed.triton.http_port, f"/v2/models/{self.model.name}/stats"))["model_stats"][0]
        return int(stats["inference_stats"]["success"]["count"])
