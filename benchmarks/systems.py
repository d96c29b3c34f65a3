"""Systems under test: the service, Triton alone, and peers. A system answers the cases of one model."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.cases import MINILM, Case, Cell, Model, load_tokenizer, requests_of, texts_of
from benchmarks.grpc_load import infer_bodies, run_grpc
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
    tensors_of,
    v1_bodies,
    v2_bodies,
)
from benchmarks.pairs import Checkout
from benchmarks.processes import READY_SECONDS, ServiceProcess, variables
from benchmarks.repository import ensemble_name
from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.local_triton import SHARED_MEMORY, LocalTriton
from hf_transformer.commands.loopback import HOST, is_ready, reserved_port

WRK: Final = "Triton alone, wrk"
PERF_ANALYZER: Final = "Triton alone, perf_analyzer"
KSERVE: Final = "KServe's SDK"
ENSEMBLE: Final = "ensemble in Triton"
IN_MEMORY: Final = ", shared memory"
UNBATCHED: Final = "batching off"
IN_ONE_POD: Final = "service, REST, shared memory"
"""The service with its default flags, next to a Triton that accepts shared memory."""

MIN_SLOW_SECONDS: Final = 6
"""Minimum duration of runs of real models, and of the KServe SDK with large outputs."""
LEAD_SECONDS: Final = 0.5
"""Time that other clients start before the measured ones, and that they end later."""
WARM_UP_SECONDS: Final = 2
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
ROWS: Final = "hf_transformer_batch_instances"
"""The service's histogram of texts per batch."""
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

    def requests_of(self, case: Case) -> list[list[str]]:
        return requests_of(case, self.folder / case.model.name)

    def ids_of(self, case: Case) -> list[list[int]]:
        """The ids of each text, cut at the model's length."""
        tokenizer = load_tokenizer(self.folder / case.model.name)
        tokenizer.enable_truncation(case.model.most_tokens)
        return [one.ids for one in tokenizer.encode_batch(self.texts_of(case))]


class System(ABC):
    """A system under test. ``start`` begins its start-up, ``wait`` completes it; ``stop`` may come at any time."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        self.name = name
        self.testbed = testbed
        self.model = model

    def takes(self, cell: Cell) -> bool:
        """Whether the benchmark measures it in this cell. Peers answer V1 only, or their own protocol in its place."""
        return cell.api == "V1" and cell.beside is None

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

    def batches(self) -> tuple[float, float] | None:
        """The rows of all batches so far and their number; None if it does not say."""
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
        """Runs a real model longer, because it takes seconds to answer all connections once."""
        seconds = max(seconds, MIN_SLOW_SECONDS) if self.model is MINILM else seconds
        return run_wrk(f"http://{HOST}:{self.port}{self.path}", self.bodies(cell.case), cell.connections, seconds)


class V1Server(WrkSystem):
    """A process that answers KServe's V1 protocol."""

    def __init__(self, name: str, testbed: Testbed, model: Model) -> None:
        super().__init__(name, testbed, model)
        self.path = f"/v1/models/{model.name}:predict"

    def bodies(self, case: Case) -> list[Body]:
        return v1_bodies(self.testbed.requests_of(case))

    def check(self, case: Case) -> None:
        check_prediction(case, post(self.port, self.path, self.bodies(case)[0])["predictions"][0])


class Service(V1Server):
    """hf_transformer with these flags, from this or another checkout; ``cells`` are its only ones."""

    def __init__(
        self, name: str, testbed: Testbed, model: Model, flags: Sequence[str], checkout: Checkout | None = None,
        cells: Container[Cell] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, testbed, model)
        self._flags = [f"--task={model.task}", *flags]
        self._checkout = checkout
        self._cells = cells
        self._process: ServiceProcess | None = None

    def takes(self, cell: Cell) -> bool:
        return super().takes(cell) if self._cells is None else cell in self._cells

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

    def batches(self) -> tuple[float, float] | None:
        lines = get(self.port, "/metrics").decode().splitlines()
        sums = {line.split()[0].partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith(ROWS)}
        return (sums[f"{ROWS}_sum"], sums[f"{ROWS}_count"]) if f"{ROWS}_sum" in sums else None

    def measure(self, cell: Cell, seconds: int) -> Load:
        """Runs other clients of the cell at the same time; they begin earlier and end later."""
        if cell.beside is None:
            return self._load(cell, seconds)
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(self._load, cell.beside, seconds + math.ceil(2 * LEAD_SECONDS))
            time.sleep(LEAD_SECONDS)
            load, other = self._load(cell, seconds), beside.result()
        return replace(load, errors=load.errors + other.errors, beside=other.requests / other.seconds)

    def _load(self, cell: Cell, seconds: int) -> Load:
        requests = self.testbed.requests_of(cell.case)
        if cell.api == "V1":
            return super().measure(cell, seconds)
        if cell.api == "V2, gRPC":
            bodies = infer_bodies(self.model.name, requests)
            return run_grpc(self.process.grpc_port, bodies, cell.connections, seconds)
        url = f"http://{HOST}:{self.port}/v2/models/{self.model.name}/infer"
        return run_wrk(url, v2_bodies(requests), cell.connections, seconds)


class UnbatchedService(Service):
    """The service with batching off, measured with many connections only."""

    def takes(self, cell: Cell) -> bool:
        return super().takes(cell) and cell.connections >= MIN_BATCHED_CONNECTIONS


class KServeTransformer(V1Server):
    """A transformer written with the KServe SDK, kserve_transformer.py; ``protocol`` is v2 (JSON) or grpc-v2."""

    def __init__(self, name: str, testbed: Testbed, model: Model, protocol: str = "v2") -> None:
        super().__init__(name, testbed, model)
        self._protocol = protocol
        self._child: ChildProcess | None = None
        self._reservation = ExitStack()

    def start(self) -> None:
        self._deadline = time.monotonic() + READY_SECONDS
        self.port = self._reservation.enter_context(reserved_port())
        command = [
            *(sys.executable, "-m", "benchmarks.kserve_transformer"),
            *(f"--model_name={self.model.name}", f"--http_port={self.port}", "--enable_grpc=false", "--workers=1"),
            *(f"--predictor_host={self._address}", f"--predictor_protocol={self._protocol}"),
            *(f"--tokenizer={self.testbed.folder / self.model.name}", f"--task={self.model.task}"),
            *(f"--inputs={','.join(self.model.inputs)}", f"--most_tokens={self.model.most_tokens}"),
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
        self._reservation.close()

    @property
    def child(self) -> ChildProcess | None:
        return self._child

    @property
    def _address(self) -> str:
        triton = self.testbed.triton
        return triton.http_address if self._protocol == "v2" else triton.grpc_address

    def warm_up(self, cell: Cell) -> None:
        if not self._slow:
            super().warm_up(cell)

    def measure(self, cell: Cell, seconds: int) -> Load:
        return super().measure(cell, max(seconds, MIN_SLOW_SECONDS) if self._slow else seconds)

    @property
    def _slow(self) -> bool:
        """Whether runs are longer, because it takes a microsecond for each logit as JSON."""
        return self.model.per_token and self._protocol == "v2"


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
            ids = self.testbed.ids_of(case)
            if self._shared:
                slot, name = self.model.output_bytes(max(map(len, ids))), f"hf_transformer_bench_{secrets.token_hex(6)}"
                region = self._regions[case] = Region(name, slot, max(1, min(len(ids), MAX_REGION_BYTES // slot)))
                with (SHARED_MEMORY / name).open("xb") as file:
                    os.posix_fallocate(file.fileno(), 0, region.size)
            self._bodies[case] = binary_bodies(self.model, ids, self._regions.get(case))
        return self._bodies[case]

    def prepare(self, case: Case) -> None:
        self.check(case)

    def check(self, case: Case) -> None:
        """Registers its region again, because perf_analyzer unregisters all regions, and touches all of it."""
        bodies = self.bodies(case) if self._shared else self.bodies(case)[:1]
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
    """Triton alone with NVIDIA's load generator perf_analyzer, which sends the tensors of the same texts."""

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
        return super().takes(cell) and cell.case.lengths in ("short", "9 tokens") and cell.connections in counts

    def warm_up(self, cell: Cell) -> None:
        """Does nothing: perf_analyzer warms up in each run."""

    def check(self, case: Case) -> None:
        """Does nothing: perf_analyzer does not return answers, and other systems check Triton's."""

    def measure(self, cell: Cell, seconds: int) -> Load:
        triton, ids = self.testbed.triton, self.testbed.ids_of(cell.case)
        rows = [
            {name: {"content": tensor.tolist(), "shape": [len(row)]} for name, tensor in tensors.items()}
            for row in ids
            for tensors in [tensors_of(self.model, row)]
        ]
        size = self.model.output_bytes(max(map(len, ids)))
        with tempfile.NamedTemporaryFile("w", prefix="hf-transformer-bench-", suffix=".json") as file:
            json.dump({"data": rows}, file)
            file.flush()
            flags = [
                *("-m", self.model.name, "-i", self._protocol, "--input-data", file.name),
                *("-u", triton.http_address if self._protocol == "http" else triton.grpc_address),
                *(f"--shared-memory={self._memory}", f"--output-shared-memory-size={size}"),
            ]
            return run_analyzer(self._analyzer, flags, variables(), cell.connections, seconds, self._successes)

    def _successes(self) -> int:
        """The number of Triton's answers for this model."""
        stats = json.loads(get(self.testbed.triton.http_port, f"/v2/models/{self.model.name}/stats"))["model_stats"][0]
        return int(stats["inference_stats"]["success"]["count"])
