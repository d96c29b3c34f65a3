"""Where the tests find the real Triton."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def triton_environment() -> Path | None:
    """The folder that HF_TRANSFORMER_TRITON_ENVIRONMENT names, else .venv-triton of the checkout, else None.

    None leaves the search to find_triton: the running environment, then PATH.
    """
    named = os.environ.get("HF_TRANSFORMER_TRITON_ENVIRONMENT")
    if named:
        return Path(named)
    beside = ROOT / ".venv-triton"
    return beside if beside.is_dir() else None
