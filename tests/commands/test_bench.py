"""The parts of hf-transformer bench: the load generator against scripted servers, requests, the sweep, the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from hf_transformer.commands import cli
from hf_transformer.commands.bench import command
from hf_transformer.commands.bench.load import Figures, LoadRun, Target
from hf_transformer.commands.bench.report import Measured, Report, html
from hf_transformer.commands.bench.requests import made_up, read_lengths, read_texts
from hf_transformer.commands.bench.sweep import Setup, Trial, sweep, triton_means, with_entry
from hf_transformer.errors import ConfigError, LoadError
from tests.predictor.fault_server import Connection, nobody, scripted

ROOT = Path(__file__).parents[2]
TIMING = "Server-Timing: tokenize;dur=0.500, predict;dur=2.000"


def server_at(address: str) -> Target:
    host, _, port = address.rpartition(":")
    return Target(host, int(port))


async def loaded(address: str, *, connections: int = 2, seconds: float = 0.3, streamed: bool = False) -> Figures:
    """A run without a warm-up against a server."""
    server = server_at(address)
    run = LoadRun(server, [server.request("/predict", {"text": text}) for text in "ab"], seconds, 0.0, streamed)
    return await run.send(connections)


async def test_requests_are_sent_in_turn_and_timed() -> None:
    seen: Counter[bytes] = Counter()

    async def answer(connection: Connection) -> None:
        while True:
            _, body = await connection.request()
            seen[body] += 1
            await connection.answer("200 OK", b"{}", TIMING)

    async with scripted(answer) as address:
        found = await loaded(address)
    assert len(found.latencies) == sum(seen.values()) > 0
    assert abs(seen[b'{"text":"a"}'] - seen[b'{"text":"b"}']) <= 1
    assert not found.errors and found.seconds > 0 and found.per_second(10) > 0
    # The first of the two connections reads it.
    assert found.timed > 0
    assert {name: total / found.timed for name, total in found.stages.items()} == {
        "tokenize": pytest.approx(0.5),
        "predict": pytest.approx(2.0),
    }


async def test_a_warm_up_is_not_counted() -> None:
    async def answer(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.answer("503 Service Unavailable", b"warming up")

    async with scripted(answer) as address:
        server = server_at(address)
        found = await LoadRun(server, [server.request("/", {})], 0.001, 0.2).send(1)
    assert sum(found.errors.values()) <= 1


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        pytest.param([b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull"], "429 full", id="refused"),
        pytest.param([b"SSH-2.0\r\n"], "the answer is not HTTP", id="not HTTP"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], "ended without an answer", id="cut off"),
    ],
)
async def test_failures_are_counted_by_reason(answers: Sequence[bytes], says: str) -> None:
    async def answer(connection: Connection) -> None:
        await connection.request()
        for part in answers:
            await connection.send(part)

    async with scripted(answer) as address:
        found = await loaded(address)
    assert not found.latencies
    assert [why for why in found.errors if says in why], found.errors


async def test_nobody_listens() -> None:
    found = await loaded(nobody())
    assert found.errors and all(why.startswith("no connection: ") for why in found.errors)


async def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    async def answer(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", b"{}", "Connection: close")

    async with scripted(answer) as address:
        found = await loaded(address)
    assert len(found.latencies) > 2 and not found.errors


async def test_tokens_of_streams() -> None:
    events: list[Any] = [{"choices": [{"text": text}]} for text in ("a", "", "b")]
    events.append({"choices": [], "usage": {"completion_tokens": 3}})
    content = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"

    async def answer(connection: Connection) -> None:
        while True:
            await connection.request()
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            # An event may be cut anywhere.
            parts = [content[:30], content[30:]]
            await connection.send(head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts))
            await connection.send(b"0\r\n\r\n")

    async with scripted(answer) as address:
        found = await loaded(address, connections=1, streamed=True)
    streams = len(found.latencies)
    assert streams > 0 and not found.errors
    assert (found.tokens, len(found.first), len(found.gaps)) == (3 * streams, streams, streams)


async def test_an_error_within_a_stream() -> None:
    async def answer(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.answer("200 OK", b'data: {"error": "no room"}\n\n')

    async with scripted(answer) as address:
        found = await loaded(address, connections=1, streamed=True)
    assert set(found.errors) == {"no room"} and not found.latencies


def test_lengths_of_made_up_texts() -> None:
    assert {len(text.split()) for text in made_up(read_lengths("3,10-12"))} == {3, 10, 11, 12}
    assert made_up(read_lengths("5")) == made_up(read_lengths("5"))


@pytest.mark.parametrize("text", ["0", "8-4", "x", "3,,4"])
def test_lengths_that_are_none(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", f"--words={text}"])
    assert "expected numbers or ranges of words" in capsys.readouterr().err


def test_texts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text('plain\n\n{"question": "q", "context": "c"}\n{no json\n"quoted"\n')
    assert read_texts(file) == ["plain", {"question": "q", "context": "c"}, "{no json", "quoted"]
    with pytest.raises(ConfigError, match="can't be read"):
        read_texts(tmp_path / "none")


CONFIG = """name: "m"
# instance_group [ in a comment
parameters { key: "dynamic_batching {" value { string_value: "]" } }
dynamic_batching { preferred_batch_size: [ 4 ] }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def test_entries_of_a_config() -> None:
    lines = CONFIG.splitlines()
    changed = with_entry(CONFIG, "dynamic_batching", "{ }").splitlines()
    assert [line for line in changed if line] == [*lines[:3], lines[4], "dynamic_batching { }"]
    removed = with_entry(CONFIG, "instance_group", "").splitlines()
    assert [line for line in removed if line] == lines[:4]
    assert with_entry(CONFIG, "ensemble_scheduling", "") == CONFIG


def test_means_of_tritons_statistics() -> None:
    def counters(requests: int) -> Any:
        stages = {name: {"count": requests, "ns": requests * 2_000_000} for name in ("success", "queue")}
        return {"inference_stats": stages, "execution_count": requests // 4, "inference_count": requests * 2}

    found = triton_means(counters(8), counters(24))
    assert (found["queue"], found["compute_infer"], found["rows per run"]) == (2.0, 0.0, 8.0)
    assert triton_means(counters(8), counters(8)) == {}


class PretendedSetup:
    """A service whose throughput follows from its settings; one value does not run."""

    def __init__(self, gains: dict[str, float], settings: list[list[str]]) -> None:
        self.gains, self._settings = gains, settings
        self.throughput = 0.0

    def settings(self) -> list[list[str]]:
        return self._settings

    def restart(self, choices: Sequence[str] = ()) -> Target:
        self.throughput = 1000.0
        for choice in choices:
            if choice == "--fails":
                raise LoadError("it does not start")
            self.throughput *= self.gains.get(choice, 1.0)
        return Target("127.0.0.1", 1)

    def measure(self, server: Target, title: str) -> Figures:
        found = Figures(seconds=1.0)
        found.latencies.extend([0.001] * int(self.throughput))
        return found


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        pytest.param({"--a=2": 1.5, "--a=3": 1.2, "b": 1.1}, r"Use --a=2, no b: \+65% throughput", id="two settings"),
        pytest.param({"--a=2": 1.01}, r"Keep the settings: .* \(7 trials, noise 3%\)", id="less than the noise"),
        pytest.param({"--a=2": 0.5, "b": 0.5}, "Keep the settings", id="worse"),
    ],
)
def test_a_sweep_recommends_what_gains(gains: dict[str, float], verdict: str) -> None:
    setup, told = PretendedSetup(gains, [["--a=2", "--a=3"], ["--fails"], ["b", "b { }"]]), []
    trials, found = sweep(cast(Setup, setup), setup.measure, lambda share, trial: told.append(share))
    assert re.match(verdict, found), found
    assert len(trials) == len(told) and told[-1] <= 1.0
    [broken] = [one for one in trials if one.figures is None]
    assert broken.note == "it does not start" and broken.throughput == 0.0


def test_a_sweep_of_a_service_that_fails_as_it_is() -> None:
    setup = PretendedSetup({}, [])

    def measure(server: Target, title: str) -> Figures:
        return Figures(errors=Counter({"503": 3}))

    with pytest.raises(LoadError, match="already fail"):
        sweep(cast(Setup, setup), measure, lambda share, trial: None)


class Page(HTMLParser):
    """The texts of a page, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_and_escapes_texts() -> None:
    figures = Figures(seconds=1.0, timed=2, busy=0.9)
    figures.latencies.extend([0.002, 0.004])
    figures.stages.update({"tokenize": 1.0, "predict": 3.0})
    figures.errors["500 <script>"] = 3
    runs = [Measured(1, figures, {"queue": 0.1}), Measured(8, Figures(), {})]
    trials = [Trial(("--a=<b>",), figures), Trial(("--c",), None, "no <start>")]
    text = html(Report({"model": "<m>"}, runs, 1, False, trials, "Use --a=<b>"))
    page = Page(text)
    assert not page.loads and not page.tags["script"] and not page.tags["m"] and not page.tags["b>"]
    assert (page.tags["table"], page.tags["svg"]) == (4, 2)
    for part in ("&lt;m&gt;", "500 &lt;script&gt;", "Use --a=&lt;b&gt;", "no &lt;start&gt;", "Triton: queue"):
        assert part in text
    assert "nan" not in text.lower() and "used 90% of a processor" in text


def test_a_running_service_is_not_swept(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--url=http://localhost:1", "--sweep"]) == 2
    assert "the settings of a running service can't be changed from here" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a/path", "http://a:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        command.address(url)


def test_a_service_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", f"--url=http://{nobody()}"]) == 1
    assert re.search(r"does not answer: .*\(see hf-transformer bench --help\)$", capsys.readouterr().err.strip())


def test_the_page_and_the_help_name_the_same_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    flags = set(re.findall(r"^  --([a-z]+(?:_[a-z]+)*)", capsys.readouterr().out, re.MULTILINE))
    page = (ROOT / "docs" / "bench.md").read_text().partition("## Flags")[2]
    assert set(re.findall(r"^\| `--(\w+)` \|", page, re.MULTILINE)) == flags - {"help"}


def test_the_table_has_rates_and_percentiles() -> None:
    figures = Figures(seconds=2.0)
    figures.latencies.extend([number / 1000 for number in range(1, 102)])
    head, [row] = Report({}, [Measured(4, figures, {})], texts=2, streamed=False).speeds
    assert dict(zip(head, row, strict=True)) == {
        "connections": "4",
        "requests/s": "50.5",
        "texts/s": "101",
        "p50 ms": "51.0",
        "p90 ms": "91.0",
        "p99 ms": "100",
        "p99.9 ms": "101",
        "errors": "0",
    }
