"""hf-transformer bench against the real service: every API and kind of model, and a service that it starts itself."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.bench import command
from hf_transformer.commands.bench.sweep import Setup
from hf_transformer.commands.demo import ENVIRONMENT_VARIABLE
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.support.service import flags_for
from tests.support.triton_environment import triton_environment
from tests.support.triton_repository import lay_out, task_model_folder

SHORT = ["--seconds=0.2", "--warmup_seconds=0", "--concurrency=1,3", "--words=3-6"]


def printed(capsys: pytest.CaptureFixture[str], *flags: str, code: int = 0) -> str:
    environ = {name: os.environ[name] for name in ("PATH", "HOME")}
    if (environment := triton_environment()) is not None:
        environ[ENVIRONMENT_VARIABLE] = str(environment)
    assert command.run([*SHORT, *flags], environ) == code
    return capsys.readouterr().out


def rows(found: str, head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``, up to its end; columns have two spaces between them."""
    lines = found.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(head)) + 1
    table = []
    for line in lines[first:]:
        if "  " not in line or line.startswith("["):
            break
        table.append(re.split(r" {2,}", line))
    return table


STAGES = ["parse", "tokenize", "queue", "predict", "decode", "HTTP and client"]
"""The stages of a service that bench starts. Others leave out tokenize by default."""
TRITON = [f"Triton: {name}" for name in ("queue", "compute_input", "compute_infer", "compute_output")]


@pytest.mark.parametrize(
    ("model", "api", "path"),
    [
        pytest.param("bert", "v1", "/v1/models/bert:predict", id="fill_mask v1"),
        pytest.param("squad", "v2", "/v2/models/squad/infer", id="question answering v2"),
        pytest.param("gliner", "v1", "/v1/models/gliner:predict", id="labels of the request v1"),
        pytest.param("minibert_mean", "openai", "/openai/v1/embeddings", id="embeddings"),
    ],
)
def test_a_running_service_is_measured_over_every_api(
    serve: Serve,
    triton: LocalTriton,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model: str,
    api: str,
    path: str,
) -> None:
    page = tmp_path / "report.html"
    where = [f"--url={serve(model).url}", f"--triton_url=http://{triton.http_address}"]
    found = printed(capsys, *where, f"--api={api}", f"--report={page}")
    speeds, times = (rows(found, head) for head in ("connections  requests/s", "mean ms"))
    assert [row[0] for row in speeds] == ["1", "3"]
    assert all(row[-1] == "0" and float(row[1].replace(",", "")) > 0 for row in speeds)
    assert all(float(row[-2]) >= 1 for row in speeds), "rows per run"
    assert [row[0] for row in times] == [*[stage for stage in STAGES if stage != "tokenize"], *TRITON]
    assert all(len(row) == 3 and "-" not in row for row in times)
    assert f"POST {path}," in page.read_text()


@pytest.mark.parametrize("api", [(), ("--api=v1",), ("--api=v2",)], ids=["streams", "v1", "v2"])
def test_a_generative_model_is_measured_by_tokens(
    serve: Serve, capsys: pytest.CaptureFixture[str], api: tuple[str, ...]
) -> None:
    found = printed(capsys, f"--url={serve('gpt2_past', 'grpc-v2').url}", "--max_tokens=4", *api)
    head = "connections  requests/s" if api else "streams  streams/s"
    table = rows(found, head)
    assert [row[0] for row in table] == ["1", "3"]
    for row in table:
        assert row[-1] == "0"
        if not api:  # up to four tokens of each stream
            assert 0 < float(row[2].replace(",", "")) <= 4.1 * float(row[1].replace(",", ""))


def test_failed_requests_are_counted_and_exit_with_1(
    serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.write_text("a [MASK]\nno mask\n")
    found = printed(capsys, f"--url={serve('bert').url}", f"--texts={texts}", code=1)
    assert re.search(r"\d+ x 400 .*at least one \[MASK\] in the text", found)


def test_a_sweep_tries_settings_of_service_and_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of settings, and one that the model does not take."""
    tried: dict[str, list[Any]] = {
        "dynamic_batching": [None],
        "--max_batches_in_flight": [0],
        "--pad_to_multiple_of": [8],
    }
    whole = Setup.settings
    known: dict[str, list[Any]] = {}

    def settings(setup: Setup) -> dict[str, list[Any]]:
        known.update(whole(setup))
        return tried

    monkeypatch.setattr(Setup, "settings", settings)
    page = tmp_path / "report.html"
    output = printed(capsys, "--sweep", f"--report={page}")
    assert len(rows(output, "connections  requests/s")) == 2
    trials = re.findall(r"^\[[#.]+\] +(\S+)  (.*)$", output, re.MULTILINE)
    assert [name for _, name in trials][:3] == ["as configured", "no dynamic_batching", "as configured"]
    # A flag that the service refuses, and one that the model, which takes no attention mask, does not fit.
    assert [rate == "fails" for rate, _ in trials][:7] == [False, False, False, True, False, True, False]
    assert {name for _, name in trials[:7:2]} == {"as configured"}, "again after each trial"
    assert re.search(r"^(Use|Keep) .*noise ±\d+% in \d+ runs of the current settings.*\)\.$", output, re.MULTILINE)
    for part in ("Settings tried", "expected an integer of 1 or more", "does not fit the service"):
        assert part in page.read_text()
    # Without the values that it has.
    assert known.pop("instance_group")[0] == [{"count": 2, "kind": "KIND_CPU"}]
    assert known == {
        "dynamic_batching": [None, {"preferred_batch_size": [4, 8]}],
        "--max_batches_in_flight": [1, 2, 4],
        "--max_batch_tokens": [4096, 65536],
        "--pad_to_multiple_of": [8, 32],
    }


def test_a_bi_encoder_is_started_with_its_model_of_labels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lay_out(tmp_path, ["gliner_bi", "gliner_bi_labels"])
    shutil.copytree(task_model_folder("gliner_bi"), tmp_path / "gliner_bi", dirs_exist_ok=True)
    found = printed(capsys, f"--model_repository={tmp_path}", "--model_name=gliner_bi")
    assert all(row[-1] == "0" and float(row[1].replace(",", "")) > 0 for row in rows(found, "connections  requests/s"))


def test_a_service_started_with_given_flags_is_measured(
    triton: LocalTriton, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.load("bert")
    flags = " ".join(flags_for("bert", MODEL_FOLDER, triton.http_address, "v2"))
    found = printed(capsys, f"--service_flags={flags}")
    # Triton's statistics are found by the flags.
    assert [row[0] for row in rows(found, "mean ms")] == [*STAGES, *TRITON]
