"""What can't be exported is told in a line, and nothing stays of it."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hf_transformer.errors import ConfigError, LoadError, TransformerError
from tests.models.exporting import checkpoint_in, printed_by

WEIGHTS = "model.safetensors"

# torch and its like warn about what is not ours to change.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def refused(source: Path | str, folder: Path, *flags: str) -> TransformerError:
    """The error of an export; its folder must be as empty as before."""
    with pytest.raises((ConfigError, LoadError)) as raised:
        printed_by([f"--model_id={source}", f"--output={folder / 'new' / 'folder'}", "--model_name=m", *flags])
    assert list(folder.iterdir()) == [], "nothing half-written stays"
    assert len(str(raised.value)) < 800
    return raised.value


@pytest.mark.parametrize(
    ("model", "flags", "error", "says"),
    [
        ("bert", ["--task=fill-masks"], ConfigError, "--task=fill-masks: can't be served"),
        ("bert", ["--task=token_classification"], ConfigError, "has no weights for classifier."),
        ("bert", ["--task=text_generation"], ConfigError, "depend on the tokens that follow"),
        ("gpt2_past", ["--task=fill_mask"], LoadError, "can't be loaded for fill_mask"),
        ("bert", ["--inputs=input_ids,pixels"], ConfigError, "--inputs: 'pixels'"),
        ("bert", ["--inputs=attention_mask"], ConfigError, "--inputs: input_ids is missing"),
        ("t5_logits", ["--inputs=input_ids"], ConfigError, "--inputs: decoder_input_ids is missing"),
        ("ner", ["--reduce"], ConfigError, "--reduce: token_classification has no exact reduction"),
        ("stars", ["--reduce"], ConfigError, "regression"),
        ("minibert_last", ["--reduce"], ConfigError, "--reduce: lasttoken pooling"),
        ("emotions", ["--reduce", "--top_k=3"], ConfigError, "--top_k: belongs to fill_mask"),
        ("bert", ["--tolerance=0", "--precision=fp16"], LoadError, "model.onnx differs from the model: logits by"),
    ],
)
def test_what_the_flags_ask_for(
    checkpoints: Path, tmp_path: Path, model: str, flags: list[str], error: type[Exception], says: str
) -> None:
    found = refused(checkpoint_in(checkpoints, model), tmp_path, *flags)
    assert isinstance(found, error) and says in str(found)


def without(folder: Path, name: str) -> None:
    (folder / name).unlink()


def broken(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:200])


def changed(folder: Path, values: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


NEXT = "BertForNextSentencePrediction"


@pytest.mark.parametrize(
    ("change", "what", "says"),
    [
        (without, WEIGHTS, "can't be loaded for fill_mask"),
        (broken, WEIGHTS, "can't be loaded for fill_mask"),
        (without, "config.json", "config.json"),
        (broken, "config.json", "config.json is not valid JSON"),
        (changed, {"vocab_size": 7}, "can't be loaded for fill_mask"),
        (changed, {"architectures": []}, "the task can't be told; set --task"),
        (changed, {"architectures": [NEXT]}, f"{NEXT} stands for no task"),
        (changed, {"model_type": "nonsense"}, "can't be loaded"),
        (without, "tokenizer.json", "tokenizer"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_what_is_in_the_folder(checkpoints: Path, tmp_path: Path, change, what, says: str) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint_in(checkpoints, "bert"), source)
    (source / "vocab.txt").unlink(missing_ok=True)
    change(source, what)
    (tmp_path / "empty").mkdir()
    found = refused(source, tmp_path / "empty")
    assert isinstance(found, LoadError) and says in str(found), str(found)


def test_no_such_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in str(refused("/no/such/folder", tmp_path))
