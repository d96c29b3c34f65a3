"""``hf-transformer export``: a model's weights as a folder for Triton, with the tokenizer beside them.

    hf-transformer export --model_id=bert-base-uncased --output=model_repository --model_name=bert

Exit codes: 0 if the folder is there and gives the same as the model, 1 if something failed, 2 for a bad flag, 128 and
the number of a signal that ended it. It leaves no part of a folder, however it ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from hf_transformer.commands.export.config_pbtxt import config_pbtxt
from hf_transformer.commands.export.repository import fill, new_folder, require_free, require_loadable
from hf_transformer.commands.export.serving import commands, manifest
from hf_transformer.commands.export.settings import FILES, ExportSettings, parse
from hf_transformer.commands.terminal import Terminal
from hf_transformer.errors import ConfigError, LoadError

LIBRARIES = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}
"""What each format needs beside the service's own libraries."""


SERVES_FLAGS = {
    "--model_dir or --model_id": "--model_id",
    "--model_revision, --tokenizer_revision": "--revision",
    "--model_revision": "--revision",
    "--tokenizer_revision": "--revision",
    "--model_dir": "--model_id",
    "--hf_token": "--token",
}
"""Flags of serve in messages of shared code, and those of export that mean the same."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exports one model; returns the exit code.

    Raises:
        ConfigError: a flag has a bad value, or the task can't be exported so.
        LoadError: the model can't be loaded or written, or what was written differs from it.
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
    try:
        export(settings, target, Terminal(environ))
    except (ConfigError, LoadError) as error:
        raise type(error)(in_own_flags(str(error))) from error
    return 0


def in_own_flags(message: str) -> str:
    """A message of code that serve uses too, with this command's flags."""
    return re.sub("|".join(SERVES_FLAGS), lambda found: SERVES_FLAGS[found[0]], message)


def export(settings: ExportSettings, target: Path, terminal: Terminal) -> None:
    """Everything that needs torch, which takes seconds to import. Raises as ``run``."""
    step = ExportStep(f"Loading {settings.model_id}", terminal)
    from hf_transformer.commands.export.checkpoint import load_checkpoint
    from hf_transformer.commands.export.graph import build_graph
    from hf_transformer.commands.export.verifying import take_samples, verify
    from hf_transformer.commands.export.writers import bytes_counted, layers_counted, write_model

    checkpoint = load_checkpoint(settings)
    graph = build_graph(checkpoint, settings)
    weights = sum(one.numel() for one in checkpoint.model.parameters())
    step.done(f"{type(checkpoint.model).__name__}, {weights / 1e6:.1f} million weights, for {checkpoint.task}")
    with new_folder(target, force=settings.force) as folder:
        step = ExportStep("Asking it for the answers to sample texts", terminal)
        with layers_counted(checkpoint.model, step.progress):
            samples = take_samples(graph, checkpoint, settings)
        step.done(f"{len(samples)} batches")
        path = folder / "1" / FILES[settings.format]
        names = (", ".join(tensor.name for tensor in tensors) for tensors in (graph.inputs, graph.outputs))
        step = ExportStep(f"Writing {path.name}: {' -> '.join(names)}", terminal)
        if settings.precision == "fp16":
            checkpoint.model.half()
        with layers_counted(checkpoint.model, step.progress), bytes_counted(path.parent, step.progress):
            write_model(graph, path, settings.format, samples[0].inputs)
        config = config_pbtxt(graph.inputs, graph.outputs, settings, checkpoint.task)
        fill(folder, config, checkpoint.files, settings)
        require_loadable(folder, checkpoint.tokenizer, settings)
        step.done(f"{sum(one.stat().st_size for one in path.parent.iterdir()) / 1e6:.1f} MB")
        step = ExportStep("Comparing it with the model", terminal)
        difference = verify(graph, path, samples, settings, step.progress)
        step.done(
            f"the same in {len(samples)} batches: the largest difference is {difference:.2g} "
            f"(tolerance {settings.tolerance:g})"
        )
    terminal.say(f"\n{target} is ready. On this machine:\n\n{commands(target, settings, checkpoint.task)}")
    terminal.say(f"On a cluster with KServe:\n\n{manifest(settings, checkpoint.task)}")


class ExportStep:
    """Says what begins, how far it is (on a terminal), and later what came of it and how long it took."""

    def __init__(self, what: str, terminal: Terminal) -> None:
        self._began = time.monotonic()
        self._terminal = terminal
        terminal.say(f"{what} ...")

    def progress(self, text: str) -> None:
        """Shows how far it is."""
        self._terminal.progress(f"  {text}, {time.monotonic() - self._began:.0f} s")

    def done(self, result: str) -> None:
        self._terminal.say(f"  {result} ({time.monotonic() - self._began:.1f} s)")
