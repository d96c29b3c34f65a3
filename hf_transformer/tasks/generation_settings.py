"""The service's own defaults and limits of text generation, as its flags give them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """What V1, V2 and Triton's generate endpoints do where a request says nothing; OpenAI's have OpenAI's defaults.

    ``max_length`` bounds the prompt and what is new together, in tokens. ``max_new_tokens`` is a limit for every API:
    new tokens that a text may ask for, None for as many as the model's length leaves. ``top_k`` 0 is all tokens.
    """

    max_length: int = 20
    temperature: float = 1.0
    do_sample: bool = False
    top_k: int = 50
    top_p: float = 1.0
    return_full_text: bool = True
    max_new_tokens: int | None = None


USUAL = GenerationSettings()
"""What the flags say unless they are set."""
