"""The benchmarks' command line, imports and references, checked in the service's environment."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from benchmarks.cases import CLASSIFIER, SHORT_TEXTS, TEXT_COUNT, Case, Cell, requests_of, texts_of
from benchmarks.checkouts import chosen_cells
from benchmarks.goals import Goal
from benchmarks.grpc_load import infer_bodies, run_grpc
from benchmarks.load import run_wrk, v1_bodies
from benchmarks.measuring import Result, Sample
from benchmarks.options import parse
from benchmarks.pairs import paired
from benchmarks.processes import RESULTS
from benchmarks.report import command_of, spread
from hf_transformer.config.options import all_options
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_help_of_the_speed_benchmark_needs_no_more_than_the_service() -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], "make bench"),
        (["--quick"], "make bench ARGS=--quick"),
        (["--quick", "--rounds", "3"], 'make bench ARGS="--quick --rounds 3"'),
        (["--seconds", "3"], 'make bench ARGS="--seconds 3"'),
        (["--only", "wrk", "--only", "fill_mask, 9"], "make bench ARGS=\"--only wrk --only 'fill_mask, 9'\""),
    ],
)
def test_the_results_name_their_command(argv: list[str], command: str) -> None:
    options = parse(argv)
    assert command_of(("--quick" * options.quick + options.non_default).strip()) == command


def test_quick_results_stay_out_of_the_committed_pages() -> None:
    assert parse([]).results == RESULTS
    quick = parse(["--quick", "--goals"]).results
    assert subprocess.run(["git", "check-ignore", "--quiet", quick / "goals.md"], cwd=ROOT, check=False).returncode == 0
    assert parse(["--quick", "--results", "mine"]).results == Path("mine")


def test_a_checkout_is_a_name_and_a_folder_with_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--checkout", f"this={ROOT}"])
    [checkout] = options.checkout
    assert (checkout.name, checkout.folder, options.rounds) == ("this", ROOT, 9)
    assert checkout.version(Path(sys.executable), own_python=False)
    for wrong in (f"this={tmp_path}", "this", f"={ROOT}"):
        with pytest.raises(SystemExit):
            parse(["--checkout", wrong])
        assert "is not NAME=PATH" in capsys.readouterr().err


def test_a_comparison_has_the_cells_that_only_selects() -> None:
    options = parse(["--checkout", f"this={ROOT}", "--only", "service, gRPC; fill_mask", "--only", "270 words, 1 at"])
    plan = chosen_cells(options, options.services())
    assert {form: [cell.name for cell in cells] for form, cells in plan.items()} == {
        "service, REST": [
            "classifier, 270 words, 1 at a time",
            "classifier, short, 1 at a time, beside 270 words, 1 at a time",
            "minilm, 270 words, 1 at a time",
        ],
        "service, gRPC": ["fill_mask, 9 tokens, 16 at a time", "fill_mask, 9 tokens, 1 at a time"],
    }
    with pytest.raises(SystemExit, match="selects nothing"):
        chosen_cells(parse(["--only", "no such cell"]), options.services())


def test_the_texts_of_a_case_vary_and_repeat_between_runs(tmp_path: Path) -> None:
    letters = [a + b + c for a in "abcdefghijklmnopqrstu" for b in "aeiou" for c in "lmnrst"] * 10
    words = ["[CLS]", "the", *(f"{word}{number}" for number, word in enumerate(letters))]
    vocabulary = [re.sub(r"\d", lambda found: "bcdfghjklm"[int(found[0])], word) for word in words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    short, long = (texts_of(Case(CLASSIFIER, lengths), tmp_path) for lengths in ("short", "400 words"))
    assert short == texts_of.__wrapped__(Case(CLASSIFIER, "short"), tmp_path)
    assert len(set(short)) > TEXT_COUNT / 2 and len({len(text.split()) for text in short}) > 8
    assert len(set(long)) == TEXT_COUNT and {len(text.split()) for text in long} == {400}
    together = requests_of(Case(CLASSIFIER, "short", texts=16), tmp_path)
    assert {len(texts) for texts in together} == {16} and together[0] != together[1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_requests_of_wrk_have_texts_in_rotation_and_a_trace_of_their_own() -> None:
    seen: list[tuple[bytes, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((body, self.headers["traceparent"], self.headers["x-request-id"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Stays silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        bodies = v1_bodies([["one"], ["two"], ["three"]])
        load = run_wrk(f"http://127.0.0.1:{server.server_port}/v1/models/m:predict", bodies, 1, 1)
        server.shutdown()
        thread.join()
    assert load.requests and not load.errors
    assert {body for body, _, _ in seen[:3]} == {body.content for body in bodies}
    assert [body for body, _, _ in seen[3:]] == [body for body, _, _ in seen[:-3]]
    assert all(re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", trace) for _, trace, _ in seen)
    assert len({trace for _, trace, _ in seen}) == len({name for _, _, name in seen}) == len(seen)


def test_grpc_calls_have_texts_in_rotation_and_a_trace_of_their_own() -> None:
    seen: list[tuple[bytes, str, str]] = []

    def infer(body: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        seen.append((body, metadata["traceparent"], metadata["x-request-id"]))
        return b"" if len(seen) == 3 else b"answer"

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    bodies = infer_bodies("m", [["one"], ["two", "three"]])
    load = run_grpc(port, bodies, 2, 0.2)
    server.stop(None).wait()
    assert (load.requests, load.errors) == (len(seen), 1)
    assert {body for body, _, _ in seen} == set(bodies)
    assert pb.ModelInferRequest.FromString(bodies[1]).inputs[0].shape == [2]
    assert len({trace for _, trace, _ in seen}) == len({name for _, _, name in seen}) == len(seen)


def test_a_goal_takes_the_best_peer_without_errors() -> None:
    cell = Cell(SHORT_TEXTS, 1)

    def result(system: str, rates: list[float], errors: int = 0) -> Result:
        samples = (Sample(rate, 1.0, 1.0, None, None, errors, 0.1, None, None) for rate in rates)
        return Result(cell, system, tuple(samples))

    goal = Goal("twice as many", cell, "ours", "per_second", 2, ("slow", "fast", "broken"), at_least=True)
    measured = [result("ours", [6.0] * 6), result("slow", [1.0] * 6), result("fast", [2.0] * 6)]
    ratio = goal.value([*measured, result("broken", [9.0] * 6, errors=1)])
    assert ratio is not None and (ratio.median, ratio.interval) == (3.0, (3.0, 3.0))
    assert goal.row(ratio) == "| twice as many | at least 2 | 3.000 | 3.000 to 3.000 | yes |"
    assert goal.value(measured[1:]) is None
    assert spread(measured[0], "per_second") == "6 (6 to 6)" and spread(measured[0], "own_cpu_ms") == "-"


def test_the_flags_of_the_services_are_declared() -> None:
    """The service ignores unknown flags, so the table would name a wrong configuration."""
    declared = {f"--{option.name}" for option in all_options()}
    forms = parse([]).services()
    assert forms and {flag.partition("=")[0] for flags in forms.values() for flag in flags} <= declared


@pytest.mark.parametrize(
    ("rounds", "interval"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15))]
)
def test_the_interval_of_paired_ratios(rounds: int, interval: tuple[float, float] | None) -> None:
    """The ranks are in any table of the sign test."""
    ratio = paired([10.0 * factor for factor in range(rounds, 0, -1)], [10.0] * rounds)
    assert ratio.median == (rounds + 1) / 2
    assert ratio.interval == interval


def test_references_to_benchmarks_exist() -> None:
    documents = [ROOT / "README.md", ROOT / "Makefile", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*")]
    code = [*ROOT.glob("scripts/*"), *ROOT.glob(".ci/*"), *ROOT.glob("hf_transformer/**/*.py")]
    mentions = 0
    for path in (path for path in (*documents, *code) if path.is_file()):
        text = path.read_text()
        for name in re.findall(r"-m benchmarks\.(\w+)", text):
            assert (ROOT / "benchmarks" / f"{name}.py").is_file(), f"{path}: {name}"
        for name in re.findall(r"benchmarks/([\w/]+\.\w+)", text):
            assert (ROOT / "benchmarks" / name).is_file(), f"{path}: {name}"
        mentions += "benchmarks" in text
    assert mentions


def test_parts_written_by_hand_exist() -> None:
    page = (ROOT / "docs" / "by_hand.md").read_text()
    parts = re.findall(r"^\| `([\w/]+\.py)`", page, re.MULTILINE)
    assert parts and [part for part in parts if not (ROOT / "hf_transformer" / part).is_file()] == []


def test_benchmarks_import_existing_names() -> None:
    """It parses the files, because some benchmarks need libraries of other environments."""
    imported = {
        (str(node.module), alias.name)
        for path in (ROOT / "benchmarks").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("hf_transformer", "tests")
        for alias in node.names
    }
    assert imported
    for module, name in sorted(imported):
        known = hasattr(importlib.import_module(module), name)
        assert known or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"
