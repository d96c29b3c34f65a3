"""Declared parameters of requests: one field per parameter, with its type, limits, default, flag and sentence of help.

    class FillMaskParameters(TaskParameters):
        output_format: Format = "kserve"
        top_k: Annotated[Positive, about("Candidates per mask.")] = 5

Reading, errors, the names that a request may send, the flags of a service's defaults, /openapi.json and
docs/parameters.md come from it. A null parameter counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.tasks.declaration import Schema
from hf_transformer.types.fields import Natural, Positive, about, fields_of, find_fault, json_schemas
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Side

MAX_PROMPT_LENGTH = 2000
"""Maximum number of characters. The service may tokenize a prompt on the event loop."""
PIPELINE = "pipeline"
LOGITS = ("return_probabilities", "return_raw_logits")
"""Parameters that request a number per label or token. Flags of the same names set the defaults."""
OutputFormat = Literal["kserve", "pipeline"]
WindowScore = Literal["max", "mean"]
"""A text's logits: those of its best window, or the mean of all windows."""


class TaskParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a task. The order of the fields is that of their names in errors."""


Kind = TypeVar("Kind", bound=TaskParameters)


def by_flag(name: str) -> Meta:
    """Declares the flag that gives the default. Its value replaces the field's; if the field's default is None, the
    task computes it."""
    return Meta(extra={"flag": name})


def strings(text: str, **schema: Json) -> Meta:
    """Declares a string or a list of strings, of type ``Json``, which ``read_strings`` reads."""
    forms = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, **schema}, {"type": "null"}]
    return about(text, schema={"anyOf": forms})


Format: TypeAlias = Annotated[
    OutputFormat,
    about("Answers as KServe's runtime or as a Hugging Face pipeline gives them."),
    by_flag("output_format"),
]
Probabilities: TypeAlias = Annotated[
    bool, about("Answer with probabilities; in the kserve format."), by_flag("return_probabilities")
]
RawLogits: TypeAlias = Annotated[
    bool, about("Answer with the logits; in the kserve format."), by_flag("return_raw_logits")
]
Truncation: TypeAlias = Annotated[
    bool | None,
    about("Whether a text longer than the model is cut (true) or refused with 413 (false); by --on_overflow."),
]
TruncationSide: TypeAlias = Annotated[
    Side | None, about("The side of a long text that is cut, left to keep its end; by the tokenizer if not given.")
]
MaxTokens: TypeAlias = Annotated[
    Positive | None, about("Tokens of a text at most, with special ones; fewer than the model's length.")
]
Stride: TypeAlias = Annotated[
    Natural | None, about("Tokens that neighbouring windows of a long text share."), by_flag("stride")
]
Score: TypeAlias = Annotated[
    WindowScore, about("Logits of the best window of a long text, or the mean; with --on_overflow=window.")
]
MaxChunks: TypeAlias = Annotated[
    Positive | None, about("Windows of a text that are read; with --on_overflow=window. All if not given.")
]
Prompt: TypeAlias = Annotated[
    str | None, about("A text in front of each text.", schema={"maxLength": MAX_PROMPT_LENGTH})
]
PromptName: TypeAlias = Annotated[str | None, about("The name of a prompt that the model folder has.")]


class Lengths(Protocol):
    """The parameters of all predictive tasks about long texts."""

    truncation: Truncation
    truncation_side: TruncationSide
    max_tokens: MaxTokens


def flags_of(kind: type[TaskParameters]) -> dict[str, str]:
    """The flags of the defaults by parameter."""
    metas = {name: get_args(declared)[1:] for name, declared in fields_of(kind).items()}
    extras = {name: [meta.extra or {} for meta in found if isinstance(meta, Meta)] for name, found in metas.items()}
    return {name: extra["flag"] for name, found in extras.items() for extra in found if "flag" in extra}


class ParameterReader(Generic[Kind]):
    """Reads parameters of a declared type.

    Args:
        flags: the values of the service's flags by name; the type's default applies in place of an absent one.
    """

    def __init__(self, kind: type[Kind], flags: Mapping[str, Json]) -> None:
        self._kind = kind
        self._names = kind.__struct_fields__
        self._known = frozenset(self._names)
        defaults = {field.name: field.default for field in fields(kind)}
        values = {name: flags.get(flag) for name, flag in flags_of(kind).items() if defaults[name] is not None}
        self._defaults = {name: value for name, value in values.items() if value is not None}

    def __call__(self, parameters: Mapping[str, Json]) -> tuple[Kind, Set[str]]:
        """Returns the parameters with their defaults, and the names of those that the request has.

        Raises InvalidInput for an unknown parameter, and for a value that doesn't fit the declaration.
        """
        if not parameters.keys() <= self._known:
            name = next(name for name in parameters if name not in self._known)
            raise InvalidInput(("parameters", name[:40]), f"one of {', '.join(self._names)}", "an unknown name")
        sent = {name: value for name, value in parameters.items() if value is not None}
        try:
            return convert(self._defaults | sent, self._kind), sent.keys()
        except ValidationError:
            raise find_fault(sent, self._kind, ("parameters",)) from None


def read_strings(name: str, value: Json, *, empty: bool = False) -> list[str] | None:
    """Returns a string or a list of strings as a list; None if absent. ``empty`` allows an empty list.

    Raises InvalidInput for another value.
    """
    if value is None or isinstance(value, str):
        return None if value is None else [value]
    if isinstance(value, list) and (value or empty) and all(isinstance(item, str) for item in value):
        return value
    raise InvalidInput(("parameters", name), "a string or a list of strings", describe(value))


def one_of(present: Set[str], *names: str) -> str | None:
    """Returns the alias that the request uses, if any. Raises InvalidInput for more than one alias."""
    used = [name for name in names if name in present]
    if len(used) > 1:
        first, second, *_ = used
        raise InvalidInput(("parameters", second), f"{first} or {second}", "both", "they mean the same")
    return used[0] if used else None


Form = Literal["plain", "probabilities", "raw_logits", "pipeline"]
"""The forms of a prediction: three forms of the kserve format, and the pipeline format."""


class FormParameters(Protocol):
    """The parameters of a prediction's form."""

    output_format: Format
    return_probabilities: Probabilities
    return_raw_logits: RawLogits


def read_form(request: FormParameters, present: Set[str], pipeline_only: Sequence[str] = ()) -> Form:
    """Determines the form from ``output_format``, ``return_probabilities`` and ``return_raw_logits``.

    Args:
        pipeline_only: parameters that require the pipeline format.

    Raises:
        InvalidInput: parameters contradict each other, or don't apply to the format.
    """
    probabilities, raw_logits = request.return_probabilities, request.return_raw_logits
    # Either parameter of a request overrides the service's flag for the other parameter.
    if "return_raw_logits" in present and raw_logits and "return_probabilities" not in present:
        probabilities = False
    if "return_probabilities" in present and probabilities and "return_raw_logits" not in present:
        raw_logits = False
    if probabilities and raw_logits:
        raise InvalidInput(("parameters", "return_raw_logits"), "return_probabilities or return_raw_logits", "both")
    output_format = request.output_format
    for name in LOGITS if output_format == PIPELINE else pipeline_only:
        if name in present:
            needed = "kserve" if output_format == PIPELINE else PIPELINE
            raise InvalidInput(
                ("parameters", name),
                f"no value in the {output_format} format",
                hint=f'set "output_format": "{needed}" in the parameters',
            )
    if output_format == PIPELINE:
        return "pipeline"
    return "probabilities" if probabilities else "raw_logits" if raw_logits else "plain"


def read_prompt(prompt: str | None, name: str | None, prompts: Mapping[str, str], default_name: str | None) -> str:
    """Returns the prefix for texts: ``prompt``, or the element ``name`` of ``prompts``, or the model's default.

    Raises:
        InvalidInput: the request has both parameters, or an unknown ``prompt_name``.
        TooLarge: ``prompt`` exceeds MAX_PROMPT_LENGTH.
    """
    if prompt is not None and name is not None:
        raise InvalidInput(("parameters", "prompt_name"), "prompt or prompt_name", "both")
    if prompt is not None:
        if len(prompt) > MAX_PROMPT_LENGTH:
            expected = f"at most {MAX_PROMPT_LENGTH} characters"
            raise TooLarge(("parameters", "prompt"), expected, str(len(prompt)), "put a longer prompt into the texts")
        return prompt
    if name is not None and name not in prompts:
        expected = f"one of {', '.join(prompts)}" if prompts else "no value for a model without prompts"
        raise InvalidInput(("parameters", "prompt_name"), expected, repr(name[:40]))
    return prompts.get(name or default_name or "", "")


def parameter_schemas(kind: type[TaskParameters]) -> dict[str, Schema]:
    """The JSON schemas of the parameters by name. Null counts as absent; a flag's default has no value here."""
    properties = json_schemas([kind])[1][kind.__name__]["properties"]
    flags, declared = flags_of(kind), fields_of(kind)
    return {name: _flat(schema, declared.get(name), flags.get(name)) for name, schema in properties.items()}


def _flat(schema: Schema, declared: Any, flag: str | None) -> dict[str, Json]:
    """The schema of a value or null in one object if possible, with choices in their declared order."""
    schema = {name: value for name, value in schema.items() if name != "default" or (value is not None and not flag)}
    forms = [form for form in schema.get("anyOf", ()) if form != {"type": "null"}]
    if len(forms) == 1:
        schema = {**schema, **forms[0]}
        del schema["anyOf"]
    if choices := _choices(declared):
        schema |= {"type": ["string", "null"], "enum": [*choices, None]}
    elif isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if flag:
        schema["description"] = f"{schema['description']} --{flag} if not given."
    return schema


def _choices(declared: Any) -> tuple[str, ...]:
    """The values of the first Literal in a declaration."""
    if get_origin(declared) is Literal:
        return get_args(declared)
    return next(filter(None, map(_choices, get_args(declared))), ())
