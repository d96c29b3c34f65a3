"""Memory that the C library keeps."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from hf_transformer.server.memory import KEPT_BYTES

BLOCKS, BLOCK_BYTES = 8, 4 << 20
FAULTS = f"""
import resource, sys
from hf_transformer.server.memory import keep_freed_blocks
if sys.argv[1] == "keep": keep_freed_blocks()
def blocks():
    return [bytes(bytearray(b"1") * {BLOCK_BYTES}) for _ in range({BLOCKS} // 2)]
blocks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    blocks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Prints the page faults of blocks that are allocated and freed repeatedly."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_freed_blocks_are_reused_without_page_faults() -> None:
    assert BLOCKS * BLOCK_BYTES <= KEPT_BYTES
    returned, kept = faults("return"), faults("keep")
    assert kept * 10 < returned


def faults(mode: str) -> int:
    environ = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "1048576"}
    command = [sys.executable, "-c", FAULTS, mode]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return int(result.stdout)
