"""hf_transformer: text in front of a Triton Inference Server."""

from __future__ import annotations

RELEASE = "1.1.0.dev0"
"""This release; between two releases the next one, as 1.1.0.dev0. The only place: scripts/release sets the others."""


def _commit() -> str:
    """The first digits of the commit that the package was built from, or that its checkout is at; empty if unknown.

    The build writes the file ``_commit`` (hatch_build.py). In a checkout the files of git are read: a process of git
    would cost each start more, and images have none.
    """
    from pathlib import Path

    package = Path(__file__).parent
    try:
        if (built := package / "_commit").is_file():
            return built.read_text("ascii").strip()[:10]
        git = package.parent / ".git"
        if git.is_file():  # of a further work tree
            git = package.parent / git.read_text("utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head[:10]
        common = git / (git / "commondir").read_text("utf-8").strip() if (git / "commondir").is_file() else git
        name = head.removeprefix("ref: ")
        if (common / name).is_file():
            return (common / name).read_text("ascii").strip()[:10]
        packed = (common / "packed-refs").read_text("utf-8").splitlines()
        return next((line[:10] for line in packed if line.endswith(f" {name}")), "")
    except (OSError, ValueError):
        return ""


__version__ = RELEASE
"""The version that the service shows: the release, or 1.1.0.dev0+g8069a5b5a0, with the commit where it is known."""
if ".dev" in RELEASE and (_known := _commit()):
    __version__ += f"+g{_known}"
