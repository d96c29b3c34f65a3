"""An exported model gives a text the same answer in a batch as transformers gives to it alone.

The weights are large, so that an answer that reads another text or padding is far off.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from hf_transformer.commands.export.graph import size_of
from hf_transformer.errors import LoadError
from tests.models import test_export_families as families
from tests.models.exporting import printed_by

SEP, BATCH_RULE = families.SEP, 1e-4
LARGE = {"init_std": 0.4, "initializer_range": 0.4, "initializer_factor": 3.0}
CODED = families.LAYERS | families.HEADS
T5 = {
    **{"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    "decoder_start_token_id": 0,
    # With LARGE's, float32 alone is off by 2e-4: T5 does not scale its attention.
    "initializer_factor": 1.0,
}
ENDS = {
    **dict.fromkeys((f"{name}ForSequenceClassification" for name in ("Bart", "MBart", "PLBart", "Mvp")), CODED),
    "BigBirdPegasusForSequenceClassification": CODED,
    **dict.fromkeys((f"{name}ForSequenceClassification" for name in ("T5", "MT5", "UMT5")), T5),
}
"""Architectures that gather the states at the eos tokens of a batch."""
SHORT_MODE = {
    "BigBirdForSequenceClassification": (
        families.SIZES | {"block_size": 16},
        {"attention_type": "original_full", "max_position_embeddings": 176},
    ),
    "BigBirdPegasusForSequenceClassification": (
        CODED | {"block_size": 16},
        {"attention_type": "original_full", "max_position_embeddings": 176},
    ),
    "LlamaForSequenceClassification": (
        families.SIZES
        | {"num_key_value_heads": 2, "max_position_embeddings": 90}
        | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
        {"max_position_embeddings": 90},
    ),
    "Phi3ForSequenceClassification": (
        families.SIZES
        | {"num_key_value_heads": 2, "original_max_position_embeddings": 90}
        | {
            "rope_parameters": {
                **{"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 90},
                **{"short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
            }
        },
        {"max_position_embeddings": 90},
    ),
}
"""Architectures that read long texts otherwise than short ones, and what config.json says of the export."""

# torch and its like warn about what is not ours to change.
pytestmark = pytest.mark.filterwarnings("default")


def made(architecture: str, folder: Path, values: dict, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(families.FAMILIES, architecture, LARGE | values | {"num_labels": 3})
    return families.made(architecture, folder)


def exported(source: Path, folder: Path, *flags: str) -> Path:
    """The model's folder."""
    printed_by([f"--model_id={source}", f"--output={folder}", "--model_name=m", *flags])
    return folder / "m"


def alone(source: Path, ids: list[int]) -> np.ndarray:
    """The answer of transformers to one text, of a model that was asked nothing before."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].numpy()


def answers(folder: Path, texts: list[list[int]]) -> np.ndarray:
    """Answers of the written file to one batch, padded on the right."""
    width = max(map(len, texts))
    inputs = {
        "input_ids": np.array([[*ids, *[0] * (width - len(ids))] for ids in texts]),
        "attention_mask": np.array([[1] * len(ids) + [0] * (width - len(ids)) for ids in texts]),
    }
    inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
    if (folder / "1" / "model.pt").is_file():
        names = ("input_ids", "attention_mask")
        return (
            torch.jit.load(folder / "1" / "model.pt")(*(torch.tensor(inputs[name]) for name in names))[0]
            .detach()
            .numpy()
        )
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    return session.run(None, {one.name: inputs[one.name] for one in session.get_inputs()})[0]


@pytest.mark.parametrize("architecture", ENDS)
def test_texts_with_different_counts_of_ends(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(architecture, tmp_path / "source", ENDS[architecture], monkeypatch)
    texts = [[2, 8, 7, SEP], [2, 8, SEP, 9, SEP, 11, 12, SEP], [2, SEP], [2, 8, SEP, SEP, 20, 21, SEP]]
    found = answers(exported(source, tmp_path), texts)
    expected = [alone(source, ids) for ids in texts]
    assert np.abs(np.array(expected) - expected[0]).max() > 0.01, "the texts have different answers"
    assert np.abs(found - expected).max() < BATCH_RULE


MIXING = """
import transformers

class Mixing(transformers.RobertaForSequenceClassification):
    def forward(self, input_ids, attention_mask=None):
        found = super().forward(input_ids, attention_mask)
        found.logits = found.logits + 1e-3 * found.logits.mean(0, keepdim=True).tanh()
        return found
"""


def test_an_architecture_that_mixes_texts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no rule knows, with code of its own; it can still be served text by text."""
    source = made("RobertaForSequenceClassification", tmp_path / "source", families.SIZES, monkeypatch)
    (source / "modeling_mixing.py").write_text(MIXING)
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "modeling_mixing.Mixing"}
    (source / "config.json").write_text(json.dumps(config))
    flags = ("--trust_remote_code", "--tolerance=0.1")
    with pytest.raises(LoadError, match=r"depend on the other texts of a batch.*--max_batch_size=1"):
        exported(source, tmp_path, *flags)
    assert (exported(source, tmp_path, *flags, "--max_batch_size=1") / "config.pbtxt").is_file()


@pytest.mark.parametrize("architecture", SHORT_MODE)
def test_long_texts_are_those_that_are_read_as_short_ones(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, changes = SHORT_MODE[architecture]
    source = made(architecture, tmp_path / "source", values, monkeypatch)
    # ONNX has no operator that Phi3's long positions need.
    folder = exported(source, tmp_path, *(["--format=torchscript"] if architecture.startswith("Phi3") else []))
    config = json.loads((folder / "config.json").read_text())
    assert {name: config[name] for name in changes} == changes
    length = changes["max_position_embeddings"]
    texts = [[2, *(5 + number % 40 for number in range(length - 2)), SEP], [2, 8, 9, SEP]]
    assert np.abs(answers(folder, texts) - [alone(source, ids) for ids in texts]).max() < 10 * BATCH_RULE


def test_a_classifier_without_a_padding_id_says_what_to_set(tmp_path: Path) -> None:
    source = families.made("GPT2ForSequenceClassification", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    with pytest.raises(LoadError, match=r"has no pad_token_id.*set it to"):
        printed_by([f"--model_id={source}", f"--output={tmp_path / 'models'}", "--model_name=m"])


def test_a_model_that_no_file_holds_says_why_and_what_to_do(tmp_path: Path) -> None:
    config = transformers.LongformerConfig(
        **families.SIZES, vocab_size=300, pad_token_id=0, sep_token_id=families.SEP, attention_window=16
    )
    config.architectures = ["LongformerForSequenceClassification"]
    source = tmp_path / "source"
    transformers.LongformerForSequenceClassification(config).save_pretrained(source)
    for path in families.TOKENIZER.glob("tokenizer*.json"):
        (source / path.name).write_bytes(path.read_bytes())
    with pytest.raises(LoadError, match=r"A longformer model pads each text .*Triton's Python backend"):
        printed_by([f"--model_id={source}", f"--output={tmp_path / 'models'}", "--model_name=m"])


def test_the_transformer_folder_of_old_sentence_transformers_is_exported(tmp_path: Path) -> None:
    """Its weights lie in the folder of the first module, beside config.json and the tokenizer."""
    source = tmp_path / "source"
    families.made("RobertaForMaskedLM", source / "0_Transformer")
    modules = [("Transformer", "0_Transformer"), ("Pooling", "1_Pooling")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (source / "modules.json").write_text(json.dumps(listed))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    printed = printed_by([f"--model_id={source}", f"--output={tmp_path / 'models'}", "--model_name=m"])
    assert "for text_embedding" in printed and "m is ready" in printed
    assert (tmp_path / "models" / "m" / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size"])
def test_sizes_of_a_nested_configuration(name: str) -> None:
    text_config = transformers.LlamaConfig(vocab_size=78, hidden_size=78, num_attention_heads=13)
    config = transformers.LlavaConfig(text_config=text_config)
    assert size_of(type("Model", (), {"config": config})(), name) == 78
