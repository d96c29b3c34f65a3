"""scripts/audit: its report and exit code for output of pip-audit."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def audit() -> Any:
    module = ModuleType("audit")
    module.__file__ = str(Path(__file__).parents[2] / "scripts" / "audit")
    SourceFileLoader("audit", module.__file__).exec_module(module)
    return module


def output(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


SOUND = {"name": "numpy", "version": "2.4.6", "vulns": []}
UNKNOWN = {"name": "in-house", "skip_reason": "Dependency not found on PyPI and could not be audited: in-house (1.0)"}
BROKEN = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": []}]}
OPEN = {"name": "older", "version": "0.1", "vulns": [{"id": "PYSEC-2", "fix_versions": [], "aliases": []}]}


def test_vulnerabilities_are_listed_with_fixed_versions(audit: Any) -> None:
    findings, known, unknown = audit.report_of(output(SOUND, UNKNOWN, BROKEN, OPEN), "Found 2 known vulnerabilities")
    assert findings == ["old 1.0: PYSEC-1 (fixed in 1.1)", "older 0.1: PYSEC-2 (fixed in no release yet)"]
    assert (known, unknown) == (3, 1)
    assert audit.report_of(output(SOUND, UNKNOWN), "") == ([], 1, 1)


def test_a_service_without_data_is_unreachable(audit: Any) -> None:
    with pytest.raises(audit.Unreachable, match="none of 2 packages"):
        audit.report_of(output(UNKNOWN, UNKNOWN), "")
    with pytest.raises(audit.Unreachable):
        audit.report_of("", "Traceback ...\nrequests.exceptions.ConnectionError: Failed to resolve")


@pytest.mark.parametrize("stderr", ["No module named pip_audit", ""])
def test_other_failures_are_errors(audit: Any, stderr: str) -> None:
    with pytest.raises(RuntimeError, match=stderr or "said nothing"):
        audit.report_of("", stderr)


@pytest.mark.parametrize(
    ("findings", "arguments", "code", "says"),
    [
        (None, [], 0, "NOT AUDITED: "),
        (None, ["--strict"], 1, "NOT AUDITED: "),
        ((["old 1.0: PYSEC-1 (fixed in 1.1)"], 3, 0), [], 1, "old 1.0: PYSEC-1 (fixed in 1.1)\n"),
    ],
    ids=["no service", "strict", "findings"],
)
def test_findings_exit_with_1_and_a_missing_service_only_with_strict(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, findings: Any, arguments: list[str], code: int, says: str
) -> None:
    def answer(service: str) -> Any:
        if findings is None:
            raise audit.Unreachable("no route")
        return findings

    monkeypatch.setattr(audit, "audit", answer)
    monkeypatch.setattr("sys.argv", ["audit", *arguments])
    assert audit.main() == code
    said = capsys.readouterr().out
    assert said.startswith(says)
    if findings is None:
        assert "scripts/audit --strict\n" in said and "  pypi: no route\n  osv: no route\n" in said
