"""``hf-transformer export``: a model's weights as a folder for Triton, with the tokenizer beside them.

    hf-transformer export --model_id=bert-base-uncased --output=model_repository --model_name=bert

Exit codes: 0 if the folder is there and gives the same as the model, 1 if something failed, 2 for a bad flag, 128 and
the number of a signal that ended it. It leaves no part of a folder, however it ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from hf_transformer.commands.export.config_pbtxt import config_pbtxt
from hf_transformer.commands.export.repository import fill, new_folder, require_free, require_loadable
from hf_transformer.commands.export.serving import commands, manifest
from hf_transformer.commands.export.settings import FILES, ExportSettings, parse
from hf_transformer.errors import ConfigError, LoadError

LIBRARIES = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}
"""What each format needs beside the service's own libraries."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exports one model; returns the exit code.

    Raises:
        ConfigError: a flag has a bad value, or the task can't be exported so.
        LoadError: the model can't be loaded or written, or what was written differs from it.
        SystemExit: SIGTERM or SIGHUP came; 128 and its number.
    """
    settings = parse(argv, environ)
    missing = [name for name in LIBRARIES[settings.format] if find_spec(name) is None]
    if missing:
        raise LoadError(f"export needs {', '.join(missing)}: pip install 'hf-transformer[export]'")
    target = settings.output / settings.model_name
    source = Path(settings.model_id)
    if source.is_dir() and source.resolve().is_relative_to(target.resolve()):
        raise ConfigError(
            f"--output: {target} is where --model_id={settings.model_id} lies, which would be gone; choose another "
            "folder or --model_name"
        )
    require_free(target, force=settings.force)  # before the weights are loaded
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _end))
        export(settings, target)
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """Unwinds the program, as Ctrl-C does, so that unfinished files are removed."""
    raise SystemExit(128 + number)


def export(settings: ExportSettings, target: Path) -> None:
    """Everything that needs torch, which takes seconds to import. Raises as ``run``."""
    step = ExportStep(f"Loading {settings.model_id}")
    from hf_transformer.commands.export.checkpoint import load_checkpoint
    from hf_transformer.commands.export.graph import build_graph
    from hf_transformer.commands.export.verifying import take_samples, verify
    from hf_transformer.commands.export.writers import write_model

    checkpoint = load_checkpoint(settings)
    graph = build_graph(checkpoint, settings)
    weights = sum(one.numel() for one in checkpoint.model.parameters())
    step.done(f"{type(checkpoint.model).__name__}, {weights / 1e6:.1f} million weights, for {checkpoint.task}")
    with new_folder(target, force=settings.force) as folder:
        step = ExportStep("Asking it for the answers to sample texts")
        samples = take_samples(graph, checkpoint, settings)
        step.done(f"{len(samples)} batches")
        path = folder / "1" / FILES[settings.format]
        names = (", ".join(tensor.name for tensor in tensors) for tensors in (graph.inputs, graph.outputs))
        step = ExportStep(f"Writing {path.name}: {' -> '.join(names)}")
        if settings.precision == "fp16":
            checkpoint.model.half()
        write_model(graph, path, settings.format, samples[0].inputs)
        config = config_pbtxt(graph.inputs, graph.outputs, settings, checkpoint.task)
        fill(folder, config, checkpoint.files, settings)
        require_loadable(folder, checkpoint.tokenizer, settings)
        step.done(f"{sum(one.stat().st_size for one in path.parent.iterdir()) / 1e6:.1f} MB")
        step = ExportStep("Comparing it with the model")
        difference = verify(graph, path, samples, settings)
        step.done(
            f"the same in {len(samples)} batches: the largest difference is {difference:.2g} "
            f"(tolerance {settings.tolerance:g})"
        )
    say(f"\n{target} is ready. On this machine:\n\n{commands(target, settings, checkpoint.task)}")
    say(f"On a cluster with KServe:\n\n{manifest(settings, checkpoint.task)}")


class ExportStep:
    """Says what begins, and later what came of it and how long it took."""

    def __init__(self, what: str) -> None:
        self._began = time.monotonic()
        say(f"{what} ...")

    def done(self, result: str) -> None:
        say(f"  {result} ({time.monotonic() - self._began:.1f} s)")


def say(text: str) -> None:
    """Prints at once, also when stdout is a pipe."""
    print(text, flush=True)
