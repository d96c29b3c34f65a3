"""scripts/release, in a copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from hf_transformer import RELEASE
from scripts.release_files import key, set_version
from scripts.stable_surface import ROOT

pytestmark = pytest.mark.slow


def command(folder: Path, *words: str, **environ: str) -> str:
    """Runs a command in a folder, with this interpreter's environment first, and returns what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), **environ}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def git(folder: Path, *words: str) -> str:
    return command(folder, "git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout in a repository of their own, with a section for what is not released."""
    if not (ROOT / ".git").exists():
        pytest.skip("a package of the sources has no list of its files")
    folder = tmp_path_factory.mktemp("release")
    listed = command(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    return folder


def test_a_release_and_what_follows_it(copy: Path) -> None:
    changelog, upgrading = copy / "CHANGELOG.md", copy / "docs" / "upgrading.md"
    if "## [Unreleased]" not in changelog.read_text():
        command(copy, sys.executable, "-m", "scripts.release_files", "97.0.0.dev0")
    output = command(copy, sys.executable, "-m", "scripts.release_files", "98.0.0", "--date=2030-01-31")
    assert "README.md: figures of " in output, "they are of another version until they are measured again"
    assert command(copy, sys.executable, "-m", "hf_transformer", "--version") == "hf-transformer 98.0.0\n"
    assert "## [98.0.0] - 2030-01-31\n" in changelog.read_text() and "Unreleased" not in changelog.read_text()
    assert "## Unreleased" not in upgrading.read_text() and "scripts/surface" not in upgrading.read_text()
    assert "5 - Production/Stable" in (copy / "pyproject.toml").read_text()
    chart = yaml.safe_load((copy / "deploy" / "chart" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("98.0.0", "98.0.0")
    named = command(
        copy, "grep", "--recursive", "--no-filename", "hf-transformer:[0-9]*\\.", "deploy", "docs", "examples"
    )
    assert set(re.findall(r"hf-transformer:(\d+\.[\w.]+)", named)) == {"98.0.0"}
    assert [path.parent.name for path in (copy / "tests" / "stable").glob("*/flags.txt")] == ["98.0.0"]
    assert json.loads((copy / "tests" / "stable" / "98.0.0" / "starts.json").read_text())["containers"]
    starts = ["tests/stable/test_starts.py", "-p", "no:cacheprovider", "-q"]
    command(copy, sys.executable, "-m", "pytest", *starts)

    command(copy, sys.executable, "-m", "scripts.release_files", "98.1.0.dev0")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message=next")
    commit = git(copy, "rev-parse", "HEAD").strip()
    version = f"98.1.0.dev0+g{commit[:10]}"
    assert command(copy, sys.executable, "-m", "hf_transformer", "--version") == f"hf-transformer {version}\n"
    git(copy, "pack-refs", "--all")
    assert command(copy, sys.executable, "-m", "hf_transformer", "--version") == f"hf-transformer {version}\n"
    git(copy, "worktree", "add", "--quiet", "--detach", "second")
    assert command(copy / "second", sys.executable, "-m", "hf_transformer", "--version").endswith(f"{version}\n")
    assert changelog.read_text().index("## [Unreleased]") < changelog.read_text().index("## [98.0.0]")
    chart = yaml.safe_load((copy / "deploy" / "chart" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("98.1.0-dev.0", "98.1.0.dev0")
    command(copy, sys.executable, "-m", "pytest", "tests/stable/test_surface.py", *starts[1:])
    command(copy, "git", "worktree", "remove", "--force", "second")

    for name, environ in {"git": {}, "variable": {"SOURCE_REVISION": "0123456789abcdef"}}.items():
        target = copy / "build" / name
        command(copy, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target), **environ)
        (wheel,) = target.glob("hf_transformer-98.1.0.dev0-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            assert opened.read("hf_transformer/_commit").decode().strip() == (environ.get("SOURCE_REVISION") or commit)
            opened.extractall(target / "installed")
        shown = command(target / "installed", sys.executable, "-m", "hf_transformer", "--version")
        assert shown == f"hf-transformer 98.1.0.dev0+g{(environ.get('SOURCE_REVISION') or commit)[:10]}\n"


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "1.0.0rc1", "0.0.1", RELEASE])
def test_what_is_no_later_version_changes_nothing(version: str, copy: Path) -> None:
    before = command(copy, "git", "status", "--short")
    done = subprocess.run([sys.executable, "-m", "scripts.release_files", version], cwd=copy, capture_output=True)
    assert done.returncode == 2 and b"expected a version" in done.stderr
    assert command(copy, "git", "status", "--short") == before


def test_versions_have_an_order() -> None:
    ordered = ["0.16.0", "1.0.0.dev0", "1.0.0", "1.0.1", "1.1.0.dev0", "1.1.0", "1.10.0", "2.0.0.dev0"]
    assert sorted(reversed(ordered), key=key) == ordered


def test_a_version_in_other_words_stays(tmp_path: Path) -> None:
    (tmp_path / "hf_transformer").mkdir()
    (tmp_path / "hf_transformer" / "__init__.py").write_text('RELEASE = "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('"Development Status :: 4 - Beta",\n')
    for folder in ("deploy", "examples", "docs", ".github"):
        (tmp_path / folder).mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text(
        "hf-transformer:1.2.0 hf-transformer:1.2.0-slim hf-transformer:1.2.0.5 h11==1.2.0 (version 1.2.0)\n"
    )
    set_version(tmp_path, "1.2.0", "1.3.0")
    assert page.read_text() == (
        "hf-transformer:1.3.0 hf-transformer:1.3.0-slim hf-transformer:1.2.0.5 h11==1.2.0 (version 1.2.0)\n"
    )
