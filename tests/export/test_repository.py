"""The model's folder is complete or absent, and has config.pbtxt and the service's files; printed commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_transformer.commands.export.command import commands, manifest, parse
from hf_transformer.commands.export.config_pbtxt import MASKS, GraphTensor, config_pbtxt
from hf_transformer.commands.export.repository import fill, new_folders, require_free, require_loadable, triton_view
from hf_transformer.config.options import parse_config
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks.declaration import BATCH, DECODED, SEQUENCE
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from tests.deploy.manifests import messages
from tests.support.triton_environment import ROOT
from tests.support.triton_repository import DEMO_MODEL, task_model_folder


def settings(*flags: str) -> Namespace:
    """Export settings for a model named bert."""
    return parse(["--model_id=hub/bert", "--output=model_repository", *flags], {})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An existing model's folder."""
    target = tmp_path / "bert"
    (target / "1").mkdir(parents=True)
    (target / "config.pbtxt").write_text("old")
    return target


def test_the_folder_gets_its_name_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "repository" / "bert"
    with new_folders([target], force=False) as [made]:
        assert names(target.parent) == [], "Triton may look there at any time"
        (made / "config.pbtxt").write_text("new")
    assert names(target.parent) == ["bert"] and (target / "config.pbtxt").read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o755, "another user runs Triton"


@pytest.mark.parametrize("error", [LoadError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folders([tmp_path / "new" / "repository" / "bert"], force=False) as [made]:
        (made / "model.onnx").write_bytes(b"half")
        raise error("no")
    assert names(tmp_path) == []


def test_the_temporary_folder_is_in_the_repository_if_nothing_else_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with new_folders([repository / "bert"], force=False) as [made]:
        assert made.parents[2] == repository
    assert names(repository) == ["bert"] and names(tmp_path) == ["repository"]


def test_a_write_error_is_a_load_error(tmp_path: Path) -> None:
    with (
        pytest.raises(LoadError, match=r"can't write .*: No space left"),
        new_folders([tmp_path / "bert"], force=False),
    ):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match=r"--output: can't write .*/file/repository/bert: Not a directory"):
        with new_folders([tmp_path / "file" / "repository" / "bert"], force=False):
            raise AssertionError("not reached")
    assert names(tmp_path) == ["file"]


def test_the_old_folder_stays_until_the_new_one_is_complete(tmp_path: Path, old: Path) -> None:
    with new_folders([old], force=True) as [made]:
        (made / "config.pbtxt").write_text("new")
        assert (old / "config.pbtxt").read_text() == "old"
    assert names(tmp_path) == ["bert"] and names(old) == ["config.pbtxt"]
    assert (old / "config.pbtxt").read_text() == "new"
    with pytest.raises(LoadError), new_folders([old], force=True):
        raise LoadError("no")
    assert names(tmp_path) == ["bert"] and (old / "config.pbtxt").read_text() == "new"


def test_a_signal_between_the_two_renames_restores_the_old_folder(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        if target == old and (source / "config.pbtxt").read_text() == "new":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folders([old], force=True) as [made]:
        (made / "config.pbtxt").write_text("new")
    assert names(tmp_path) == ["bert"] and (old / "config.pbtxt").read_text() == "old"


@pytest.mark.parametrize("number", range(4), ids="first_old second_old first_new second_new".split())
def test_a_signal_between_the_renames_of_two_folders_restores_both(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    second = tmp_path / "bert_labels"
    second.mkdir()
    (second / "config.pbtxt").write_text("old")
    rename, calls = os.rename, []

    def interrupted(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == number + 1:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folders([old, second], force=True) as both:
        for made in both:
            (made / "config.pbtxt").write_text("new")
    assert names(tmp_path) == ["bert", "bert_labels"]
    assert [(folder / "config.pbtxt").read_text() for folder in (old, second)] == ["old", "old"]


def test_two_folders_appear_together_or_not_at_all(tmp_path: Path, old: Path) -> None:
    first, second = tmp_path / "ner", tmp_path / "ner_labels"
    with pytest.raises(LoadError), new_folders([first, second], force=False):
        raise LoadError("no")
    with pytest.raises(ConfigError, match="/bert exists"), new_folders([first, old], force=False):
        raise AssertionError("not reached")
    assert names(tmp_path) == ["bert"]
    with new_folders([first, second], force=False) as made:
        assert [folder.name for folder in made] == ["ner", "ner_labels"] and names(tmp_path) == ["bert"]
    assert names(tmp_path) == ["bert", "ner", "ner_labels"]


def test_only_a_model_folder_is_replaced_and_only_with_force(tmp_path: Path, old: Path) -> None:
    with pytest.raises(ConfigError, match=r"--output: .*/bert exists; --force replaces it"):
        require_free(old, force=False)
    require_free(old, force=True)
    (tmp_path / "documents").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("documents", "file", "link"):
        with pytest.raises(ConfigError, match=f"/{name} has no config.pbtxt, so it is not a Triton model"):
            require_free(tmp_path / name, force=True)


def filled(folder: Path, source: Path, *flags: str) -> ModelFiles:
    (folder / "1").mkdir(parents=True)
    files = find_model_files(None, str(source))
    fill(folder, "# config.pbtxt", files, settings(*flags), {})
    return files


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_folder_has_all_files_of_the_service(tmp_path: Path) -> None:
    files = filled(tmp_path / "bert", DEMO_MODEL)
    assert {"config.pbtxt", "config.json", "tokenizer.json"} <= listed(tmp_path / "bert")
    source = task_model_folder("minibert_mean")  # with the files of sentence-transformers
    filled(tmp_path / "minibert", source)
    triton_files = {name for name in listed(source) if name.startswith(("1/", "configs/"))}
    assert listed(source) - triton_files <= listed(tmp_path / "minibert")
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config)
    require_loadable(tmp_path / "bert", tokenizer, settings())
    path = tmp_path / "bert" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"].pop("capital")
    path.write_text(json.dumps(content))
    with pytest.raises(LoadError, match="gives other tokens than the original of hub/bert"):
        require_loadable(tmp_path / "bert", tokenizer, settings())


def test_weights_are_not_copied_and_code_only_if_trusted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in DEMO_MODEL.glob("*.json"):
        (source / path.name).write_bytes(path.read_bytes())
    for name in ("model.safetensors", "pytorch_model.bin", "modeling_own.py", ".gitattributes"):
        (source / name).write_text("x")
    filled(tmp_path / "plain", source)
    assert listed(tmp_path / "plain").isdisjoint({"model.safetensors", "pytorch_model.bin", "modeling_own.py"})
    filled(tmp_path / "trusted", source, "--trust_remote_code", "--backend=python")
    assert listed(tmp_path / "trusted") - listed(tmp_path / "plain") == {"modeling_own.py", "1/model.py"}


@pytest.mark.parametrize(
    ("folders", "says"),
    [
        pytest.param(["1"], "Triton runs version 1 of bert, 1/model.onnx, with the onnxruntime backend", id="alone"),
        pytest.param(["1", "1_Pooling", "0_Transformer", "configs"], "onnxruntime backend", id="no other version"),
        pytest.param(
            ["1", "1_Pooling", "2_Normalize", "10_Dense"],
            "onnxruntime backend; its version_policy ignores 10_Dense, 2_Normalize",
            id="modules",
        ),
        pytest.param(["1_Pooling", "2"], "bert: expected 1/model.onnx, found the versions 1_Pooling, 2", id="no model"),
        pytest.param([], r"bert: expected 1/model.onnx, found the versions \(none\)", id="nothing"),
    ],
)
def test_the_view_names_the_version_and_ignored_folders(tmp_path: Path, folders: list[str], says: str) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "3.txt").write_text("no folder")
    for name in folders:
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_text("")
    if "1" in folders:
        assert triton_view(folder, settings()).endswith(says)
    else:
        with pytest.raises(LoadError, match=says):
            triton_view(folder, settings())


# config.pbtxt, parsed as ModelConfig of Triton's model_config.proto.

ENCODER = [GraphTensor(name, (BATCH, SEQUENCE), "INT64") for name in ("input_ids", "attention_mask", "token_type_ids")]
TOP_K = (BATCH, MASKS, 10)
GRAPHS = {
    "fill_mask": (ENCODER, [GraphTensor("logits", (BATCH, SEQUENCE, 1024))]),
    "fill_mask reduced": (ENCODER, [GraphTensor("topk_ids", TOP_K, "INT64"), GraphTensor("topk_scores", TOP_K)]),
    "sequence_classification": (ENCODER[:2], [GraphTensor("logits", (BATCH, 5), "FP16")]),
    "text2text_generation": (
        [ENCODER[0], GraphTensor("decoder_input_ids", (BATCH, SEQUENCE), "INT64")],
        [GraphTensor("logits", (BATCH, DECODED, 600))],
    ),
    "zero_shot_token_classification": (
        [
            *ENCODER[:2],
            GraphTensor("text_lengths", (BATCH, 1), "INT64"),
            GraphTensor("span_idx", (BATCH, "spans", 2), "INT64"),
            GraphTensor("span_mask", (BATCH, "spans"), "BOOL"),
        ],
        [GraphTensor("logits", (BATCH, "words", 12, "labels"))],
    ),
}
"""Inputs and outputs of graphs."""
COMMENTED = re.compile(r"^( *)#   (.*)$", re.MULTILINE)
"""Commented settings, with three spaces after the #; sentences have one."""
PARSER = """
import json, sys
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

def parse(path):
    try:
        config = text_format.Parse(open(path, encoding="utf-8").read(), model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        return f"{path}: {exc}"
    return json_format.MessageToDict(config, preserving_proto_field_name=True)

print(json.dumps([parse(path) for path in sys.argv[1:]]))
"""
"""It runs as a program, because tritonclient's protocol modules clash with the service's in one process."""


def parsed(paths: Iterable[Path]) -> list[Any]:
    """For each file a dict of its fields, or the parser's message."""
    command = [sys.executable, "-c", PARSER, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    configs: list[Any] = json.loads(result.stdout)
    return configs


def parsed_texts(folder: Path, *texts: str) -> list[Any]:
    paths = [folder / f"{number}.pbtxt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return parsed(paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "backend", "file"),
    [
        ("onnx", "onnxruntime", "model.onnx"),
        ("onnx", "python", "model.py"),
        ("torchscript", "pytorch", "model.pt"),
        ("torchscript", "python", "model.py"),
    ],
)
def test_config_pbtxt_has_exactly_these_fields(tmp_path: Path, form: str, backend: str, file: str) -> None:
    options = settings(f"--format={form}", f"--backend={backend}", "--max_batch_size=7", "--instances=3")
    configs = parsed_texts(tmp_path, *(config_pbtxt(*graph, options, "fill_mask") for graph in GRAPHS.values()))
    for config, (inputs, outputs) in zip(configs, GRAPHS.values(), strict=True):
        tensors = [
            [
                {
                    "name": f"{tensor.name}__{number}" if form == "torchscript" else tensor.name,
                    "data_type": f"TYPE_{tensor.datatype}",
                    "dims": [str(-1 if isinstance(axis, str) else axis) for axis in tensor.axes[1:]],
                }
                for number, tensor in enumerate(side)
            ]
            for side in (inputs, outputs)
        ]
        assert config == {
            "name": "bert",
            "backend": backend,
            "default_model_filename": file,
            "version_policy": {"specific": {"versions": ["1"]}},
            "max_batch_size": 7,
            "input": tensors[0],
            "output": tensors[1],
            "dynamic_batching": {},
            "instance_group": [{"count": 3}],
            **({"parameters": {"intra_op_thread_count": {"string_value": "1"}}} if backend == "python" else {}),
        }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torchscript"])
@pytest.mark.parametrize("batching", [True, False])
def test_commented_settings_are_valid(tmp_path: Path, form: str, batching: bool) -> None:
    options = settings(f"--format={form}", f"--dynamic_batching={batching}")
    text = config_pbtxt(*GRAPHS["fill_mask"], options, "fill_mask")
    plain, switched_on = parsed_texts(tmp_path, text, COMMENTED.sub(r"\1\2", text))
    assert "model_warmup" not in plain and ("dynamic_batching" in plain) is batching
    (warmup,) = switched_on["model_warmup"]
    assert set(warmup["inputs"]) == {tensor["name"] for tensor in plain["input"]} and warmup["batch_size"] == 1
    assert {tuple(tensor["dims"]) for tensor in warmup["inputs"].values()} == {("16",)}
    assert ("default_queue_policy" in switched_on["dynamic_batching"]) is batching


def test_a_model_of_words_has_no_warm_up_of_zeros() -> None:
    """Zeros are no words: text_lengths of 0 end the execution."""
    task = "zero_shot_token_classification"
    assert "model_warmup" in config_pbtxt(*GRAPHS["fill_mask"], settings(), "fill_mask")
    assert "warm" not in config_pbtxt(*GRAPHS[task], settings(), task)


@pytest.mark.slow
def test_every_config_in_the_repository_is_valid() -> None:
    paths = sorted(path for folder in ("deploy", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.pbtxt"))
    assert len(paths) > 20
    for path, config in zip(paths, parsed(paths), strict=True):
        assert isinstance(config, dict), config
        assert config["input"] and config["output"], path


# Commands and manifest at the end of an export.


def document_of(*flags: str) -> Any:
    """The manifest, after a check against KServe's schema."""
    document = yaml.safe_load(manifest(settings(*flags), "fill_mask"))
    assert messages(document) == []
    return document


@pytest.mark.parametrize(
    ("name", "kubernetes"),
    [("Bert_base.v2", "bert-base-v2"), ("4bit__model-", "model-4bit-model"), ("模型", "model"), ("{a}:b", "a-b")],
)
def test_the_manifest_serves_the_exported_model(name: str, kubernetes: str) -> None:
    document = document_of(f"--model_name={name}", "--task=fill-mask")
    assert document["metadata"]["name"] == kubernetes
    predictor, (container,) = document["spec"]["predictor"]["model"], document["spec"]["transformer"]["containers"]
    assert predictor["storageUri"] == "pvc://models/model_repository"
    assert container["env"] == [{"name": "STORAGE_URI", "value": predictor["storageUri"]}]
    config, _ = parse_config([*container["args"], "--predictor_host=x"], {})
    assert (config.model_name, config.task, config.predictor_protocol) == (name, "fill_mask", "v2")
    assert config.model_dir == "/mnt/models", "where KServe puts the storage"
    assert config.enable_predictor_health_check


def test_the_storage_has_a_name_for_a_relative_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert document_of("--output=.")["spec"]["predictor"]["model"]["storageUri"] == f"pvc://models/{tmp_path.name}"


def test_the_commands_start_triton_and_the_service(tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "bert"
    note, *lines = commands(folder, settings(), "fill_mask").splitlines()
    assert note.lstrip().startswith("# With Triton 26.04 and newer add --allow-client-shm=true")
    server, service = map(shlex.split, lines)
    assert server == ["tritonserver", f"--model-repository={folder.parent}"]
    assert service[0] == "hf-transformer"
    config, _ = parse_config(service[1:], {})
    assert (config.model_name, config.model_dir) == ("bert", str(folder))
    assert (config.predictor_host, config.predictor_protocol) == ("localhost:8000", "v2")
    assert config.task is None, "the model's files choose it"


@pytest.mark.parametrize(("form", "needs"), [("onnx", "onnxruntime"), ("torchscript", "torch")])
def test_the_python_backend_names_its_library(form: str, needs: str) -> None:
    options = settings(f"--format={form}", "--backend=python")
    printed = commands(Path("models/bert"), options, "fill_mask")
    assert printed.startswith(f"  # Triton's Python needs {needs} and numpy<2.\n")
    assert f"lacks Python's {needs}" in manifest(options, "fill_mask")
