"""``hf-transformer export``: a model's weights as a folder for Triton, with the tokenizer beside them.

    hf-transformer export --model_id=bert-base-uncased --output=model_repository --model_name=bert

Exit codes: 0 when the folder is there and gives what the model gives, 1 when something failed, 2 for a bad flag.
However it ends, nothing half-written stays.
"""

from __future__ import annotations

import argparse
import math
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from hf_transformer.commands.export.folder import new_folder, require_free
from hf_transformer.commands.export.settings import BACKENDS, FILES, TOP_K, ExportSettings
from hf_transformer.errors import ConfigError, LoadError

NEEDED = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}
"""What each format needs beside the service's own libraries."""
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exports one model; returns the exit code.

    Raises:
        ConfigError: a flag has a bad value, or the task can't be exported so.
        LoadError: the model can't be loaded or written, or what was written differs from it.
        SystemExit: SIGTERM or SIGHUP came; 128 and its number.
    """
    settings = parse(argv, environ)
    missing = [name for name in NEEDED[settings.format] if find_spec(name) is None]
    if missing:
        raise LoadError(f"export needs {', '.join(missing)}: pip install 'hf-transformer[export]'")
    target = settings.output / settings.model_name
    require_replaceable(settings, target)  # before the weights are loaded
    with _tidy_end():
        _export(settings, target)
    return 0


def require_replaceable(settings: ExportSettings, target: Path) -> None:
    """Raises ConfigError if the new folder would take the place of what is not to go."""
    source = Path(settings.model_id)
    if source.is_dir() and source.resolve().is_relative_to(target.resolve()):
        raise ConfigError(
            f"--output: {target} is where --model_id={settings.model_id} lies, which would be gone; choose another "
            "folder or --model_name"
        )
    require_free(target, force=settings.force)


@contextmanager
def _tidy_end() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the program as Ctrl-C does, so that what is half-written goes away."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _export(settings: ExportSettings, target: Path) -> None:
    """Everything that needs torch, which takes seconds to import."""
    steps = Steps()
    steps.begin(f"Loading {settings.model_id}")
    from hf_transformer.commands.export.building import build_graph
    from hf_transformer.commands.export.checkpoint import load_checkpoint
    from hf_transformer.commands.export.repository import fill, require_loadable
    from hf_transformer.commands.export.samples import take_samples
    from hf_transformer.commands.export.serving import commands, manifest
    from hf_transformer.commands.export.verifying import verify
    from hf_transformer.commands.export.writers import write_model

    checkpoint = load_checkpoint(settings)
    graph = build_graph(checkpoint, settings)
    weights = sum(one.numel() for one in checkpoint.model.parameters())
    steps.end(f"{type(checkpoint.model).__name__}, {weights / 1e6:.1f} million weights, for {checkpoint.task}")
    with new_folder(target, force=settings.force) as folder:
        steps.begin("Asking it for the answers to sample texts")
        samples = take_samples(graph, checkpoint, settings)
        steps.end(f"{len(samples)} batches")
        path = folder / "1" / FILES[settings.format]
        steps.begin(f"Writing {path.name}: {graph}")
        if settings.precision == "fp16":
            checkpoint.model.half()
        write_model(graph, path, settings.format, samples[0].inputs)
        fill(folder, graph, checkpoint.files, checkpoint.task, settings)
        require_loadable(folder, checkpoint.tokenizer, settings)
        steps.end(f"{sum(one.stat().st_size for one in path.parent.iterdir()) / 1e6:.1f} MB")
        steps.begin("Comparing it with the model")
        found = verify(graph, path, samples, settings)
        steps.end(
            f"the same in {found.batches} batches: the largest difference is {found.difference:.2g} "
            f"(tolerance {found.tolerance:g})"
        )
    say(f"\n{target} is ready. On this machine:\n\n{commands(target, settings, checkpoint.task)}")
    say(f"On a cluster with KServe:\n\n{manifest(settings, checkpoint.task)}")


class Steps:
    """Says at once what is being done, and after it what came of it and how long it took."""

    def __init__(self) -> None:
        self._since = 0.0

    def begin(self, what: str) -> None:
        self._since = time.monotonic()
        say(f"{what} ...")

    def end(self, result: str) -> None:
        say(f"  {result} ({time.monotonic() - self._since:.1f} s)")


def say(text: str) -> None:
    """Tells the user at once, also when stdout is a pipe."""
    print(text, flush=True)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> ExportSettings:
    """Reads the flags, spelled with underscores or hyphens. Exits with code 2 and a message for an unknown one.

    Raises:
        ConfigError: flags contradict each other.
    """
    given = vars(_parser(environ).parse_args(argv))
    backend = given["backend"] or BACKENDS[given["format"]][0]
    if backend not in BACKENDS[given["format"]]:
        able = " or ".join(BACKENDS[given["format"]])
        raise ConfigError(f"--backend={backend}: does not run --format={given['format']}, expected {able}")
    name = given["model_name"] or Path(given["model_id"]).name
    if not re.fullmatch(r"""[^\s/?#%"'\\.][^\s/?#%"'\\]*""", name):
        raise ConfigError(
            f"--model_name={name}: expected a name without spaces, quotes and / \\ ? # %, and no dot first"
        )
    if given["top_k"] is not None and not given["reduce"]:
        raise ConfigError("--top_k: belongs to --reduce, which is not set")
    if backend == "python" and re.search(r"\s", str(given["output"].resolve())):
        raise ConfigError(f"--output={given['output']}: a path with spaces, where Triton's Python backend can't start")
    local = Path(given["model_id"]).expanduser()
    source = str(local) if local.is_dir() else given["model_id"]
    return ExportSettings(**{**given, "model_id": source, "backend": backend, "model_name": name})


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-transformer export",
        description="Export a Hugging Face model for Triton, with the tokenizer beside it, and check the result.",
        allow_abbrev=False,
    )

    def add(flag: str, **more: Any) -> None:
        parser.add_argument(*dict.fromkeys([f"--{flag}", f"--{flag.replace('_', '-')}"]), dest=flag, **more)

    add("model_id", required=True, metavar="ID", help="model on the Hugging Face hub, or a local folder")
    add("output", required=True, type=Path, metavar="FOLDER", help="model repository to write the model's folder into")
    add("model_name", metavar="NAME", help="name of the model in Triton and in the service [the end of --model_id]")
    add("task", metavar="NAME", help="what the model does [by the architecture in config.json]")
    add("format", choices=tuple(BACKENDS), default="onnx", help="what is written [onnx]")
    add("backend", choices=("onnxruntime", "pytorch", "python"), help="Triton's backend [that of the format]")
    add("revision", metavar="REVISION", help="a branch, tag or commit of --model_id [main]")
    add("inputs", type=_names, default=(), metavar="NAMES", help="the model's inputs, with commas [all that it takes]")
    add("max_batch_size", type=_positive, default=32, metavar="N", help="texts in one batch [32]")
    add("precision", choices=("fp32", "fp16"), default="fp32", help="of the weights and outputs [fp32]")
    add("instances", type=_positive, default=1, metavar="N", help="copies of the model in Triton [1]")
    add(
        "dynamic_batching",
        type=_truth,
        default=True,
        metavar="BOOLEAN",
        help="let Triton run waiting requests together [true]",
    )
    add("reduce", action="store_true", help="end the graph in the task's own reduction: bytes instead of megabytes")
    add("top_k", type=_positive, metavar="K", help=f"tokens per mask of a reduced fill_mask model [{TOP_K}]")
    add("tolerance", type=_difference, metavar="X", help="difference that is taken for the same [0.001, fp16 0.05]")
    add("force", action="store_true", help="replace the model's folder if it is there")
    add("trust_remote_code", action="store_true", help="allow a model that comes with Python code of its own")
    add(
        "token",
        default=environ.get("HF_TOKEN"),
        metavar="TOKEN",
        help="for private models; better the variable HF_TOKEN",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _positive(text: str) -> int:
    """As argparse's types are: a ValueError is for what is no number."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small, expected 1 or more")
    return number


def _difference(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text}, expected a number from 0 up")
    return number


def _truth(text: str) -> bool:
    try:
        return TRUTHS[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected true or false") from None
