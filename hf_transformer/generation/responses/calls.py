"""Readers of regions that hold tool calls. They return arguments while they are written, as beginnings of valid JSON.

A reader gets the text of a region from the parser in parts: ``outside`` for text outside of literals, ``enter``,
``inside``, ``escape`` and ``leave`` for literals (strings, and values of tags), ``finish`` at the region's end. A call
begins with the first argument, once its name is known to be a tool of the request. What fails before that can still be
shown as content.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from hf_transformer.generation.responses.contents import (
    ContentError,
    ToolTypes,
    cast,
    is_castable,
    json_text,
    sub_value,
)
from hf_transformer.generation.responses.events import CallDelta, CallEnd
from hf_transformer.generation.responses.template import TemplateField, placeholder
from hf_transformer.types.request import Json

ARGUMENTS = ("arguments", "parameters")
"""Members of a call with its arguments. Models confuse them, whatever their format says."""


class CallReader(ABC):
    """Reader of one region.

    Args:
        first: number of calls of earlier regions.

    Attributes:
        events: parts of calls that the parser has not taken yet.
        has_begun: whether a call has begun and not ended.
        mark: end of the last complete call in the text of the latest ``outside``; -1 for none.
        has_failed: the text can't be read; what follows is no part of a call.
        unread: the end of earlier text that belongs to what can't be read.
    """

    def __init__(self, tools: ToolTypes | None, first: int) -> None:
        self.tools = tools
        self.events: list[CallDelta | CallEnd] = []
        self.count = first
        self.has_begun = self.has_failed = False
        self.mark = -1
        self.unread = ""

    def is_tool(self, name: object) -> bool:
        """Whether a call of this name is possible: the name of a tool, or any name if the tools are unknown."""
        return isinstance(name, str) and bool(name) and (self.tools is None or name in self.tools)

    def types(self, name: str, key: str) -> Sequence[str]:
        """Types of an argument in the tool's schema."""
        return () if self.tools is None else self.tools.get(name, {}).get(key, ())

    def begin(self, name: str, call_id: str | None = None) -> None:
        self.has_begun = True
        self.events.append(CallDelta(self.count, name, "", call_id))

    def write(self, text: str) -> None:
        last = self.events[-1] if self.events else None
        if isinstance(last, CallDelta):
            last.arguments += text
        else:
            self.events.append(CallDelta(self.count, None, text))

    def end(self, is_complete: bool = True) -> None:
        self.has_begun = False
        self.events.append(CallEnd(self.count, is_complete))
        self.count += 1

    @abstractmethod
    def outside(self, text: str) -> int:
        """Reads text outside of literals. Returns how much of it belongs to the region; the region ends after that."""

    @abstractmethod
    def enter(self, form: int, match: Any) -> None:
        """A literal begins; ``form`` is the index of its form."""

    @abstractmethod
    def inside(self, text: str) -> None:
        """Reads text of a literal."""

    def escape(self, text: str) -> None:
        """Reads an escape sequence of a string."""
        self.inside(text)

    def leave(self, match: Any) -> None:
        """The literal ends."""
        return

    @property
    def is_done(self) -> bool:
        """Whether the region's value is complete: only white space may follow."""
        return False

    @abstractmethod
    def finish(self, is_cut: bool) -> None:
        """The region ends, by its delimiter or, with ``is_cut``, with the text. Sets ``has_failed`` without a call."""


class TagReader(CallReader):
    """Reads a call whose arguments are tags. ``name`` is in the opening delimiter."""

    def __init__(
        self, field: TemplateField, tools: ToolTypes | None, first: int, name: str, call_id: str | None
    ) -> None:
        super().__init__(tools, first)
        self._name, self._id = name.strip(), call_id
        self._parser = field.arguments.get("value_parser")
        self._key = self._lead = ""
        self._held: list[str] | None = None
        self._is_json = self._is_inside = False
        self.has_failed = not self.is_tool(self._name)

    def outside(self, text: str) -> int:
        rest = text.lstrip()
        if rest:
            self.has_failed = True
        return len(text) - len(rest)

    def enter(self, form: int, match: Any) -> None:
        if not self.has_begun:
            self.begin(self._name, self._id)
            self.write("{")
        groups = match.groupdict()
        self._key, self._is_json, self._is_inside = groups["key"], bool(groups.get("json")), True
        self.write(f"{self._lead}{encode_basestring(self._key)}: ")
        self._lead = ", "
        holds = self._is_json or self._parser is not None or is_castable(self.types(self._name, self._key))
        self._held = [] if holds else None
        if not holds:
            self.write('"')

    def inside(self, text: str) -> None:
        if self._held is None:
            self.write(encode_basestring(text)[1:-1])
        else:
            self._held.append(text)

    def leave(self, match: Any) -> None:
        self._is_inside = False
        if self._held is None:
            self.write('"')
            return
        self.write(self._value("".join(self._held)))
        self._held = None

    def _value(self, text: str) -> str:
        """JSON of a value: as its tag, the template's parser or the tool's schema says, else a text."""
        try:
            value = json.loads(text) if self._is_json else sub_value(text, self._parser)
            if isinstance(value, str):
                value = cast(value, self.types(self._name, self._key))
            return json_text(value)
        except (ValueError, RecursionError):
            return encode_basestring(text)

    def finish(self, is_cut: bool) -> None:
        if is_cut or self._is_inside:  # more tags might have followed
            self.has_failed = True
        elif not self.has_failed:
            if not self.has_begun:
                self.begin(self._name, self._id)
                self.write("{")
            self.write("}")
            self.end()


def calls_of(value: Json) -> list[tuple[str, dict[str, Json]]]:
    """Calls in a region's value, in OpenAI's form or with the members name and arguments. Raises ContentError."""
    calls = []
    for item in value if isinstance(value, list) else [value]:
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ContentError("expected an object with a name")
        members = [function[name] for name in ARGUMENTS if name in function]
        if len(members) > 1 or not (members or function.keys() <= {"name", "id", "type"}):
            raise ContentError("expected an object with arguments")
        calls.append((function["name"], parsed_arguments(members[0] if members else {})))
    return calls


def complete_calls(events: Iterable[CallDelta | CallEnd]) -> list[Json]:
    """The complete calls of events, in OpenAI's form with the arguments as objects."""
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    calls: list[Json] = []
    for event in events:
        if isinstance(event, CallEnd):
            if event.is_complete:
                function = {"name": names[event.index], "arguments": json.loads(texts[event.index])}
                calls.append({"type": "function", "function": function})
        else:
            if event.name is not None:
                names[event.index] = event.name
            texts[event.index] = texts.get(event.index, "") + event.arguments
    return calls


def parsed_arguments(value: Json) -> dict[str, Json]:
    """Arguments as an object; they may be JSON in a string, empty or null. Raises ContentError."""
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False) if value.strip() else None
        except (ValueError, RecursionError) as exc:
            raise ContentError("expected an object as JSON text") from exc
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ContentError("expected an object")
    return value


@dataclass(frozen=True, slots=True)
class CallMembers:
    """The members of a region's JSON with the name and the arguments of its calls.

    Attributes:
        name: member with the name; empty if the delimiter has it.
        arguments: members with the arguments; empty if the whole JSON is the arguments.
        call_id: member with the model's name of the call; empty without one.
        has_lists: whether the JSON may be a list of calls.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ARGUMENTS
    call_id: str = ""
    has_lists: bool = False


def call_members(field: TemplateField) -> CallMembers | None:
    """The members that a field's transform names; None if its calls can't be read in parts."""
    transform = field.transform
    if transform is None:
        return None
    function = transform.get("function") if isinstance(transform, dict) else None
    prefix = () if field.transform_each else ("content",)
    if not field.transform_each and placeholder(function) == ("content",):
        return CallMembers()
    if not isinstance(function, dict) or function.keys() != {"name", "arguments"}:
        return None
    name, arguments = placeholder(function["name"]), placeholder(function["arguments"])
    if name is None or arguments is None:
        return None
    if not field.transform_each and arguments == ("content",) and len(name) == 1:
        return CallMembers(name="", arguments=())
    if (*prefix, name[-1]) == name and (*prefix, arguments[-1]) == arguments:
        others = tuple(other for other in ARGUMENTS if other != arguments[-1])
        return CallMembers(name[-1], (arguments[-1], *others), has_lists=field.transform_each)
    return None
