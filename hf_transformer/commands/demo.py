"""``hf-transformer demo``: a real Triton with the demo model, the service in front of it, and one request.

    hf-transformer demo [--http_port 8080] [--predictor_protocol v2|grpc-v2] [--once]

Exit codes: 0 when it was ended after the answer (Ctrl-C, SIGTERM, --once), 1 when something failed, 2 for a bad flag,
130 when it was ended before there was an answer. However it ends, it leaves no process and no file in /dev/shm.
"""

from __future__ import annotations

import argparse
import errno
import http.client
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hf_transformer.commands.local_triton import HOST, LocalTriton, free_ports
from hf_transformer.commands.local_triton.child_process import ChildProcess
from hf_transformer.errors import LoadError

MODEL = "bert"
PATH = f"/v1/models/{MODEL}:predict"
BODY = json.dumps({"instances": ["The capital of france is [MASK]."]})
PROTOCOLS = ("v2", "grpc-v2")
ENVIRONMENT_VARIABLE = "HF_TRANSFORMER_TRITON_ENVIRONMENT"

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_CHECKOUT = Path(__file__).resolve().parents[2]
_PORTS_TRIED = 100
_READY_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
_GRACE_SECONDS = 15.0
_WATCH_SECONDS = 0.1


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the demo with the arguments that follow ``demo``; returns the exit code. Only in the main thread."""
    settings = parse(argv, environ)
    with StopSignals() as stop, tempfile.TemporaryDirectory(prefix="hf-transformer-demo-") as folder:
        try:
            return _demonstrate(settings, environ, Path(folder), stop)
        except InterruptedError:
            say("Stopped before there was an answer.")
            return EXIT_INTERRUPTED
        except LoadError as exc:
            print(f"The demo failed: {exc}", file=sys.stderr, flush=True)
            return EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Settings:
    """What the flags and variables say."""

    http_port: int
    predictor_protocol: str
    triton_environment: Path | None
    model_repository: Path
    once: bool


class StopSignals:
    """Notes SIGINT, SIGTERM and SIGHUP instead of raising, so that no signal, not even a second Ctrl-C, can come
    between starting a process and remembering it, or break off the clearing away.

    Calling it tells whether one has arrived.
    """

    def __init__(self) -> None:
        self._arrived = False
        self._former: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self._arrived

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup SIGHUP is ignored, and stays so.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived = True


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the flags, spelled with underscores or hyphens. Exits with code 2 and a message for a bad one."""
    parser = argparse.ArgumentParser(
        prog="hf-transformer demo",
        description="Start a Triton Inference Server with a small trained BERT, and the service in front of it.",
        allow_abbrev=False,
    )

    def add(flag: str, **more: Any) -> None:
        parser.add_argument(*dict.fromkeys([f"--{flag}", f"--{flag.replace('_', '-')}"]), dest=flag, **more)

    add("http_port", type=_port, default=8080, metavar="PORT", help="the next free one if taken; 0: any [8080]")
    add("predictor_protocol", choices=PROTOCOLS, default="v2", help="how the service talks to Triton [v2]")
    add(
        "triton_environment",
        type=Path,
        default=environ.get(ENVIRONMENT_VARIABLE) or _default_environment(),
        metavar="PATH",
        help=f"virtual environment with nvidia-pytriton and numpy<2; also variable {ENVIRONMENT_VARIABLE}; else that "
        "of make install, else the one that runs this, else tritonserver on PATH",
    )
    add(
        "model_repository",
        type=Path,
        default=default_model_repository(),
        metavar="PATH",
        help=f"Triton model repository with a model {MODEL!r} that has its tokenizer beside it",
    )
    add("once", action="store_true", help="end after the answer")
    return Settings(**vars(parser.parse_args(argv)))


def default_model_repository() -> Path:
    """The demo models: those of the checkout, else those that the wheel carries."""
    in_checkout = _CHECKOUT / "deploy" / "model_repository"
    return in_checkout if in_checkout.is_dir() else Path(__file__).resolve().parents[1] / "_model_repository"


def say(text: str) -> None:
    """Tell the user at once, also when stdout is a pipe."""
    print(text, flush=True)


def free_port(wanted: int) -> int:
    """``wanted``, or the next port above it that nobody listens on; 0 gives any free port.

    Raises LoadError when a port can't be used for another reason, or when too many are taken.
    """
    if wanted == 0:
        return free_ports(1)[0]
    for port in range(wanted, min(wanted + _PORTS_TRIED, 65536)):
        with socket.socket() as one:
            # As the service binds: a port whose last connections are only just closed counts as free.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise LoadError(f"port {port} can't be used: {exc.strerror}") from exc
            else:
                return port
    raise LoadError(f"the ports from {wanted} on are all taken")


def curl_line(port: int) -> str:
    """The demo's request, to be pasted into a shell."""
    return f"curl http://{HOST}:{port}{PATH} -d '{BODY}'"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _default_environment() -> Path | None:
    folder = _CHECKOUT / ".venv-triton"
    return folder if folder.is_dir() else None


def _demonstrate(settings: Settings, environ: Mapping[str, str], folder: Path, stop: StopSignals) -> int:
    say("Starting Triton ...")
    triton = LocalTriton(
        settings.model_repository,
        environment=settings.triton_environment,
        models=[MODEL],
        environ=environ,
        log=folder / "triton.log",
        interrupted=stop,
    )
    with triton:
        say(f"Triton is ready: REST on {triton.http_address}, gRPC on {triton.grpc_address} ({triton.description})")
        port = free_port(settings.http_port)
        if settings.http_port not in (0, port):
            say(f"Port {settings.http_port} is taken, so the service gets port {port}.")
        # The port that the documentation names, where it is free.
        grpc_port = free_port(port + 1 if settings.http_port else 0)
        command = _service_command(settings, triton, port, grpc_port)
        service = ChildProcess(command, {"LOG_LEVEL": "WARNING", **environ}, folder / "service.log")
        try:
            watch = Watch(triton, service, stop)
            _wait_until_ready(port, watch)
            say(
                f"The service is ready: http://{HOST}:{port} and grpc://{HOST}:{grpc_port}, "
                f"asking Triton over {settings.predictor_protocol}"
            )
            _ask(port)
            if not settings.once:
                say(f"\nTry it yourself:\n{curl_line(port)}\n")
                say(f"Logs: {folder}/service.log, {folder}/triton.log\nServing until Ctrl-C.")
                while not stop():
                    watch.pause()
                say("\nStopping ...")
        finally:
            # First the service, because Triton waits for connections that are still open.
            service.terminate(_GRACE_SECONDS)
    return 0


def _service_command(settings: Settings, triton: LocalTriton, port: int, grpc_port: int) -> list[str]:
    over_grpc = settings.predictor_protocol == "grpc-v2"
    return [
        *(sys.executable, "-m", "hf_transformer", "serve"),
        f"--model_name={MODEL}",
        f"--model_dir={settings.model_repository.absolute() / MODEL}",
        f"--predictor_host={triton.grpc_address if over_grpc else triton.http_address}",
        f"--predictor_protocol={settings.predictor_protocol}",
        "--tensor_input_names=input_ids",
        f"--host={HOST}",
        f"--http_port={port}",
        f"--grpc_port={grpc_port}",
    ]


@dataclass(frozen=True, slots=True)
class Watch:
    """Keeps an eye on both processes and on the signals while we wait."""

    triton: LocalTriton
    service: ChildProcess
    stop: StopSignals

    def pause(self) -> None:
        """Wait a moment. Raises LoadError, with the end of its log, when a process has ended by itself."""
        for name, child in (("Triton", self.triton.child), ("the service", self.service)):
            if child.exit_code is not None:
                raise LoadError(
                    f"{name} ended with exit code {child.exit_code}. The end of its log:\n{child.output_tail()}"
                )
        time.sleep(_WATCH_SECONDS)


def _wait_until_ready(port: int, watch: Watch) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not _is_ready(port):
        watch.pause()
        if watch.stop():
            raise InterruptedError("interrupted while the service was starting")
        if time.monotonic() > deadline:
            tail = watch.service.output_tail()
            raise LoadError(f"the service was not ready after {_READY_SECONDS:g} s. The end of its log:\n{tail}")


def _is_ready(port: int) -> bool:
    try:
        return _exchange(port, "GET", f"/v1/models/{MODEL}")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _ask(port: int) -> None:
    say(f"\nRequest: POST {PATH}\n{BODY}")
    try:
        status, answer = _exchange(port, "POST", PATH, BODY)
    except (OSError, http.client.HTTPException) as exc:
        raise LoadError(f"the service did not answer: {exc!r}") from exc
    say(f"Answer:\n{answer}")
    if status != 200:
        raise LoadError(f"the service answered with status {status}")


def _exchange(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
