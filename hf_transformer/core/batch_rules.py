"""Which texts may share a batch of a model, and how they are padded there, by its architecture.

The rule is that an answer in any batch equals the answer to the text alone. An attention mask hides padding from most
architectures, wherever the padding stands; the exceptions are here, and tests/models/test_batch_rules.py holds them
against transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hf_transformer.types.request import Json

READ_PADDING: Final = frozenset({"convbert", "canine", "mra", "nystromformer", "yoso"})
"""Model types that mix the states of neighbouring tokens without regard to the mask: by convolution, landmarks or
hashing."""
COUNT_ENDS: Final = frozenset(
    f"{family}ForSequenceClassification"
    for family in ("Bart", "BigBirdPegasus", "LED", "MBart", "MT5", "Mvp", "PLBart", "T5", "UMT5")
)
"""Architectures that gather the states at all eos tokens of a batch, and then give each row as many."""
DECODERS: Final = frozenset(
    {
        *("codegen", "ctrl", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "llama", "ministral"),
        *("mistral", "mixtral", "mpt", "openai-gpt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_moe", "stablelm", "starcoder2"),
    }
)
"""Model types without a pad_token_id of their own. Their classifiers read the last token that is no padding."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What an architecture needs beside an attention mask.

    Args:
        pad_id: the token id of padding; None where any will do.
        left: whether padding stands before the text.
        equal_lengths: whether only texts of equal length share a batch.
        counted_id: texts with different counts of this token id never share a batch; None for no such token.
    """

    pad_id: int | None = None
    left: bool = False
    equal_lengths: bool = False
    counted_id: int | None = None


def batch_rules(model_config: Mapping[str, Json], eos_id: int | None) -> BatchRules:
    """The rules of a config.json; ``eos_id`` is the tokenizer's, for one that names none."""
    kind, pad_id = model_config.get("model_type"), model_config.get("pad_token_id")
    architectures = model_config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    classifies = any(str(name).endswith("ForSequenceClassification") for name in names)
    reads_last = model_config.get("summary_type", "last" if kind == "xlnet" else "first") == "last"
    counts = not COUNT_ENDS.isdisjoint(map(str, names))
    ends = model_config.get("eos_token_id", eos_id)
    return BatchRules(
        # Decoders find the end of a text, and RoBERTa's positions their beginning, by this id.
        pad_id=pad_id if type(pad_id) is int and pad_id >= 0 else None,
        # XLNet's positions are relative, so padding on the left moves none.
        left=kind == "xlnet",
        equal_lengths=(
            kind in READ_PADDING
            or (kind == "big_bird" and model_config.get("attention_type", "block_sparse") != "original_full")
            or (classifies and reads_last and kind in ("xlm", "flaubert"))
            or (classifies and kind in DECODERS and pad_id is None)
        ),
        counted_id=ends if counts and type(ends) is int else None,
    )
