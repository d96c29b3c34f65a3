"""What a task is: how an instance becomes text, and how one instance's output rows become its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from hf_transformer.errors import InvalidInput
from hf_transformer.types import Array, Encoding, Json, TextInput

Options = TypeVar("Options")
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
    def token_to_id(self, token: str) -> int | None: ...
    def first_token_id(self, text: str) -> int | None: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a task is built from: the model's config.json, the tokenizer, and the service's defaults."""

    model_config: Mapping[str, Any]
    vocabulary: Vocabulary
    output_format: OutputFormat = "kserve"
    return_probabilities: bool = False
    return_raw_logits: bool = False


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


@dataclass(frozen=True, slots=True)
class OutputRole:
    """An output that a task reads. ``name`` is what exporters usually call it; ``axes`` its shape per instance."""

    name: str
    axes: tuple[Axis, ...]


class Task(ABC, Generic[Options]):
    """One task for one model. Pure: no I/O and no state per request.

    For every request ``options`` is called once; for every instance ``text``, then ``check`` with its tokens, and
    ``decode`` with its own rows of the outputs, whatever batch they came in.
    """

    name: ClassVar[str]
    """The underscored name, as --task takes it."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def outputs(self) -> tuple[OutputRole, ...]:
        """The outputs that ``decode`` reads."""

    @abstractmethod
    def options(self, parameters: Mapping[str, Json]) -> Options:
        """Checks a request's parameters and fills in the service's defaults.

        Raises:
            InvalidInput: a parameter is unknown, of the wrong type, out of range, or contradicts another.
        """

    def text(self, instance: Json, where: str) -> TextInput:
        """The text to tokenize: the instance itself, or its ``text``.

        Args:
            instance: one element of the request's instances.
            where: its name in error messages, such as ``instances[3]``.

        Raises:
            InvalidInput: the instance has another form.
        """
        if isinstance(instance, dict) and instance.keys() == {"text"}:
            instance = instance["text"]
        if not isinstance(instance, str):
            raise InvalidInput(f'{where}: expected a string or {{"text": string}}, got {describe(instance)}')
        return instance

    def check(self, encoding: Encoding, where: str) -> None:
        """Raises InvalidInput where the task can't be done on these tokens."""

    @abstractmethod
    def answer_size(self, encoding: Encoding, options: Options) -> int:
        """About how many values the instance's answer will hold, a measure of the work to make and send it."""

    @abstractmethod
    def decode(self, encoding: Encoding, outputs: Mapping[str, Array], options: Options) -> Json:
        """One instance's answer.

        Args:
            encoding: its tokens.
            outputs: by role name, without batch axis and padding: [tokens, ...] with tokens = len(encoding), or
                the axes that the role names. Views into a buffer that is gone after this call.
            options: what ``options`` gave for the request.

        Raises:
            PredictorError: the values can't be decoded (NaN).
        """


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
