"""The commit of a version between releases, and the README of the packages.

Links between files of the repository become links that work on a package index. They lead to ``Repository`` of
``[project.urls]``, the only place with that address. As long as the project has none, a link is its text and a picture
is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[(?P<alt>[^]]*)\](?:\((?P<path>[^)\s]+)\)|\[(?P<name>[^]]+)\])(?P<after>\n*)")
LINK = re.compile(r"(?<!!)\[(?P<text>[^]]+)\](?:\((?P<path>[^)\s]+)\)|\[(?P<name>[^]]+)\])")
DEFINITION = re.compile(r"^\[(?P<name>[^]]+)\]: (?P<path>\S+)\n?", re.MULTILINE)
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
FILE = "hf_transformer/_commit"
FOREIGN = re.compile(r"[a-z]+:|#")


class CommitHook(BuildHookInterface):
    """hatchling's hook that writes ``hf_transformer/_commit`` into the packages of a version with ``.dev``.

    The commit is that of the variable SOURCE_REVISION, for builds without git such as an image's, else of the checkout.
    A package from a source distribution keeps the file of that. A release has none: two builds of it are equal.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or ".dev" not in self.metadata.version or Path(self.root, FILE).is_file():
            return
        commit = os.environ.get("SOURCE_REVISION") or self._head()
        if commit:
            self._written = Path(self.directory, "commit")
            self._written.parent.mkdir(parents=True, exist_ok=True)
            self._written.write_text(f"{commit}\n", encoding="ascii")
            build_data["force_include"][str(self._written)] = FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_written"):
            self._written.unlink()

    def _head(self) -> str:
        if not Path(self.root, ".git").exists():
            return ""
        command = ["git", "-C", self.root, "rev-parse", "HEAD"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.strip()


class ReadmeHook(MetadataHookInterface):
    """hatchling's hook for the dynamic field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": published(text, address, f"v{metadata['version']}"),
        }


def published(text: str, address: str | None, revision: str) -> str:
    """The README with absolute links to a revision at the repository's address, or without links to its files."""
    paths = {match["name"]: match["path"] for match in DEFINITION.finditer(text)}

    def absolute(path: str, kind: str) -> str | None:
        if FOREIGN.match(path):
            return path
        if address is None:
            return None
        return f"{address.rstrip('/')}/{kind}/{revision}/{path}"

    def picture(match: re.Match[str]) -> str:
        new = absolute(match["path"] or paths[match["name"]], "raw")
        return "" if new is None else f"![{match['alt']}]({new}){match['after']}"

    def link(match: re.Match[str]) -> str:
        new = absolute(match["path"] or paths[match["name"]], "blob")
        return match["text"] if new is None else f"[{match['text']}]({new})"

    parts = FENCE.split(DEFINITION.sub("", text))
    parts[::2] = (LINK.sub(link, PICTURE.sub(picture, part)) for part in parts[::2])
    return "".join(parts).rstrip() + "\n"
