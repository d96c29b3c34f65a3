"""The rules of batches against transformers' own models: tiny ones with random weights, each text alone and padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from hf_transformer.core.batch_rules import BatchRules, batch_rules
from tests.models.sweep import SIZES

PAD, END = 0, 3
SHORT, LONG = [5, 6, 7, END], [9, 8, 4, 7, 6, 5, 4, 8, 9, 7, END]
TWO_ENDS = [9, END, 4, 7, 6, 5, 4, 8, 9, 7, END]
TOLERANCE = 1e-4


def model_of(architecture: str, **more: Any) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, architecture).config_class
    plain = kind().to_dict()
    sizes = {name: value for name, value in SIZES.items() if isinstance(plain.get(name), type(value))}
    ids = {"vocab_size": 40, "pad_token_id": PAD, "eos_token_id": END, "num_labels": 3}
    config = kind(**{**sizes, **ids, "architectures": [architecture], **more})
    return getattr(transformers, architecture)(config).eval()


def answer(model: Any, rows: list[list[int]], left: bool) -> torch.Tensor:
    """The answers to the first row, which is padded to the longest."""
    length = max(map(len, rows))
    ids, mask = [], []
    for row in rows:
        padding = [PAD] * (length - len(row))
        ids.append(padding + row if left else row + padding)
        mask.append([0] * len(padding) + [1] * len(row) if left else [1] * len(row) + [0] * len(padding))
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))[0][0]
    if out.dim() > 1:  # a vector for each token: those of the text itself
        return out[-len(rows[0]) :] if left else out[: len(rows[0])]
    return out


def difference(model: Any, rules: BatchRules) -> float:
    """The largest one of a short text's answer beside a longer one from its answer alone."""
    alone = answer(model, [SHORT], rules.left)
    return float((answer(model, [SHORT, LONG], rules.left) - alone).abs().max())


def rules_of(model: Any) -> BatchRules:
    return batch_rules(model.config.to_dict(), END)


CLASSIFIERS = (
    "Bert Roberta Distilbert Deberta XLNet ModernBert Electra MPNet Albert Bart Qwen3 Llama GPT2 Bloom".split()
)
NAMES = {"Distilbert": "DistilBert"}


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_padding_changes_nothing_under_the_rules(family: str) -> None:
    model = model_of(f"{NAMES.get(family, family)}ForSequenceClassification")
    rules = rules_of(model)
    assert not rules.equal_lengths and difference(model, rules) < TOLERANCE


def test_xlnet_is_padded_before_the_text() -> None:
    """Its classifier reads the last position."""
    model = model_of("XLNetForSequenceClassification")
    assert rules_of(model).left
    assert difference(model, BatchRules(left=False)) > TOLERANCE


@pytest.mark.parametrize("architecture", ["ConvBertModel", "YosoModel"])
def test_models_that_read_padding_get_texts_of_one_length(architecture: str) -> None:
    model = model_of(architecture)
    assert rules_of(model).equal_lengths
    assert difference(model, BatchRules()) > TOLERANCE


@pytest.mark.parametrize("family", ["Bart", "MBart", "PLBart", "T5", "Mvp"])
def test_texts_with_other_counts_of_ends_share_no_batch(family: str) -> None:
    """transformers refuses them together; alone each has an answer."""
    model = model_of(f"{family}ForSequenceClassification", decoder_start_token_id=2)
    assert rules_of(model).counted_id == END
    answer(model, [TWO_ENDS], left=False)
    with pytest.raises(ValueError, match="must have the same number of <eos> tokens"):
        answer(model, [LONG, TWO_ENDS], left=False)


@pytest.mark.parametrize("family", ["GPT2", "Llama", "Qwen3"])
def test_decoders_without_a_padding_id_get_texts_of_one_length(family: str) -> None:
    model = model_of(f"{family}ForSequenceClassification", pad_token_id=None)
    assert rules_of(model).equal_lengths
    with pytest.raises(ValueError, match="Cannot handle batch sizes > 1 if no padding token is defined"):
        answer(model, [SHORT, LONG], left=False)
