"""Families of models with random weights: their own attention masks, windows and positions get into the file.

The export compares what it writes with the model itself, here nearly to the last digit.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import onnx
import pytest
import torch
import transformers

from hf_transformer.commands.export.config_pbtxt import BATCH, SEQUENCE, GraphTensor
from hf_transformer.commands.export.graph import Head, TopTokens
from hf_transformer.commands.export.model_file import WEIGHTS, gather_weights
from hf_transformer.errors import LoadError
from tests.models.exporting import ROOT, printed_by

TOKENIZER = ROOT / "tests" / "task_models" / "minibert_pooled"
SEP = 3
EXACT = "--tolerance=3e-5"
WINDOW = 16
"""Tokens, where attention is local: less than the longest sample has."""

# torch and its like warn about what is not ours to change.
pytestmark = pytest.mark.filterwarnings("default")

SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 64, "max_position_embeddings": 400},
}
LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 32, "max_position_embeddings": 400}
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "DistilBertForMaskedLM": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "RobertaForMaskedLM": SIZES,
    "AlbertForMaskedLM": SIZES | {"embedding_size": 16},
    "MPNetForMaskedLM": SIZES,
    "DebertaV2ForSequenceClassification": SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBertForMaskedLM": SIZES | {"local_attention": WINDOW, "global_attn_every_n_layers": 2},
    "XLNetForSequenceClassification": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "BartForSequenceClassification": LAYERS | HEADS | {"eos_token_id": SEP},
    "GPT2ForSequenceClassification": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 400},
    "LlamaForCausalLM": SIZES | {"num_key_value_heads": 2},
    "MistralForCausalLM": SIZES | {"num_key_value_heads": 2, "sliding_window": WINDOW},
    "Gemma3ForCausalLM": SIZES
    | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW, "layer_types": LOCAL},
    "OPTForCausalLM": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 64, "num_attention_heads": 4},
        **{"word_embed_proj_dim": 32, "max_position_embeddings": 400},
    },
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "BartForConditionalGeneration": LAYERS | HEADS | {"eos_token_id": SEP, "decoder_start_token_id": SEP},
}

BLOOM = ("BloomForCausalLM", "torchscript")
"""Has a function of its own in Python, which TorchScript can't store."""


def made(architecture: str, folder: Path) -> Path:
    """A checkpoint with the tokenizer of a test model."""
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    size = json.loads((TOKENIZER / "config.json").read_text())["vocab_size"]
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": SEP}
    config = kind.config_class(vocab_size=size, **tokens | FAMILIES[architecture])
    config.architectures = [architecture]
    kind(config).save_pretrained(folder)
    for path in TOKENIZER.glob("tokenizer*.json"):
        shutil.copyfile(path, folder / path.name)
    return folder


@pytest.mark.parametrize(
    ("architecture", "form"),
    [(name, form) for name in FAMILIES for form in ("onnx", "torchscript") if (name, form) != BLOOM],
)
def test_family(tmp_path: Path, architecture: str, form: str) -> None:
    source = made(architecture, tmp_path / "source")
    output = tmp_path / "models"
    printed = printed_by([f"--model_id={source}", f"--output={output}", "--model_name=m", f"--format={form}", EXACT])
    assert "same outputs in " in printed
    if form == "torchscript":
        with zipfile.ZipFile(output / "m" / "1" / "model.pt") as archive:
            code = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".py"))
        assert code and b"torch.device(" not in code, "it would not run on a GPU"


MASKED = [name for name in FAMILIES if name.endswith("ForMaskedLM")]


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
@pytest.mark.parametrize("architecture", MASKED)
def test_reduced_family(tmp_path: Path, architecture: str, form: str) -> None:
    """Heads of different make: they get the tokens at the masks alone."""
    flags = [f"--model_id={made(architecture, tmp_path / 'source')}", f"--format={form}", "--model_name=m", EXACT]
    assert "same outputs in " in printed_by([*flags, f"--output={tmp_path / 'models'}", "--reduce"])


@pytest.mark.parametrize("architecture", MASKED)
def test_the_head_gets_the_masks_alone(tmp_path: Path, architecture: str) -> None:
    source = made(architecture, tmp_path / "source")
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape[:2])))
    ids, logits = GraphTensor("input_ids", (BATCH, SEQUENCE), "INT64"), GraphTensor("logits", (BATCH, SEQUENCE, 64))
    top = TopTokens(Head(model, [ids], [logits]), 9, 5).train(False)
    best, _ = top(torch.tensor([[2, 9, 8, 9, 7, 3], [2, 9, 8, 8, 7, 3]]))
    assert seen == [(2, 2)] and best.shape == (2, 2, 5)


def test_what_torchscript_can_not_store(tmp_path: Path) -> None:
    architecture, form = BLOOM
    source = made(architecture, tmp_path / "source")
    with pytest.raises(LoadError, match="as torchscript: Could not export Python function"):
        printed_by([f"--model_id={source}", f"--output={tmp_path / 'models'}", "--model_name=m", f"--format={form}"])
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_large_weights_lie_in_one_file(tmp_path: Path) -> None:
    """torch writes a file for each where they are more than 2 GB."""
    source = made("RobertaForMaskedLM", tmp_path / "source")
    printed_by([f"--model_id={source}", f"--output={tmp_path}", "--model_name=m", EXACT])
    path = tmp_path / "m" / "1" / "model.onnx"
    model = onnx.load(path)
    path.unlink()
    onnx.save_model(model, path, save_as_external_data=True, all_tensors_to_one_file=False)
    assert len(list(path.parent.iterdir())) > 10
    gather_weights(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.onnx", WEIGHTS]
    onnx.checker.check_model(str(path))
    assert onnx.load(path).graph.initializer == onnx.load(path).graph.initializer
    assert path.stat().st_size < (path.parent / WEIGHTS).stat().st_size
