"""scripts/package_files: archives, notes, licences and checksums of a release. scripts/package makes a whole one."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
from pathlib import Path

import helm_python
import pytest

from scripts.package_files import EPOCH, archive, checksums, licences, notes
from scripts.stable_surface import ROOT


def test_an_archive_is_equal_in_every_byte_when_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    for name in ("b/c.html", "a.html", "b/__pycache__/c.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    archive(folder, tmp_path / "first.tar.gz", "site")
    for path in folder.rglob("*.html"):
        os.utime(path, (time.time() + 100, time.time() + 100))
        path.chmod(0o600)
    archive(folder, tmp_path / "second.tar.gz", "site")
    assert (tmp_path / "first.tar.gz").read_bytes() == (tmp_path / "second.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "first.tar.gz") as files:
        assert files.getnames() == ["site/a.html", "site/b/c.html"]
        assert {(entry.mtime, entry.mode, entry.uid) for entry in files.getmembers()} == {(EPOCH, 0o644, 0)}


def test_the_package_of_the_chart_has_what_helm_packs(tmp_path: Path) -> None:
    archive(ROOT / "deploy" / "chart", tmp_path / "chart.tgz", "hf-transformer")
    with tarfile.open(helm_python.package(ROOT / "deploy" / "chart", destination=tmp_path)) as theirs:
        expected = set(theirs.getnames())
    with tarfile.open(tmp_path / "chart.tgz") as ours:
        assert set(ours.getnames()) == expected
    with helm_python.Chart.load(tmp_path / "chart.tgz") as chart:
        assert "hf-transformer/templates/deployment.yaml" in chart.render({}, name="a", namespace="b")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.0.0] - 2026-12-01\n\n- old\n"
    )
    (tmp_path / "docs" / "upgrading.md").write_text("# Upgrading\n\n## To 1.0.0\n\nDo this.\n\n## To 0.9.0\n\nThat.\n")
    return tmp_path


def test_notes_are_the_sections_of_the_version(root: Path) -> None:
    assert notes(root, "1.0.0") == "# 1.0.0\n\n- old\n\n# Upgrading\n\nDo this.\n"
    assert notes(root, "1.1.0.dev0") == "# 1.1.0.dev0\n\n- new\n", "what is not released, and nothing to do"


def test_notes_without_a_section_are_an_error(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [0.9.0]\n\n- old\n")
    with pytest.raises(ValueError, match=r"CHANGELOG\.md: expected a section \[2\.0\.0\] or \[Unreleased\]"):
        notes(root, "2.0.0")


def test_licences_have_the_texts_that_packages_ship(tmp_path: Path) -> None:
    (tmp_path / "a_b-1.0.dist-info" / "licenses").mkdir(parents=True)
    (tmp_path / "a_b-1.0.dist-info" / "licenses" / "LICENSE.txt").write_text("the text")
    bill = {
        "components": [
            {"name": "z", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
            {"name": "A.b", "version": "1.0", "licenses": [{"license": {"id": "BSD-3-Clause"}}]},
        ]
    }
    text = licences(bill, tmp_path)
    assert text.index("A.b 1.0: BSD-3-Clause") < text.index("the text") < text.index("z 2: MIT OR Apache-2.0")
    with pytest.raises(ValueError, match="no licence is declared for c, d"):
        licences({"components": [{"name": name, "version": "1"} for name in "cd"]}, tmp_path)


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    for name in ("b", "a", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in "ab"]
    assert checksums(tmp_path) == f"{digests[0]}  a\n{digests[1]}  b\n"
