"""A mount namespace of our own: a small /dev/shm that may be filled, and a hosts file that may be changed.

Linux only. Needs root or unprivileged user namespaces, and util-linux. All of it is gone when the process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MARK = "HF_TRANSFORMER_FAULTS_FOLDER"
SHARED_MEMORY_SIZE = "256m"


class NoNamespace(Exception):
    """This machine does not let us make one."""


def inside() -> bool:
    return MARK in os.environ


def enter(arguments: Sequence[str]) -> None:
    """Runs this module's program again in a namespace of its own, unless this is that one.

    Raises:
        NoNamespace: it can't be made.
        SystemExit: with the exit code of the program in the namespace.
    """
    if inside():
        _mount(Path(os.environ[MARK]))
        return
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoNamespace(str(error)) from error
    if probe.returncode:
        raise NoNamespace(probe.stderr.strip())
    with tempfile.TemporaryDirectory(prefix="hf-transformer-faults-") as folder:
        command = [*unshare, sys.executable, "-m", "tests.faults", *arguments]
        raise SystemExit(subprocess.run(command, env={**os.environ, MARK: folder}).returncode)


def hosts_file() -> Path:
    """The file in place of /etc/hosts."""
    return Path(os.environ[MARK]) / "hosts"


def _mount(folder: Path) -> None:
    hosts_file().write_text(Path("/etc/hosts").read_text())
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for command in (
        ["-t", "tmpfs", "-o", f"size={SHARED_MEMORY_SIZE},mode=1777", "tmpfs", "/dev/shm"],
        ["--bind", str(hosts_file()), "/etc/hosts"],
        ["--bind", str(folder / "resolv.conf"), str(Path("/etc/resolv.conf").resolve())],
    ):
        subprocess.run(["mount", *command], check=True)
