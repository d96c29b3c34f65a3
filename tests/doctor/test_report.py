"""What is printed, and the exit code."""

from __future__ import annotations

import json

import pytest

from hf_transformer.commands.doctor import report
from hf_transformer.commands.doctor.findings import Result

FINE = Result("address", "ok", "127.0.0.1", "", 0.00123)
DOUBT = Result("batch size", "warning", "max_batch_size is 1", 'set "max_batch_size: 32" in config.pbtxt', 0.0)
WRONG = Result("contract", "failed", "Its input 'x' is FP32", "export it as INT64", 0.0)
BLOCKED = Result("inference", "skipped", "not made: contract comes first", "", 0.0, blocked=True)
UNUSED = Result("TLS", "skipped", "not asked for", "", 0.0)


@pytest.mark.parametrize(
    ("results", "code", "says"),
    [
        ([FINE, UNUSED], 0, "1 ok, 1 skipped; exit code 0"),
        ([FINE, DOUBT], 1, "1 ok, 1 warning; exit code 1"),
        ([DOUBT, DOUBT, WRONG, BLOCKED], 2, "2 warnings, 1 failed, 1 skipped; exit code 2"),
        ([], 0, "; exit code 0"),
    ],
)
def test_the_exit_code(results: list[Result], code: int, says: str) -> None:
    assert report.exit_code(results) == code
    assert report.summary(results) == says


def test_a_row() -> None:
    assert report.line(FINE, 80) == "ok       address           127.0.0.1"
    assert report.line(DOUBT, 60).splitlines() == [
        "warning  batch size        max_batch_size is 1",
        '                           -> set "max_batch_size: 32" in',
        "                              config.pbtxt",
    ]


def test_what_was_not_made_is_one_row() -> None:
    assert report.blocked([FINE, UNUSED], 80) == ""
    said = report.blocked([WRONG, BLOCKED, BLOCKED, UNUSED], 120)
    assert said == "skipped  2 checks          not made, since others come first: inference, inference"


def test_json() -> None:
    document = json.loads(report.as_json("bert", "1.2.3", [FINE, WRONG]))
    assert document == {
        "version": "1.2.3",
        "model": "bert",
        "exit_code": 2,
        "results": [
            {"name": "address", "status": "ok", "found": "127.0.0.1", "change": "", "seconds": 0.0012},
            {
                "name": "contract",
                "status": "failed",
                "found": "Its input 'x' is FP32",
                "change": "export it as INT64",
                "seconds": 0.0,
            },
        ],
    }
