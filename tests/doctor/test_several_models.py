"""hf-transformer doctor of --models and --model_repository, without a predictor: reports, overview, JSON, exit code."""

from __future__ import annotations

import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hf_transformer import __version__
from hf_transformer.commands import cli
from hf_transformer.commands.doctor import command
from hf_transformer.commands.doctor.examination import Check, Finding, Subject, examine
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.options import parse_config
from tests.support.service import NOBODY
from tests.support.triton_repository import DEMO_MODEL, DEMO_MODELS

NAMES = [check.name for check in command.CHECKS]


@contextmanager
def triton_without_models() -> Iterator[tuple[str, Counter[str]]]:
    """A live server of the V2 protocol that has no model. Yields its address, and the requests by path."""
    requests: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests[self.path] += 1
            body = json.dumps({"name": "triton", "version": "2.51.0", "extensions": []}).encode()
            self.send_response(404 if self.path.startswith("/v2/models/") else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()


def write(folder: Path, *entries: dict[str, str]) -> str:
    """The flag for a file with the entries."""
    file = folder / "models.json"
    file.write_text(json.dumps(entries))
    return f"--models={file}"


def entry(name: str, folder: Path = DEMO_MODEL, **more: str) -> dict[str, str]:
    return {"model_name": name, "model_dir": str(folder), **more}


def test_each_model_has_a_report_and_each_predictor_is_examined_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with triton_without_models() as (address, requests):
        first, two, three = (
            entry("one"),
            entry("two", tmp_path / "none", task="fill_mask"),
            entry("three", predictor_model="another", predictor_host=NOBODY),
        )
        flags = [write(tmp_path, first, two, three, {**first, "model_name": "four"}), f"--predictor_host={address}"]
        assert command.run([*flags, "--no_such_flag=1"], {}) == 2
    printed = capsys.readouterr()
    assert requests["/v2"] == 1 and requests["/v2/health/ready"] == 1
    assert {requests[f"/v2/models/{name}/ready"] for name in ("one", "two", "four")} == {1}
    assert printed.err == ""
    head, *reports = re.split(r"^model (?=')", printed.out, flags=re.MULTILINE)
    assert head.startswith(f"hf-transformer {__version__} doctor: 4 models of {tmp_path}/models.json\n")
    assert "unknown flag --no_such_flag is ignored" in head
    assert [report.split(" over ")[0] for report in reports] == [
        f"'one', predictor {address}",
        f"'two', predictor {address}",
        f"'three', predictor {three['predictor_host']}",
        f"'four', predictor {address}",
    ]
    assert [len(re.findall(r"^(?:ok|failed) +connection", report, re.MULTILINE)) for report in reports] == [1, 0, 1, 0]
    assert "no model 'one'" in reports[0] and "set --model_name to the name of" in " ".join(reports[0].split())
    table = printed.out[printed.out.index("\nmodel  task") :].split("\n\n")[0]
    starts = [re.split(r" {2,}", line)[:4] for line in table.strip().splitlines() if not line.startswith(" ")]
    assert [row[:3] for row in starts] == [
        ["model", "task", "result"],
        *([name, "fill_mask", "failed"] for name in ("one", "two", "three", "four")),
    ]
    assert [row[3].partition(":")[0] for row in starts[1:]] == ["model", "model files", "connection", "model"]
    assert printed.out.endswith("\n\nexit code 2\n")


def test_json_has_the_flags_and_an_object_for_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = write(tmp_path, entry("one"), entry("two", predictor_protocol="grpc-v2"), entry("three"))
    assert command.run([models, f"--predictor_host={NOBODY}", "--json"], {}) == 2
    result = json.loads(capsys.readouterr().out)
    models_of = result.pop("models")
    [flags] = result.pop("results")
    assert result == {"version": __version__, "exit_code": 2}
    assert (flags["name"], flags["status"]) == ("flags", "ok")
    assert [(report["model"], report["exit_code"]) for report in models_of] == [("one", 2), ("two", 2), ("three", 2)]
    for report in models_of:
        assert report.keys() == {"version", "model", "exit_code", "results"}
        assert [finding["name"] for finding in report["results"]] == NAMES[1:]
        assert [finding["name"] for finding in report["results"] if finding["status"] == "failed"] == ["connection"]


@pytest.mark.parametrize(("more", "code"), [([], 0), (["--strict"], 0), (["--typo"], 0), (["--typo", "--strict"], 1)])
def test_without_models_the_flags_alone_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int
) -> None:
    assert command.run([write(tmp_path), *more], {}) == code
    assert capsys.readouterr().out.endswith(f"\nexit code {code}\n")


def test_folders_of_a_repository_are_examined_and_named_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bert").symlink_to(DEMO_MODELS / "bert")
    (tmp_path / "empty").mkdir()
    flags = [f"--model_repository={tmp_path}", f"--predictor_host={NOBODY}", "--json"]
    assert command.run(flags, {}) == 2
    result = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in result["models"]] == ["bert"]
    [flags_found] = result["results"]
    assert flags_found["status"] == "warning" and "empty is not served: no config.json" in flags_found["found"]


def test_a_bad_file_exits_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", write(tmp_path, {"model_name": "a", "max_model_len": "x"}), "--predictor_host=a"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "models[0] (a): max_model_len: expected an integer" in printed.err and printed.err.count("\n") == 1


def test_the_overview_names_a_failure_before_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    fine = Finding("ok", "yes", name="address")
    doubt = Finding("warning", "max_batch_size is 1", "change it", name="batch size")
    wrong = Finding("failed", "the predictor has no model 'e5'; it has bert, squad", "add it", name="model")
    rows = [
        ("bert", "fill_mask", [fine]),
        ("e5", "text_embedding", [doubt, wrong, doubt]),
        ("squad", "?", [fine, doubt]),
    ]
    assert command.overview(rows, Terminal({}, io.StringIO())).splitlines() == [
        "model  task            result   first problem",
        "bert   fill_mask       ok",
        "e5     text_embedding  failed   model: the predictor has no model 'e5';",
        "                                it has bert, squad",
        "squad  ?               warning  batch size: max_batch_size is 1",
    ]


def subject(known: dict[str, Any], *flags: str) -> Subject:
    return Subject(*parse_config(["--predictor_host=triton:8000", *flags], {}), known)


@pytest.mark.parametrize(("status", "prepared"), [("ok", ["two"]), ("warning", ["two"]), ("failed", [])])
async def test_a_check_of_the_predictor_holds_for_its_later_models(status: Any, prepared: list[str]) -> None:
    ran, again = [], []

    async def run(subject: Subject) -> list[Finding]:
        ran.append(subject.config.model_name)
        return [Finding(status, "found", "change")]

    async def prepare(subject: Subject) -> None:
        again.append(subject.config.model_name)

    checks, known = [Check("a", run, again=prepare), Check("b", run, ("a",))], dict[str, Any]()
    reports = [
        [finding async for finding in examine(subject(known, f"--model_name={name}"), checks)]
        for name in ("one", "two")
    ]
    assert [[(one.name, one.status, one.repeated) for one in findings] for findings in reports] == [
        [("a", status, repeated), ("b", "skipped" if status == "failed" else status, False)]
        for repeated in (False, True)
    ]
    assert again == prepared
    assert ran == (["one"] if status == "failed" else ["one", "one", "two"])
    assert list(known) == ["a"]
