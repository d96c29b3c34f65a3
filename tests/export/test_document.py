"""docs/export.md names the flags that there are, and their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_transformer.commands.export import command as export
from hf_transformer.commands.export.settings import TOP_K

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `--(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))


def test_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        export.parse(["--help"], {})
    flags = set(re.findall(r"^  --([a-z]+(?:_[a-z]+)*)", capsys.readouterr().out, re.MULTILINE))
    assert set(ROWS) == flags - {"help"}


def test_defaults() -> None:
    found = export.parse(["--model_id=org/m", "--output=x"], {})
    for name in ("format", "max_batch_size", "precision", "instances"):
        assert ROWS[name] == str(getattr(found, name))
    assert ROWS["dynamic_batching"] == "true" and found.dynamic_batching
    assert ROWS["top_k"] == str(TOP_K)
