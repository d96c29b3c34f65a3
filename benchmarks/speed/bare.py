"""The predictor without anything in front of it: what a client of Triton gets."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence

from benchmarks.speed.analyzer import COMPARED, MOST_IN_FLIGHT, run_analyzer, run_program
from benchmarks.speed.bodies import Body, Region, binary
from benchmarks.speed.cases import Case, Cell, Model
from benchmarks.speed.http_calls import get, post
from benchmarks.speed.load import Load
from benchmarks.speed.subjects import Ground, Subject, WithWrk
from hf_transformer.commands.local_triton import SHARED_MEMORY

REGION_BYTES = 256 * 2**20
"""At most so much for the outputs of wrk's requests. Two in flight may then share a place; nobody reads it."""


class Direct(WithWrk):
    """wrk sends tensors in Triton's binary form; outputs come back inline, or in shared memory."""

    kind = "bare"

    def __init__(self, name: str, ground: Ground, model: Model, shared_memory: bool) -> None:
        super().__init__(name, ground, model)
        self._shared = shared_memory
        self._bodies: dict[Case, list[Body]] = {}
        self._regions: list[Region] = []

    def url(self) -> str:
        return f"http://{self.ground.triton.http_address}{self._path()}"

    def _path(self) -> str:
        return f"/v2/models/{self.model.name}/infer"

    def bodies(self, case: Case) -> list[Body]:
        if case not in self._bodies:
            ids = self.ground.ids_of(case)
            region = self._register(self.model.output_bytes(case.tokens), len(ids)) if self._shared else None
            self._bodies[case] = binary(self.model, ids, region)
        return self._bodies[case]

    def prepare(self, case: Case) -> None:
        """Registers its memory again if it is gone, and touches all of it."""
        known = {region["name"] for region in get(self.ground.triton.http_port, f"{_MEMORY}/status")}
        if any(region.name not in known for region in self._regions):
            self.stop()
            for body in self.bodies(case):
                post(self.ground.triton.http_port, self._path(), body)
        super().prepare(case)

    def check(self, case: Case) -> None:
        shape = post(self.ground.triton.http_port, self._path(), self.bodies(case)[0])["outputs"][0]["shape"]
        if shape[-1] != self.model.width:
            raise ValueError(f"{case.name}: the output has the shape {shape}")

    def stop(self) -> None:
        """The files go in any case; Triton may be gone, or refuse because a request is still under way."""
        regions = list(self._regions)
        self._regions.clear()
        self._bodies.clear()
        for region in regions:
            (SHARED_MEMORY / region.name).unlink(missing_ok=True)
        for region in regions:
            post(self.ground.triton.http_port, f"{_MEMORY}/region/{region.name}/unregister", Body(b"{}"))

    def _register(self, slot_bytes: int, wanted: int) -> Region:
        slots = max(1, min(wanted, REGION_BYTES // slot_bytes))
        region = Region(f"hf_transformer_bench_{os.getpid()}_{secrets.token_hex(4)}", slot_bytes, slots)
        size = slots * slot_bytes
        with (SHARED_MEMORY / region.name).open("xb") as file:
            self._regions.append(region)
            os.posix_fallocate(file.fileno(), 0, size)
        content = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": size}).encode()
        post(self.ground.triton.http_port, f"{_MEMORY}/region/{region.name}/register", Body(content))
        return region


_MEMORY = "/v2/systemsharedmemory"


class _WithTokens(Subject):
    """A client that sends the same number of tokens every time."""

    kind = "bare"

    def __init__(
        self, name: str, ground: Ground, model: Model, command: Sequence[str], protocol: str, shared_memory: bool
    ) -> None:
        super().__init__(name, ground, model)
        self._command = command
        self._protocol = protocol
        self._shared = shared_memory

    def takes(self, cell: Cell) -> bool:
        return cell.case.lengths != "mixed"

    def warm_up(self, cell: Cell) -> None:
        """Done within every run."""

    def check(self, case: Case) -> None:
        """Its answers stay within it: that Triton answers rightly is checked by others."""

    @property
    def _address(self) -> str:
        triton = self.ground.triton
        return triton.http_address if self._protocol == "http" else triton.grpc_address

    @property
    def _memory(self) -> str:
        return "system" if self._shared else "none"


class PerfAnalyzer(_WithTokens):
    """NVIDIA's load generator, in C++."""

    def takes(self, cell: Cell) -> bool:
        """The shortest texts alone, and gRPC where it is compared: each of its runs takes some seconds."""
        return (
            cell.case.lengths == "9"
            and cell.connections <= MOST_IN_FLIGHT
            and (self._protocol == "http" or cell.connections in COMPARED)
        )

    def measure(self, cell: Cell, seconds: int) -> Load:
        tokens = cell.case.tokens
        flags = [
            *("-m", self.model.name, "-u", self._address, "-i", self._protocol),
            *("--shape", f"input_ids:{tokens}", "--shape", f"attention_mask:{tokens}"),
            *(f"--shared-memory={self._memory}", f"--output-shared-memory-size={self.model.output_bytes(tokens)}"),
        ]
        return run_analyzer(self._command, flags, self.ground.environ, cell, seconds, self._successes)

    def _successes(self) -> int:
        """Requests that Triton has answered for this model."""
        statistics = get(self.ground.triton.http_port, f"/v2/models/{self.model.name}/stats")["model_stats"][0]
        return int(statistics["inference_stats"]["success"]["count"])


class PythonClient(_WithTokens):
    """A client in Python, NVIDIA's or the least that there can be, one call after the other."""

    def takes(self, cell: Cell) -> bool:
        return super().takes(cell) and cell.connections == 1

    def measure(self, cell: Cell, seconds: int) -> Load:
        tokens = cell.case.tokens
        output = run_program(
            [
                *self._command,
                *(f"--url={self._address}", f"--protocol={self._protocol}", f"--shared_memory={self._memory}"),
                *(f"--model={self.model.name}", f"--output={self.model.output}", f"--tokens={tokens}"),
                *(f"--output_bytes={self.model.output_bytes(tokens)}", f"--seconds={seconds}"),
            ],
            self.ground.environ,
        )
        return Load(**json.loads(output.splitlines()[-1]))
