"""``hf-transformer export``: writes a Hugging Face model as a folder that Triton serves, and verifies it.

Exit codes: 0 if the model's outputs equal the original's, 1 after an error, 2 for an invalid flag, 128+n after signal
n. The command never leaves an incomplete folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hf_transformer import __version__
from hf_transformer.commands.export.config_pbtxt import FILES, TOP_K, config_pbtxt
from hf_transformer.commands.export.gliner_folder import find_gliner, labels_target
from hf_transformer.commands.export.repository import fill, new_folders, require_free, require_loadable, triton_view
from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.option import BOOLEAN, TOKEN, integer, name_list, number
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.extras import install_command
from hf_transformer.predictor.registration import ALLOW_FLAG

if TYPE_CHECKING:  # these import torch
    from hf_transformer.commands.export.checkpoint import Checkpoint
    from hf_transformer.commands.export.graph import Graph
    from hf_transformer.commands.export.model_file import Sample

LIBRARIES = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}
"""Required libraries by format. The Python backend uses the last library."""
BACKENDS: Mapping[str, tuple[str, ...]] = {"onnx": ("onnxruntime", "python"), "torchscript": ("pytorch", "python")}
"""Triton backends by format. The first backend is the default."""
TOLERANCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""The default of --tolerance, by precision."""
EXPORT_FLAGS = {
    "--model_dir or --model_id": "--model_id",
    "--model_revision, --tokenizer_revision": "--revision",
    "--model_revision": "--revision",
    "--tokenizer_revision": "--revision",
    "--model_dir": "--model_id",
    "--hf_token": "--token",
}
"""Replacements for names of serve's flags in error messages of shared code."""
MANIFEST = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  predictor:
    model:
      modelFormat:
        name: triton
      protocolVersion: v2
      storageUri: {storage}
{image}\
  transformer:
    containers:
      - name: kserve-container
        image: hf-transformer:{version}
        args:
{arguments}\
          - --predictor_protocol=v2
          # The pod is ready only while Triton is, so it gets no request that it can't answer.
          - --enable_predictor_health_check=true
        env:
          # KServe mounts the same folder here, for the tokenizer.
          - name: STORAGE_URI
            value: {storage}
"""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exports a model and returns the exit code.

    Raises ConfigError for an invalid flag, LoadError for a failure to load, write or verify the model.
    """
    settings = parse(argv, environ)
    missing = [name for name in LIBRARIES[settings.format] if find_spec(name) is None]
    if missing:
        raise LoadError(f"export needs {', '.join(missing)}: {install_command('export')}")
    target = settings.output / settings.model_name
    require_target(target, settings)
    try:
        export(settings, target, Terminal(environ))
    except (ConfigError, LoadError) as error:  # from code shared with serve
        message = re.sub("|".join(EXPORT_FLAGS), lambda match: EXPORT_FLAGS[match[0]], str(error))
        raise type(error)(message) from error
    return 0


def require_target(target: Path, settings: Namespace) -> None:
    """Raises ConfigError if the folder ``target`` can't be written. Fails early, before the slow load of weights."""
    source = Path(settings.model_id)
    if source.is_dir() and source.resolve().is_relative_to(target.resolve()):
        raise ConfigError(
            f"--output: {target} would overwrite --model_id={settings.model_id}; choose another folder or --model_name"
        )
    require_free(target, force=settings.force)


def export(settings: Namespace, target: Path, terminal: Terminal) -> None:
    """Loads, writes and verifies the model. Raises ConfigError and LoadError, as ``run``."""
    with TemporaryDirectory(prefix="hf-transformer-export-") as scratch:
        _export(settings, target, terminal, Path(scratch))


def _export(settings: Namespace, target: Path, terminal: Terminal, scratch: Path) -> None:
    """``scratch`` is for files that the model's library writes."""
    targets = [target]
    with step(f"Loading {settings.model_id}", terminal) as results:
        gliner = find_gliner(settings)
        if gliner is not None:
            if second := labels_target(gliner, target):
                require_target(second, settings)
                targets.append(second)
            # torch warns on stderr that it knows no shapes of recurrent layers; verify() checks the result.
            os.putenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # which torch reads when it is imported
        # Lazy imports, because torch takes seconds to import.
        from hf_transformer.commands.export.checkpoint import load_checkpoint, with_remedy
        from hf_transformer.commands.export.graph import build_graph
        from hf_transformer.commands.export.model_file import take_samples

        if gliner is None:
            checkpoint = load_checkpoint(settings)
            graph = build_graph(checkpoint, settings)
            models = [(graph, partial(take_samples, graph, checkpoint, settings))]
        else:
            from hf_transformer.commands.export.gliner_model import gliner_graphs, load_gliner

            model = load_gliner(settings, gliner, scratch)
            checkpoint, models = model.checkpoint, gliner_graphs(model)
        weights = sum(parameter.numel() for parameter in checkpoint.model.parameters())
        results.append(f"{type(checkpoint.model).__name__}, {weights / 1e6:.1f} million weights, for {checkpoint.task}")
    # GLiNER models have no other format.
    helping = nullcontext if gliner else partial(with_remedy, checkpoint.files.config, settings.format)
    with new_folders(targets, force=settings.force) as folders:
        for folder, (graph, sample) in zip(folders, models, strict=True):
            _write(folder, graph, sample, checkpoint, settings, terminal, helping, is_first=folder is folders[0])
        views = [triton_view(folder, settings) for folder in folders]
    for name, value in checkpoint.changes.items():
        terminal.say(f"config.json: changed {name} to {value}, to match the exported model")
    for view in views:
        terminal.say(f"{view}.")
    ready = f"{target} is" if len(targets) == 1 else f"{target}, and {targets[1]} for its labels, are"
    terminal.say(f"\n{ready} ready. On this machine:\n\n{commands(target, settings, checkpoint.task)}")
    terminal.say(f"On a cluster with KServe:\n\n{manifest(settings, checkpoint.task)}")
    terminal.say(f"As one of several models, in the file of --models:\n\n{entry(target, settings, checkpoint.task)}")


def _write(
    folder: Path,
    graph: Graph,
    sample: Callable[[], list[Sample]],
    checkpoint: Checkpoint,
    settings: Namespace,
    terminal: Terminal,
    helping: Callable[[], AbstractContextManager[None]],
    *,
    is_first: bool,
) -> None:
    """Writes one model of Triton, and compares it with the original.

    Args:
        folder: the model's folder, named as the model.
        sample: runs the original on sample texts.
        helping: the context in which errors of torch are explained.
        is_first: whether it is the model of texts, with the service's files, and not a bi-encoder's model of labels.
    """
    from hf_transformer.commands.export.model_file import verify, write_model

    texts, what = ("texts", "it") if is_first else ("labels", "its encoder of labels")
    with step(f"Running {what} on sample {texts}", terminal, folder) as results, helping():
        samples = sample()
        results.append(f"{len(samples)} batches")
    path = folder / "1" / FILES[settings.format]
    written = path.name if is_first else f"{folder.name}/1/{path.name}"
    names = (", ".join(tensor.name for tensor in tensors) for tensors in (graph.inputs, graph.outputs))
    with step(f"Writing {written}: {' -> '.join(names)}", terminal, folder) as results:
        if settings.precision == "fp16":
            checkpoint.model.half()
        with helping():
            write_model(graph, path, settings.format, samples[0].inputs)
        named = Namespace(**{**vars(settings), "model_name": folder.name})
        config = config_pbtxt(graph.inputs, graph.outputs, named, checkpoint.task)
        fill(folder, config, checkpoint.files if is_first else None, settings, checkpoint.changes)
        if is_first:
            require_loadable(folder, checkpoint.tokenizer, settings)
        results.append(megabytes(path.parent))
    with step(f"Comparing {what} with the model", terminal, folder) as results, helping():
        difference = verify(graph, path, samples, settings)
        results.append(
            f"same outputs in {len(samples)} batches: the largest difference is {difference:.2g} "
            f"(tolerance {settings.tolerance:g})"
        )


@contextmanager
def step(title: str, terminal: Terminal, folder: Path | None = None) -> Iterator[list[str]]:
    """Prints ``title``, and after the block the text in the yielded list with the duration.

    On a terminal, a progress line shows the size of ``folder`` and the elapsed time.
    """
    began, ended, results = time.monotonic(), threading.Event(), list[str]()

    def watch(folder: Path) -> None:
        while not ended.wait(0.25):
            with suppress(OSError):  # a temporary file no longer exists
                terminal.progress(f"  {megabytes(folder)}, {time.monotonic() - began:.0f} s")

    terminal.say(f"{title} ...")
    watcher = threading.Thread(target=watch, args=(folder,)) if folder and terminal.live else None
    if watcher:
        watcher.start()
    try:
        yield results
    finally:
        ended.set()
        if watcher:
            watcher.join()
        terminal.clear()
    terminal.say(f"  {results[0]} ({time.monotonic() - began:.1f} s)")


def _flags(settings: Namespace, task: str) -> list[str]:
    """The service's flags for this model, without addresses and paths."""
    return [f"--model_name={settings.model_name}", *([] if settings.task is None else [f"--task={task}"])]


def commands(folder: Path, settings: Namespace, task: str) -> str:
    """Shell commands that start Triton and the service on this machine."""
    repository = folder.parent.resolve()
    locations = [f"--model_dir={repository / folder.name}", "--predictor_host=localhost:8000"]
    note = ""
    if settings.backend == "python":
        note = f"  # Triton's Python needs {LIBRARIES[settings.format][-1]} and numpy<2.\n"
    note += f"  # With Triton 26.04 and newer add {ALLOW_FLAG}, for large outputs. Older ones reject this flag.\n"
    service = shlex.join(["hf-transformer", *_flags(settings, task), *locations])
    return f"{note}  tritonserver --model-repository={shlex.quote(str(repository))}\n  {service}\n"


def entry(folder: Path, settings: Namespace, task: str) -> str:
    """The model's entry in the file of --models, in YAML."""
    values = {"model_name": settings.model_name, "model_dir": str(folder.parent.resolve() / folder.name)}
    values |= {} if settings.task is None else {"task": task}
    # A string of JSON is one of YAML. Without quotes, YAML reads some names as numbers or booleans.
    lines = "\n  ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return f"- {lines}\n"


def manifest(settings: Namespace, task: str) -> str:
    """A KServe InferenceService with the model repository as storage."""
    image = ""
    if settings.backend == "python":
        image = f"      # Triton's own image lacks Python's {LIBRARIES[settings.format][-1]}: set one that has it.\n"
    # Kubernetes names contain lower-case letters, digits and hyphens, and start with a letter.
    name = re.sub(r"[^a-z0-9]+", "-", settings.model_name.lower()).strip("-")
    return MANIFEST.format(
        name=name if name[:1].isalpha() else f"model-{name}".rstrip("-"),
        storage=json.dumps(f"pvc://models/{settings.output.resolve().name}"),
        image=image,
        version=__version__,
        arguments="".join(f"          - {json.dumps(flag)}\n" for flag in _flags(settings, task)),
    )


def megabytes(folder: Path) -> str:
    """The formatted size of all files in the folder."""
    return f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.1f} MB"


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Namespace:
    """Parses the flags. Exits with code 2 for an invalid flag. Raises ConfigError for contradictory flags."""
    flags = vars(_parser(environ).parse_args(argv))
    backends = BACKENDS[flags["format"]]
    backend = flags["backend"] or backends[0]
    if backend not in backends:
        raise ConfigError(f"--backend={backend}: expected {' or '.join(backends)} for --format={flags['format']}")
    name = flags["model_name"] or Path(flags["model_id"]).name
    if not re.fullmatch(r"""[^\s/?#%"'\\.][^\s/?#%"'\\]*""", name):
        raise ConfigError(
            f"--model_name={name}: expected a name without spaces, quotes and / \\ ? # %, and no dot first"
        )
    if flags["top_k"] is not None and not flags["reduce"]:
        raise ConfigError("--top_k: has no effect without --reduce")
    if backend == "python" and re.search(r"\s", str(flags["output"].resolve())):
        raise ConfigError(
            f"--output={flags['output']}: expected a path without spaces, in which Triton's Python backend can't start"
        )
    folder = Path(flags["model_id"]).expanduser()
    flags |= {
        "model_id": str(folder) if folder.is_dir() else flags["model_id"],
        "backend": backend,
        "model_name": name,
        "tolerance": TOLERANCES[flags["precision"]] if flags["tolerance"] is None else flags["tolerance"],
    }
    return Namespace(**flags)


def _parser(environ: Mapping[str, str]) -> FlagParser:
    parser = FlagParser(
        "export", "Export a Hugging Face model and its tokenizer as a folder that Triton serves, and verify the result."
    )
    add, count = parser.add, integer(1)
    add("model_id", required=True, metavar="ID", help="model on the Hugging Face hub, or local folder")
    add("output", required=True, type=Path, metavar="FOLDER", help="model repository that gets the model's folder")
    add("model_name", metavar="NAME", help="name of the model in Triton and in the service [the end of --model_id]")
    add(
        "task",
        metavar="NAME",
        help="task of the model, see hf-transformer --help=task [by the architecture in config.json]",
    )
    add("format", choices=tuple(BACKENDS), default="onnx", help="format of the model file [onnx]")
    add(
        "backend",
        choices=("onnxruntime", "pytorch", "python"),
        help="Triton's backend [onnxruntime for onnx, pytorch for torchscript]",
    )
    add("revision", metavar="REVISION", help="branch, tag or commit of --model_id [main]")
    names = name_list("NAMES", "different names separated by commas, such as input_ids,attention_mask")
    add("inputs", names, default=(), help="inputs of the written model [all that the model takes]")
    add("max_batch_size", count, default=32, help="most texts in a batch [32]")
    add("precision", choices=tuple(TOLERANCES), default="fp32", help="precision of weights and outputs [fp32]")
    add("instances", count, default=1, help="instances of the model in Triton, for each GPU or the CPU [1]")
    add("dynamic_batching", BOOLEAN, default=True, help="let Triton merge waiting requests [true]")
    add(
        "reduce",
        action="store_true",
        help="add the task's last step to the graph: responses of bytes instead of megabytes",
    )
    add("top_k", count, help=f"tokens for each mask, with --reduce and fill_mask [{TOP_K}]")
    add("tolerance", number(zero=True), help="largest difference between written and original model [0.001, fp16 0.05]")
    add("force", action="store_true", help="replace the model's folder if it exists")
    add("trust_remote_code", action="store_true", help="allow a model that brings its own Python code")
    add(
        "token",
        TOKEN,
        default=environ.get("HF_TOKEN"),
        help="token for private models; better set the variable HF_TOKEN",
    )
    return parser
