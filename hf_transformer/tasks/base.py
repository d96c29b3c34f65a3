"""What a task is: how an instance becomes text, and how one instance's output rows become its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.generation_settings import USUAL, GenerationSettings
from hf_transformer.tasks.tensors import FREE, OUTPUT, TEXT, Field, json_tensor
from hf_transformer.types import PLAIN, Array, Encoding, Json, Tensor, TensorSpec, TextInput, Tokenization

Item = TypeVar("Item")
Options = TypeVar("Options")
Part = TypeVar("Part")
OutputFormat = Literal["kserve", "pipeline"]


class Vocabulary(Protocol):
    """The part of a tokenizer that tasks need. A "no such token" is None."""

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


Overflow = Literal["truncate", "error", "window"]
"""What becomes of a text that is longer than the model."""


@dataclass(frozen=True, slots=True)
class SentenceTransformers:
    """What the sentence-transformers files of a model folder say (modules.json and what it names).

    ``pooling`` are the modes that 1_Pooling/config.json switches on (mean, cls, max, lasttoken, mean_sqrt_len_tokens,
    weightedmean), joined one behind the other if there are several; ``normalize`` whether a Normalize module follows;
    ``prompts`` texts put in front, by name; ``include_prompt`` whether their tokens are pooled too; ``truncate_dim``
    how many components of a vector are left; ``lower_case`` whether texts are lower-cased. ``inside`` names a module
    that only the model itself can have done (Dense, ...), so that its output has to be the finished vector.
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
class TaskSettings:
    """What a task is built from: the model's config.json, the tokenizer, and the service's defaults."""

    model_config: Mapping[str, Any]
    vocabulary: Vocabulary
    output_format: OutputFormat = "kserve"
    return_probabilities: bool = False
    return_raw_logits: bool = False
    return_offsets_mapping: bool = False
    aggregation_strategy: str = "none"
    on_overflow: Overflow = "truncate"
    stride: int | None = None
    max_length: int = 512
    sentence_transformers: SentenceTransformers | None = None
    activation_fn: str | None = None
    generation: GenerationSettings = USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of an output, without the batch axis.

    ``tokens`` axes are as long as the instance's encoding. Others have a size between ``minimum`` and ``maximum``
    (None: no bound), and ``why`` says in a few words where that bound comes from.
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
    """An output that a task reads. ``name`` is what exporters usually call it; ``axes`` its shape per instance.

    ``other_names`` are names that it goes by too, the likelier first, and ``other_axes`` shapes that do as well; the
    one that the model has is seen by the number of axes. ``datatypes`` are those that can be read.
    """

    name: str
    axes: tuple[Axis, ...]
    other_names: tuple[str, ...] = ()
    other_axes: tuple[tuple[Axis, ...], ...] = ()
    datatypes: tuple[str, ...] = FLOATS


class Servable(ABC):
    """What the APIs see of a task, whether it predicts or generates. Pure: no I/O and no state per request."""

    name: ClassVar[str]
    """The underscored name, as --task takes it."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Further names, underscored: those of Hugging Face pipelines."""
    has_windows: ClassVar[bool] = False
    """Whether --on_overflow=window means anything here."""
    reads_sentence_transformers: ClassVar[bool] = False
    """Whether the sentence-transformers files of a model folder are about this task."""
    fields: ClassVar[tuple[Field, ...]] = (TEXT,)
    """What an instance consists of, where it comes in tensors."""
    switched_on_by: ClassVar[Mapping[str, str]] = {}
    """Tensors beside the predictions, each with the parameter of a request that asks for it."""

    def __init__(self, settings: TaskSettings) -> None:
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
        """What ``tensor`` gives, and what is given beside it, where a request leaves the service's defaults; -1 is any
        size."""
        return (TensorSpec(OUTPUT, "BYTES", (FREE,)),)


class Task(Servable, Generic[Item, Options, Part]):
    """One predictive task for one model: its answers are read off the model's outputs for the tokens of a text.

    The pipeline calls, for a request, ``options`` once, and for every instance: ``item``, ``texts``, then ``check`` and
    ``decode`` for each of its encodings (one per text, or per window of a text), and ``answer`` with all that decode
    gave.
    """

    @property
    @abstractmethod
    def outputs(self) -> tuple[OutputRole, ...]:
        """The outputs that ``decode`` reads."""

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Options:
        """As for every task; what the methods below are given."""

    @abstractmethod
    def item(self, instance: Json, where: str, options: Options) -> Item:
        """Reads one element of the request's instances.

        Args:
            where: its name in error messages, such as ``instances[3]``.

        Raises:
            InvalidInput: the instance has another form.
        """

    @abstractmethod
    def texts(self, item: Item, options: Options) -> Sequence[TextInput]:
        """What is tokenized of an item: usually one text, several where it is scored against many."""

    def text_name(self, where: str, number: int) -> str:
        """What an item's text is called in messages, by its number among those that ``texts`` gives."""
        return where

    def tokenization(self, options: Options) -> Tokenization:
        """How the texts are tokenized."""
        return PLAIN

    def overflow(self, options: Options) -> Overflow:
        """What becomes of a text that is too long in this request."""
        return self.settings.on_overflow

    def check(self, encoding: Encoding, where: str) -> None:
        """Raises InvalidInput where the task can't be done on these tokens."""

    @abstractmethod
    def answer_size(self, encoding: Encoding, options: Options) -> int:
        """About how many values this encoding adds to the answer, a measure of the work to make and send it."""

    def decode_cost(self, encoding: Encoding, options: Options) -> int:
        """About how long ``decode`` takes for this encoding, in units of a quarter of a microsecond."""
        return self.answer_size(encoding, options)

    @abstractmethod
    def decode(self, item: Item, encoding: Encoding, outputs: Mapping[str, Array], options: Options) -> Part:
        """What one encoding's outputs say; it must not keep the views.

        Args:
            item: what ``item`` gave for the instance.
            encoding: the tokens of one of its texts, or of a window of it.
            outputs: by role name, without batch axis and padding: [tokens, ...] with tokens = len(encoding), or
                the axes that the role names. Views into a buffer that is gone after this call.
            options: what ``options`` gave for the request.

        Raises:
            PredictorError: the values can't be decoded (NaN).
        """

    @abstractmethod
    def answer(self, item: Item, parts: Sequence[Sequence[Part]], options: Options) -> Json:
        """One instance's prediction, from what ``decode`` gave: a list per text, with an element per window."""

    def tensor_size(self, lengths: Sequence[int], options: Options) -> int:
        """How many values ``tensor`` holds, for instances of so many tokens, where padding makes it more than
        ``answer_size`` says."""
        return 0

    def beside(self, encodings: Sequence[Sequence[Sequence[Encoding]]], options: Options) -> Sequence[Tensor]:
        """Tensors that the answer has beside the predictions, from the encodings per instance, text and window."""
        return ()

    def beside_size(self, encodings: Sequence[Sequence[Sequence[Encoding]]], options: Options) -> int:
        """How many values ``beside`` will give."""
        return 0


def single(parts: Sequence[Sequence[Part]]) -> Part:
    """The part of an instance that has one text in one window."""
    return parts[0][0]


def read_text(instance: Json, where: str) -> str:
    """The instance itself, or its ``text``.

    Raises:
        InvalidInput: the instance has another form.
    """
    if isinstance(instance, dict) and instance.keys() == {"text"}:
        instance = instance["text"]
    if not isinstance(instance, str):
        raise InvalidInput(f'{where}: expected a string or {{"text": string}}, got {describe(instance)}')
    return instance


def describe(value: Json) -> str:
    """A value's JSON type in words, for error messages; the value itself stays out of them (it may be a prompt)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        keys = ", ".join(sorted(str(key)[:40] for key in list(value)[:8]))
        return f"an object with the keys {keys}" if keys else "an empty object"
    return type(value).__name__
