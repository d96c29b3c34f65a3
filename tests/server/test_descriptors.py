"""The process's own limit of descriptors, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import logging, resource, sys
from hf_transformer.commands.serve import OTHER_FILES, allow_descriptors
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
allow_descriptors(int(sys.argv[1]) - OTHER_FILES)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("wanted", "limits", "warns"),
    [(90, "(100, 1000)", False), (900, "(900, 1000)", False), (2000, "(1000, 1000)", True)],
)
def test_the_limit_is_lifted_as_far_as_it_may(wanted: int, limits: str, warns: bool) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(wanted)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == limits
    assert ("only 1000 descriptors open" in result.stderr) is warns
