"""The number of CPUs that the process may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hf_transformer.config.options import default_threads
from hf_transformer.cpus import available_cpus, cpu_quotas
from hf_transformer.tokenizer.tokenizer import CPUS

GROUPS = "sys/fs/cgroup"


def fake_system(folder: Path, group: str, files: Mapping[str, str]) -> Path:
    """Writes a root whose process is in the cgroups of ``group``; ``files`` are below the folder of the groups."""
    for name, text in {"proc/self/cgroup": group, **{f"{GROUPS}/{name}": text for name, text in files.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("group", "files", "quotas"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5], id="version 2, in a container"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, [], id="version 2, no quota"),
        pytest.param(
            "0::/kubepods/pod1/c1\n",
            {"kubepods/pod1/c1/cpu.max": "400000 100000\n", "kubepods/pod1/cpu.max": "200000 100000\n"},
            [4, 2],
            id="version 2, a group above has less",
        ),
        pytest.param("0::/../other\n", {"cpu.max": "300000 100000\n"}, [3], id="version 2, outside the namespace"),
        pytest.param(
            "9:cpuacct:/a\n4:cpu,memory:/kubepods/c1\n0::/\n",
            {f"cpu/kubepods/c1/{name}": text for name, text in V1.items()},
            [1.5],
            id="version 1",
        ),
        pytest.param(
            "4:cpu:/docker/of_the_host\n",
            {f"cpu/{name}": text for name, text in V1.items()},
            [1.5],
            id="version 1, the path of the host",
        ),
        pytest.param("4:cpu:/\n", {f"cpu/{name}": "-1\n" for name in V1}, [], id="version 1, no quota"),
        pytest.param("4:memory:/\n", {f"cpu/{name}": text for name, text in V1.items()}, [], id="another controller"),
        pytest.param("0::/\n", {"cpu.max": "much\n"}, [], id="unknown form"),
        pytest.param("0::/\n", {"cpu.max": "100000 0\n"}, [], id="a period of 0"),
        pytest.param("no groups\n", {}, [], id="no groups"),
    ],
)
def test_quotas_of_cgroups(tmp_path: Path, group: str, files: Mapping[str, str], quotas: list[float]) -> None:
    assert list(cpu_quotas(fake_system(tmp_path, group, files))) == quotas


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("50000 100000", 1), ("max 100000", 8), ("250000 100000", 3), ("6400000 100000", 8)],
    ids=["half a CPU", "no quota", "2.5 CPUs", "more than the affinity"],
)
def test_fewest_of_affinity_and_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cpus: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert available_cpus(fake_system(tmp_path, "0::/", {"cpu.max": limit})) == cpus


def test_a_system_without_cgroups_has_the_cpus_of_the_affinity(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_threads_and_chunks_follow_the_cpus_at_hand() -> None:
    assert available_cpus() == CPUS
    assert default_threads() == min(32, CPUS + 4)
