"""The service as a process, with no predictor behind it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from hf_transformer.commands.child_process import poll, session_members
from tests.support.polling import SECONDS as SECONDS
from tests.support.service import NOBODY as NOBODY
from tests.support.service import Service, flags_for

MODEL_FOLDER = Path(__file__).parents[3] / "deploy" / "model_repository" / "bert"
PID = re.compile(r"Started server process \[(\d+)\]")


def service_with(*flags: str, grpc: bool = False, environ: dict[str, str] | None = None) -> Service:
    """A service for the demo model."""
    more = (f"--enable_grpc={grpc}", *flags)
    return Service(*flags_for("bert", MODEL_FOLDER, NOBODY, "v2", more), environ=environ, forked=False)


def started(service: Service, workers: int) -> bool:
    """Waits until so many workers have started, those that were replaced included."""
    return poll(lambda: service.log.count("startup complete") == workers, SECONDS)


def signal_to(service: Service, number: signal.Signals) -> None:
    if service.process.exit_code is None:
        os.kill(service.process.pid, number)


def exit_code_of(service: Service) -> int:
    """Waits for the end, of its workers too."""
    assert service.process.wait(SECONDS), service.log
    code = service.process.exit_code
    assert code is not None
    # A worker would be left in the session that the service began.
    assert poll(lambda: not session_members(service.process.pid), SECONDS)
    assert "Traceback" not in service.log
    return code


def new_certificate(folder: Path, name: str) -> tuple[str, str]:
    """``folder``/tls.crt and tls.key for localhost, whose common name is ``name``."""
    folder.mkdir()
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    more = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key, certificate = str(folder / "tls.key"), str(folder / "tls.crt")
    files = ["-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *more, *files], check=True, capture_output=True)
    return certificate, key
