"""Lays out the models and runs the service in front of them.

The tokenizer is the demo model's, of 1,024 tokens. Models: classifiers of LABELS labels that differ in how long they
take, and one embedding model. What they do is in model.py.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from benchmarks.pairs import Checkout
from hf_transformer.commands.local_triton import HOST, ChildProcess, LocalTriton, poll

ROOT: Final = Path(__file__).parents[2]
DEMO: Final = ROOT / "deploy" / "model_repository" / "bert"
LABELS: Final = 64
WIDTH: Final = 64
VOCABULARY: Final = 1024
MAX_BATCH_SIZE: Final = 32
START_SECONDS: Final = 60.0
LISTENING: Final = re.compile(r"listening on http://[\d.]+:(\d+)")
GRPC_LISTENING: Final = re.compile(r"listening on grpc://[\d.]+:(\d+)")


@dataclass(frozen=True, slots=True)
class Model:
    """A synthetic model. ``microseconds`` is what each padded token takes."""

    name: str
    architecture: str
    microseconds: float = 0.0
    max_batch_size: int = MAX_BATCH_SIZE

    @property
    def embeds(self) -> bool:
        """Whether it gives a vector per token, and not one of LABELS labels per text."""
        return self.architecture == "BertModel"


def lay_out(target: Path, models: Sequence[Model]) -> Path:
    """Fill target/triton (the model repository, returned) and target/<model> (tokenizer and config.json)."""
    repository = target / "triton"
    for model in models:
        version = repository / model.name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name("model.py"), version / "model.py")
        (version.parent / "config.pbtxt").write_text(_triton_config(model))
        if model.embeds:
            np.save(version / "table.npy", embedding_table())
        _hugging_face(target / model.name, model)
    return repository


def embedding_table() -> np.ndarray:
    """The vector of every token: FP32 [VOCABULARY, WIDTH]."""
    return np.random.default_rng(7).normal(0.0, 1.0, (VOCABULARY, WIDTH)).astype(np.float32)


def _triton_config(model: Model) -> str:
    output = ("last_hidden_state", f"-1, {WIDTH}") if model.embeds else ("logits", str(LABELS))
    inputs = [
        f'input {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }}' for name in ("input_ids", "attention_mask")
    ]
    return "\n".join(
        [
            f'name: "{model.name}"\nbackend: "python"\nmax_batch_size: {model.max_batch_size}',
            *inputs,
            f'output {{ name: "{output[0]}" data_type: TYPE_FP32 dims: [ {output[1]} ] }}',
            "dynamic_batching { }\ninstance_group [ { count: 1, kind: KIND_CPU } ]",
            f'parameters {{ key: "microseconds" value {{ string_value: "{model.microseconds}" }} }}\n',
        ]
    )


def _hugging_face(folder: Path, model: Model) -> None:
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(DEMO / name, folder / name)
    config = json.loads((DEMO / "config.json").read_text())
    config["architectures"] = [model.architecture]
    if not model.embeds:
        config["id2label"] = {str(label): f"L{label}" for label in range(LABELS)}
        config["label2id"] = {f"L{label}": label for label in range(LABELS)}
    (folder / "config.json").write_text(json.dumps(config))


class Service:
    """``python -m hf_transformer`` before one model; a context manager that ends it again."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        triton: LocalTriton,
        *flags: str,
        protocol: str = "v2",
        checkout: Checkout | None = None,
    ) -> None:
        """``checkout``: another version of the service, with this one's Python."""
        self.model = model.name
        address = triton.http_address if protocol == "v2" else triton.grpc_address
        command = [
            *(checkout.command(Path(sys.executable), own_python=False) if checkout else [sys.executable]),
            *("-m", "hf_transformer", f"--host={HOST}", "--http_port=0", "--grpc_port=0"),
            *(f"--model_name={model.name}", f"--model_dir={folder / model.name}"),
            *(f"--predictor_host={address}", f"--predictor_protocol={protocol}", *flags),
        ]
        self._ports: dict[re.Pattern[str], int] = {}
        self._log = folder / f"{model.name}-{protocol}-{time.monotonic_ns()}.log"
        environ = _environ(folder)
        self.process = ChildProcess(command, checkout.environ(environ) if checkout else environ, self._log)

    def wait(self) -> Self:
        """Returns when the model is ready. Raises SystemExit with the end of the log if it does not get there."""
        ready = poll(lambda: self.process.exit_code is not None or self._is_ready(), START_SECONDS)
        if not ready or self.process.exit_code is not None:
            raise SystemExit(f"the service did not start:\n{self.process.output_tail()}")
        return self

    def _is_ready(self) -> bool:
        if not LISTENING.search(self.process.output()):
            return False
        try:
            return self.get(f"/v1/models/{self.model}")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    @property
    def port(self) -> int:
        """Of HTTP."""
        return self._said(LISTENING)

    @property
    def grpc_address(self) -> str:
        """host:port."""
        return f"{HOST}:{self._said(GRPC_LISTENING)}"

    def _said(self, pattern: re.Pattern[str]) -> int:
        if pattern not in self._ports:  # the log becomes long
            found = pattern.search(self.process.output())
            if found is None:
                raise SystemExit(f"no port in the log:\n{self.process.output_tail()}")
            self._ports[pattern] = int(found[1])
        return self._ports[pattern]

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30.0)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate(30.0)


def _environ(folder: Path) -> Mapping[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
