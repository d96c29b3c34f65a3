"""``hf-transformer export``: a model's weights as a folder for Triton, with the tokenizer beside them.

Exit codes: 0 if the folder is there and gives the same as the model, 1 if something failed, 2 for a bad flag, 128 and
the number of a signal that ended it. It leaves no part of a folder, however it ends.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hf_transformer.commands.export.config_pbtxt import FILES, TOP_K, config_pbtxt
from hf_transformer.commands.export.repository import fill, new_folder, require_free, require_loadable, triton_view
from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.option import BOOLEAN, TOKEN, integer, name_list, number
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.predictor.shared_memory import ALLOW_FLAG

LIBRARIES = {"onnx": ("torch", "onnx", "onnxruntime"), "torchscript": ("torch",)}
"""What each format needs beside the service's own libraries; the last one is what the Python backend runs it with."""
BACKENDS: Mapping[str, tuple[str, ...]] = {"onnx": ("onnxruntime", "python"), "torchscript": ("pytorch", "python")}
"""Triton's backends that run each format, the default first."""
TOLERANCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""The default of --tolerance by precision."""
SERVES_FLAGS = {
    "--model_dir or --model_id": "--model_id",
    "--model_revision, --tokenizer_revision": "--revision",
    "--model_revision": "--revision",
    "--tokenizer_revision": "--revision",
    "--model_dir": "--model_id",
    "--hf_token": "--token",
}
"""Flags of serve in messages of shared code, and those of export that mean the same."""
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
        image: hf-transformer:latest
        args:
{arguments}\
          - --predictor_protocol=v2
          # Not ready while Triton is not, so that no request is sent to a pod that can't answer it.
          - --enable_predictor_health_check=true
        env:
          # Filled with the same folder: the tokenizer is in it.
          - name: STORAGE_URI
            value: {storage}
"""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exports one model; returns the exit code. Raises ConfigError if a flag has a bad value or the task can't be
    exported so, LoadError if the model can't be loaded or written, or the written one differs from it."""
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
    except (ConfigError, LoadError) as error:  # of code that serve uses too
        message = re.sub("|".join(SERVES_FLAGS), lambda found: SERVES_FLAGS[found[0]], str(error))
        raise type(error)(message) from error
    return 0


def export(settings: Namespace, target: Path, terminal: Terminal) -> None:
    """Everything that needs torch, which takes seconds to import. Raises as ``run``."""
    with step(f"Loading {settings.model_id}", terminal) as results:
        from hf_transformer.commands.export.checkpoint import load_checkpoint, with_remedy
        from hf_transformer.commands.export.graph import build_graph
        from hf_transformer.commands.export.model_file import take_samples, verify, write_model

        checkpoint = load_checkpoint(settings)
        graph = build_graph(checkpoint, settings)
        weights = sum(one.numel() for one in checkpoint.model.parameters())
        results.append(f"{type(checkpoint.model).__name__}, {weights / 1e6:.1f} million weights, for {checkpoint.task}")
    helping = partial(with_remedy, checkpoint.files.config, settings.format)
    with new_folder(target, force=settings.force) as folder:
        with step("Asking it for the answers to sample texts", terminal, folder) as results, helping():
            samples = take_samples(graph, checkpoint, settings)
            results.append(f"{len(samples)} batches")
        path = folder / "1" / FILES[settings.format]
        names = (", ".join(tensor.name for tensor in tensors) for tensors in (graph.inputs, graph.outputs))
        with step(f"Writing {path.name}: {' -> '.join(names)}", terminal, folder) as results:
            if settings.precision == "fp16":
                checkpoint.model.half()
            with helping():
                write_model(graph, path, settings.format, samples[0].inputs)
            config = config_pbtxt(graph.inputs, graph.outputs, settings, checkpoint.task)
            fill(folder, config, checkpoint.files, settings, checkpoint.changes)
            require_loadable(folder, checkpoint.tokenizer, settings)
            results.append(megabytes(path.parent))
        with step("Comparing it with the model", terminal, folder) as results, helping():
            difference = verify(graph, path, samples, settings)
            results.append(
                f"the same in {len(samples)} batches: the largest difference is {difference:.2g} "
                f"(tolerance {settings.tolerance:g})"
            )
        view = triton_view(folder, settings)
    for name, value in checkpoint.changes.items():
        terminal.say(f"config.json: {name} is {value}, as the exported model has it")
    terminal.say(f"{view.replace(folder.name, target.name, 1)}.")
    terminal.say(f"\n{target} is ready. On this machine:\n\n{commands(target, settings, checkpoint.task)}")
    terminal.say(f"On a cluster with KServe:\n\n{manifest(settings, checkpoint.task)}")


@contextmanager
def step(what: str, terminal: Terminal, folder: Path | None = None) -> Iterator[list[str]]:
    """Says what begins, and at the end the text that the block has appended, and how long it took.

    With a ``folder`` a terminal shows the time and how much is in it, meanwhile. A download shows its own progress.
    """
    began, ended, results = time.monotonic(), threading.Event(), list[str]()

    def watch(folder: Path) -> None:
        while not ended.wait(0.25):
            with suppress(OSError):  # a file that is gone again
                terminal.progress(f"  {megabytes(folder)}, {time.monotonic() - began:.0f} s")

    terminal.say(f"{what} ...")
    watching = threading.Thread(target=watch, args=(folder,)) if folder and terminal.live else None
    if watching:
        watching.start()
    try:
        yield results
    finally:
        ended.set()
        if watching:
            watching.join()
        terminal.clear()
    terminal.say(f"  {results[0]} ({time.monotonic() - began:.1f} s)")


def _flags(settings: Namespace, task: str) -> list[str]:
    """The service's flags for this model, without the place of its folder."""
    return [f"--model_name={settings.model_name}", *([] if settings.task is None else [f"--task={task}"])]


def commands(folder: Path, settings: Namespace, task: str) -> str:
    """Triton on this machine, and the service in front of it."""
    repository = folder.parent.resolve()
    places = [f"--model_dir={repository / folder.name}", "--predictor_host=localhost:8000"]
    note = ""
    if settings.backend == "python":
        note = f"  # Triton's Python needs {LIBRARIES[settings.format][-1]} and numpy<2.\n"
    note += f"  # Triton 26.04 and newer: add {ALLOW_FLAG}, for large outputs. Older ones do not start with it.\n"
    service = shlex.join(["hf-transformer", *_flags(settings, task), *places])
    return f"{note}  tritonserver --model-repository={shlex.quote(str(repository))}\n  {service}\n"


def manifest(settings: Namespace, task: str) -> str:
    """An InferenceService; its storage has the model repository with the model's folder."""
    image = ""
    if settings.backend == "python":
        image = (
            f"      # Triton's own image has no {LIBRARIES[settings.format][-1]} in its Python: name one that has.\n"
        )
    # Kubernetes wants lower-case letters, digits and hyphens, a letter first.
    name = re.sub(r"[^a-z0-9]+", "-", settings.model_name.lower()).strip("-")
    return MANIFEST.format(
        name=name if name[:1].isalpha() else f"model-{name}".rstrip("-"),
        storage=json.dumps(f"pvc://models/{settings.output.resolve().name}"),
        image=image,
        arguments="".join(f"          - {json.dumps(flag)}\n" for flag in _flags(settings, task)),
    )


def megabytes(folder: Path) -> str:
    """Of all files in the folder."""
    return f"{sum(one.stat().st_size for one in folder.rglob('*') if one.is_file()) / 1e6:.1f} MB"


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Namespace:
    """Reads the flags. Exits with code 2 and a message for an unknown one or a value that is none. Raises ConfigError
    where flags contradict each other."""
    given = vars(_parser(environ).parse_args(argv))
    backends = BACKENDS[given["format"]]
    backend = given["backend"] or backends[0]
    if backend not in backends:
        raise ConfigError(
            f"--backend={backend}: does not run --format={given['format']}, expected {' or '.join(backends)}"
        )
    name = given["model_name"] or Path(given["model_id"]).name
    if not re.fullmatch(r"""[^\s/?#%"'\\.][^\s/?#%"'\\]*""", name):
        raise ConfigError(
            f"--model_name={name}: expected a name without spaces, quotes and / \\ ? # %, and no dot first"
        )
    if given["top_k"] is not None and not given["reduce"]:
        raise ConfigError("--top_k: belongs to --reduce, which is not set")
    if backend == "python" and re.search(r"\s", str(given["output"].resolve())):
        raise ConfigError(f"--output={given['output']}: a path with spaces, where Triton's Python backend can't start")
    folder = Path(given["model_id"]).expanduser()
    given |= {
        "model_id": str(folder) if folder.is_dir() else given["model_id"],
        "backend": backend,
        "model_name": name,
        "tolerance": TOLERANCES[given["precision"]] if given["tolerance"] is None else given["tolerance"],
    }
    return Namespace(**given)


def _parser(environ: Mapping[str, str]) -> FlagParser:
    parser = FlagParser(
        "export", "Export a Hugging Face model for Triton, with the tokenizer beside it, and check the result."
    )
    add, count = parser.add, integer(1)
    add("model_id", required=True, metavar="ID", help="model on the Hugging Face hub, or a local folder")
    add("output", required=True, type=Path, metavar="FOLDER", help="model repository to write the model's folder into")
    add("model_name", metavar="NAME", help="name of the model in Triton and in the service [the end of --model_id]")
    add("task", metavar="NAME", help="what the model does [by the architecture in config.json]")
    add("format", choices=tuple(BACKENDS), default="onnx", help="format of the model file [onnx]")
    add("backend", choices=("onnxruntime", "pytorch", "python"), help="Triton's backend [that of the format]")
    add("revision", metavar="REVISION", help="a branch, tag or commit of --model_id [main]")
    names = name_list("NAMES", "different names separated by commas, such as input_ids,attention_mask")
    add("inputs", names, default=(), help="the model's inputs, with commas [all that it takes]")
    add("max_batch_size", count, default=32, help="texts in one batch [32]")
    add("precision", choices=tuple(TOLERANCES), default="fp32", help="of the weights and outputs [fp32]")
    add("instances", count, default=1, help="copies of the model in Triton [1]")
    add("dynamic_batching", BOOLEAN, default=True, help="let Triton run waiting requests together [true]")
    add("reduce", action="store_true", help="end the graph in the task's own reduction: bytes instead of megabytes")
    add("top_k", count, help=f"tokens per mask of a reduced fill_mask model [{TOP_K}]")
    add("tolerance", number(zero=True), help="largest difference that counts as the same [0.001, fp16 0.05]")
    add("force", action="store_true", help="replace the model's folder if it is there")
    add("trust_remote_code", action="store_true", help="allow a model that comes with Python code of its own")
    add("token", TOKEN, default=environ.get("HF_TOKEN"), help="for private models; better: HF_TOKEN")
    return parser
