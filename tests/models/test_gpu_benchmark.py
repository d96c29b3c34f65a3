"""benchmarks.gpu on a machine without a GPU: small models, every subject, and a page of results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_subject_is_measured_without_a_gpu(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    flags = ["--quick", "--seconds=0.5", f"--triton_environment={ROOT / '.venv-models-triton'}", f"--output={page}"]
    subprocess.run([sys.executable, "-m", "benchmarks.gpu", *flags], cwd=ROOT, check=True, timeout=240)
    tables = page.read_text().split("\n## ")
    assert [table.splitlines()[0] for table in tables[1:]] == ["minilm", "minilm_reduced", "bert_small"]
    for table in tables[1:]:
        rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| 9 |")]
        assert [row[2].removesuffix(", shared memory") for row in rows] == [
            *("service, REST", "service, gRPC") * 2,
            *["Triton alone, REST"] * 2,
        ]
        assert all(float(row[3].replace(",", "")) > 0 for row in rows)
