"""Serves a tiny test model in front of a real Triton until Ctrl-C; see scripts/try_task."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hf_transformer.commands.local_triton import LocalTriton
from tests.triton_environment import triton_environment
from tests.triton_repository import lay_out, task_model_folder, task_model_names


def main(model: str, flags: list[str]) -> int:
    """Runs the service with its log on the terminal; the exit code is the service's."""
    with tempfile.TemporaryDirectory(prefix="hf-transformer-try-") as folder:
        lay_out(Path(folder), [model])
        with LocalTriton(Path(folder), environment=triton_environment(), config_name=None) as triton:
            own = [f"--model_name={model}", f"--model_dir={task_model_folder(model)}", "--host=127.0.0.1"]
            command = [sys.executable, "-m", "hf_transformer", *own, f"--predictor_host={triton.http_address}", *flags]
            with subprocess.Popen(command) as service:
                while True:
                    try:
                        return service.wait()
                    except KeyboardInterrupt:
                        service.terminate()  # which a service that had the signal too does not mind


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in task_model_names():
        raise SystemExit(f"usage: scripts/try_task MODEL [FLAG ...], with MODEL one of {', '.join(task_model_names())}")
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
