"""The command's flags, their table in docs/export.md, and errors before the export begins."""

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
from hf_transformer.commands.export.command import entry, parse
from hf_transformer.commands.export.config_pbtxt import TOP_K
from hf_transformer.config.entries import ModelEntries
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.extras import install_command
from hf_transformer.tokenizer.model_files import find_model_files

ROOT = Path(__file__).parents[2]
REQUIRED = ["--model_id=org/bert-base", "--output=models"]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `--(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
"""The page's table: flag -> default."""


def test_defaults_are_those_in_the_page() -> None:
    settings = parse(REQUIRED, {"HF_TOKEN": "secret"})
    assert (settings.model_id, settings.output, settings.model_name) == ("org/bert-base", Path("models"), "bert-base")
    for name in ("format", "max_batch_size", "precision", "instances"):
        assert ROWS[name] == str(getattr(settings, name))
    assert ROWS["dynamic_batching"] == "true" and settings.dynamic_batching
    assert (ROWS["top_k"], ROWS["tolerance"]) == (str(TOP_K), f"{settings.tolerance}, fp16 0.05")
    assert (settings.inputs, settings.reduce, settings.top_k, settings.force) == ((), False, None, False)
    assert (settings.backend, parse([*REQUIRED, "--format=torchscript"], {}).backend) == ("onnxruntime", "pytorch")
    assert settings.token == "secret" and "secret" not in repr(settings)


def test_flags_take_underscores_or_hyphens() -> None:
    flags = (
        "--model_name=capitals --format=torchscript --backend=python --inputs=input_ids,attention_mask "
        "--max_batch_size=8 --dynamic_batching=false --reduce --top_k=3 --tolerance=0.1 --trust_remote_code --token=t"
    ).split()
    settings = parse([*REQUIRED, *flags], {})
    parts = [flag.partition("=") for flag in flags]
    assert settings == parse(
        [*REQUIRED, *(name.replace("_", "-") + equals + value for name, equals, value in parts)], {}
    )
    assert (settings.model_name, settings.format, settings.backend) == ("capitals", "torchscript", "python")
    assert (settings.inputs, settings.max_batch_size, settings.dynamic_batching) == (
        ("input_ids", "attention_mask"),
        8,
        False,
    )
    assert (settings.top_k, settings.tolerance, settings.trust_remote_code, settings.token) == (3, 0.1, True, "t")


@pytest.mark.parametrize("name", ["minilm", "1e3", "yes", "null", "a:b", "é😀", "-"])
@pytest.mark.parametrize("task", [None, "rerank"])
def test_the_entry_for_several_models_is_read_back(tmp_path: Path, name: str, task: str | None) -> None:
    flags = ["--model_id=org/bert", f"--output={tmp_path / 'a: # b'}", f"--model_name={name}"]
    settings = parse([*flags, *([f"--task={task}"] if task else [])], {})
    text = entry(settings.output / settings.model_name, settings, task or "fill_mask")
    assert [line.partition(":")[0] for line in text.splitlines()] == [
        *("- model_name", "  model_dir"),
        *(["  task"] if task else []),
    ]
    file = tmp_path / "models.yaml"
    file.write_text(text + entry(tmp_path / "other", parse(REQUIRED, {}), "fill_mask"))
    first, second = ModelEntries([f"--models={file}", "--predictor_host=triton"], {}).read()[0]
    assert (first.model_name, first.task, first.model_dir) == (name, task, str(tmp_path / "a: # b" / name))
    assert second.model_name == "bert-base"


def test_a_local_folder_may_be_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bert").mkdir()
    settings = parse(["--model_id=~/bert/", "--output=models"], {})
    assert (settings.model_id, settings.model_name) == (str(tmp_path / "bert"), "bert")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--backend=pytorch"], "--backend=pytorch: expected onnxruntime or python for --format=onnx"),
        (["--model_name=a b"], "--model_name=a b: expected a name without spaces"),
        (["--model_name=.."], "no dot first"),
        (["--top_k=3"], "--top_k: has no effect without --reduce"),
        (["--backend=python", "--output=my models"], "--output=my models: expected a path without spaces"),
    ],
)
def test_contradictory_flags_exit_with_2(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse([*REQUIRED, *flags], {})
    assert says in str(raised.value)
    assert main(["export", *REQUIRED, *flags]) == 2
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
def test_a_bad_value_exits_with_2(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["export", *REQUIRED, *flags])
    assert raised.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("form", "names"), [("onnx", "torch, onnx, onnxruntime"), ("torchscript", "torch")])
def test_missing_libraries_are_named_with_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, names: str
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    flags = [f"--model_id={tmp_path}", f"--output={tmp_path / 'models'}", f"--format={form}"]
    assert main(["export", *flags]) == 1
    advice = install_command("export")
    expected = f"hf-transformer: error: export needs {names}: {advice} (see hf-transformer export --help)\n"
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
def test_an_export_never_overwrites_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, force: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: sys)
    source = tmp_path / "bert"
    (source / "deeper").mkdir(parents=True)
    (source / "config.pbtxt").write_text("")
    for inside in (source, source / "deeper"):
        flags = [f"--model_id={inside}", f"--output={tmp_path}", "--model_name=bert", *force]
        assert main(["export", *flags]) == 2
        assert "would overwrite --model_id" in capsys.readouterr().err
    assert main(["export", f"--model_id={tmp_path}", f"--output={tmp_path}", "--model_name=bert"]) == 2
    assert "exists; --force replaces it" in capsys.readouterr().err


HALF_AN_EXPORT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from hf_transformer.commands.export import command
from hf_transformer.commands.export.repository import new_folders

def half(settings, target, terminal):
    with new_folders([target], force=False) as [made]:
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
    """Python ignores SIGPIPE, so the test closes the pipe instead, like ``head``."""
    program = [sys.executable, "-c", HALF_AN_EXPORT, str(tmp_path / "new" / "models")]
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
