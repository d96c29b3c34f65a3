"""Parts of scripts/package: archives that are equal in every byte when made again, notes, licences and checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

EPOCH = 315532800
"""The time of all files in archives: 1980, as in wheels and in the image."""
IGNORED = {"__pycache__", ".git"}


def archive(folder: Path, target: Path, name: str) -> None:
    """Writes a .tar.gz of a folder's files, in order, below ``name``, without their times and owners.

    It leaves out files whose names match a line of the folder's ``.helmignore``, as Helm does.
    """
    packed, listed = io.BytesIO(), folder / ".helmignore"
    patterns = listed.read_text("utf-8").split() if listed.is_file() else []
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as files:
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
            ignored = IGNORED & set(path.parts) or any(fnmatch(path.name, pattern) for pattern in patterns)
            if path.is_file() and not ignored:
                entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
                entry.size, entry.mtime, entry.mode = path.stat().st_size, EPOCH, 0o644
                with path.open("rb") as content:
                    files.addfile(entry, content)
    with target.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=EPOCH) as zipped:
        zipped.write(packed.getvalue())


def notes(root: Path, version: str) -> str:
    """The sections of the changelog and of Upgrading about a version, or about what is not released, if it has none.

    Raises ValueError if the changelog has neither.
    """
    parts = []
    for page, names in {
        "CHANGELOG.md": (f"[{version}]", "[Unreleased]"),
        "docs/upgrading.md": (f"To {version}", "Unreleased"),
    }.items():
        text = (root / page).read_text("utf-8")
        for name in names:
            if match := re.search(rf"^## {re.escape(name)}[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S):
                parts.append(f"# {'Upgrading' if parts else version}\n\n{match[1].strip()}\n")
                break
        if not parts:
            raise ValueError(f"{page}: expected a section [{version}] or [Unreleased]")
    return "\n".join(parts)


def licences(bill: Any, environment: Path) -> str:
    """The licence of each component of a CycloneDX bill of materials, and the texts that its package ships.

    Raises ValueError for components whose licence nobody declared.
    """
    texts = {}
    for found in environment.rglob("*.dist-info"):
        names = ("LICEN[CS]E*", "NOTICE*", "COPYING*", "licenses/**/*")
        files = sorted({path for name in names for path in found.glob(name) if path.is_file()})
        texts[canonicalize_name(found.name.split("-")[0])] = [path.read_text("utf-8", "replace") for path in files]
    parts, unknown = [], []
    for component in sorted(bill["components"], key=lambda one: one["name"].lower()):
        declared = sorted({name for one in component.get("licenses", ()) for name in _names(one)})
        own = texts.get(canonicalize_name(component["name"]), [])
        if not declared and not own:
            unknown.append(component["name"])
        head = f"{component['name']} {component['version']}: {', '.join(declared) or 'see its text'}"
        parts.append("\n\n".join([f"{'=' * len(head)}\n{head}\n{'=' * len(head)}", *own]))
    if unknown:
        raise ValueError(f"no licence is declared for {', '.join(unknown)}")
    return "\n\n".join(parts) + "\n"


def _names(entry: Any) -> Iterable[str]:
    if "expression" in entry:
        yield entry["expression"]
    elif name := entry["license"].get("id") or entry["license"].get("name", ""):
        yield name.splitlines()[0][:80]


def checksums(folder: Path) -> str:
    """Lines for ``sha256sum --check``."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def main() -> None:
    """Runs one part: archive FOLDER TARGET NAME, notes VERSION, licences BILL ENVIRONMENT, or checksums FOLDER."""
    match sys.argv[1:]:
        case ["archive", folder, target, name]:
            archive(Path(folder), Path(target), name)
        case ["notes", version]:
            print(notes(Path(), version), end="")
        case ["licences", bill, environment]:
            print(licences(json.loads(Path(bill).read_text("utf-8")), Path(environment)), end="")
        case ["checksums", folder]:
            print(checksums(Path(folder)), end="")
        case others:
            sys.exit(f"unknown part: {others}")


if __name__ == "__main__":
    main()
