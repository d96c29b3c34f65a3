"""The advised command installs an extra from where this installation came."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.extras import PACKAGE, install_command

METADATA = """\
Metadata-Version: 2.4
Name: hf-transformer
Version: 0
Provides-Extra: structured
Provides-Extra: otel
Requires-Dist: numpy>=1.26
Requires-Dist: llguidance>=1.9.1; extra == 'structured'
Requires-Dist: jsonschema>=4.23; extra == "structured"
Requires-Dist: opentelemetry-sdk>=1.40; extra == 'otel'
"""


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, origin: dict[str, Any] | None) -> None:
    """Has Python find an installation with this record of its origin."""
    information = folder / "hf_transformer-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    if origin is not None:
        (information / "direct_url.json").write_text(json.dumps(origin))
    found = importlib.metadata.Distribution.at(information)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)


COMMIT = "0" * 40


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'hf-transformer[structured]'"),
        ({"url": "file:///{}/a%20b", "dir_info": {}}, "pip install '{}/a b[structured]'"),
        ({"url": "file:///{}/a%20b", "dir_info": {"editable": True}}, "pip install --editable '{}/a b[structured]'"),
        (
            {"url": "file:///{}/x.whl", "archive_info": {}},
            "pip install 'hf-transformer[structured] @ file:///{}/x.whl'",
        ),
        (
            {"url": "https://code.example/x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"pip install 'hf-transformer[structured] @ git+https://code.example/x@{COMMIT}'",
        ),
        ({"url": "file:///{}/gone", "dir_info": {}}, "pip install 'llguidance>=1.9.1' 'jsonschema>=4.23'"),
    ],
    ids=["an index", "a checkout", "an editable checkout", "a wheel", "a repository of git", "a checkout that is gone"],
)
def test_the_command_names_the_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, Any] | None, command: str
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "x.whl").touch()
    folder = str(tmp_path)
    if origin is not None:
        origin = {**origin, "url": origin["url"].replace("/{}", folder)}
    installed(monkeypatch, tmp_path, origin)
    assert install_command("structured") == command.replace("/{}", folder).replace("{}", folder)


def test_in_the_checkout_its_name_is_a_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, {"url": tmp_path.as_uri(), "dir_info": {}})
    monkeypatch.chdir(tmp_path)
    assert install_command("otel") == "pip install '.[otel]'"


def test_a_checkout_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """Without site-packages Python finds the package, and no record of an installation."""
    script = "from hf_transformer.extras import install_command as named; print(named('export'))"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = [p for p in sys.path if p]; {script}"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(PACKAGE.parent)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert shlex.split(done.stdout)[-1] == f"{PACKAGE.parent}[export]", done.stderr
