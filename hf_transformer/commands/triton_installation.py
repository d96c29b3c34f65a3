"""Search for a tritonserver on this machine: in a virtual environment, or on PATH."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.extras import install_command

PROGRAM = "tritonserver"
ENVIRONMENT_FLAG = "--triton_environment"
"""The flag of demo and bench for ``LocalTriton.environment``."""

# Script for the Python of an environment. find_spec does not import pytriton.
PROBE = """
import importlib.metadata as m, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("pytriton")
try: numpy = m.version("numpy")
except m.PackageNotFoundError: numpy = None
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "pytriton": spec and list(spec.submodule_search_locations)[0],
    "numpy": numpy,
    "libdir": sysconfig.get_config_var("LIBDIR"),
}))
"""


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver on this machine, with its command and variables."""

    description: str
    program: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    stub: Path | None = None
    """The stub program for the environment's Python in pytriton's wheel. A complete Triton needs no separate stub."""


def find_triton(environment: Path | None, environ: Mapping[str, str], *, any_numpy: bool = False) -> TritonInstallation:
    """Find a tritonserver in ``environment``. By default, search the running environment, then PATH.

    ``environment`` is the folder of a whole Triton, such as /opt/tritonserver of its image, the program in it, or a
    virtual environment with nvidia-pytriton and, unless ``any_numpy`` is True, numpy below 2. Triton receives the
    variables in ``environ`` except PYTHON*. Raises LoadError with installation advice without a usable tritonserver.
    """
    # By default, onnxruntime 1.29 and newer send telemetry to Microsoft and write an identifier to HOME.
    variables = {"ORT_DISABLE_TELEMETRY": "1", "PATH": os.defpath}
    variables |= {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    if environment is not None:
        for program in (environment, environment / "bin" / PROGRAM):
            if program.name == PROGRAM and program.is_file() and os.access(program, os.X_OK):
                return TritonInstallation(str(program), [str(program.absolute())], variables)
        python = environment / "bin" / "python"
        if not python.exists():
            problem = (
                f"{environment} is neither a Triton nor a virtual environment: it has no bin/{PROGRAM} or {python}"
            )
            raise LoadError(f"{ENVIRONMENT_FLAG}: {problem}. {_advice()}")
        return _in_environment(python, variables, any_numpy=any_numpy)
    if importlib.util.find_spec("pytriton") is not None:
        return _in_environment(Path(sys.executable), variables, any_numpy=any_numpy)
    found = shutil.which(PROGRAM, path=variables["PATH"])
    if found is None:
        raise LoadError(
            f"found no tritonserver: nvidia-pytriton is not installed in {sys.prefix}, and the program is not on PATH. "
            f"{_advice()}"
        )
    return TritonInstallation(found, [found], variables)


def _advice() -> str:
    beside = Path(".venv-triton")
    known = f", such as {beside}, which is here" if (beside / "bin" / "python").exists() else ""
    return (
        f"Name a virtual environment with nvidia-pytriton and numpy below 2 by {ENVIRONMENT_FLAG}=PATH{known}. In a "
        "checkout make install makes one, .venv-triton; elsewhere: python3 -m venv triton && triton/bin/pip install "
        "--no-deps nvidia-pytriton && triton/bin/pip install 'numpy<2' onnxruntime. Or install both here: "
        f"{install_command('demo')}"
    )


def _in_environment(python: Path, variables: Mapping[str, str], *, any_numpy: bool) -> TritonInstallation:
    try:
        command = [str(python), "-I", "-c", PROBE]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        raise LoadError(f"{python} does not run: {exc}") from exc
    facts = json.loads(answer.stdout)
    folder = python.parent.parent
    if facts["pytriton"] is None:
        raise LoadError(f"{ENVIRONMENT_FLAG}: nvidia-pytriton is not installed in {folder}. {_advice()}")
    if not any_numpy and (facts["numpy"] is None or int(facts["numpy"].partition(".")[0]) >= 2):
        raise LoadError(
            f"{folder} has numpy {facts['numpy']}, but Triton's Python models return empty tensors without numpy 1. "
            f"Install it there: {folder}/bin/pip install 'numpy<2', or name another environment by {ENVIRONMENT_FLAG}"
        )
    server = Path(facts["pytriton"]) / "tritonserver"
    stub = server / "python_backend_stubs" / facts["version"] / "triton_python_backend_stub"
    if not stub.exists():
        known = ", ".join(sorted(path.name for path in stub.parents[1].glob("*")))
        raise LoadError(
            f"the nvidia-pytriton in {folder} supports Python {known}, not {facts['version']}: make a virtual "
            f"environment with one of these, and name it by {ENVIRONMENT_FLAG}"
        )
    # The stub embeds Python, and the loader does not search libpython's folder by itself.
    libraries = [str(server.parents[1] / "nvidia_pytriton.libs"), facts["libdir"], variables.get("LD_LIBRARY_PATH")]
    return TritonInstallation(
        f"nvidia-pytriton in {folder}",
        # env sets LD_LIBRARY_PATH, because the launcher's Python must not load these libraries.
        ["env", f"LD_LIBRARY_PATH={os.pathsep.join(filter(None, libraries))}", str(server / "bin" / "tritonserver")],
        {**variables, "PATH": f"{python.parent}{os.pathsep}{variables['PATH']}"},
        stub,
    )
