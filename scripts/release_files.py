"""Sets the version everywhere, and cuts a release: one step each.

    scripts/release 1.1.0        the package, the chart, the image's name in manifests and pages, classifiers, the
                                 sections of CHANGELOG.md and docs/upgrading.md, and the lists of tests/stable
    scripts/release 1.2.0.dev0   after it: the version of the work on the next release, and sections for it

It publishes nothing and commits nothing. In the end it lists pages with figures of another version: these are measured
again, and never renamed. `scripts/package` then makes what the release ships, and checks it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from scripts.stable_surface import NEW_NAMES, write_new_names, write_release

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+(?:\.dev0)?"
PACKAGE = "hf_transformer/__init__.py"
CHANGELOG, UPGRADING = "CHANGELOG.md", "docs/upgrading.md"
UNRELEASED = {CHANGELOG: "## [Unreleased]", UPGRADING: "## Unreleased"}
NAMED_IN = ("deploy", "examples", "docs", ".github")
"""Folders whose files name the version of this checkout: images, labels, samples of output."""
NAMES = r"(hf-transformer[: ]|newTag: \"?|appVersion: \"?|app\.kubernetes\.io/version: \"?|image\.version=\")"
MEASURED = re.compile(rf"(?:[Mm]easured with version|hf-transformer|\(version) ({VERSION})\b")
"""The version that a page says its figures are of."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="such as 1.1.0, or 1.2.0.dev0")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="of the release [today]")
    arguments = parser.parse_args()
    new = arguments.version
    if not re.fullmatch(VERSION, new):
        parser.error(f"expected a version such as 1.1.0 or 1.2.0.dev0, got {new!r}")
    old = release_of(ROOT)
    if key(new) <= key(old):
        parser.error(f"expected a version after {old}, got {new}")
    if not new.endswith(".dev0"):
        write_new_names()
        cut(ROOT, new, arguments.date)
    set_version(ROOT, old, new)
    if new.endswith(".dev0"):
        begin(ROOT)
    subprocess.run([sys.executable, "scripts/chart"], cwd=ROOT, check=True)
    if not new.endswith(".dev0"):
        store(ROOT, new)
    for line in measured_with_others(ROOT, new):
        print(line)
    return 0


def key(version: str) -> tuple[int, ...]:
    """A development version comes before its release."""
    return (*map(int, version.removesuffix(".dev0").split(".")), 0 if version.endswith(".dev0") else 1)


def release_of(root: Path) -> str:
    (found,) = re.findall(r'^RELEASE = "(.+)"$', (root / PACKAGE).read_text("utf-8"), re.M)
    return found


def set_version(root: Path, old: str, new: str) -> None:
    """Writes the version into the package, into what names it, and into the classifiers."""
    replace(root / PACKAGE, f'RELEASE = "{old}"', f'RELEASE = "{new}"')
    for folder in NAMED_IN:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and "model_repository" not in file.parts and file.suffix in ("", ".md", ".yaml", ".yml"):
                text = file.read_text("utf-8")
                changed = re.sub(rf"{NAMES}{re.escape(old)}\b(?!\.\d)", rf"\g<1>{new}", text)
                if changed != text:
                    file.write_text(changed, "utf-8")
    status = "4 - Beta" if key(new) < (1, 0, 0, 1) else "5 - Production/Stable"
    project = root / "pyproject.toml"
    text = project.read_text("utf-8")
    project.write_text(re.sub(r"(Development Status :: )[^\"]+", rf"\g<1>{status}", text), "utf-8")


def replace(file: Path, before: str, after: str) -> None:
    """Replaces a text that stands once in a file. Raises ValueError if it does not."""
    text = file.read_text("utf-8")
    if text.count(before) != 1:
        raise ValueError(f"{file}: expected {before!r} once, found it {text.count(before)} times")
    file.write_text(text.replace(before, after), "utf-8")


def cut(root: Path, version: str, date: str) -> None:
    """Gives the sections of what is not released the name of the version. A page without one is left as it is."""
    replace(root / CHANGELOG, f"{UNRELEASED[CHANGELOG]}\n", f"## [{version}] - {date}\n")
    page = root / UPGRADING
    if UNRELEASED[UPGRADING] in page.read_text("utf-8"):
        replace(page, f"{UNRELEASED[UPGRADING]}\n", f"## To {version}\n")


def begin(root: Path) -> None:
    """Adds sections for what is not released, above those of the last release."""
    for name, heading in UNRELEASED.items():
        file = root / name
        text = file.read_text("utf-8")
        if heading not in text:
            marks = f"\n\n### New names\n\n{NEW_NAMES[0]}\n{NEW_NAMES[1]}" if name == UPGRADING else ""
            first = re.search(r"^## ", text, re.M)
            if first is None:
                raise ValueError(f"{name}: expected a section of a version")
            file.write_text(f"{text[: first.start()]}{heading}{marks}\n\n{text[first.start() :]}", "utf-8")


def store(root: Path, version: str) -> None:
    """Stores the surface of the release as what the next one is compared with, in place of the last one's.

    How services of older releases are started stays, since an upgrade may leave out releases.
    """
    folder = root / "tests" / "stable"
    last = [path.parent for path in folder.glob("*/flags.txt")]
    write_release(str(root), folder / version)
    for path in last:
        if path.name != version:
            for file in path.glob("*.txt"):
                file.unlink()
    (folder / "not_changes.json").write_text("{}\n", "utf-8")
    page = root / UPGRADING
    text = page.read_text("utf-8")
    page.write_text("".join(line for line in text.splitlines(keepends=True) if line.strip() not in NEW_NAMES), "utf-8")


def measured_with_others(root: Path, version: str) -> list[str]:
    """Pages and results whose figures are of another version, and of which."""
    found = []
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "benchmarks").rglob("*.md"))]
    for page in pages:
        others = sorted({one for one in MEASURED.findall(page.read_text("utf-8")) if one != version})
        if others:
            found.append(f"{page.relative_to(root)}: figures of {', '.join(others)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
