"""Constraints on the form of a generated text: reading, limits, and the forms that inference engines take.

Every API reads its fields into one Constraint per request. A logits model compiles the constraint to token masks
(masks.py). Triton's vLLM backend and TensorRT-LLM's models get it in their own form (``vllm_fields``,
``tensorrt_guide``).

Sources: https://docs.vllm.ai/en/latest/features/structured_outputs.html,
https://platform.openai.com/docs/guides/structured-outputs and
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/guided_decoding.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, Self

import orjson

from hf_transformer.errors import InvalidInput, Path, TooLarge, describe
from hf_transformer.generation.call_forms import HERMES, CallForm
from hf_transformer.types.request import Json

if TYPE_CHECKING:
    from hf_transformer.generation.responses.prefix import ReasoningPrefix  # imports regex

ConstraintKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "tool"]
StructuredOutputForm = Literal["structured_outputs", "guided_decoding", "none"]
"""Values of --structured_output_form: the field of ``sampling_parameters`` in Triton's vLLM backend."""
ReasoningBy = Literal["grammar", "engine"]
"""Values of --structured_output_reasoning: how vLLM learns that a constraint begins after the reasoning."""
STRUCTURED_OUTPUTS: Final[StructuredOutputForm] = "structured_outputs"
MAX_DEPTH: Final = 64
"""Maximum nesting depth of lists and objects in a schema."""
ANY_OBJECT: Final[Mapping[str, Json]] = {"type": "object"}
KINDS: Final[Mapping[str, ConstraintKind]] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
"""Kinds of a constraint by field of vLLM's StructuredOutputsParams."""
_SWITCHES: Final = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
"""Booleans of StructuredOutputsParams. Only false is accepted."""
_INSIDE: Final = {
    **dict.fromkeys(("const", "enum", "default", "examples"), "value"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "schemas"),
}
"""Keywords of JSON Schema that contain no schema: a value, or schemas by name."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True)
class Constraint:
    """The form of a text.

    Attributes:
        kind: ``tool`` allows calls of tools next to free text, or next to an answer of a schema (``tool_parts``).
        source: a regular expression, a grammar, or JSON text: a schema, a list of choices, or the parts of ``tool``.
        key: digest of kind and source, for caches.
    """

    kind: ConstraintKind
    source: str
    key: bytes

    @classmethod
    def of(cls, kind: ConstraintKind, source: Json) -> Self:
        """Builds a constraint. ``source`` is a string for a regular expression or a grammar, else a JSON value."""
        return cls.of_text(kind, source if kind in ("regex", "grammar") else orjson.dumps(source).decode())

    @classmethod
    def of_text(cls, kind: ConstraintKind, text: str) -> Self:
        """Builds a constraint from its source, in which a JSON value is text already."""
        return cls(kind, text, blake2b(f"{kind} {text}".encode(), digest_size=16).digest())

    @classmethod
    def of_tools(
        cls, tools: Mapping[str, Json], answer: Json, form: CallForm = HERMES, shown_tokens: Iterable[int] = ()
    ) -> Self:
        """Builds a constraint of the kind ``tool``; see ``tool_parts``, ``call_form`` and ``shown_tokens``."""
        return cls.of("tool", [tools, answer, [form.trigger, form.head, form.tail], sorted(shown_tokens)])

    @property
    def fragment(self) -> orjson.Fragment:
        """JSON source as a part of another JSON text."""
        return orjson.Fragment(self.source)

    @property
    def schema(self) -> Json:
        """The JSON schema of the whole text; None for other kinds."""
        if self.kind == "json_object":
            return dict(ANY_OBJECT)
        return orjson.loads(self.source) if self.kind == "json_schema" else None

    @property
    def choices(self) -> list[str]:
        """The possible texts of a choice."""
        choices: list[str] = orjson.loads(self.source)
        return choices

    @property
    def tool_parts(self) -> tuple[dict[str, Json], Json]:
        """Of ``tool``: the schemas of arguments by the tool's name, and the schema of an answer without a call, or
        None for free text."""
        tools, answer, *_ = orjson.loads(self.source)
        return tools, answer

    @property
    def call_form(self) -> CallForm:
        """Of ``tool``: the form of a call."""
        return CallForm(*orjson.loads(self.source)[2])

    @cached_property
    def shown_tokens(self) -> frozenset[int]:
        """Special tokens that the text may have, as delimiters of calls."""
        return frozenset(orjson.loads(self.source)[3]) if self.kind == "tool" else frozenset()

    @cached_property
    def tag(self) -> str:
        """The structural tag of ``tool``, written once for all texts of a request."""
        return structural_tag(self)


# Reading


def read_structured_outputs(value: Json, path: Path, max_bytes: int) -> Constraint:
    """Reads vLLM's ``structured_outputs``, an object or its JSON text, with exactly one of ``KINDS``.

    Raises:
        InvalidInput: a field has an invalid value, or there is not exactly one kind.
        TooLarge: the constraint exceeds ``max_bytes``.
    """
    fields = _json_object(value, path, max_bytes)
    fields = {name: item for name, item in fields.items() if item is not None}
    for name in fields:
        if name not in KINDS and not (name in _SWITCHES and fields[name] is False):
            raise InvalidInput((*path, name[:40]), f"one of {', '.join(KINDS)}", "an unsupported name")
    present = [name for name in KINDS if fields.get(name) not in (None, False)]
    if len(present) != 1:
        raise InvalidInput(path, f"exactly one of {', '.join(KINDS)}", " and ".join(present) or "none")
    [name] = present
    return read_kind(KINDS[name], fields[name], (*path, name), max_bytes)


def read_kind(kind: ConstraintKind, value: Json, path: Path, max_bytes: int) -> Constraint:
    """Reads the value of one of ``KINDS``. Raises InvalidInput or TooLarge."""
    if kind == "json_object":
        if value is not True:
            raise InvalidInput(path, "true or false", describe(value))
        return Constraint.of(kind, dict(ANY_OBJECT))
    if kind == "json_schema":
        return Constraint.of_text(kind, read_schema(_json_object(value, path, max_bytes), path, max_bytes))
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise InvalidInput(path, "a list of strings that are not empty", describe(value))
        _check_bytes(sum(len(item.encode()) + 3 for item in value), path, max_bytes)
    elif not isinstance(value, str) or not value:
        raise InvalidInput(path, "a string that is not empty", describe(value))
    else:
        _check_bytes(len(value.encode()), path, max_bytes)
    return Constraint.of(kind, value)


def read_schema(value: Json, path: Path, max_bytes: int) -> str:
    """Returns the JSON text of a schema after checks of its size, depth and references.

    Raises:
        InvalidInput: the schema is no object, or refers to another document.
        TooLarge: the schema exceeds ``max_bytes`` or MAX_DEPTH.
    """
    if not isinstance(value, dict):
        raise InvalidInput(path, "a JSON schema, an object", "nothing" if value is None else describe(value))
    level: list[tuple[Json, str]] = [(value, "schema")]
    for _ in range(MAX_DEPTH + 1):
        below: list[tuple[Json, str]] = []
        for item, position in level:
            if isinstance(item, dict):
                for name, member in item.items():
                    if position == "schema" and name in _REFERENCES and isinstance(member, str):
                        _check_reference(member, (*path, name))
                    below.append((member, _position(position, name)))
            elif isinstance(item, list):
                below += [(member, position) for member in item]
        level = below
    if level:
        raise TooLarge(path, f"at most {MAX_DEPTH} levels of lists and objects", "more")
    text = orjson.dumps(value)
    _check_bytes(len(text), path, max_bytes)
    return text.decode()


def _position(position: str, name: str) -> str:
    """Returns the position of an object's member: ``schema``, ``schemas`` (by name) or ``value``."""
    return _INSIDE.get(name, "schema") if position == "schema" else "schema" if position == "schemas" else position


def _check_reference(reference: str, path: Path) -> None:
    if not reference.startswith("#"):
        hint = "the service loads no other documents"
        raise InvalidInput(path, "a reference within the schema, such as '#/$defs/item'", repr(reference[:80]), hint)


def _json_object(value: Json, path: Path, max_bytes: int) -> dict[str, Json]:
    """Returns an object that may be given as JSON text."""
    if isinstance(value, str):
        _check_bytes(len(value.encode()), path, 2 * max_bytes)  # quotes inside a string are escaped
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(path, "an object, or its JSON text", "invalid JSON", str(error)) from None
    if not isinstance(value, dict):
        raise InvalidInput(path, "an object, or its JSON text", describe(value))
    return value


def _check_bytes(size: int, path: Path, max_bytes: int) -> None:
    if size > max_bytes:
        raise TooLarge(path, f"at most {max_bytes} bytes (--max_schema_bytes)", str(size))


# Tools


def calls_schema(tools: Mapping[str, str], *, single: bool) -> dict[str, Json]:
    """JSON schema of one or more calls: [{"name": "...", "arguments": {...}}, ...].

    ``tools`` are JSON texts of schemas. References inside them are moved with them. ``single`` allows one call only.
    """
    definitions = {f"tool_{index}": _moved_text(text, index) for index, text in enumerate(tools.values())}
    calls: list[Json] = []
    for name, definition in zip(tools, definitions, strict=True):
        properties = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{definition}"}}
        call = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
        calls.append(call | {"additionalProperties": False})
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    most = {"maxItems": 1} if single else {}
    return {"type": "array", "items": items, "minItems": 1, **most, "$defs": definitions}


def _moved_text(text: str, index: int) -> Json:
    """Returns the schema of a text as a part of ``calls_schema``: the text itself, if it has no references."""
    has_references = any(f'"{name}"' in text for name in _REFERENCES)
    return _moved(orjson.loads(text), index) if has_references else orjson.Fragment(text)


def _moved(schema: Json, index: int, position: str = "schema") -> Json:
    """Copies a schema with its references relative to its position in ``calls_schema``."""
    if isinstance(schema, list):
        return [_moved(item, index, position) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: f"#/$defs/tool_{index}{member[1:]}"
        if position == "schema" and name in _REFERENCES and isinstance(member, str)
        else _moved(member, index, _position(position, name))
        for name, member in schema.items()
    }


def arguments_schema(parameters: Json) -> dict[str, Json]:
    """JSON schema of a tool's arguments. Arguments are always an object."""
    return {**ANY_OBJECT, **parameters} if isinstance(parameters, dict) else dict(ANY_OBJECT)


# Forms of inference engines


def vllm_fields(constraint: Constraint, form: StructuredOutputForm) -> dict[str, str]:
    """The field of Triton's vLLM backend for a constraint: JSON text inside the JSON of ``sampling_parameters``.

    The backend drops an object there. vLLM's parameters hold the inner schema, not OpenAI's wrapper.
    """
    kind, source = constraint.kind, constraint.source
    if kind == "tool":
        fields: dict[str, Json] = {"structural_tag": constraint.tag}
    elif kind == "json_object":
        fields = {kind: True}
    else:
        is_text = kind in ("regex", "grammar")
        fields = {"json" if kind == "json_schema" else kind: source if is_text else constraint.fragment}
    return {form: orjson.dumps(fields).decode()}


def structural_tag(constraint: Constraint) -> str:
    """XGrammar's structural tag for calls of tools next to free text, or next to an answer of a schema.

    Source: https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html
    """
    return _dump_tag(_tool_format(constraint))


def with_reasoning(constraint: Constraint, prefix: ReasoningPrefix) -> dict[str, str] | None:
    """The field of Triton's vLLM backend for a constraint after the reasoning, as vLLM's tool parsers write it: a
    structural tag of both. None if the reasoning is over, or its delimiters are patterns."""
    texts = prefix.texts
    if prefix.state == "over" or texts is None:
        return None
    begin = texts.begin if prefix.state == "possible" else ""
    reasoning: Json = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": texts.end}
    content = _sequence([reasoning, _with_lead(constraint, texts.answer, texts.answer.removesuffix(texts.direct))])
    if prefix.state == "possible":
        content = {"type": "or", "elements": [_with_lead(constraint, texts.direct, ""), content]}
    return {STRUCTURED_OUTPUTS: orjson.dumps({"structural_tag": _dump_tag(content)}).decode()}


def _with_lead(constraint: Constraint, answer_lead: str, call_lead: str) -> Json:
    """XGrammar's format of a constraint, with the delimiters before an answer and before a call."""
    if constraint.kind != "tool":
        return _sequence([_text(answer_lead), _format(constraint)])
    content = _tool_format(constraint)
    if content["type"] != "or":
        return content  # free text has the delimiters
    answer, calls = content["elements"]
    return {"type": "or", "elements": [_sequence([_text(answer_lead), answer]), _sequence([_text(call_lead), calls])]}


def _text(text: str) -> Json:
    return {"type": "const_string", "value": text} if text else None


def _sequence(formats: Sequence[Json]) -> Json:
    """Formats one after the other, except for those that are None."""
    elements = [each for each in formats if each is not None]
    if len(elements) == 1:
        return elements[0]
    flat = [part for each in elements for part in (each["elements"] if each["type"] == "sequence" else [each])]
    return {"type": "sequence", "elements": flat}


def _dump_tag(content: Json) -> str:
    return orjson.dumps({"type": "structural_tag", "format": content}).decode()


def _format(constraint: Constraint) -> Json:
    """A constraint as XGrammar's format."""
    match constraint.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": constraint.fragment}
        case "json_object":
            return _schema_format(dict(ANY_OBJECT))
        case "regex":
            return {"type": "regex", "pattern": constraint.source}
        case "grammar":
            return {"type": "grammar", "grammar": constraint.source}
        case "choice":
            choices = [{"type": "const_string", "value": choice} for choice in constraint.choices]
            return choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
        case "tool":
            return _tool_format(constraint)


def _tool_format(constraint: Constraint) -> Json:
    tools, answer = constraint.tool_parts
    form = constraint.call_form
    tags: list[Json] = [
        {"type": "tag", "begin": form.begin(name), "content": _schema_format(schema), "end": form.tail}
        for name, schema in tools.items()
    ]
    if answer is None:
        return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags}
    calls = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    return {"type": "or", "elements": [_schema_format(answer), calls]}


def _schema_format(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": schema}


def tensorrt_guide(constraint: Constraint) -> tuple[str, str]:
    """TensorRT-LLM's ``guided_decoding_guide_type`` and ``guided_decoding_guide``. Raises ValueError for ``tool``."""
    match constraint.kind:
        case "json_object":
            return "json", ""
        case "choice":
            return "regex", choice_regex(constraint.choices)
        case "grammar":
            return "ebnf_grammar", constraint.source
        case "json_schema" | "regex":
            return constraint.kind, constraint.source
        case "tool":
            raise ValueError(constraint.kind)


def choice_regex(choices: Sequence[str]) -> str:
    """A regular expression that matches one of the choices."""
    return f"({'|'.join(map(re.escape, choices))})"
