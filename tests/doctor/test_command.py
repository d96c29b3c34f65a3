"""hf-transformer doctor: what it prints, and its exit codes, without a predictor."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest

from hf_transformer import __version__
from hf_transformer.commands import cli
from hf_transformer.commands.doctor import command
from hf_transformer.commands.doctor.examination import Finding
from hf_transformer.commands.terminal import Terminal
from tests.predictor.fault_server import nobody
from tests.triton_repository import DEMO_MODEL

ROOT = Path(__file__).parents[2]
NAMES = [check.name for check in command.CHECKS]

FINE = Finding("ok", "127.0.0.1", name="address", seconds=0.00123)
DOUBT = Finding("warning", "max_batch_size is 1", 'set "max_batch_size: 32" in its config.pbtxt', name="batch size")
WRONG = Finding("failed", "Its input 'x' is FP32", "export it as INT64", name="contract")
BLOCKED = Finding("skipped", "not made: contract comes first", name="inference", blocked=True)
UNUSED = Finding("skipped", "not asked for", name="TLS")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: hf-transformer doctor")
    assert all(name in text for name in ("--strict", *NAMES))


def test_a_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--predictor_host=triton", "--workers=0"]) == 2
    assert "--workers: expected an integer" in capsys.readouterr().err


def test_no_predictor(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--predictor_host={nobody()}", f"--model_dir={DEMO_MODEL}", "--return_offsets_mapping"]
    handlers = list(logging.getLogger("hf_transformer").handlers)
    assert command.run(flags, {}) == 2
    table = capsys.readouterr()
    assert "failed   connection" in table.out
    assert "not made, since others come first: protocol, TLS, server," in " ".join(table.out.split())
    assert table.err == ""
    assert command.run([*flags, "--json", "--strict"], {}) == 2
    results = json.loads(capsys.readouterr().out)["results"]
    assert list(dict.fromkeys(one["name"] for one in results)) == NAMES
    bad = [(one["name"], one["status"]) for one in results if one["status"] not in ("ok", "skipped")]
    assert bad == [("model files", "warning"), ("connection", "failed")]
    # What the service would log while it loads.
    [found] = [one["found"] for one in results if one["status"] == "warning"]
    assert found == "--return_offsets_mapping has no effect for fill_mask"
    assert logging.getLogger("hf_transformer").handlers == handlers


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert re.findall(r"^\| ([^|]+) \| [^|]+ \| (?:warning|failed|failed, warning) \|$", page, re.MULTILINE) == NAMES


@pytest.mark.parametrize(
    ("results", "codes", "says"),
    [
        pytest.param([FINE, UNUSED], (0, 0), "1 ok, 1 skipped", id="well"),
        pytest.param([FINE, DOUBT], (0, 1), "1 ok, 1 warning", id="a warning"),
        pytest.param([DOUBT, DOUBT, WRONG, UNUSED], (2, 2), "2 warnings, 1 failed, 1 skipped", id="a failure"),
    ],
)
def test_the_exit_code(results: list[Finding], codes: tuple[int, int], says: str) -> None:
    assert tuple(command.exit_code(results, strict=strict) for strict in (False, True)) == codes
    assert command.summary(results, codes[0]) == f"{says}; exit code {codes[0]}"


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    terminal = Terminal({}, io.StringIO())
    assert command.row(FINE, terminal) == "ok       address           127.0.0.1"
    assert command.row(DOUBT, terminal).splitlines() == [
        "warning  batch size        max_batch_size is 1",
        '                           -> set "max_batch_size: 32" in its',
        "                              config.pbtxt",
    ]
    assert command.rest([FINE, UNUSED], terminal) == ""
    rest = command.rest([WRONG, BLOCKED, BLOCKED, UNUSED], terminal)
    assert rest.splitlines() == [
        "skipped  2 checks          not made, since others come first: inference,",
        "                           inference",
    ]


def test_colours_of_a_row() -> None:
    terminal = Terminal({}, io.StringIO())
    terminal.coloured = True
    status, change = command.row(DOUBT, terminal).splitlines()
    assert status.startswith("\x1b[33mwarning\x1b[0m  batch size ")
    assert change.lstrip().startswith("\x1b[1m-> set") and change.endswith("config.pbtxt\x1b[0m")


def test_json() -> None:
    assert json.loads(command.json_text("bert", [FINE], 0)) == {
        "version": __version__,
        "model": "bert",
        "exit_code": 0,
        "results": [{"name": "address", "status": "ok", "found": "127.0.0.1", "change": "", "seconds": 0.0012}],
    }
