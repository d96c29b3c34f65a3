"""The command's flags, docs/export.md, which names them, and what it says when it can't even begin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_transformer.commands.cli import main
from hf_transformer.commands.export import command
from hf_transformer.commands.export.command import parse
from hf_transformer.commands.export.config_pbtxt import TOP_K
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tokenizer.model_files import find_model_files

ROOT = Path(__file__).parents[2]
GIVEN = ["--model_id=org/bert-base", "--output=models"]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `--(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
"""The page's table of flags: flag -> default."""


def test_defaults() -> None:
    found = parse(GIVEN, {"HF_TOKEN": "secret"})
    assert (found.model_id, found.output, found.model_name) == ("org/bert-base", Path("models"), "bert-base")
    for name in ("format", "max_batch_size", "precision", "instances"):
        assert ROWS[name] == str(getattr(found, name))
    assert ROWS["dynamic_batching"] == "true" and found.dynamic_batching
    assert (ROWS["top_k"], ROWS["tolerance"]) == (str(TOP_K), f"{found.tolerance}, fp16 0.05")
    assert (found.inputs, found.reduce, found.top_k, found.force) == ((), False, None, False)
    assert (found.backend, parse([*GIVEN, "--format=torchscript"], {}).backend) == ("onnxruntime", "pytorch")
    assert found.token == "secret" and "secret" not in repr(found)


def test_flags_in_both_spellings() -> None:
    given = (
        "--model_name=capitals --format=torchscript --backend=python --inputs=input_ids,attention_mask "
        "--max_batch_size=8 --dynamic_batching=false --reduce --top_k=3 --tolerance=0.1 --trust_remote_code --token=t"
    ).split()
    found = parse([*GIVEN, *given], {})
    parts = [flag.partition("=") for flag in given]
    assert found == parse([*GIVEN, *(name.replace("_", "-") + equals + value for name, equals, value in parts)], {})
    assert (found.model_name, found.format, found.backend) == ("capitals", "torchscript", "python")
    assert (found.inputs, found.max_batch_size, found.dynamic_batching) == (("input_ids", "attention_mask"), 8, False)
    assert (found.top_k, found.tolerance, found.trust_remote_code, found.token) == (3, 0.1, True, "t")


def test_a_local_folder_may_be_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bert").mkdir()
    found = parse(["--model_id=~/bert/", "--output=models"], {})
    assert (found.model_id, found.model_name) == (str(tmp_path / "bert"), "bert")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--backend=pytorch"], "--backend=pytorch: does not run --format=onnx, expected onnxruntime or python"),
        (["--model_name=a b"], "--model_name=a b: expected a name without spaces"),
        (["--model_name=.."], "no dot first"),
        (["--top_k=3"], "--top_k: belongs to --reduce"),
        (["--backend=python", "--output=my models"], "--output=my models: a path with spaces"),
    ],
)
def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse([*GIVEN, *flags], {})
    assert says in str(raised.value)
    assert main(["export", *GIVEN, *flags]) == 2
    assert capsys.readouterr().err == f"hf-transformer: error: {raised.value} (see hf-transformer export --help)\n"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--format=gguf"], "argument --format: invalid choice: 'gguf'"),
        (
            ["--max_batch_size=0"],
            "argument --max_batch_size/--max-batch-size: expected an integer of 1 or more, got '0'",
        ),
        (["--dynamic_batching=maybe"], "expected true or false (or 1/0, yes/no, on/off), got 'maybe'"),
        (["--tolerance=nan"], "expected a number of at least 0, got 'nan'"),
        (["--quantize"], "unrecognized arguments: --quantize"),
    ],
)
def test_bad_values(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["export", *GIVEN, *flags])
    assert raised.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("form", "names"), [("onnx", "torch, onnx, onnxruntime"), ("torchscript", "torch")])
def test_missing_libraries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, names: str
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    flags = [f"--model_id={tmp_path}", f"--output={tmp_path / 'models'}", f"--format={form}"]
    assert main(["export", *flags]) == 1
    expected = (
        f"hf-transformer: error: export needs {names}: pip install 'hf-transformer[export]' (see hf-transformer "
        "export --help)\n"
    )
    assert capsys.readouterr() == ("", expected)
    assert not (tmp_path / "models").exists()


def test_errors_of_shared_code_name_its_own_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(settings: object, target: Path, terminal: object) -> None:
        find_model_files(str(tmp_path), str(tmp_path))

    monkeypatch.setattr(command, "find_spec", lambda name: sys)
    monkeypatch.setattr(command, "export", export)
    with pytest.raises(LoadError) as raised:
        command.run([f"--model_id={tmp_path}", f"--output={tmp_path / 'models'}", "--model_name=new"], {})
    assert "--model_dir" not in str(raised.value) and "--model_id" in str(raised.value)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_the_weights_themselves_are_not_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, force: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: sys)
    source = tmp_path / "bert"
    (source / "deeper").mkdir(parents=True)
    (source / "config.pbtxt").write_text("")
    for inside in (source, source / "deeper"):
        flags = [f"--model_id={inside}", f"--output={tmp_path}", "--model_name=bert", *force]
        assert main(["export", *flags]) == 2
        assert "which would be gone" in capsys.readouterr().err
    assert main(["export", f"--model_id={tmp_path}", f"--output={tmp_path}", "--model_name=bert"]) == 2
    assert "exists already; --force replaces it" in capsys.readouterr().err


UNTIL_TOLD = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup this
from hf_transformer.commands.export import command
from hf_transformer.commands.export.repository import new_folder

def half(settings, target, terminal):
    with new_folder(target, force=False) as made:
        (made / "half").write_text("")
        while True:
            print("writing", flush=True)
            time.sleep(0.05)

command.export = half
command.find_spec = lambda name: sys
from hf_transformer.commands.cli import main
sys.exit(main(["export", "--model_id=org/bert", "--output=" + sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE], ids=lambda number: number.name
)
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Python gives no SIGPIPE: there it is the reader that leaves, such as ``head``."""
    program = [sys.executable, "-c", UNTIL_TOLD, str(tmp_path / "new" / "models")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "writing\n"
        assert list((tmp_path / "new").rglob("half"))
        process.stdout.close() if number == signal.SIGPIPE else process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []
