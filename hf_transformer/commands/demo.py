"""``hf-transformer demo``: starts Triton with a demo model and the service, and sends a request.

Exit codes: 0 for an end after the answer (Ctrl-C, SIGTERM, --once), 1 for a failure, 2 for an invalid flag, 130 for
an earlier interruption. The demo always stops its processes and removes its files in /dev/shm.
"""

from __future__ import annotations

import argparse
import errno
import http.client
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hf_transformer.commands.flags import FlagParser
from hf_transformer.commands.local_service import service_running
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, exchange, reserved_port
from hf_transformer.config.option import Converter, integer
from hf_transformer.errors import LoadError
from hf_transformer.types.task_names import TASK_NAMES, task_name

if TYPE_CHECKING:
    from hf_transformer.tasks.declaration import Demo

ENVIRONMENT_VARIABLE = "HF_TRANSFORMER_TRITON_ENVIRONMENT"
CHECKOUT = Path(__file__).resolve().parents[2]

say = partial(print, flush=True)  # also if stdout is a pipe


DEFAULT_TASK = next(iter(TASK_NAMES))
ALL = "all"
"""The value of --task for all tasks in one service."""


def demos() -> Mapping[str, Demo]:
    """A request for each task by its name, with a plausible answer from the demo model."""
    from hf_transformer.generation.task import TASK_CLASSES  # needs libraries, and parse() does not

    return {name: task.demo for name, task in TASK_CLASSES.items()}


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the demo and return the exit code. Requires the main thread, for signal handlers."""
    settings = parse(argv, environ)
    with signals_noted() as interrupted, tempfile.TemporaryDirectory(prefix="hf-transformer-demo-") as folder:
        try:
            demonstrate(settings, environ, Path(folder), interrupted)
        except InterruptedError:
            say("Stopped before the answer.")
            return 130
        except LoadError as exc:
            print(f"The demo failed: {exc}\n(see hf-transformer demo --help)", file=sys.stderr, flush=True)
            return 1
    return 0


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse the flags. An invalid flag prints a message and exits with code 2."""
    parser = FlagParser(
        "demo", "Start a Triton Inference Server with a small trained model, and the service in front of it."
    )
    add = parser.add
    add(
        "task",
        Converter("NAME", "a task", lambda text: task_name(text, ALL)),
        help="the task to show, a value of --task of hf-transformer serve, or all of them in one service "
        f"[{DEFAULT_TASK}; with --model_dir that of its config.json]",
    )
    add(
        "model_dir",
        type=Path,
        metavar="PATH",
        help="show your own model: a folder of hf-transformer export, or of Triton's repository with the tokenizer",
    )
    add(
        "http_port",
        integer(0, 65535),
        default=8080,
        metavar="PORT",
        help="port of the service, or the next free one; 0: any free port [8080]",
    )
    add(
        "predictor_protocol",
        choices=("v2", "grpc-v2"),
        default="v2",
        help="protocol between service and Triton: REST or gRPC [v2]",
    )
    add_triton_environment(parser, environ)
    add(
        "model_repository",
        type=Path,
        metavar="PATH",
        help="Triton model repository with the task's model and its tokenizer, such as bert [the demo models]",
    )
    add("once", action="store_true", help="exit after the answer")
    settings = parser.parse_args(argv)
    if settings.model_dir is None:
        settings.task = settings.task or DEFAULT_TASK
        settings.model_repository = settings.model_repository or default_model_repository()
    elif settings.task == ALL or settings.model_repository is not None:
        flag = "--model_repository" if settings.model_repository is not None else f"--task={ALL}"
        parser.error(f"--model_dir shows one model, so it contradicts {flag}")
    return settings


def add_triton_environment(parser: FlagParser, environ: Mapping[str, str]) -> None:
    in_checkout = CHECKOUT / ".venv-triton"
    parser.add(
        "triton_environment",
        type=Path,
        default=environ.get(ENVIRONMENT_VARIABLE) or (in_checkout if in_checkout.is_dir() else None),
        metavar="PATH",
        help="folder of a Triton, such as /opt/tritonserver, or of a virtual environment with nvidia-pytriton and "
        f"numpy<2; variable {ENVIRONMENT_VARIABLE} [that of make install, else the running environment, else "
        "tritonserver on PATH]",
    )


def default_model_repository() -> Path:
    """The folder of the demo models, in the checkout or in the installed package."""
    in_checkout = CHECKOUT / "deploy" / "model_repository"
    return in_checkout if in_checkout.is_dir() else Path(__file__).resolve().parents[1] / "_model_repository"


@contextmanager
def signals_noted() -> Iterator[Callable[[], bool]]:
    """Record SIGINT, SIGTERM and SIGHUP; yield a function that reports whether a signal has arrived.

    An exception from a signal handler could lose a new child process or interrupt the cleanup.
    """
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP, and the demo must continue to ignore it.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                stack.callback(signal.signal, number, signal.signal(number, note))
        yield lambda: bool(arrived)


def demonstrate(
    settings: argparse.Namespace, environ: Mapping[str, str], folder: Path, interrupted: Callable[[], bool]
) -> None:
    """Start Triton and the service, and print the answer to a request. Without --once, serve until a signal.

    ``folder`` receives the logs. Raises InterruptedError for a signal before the answer, LoadError if Triton or the
    service does not start, does not answer or exits.
    """
    repository, entries = chosen_models(settings)
    models = {model.get("predictor_model", model["model_name"]) for model in entries}
    models |= {model["labels_model"] for model in entries if "labels_model" in model}
    say("Starting Triton ...")
    triton = LocalTriton(
        repository,
        environment=settings.triton_environment,
        models=sorted(models),
        # The demo models have a complete config.pbtxt. Auto-completion would start the model's process twice.
        options=["--disable-auto-complete-config"] if repository == default_model_repository() else (),
        environ=environ,
        log=folder / "triton.log",
        interrupted=interrupted,
    )
    with triton, service_ports(settings.http_port) as (port, grpc_port):
        say(f"Triton is ready: REST on {triton.http_address}, gRPC on {triton.grpc_address} ({triton.description})")
        if settings.http_port not in (0, port):
            say(f"Port {settings.http_port} is taken, so the service uses port {port}.")
        over_grpc = settings.predictor_protocol == "grpc-v2"
        flags = [
            f"--predictor_host={triton.grpc_address if over_grpc else triton.http_address}",
            f"--predictor_protocol={settings.predictor_protocol}",
            *("--enable_playground", "--enable_docs_url", "--enable_tokenize_timing"),
        ]
        if len(entries) > 1:
            file = folder / "models.json"
            file.write_text(json.dumps(entries, indent=2))
            flags.append(f"--models={file}")
        else:
            flags += [f"--{name}={value}" for name, value in entries[0].items()]
        ports = {"http_port": port, "grpc_port": grpc_port}
        with service_running(flags, environ, folder / "service.log", **ports, interrupted=interrupted) as service:
            say(
                f"The service is ready: http://{HOST}:{port} and grpc://{HOST}:{grpc_port}, "
                f"asking Triton over {settings.predictor_protocol}"
            )
            if settings.model_dir is None:
                examples = [demos()[model["task"]] for model in entries]
            else:
                examples = [own_example(port, entries[0]["model_name"])]
            for example in examples:
                ask(port, example)
            if settings.once:
                return
            example = examples[0]
            say(f"\nTry it in a browser at http://{HOST}:{port}/, or with curl:")
            say(f"curl http://{HOST}:{port}{example.path} -d {shlex.quote(example.body)}\n")
            say(f"Logs: {folder}/service.log, {folder}/triton.log\nServing until Ctrl-C.")
            while not interrupted():
                triton.child.require_running("Triton")
                service.require_running("the service")
                time.sleep(0.1)
            say("\nStopping ...")


def chosen_models(settings: argparse.Namespace) -> tuple[Path, list[dict[str, str]]]:
    """The model repository, and the entries of --models. Raises LoadError for a folder that can't be used."""
    if settings.model_dir is not None:
        folder = settings.model_dir.expanduser().resolve()
        return folder.parent, [own_entry(folder, settings.task)]
    known = demos()
    tasks = list(known) if settings.task == ALL else [settings.task]
    for model in [known[task].model for task in tasks]:
        if not (settings.model_repository / model / "config.pbtxt").is_file():
            raise LoadError(
                f"--model_repository={settings.model_repository}: expected Triton's model repository with {model}, the "
                f"demo model of the task, found no {model}/config.pbtxt; --model_dir=PATH shows a model of your own"
            )
    return settings.model_repository, [entry(task, settings.model_repository) for task in tasks]


def entry(task: str, repository: Path) -> dict[str, str]:
    """The flags of a task's model, as an entry of --models."""
    example = demos()[task]
    name = {"model_name": example.name, **({} if example.name == example.model else {"predictor_model": example.model})}
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in example.flags)
    return {**name, "model_dir": str(repository.absolute() / example.model), "task": task, **flags}


def own_entry(folder: Path, task: str | None) -> dict[str, str]:
    """The flags of the user's model. Raises LoadError for a folder that Triton or the service can't use."""
    from hf_transformer.tokenizer.files import LABELS_SUFFIX  # needs libraries, and parse() does not
    from hf_transformer.tokenizer.model_files import find_model_files

    where = f"--model_dir={folder}"
    if not folder.is_dir():
        raise LoadError(f"{where}: there is no such folder")
    if not (folder / "config.pbtxt").is_file():
        inner = ", ".join(sorted(path.parent.name for path in folder.glob("*/config.pbtxt")))
        hint = f"hf-transformer export --model_id={folder} --output=model_repository writes a folder with one"
        raise LoadError(f"{where} has no config.pbtxt: {f'name one of its models, {inner}' if inner else hint}")
    if not any(path.name.isdigit() and any(path.iterdir()) for path in folder.iterdir() if path.is_dir()):
        raise LoadError(f"{where} has no version of the model, such as 1/model.onnx")
    gliner = find_model_files(None, str(folder)).config.get("gliner")
    flags = {} if task is None else {"task": task}
    if isinstance(gliner, dict) and gliner.get("labels_encoder"):
        flags["labels_model"] = labels = f"{folder.name}{LABELS_SUFFIX}"
        if not (folder.parent / labels / "config.pbtxt").is_file():
            raise LoadError(f"{where} is a bi-encoder: expected its model of labels beside it, {labels}, as of export")
    return {"model_name": folder.name, "model_dir": str(folder), **flags}


def own_example(port: int, model: str) -> Demo:
    """The first request among the examples of a model, its own or those of its task."""
    from hf_transformer.tasks.declaration import Demo  # needs libraries, as above

    examples = json.loads(exchange(port, f"/v1/models/{model}/info")[1])["examples"]
    request = next(example["value"] for example in examples if "instances" in example["value"])
    return Demo(model, request["instances"][0], request.get("parameters", {}))


@contextmanager
def service_ports(wanted: int) -> Iterator[tuple[int, int]]:
    """Reserve a port for HTTP and one for gRPC. By default the ports in the documentation, if they are free."""
    with next_free_port(wanted) as port, next_free_port(port + 1 if wanted else 0) as grpc_port:
        yield port, grpc_port


@contextmanager
def next_free_port(wanted: int) -> Iterator[int]:
    """Reserve the first free port from ``wanted``, or any free port for 0. Raises LoadError without a free port."""
    with ExitStack() as stack:
        for port in range(wanted, min(wanted + 100, 65536)):
            try:
                reserved = stack.enter_context(reserved_port(port))
                break
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise LoadError(f"port {port} can't be used: {exc.strerror}") from exc
        else:
            raise LoadError(f"all ports from {wanted} to {min(wanted + 99, 65535)} are taken")
        yield reserved


def ask(port: int, example: Demo) -> None:
    """Send the request and print the answer. Raises LoadError without an answer or for a status other than 200."""
    say(f"\nRequest: POST {example.path}\n{example.body}")
    try:
        status, answer = exchange(port, example.path, example.body, seconds=20.0)
    except (OSError, http.client.HTTPException) as exc:
        raise LoadError(f"the service did not answer: {exc!r}") from exc
    say(f"Answer:\n{answer}")
    if status != 200:
        raise LoadError(f"the service answered with status {status}")
