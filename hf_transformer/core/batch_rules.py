"""Batching rules by model architecture.

A text must have the same answer in any batch. Most architectures ignore masked padding on either side. This module
lists the exceptions; tests/models/test_batch_rules.py checks them against transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hf_transformer.types.request import Json

READ_PADDING: Final = frozenset({"convbert", "canine", "mra", "nystromformer", "yoso"})
"""Model types that ignore the mask in convolutions, landmarks or hashing."""
COUNT_ENDS: Final = frozenset(
    f"{family}ForSequenceClassification"
    for family in ("Bart", "BigBirdPegasus", "LED", "MBart", "MT5", "Mvp", "PLBart", "T5", "UMT5")
)
"""Architectures that need the same number of eos tokens in all rows of a batch."""
DECODERS: Final = frozenset(
    {
        *("codegen", "ctrl", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "llama", "ministral"),
        *("mistral", "mixtral", "mpt", "openai-gpt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_moe", "stablelm", "starcoder2"),
    }
)
"""Model types without a default pad_token_id, with classifiers that read the last token before the padding."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Requirements of an architecture in addition to an attention mask.

    Args:
        pad_id: the required token id of padding; None allows any.
        left: whether padding precedes the text.
        equal_lengths: whether only texts of equal length share a batch.
        counted_id: a token id. Texts with different counts of this token never share a batch.
    """

    pad_id: int | None = None
    left: bool = False
    equal_lengths: bool = False
    counted_id: int | None = None


def batch_rules(model_config: Mapping[str, Json], eos_id: int | None) -> BatchRules:
    """Returns the rules for a config.json. ``eos_id`` is the default of its eos_token_id."""
    model_type, pad_id = model_config.get("model_type"), model_config.get("pad_token_id")
    architectures = model_config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    classifies = any(str(name).endswith("ForSequenceClassification") for name in names)
    reads_last = model_config.get("summary_type", "last" if model_type == "xlnet" else "first") == "last"
    counts_ends = not COUNT_ENDS.isdisjoint(map(str, names))
    end_id = model_config.get("eos_token_id", eos_id)
    return BatchRules(
        # Decoders find the end of a text by this id, and RoBERTa derives positions from it.
        pad_id=pad_id if type(pad_id) is int and pad_id >= 0 else None,
        # XLNet's positions are relative, so padding on the left does not shift them.
        left=model_type == "xlnet",
        equal_lengths=(
            model_type in READ_PADDING
            or (model_type == "big_bird" and model_config.get("attention_type", "block_sparse") != "original_full")
            or (classifies and reads_last and model_type in ("xlm", "flaubert"))
            or (classifies and model_type in DECODERS and pad_id is None)
        ),
        counted_id=end_id if counts_ends and type(end_id) is int else None,
    )
