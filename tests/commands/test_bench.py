"""hf-transformer bench: the load generator against scripted servers, requests, the sweep, the report."""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import orjson
import pytest

from hf_transformer.commands import cli
from hf_transformer.commands.bench import report
from hf_transformer.commands.bench.command import run
from hf_transformer.commands.bench.load import Figures, Target, send
from hf_transformer.commands.bench.report import errors, html, speeds, times, tried, warning
from hf_transformer.commands.bench.requests import make_plan, random_texts, read_lengths, read_texts
from hf_transformer.commands.bench.sweep import Settings, Setup, chosen, settings_text, sweep, triton_means
from hf_transformer.config.entries import ModelEntries
from hf_transformer.errors import ConfigError, LoadError
from tests.predictor.fault_server import HOST, Connection, scripted
from tests.support.service import NOBODY

Script = Callable[[Connection], Awaitable[None]]


def always(*sent: bytes) -> Script:
    """A server that answers each request with these pieces of bytes."""

    async def answer(connection: Connection) -> None:
        while True:
            await connection.request()
            for piece in sent:
                await connection.send(piece)

    return answer


async def loaded(script: Script, *, connections: int = 2, streamed: bool = False, warmup: float = 0.0) -> Figures:
    """A run against a server: 0.3 s, with a warm-up 1 ms."""
    async with scripted(script) as address:
        server = Target.at(address)
        requests = [server.request("/predict", {"text": text}) for text in "ab"]
        return await send(server, requests, connections, 0.001 if warmup else 0.3, warmup, streamed=streamed)


async def test_requests_are_sent_in_turn_and_timed() -> None:
    seen: Counter[bytes] = Counter()

    async def answer(connection: Connection) -> None:
        while True:
            _, body = await connection.request()
            seen[body] += 1
            await connection.answer("200 OK", b"{}", "Server-Timing: tokenize;dur=0.500, predict;dur=2.000")

    figures = await loaded(answer)
    assert len(figures.latencies) == sum(seen.values()) > 0
    assert abs(seen[b'{"text":"a"}'] - seen[b'{"text":"b"}']) <= 1
    assert not figures.errors and figures.throughput > 0
    assert [figures.means[name] for name in ("tokenize", "predict")] == pytest.approx([0.5, 2.0])


async def test_a_warm_up_is_not_counted() -> None:
    refusing = always(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    figures = await loaded(refusing, connections=1, warmup=0.2)
    assert sum(figures.errors.values()) <= 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull", "429 full", id="refused"),
        pytest.param(b"SSH-2.0\r\n", "no answer: it begins with b'SSH-2.0", id="not HTTP"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            "closed the connection in the middle of its answer",
            id="cut off",
        ),
    ],
)
async def test_failures_are_counted_by_reason(answer: bytes, says: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(answer)

    figures = await loaded(script)
    assert not figures.latencies
    assert [reason for reason in figures.errors if says in reason], figures.errors


async def test_a_refused_connection_is_an_error() -> None:
    server = Target.at(NOBODY)
    figures = await send(server, [server.request("/")], 1, 0.3)
    assert figures.errors and all(reason.startswith("no answer: ") for reason in figures.errors)


async def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    async def answer(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", b"{}", "Connection: close")

    figures = await loaded(answer)
    assert len(figures.latencies) > 2 and not figures.errors


async def test_a_stream_counts_tokens_and_gaps() -> None:
    events: list[Any] = [{"choices": [{"text": text}]} for text in ("a", "", "b")]
    events.append({"choices": [], "usage": {"completion_tokens": 3}})
    content = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"
    # Chunks may split an event anywhere.
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:30], content[30:]))
    answer = always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts, b"0\r\n\r\n")
    figures = await loaded(answer, connections=1, streamed=True)
    streams = len(figures.latencies)
    assert streams > 0 and not figures.errors
    assert (figures.tokens, len(figures.first), len(figures.gaps)) == (3 * streams, streams, streams)


async def test_an_error_event_fails_the_stream() -> None:
    answer = always(b'HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\ndata: {"error": "no room"}\n\n')
    figures = await loaded(answer, connections=1, streamed=True)
    assert set(figures.errors) == {"no room"} and not figures.latencies


class ModelService:
    """The answers of a service with models by path; everything else is 404. Records the posted bodies."""

    def __init__(self, models: dict[str, list[str]], absent: str = "") -> None:
        entries: list[Any] = [{"name": name, "aliases": aliases, "adapters": []} for name, aliases in models.items()]
        entries += [{"name": absent, "ready": False}] if absent else []
        names = [name for model, aliases in models.items() for name in (model, *aliases)]
        self.pages: dict[str, Any] = {
            "/v1/models": {"models": [*names, *([absent] if absent else [])]},
            "/info": {"models": entries},
        }
        for model, aliases in models.items():
            protocols = {"v1": f"/v1/models/{model}:predict", "openai": ["/openai/v1/embeddings"]}
            about = {"name": model, "task": "text_embedding", "protocols": protocols}
            self.pages |= {f"/v1/models/{name}/info": about for name in (model, *aliases)}
        self.posted: list[tuple[str, Any]] = []

    async def __call__(self, connection: Connection) -> None:
        while True:
            headers, body = await connection.request()
            method, path, _ = headers[""].split()
            if method == "POST":
                self.posted.append((path, orjson.loads(body)))
            page = {} if method == "POST" else self.pages.get(path, {"error": "unknown"})
            await connection.answer("404 Not Found" if "error" in page else "200 OK", orjson.dumps(page))


async def planned(service: ModelService, model: str | None, api: str = "v1") -> Any:
    async with scripted(service) as address:
        flags = Namespace(api=api, max_tokens=4)
        return await asyncio.to_thread(make_plan, Target.at(address), ["a text"], flags, model)


@pytest.mark.parametrize(
    ("models", "model", "name", "served"),
    [
        pytest.param({"a": []}, None, "a", "a", id="the only one"),
        pytest.param({"a": ["b", "c"]}, None, "a", "a", id="the only one, with aliases"),
        pytest.param({"a": ["b"], "d": []}, "d", "d", "d", id="one of several"),
        pytest.param({"a": [], "d": ["models"]}, "models", "models", "d", id="an alias"),
    ],
)
async def test_the_plan_is_for_the_named_model_or_the_only_one(
    models: dict[str, list[str]], model: str | None, name: str, served: str
) -> None:
    service = ModelService(models)
    plan = await planned(service, model)
    assert (plan.model, plan.served_name, plan.path) == (name, served, f"/v1/models/{name}:predict")
    plan = await planned(service, model, "openai")
    assert service.posted == [(f"/v1/models/{name}:predict", {"instances": ["a text"]}), (plan.path, plan.bodies[0])]
    assert plan.bodies[0]["model"] == name and plan.path == "/openai/v1/embeddings"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        pytest.param(None, "--model_name is required: the service has the models a, d, x", id="several"),
        pytest.param("e", "--model_name=e: expected a model of the service: a, b, d, x", id="unknown"),
    ],
)
async def test_a_service_of_several_models_lists_them(model: str | None, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        await planned(ModelService({"a": ["b"], "d": []}, absent="x"), model)
    assert str(raised.value) == says


async def test_a_service_that_lists_no_models_of_its_own_has_one() -> None:
    service = ModelService({"a": ["b"]})
    del service.pages["/info"]
    assert (await planned(service, None)).model == "a"
    service.pages["/v1/models"] = {"models": []}
    with pytest.raises(ConfigError, match="expected a model of the service: none"):
        await planned(service, None)
    del service.pages["/v1/models"]
    with pytest.raises(LoadError, match="failed with status 404"):
        await planned(service, None)


def test_the_model_of_a_service_that_bench_starts(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("[{model_name: a, aliases: [b]}, {model_name: c, predictor_model: at_triton}]")
    several = ModelEntries([f"--models={file}", "--predictor_host=triton:8000"], {})
    assert [chosen(several, name).model_name for name in "abc"] == ["a", "a", "c"]
    for name in (None, "x"):
        with pytest.raises(ConfigError) as raised:
            chosen(several, name)
        assert str(raised.value) == f"--model_name: expected a model of {file}: a, c"
    file.write_text("[{model_name: a}]")
    assert chosen(several, None).model_name == "a"
    plain = ModelEntries(["--model_name=only", "--predictor_host=triton:8000"], {})
    assert chosen(plain, None).model_name == chosen(plain, "x").model_name == "only"


def test_random_texts_repeat_and_have_the_lengths() -> None:
    assert {len(text.split()) for text in random_texts(read_lengths("3,10-12"))} == {3, 10, 11, 12}
    assert random_texts(read_lengths("5")) == random_texts(read_lengths("5"))


@pytest.mark.parametrize("text", ["0", "8-4", "x", "3,,4"])
def test_bad_lengths_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", f"--words={text}"])
    assert "expected numbers or ranges of words" in capsys.readouterr().err


def test_a_file_has_texts_or_instances(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text('plain\n\n{"question": "q", "context": "c"}\n{no json\n"quoted"\n')
    assert read_texts(file) == ["plain", {"question": "q", "context": "c"}, "{no json", "quoted"]
    with pytest.raises(ConfigError, match="can't read the file"):
        read_texts(tmp_path / "none")
    file.write_text("\n")
    with pytest.raises(ConfigError, match="has no text"):
        read_texts(file)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "as configured"),
        ({"--max_batch_tokens": 4096, "dynamic_batching": None}, "--max_batch_tokens=4096, no dynamic_batching"),
        ({"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}, "instance_group [{count: 2, kind: KIND_CPU}]"),
        ({"dynamic_batching": {"preferred_batch_size": [4, 8]}}, "dynamic_batching {preferred_batch_size: [4, 8]}"),
    ],
)
def test_settings_have_the_syntax_of_their_files(settings: Settings, text: str) -> None:
    assert settings_text(settings) == text


def test_triton_means_are_per_request() -> None:
    def counters(requests: int) -> dict[str, int]:
        stages = {"queue": requests * 2_000_000, "compute_input": 0, "compute_infer": 0, "compute_output": 0}
        return {**stages, "requests": requests, "runs": requests // 4, "rows": requests * 2}

    means = triton_means(counters(8), counters(24))
    assert (means["queue"], means["compute_infer"], means["rows per run"]) == (2.0, 0.0, 8.0)
    assert triton_means(counters(8), counters(8)) == {}


class FakeSetup:
    """A service whose throughput depends on its settings and on the machine's speed in each run, from 0.

    It does not start with --fails.
    """

    def __init__(
        self, gains: dict[str, float], settings: dict[str, list[Any]], speed: Callable[[int], float] = lambda run: 1.0
    ) -> None:
        self.gains, self._settings, self._speed = gains, settings, speed
        self._throughput, self._run = 0.0, -1

    def settings(self) -> dict[str, list[Any]]:
        return self._settings

    def restart(self, settings: Settings) -> Target:
        self._run += 1
        self._throughput = 1000.0 * self._speed(self._run)
        for name, value in settings.items():
            if name == "--fails":
                raise LoadError("it does not start")
            self._throughput *= self.gains.get(f"{name}={value}", 1.0)
        return Target.at("127.0.0.1:1")

    def measure(self, server: Target, title: str) -> Figures:
        figures = Figures(last=1.0)
        figures.latencies.extend([0.001] * int(self._throughput))
        return figures


SETTINGS: dict[str, list[Any]] = {"--a": [2, 3], "--fails": [1], "b": [None, {"c": 1}]}
RUNS, MORE_RUNS = 11, 6
"""Runs of a sweep of SETTINGS, and further ones of the second comparison. Those of even numbers have no changes."""


def swept(gains: dict[str, float], speed: Callable[[int], float] = lambda run: 1.0) -> tuple[list[Any], str]:
    setup, shares = FakeSetup(gains, SETTINGS, speed), [0.0]
    trials, verdict = sweep(cast(Setup, setup), setup.measure, lambda share, line: shares.append(share))
    assert shares == sorted(shares) and shares[-1] <= 1.0 and len(shares) == len(trials) + 1
    return trials, verdict


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        pytest.param(
            {"--a=2": 1.5, "--a=3": 1.2, "b=None": 1.1}, r"Use --a=2, no b: \+65% throughput", id="two settings"
        ),
        pytest.param(
            {"--a=2": 1.01},
            r"Keep the settings: no setting is better than the noise \(noise ±3% in 6 runs of the current settings\)",
            id="less than the noise",
        ),
        pytest.param({"--a=2": 0.5, "b=None": 0.5}, "Keep the settings", id="worse"),
    ],
)
def test_a_sweep_recommends_what_gains(gains: dict[str, float], verdict: str) -> None:
    trials, recommendation = swept(gains)
    assert re.match(verdict, recommendation), recommendation
    assert len(trials) == RUNS + MORE_RUNS * verdict.startswith("Use")
    [broken] = [figures for _, figures in trials if figures.errors]
    assert broken.errors == Counter(["it does not start"])


def falling(run: int) -> float:
    """From 191 to 106, as on a machine that gets other work."""
    return 191 - 85 * run / (RUNS + MORE_RUNS - 1)


@pytest.mark.parametrize(
    ("gains", "speed", "verdict"),
    [
        pytest.param({}, falling, r"Keep .*noise ±\d\d%.*quiet machine", id="drift"),
        pytest.param({"--a=3": 1.18}, falling, r"Keep .*noise ±\d\d%.*quiet machine", id="a gain inside the drift"),
        pytest.param({"--a=3": 3.0}, falling, r"Use --a=3: \+1[89]\d% .*noise ±\d\d%", id="a gain beyond the drift"),
        pytest.param({}, lambda run: 0.5 + (run != 2), r"Keep .*noise ±3%", id="a slow run of the current settings"),
        pytest.param({}, lambda run: float(run != 2), r"Keep .*noise ±3%", id="a failed run of the current settings"),
        pytest.param({}, lambda run: 1 + (run == 3), r"Keep .*noise ±3%", id="a fast run of a setting"),
        pytest.param(
            {"--a=2": 1.3}, lambda run: 0.5 + (run != 4), r"Use --a=2: \+30% .*noise ±3%", id="a gain beside a slow run"
        ),
        pytest.param(
            {"--a=2": 1.3},
            lambda run: 0.5 + (run != RUNS + 2),
            r"Use --a=2: \+30% .*noise ±3%",
            id="a slow run in the second comparison",
        ),
    ],
)
def test_noise_gives_no_recommendation(gains: dict[str, float], speed: Callable[[int], float], verdict: str) -> None:
    assert re.match(verdict, recommendation := swept(gains, speed)[1]), recommendation


@pytest.mark.parametrize("step", range(1, RUNS + MORE_RUNS))
@pytest.mark.parametrize("change", [0.55, 1.8])
def test_a_machine_whose_speed_changes_gives_no_recommendation(step: int, change: float) -> None:
    _, recommendation = swept({}, lambda run: 1.0 if run < step else change)
    assert recommendation.startswith("Keep the settings"), recommendation


def test_a_sweep_stops_if_the_current_settings_fail() -> None:
    failing = Figures(errors=Counter({"503": 3}))
    with pytest.raises(LoadError, match="already fail: 503"):
        sweep(cast(Setup, FakeSetup({}, {})), lambda server, title: failing, lambda share, line: None)


def test_the_report_is_self_contained_and_escapes_texts() -> None:
    figures = Figures(1, last=1.0, timed=2, busy=0.9, triton={"queue": 0.1})
    figures.latencies.extend([0.002, 0.004])
    figures.stages.update({"tokenize": 1.0, "predict": 3.0})
    figures.errors["500 <script>"] = 3
    runs = [figures, Figures(8)]
    trials = [("--a=<b>", Figures(last=1.0)), ("--c", Figures(errors=Counter(["no <start>"])))]
    tables = [speeds(runs, streamed=False), times(runs), errors(runs), tried(trials)]
    text = html({"model": "<m>"}, [warning(runs), "Use --a=<b>"], tables)
    assert not re.search(r"<(script|m|b|link|img)\b|\b(src|href|url)\b", text)
    assert text.count("<table>") == 4
    for part in ("&lt;m&gt;", "500 &lt;script&gt;", "Use --a=&lt;b&gt;", "no &lt;start&gt;", "Triton: queue"):
        assert part in text
    assert "nan" not in text.lower() and "used 90% of a processor" in text
    assert "content-box" in text, "bars of neighbours don't touch"
    assert {"--bar:33%", "--bar:100%"} <= set(re.findall("--bar:[0-9]+%", text))


def test_url_excludes_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--url=http://localhost:1", "--sweep"]) == 2
    assert "can't change the settings of a running service" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a/path", "http://a:port"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        Target.at(url)


METRICS = "HTTP/1.1 200 OK\r\nServer: uvicorn\r\n\r\n# HELP x\n"


@pytest.mark.parametrize(
    ("pages", "server"),
    [
        pytest.param({"/v2": 'HTTP/1.1 200 OK\r\n\r\n{"name": "triton"}'}, "Triton itself", id="Triton"),
        pytest.param({"/metrics": f"{METRICS}nv_inference_count 1\n"}, "Triton's port for metrics", id="its metrics"),
        pytest.param({"/metrics": f"{METRICS}vllm:num_requests_running 1\n"}, "vLLM", id="vLLM"),
        pytest.param({"/metrics": f"{METRICS}te_request_count 1\n"}, "text-embeddings-inference", id="TEI"),
        pytest.param({"/": "HTTP/1.1 200 OK\r\nServer: nginx\r\n\r\n"}, "a server named nginx", id="nginx"),
    ],
)
@pytest.mark.parametrize("listing", ["404 Not Found", "200 OK"])
async def test_another_server_is_named(pages: dict[str, str], server: str, listing: str) -> None:
    async def answer(connection: Connection) -> None:
        path = (await connection.request())[0][""].split()[1]
        if path == "/v1/models":
            body = b'{"object": "list", "data": [{"id": "m"}]}' if listing == "200 OK" else b"<html>data"
            await connection.answer(listing, body, "Connection: close")
        else:
            await connection.send(pages.get(path, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").encode())

    async with scripted(answer) as address:
        url = f"http://user:secret@{address}"
        with pytest.raises(LoadError) as raised:
            await asyncio.to_thread(run, [f"--url={url}", "--model_name=m"], {})
    says = f"--url=http://***@{address} is {server}; bench needs the address of a service of hf-transformer"
    assert str(raised.value) == says


async def test_a_port_for_grpc_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        with pytest.raises(LoadError, match=rf"^--url={HOST}:{port} is a port for gRPC; bench needs"):
            await asyncio.to_thread(run, [f"--url={HOST}:{port}"], {})
    finally:
        await server.stop(None)


async def test_an_error_of_a_service_names_the_url() -> None:
    service = ModelService({"a": []})
    service.pages["/v1/models/a/info"] = {"error": "not ready"}
    async with scripted(service) as address:
        with pytest.raises(LoadError, match=r"^--url: GET /v1/models/a/info failed with status 404"):
            await asyncio.to_thread(run, [f"--url=http://{address}"], {})


def test_a_service_that_does_not_answer_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", f"--url=http://{NOBODY}"]) == 1
    assert re.search(
        r"error: --url: \S+ does not answer: .*; is the service running there\? \(see hf-transformer bench --help\)$",
        capsys.readouterr().err.strip(),
    )


def test_a_repository_without_the_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", f"--model_repository={tmp_path}", "--model_name=mine"]) != 0
    error = capsys.readouterr().err
    assert f"--model_repository={tmp_path}: expected" in error and "no mine/config.pbtxt" in error


def test_the_table_has_rates_and_percentiles() -> None:
    figures = Figures(4, last=2.0)
    figures.latencies.extend([number / 1000 for number in range(1, 102)])
    _, head, [row] = speeds([figures], streamed=False)
    assert head == ["connections", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "errors"]
    assert list(map(report.cell_text, row)) == ["4", "50.5", "51.0", "91.0", "100", "101", "0"]
