"""hf-transformer doctor, without a predictor."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from hf_transformer import cli
from hf_transformer.commands.doctor import command as doctor
from hf_transformer.commands.doctor.table import CHECKS
from tests.predictor.fault_server import nobody
from tests.triton_repository import DEMO_MODEL

ROOT = Path(__file__).parents[2]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: hf-transformer doctor")
    assert all(check.name in text for check in CHECKS)


def test_a_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--predictor_host=triton", "--workers=0"]) == 2
    assert "--workers: expected an integer" in capsys.readouterr().err


def test_no_predictor(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--predictor_host={nobody()}", f"--model_dir={DEMO_MODEL}"]
    handlers = list(logging.getLogger("hf_transformer").handlers)
    assert doctor.run(flags, {}) == 2
    table = capsys.readouterr()
    assert "failed   connection" in table.out
    assert "not made, since others come first: protocol, TLS, server," in " ".join(table.out.split())
    assert table.err == ""
    assert doctor.run([*flags, "--json"], {}) == 2
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["name"] for one in results] == [check.name for check in CHECKS]
    assert [one["name"] for one in results if one["status"] == "failed"] == ["connection"]
    assert logging.getLogger("hf_transformer").handlers == handlers


def test_what_the_service_would_warn_of_while_it_loads(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--predictor_host={nobody()}", f"--model_dir={DEMO_MODEL}", "--return_offsets_mapping", "--json"]
    assert doctor.run(flags, {}) == 2
    results = json.loads(capsys.readouterr().out)["results"]
    warnings = [one for one in results if one["status"] == "warning"]
    assert [(one["name"], one["found"]) for one in warnings] == [
        ("model files", "--return_offsets_mapping has no effect for fill_mask")
    ]


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (?:warning|failed|failed, warning) \|$", page, re.MULTILINE)
    assert rows == [check.name for check in CHECKS]
