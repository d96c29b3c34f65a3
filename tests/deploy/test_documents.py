"""The pages about running the service: that the flags, metrics and files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_transformer.config.options import all_options

ROOT = Path(__file__).parents[2]
PAGES = (
    "SECURITY.md",
    "deploy/README.md",
    "docs/coming_from_kserve.md",
    "docs/metrics.md",
    "docs/operations.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page: str) -> None:
    known = {name for option in all_options() for name in (option.name, *option.aliases)}
    # Flags of one word are other programs' too, and theirs have hyphens where ours have underscores.
    named = set(re.findall(r"--([a-z]+(?:_[a-z]+)+)\b", (ROOT / page).read_text()))
    assert named
    assert named <= known


def test_metrics_that_operations_names_are_listed() -> None:
    listed = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    named = set(re.findall(r"`(hf_transformer_\w+)`", (ROOT / "docs" / "operations.md").read_text()))
    assert named
    assert named <= listed
