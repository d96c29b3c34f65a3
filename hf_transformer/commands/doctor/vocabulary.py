"""Whether tokenizer and config.json are of one model."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor.findings import Finding, ok, skipped, warning
from hf_transformer.pair import Pair

LEAST_PART = 0.9
"""Of the vocabulary that config.json declares, what a tokenizer of the same model has at least. Models round theirs up:
phi-2's tokenizer fills 98 % of it, mT5's all but 12 of 250,112."""


def vocabulary(pair: Pair) -> Sequence[Finding]:
    """Whether the tokenizer's ids are those that config.json declares."""
    declared, size = pair.model_config.get("vocab_size"), pair.tokenizer.vocab_size
    if type(declared) is not int:
        return skipped(f"config.json names no vocab_size; the tokenizer has {size} tokens")
    change = "put the tokenizer files and the config.json of the model that was exported into one folder (--model_dir)"
    if size > declared:
        return warning(f"the tokenizer has {size} tokens, more than config.json's vocab_size {declared}", change)
    if size < LEAST_PART * declared:
        return warning(f"the tokenizer has {size} tokens, far fewer than config.json's vocab_size {declared}", change)
    return ok(f"{size} tokens, config.json says {declared}")


def padding(pair: Pair) -> Sequence[Finding]:
    """Whether both mean the same padding token: some models count positions by it."""
    declared, own = pair.model_config.get("pad_token_id"), pair.tokenizer.pad_token_id
    if type(declared) is not int or own is None:
        missing = "config.json names none" if own is not None else "the tokenizer has none"
        return skipped(f"{missing}; id {pair.tokenizer.pad_id} is used")
    if declared != own:
        return warning(
            f"the tokenizer pads with id {own}, config.json's pad_token_id is {declared}",
            "correct pad_token in tokenizer_config.json, or pad_token_id in config.json",
        )
    return ok(f"id {own}")
