"""The shapes of text generation, named once; see hf_transformer.types for those of the rest, and which are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hf_transformer.types import TextInput

FinishReason = Literal["stop", "length"]
"""Why a text ended: by an end-of-sequence token or a stop string, or because it may not be longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a continuation are chosen. The defaults change nothing: they are each method's neutral value.

    ``max_tokens`` bounds the new tokens, None is as many as the model's length leaves; ``min_tokens`` come before an
    end may. ``greedy`` takes the likeliest token each time, and then temperature, top_k, top_p, min_p and seed mean
    nothing. ``top_k`` 0 is all. ``logit_bias`` is added to the logits of these ids. ``stop`` are strings that end the
    text, and are no part of it; ``stop_token_ids`` are tokens that do. ``ignore_eos`` lets it go on past the
    end-of-sequence tokens, but not past those. ``logprobs`` asks for the log probability of each token and of so many
    of the likeliest beside it; None for none. ``n`` continuations are made of each prompt.

    ``names`` has what the client called each field that it set to anything but its neutral value, by the name of the
    field here: an error names it so.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """What one request asks to be continued, whichever API it came through.

    ``prompts`` are texts or ids (``TokenIds``). ``special_tokens`` says whether the tokenizer adds its own to a text:
    a rendered chat has them already. ``echo`` puts the prompt in front of each text. ``max_length`` bounds the prompt
    and what is new together (transformers' max_length), where ``sampling.max_tokens`` says nothing. ``name`` is what
    the client calls its prompts, for messages; with ``single`` it is one prompt itself and not a list.
    """

    prompts: Sequence[TextInput]
    sampling: Sampling
    special_tokens: bool = True
    echo: bool = False
    max_length: int | None = None
    name: str = "instances"
    single: bool = False


@dataclass(slots=True)
class Prompt:
    """One prompt as the model gets it: ``ids`` [S] of the service's tokenizer, and the ``text`` that they were made of.

    ``special_tokens`` says whether the tokenizer added its own; so many ``texts`` are written from it, at once.
    """

    text: str
    ids: tuple[int, ...]
    special_tokens: bool = True
    texts: int = 1


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A chosen token's natural log probability, and the likeliest tokens at its place, best first, as (id, logprob)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Step:
    """What a generator has that is new: token ids, or the text itself where the model gives text. With both, the ids
    are counted and the text is taken.

    ``scores`` has one element per id where the sampling asks for logprobs. ``finish`` is not None in the last step. A
    token that ends the text is never among the ids. ``total`` is how many tokens all of a text has that came without
    ids, in the last step of a generator that has counted them.
    """

    ids: Sequence[int] = ()
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: FinishReason | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as it is shown to a client: ``text`` is its own, ``bytes`` what it stands for, which may be part of a
    character. ``offset`` is where it stands in the new text, in characters: one that is part of a character stands
    where this does. Those of ``top`` have none."""

    text: str
    bytes: bytes
    logprob: float
    top: tuple[TokenText, ...] = ()
    offset: int = 0


@dataclass(slots=True)
class Piece:
    """New text of one continuation: number ``choice`` (0 to n - 1) of prompt number ``prompt``.

    ``tokens`` are shown where logprobs are asked for, ``count`` is the number of tokens that became known with this
    piece. The last piece of a continuation has ``finish``.
    """

    prompt: int
    choice: int
    text: str
    tokens: Sequence[TokenText] = ()
    count: int = 0
    finish: FinishReason | None = None
