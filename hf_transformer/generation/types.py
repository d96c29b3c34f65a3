"""Data types of text generation, and the interface of a generative model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.errors import Path
from hf_transformer.generation.cache import CacheBudget
from hf_transformer.generation.constraint import Constraint, ReasoningBy, StructuredOutputForm
from hf_transformer.generation.images import Image, ImageForm
from hf_transformer.observability.metrics import Work
from hf_transformer.types.request import Context
from hf_transformer.types.tokenization import TextInput

if TYPE_CHECKING:
    from hf_transformer.generation.responses.prefix import ReasoningPrefix  # imports regex

FinishReason = Literal["stop", "length"]
"""Reason for the end of a text. ``stop``: an end token or a stop string; ``length``: the limit of new tokens."""
Interface = Literal["auto", "tokens", "text", "logits"]
"""Values of --generation_interface; ``auto`` detects the interface from the model's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one continuation. Each default is neutral: it has no effect.

    Attributes:
        max_tokens: maximum number of new tokens; None for the model's maximum length.
        min_tokens: minimum number of new tokens.
        greedy: choose the most likely token, and ignore temperature, top_k, top_p, min_p and seed.
        top_k: number of most likely tokens to sample from; 0 for the whole vocabulary.
        logit_bias: numbers to add to the logits, by token id.
        stop: strings that end the text. The text excludes them.
        stop_token_ids: tokens that end the text. The text excludes them.
        ignore_eos: treat end-of-sequence tokens like any other token.
        logprobs: number of top logprobs to return per token; None for no log probabilities.
        prompt_logprobs: the same for the tokens of the prompt.
        score_ids: tokens whose log probabilities to return in place of the top ones.
        shown_tokens: special tokens that are a part of the text, as delimiters of a response template.
        n: number of continuations of each prompt.
        constraint: the form of the text; None for free text.
        reasoning: makes a reader of the reasoning before a text with a constraint; None if the constraint holds from
            the first token.
        names: source of each field that is not neutral: the client's parameter name, or a flag (``--top_k``).
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
    prompt_logprobs: int | None = None
    score_ids: tuple[int, ...] = ()
    shown_tokens: frozenset[int] = frozenset()
    src_lang: str | None = None
    tgt_lang: str | None = None
    n: int = 1
    constraint: Constraint | None = None
    reasoning: Callable[[], ReasoningPrefix] | None = None
    names: Mapping[str, Path | str] = field(default_factory=dict)

    def path(self, field: str) -> Path:
        """Path of a field for FieldError, with the client's parameter name."""
        name = self.names.get(field, field)
        return ("parameters", name.removeprefix("--")) if isinstance(name, str) else ("parameters", *name)


NEUTRAL = Sampling()
LANGUAGES: Final = ("src_lang", "tgt_lang")
"""Fields of Sampling for models that translate between many languages."""


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """A generation request from any API.

    Attributes:
        prompts: texts, or token ids (``TokenIds``).
        special_tokens: whether the tokenizer adds special tokens to texts; a rendered chat contains them already.
        echo: whether to start each text with its prompt.
        max_length: limit of prompt and new tokens together (transformers' max_length). ``sampling.max_tokens``
            overrides it.
        name: the client's field name of the prompts, for FieldError.
        single: whether ``name`` is one prompt and not a list.
        images: the images of the only prompt, which has placeholders for them.
        question: the text beside the images, for a model that renders the chat template itself.
    """

    prompts: Sequence[TextInput]
    sampling: Sampling
    special_tokens: bool = True
    echo: bool = False
    max_length: int | None = None
    name: str = "instances"
    single: bool = False
    images: Sequence[Image] = ()
    question: str = ""

    def prompt_path(self, index: int) -> Path:
        """Path of a prompt for FieldError."""
        return (self.name,) if self.single else (self.name, index)


@dataclass(slots=True)
class Prompt:
    """A tokenized prompt: ``text`` and ``ids`` [S].

    ``decoder_start`` has the first tokens of the decoder for a request with ``tgt_lang``; empty for the model's.
    ``special_tokens`` is true if the service's tokenizer added special tokens to ``ids`` that ``text`` lacks. For
    ``Sampling.prompt_logprobs`` the generator sets ``scores``, one per id, before the first step of a continuation.
    """

    text: str
    ids: tuple[int, ...]
    special_tokens: bool = True
    scores: Sequence[TokenScore] = ()
    images: Sequence[Image] = ()
    question: str = ""
    decoder_start: tuple[int, ...] = ()


@dataclass(slots=True)  # frozen, each would take half a microsecond more
class TokenScore:
    """Natural log probability of a token, None for a prompt's first token. ``top`` lists (id, logprob) of the most
    likely tokens, best first. ``rank`` is 1 for the most likely token, and set for a prompt's tokens only."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(slots=True)
class Step:
    """One increment of a text from a generator: token ids, or text if the model returns text.

    Attributes:
        ids: new tokens, without an end token.
        scores: one element per id if the request asks for logprobs, and one more if the model chose an end token.
        finish: set in the last step.
        total: number of tokens of a text without ids, set in the last step if the generator counts them.
    """

    ids: Sequence[int] = ()
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish: FinishReason | None = None
    total: int | None = None


@dataclass(slots=True)
class TokenText:
    """A token in an answer: its ``text`` and its ``bytes``, which may be part of a character.

    ``offset`` is the token's start in the text, in characters. A part of a character has the character's offset.
    Tokens in ``top`` have no offset. The other fields are those of TokenScore.
    """

    text: str
    bytes: bytes
    logprob: float | None
    top: Sequence[TokenText] = ()
    offset: int = 0
    id: int = -1
    rank: int = 0


@dataclass(slots=True)
class Piece:
    """New text of one continuation. ``prompt`` is the index of the prompt, ``choice`` the index of its continuation.

    Attributes:
        tokens: the tokens of the text if the request asks for logprobs.
        count: number of new tokens since the previous piece.
        finish: set in the last piece.
        prompt_tokens: the prompt's tokens if the request asks for their logprobs, set in the first piece.
        stop: the stop string that ended the text, set in the last piece.
    """

    prompt: int
    choice: int
    text: str
    tokens: Sequence[TokenText] = ()
    count: int = 0
    finish: FinishReason | None = None
    prompt_tokens: Sequence[TokenText] = ()
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """Settings of a generator.

    Attributes:
        model_config: content of config.json.
        eos_ids: end-of-sequence tokens.
        pad_id: token at masked positions.
        decoder_start_ids: first tokens of an encoder-decoder's decoder; empty for a decoder-only model.
        max_length: maximum sequence length in tokens. A decoder-only model's sequence includes prompt and new
            tokens.
        input_names: --tensor_input_names.
        output_names: --tensor_output_names.
        concurrency_limit: limit of a logits model's batches in flight. Generators share it when the model is replaced.
        cache_budget: memory budget of key-value caches (--max_cache_bytes). Generators share it likewise.
        structured_output_form: --structured_output_form.
        structured_output_reasoning: --structured_output_reasoning.
    """

    model_config: Mapping[str, Any]
    eos_ids: frozenset[int]
    pad_id: int
    decoder_start_ids: tuple[int, ...] = ()
    max_length: int
    interface: Interface = "auto"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    pad_to_multiple_of: int = 1
    scheduling: SchedulerSettings
    concurrency_limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(0))
    cache_budget: CacheBudget = field(default_factory=lambda: CacheBudget(2**30))
    structured_output_form: StructuredOutputForm = "structured_outputs"
    structured_output_reasoning: ReasoningBy = "grammar"


class Generator(ABC):
    """Interface of a generative model, used on one event loop."""

    interface: ClassVar[str]
    """Interface of the model: a value of --generation_interface."""

    supported_fields: frozenset[str]
    """Fields of Sampling that the model or this class supports. The pipeline rejects a request that sets other fields.

    The pipeline itself supports ``stop`` and ``n``.
    """

    hints: Mapping[str, str] = {
        "prompt_logprobs": "the model returns no log probabilities of prompts",
        **dict.fromkeys(LANGUAGES, "the model has no languages to choose; leave it out"),
        "constraint": "this model can't hold a text to a form; leave it out",
    }
    """Reasons why the model does not support a field, for errors."""

    image_form: ImageForm | None = None
    """Form in which the model takes images; None for a model of texts."""

    reasons_first: bool = False
    """Whether a constraint holds after the reasoning only (``Sampling.reasoning``), and not from the first token."""

    takes_adapters: bool = False
    """Whether the model takes the name of a LoRA adapter (``Context.adapter``)."""

    texts: int = 0
    """Number of texts being generated."""
    tokens: int = 0
    """Number of tokens of their prompts."""

    @property
    def work(self) -> Work:
        """The texts being generated, with the tokens of their prompts. A text waits until its first call is sent."""
        return Work(0, 0, self.texts, self.tokens)

    async def prepare(self, sampling: Sampling) -> object:
        """Compiles the constraint of a request, if the model needs that. Called first. Raises RequestError.

        The caller keeps the result until the last text of the request ends.
        """
        return None

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises RequestError if the model can't generate one of a request's texts. Called before ``generate``."""
        return

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """Generates one continuation, step by step. The caller enforces the deadline.

        Calls the predictor only when the first step is requested. ``aclose`` and cancellation end the predictor's work
        if possible. ``sampling.max_tokens`` is not None, and the choices of a prompt have different seeds.

        Raises:
            RequestError: the predictor failed.
            InvalidInput: the model can't continue this prompt.
        """

    async def trial(self, prompt: Prompt) -> None:
        """Generates one token, as a test of the model. Raises RequestError on failure."""
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("trial", {}))) as steps:
            async for _ in steps:
                pass
