"""Response templates: a model's description of how its answers are written, compiled to an immutable program.

The format is version 1 of transformers' ``response_template``:

    {"version": 1, "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\\n",
     "fields": {"thinking": {"open": "<think>", "close": "</think>"},
                "tool_calls": {"open_pattern": "\\\\s*<tool_call>", "close": "</tool_call>", "repeats": true,
                               "content": "json", "transform": {"type": "function", "function": "{content}"}},
                "content": {}}}

Each field describes regions of the text. The field without an opening delimiter is the implicit one: it has the text
outside of all other regions. ``transform`` builds a region's value from its parsed content and from the named groups of
its delimiters. Without it, the content is the value.

Strings of JSON, of Python literals, and the values of tags are literals: a closing delimiter inside of them is text.

Source: transformers 5.24, docs "Response Parsing", utils/chat_parsing/response_templates.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import regex

from hf_transformer.errors import describe
from hf_transformer.generation.responses.delimiters import Delimiter, Kind, Watch
from hf_transformer.generation.responses.events import Role
from hf_transformer.types.request import Json

ContentType: TypeAlias = Literal["text", "int", "float", "bool", "json", "xml-inline", "kv-lines", "python-call-list"]
CONTENT_TYPES = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines", "python-call-list")
ROLES: Mapping[str, Role] = {
    "content": "content",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "tool_calls": "calls",
}
"""Fields that APIs have, with their meaning."""
TEMPLATE_KEYS = ("version", "defaults", "fields", "start_anchor", "start_anchor_pattern")
FIELD_KEYS = (
    "open open_pattern close close_pattern content content_args repeats join optional transform transform_each".split()
)
MAX_FIELDS, MAX_CHARACTERS = 16, 4_000
"""Size limits of a template: fields, and characters of a delimiter or pattern."""
MAX_TIMEOUTS = 3
"""Number of searches that exceed their time limit after which a program is not used any more."""
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_VALUE_GROUP = re.compile(r"\(\?P<value>(?:\.|\[\\s\\S\]|\[\^<\]|\(\?:\.\|\\n\))[*+]\??\)")
"""The group ``value`` of a tag pattern that matches any text up to what follows it."""


class TemplateError(ValueError):
    """An invalid response template; the message names the field and the problem."""


@dataclass(frozen=True, slots=True)
class LiteralForm:
    """How a literal begins and ends. With ``escapes``, a backslash protects the next character."""

    begin: Delimiter
    end: Delimiter
    escapes: bool = False


@dataclass(frozen=True, slots=True)
class TemplateField:
    """A compiled field of a template.

    Attributes:
        role: its meaning for APIs, empty for none.
        literals: the forms of literals in its content.
        outside: the delimiters that matter in its region outside of literals.
        inside: the same inside of each form of literal.
    """

    name: str
    role: Role
    open: Delimiter | None
    close: Delimiter | None
    content: ContentType
    arguments: Mapping[str, Any]
    repeats: bool
    join: str | None
    transform: Json
    transform_each: bool
    literals: tuple[LiteralForm, ...]
    outside: Watch
    inside: tuple[Watch, ...]

    @property
    def is_text(self) -> bool:
        """Whether its text may be shown while it is written."""
        return self.content == "text"

    @property
    def strips(self) -> bool:
        """Whether its value excludes white space at both ends."""
        return bool(self.arguments.get("strip", True))


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled template; thread-safe, shared by all sequences of a model.

    Attributes:
        name: its source, for messages.
        implicit: index of the implicit field; None without one.
        all_fields, without_calls: the delimiters outside of explicit regions, for requests with tools and without.
        literals: texts of literal delimiters, which may be special tokens.
        health: counts timeouts of patterns; the only mutable part.
    """

    name: str
    fields: tuple[TemplateField, ...]
    defaults: Mapping[str, Json]
    start_anchor: Delimiter
    implicit: int | None
    all_fields: Watch
    without_calls: Watch
    patterns: tuple[str, ...]
    health: ProgramHealth = field(default_factory=lambda: ProgramHealth())

    @property
    def has_reasoning(self) -> bool:
        """Whether a field is reasoning."""
        return any(item.role == "reasoning" for item in self.fields)

    def after_anchor(self, prompt: str) -> str:
        """The end of a prompt that belongs to the answer: after the last start anchor, or empty without any.

        Raises PatternTimeout.
        """
        end = self.start_anchor.last_end(prompt)
        return "" if end < 0 else prompt[end:]

    def shown_tokens(self, special_tokens: Mapping[str, int]) -> frozenset[int]:
        """Ids of the special tokens that are, or may be a part of, a delimiter. Those must not be skipped."""
        return frozenset(
            number for token, number in special_tokens.items() if any(token in text for text in self.patterns)
        )


@dataclass(slots=True)
class ProgramHealth:
    """Timeouts of a program's patterns. ``is_good`` turns false for good after MAX_TIMEOUTS."""

    timeouts: int = 0

    @property
    def is_good(self) -> bool:
        return self.timeouts < MAX_TIMEOUTS


def compile_template(template: Json, name: str) -> Program:
    """Compiles a response template; ``name`` is its source. Raises TemplateError."""
    if not isinstance(template, dict):
        raise TemplateError(f"expected an object, got {describe(template)}")
    if (version := template.get("version", 1)) != 1:
        raise TemplateError(f"version: expected 1, got {version!r:.40}")
    _check_keys("", template, TEMPLATE_KEYS)
    defaults, raw_fields = template.get("defaults", {}), template.get("fields")
    if not isinstance(defaults, dict):
        raise TemplateError(f"defaults: expected an object, got {describe(defaults)}")
    if not isinstance(raw_fields, dict) or not 0 < len(raw_fields) <= MAX_FIELDS:
        raise TemplateError(f"fields: expected an object with 1 to {MAX_FIELDS} fields, got {describe(raw_fields)}")
    fields = tuple(_compile_field(field_name, raw) for field_name, raw in raw_fields.items())
    implicit = [index for index, compiled in enumerate(fields) if compiled.open is None]
    if len(implicit) > 1:
        names = ", ".join(fields[index].name for index in implicit)
        raise TemplateError(f"fields: expected at most one field without open or open_pattern, got {names}")
    anchor = _delimiter("", template, "start_anchor")
    if anchor is None:
        raise TemplateError("expected start_anchor or start_anchor_pattern, got neither")
    opens = [(index, item.name, item.open) for index, item in enumerate(fields) if item.open is not None]
    closes: list[tuple[Kind, int, str, Delimiter]] = []
    for index in implicit:
        if (close := fields[index].close) is not None:
            closes.append(("close", index, fields[index].name, close))
    everything: list[tuple[Kind, int, str, Delimiter]] = [("open", index, named, it) for index, named, it in opens]
    without_calls = [entry for entry in everything if fields[entry[1]].role != "calls"]
    return Program(
        name=name,
        fields=fields,
        defaults=deepcopy(defaults),
        start_anchor=anchor,
        implicit=implicit[0] if implicit else None,
        all_fields=Watch([*everything, *closes]),
        without_calls=Watch([*without_calls, *closes]),
        patterns=tuple(_texts(fields)),
    )


def _compile_field(name: str, raw: Json) -> TemplateField:
    path = f"fields.{name}"
    if not isinstance(raw, dict):
        raise TemplateError(f"{path}: expected an object, got {describe(raw)}")
    _check_keys(f"{path}.", raw, FIELD_KEYS)
    content = raw.get("content", "text")
    if content not in CONTENT_TYPES:
        raise TemplateError(f"{path}.content: expected one of {', '.join(CONTENT_TYPES)}, got {content!r:.40}")
    arguments = raw.get("content_args", {})
    if not isinstance(arguments, dict):
        raise TemplateError(f"{path}.content_args: expected an object, got {describe(arguments)}")
    join, transform, each = raw.get("join"), raw.get("transform"), raw.get("transform_each", False)
    repeats = raw.get("repeats", False)
    if join is not None and not (isinstance(join, str) and repeats):
        raise TemplateError(f"{path}.join: expected a string, with repeats, got {describe(join)}")
    if not isinstance(each, bool) or (each and transform is None):
        raise TemplateError(f"{path}.transform_each: expected a boolean, with transform, got {describe(each)}")
    open_, close = _delimiter(f"{path}.", raw, "open"), _delimiter(f"{path}.", raw, "close")
    groups = frozenset[str]().union(*(delimiter.groups for delimiter in (open_, close) if delimiter is not None))
    if transform is None and groups:
        expected = f"a transform that uses the groups {', '.join(sorted(groups))}"
        raise TemplateError(f"{path}: expected {expected}, got none")
    _check_transform(f"{path}.transform", transform)
    literals = _literals(path, content, arguments)
    closing: list[tuple[Kind, int, str, Delimiter]] = [] if close is None else [("close", 0, name, close)]
    return TemplateField(
        name=name,
        role=ROLES.get(name, ""),
        open=open_,
        close=close,
        content=content,
        arguments=deepcopy(arguments),
        repeats=bool(repeats),
        join=join,
        transform=deepcopy(transform),
        transform_each=each,
        literals=literals,
        outside=Watch([*closing, *(("enter", index, "", form.begin) for index, form in enumerate(literals))]),
        inside=tuple(map(_inside, literals)),
    )


def _inside(form: LiteralForm) -> Watch:
    entries: list[tuple[Kind, int, str, Delimiter]] = [("leave", 0, "", form.end)]
    if form.escapes:
        entries.append(("escape", 0, "", ESCAPE))
    return Watch(entries)


ESCAPE = Delimiter.of_pattern(r"\\(?:u[0-9a-fA-F]{4}|.)")
"""An escape sequence of JSON and Python; one character after the backslash if it is none."""


def _literals(path: str, content: str, arguments: Mapping[str, Any]) -> tuple[LiteralForm, ...]:
    """Forms of the literals of a content type. Raises TemplateError for invalid arguments."""
    double = LiteralForm(Delimiter.of_literals('"'), Delimiter.of_literals('"'), escapes=True)
    if content == "json" and not arguments.get("allow_non_json"):
        pairs = arguments.get("string_delims", [])
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)
            for pair in pairs
        ):
            raise TemplateError(f"{path}.content_args.string_delims: expected pairs of strings, got {describe(pairs)}")
        custom = [LiteralForm(Delimiter.of_literals(begin), Delimiter.of_literals(end)) for begin, end in pairs]
        return (double, *custom)
    if content == "python-call-list":
        return (double, LiteralForm(Delimiter.of_literals("'"), Delimiter.of_literals("'"), escapes=True))
    if content == "xml-inline":
        pattern = arguments.get("tag_pattern")
        if not isinstance(pattern, str) or len(pattern) > MAX_CHARACTERS:
            raise TemplateError(f"{path}.content_args.tag_pattern: expected a pattern, got {describe(pattern)}")
        groups = _compile(f"{path}.content_args.tag_pattern", pattern).groups
        if "key" not in groups:
            raise TemplateError(f"{path}.content_args.tag_pattern: expected a group named key, got none")
        parts = _VALUE_GROUP.split(pattern)
        if len(parts) == 2 and all(parts):
            try:
                return (LiteralForm(Delimiter.of_pattern(parts[0]), Delimiter.of_pattern(parts[1])),)
            except regex.error:
                pass  # a group around the value; the whole pattern is applied to the whole region
    return ()


def _delimiter(path: str, raw: Mapping[str, Json], key: str) -> Delimiter | None:
    """Compiles ``key`` (a literal or a list of literals) or ``key_pattern``. Raises TemplateError."""
    pattern_key = f"{key}_pattern"
    if key in raw and pattern_key in raw:
        raise TemplateError(f"{path}{key}: expected {key} or {pattern_key}, got both")
    if key in raw:
        value = raw[key]
        literals = [value] if isinstance(value, str) else value
        if not isinstance(literals, list) or not literals or not all(isinstance(x, str) and x for x in literals):
            raise TemplateError(f"{path}{key}: expected a string or a list of strings, got {describe(value)}")
        if sum(map(len, literals)) > MAX_CHARACTERS:
            raise TemplateError(f"{path}{key}: expected at most {MAX_CHARACTERS} characters")
        return Delimiter.of_literals(*literals)
    if pattern_key in raw:
        value = raw[pattern_key]
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
            raise TemplateError(f"{path}{pattern_key}: expected a pattern, got {describe(value)}")
        return _compile(f"{path}{pattern_key}", value)
    return None


def _compile(path: str, pattern: str) -> Delimiter:
    try:
        return Delimiter.of_pattern(pattern)
    except (regex.error, RecursionError, OverflowError) as exc:
        raise TemplateError(f"{path}: expected a regular expression, got an invalid one: {exc}") from exc


def _check_keys(path: str, value: Mapping[str, Json], known: Any) -> None:
    for key in value:
        if key not in known:
            raise TemplateError(f"{path}{key!s:.40}: expected one of {', '.join(known)}, got an unknown name")


def _check_transform(path: str, transform: Json, depth: int = 0) -> None:
    """Raises TemplateError for a placeholder within other text, and for deep nesting."""
    if depth > 20:
        raise TemplateError(f"{path}: expected at most 20 levels")
    if isinstance(transform, dict | list):
        for value in transform.values() if isinstance(transform, dict) else transform:
            _check_transform(path, value, depth + 1)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise TemplateError(f'{path}: expected "{{name}}" alone or a text without braces, got {transform!r:.80}')


def placeholder(transform: Json) -> tuple[str, ...] | None:
    """Path of a placeholder such as ``{content.name}``; None for any other value."""
    match = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    return None if match is None else tuple(match[1].split("."))


def _texts(fields: tuple[TemplateField, ...]) -> list[str]:
    """Literals, and patterns without their backslashes, in which the text of special tokens can be found."""
    texts: list[str] = []
    for item in fields:
        forms = [item.open, item.close, *(part for form in item.literals for part in (form.begin, form.end))]
        for delimiter in forms:
            if delimiter is not None:
                texts += delimiter.literals or [delimiter.pattern.pattern.replace("\\", "")]
        if isinstance(pattern := item.arguments.get("tag_pattern"), str):
            texts.append(pattern.replace("\\", ""))
    return texts
