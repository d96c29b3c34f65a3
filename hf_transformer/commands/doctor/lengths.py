"""How long a text may be: what the tokenizer, config.json and the model's configuration say."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor.findings import Finding, ok, warning
from hf_transformer.pair import BoundPair
from hf_transformer.tokenizer.load import model_limit


def text_length(pair: BoundPair) -> Sequence[Finding]:
    """Whether texts are cut shorter than the model's files say."""
    fixed, longest = pair.signature.length, pair.tokenizer.max_length
    if fixed is not None and fixed < longest:
        return warning(
            f"the model always takes {fixed} tokens, where its files allow {longest}: longer texts are cut",
            f"export it with a free sequence axis (dims: [ -1 ]), or say so with --max_model_len={fixed}",
        )
    stated = model_limit(pair.model_config)
    where = "config.json names no limit" if stated is None else f"config.json allows {stated}"
    padded = "" if fixed is None or fixed == longest else f", padded to the {fixed} that the model always takes"
    return ok(f"texts are cut at {longest} tokens{padded} ({where})")
