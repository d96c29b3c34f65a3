"""GLiNER folders: which are exported, and what is refused before anything is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.cli import main
from hf_transformer.commands.export import command, gliner_folder
from hf_transformer.commands.export.command import parse
from hf_transformer.commands.export.gliner_folder import find_gliner, labels_target


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all libraries were there."""
    for module in (command, gliner_folder):
        monkeypatch.setattr(module, "find_spec", lambda name: sys)


def folder(path: Path, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "gliner_config.json").write_text(json.dumps({"span_mode": "markerV0"} | config))
    return path


def error_of(capsys: pytest.CaptureFixture[str], source: Path, *flags: str, code: int) -> str:
    """The error of an export, which leaves nothing behind."""
    output = source.parent / "models"
    assert main(["export", f"--model_id={source}", f"--output={output}", *flags]) == code
    assert not output.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--task=gliner",), ("--task=zero-shot-token-classification",)])
@pytest.mark.parametrize(
    "config", [{}, {"span_mode": "token_level"}, {"span_mode": "conv_max", "labels_encoder": None}]
)
def test_uni_encoders_are_exported(tmp_path: Path, config: dict[str, Any], flags: tuple[str, ...]) -> None:
    source = folder(tmp_path / "ner", **config)
    assert find_gliner(parse([f"--model_id={source}", "--output=models", *flags], {})) == source
    assert labels_target(source, tmp_path / "models" / "ner") is None


@pytest.mark.parametrize("config", [{}, {"span_mode": "token_level"}, {"post_fusion_schema": "l2l-l2t-t2t"}])
def test_bi_encoders_are_exported_as_two_folders(tmp_path: Path, config: dict[str, Any]) -> None:
    source = folder(tmp_path / "ner", labels_encoder="org/labels", **config)
    assert find_gliner(parse([f"--model_id={source}", "--output=models"], {})) == source
    assert labels_target(source, Path("models", "ner")) == Path("models", "ner_labels")


@pytest.mark.parametrize(
    ("existing", "force", "says"),
    [
        ("config.pbtxt", (), "/ner_labels exists; --force replaces it"),
        ("notes.txt", ("--force",), "/ner_labels has no config.pbtxt, so it is not a Triton model"),
    ],
    ids=["a_model", "no_model"],
)
def test_the_folder_for_labels_is_checked_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, existing: str, force: tuple[str, ...], says: str
) -> None:
    source = folder(tmp_path / "ner", labels_encoder="org/labels")
    kept = tmp_path / "models" / "ner_labels" / existing
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    assert main(["export", f"--model_id={source}", f"--output={kept.parent.parent}", *force]) == 2
    assert says in capsys.readouterr().err
    assert [*kept.parent.parent.rglob("*")] == [kept.parent, kept]


def test_the_folder_for_labels_is_not_the_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = folder(tmp_path / "ner_labels", labels_encoder="org/labels")
    (source / "config.pbtxt").write_text("")
    flags = [f"--model_id={source}", f"--output={tmp_path}", "--model_name=ner", "--force"]
    assert main(["export", *flags]) == 2
    assert "ner_labels would overwrite --model_id" in capsys.readouterr().err


def test_other_folders_are_no_gliner_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for source in (tmp_path, tmp_path / "absent"):
        assert find_gliner(parse([f"--model_id={source}", "--output=models"], {})) is None


def test_a_folder_of_the_hub_is_found_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(repo: str, revision: str, **options: Any) -> Path:
        asked.append((repo, revision, options["token"], options["with_tokenizer"]))
        return folder(tmp_path / "snapshot")

    monkeypatch.setattr(gliner_folder, "hub_snapshot", snapshot)
    flags = ["--model_id=org/gliner-absent", "--output=models", "--revision=v2", "--token=t"]
    assert find_gliner(parse(flags, {})) == tmp_path / "snapshot"
    assert asked == [("org/gliner-absent", "v2", "t", False)]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"labels_decoder": "gpt2"}, "a model that writes labels with a decoder"),
        ({"relations_layer": "biaffine"}, "a model of relations"),
        ({"decoder_config": {"model_type": "gpt2"}}, "a streaming model"),
        ({"precomputed_prompts_mode": True}, "a model with fixed labels"),
        ({"span_mode": "token_level", "represent_spans": True}, "a span head of its own"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type: expected whitespace, got 'spacy'"),
        ({"encoder_config": {"auto_map": {"AutoModel": "m.M"}}}, "its encoder brings its own Python code (auto_map)"),
        (
            {"labels_encoder_config": {"auto_map": {"AutoModel": "m.M"}}, "labels_encoder": "org/labels"},
            "its encoder of labels brings its own Python code (auto_map)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_service_can_not_use_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    assert says in error_of(capsys, folder(tmp_path / "ner", **config), code=1)


def test_code_of_an_encoder_is_allowed_by_a_flag(tmp_path: Path) -> None:
    source = folder(tmp_path / "ner", encoder_config={"auto_map": {"AutoModel": "m.M"}})
    assert find_gliner(parse([f"--model_id={source}", "--output=models", "--trust_remote_code"], {})) == source


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--task=fill_mask", "is a GLiNER folder, expected zero_shot_token_classification"),
        ("--task=gliners", "--task: expected one of fill_mask"),
        ("--reduce", "--reduce: zero_shot_token_classification has no exact reduction"),
        ("--inputs=input_ids", "whose model needs all of its inputs"),
        ("--format=torchscript", "expected onnx"),
        ("--precision=fp16", "expected fp32: ONNX Runtime has no ScatterElements"),
    ],
)
def test_flags_of_other_models_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str, says: str
) -> None:
    error = error_of(capsys, folder(tmp_path / "ner"), flag, code=2)
    assert flag.partition("=")[0] in error and says in error


def test_a_missing_library_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gliner_folder, "find_spec", lambda name: None)
    error = error_of(capsys, folder(tmp_path / "ner"), code=1)
    assert "is a GLiNER folder, which only its own library loads: pip install gliner" in error
