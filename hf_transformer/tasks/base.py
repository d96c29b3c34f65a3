"""Base classes of tasks. A task turns an instance into texts, and the model's outputs into an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from hf_transformer.errors import ConfigError, InvalidInput, Path, describe
from hf_transformer.tasks.declaration import MASK, TEXT_SCHEMA, Demo, Example, ExportHead, Schema, with_mask
from hf_transformer.tasks.masking import PersonalData
from hf_transformer.tasks.moderation import Moderation
from hf_transformer.tasks.multi_vector import LateInteraction
from hf_transformer.tasks.options import LOGITS, Kind, ParameterReader, TaskParameters
from hf_transformer.tasks.pair_template import Reranker
from hf_transformer.tasks.sparse import SparsePooling
from hf_transformer.tasks.tensors import FREE, OUTPUT, TEXT, Field, json_tensor
from hf_transformer.types.fields import Form
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding, TaskTokenizer, TextInput, Tokenization

Overflow = Literal["truncate", "error", "window"]
"""Treatment of a text above the model's maximum length: truncate, reject, or split into windows."""
Encodings: TypeAlias = Sequence[Sequence[Sequence[Encoding]]]
"""The encodings of a request, by instance, text and window."""
Outputs: TypeAlias = Mapping[str, Array]
"""The outputs for an encoding by role name, without batch axis and padding."""

VALUE_BYTES = 100
"""The usual bytes of a value in an answer of objects and lists, with its JSON."""


class TaskOptions(Protocol):
    """A request's parameters; each task has its own class."""

    @property
    def overflow(self) -> Overflow:
        """Treatment of an overlong text."""

    @property
    def tokenization(self) -> Tokenization:
        """The tokenization options."""


Item = TypeVar("Item")
Options = TypeVar("Options", bound=TaskOptions)
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class SentenceTransformers:
    """The settings in a model folder's sentence-transformers files (modules.json and the files of its modules).

    Attributes:
        pooling: the enabled modes of 1_Pooling/config.json (keys of pooling.POOLING), concatenated in this order.
        normalize: whether a Normalize module follows the pooling.
        prompts: prefixes of texts, by name.
        include_prompt: whether to pool the prompt's tokens too.
        truncate_dim: the number of components to keep of a vector; None keeps all.
        lower_case: whether to lower-case texts.
        inside: a module (Dense, ...) that only the model itself can apply. The model's output is then the final vector.
        similarity: the function that compares vectors: a key of SIMILARITIES, with ``sparse`` of
            SPARSE_SIMILARITIES, with ``late_interaction`` one of MAX_SIM.
        sparse: the settings of a SparseEncoder folder, whose models have no dense vectors.
        late_interaction: the settings of a ColBERT folder, whose models have a vector per token.
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
    similarity: str = "cosine"
    sparse: SparsePooling | None = None
    late_interaction: LateInteraction | None = None


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """A CrossEncoder's settings in config_sentence_transformers.json (sentence-transformers 6 and later).

    ``activation_fn`` computes scores; ``prompts`` are prefixes of queries, by name. ``inside`` is a module (Dense, ...)
    that only the model itself can apply, in place of a classification head.
    """

    activation_fn: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    inside: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """Default sampling parameters of V1, V2 and Triton's generate endpoints; OpenAI's API has OpenAI's defaults.

    ``max_length`` is the maximum number of prompt and new tokens together. ``max_new_tokens`` is the maximum number of
    new tokens per text in every API; None means the model's length. ``top_k`` 0 means all tokens. ``max_schema_bytes``
    is the maximum size of a JSON schema, regular expression, grammar or list of choices.
    """

    max_length: int = 20
    temperature: float = 1.0
    do_sample: bool = False
    top_k: int = 50
    top_p: float = 1.0
    return_full_text: bool = True
    max_new_tokens: int | None = None
    max_schema_bytes: int = 65_536


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The model's config.json, its tokenizer, and the service's defaults.

    ``flags`` has the values of the flags that give defaults of parameters (options.by_flag), by name.
    """

    model_config: Mapping[str, Any]
    vocabulary: TaskTokenizer
    flags: Mapping[str, Json] = field(default_factory=dict)
    on_overflow: Overflow = "truncate"
    stride: int | None = None
    max_length: int = 512
    sentence_transformers: SentenceTransformers | None = None
    cross_encoder: CrossEncoder = CrossEncoder()
    reranker: Reranker = field(default_factory=Reranker)
    generation: GenerationSettings = GenerationSettings()
    moderation: Moderation = field(default_factory=Moderation)
    personal_data: PersonalData = field(default_factory=PersonalData)

    @property
    def output_format(self) -> Json:
        """The default of ``output_format``."""
        return self.flags.get("output_format") or "kserve"

    @property
    def window_stride(self) -> int:
        """The number of tokens that neighbouring windows share: --stride, or a quarter of the model's length."""
        return self.max_length // 4 if self.stride is None else self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of an output, other than the batch axis.

    Attributes:
        tokens: whether the size is the encoding's number of tokens.
        minimum, maximum: bounds of the size of any other axis; a ``maximum`` of None means unbounded.
        why: the source of the bounds, for error messages.
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
    """A model output that a task reads.

    Attributes:
        name: the usual name.
        axes: the shape per instance.
        other_names: alternative names, the most likely first.
        other_axes: alternative shapes, each with a different number of axes.
        datatypes: the accepted datatypes.
    """

    name: str
    axes: tuple[Axis, ...]
    other_names: tuple[str, ...] = ()
    other_axes: tuple[tuple[Axis, ...], ...] = ()
    datatypes: tuple[str, ...] = FLOATS


@dataclass(frozen=True, slots=True)
class InputRole:
    """A model input that a task's encodings fill, in addition to the tokenizer's.

    ``axes`` is the number of axes per instance. A model may lack an ``optional`` input.
    """

    name: str
    axes: int
    datatypes: tuple[str, ...] = ("INT64",)
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Expansion:
    """The least that an instance becomes: sequences, characters in all of them together, and values of its answer."""

    sequences: int
    characters: int = 0
    values: int = 0


class Servable(ABC):
    """A predictive or generative task, without I/O and without state per request.

    Its class attributes say all that is true of the task: other folders have no table of tasks.
    """

    name: ClassVar[str]
    """The underscored name for --task, a key of TASK_NAMES."""
    has_windows: ClassVar[bool] = False
    """Whether the task supports --on_overflow=window."""
    operation: ClassVar[str] = ""
    """The value of OpenTelemetry's gen_ai.operation.name; empty for a task that has none."""
    reads_sentence_transformers: ClassVar[bool] = False
    """Whether the task uses the sentence-transformers files of a model folder."""
    fields: ClassVar[tuple[Field, ...]] = (TEXT,)
    """The fields of an instance, each an input tensor in V2."""
    switched_on_by: ClassVar[Mapping[str, str]] = {}
    """Maps each optional output tensor to the parameter that enables it."""
    options_type: ClassVar[type[TaskParameters]]
    """The parameters of a request."""
    parameters: ClassVar[Sequence[str]]
    """The names of the parameters."""
    logits_hint: ClassVar[str] = "leave it out"
    """Advice in the error about an unsupported flag of LOGITS."""
    takes_pairs: ClassVar[bool] = False
    """Whether the model may get pairs of texts."""
    special_tokens: ClassVar[int] = 2
    """The usual number of special tokens in a window: 2 in [CLS] text [SEP], 3 in [CLS] text [SEP] text [SEP]."""
    window_tokens: ClassVar[int | None] = None
    """The default of the maximum number of tokens in a window; None for the model's length."""

    purpose: ClassVar[str]
    """The task in a few words, for the playground."""
    examples: ClassVar[Sequence[Example]]
    """Requests to try, in /openapi.json and in the playground."""
    demo: ClassVar[Demo]
    """The demo's model and request, with a plausible answer."""
    export_head: ClassVar[ExportHead]
    """The head of an exported model."""
    instance_schemas: ClassVar[Sequence[Schema]] = (TEXT_SCHEMA,)
    """The forms of an instance."""
    prediction_schemas: ClassVar[Sequence[Schema]]
    """The forms of a prediction."""
    info_schemas: ClassVar[Mapping[str, Schema]] = {}
    """The fields of ``info``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "options_type" in cls.__dict__:
            cls.parameters = Form(cls.options_type).names

    def __init__(self, settings: TaskSettings) -> None:
        """Raises ConfigError for an unsupported flag of LOGITS, LoadError for a model that doesn't fit the task."""
        for flag in LOGITS:
            if settings.flags.get(flag) and flag not in self.parameters:
                raise ConfigError(f"--{flag}: {self.name} has no such answers; {self.logits_hint}")
        self.settings = settings

    @cached_property
    def _reader(self) -> ParameterReader[Any]:
        return ParameterReader(self.options_type, self.settings.flags)

    def read(self, kind: type[Kind], parameters: Mapping[str, Json]) -> tuple[Kind, Set[str]]:
        """Reads parameters of ``options_type``, see ParameterReader. ``kind`` is that type, or a base of it."""
        return self._reader(parameters)

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Any:
        """Validates a request's parameters and adds the service's defaults.

        Raises:
            InvalidInput: a parameter is unknown, of the wrong type, out of range, or contradicts another parameter.
            TooLarge: a parameter exceeds a limit.
        """

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        """An instance with this text, for the requests of doctor and bench. ``mask_token`` is the tokenizer's."""
        return text

    def requests(self) -> list[Json]:
        """The examples as {"summary", "value"}, with the model's own mask token."""
        mask = self.settings.vocabulary.mask_token or MASK
        return [{"summary": example.summary, "value": with_mask(example.value, mask)} for example in self.examples]

    def info(self) -> dict[str, Json]:
        """The task's fields in the answer of /v1/models/NAME/info."""
        return {}

    def tei_type(self) -> dict[str, Json]:
        """``model_type`` in the answer of /info: the fields of the model's type in text-embeddings-inference, by the
        name of the type. Empty for a task without such a type."""
        return {}

    def tensor(self, predictions: Sequence[Json], options: Any) -> Tensor:
        """The predictions as a tensor [instances, ...]; by default BYTES [instances] of JSON text."""
        return json_tensor(predictions)

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        """The output tensors for a request without parameters; -1 means a dynamic axis."""
        return (TensorSpec(OUTPUT, "BYTES", (FREE,)),)


class Task(Servable, Generic[Item, Options, Part]):
    """A predictive task for a particular model.

    The pipeline calls ``options`` once per request; ``item``, ``texts`` and ``answer`` once per instance; ``check`` and
    ``decode`` once per encoding (a text, or a window of a text).
    """

    outputs: tuple[OutputRole, ...]
    """The outputs that ``decode`` reads, set in each task's constructor."""
    inputs: tuple[InputRole, ...] = ()
    """The inputs of the model beside those of the tokenizer."""
    hides_tokens: bool = False
    """Whether ``complete`` sets ``Encoding.attended``, which requires an attention mask."""

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Options:
        """Implements Servable.options; the methods below receive the result."""

    def item(self, instance: Json, path: Path, options: Options) -> Item:
        """Parses an instance, by default with ``read_text``.

        Args:
            path: the path of the instance for errors, such as ``instances[3]``.

        Raises:
            InvalidInput: the instance has an invalid form.
            TooLarge: the instance exceeds a limit.
        """
        return read_text(instance, path)  # type: ignore[return-value]

    def expansion(self, item: Item, options: Options) -> Expansion | None:
        """The least that ``texts`` and ``answer`` make of an item, counted before they make it; None for one text."""
        return None

    def texts(self, item: Item, options: Options) -> Sequence[TextInput]:
        """The texts of an item: by default the item itself, in some tasks a text per label or document."""
        return (item,)  # type: ignore[return-value]

    def trial_text(self, text: str) -> TextInput:
        """A text of the task, for the pipeline's trial."""
        return text

    def of_text(self, item: Item, index: int) -> Any:
        """The item that ``complete`` and ``decode`` get for ``texts[index]``; by default the item itself."""
        return item

    def text_path(self, path: Path, index: int) -> Path:
        """The path of ``texts[index]`` in the instance at ``path``, for errors."""
        return path

    def tokenization(self, options: Options) -> Tokenization:
        """The tokenization options for this request."""
        return options.tokenization

    def overflow(self, options: Options) -> Overflow:
        """Treatment of overlong texts in this request."""
        return options.overflow

    def complete(self, item: Item, encoding: Encoding, options: Options) -> Encoding:
        """Adds tokens to an encoding of ``texts``, by default none. Returns a new object for a change."""
        return encoding

    def check(self, encoding: Encoding, path: Path) -> None:
        """Raises InvalidInput if the task can't process an encoding of the instance at ``path``."""

    @abstractmethod
    def answer_size(self, encoding: Encoding, options: Options) -> int:
        """Estimates the number of values that this encoding adds to the answer."""

    def value_bytes(self, options: Options, *, tensors: bool) -> int:
        """Estimates the bytes of a value of the answer, as an object, as JSON and, with ``tensors``, in a tensor."""
        return VALUE_BYTES * (2 if tensors else 1)

    def repeats_texts(self, options: Options) -> bool:
        """Whether the answer repeats the texts of the request."""
        return False

    def decode_cost(self, encoding: Encoding, options: Options) -> int:
        """Estimates the time of ``decode`` for this encoding, in quarters of a microsecond."""
        return self.answer_size(encoding, options)

    @abstractmethod
    def decode(self, item: Item, encoding: Encoding, outputs: Outputs, options: Options) -> Part:
        """Decodes an encoding's outputs to a part of the answer.

        Args:
            encoding: a text of the item, or a window of a text.
            outputs: views [tokens, ...] with tokens = len(encoding), or with other axes of the role. The result must
                not contain views, since the service frees the buffer after this call.

        Raises:
            PredictorError: the outputs have invalid values, such as NaN.
        """

    def answer(self, item: Item, parts: Sequence[Sequence[Part]], options: Options) -> Json:
        """An instance's prediction from the ``parts`` by text and window; by default the only part."""
        return parts[0][0]

    @staticmethod
    def padded_tokens(encodings: Encodings) -> int:
        """Counts the tokens of all instances after padding to the longest instance."""
        lengths = (sum(len(window) for windows in texts for window in windows) for texts in encodings)
        return len(encodings) * max(lengths, default=0)

    def tensor_size(self, encodings: Encodings, options: Options) -> int:
        """Counts the values of ``tensor``, including padding; 0 if ``answer_size`` already counts them."""
        return 0

    def extra_outputs(self, encodings: Encodings, options: Options) -> Sequence[Tensor]:
        """The optional output tensors in this request."""
        return ()

    def extra_size(self, encodings: Encodings, options: Options) -> int:
        """Counts the values of ``extra_outputs``, including padding."""
        return 0


def read_text(instance: Json, path: Path) -> str:
    """Parses a string or {"text"}. Raises InvalidInput for any other form."""
    if isinstance(instance, dict) and instance.keys() == {"text"}:
        instance = instance["text"]
    if not isinstance(instance, str):
        raise InvalidInput(path, 'a string or {"text": string}', describe(instance))
    return instance
