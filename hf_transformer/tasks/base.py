"""Base classes of tasks: from an instance to texts, and from output rows to an answer."""

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
"""Treatment of a text longer than the model takes: truncate it, refuse it, or read it in windows."""
Encodings: TypeAlias = Sequence[Sequence[Sequence[Encoding]]]
"""The encodings of one request, per instance, text and window."""
Outputs: TypeAlias = Mapping[str, Array]
"""The outputs for one encoding by role name, without batch axis and padding."""

LOGITS = ("return_probabilities", "return_raw_logits")
"""Parameters, and flags with their defaults, that ask for a number per label or token."""


class TaskOptions(Protocol):
    """One request's parameters; each task has its own class."""

    @property
    def overflow(self) -> Overflow:
        """Treatment of a text that is too long."""


Item = TypeVar("Item")
Options = TypeVar("Options", bound=TaskOptions)
Part = TypeVar("Part")


class TaskTokenizer(Protocol):
    """The part of a tokenizer that tasks use. None stands for a token that the tokenizer lacks."""

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
        pooling: the enabled modes of 1_Pooling/config.json (keys of pooling.POOLING), concatenated in this order.
        normalize: whether a Normalize module follows.
        prompts: texts in front of each text, by name.
        include_prompt: whether the prompt's tokens are pooled too.
        truncate_dim: the number of components to keep of a vector, None for all.
        lower_case: whether texts are lower-cased.
        inside: a module (Dense, ...) that only the model itself can apply; its output is the finished vector.
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
    """The settings in config_sentence_transformers.json of a CrossEncoder (sentence-transformers 6 and later): the
    ``activation_fn`` of its scores, and texts in front of each query, by name."""

    activation_fn: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """Default sampling parameters of V1, V2 and Triton's generate endpoints; OpenAI's API has OpenAI's defaults.

    ``max_length`` bounds prompt and new tokens together. ``max_new_tokens`` bounds the new tokens per text in every
    API; None leaves that to the model's length. ``top_k`` 0 means all tokens.
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

    @property
    def window_stride(self) -> int:
        """Tokens that neighbouring windows share: --stride, else a quarter of the model's length."""
        return self.max_length // 4 if self.stride is None else self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of an output, without the batch axis.

    Attributes:
        tokens: whether its size is the number of the encoding's tokens.
        minimum, maximum: the bounds of any other axis; a maximum of None is no bound.
        why: the source of the bounds, a few words for error messages.
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
        other_names: alternative names, the likelier first.
        other_axes: alternative shapes; the number of axes tells them apart.
        datatypes: the datatypes that the task can read.
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
    """Whether it supports --on_overflow=window."""
    reads_sentence_transformers: ClassVar[bool] = False
    """Whether the sentence-transformers files of a model folder apply to it."""
    fields: ClassVar[tuple[Field, ...]] = (TEXT,)
    """The parts of an instance, each a tensor in V2."""
    switched_on_by: ClassVar[Mapping[str, str]] = {}
    """Optional output tensors, each with the parameter that asks for it."""
    parameters: ClassVar[Sequence[str]]
    """The names of a request's parameters. A flag of the same name (app/wiring.py, FLAGS) sets the default."""
    logits_hint: ClassVar[str] = "leave it out"
    """Advice in the error about a flag of LOGITS, for a task without such answers."""

    def __init__(self, settings: TaskSettings) -> None:
        """Raises ConfigError for a flag of LOGITS that the task lacks, LoadError for a model that can't do the task."""
        for flag in LOGITS:
            if getattr(settings, flag) and flag not in self.parameters:
                raise ConfigError(f"--{flag}: {self.name} has no such answers; {self.logits_hint}")
        self.settings = settings

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Any:
        """Checks a request's parameters and fills in the service's defaults.

        Raises:
            InvalidInput: a parameter is unknown, of the wrong type, out of range, or contradicts another.
            TooLarge: a parameter is over a limit.
        """

    def tensor(self, predictions: Sequence[Json], options: Any) -> Tensor:
        """The predictions as one tensor whose first axis is the instances: BYTES [instances], JSON text, by default."""
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
    """The outputs that ``decode`` reads; each task sets them in its constructor."""

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Options:
        """Does the same as Servable.options; the methods below take the result."""

    def item(self, instance: Json, path: str, options: Options) -> Item:
        """Parses one element of the request's instances, by default with ``read_text``.

        Args:
            path: the path of the instance for errors, such as ``instances[3]``.

        Raises:
            InvalidInput: the instance has another form.
            TooLarge: a part of the instance is over a limit.
        """
        return cast(Item, read_text(instance, path))

    def texts(self, item: Item, options: Options) -> Sequence[TextInput]:
        """The texts of an item: the item itself for most tasks, one per label or document for others."""
        return (cast(TextInput, item),)

    def text_path(self, path: str, index: int) -> str:
        """The path of the text ``texts[index]`` of the instance at ``path``, for errors."""
        return path

    def tokenization(self, options: Options) -> Tokenization:
        """The tokenizer's settings for this request."""
        return PLAIN

    def overflow(self, options: Options) -> Overflow:
        """Treatment of this request's texts that are too long."""
        return options.overflow

    def check(self, encoding: Encoding, path: str) -> None:
        """Raises InvalidInput if the task can't be done on these tokens of the instance at ``path``."""

    @abstractmethod
    def answer_size(self, encoding: Encoding, options: Options) -> int:
        """Estimates the number of values that this encoding adds to the answer: the work to build and send it."""

    def decode_cost(self, encoding: Encoding, options: Options) -> int:
        """Estimates the time of ``decode`` for this encoding, in quarters of a microsecond."""
        return self.answer_size(encoding, options)

    @abstractmethod
    def decode(self, item: Item, encoding: Encoding, outputs: Outputs, options: Options) -> Part:
        """The part of the answer in one encoding's outputs; it must not keep views of them.

        Args:
            item: the instance, from ``item``.
            encoding: one of its texts, or a window of it.
            outputs: [tokens, ...] with tokens = len(encoding), or the axes that the role names. They are views into a
                buffer that is freed after this call.
            options: the request's, from ``options``.

        Raises:
            PredictorError: the values can't be decoded (NaN).
        """

    def answer(self, item: Item, parts: Sequence[Sequence[Part]], options: Options) -> Json:
        """One instance's prediction from its decoded parts: a list per text, with an element per window. By default
        the only part of the only text."""
        return parts[0][0]

    @staticmethod
    def padded_tokens(encodings: Encodings) -> int:
        """Counts the tokens of all instances, each padded to the longest one."""
        lengths = (sum(len(window) for windows in texts for window in windows) for texts in encodings)
        return len(encodings) * max(lengths, default=0)

    def tensor_size(self, encodings: Encodings, options: Options) -> int:
        """Counts the values of ``tensor``, padding included; 0 if ``answer_size`` covers them."""
        return 0

    def extra_outputs(self, encodings: Encodings, options: Options) -> Sequence[Tensor]:
        """The optional output tensors that the request asks for."""
        return ()

    def extra_size(self, encodings: Encodings, options: Options) -> int:
        """Counts the values of ``extra_outputs``, padding included."""
        return 0


def read_text(instance: Json, path: str) -> str:
    """The instance itself, or its ``text``. Raises InvalidInput for an instance of another form."""
    if isinstance(instance, dict) and instance.keys() == {"text"}:
        instance = instance["text"]
    if not isinstance(instance, str):
        raise InvalidInput(path, 'a string or {"text": string}', describe(instance))
    return instance
