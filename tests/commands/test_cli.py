"""The command line: subcommands, help, errors, exit codes, terminal output."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from hf_transformer import __version__
from hf_transformer.commands import cli
from hf_transformer.commands.terminal import Terminal, bar, table
from hf_transformer.config.manual import groups_of, help_about, option_help, overview
from hf_transformer.config.options import all_options
from hf_transformer.errors import ConfigError, LoadError

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "tokenizers", "transformers", "aiohttp", "grpc", "starlette", "uvicorn", "asyncio", "yaml"}
COMMANDS = {name: does for name, (_, does) in cli.COMMANDS.items()}


class Recorder(ModuleType):
    """A command's module that records its calls, and returns or raises ``outcome``."""

    def __init__(self, outcome: int | BaseException) -> None:
        super().__init__("recorder")
        self.outcome = outcome
        self.calls: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        self.calls.append((list(argv), environ))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restores the signal handlers of the tests' process."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    former = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, former, strict=True):
        signal.signal(number, handler)


def install(monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException, name: str = "serve") -> Recorder:
    recorder = Recorder(outcome)
    monkeypatch.setitem(sys.modules, f"hf_transformer.commands.{cli.COMMANDS[name][0]}", recorder)
    return recorder


def python(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("argv", "command", "rest"),
    [
        ([], "serve", []),
        (["--http_port", "1"], "serve", ["--http_port", "1"]),
        (["serve", "--http_port=1"], "serve", ["--http_port=1"]),
        (["demo"], "demo", []),
        (["demo", "--http_port", "0"], "demo", ["--http_port", "0"]),
        (["help", "doctor"], "doctor", ["--help"]),
        (["--help=doctor"], "doctor", ["--help"]),
    ],
)
def test_the_first_word_selects_the_command(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str, rest: list[str]
) -> None:
    recorder = install(monkeypatch, 7, command)
    assert cli.main(argv) == 7
    assert recorder.calls == [(rest, os.environ)]


def test_signals_are_handled_before_the_service_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler, process 1 of a container ignores them."""

    def importing(name: str) -> ModuleType:
        signal.raise_signal(signal.SIGTERM)
        return Recorder(1)

    monkeypatch.setattr(cli, "import_module", importing)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("raised", "code", "stderr"),
    [
        (ConfigError("--a: expected\n b"), 2, "hf-transformer: error: --a: expected b (see hf-transformer --help)\n"),
        (
            ConfigError("LOG_LEVEL: expected c"),
            2,
            "hf-transformer: error: LOG_LEVEL: expected c (see hf-transformer --help=log_level)\n",
        ),
        (
            LoadError("no tokenizer"),
            1,
            "hf-transformer: error: no tokenizer (run hf-transformer doctor with the same flags to find the cause)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["config", "a variable", "load", "interrupt"],
)
def test_known_errors_are_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    code: int,
    stderr: str,
) -> None:
    install(monkeypatch, raised)
    assert cli.main([]) == code
    assert capsys.readouterr() == ("", stderr)


def test_unknown_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main([])


def test_an_unknown_subcommand_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sreve"]) == 2
    expected = (
        "hf-transformer: error: unknown subcommand 'sreve', expected one of serve, doctor, export, bench, demo, help, "
        "version; did you mean serve? (see hf-transformer help)\n"
    )
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        pytest.param(["dmeo"], "demo", id="a command"),
        pytest.param(["hlep", "limits"], "help", id="help"),
        pytest.param(["help", "exprot"], "export", id="help on a command"),
        pytest.param(["--help=limts"], "limits", id="a group of flags"),
        pytest.param(["help", "htp_port"], "http_port", id="help on a flag"),
        pytest.param(["bench", "--concurency=3"], "--concurrency", id="a flag of bench"),
        pytest.param(["bench", "--words=3", "--servce-flags", "x"], "--service_flags", id="a flag with a value"),
        pytest.param(["demo", "--task=fil-mask"], "fill_mask", id="a task"),
        pytest.param(["demo", "--task=al"], "all", id="all tasks"),
    ],
)
def test_a_mistyped_word_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], argv: list[str], suggestion: str
) -> None:
    try:
        code = cli.main(argv)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    assert code == 2
    assert f"; did you mean {suggestion}? (see hf-transformer" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["bench", "--qqqq=1"], ["xyzzy"], ["help", "xyzzy"], ["demo", "stray"]])
def test_a_word_like_no_other_suggests_nothing(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) if argv[0] in ("bench", "demo") else nullcontext():
        cli.main(argv)
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--version"], ["serve", "--version"], ["version"]])
def test_version_is_printed(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"hf-transformer {__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["serve", "--http_port=abc", "--help"], ["help"]])
def test_help_is_the_overview(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == overview(all_options(), COMMANDS, 100)


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_fits_one_screen_and_names_commands_and_groups(width: int) -> None:
    text = overview(all_options(), COMMANDS, width)
    assert text.startswith("Usage: hf-transformer [serve] --predictor_host=")
    lines = text.splitlines()
    assert len(lines) <= 48 and max(map(len, lines)) <= max(width, 84)
    for name in (*COMMANDS, "help", "version"):
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE)
    for title in groups_of(all_options()):
        [key] = re.findall(rf"^  (\w+) +{title}: ", text, re.MULTILINE)
        assert help_about(key, all_options(), width).startswith(f"{title}\n")


@pytest.mark.parametrize("width", [80, 120])
def test_the_whole_help_fits_the_terminal_and_names_everything(width: int) -> None:
    text = help_about("all", all_options(), width)
    assert max(len(line) for line in text.splitlines()) <= max(width, 84)
    for option in all_options():
        entry = option_help(option, width)
        assert entry in text and entry.startswith(f"  {option.flag}")
        words = " ".join(entry.split())
        assert option.help in words
        assert f"default: {option.shown_default}" in words or not option.shown_default
        assert all(variable.name in words for variable in option.all_variables)
        assert all(f"--{alias}" in words for alias in option.aliases)


@pytest.mark.parametrize("argv", [["--help=max-batch-tokens"], ["help", "max_batch_tokens"]])
def test_help_about_a_flag_is_its_entry(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert cli.main(argv) == 0
    assert re.findall(r"^  --(\w+)", capsys.readouterr().out, re.MULTILINE) == ["max_batch_tokens"]


def test_help_about_an_unknown_topic_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help=max_batch_token"]) == 2
    message = capsys.readouterr().err
    assert "one of model, answers, generation, predictor, several, server, limits, logging, accepted, all" in message
    assert "did you mean max_batch_tokens?" in message


@pytest.mark.parametrize("command", ["bench", "export"])
def test_the_page_and_the_help_name_the_same_flags(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([command, "--help"])
    assert raised.value.code == 0
    flags = set(re.findall(r"^  --([a-z]+(?:_[a-z]+)*)", capsys.readouterr().out, re.MULTILINE))
    page = (ROOT / "docs" / f"{command}.md").read_text().partition("## Flags")[2]
    assert set(re.findall(r"^\| `--(\w+)` \|", page, re.MULTILINE)) == flags - {"help"}


def test_help_and_version_import_nothing_heavy() -> None:
    for argv in (["--help"], ["--version"]):
        code = f"import sys; from hf_transformer.commands.cli import main; main({argv}); print(*sys.modules, sep='\\n')"
        answer = python("-c", code)
        assert answer.returncode == 0, answer.stderr
        modules = set(answer.stdout.split())
        assert "hf_transformer.commands.cli" in modules
        assert modules & HEAVY == set()


def test_a_bad_value_or_variable_ends_the_process_with_one_line() -> None:
    answer = python("-m", "hf_transformer", "--http_port=abc")
    expected = "hf-transformer: error: --http_port: expected an integer from 0 to 65535, got 'abc' (see hf-transformer "
    expected += "--help=http_port)\n"
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", expected)
    answer = python("-m", "hf_transformer", "--predictor_host=triton", HF_TRANSFORMER_WORKERS="0")
    expected = "hf-transformer: error: HF_TRANSFORMER_WORKERS: expected an integer from 1 to 1024, got '0' "
    expected += "(see hf-transformer --help=workers)\n"
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", expected)


@pytest.mark.parametrize(
    ("argv", "stream"),
    [
        (["--help=all"], "stdout"),
        (["doctor", "--help"], "stdout"),
        (["doctor", "--predictor_host=127.0.0.1:1"], "stdout"),
        (["sreve"], "stderr"),
    ],
)
def test_a_closed_pipe_causes_no_traceback(argv: list[str], stream: str) -> None:
    read, write = os.pipe()
    os.close(read)
    out, err = (write if stream == name else subprocess.PIPE for name in ("stdout", "stderr"))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "hf_transformer", *argv]
    with subprocess.Popen(command, cwd=ROOT, env=environ, text=True, stdout=out, stderr=err) as process:
        os.close(write)
        assert not any(process.communicate(timeout=60))
    assert process.returncode == 128 + signal.SIGPIPE


def test_the_reference_page_is_current() -> None:
    answer = python("scripts/config_docs", "--check")
    assert (answer.returncode, answer.stderr) == (0, "")


def printed(environ: Mapping[str, str], *, live: bool) -> str:
    """The output for a progress line and a styled line."""
    if not live:
        stream = io.StringIO()
        terminal = Terminal(environ, stream)
        terminal.progress("half")
        terminal.say(terminal.styled("done", "bold", "green"))
        return stream.getvalue()
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as file:
        terminal = Terminal(environ, file)
        terminal.progress("half")
        terminal.say(terminal.styled("done", "bold", "green"))
        text = ""
        while not text.endswith("done\x1b[0m\r\n" if terminal.coloured else "done\r\n"):
            text += os.read(master, 1000).decode()
    os.close(master)
    return text


@pytest.mark.parametrize(
    ("environ", "live", "expected"),
    [
        pytest.param({}, True, "\r\x1b[2mhalf\x1b[0m\x1b[K\r\x1b[K\x1b[1;32mdone\x1b[0m\r\n", id="a terminal"),
        pytest.param({"NO_COLOR": "1"}, True, "\rhalf\x1b[K\r\x1b[Kdone\r\n", id="without colours"),
        pytest.param({"TERM": "dumb"}, True, "done\r\n", id="a dumb terminal"),
        pytest.param({}, False, "done\n", id="a file"),
    ],
)
def test_colours_and_progress_are_for_terminals(environ: Mapping[str, str], live: bool, expected: str) -> None:
    assert printed(environ, live=live) == expected


def test_a_table_aligns_numbers_to_the_right() -> None:
    text = table(["load", "p50"], [["1", "9.5"], ["32", "123.0"]], Terminal({}, io.StringIO()))
    assert text.splitlines() == ["load    p50", "1       9.5", "32    123.0"]


@pytest.mark.parametrize(("done", "expected"), [(-1, "[....]"), (0.5, "[##..]"), (2, "[####]")])
def test_a_bar_is_clamped_to_its_width(done: float, expected: str) -> None:
    assert bar(done, 4) == expected
