"""Another object of the tokenizers library that does not cut: where to cut is a setting inside such an object."""

from __future__ import annotations

import tokenizers


def uncut(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that neither cuts nor pads, with the same vocabulary in memory if the library can share it."""
    copy = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(copy, part, getattr(backend, part))
    added = backend.get_added_tokens_decoder()
    copy.add_tokens([added[number] for number in sorted(added)])
    if copy.get_added_tokens_decoder() != added:
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
        copy.no_truncation()
    copy.encode_special_tokens = backend.encode_special_tokens
    return copy
