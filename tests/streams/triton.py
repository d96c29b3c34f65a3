"""A real Triton with the small decoupled and unary models beside this file, which need no weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_transformer.commands.local_triton import LocalTriton
from tests.triton_environment import triton_environment

FOLDER = Path(__file__).parent / "model_repository"


def lay_out(target: Path) -> None:
    """Builds a repository of all of them in ``target``."""
    for config in sorted(FOLDER.glob("*/config.pbtxt")):
        version = target / config.parent.name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(config, version.parent / "config.pbtxt")
        code = "text_model.py" if config.parent.name.endswith("text") else "tokens_model.py"
        shutil.copyfile(FOLDER / code, version / "model.py")
        shutil.copyfile(FOLDER / "worker.py", version / "worker.py")


def stream_triton(folder: Path) -> LocalTriton:
    """The server, still to be entered; ``folder`` is empty and gets its repository."""
    lay_out(folder)
    return LocalTriton(
        folder, environment=triton_environment(), config_name=None, options=("--disable-auto-complete-config",)
    )
