"""The count of instructions: the application between transports without sockets, and the arithmetic of the table.

Callgrind itself takes a minute, and is not needed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import in_process
from benchmarks.instructions import Count, measure_instructions, read_counts, table
from benchmarks.options import parse
from hf_transformer.config.options import Config

DUMPS = """version: 1
desc: Trigger: Client Request: V1, 7 words, 1 at a time
events: Ir
summary: 2000
fn=(1) main
desc: Trigger: Client Request: V2
events: Ir
summary: 500
totals: 2500

desc: Trigger: Program termination
summary: 18446744073411504587
"""


@pytest.fixture(scope="module")
def config() -> Iterator[Config]:
    with in_process.configuration() as made:
        yield made


def drive(config: Config, form: in_process.Form, requests: int) -> Mapping[str, float]:
    with asyncio.Runner(loop_factory=in_process.Loop) as runner:
        return runner.run(in_process.drive(config, [form], requests, None))


def test_every_form_is_answered(config: Config) -> None:
    async def answer() -> list[float]:
        async with in_process.Service(config) as service:
            return [await service.answer(form, 40) for form in in_process.forms()]

    with asyncio.Runner(loop_factory=in_process.Loop) as runner:
        rows = runner.run(answer())
    assert rows
    for form, count in zip(in_process.forms(), rows, strict=True):
        assert 1 <= count <= form.connections and (count > 2) == (form.connections > 1), form.name


def test_an_error_ends_the_count(config: Config) -> None:
    form = in_process.forms()[0]
    wrong = [(before.replace(b"/m:", b"/absent:"), after) for before, after in form.parts]
    with pytest.raises(ValueError, match=r"expected 200, got b'HTTP/1\.1 404"):
        drive(config, replace(form, parts=wrong), 3)


def test_counts_are_read_by_form() -> None:
    counts = read_counts(DUMPS, '{"V1, 7 words, 1 at a time": 1.0, "V2": 12.5}', 100)
    assert counts == {"V1, 7 words, 1 at a time": Count(20.0, 1.0), "V2": Count(5.0, 12.5)}


def test_the_table_compares_the_first_version_with_the_others() -> None:
    lines = table({"this": {"V1": Count(150_000.0, 9.06)}, "before": {"V1": Count(200_000.0, 9.0)}})
    assert lines == [
        "| form | texts in a batch | this | before | this / before |",
        "|---|---:|---:|---:|---:|",
        "| V1 | 9.1 | 150,000 | 200,000 | 0.750 |",
    ]


def test_a_machine_without_valgrind_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure_instructions(parse(["--instructions"]), tmp_path) == 1
    assert "valgrind is not installed" in capsys.readouterr().err
