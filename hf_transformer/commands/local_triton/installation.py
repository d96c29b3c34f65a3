"""Where a tritonserver can be found on this machine, and what it needs to run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hf_transformer.errors import LoadError

_ADVICE = (
    "Install it with: pip install 'hf-transformer[demo]', or in an environment of its own: "
    "pip install --no-deps nvidia-pytriton && pip install 'numpy<2' onnxruntime"
)

# Asked of an environment's own Python, so nothing of it is imported here. find_spec does not import pytriton.
_PROBE = """
import importlib.metadata as m, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("pytriton")
try: numpy = m.version("numpy")
except m.PackageNotFoundError: numpy = None
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "pytriton": spec and list(spec.submodule_search_locations)[0],
    "numpy": numpy,
    "library_folder": sysconfig.get_config_var("LIBDIR"),
}))
"""


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver program and its surroundings."""

    executable: Path
    description: str
    python_folder: Path | None = None
    """The folder with the Python that models of the Python backend run in; None leaves PATH as it is."""
    library_folders: tuple[Path, ...] = ()
    """What LD_LIBRARY_PATH needs."""
    backend: Path | None = None
    """The wheel's Python backend, without its stub; None: the program has its backends beside it."""
    stub: Path | None = None
    """The stub program that fits the version of the Python in ``python_folder``."""

    def lay_out_backends(self, folder: Path) -> Path:
        """Put the backend and the stub together in ``folder``, as Triton wants them; returns the backend directory.

        The wheel carries one stub per version of Python, beside the backend instead of in it.
        """
        if self.backend is None or self.stub is None:
            raise ValueError(f"{self.description} has its own backends")
        target = folder / "backends"
        shutil.copytree(self.backend, target / "python", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(self.stub, target / "python" / self.stub.name)
        return target

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with what the program needs added, LD_LIBRARY_PATH included."""
        path = environ.get("PATH", os.defpath)
        variables = {
            # From 1.29 on, onnxruntime's wheels report to Microsoft and write an identifier into HOME,
            # unless told not to.
            "ORT_DISABLE_TELEMETRY": "1",
            # PYTHONPATH and the like are meant for our Python, not for that of the models.
            **{name: value for name, value in environ.items() if not name.startswith("PYTHON")},
            "PATH": os.pathsep.join([str(self.python_folder), path]) if self.python_folder else path,
        }
        libraries = [str(folder) for folder in self.library_folders]
        libraries += filter(None, [environ.get("LD_LIBRARY_PATH")])
        return {**variables, "LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else variables


def find_triton(environment: Path | None, environ: Mapping[str, str]) -> TritonInstallation:
    """Find a tritonserver: in ``environment``, else in the environment that runs us, else on PATH.

    ``environment`` is the folder of a virtual environment with nvidia-pytriton and numpy below 2; when it is given,
    nothing else is looked at. Raises LoadError, naming what to install, when there is none or when it can't work.
    """
    if environment is not None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise LoadError(f"{environment} is not a virtual environment: there is no {python}. {_ADVICE}")
        return _in_environment(python)
    if importlib.util.find_spec("pytriton") is not None:
        return _in_environment(Path(sys.executable))
    program = shutil.which("tritonserver", path=environ.get("PATH", os.defpath))
    if program is None:
        raise LoadError(f"there is no tritonserver: neither nvidia-pytriton here nor the program on PATH. {_ADVICE}")
    return TritonInstallation(executable=Path(program), description=program)


def _in_environment(python: Path) -> TritonInstallation:
    found = _ask(python)
    folder = python.parent.parent
    if found.pytriton is None:
        raise LoadError(f"nvidia-pytriton is not installed in {folder}. {_ADVICE}")
    if found.numpy is None or int(found.numpy.partition(".")[0]) >= 2:
        raise LoadError(
            f"{folder} has numpy {found.numpy}, but under anything but numpy 1 the tensors of Triton's Python models "
            "arrive empty. Install there: pip install 'numpy<2'"
        )
    package = Path(found.pytriton)
    server = package / "tritonserver"
    stub = server / "python_backend_stubs" / found.version / "triton_python_backend_stub"
    if not stub.exists():
        known = ", ".join(sorted(path.name for path in stub.parents[1].glob("*")))
        raise LoadError(f"the nvidia-pytriton in {folder} supports Python {known}, not {found.version}")
    libraries = [package.parent / "nvidia_pytriton.libs"]
    if found.library_folder:
        # The stub embeds Python: a libpython outside the system's folders has to be named.
        libraries.append(Path(found.library_folder))
    return TritonInstallation(
        executable=server / "bin" / "tritonserver",
        description=f"nvidia-pytriton in {folder}",
        python_folder=python.parent,
        library_folders=tuple(libraries),
        backend=server / "backends" / "python",
        stub=stub,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an environment's Python says of itself."""

    version: str
    pytriton: str | None
    numpy: str | None
    library_folder: str | None


def _ask(python: Path) -> _Answer:
    command = [str(python), "-I", "-c", _PROBE]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        raise LoadError(f"{python} does not run: {exc}") from exc
    return _Answer(**json.loads(answer.stdout))
