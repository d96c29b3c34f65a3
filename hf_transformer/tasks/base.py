"""The base of all tasks: how an instance becomes text, and how its output rows become its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from hf_transformer.errors import ConfigError, InvalidInput, describe
from hf_transformer.tasks.tensors import FREE, OUTPUT, TEXT, Field, json_tensor
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization

OutputFormat = Literal["kserve", "pipeline"]
Overflow = Literal["truncate", "error", "window"]
"""A text longer than the model is cut, refused, or read in windows."""
Encodings: TypeAlias = Sequence[Sequence[Sequence[Encoding]]]
"""Those of one request, per instance, text and window."""

LOGITS = ("return_probabilities", "return_raw_logits")


class TaskOptions(Protocol):
    """One request's choices, of which each task has a class of its own."""

    @property
    def overflow(self) -> Overflow:
        """How the request treats a text that is too long."""


Item = TypeVar("Item")
Options = TypeVar("Options", bound=TaskOptions)
Part = TypeVar("Part")


class TaskTokenizer(Protocol):
    """The part of a tokenizer that tasks need. None stands for a token that it does not have."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def mask_token(self) -> str | None: ...
    @property
    def pad_token_id(self) -> int | None: ...
    @property
    def cls_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def padding_side(self) -> str: ...
    @property
    def marks_subwords(self) -> bool: ...
    def token_to_id(self, token: str) -> int | None: ...
    def id_to_token(self, number: int) -> str | None: ...
    def join_tokens(self, tokens: list[str]) -> str: ...
    def first_token_id(self, text: str) -> int | None: ...
    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class SentenceTransformers:
    """The settings in the sentence-transformers files of a model folder (modules.json and the files it names).

    Attributes:
        pooling: the modes that 1_Pooling/config.json switches on (keys of pooling.POOLING), joined in this order.
        normalize: whether a Normalize module follows.
        prompts: texts in front of each text, by name.
        include_prompt: whether the prompt's tokens are pooled too.
        truncate_dim: how many components of a vector are left, None for all.
        lower_case: whether texts are lower-cased.
        inside: a module that only the model itself can have done (Dense, ...); its output is the finished vector.
    """

    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    max_seq_length: int | None = None
    truncate_dim: int | None = None
    lower_case: bool = False
    inside: str | None = None


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """The settings in config_sentence_transformers.json of a CrossEncoder, which version 6 of sentence-transformers
    writes: the ``activation_fn`` of its scores, and texts in front of each query, by name."""

    activation_fn: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """What V1, V2 and Triton's generate endpoints do where a request says nothing; OpenAI's have OpenAI's defaults.

    ``max_length`` bounds the prompt and the new tokens together. ``max_new_tokens`` bounds the new tokens of a text
    in every API; None leaves as many as the model's length does. ``top_k`` 0 is all tokens.
    """

    max_length: int = 20
    temperature: float = 1.0
    do_sample: bool = False
    top_k: int = 50
    top_p: float = 1.0
    return_full_text: bool = True
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The model's config.json, its tokenizer, and the service's defaults."""

    model_config: Mapping[str, Any]
    vocabulary: TaskTokenizer
    output_format: OutputFormat = "kserve"
    return_probabilities: bool = False
    return_raw_logits: bool = False
    return_offsets_mapping: bool = False
    aggregation_strategy: str = "none"
    on_overflow: Overflow = "truncate"
    stride: int | None = None
    max_length: int = 512
    sentence_transformers: SentenceTransformers | None = None
    cross_encoder: CrossEncoder = CrossEncoder()
    generation: GenerationSettings = GenerationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of an output, without the batch axis.

    Attributes:
        tokens: whether it is as long as the instance's encoding.
        minimum, maximum: the bounds of any other axis; no maximum is no bound.
        why: where the bounds come from, in a few words for error messages.
    """

    name: str
    tokens: bool = False
    minimum: int = 1
    maximum: int | None = None
    why: str = ""


TOKENS = Axis(name="tokens", tokens=True)

FLOATS = ("FP16", "BF16", "FP32", "FP64")


@dataclass(frozen=True, slots=True)
class OutputRole:
    """An output that a task reads.

    Attributes:
        name: its usual name.
        axes: its shape per instance.
        other_names: further names, the likelier first.
        other_axes: further shapes, told apart by the number of axes.
        datatypes: those that the task can read.
    """

    name: str
    axes: tuple[Axis, ...]
    other_names: tuple[str, ...] = ()
    other_axes: tuple[tuple[Axis, ...], ...] = ()
    datatypes: tuple[str, ...] = FLOATS


class Servable(ABC):
    """A task that predicts or generates, as the APIs see it. It does no I/O and has no state per request."""

    name: ClassVar[str]
    """The name for --task, underscored."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Its names among Hugging Face pipelines, underscored."""
    has_windows: ClassVar[bool] = False
    """Whether it knows --on_overflow=window."""
    reads_sentence_transformers: ClassVar[bool] = False
    """Whether the sentence-transformers files of a model folder apply to it."""
    fields: ClassVar[tuple[Field, ...]] = (TEXT,)
    """The parts of an instance, each a tensor in V2."""
    switched_on_by: ClassVar[Mapping[str, str]] = {}
    """Output tensors beside the predictions, each with the parameter that asks for it."""
    parameters: ClassVar[Sequence[str]]
    """The names of a request's parameters. A flag of that name (app/wiring.py, FLAGS) is the default of one."""
    instead_of_logits: ClassVar[str] = ""
    """What an error says of a task that has no LOGITS, beside its name."""

    def __init__(self, settings: TaskSettings) -> None:
        """Raises ConfigError if a flag asks for LOGITS that the task does not have, and LoadError if the model can't do
        the task."""
        for flag in LOGITS:
            if getattr(settings, flag) and flag not in self.parameters:
                raise ConfigError(f"--{flag}: {self.name}{self.instead_of_logits} has no such answers; leave it out")
        self.settings = settings

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Any:
        """Checks a request's parameters and fills in the service's defaults.

        Raises:
            InvalidInput: a parameter is unknown, of the wrong type, out of range, or contradicts another.
        """

    def tensor(self, predictions: Sequence[Json], options: Any) -> Tensor:
        """The predictions as one tensor whose first axis is the instances.

        BYTES [instances], JSON text, unless a task has a better form.
        """
        return json_tensor(predictions)

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        """The output tensors under the service's defaults; -1 is any size."""
        return (TensorSpec(OUTPUT, "BYTES", (FREE,)),)


class Task(Servable, Generic[Item, Options, Part]):
    """A predictive task for one model.

    The pipeline calls ``options`` once for a request. For each instance it calls ``item`` and ``texts``, then ``check``
    and ``decode`` for each encoding (one per text, or per window of a text), and ``answer`` with all decoded parts.
    """

    outputs: tuple[OutputRole, ...]
    """The outputs that ``decode`` reads; set by each task when it is made."""

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Options:
        """As for every task; the methods below take the result."""

    def item(self, instance: Json, where: str, options: Options) -> Item:
        """Reads one element of the request's instances, by default with ``read_text``.

        Args:
            where: its name in error messages, such as ``instances[3]``.

        Raises:
            InvalidInput: the instance has another form.
        """
        return cast(Item, read_text(instance, where))

    def texts(self, item: Item, options: Options) -> Sequence[TextInput]:
        """The texts of an item: the item itself for most tasks, one per label or document for others."""
        return (cast(TextInput, item),)

    def text_name(self, where: str, number: int) -> str:
        """The name of an item's text in error messages, by its number in ``texts``."""
        return where

    def tokenization(self, options: Options) -> Tokenization:
        """How the texts are tokenized."""
        return PLAIN

    def overflow(self, options: Options) -> Overflow:
        """How this request treats a text that is too long."""
        return options.overflow

    def check(self, encoding: Encoding, where: str) -> None:
        """Raises InvalidInput where the task can't be done on these tokens."""

    @abstractmethod
    def answer_size(self, encoding: Encoding, options: Options) -> int:
        """About how many values this encoding adds to the answer: a measure of the work to make and send it."""

    def decode_cost(self, encoding: Encoding, options: Options) -> int:
        """About how long ``decode`` takes for this encoding, in quarters of a microsecond."""
        return self.answer_size(encoding, options)

    @abstractmethod
    def decode(self, item: Item, encoding: Encoding, outputs: Mapping[str, Array], options: Options) -> Part:
        """The part of the answer in one encoding's outputs; it must not keep views of them.

        Args:
            item: the instance, from ``item``.
            encoding: one of its texts, or a window of it.
            outputs: by role name, without batch axis and padding: [tokens, ...] with tokens = len(encoding), or
                the axes that the role names. Views into a buffer that is gone after this call.
            options: the request's, from ``options``.

        Raises:
            PredictorError: the values can't be decoded (NaN).
        """

    def answer(self, item: Item, parts: Sequence[Sequence[Part]], options: Options) -> Json:
        """One instance's prediction, from its decoded parts: a list per text, with an element per window. By default
        the only part of the only text."""
        return parts[0][0]

    @staticmethod
    def padded(encodings: Encodings) -> int:
        """The tokens of all instances, each padded to the longest one."""
        lengths = (sum(len(one) for windows in texts for one in windows) for texts in encodings)
        return len(encodings) * max(lengths, default=0)

    def tensor_size(self, encodings: Encodings, options: Options) -> int:
        """How many values ``tensor`` holds, padding included; 0 where ``answer_size`` says it."""
        return 0

    def extra_outputs(self, encodings: Encodings, options: Options) -> Sequence[Tensor]:
        """Output tensors beside the predictions."""
        return ()

    def extra_size(self, encodings: Encodings, options: Options) -> int:
        """How many values the tensors of ``beside`` hold."""
        return 0


def read_text(instance: Json, where: str) -> str:
    """The instance itself, or its ``text``.

    Raises:
        InvalidInput: the instance has another form.
    """
    if isinstance(instance, dict) and instance.keys() == {"text"}:
        instance = instance["text"]
    if not isinstance(instance, str):
        raise InvalidInput.of(f'{where}: expected a string or {{"text": string}}, got {describe(instance)}')
    return instance
