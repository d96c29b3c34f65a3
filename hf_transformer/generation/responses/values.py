"""Reader of calls in JSON, in JSON with other strings and bare keys, and in Python's syntax.

    {"name": "weather", "arguments": {"city": "Paris"}}     [{"name": ...}, ...]     {"city": "Paris"}
    call:weather{city:<|"|>Paris<|"|>}                      [weather(city="Paris"), time()]

It reads token by token and writes the arguments as JSON, with the numbers as they were written. It accepts what models
write and what can be read in one way only: line breaks in strings, backslashes that escape nothing, a comma before a
closing bracket, Python's constants, arguments as JSON in a string, ``parameters`` in place of ``arguments``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Literal, TypeAlias

from hf_transformer.generation.responses.calls import CallMembers, CallReader, parsed_arguments
from hf_transformer.generation.responses.contents import (
    ContentError,
    ToolTypes,
    cast,
    cast_arguments,
    is_castable,
    json_text,
)
from hf_transformer.generation.responses.delimiters import Delimiter, Watch
from hf_transformer.generation.responses.events import CallDelta
from hf_transformer.generation.responses.template import ESCAPE
from hf_transformer.types.request import Json

MAX_DEPTH = 100
"""Maximum number of nested lists and objects; clients' parsers have such limits, too."""
MAX_WORD = 400
"""Maximum number of characters of a number, constant, bare key or name."""
_JSON_TOKEN = re.compile(r"\s+|[{}\[\],:]|[^\s{}\[\],:]+")
_PYTHON_TOKEN = re.compile(r"\s+|[{}\[\](),:=]|[^\s{}\[\](),:=]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*")
_BARE_KEY = re.compile(r"\w+")
_CONSTANTS: Mapping[str, str] = {
    "true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_ESCAPES = frozenset('"\\/bfnrtu')
Role: TypeAlias = Literal["calls", "call", "arguments", "other"]


@dataclass(slots=True)
class _Frame:
    """An open list, object or argument list. ``keys`` are its members so far if it is a call."""

    bracket: str
    role: Role
    key: str = ""
    keys: int = 0


_CLOSING = {"{": "}", "[": "]", "(": ")"}


class ValueReader(CallReader):
    """Reads calls from a value of JSON or Python.

    Args:
        members: where the value has names and arguments; ignored for Python.
        name: the tool's name if the delimiter has it.
        is_python: whether the value is a list of calls in Python's syntax.
        has_bare_keys: whether keys may be words.
    """

    def __init__(
        self,
        members: CallMembers,
        tools: ToolTypes | None,
        first: int,
        *,
        name: str = "",
        call_id: str | None = None,
        is_python: bool = False,
        has_bare_keys: bool = False,
    ) -> None:
        super().__init__(tools, first)
        self._members, self._is_python, self._has_bare_keys = members, is_python, has_bare_keys
        self._token = _PYTHON_TOKEN if is_python else _JSON_TOKEN
        self._name, self._id = name.strip(), call_id
        self._has_name = bool(self._name)
        self._frames: list[_Frame] = []
        self._expected = "value"
        self._word = ""
        self._lead = ""
        self._root = -1  # depth of the arguments' object
        self._has_arguments = self._has_others = self._is_open = False
        self._held: list[str] | None = None  # parts of a string that is needed whole
        self._is_shown = False  # whether the string is written while it is read
        self._collected: list[str] | None = None  # arguments before the name
        self.has_failed = not members.name and not is_python and not self.is_tool(self._name)

    @property
    def is_done(self) -> bool:
        return self._expected == "done"

    # Text outside of strings

    def outside(self, text: str) -> int:
        self.mark = -1
        held = len(self._word)
        if held:
            text, self._word = self._word + text, ""
        position = 0
        for match in self._token.finditer(text):
            sign = match[0]
            if sign.isspace():
                position = match.end()
                continue
            if self._expected == "done":
                break
            if sign in "{}[](),:=":
                self._punctuation(sign)
                if self._expected == "after" and not self._frames:
                    self._expected = "done"
            elif match.end() == len(text) and len(sign) <= MAX_WORD:
                self._word = sign
            else:
                self._read_word(sign)
            if self.has_failed:
                self.unread = text[position:held]
                break
            position = match.end()
            if self.mark == 0:
                self.mark = position - held
        return max(position - held, 0)

    def _flush_word(self) -> None:
        if self._word:
            word, self._word = self._word, ""
            self._read_word(word)
            if self.has_failed:
                self.unread = word

    def _fail(self) -> None:
        self.has_failed = True

    def _punctuation(self, sign: str) -> None:
        frame = self._frames[-1] if self._frames else None
        if sign in "{[":
            self._open(sign, frame)
        elif sign == "(":
            self._open_call(frame)
        elif sign in "}])":
            self._close(sign, frame)
        elif sign == ",":
            if frame is None or self._expected != "after":
                return self._fail()
            self._expected = "key" if frame.bracket in "{(" else "item"
            if frame.role == "arguments":
                self._lead = ", "
        elif frame is None or self._expected != "colon" or sign != ("=" if frame.bracket == "(" else ":"):
            self._fail()
        else:
            self._expected = "value"
        return None

    def _open(self, sign: str, frame: _Frame | None) -> None:
        if self._expected not in ("value", "item") or len(self._frames) >= MAX_DEPTH:
            return self._fail()
        role = self._role(sign, frame)
        if role is None:
            return self._fail()
        is_root = role == "arguments" and (frame is None or frame.role == "call")
        if is_root:
            if self._has_arguments:
                return self._fail()
            self._root, self._has_arguments = len(self._frames), True
            if not self._has_name:
                self._collected = []
        if role == "call":
            self._reset()
        if role == "arguments":
            self._put(sign)
        self._frames.append(_Frame(sign, role))
        self._expected = "key" if sign == "{" else "item"
        return None

    def _role(self, sign: str, frame: _Frame | None) -> Role | None:
        """Role of a list or object that begins; None if it has no place here."""
        if self._is_python:
            return "calls" if frame is None and sign == "[" else frame.role if frame and frame.role != "calls" else None
        if frame is None:
            if sign == "[":
                return "calls" if self._members.name else None
            return "call" if self._members.name else "arguments"
        if frame.role == "calls":
            return "call" if sign == "{" else None
        if frame.role == "call":
            if frame.key in self._members.arguments:
                return "arguments" if sign == "{" else None
            return None if frame.key == self._members.name or self._must_know(frame.key) else "other"
        return frame.role

    def _must_know(self, key: str) -> bool:
        """Notes a member of a call that has no meaning here."""
        self._has_others |= key not in ("id", "type", "tool_call_id")
        return False

    def _reset(self) -> None:
        """Prepares for the next call of a list."""
        self._name, self._id, self._has_name = "", None, False
        self._has_arguments = self._has_others = self._is_open = False
        self._root, self._lead, self._collected = -1, "", None

    def _open_call(self, frame: _Frame | None) -> None:
        if self._expected != "parenthesis":
            return self._fail()
        self._root, self._has_arguments = len(self._frames), True
        self._put("{")
        self._frames.append(_Frame("(", "arguments"))
        self._expected = "key"
        return None

    def _close(self, sign: str, frame: _Frame | None) -> None:
        allowed = ("after", "key") if sign != "]" else ("after", "item")
        if frame is None or sign != _CLOSING[frame.bracket] or self._expected not in allowed:
            return self._fail()
        self._frames.pop()
        self._expected = "after"
        if frame.role == "arguments":
            self._lead = ""
            self._put("}" if sign == ")" else sign)
            self._lead = ""
            if len(self._frames) == self._root and (not self._frames or sign == ")"):
                self._end_call()  # the whole value is the arguments, or a call of Python
        elif frame.role == "call":
            self._end_call()
        return None

    def _end_call(self) -> None:
        """A call is complete. One without arguments has none, if no other member can be meant."""
        if not self._has_name or (not self._has_arguments and self._has_others):
            return self._fail()
        if self._collected is not None:
            try:
                self._take_arguments("".join(self._collected))
            except ContentError:
                return self._fail()
        elif not self._has_arguments:
            self._show_begin()
            self.write("{}")
        self.end()
        self.mark = 0
        return None

    def _take_arguments(self, text: str) -> None:
        """Begins a call and writes arguments that are already complete. Raises ContentError."""
        arguments = parsed_arguments(text)
        types = {} if self.tools is None else self.tools.get(self._name, {})
        if any(is_castable(types.get(key, ())) for key in arguments):
            text = json_text(cast_arguments(arguments, types))
        self._show_begin()
        self.write(text)

    def _show_begin(self) -> None:
        self._is_open = True
        self.begin(self._name, self._id)

    def _put(self, text: str) -> None:
        """Writes a part of the arguments. The call begins with the first part after the opening bracket."""
        if self._collected is not None:
            self._collected.append(self._lead + text)
        elif self._is_open:
            self.write(self._lead + text)
        elif text != "{" or len(self._frames) != self._root:
            self._show_begin()
            self.write("{" + self._lead + text)
        self._lead = ""

    # Words

    def _read_word(self, word: str) -> None:
        """Reads a number, constant, bare key or function's name."""
        frame = self._frames[-1] if self._frames else None
        if len(word) > MAX_WORD:
            return self._fail()
        if self._expected == "key" and frame is not None:
            if frame.bracket == "(" and _NAME.fullmatch(word):
                return self._read_key(word)
            if self._has_bare_keys and frame.bracket == "{" and _BARE_KEY.fullmatch(word):
                return self._read_key(word)
            return self._fail()
        if self._is_python and frame is not None and frame.role == "calls":
            if self._expected != "item" or not _NAME.fullmatch(word) or not self.is_tool(word):
                return self._fail()
            self._reset()
            self._name, self._has_name = word, True
            self._expected = "parenthesis"
            return None
        if self._expected not in ("value", "item") or frame is None or frame.role == "calls":
            return self._fail()
        text = _CONSTANTS.get(word)
        if text is None:
            if _NUMBER.fullmatch(word) is None:
                return self._fail()
            text = word
        self._expected = "after"
        if frame.role == "arguments":
            self._put(text)
        elif frame.role == "call":
            self._take_member(frame.key, json.loads(text))
        return None

    def _read_key(self, key: str) -> None:
        frame = self._frames[-1]
        frame.key = key
        frame.keys += 1
        self._expected = "colon"
        if frame.role == "arguments":
            self._put(json_text(key) + ": ")

    def _take_member(self, key: str, value: Json) -> None:
        """Reads a member of a call that is no list or object."""
        if key == self._members.name:
            if self._has_name or not self.is_tool(value):
                return self._fail()
            self._name, self._has_name = value, True
        elif key in self._members.arguments:
            if self._has_arguments or not (value is None or isinstance(value, str)):
                return self._fail()
            try:
                text = json_text(parsed_arguments(value))
            except ContentError:
                return self._fail()
            self._has_arguments, self._collected = True, [text]
        else:
            self._must_know(key)
            if key in ("id", "tool_call_id") and isinstance(value, str):
                self._id = value
        return None

    # Strings

    def enter(self, form: int, match: Any) -> None:
        self._flush_word()
        frame = self._frames[-1] if self._frames else None
        if self.has_failed or frame is None or frame.role == "calls" or self._expected not in ("key", "value", "item"):
            return self._fail()
        if frame.bracket == "(" and self._expected == "key":  # keys of a list of arguments are words
            return self._fail()
        self._is_shown = False
        self._held = None
        if self._expected == "key" or frame.role == "call":
            self._held = []
        elif frame.role == "arguments":
            if len(self._frames) == self._root + 1 and is_castable(self.types(self._name, frame.key)):
                self._held = []
            else:
                self._is_shown = True
                self._put('"')
        return None

    def inside(self, text: str) -> None:
        self._add(encode_basestring(text)[1:-1])

    def escape(self, text: str) -> None:
        following = text[1:]
        if following[0] in _ESCAPES and (following[0] != "u" or len(following) == 5):
            self._add(text)
        elif following == "'":
            self._add("'")
        else:
            self._add("\\\\" + encode_basestring(following)[1:-1])

    def _add(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
        elif self._is_shown:
            if self._collected is None:
                self.write(text)
            else:
                self._collected.append(text)

    def leave(self, match: Any) -> None:
        if self._is_shown:
            self._add('"')
            self._is_shown = False
        elif self._held is not None:
            text, self._held = json.loads('"' + "".join(self._held) + '"'), None
            frame = self._frames[-1]
            if self._expected == "key":
                return self._read_key(text)
            if frame.role == "call":
                self._expected = "after"
                return self._take_member(frame.key, text)
            try:
                self._put(json_text(cast(text, self.types(self._name, frame.key))))
            except ContentError:
                self._put(json_text(text))
        self._expected = "after"
        return None

    def finish(self, is_cut: bool) -> None:
        if self._is_shown or self._held is not None:
            self.has_failed = True
            return
        self._flush_word()
        if self.has_failed:
            return
        if self._is_finished_call():
            self._end_call()
        elif self._expected == "value" and not self._frames and self._has_name and not is_cut:
            self._show_begin()  # the delimiters enclose nothing: a call without arguments
            self.write("{}")
            self.end()
        elif self._expected != "done" and not (len(self._frames) == 1 and self._frames[0].role == "calls"):
            self.has_failed = True

    def _is_finished_call(self) -> bool:
        """Whether only the brackets around the last call's arguments are missing."""
        frame = self._frames[-1] if self._frames else None
        return frame is not None and frame.role == "call" and self._expected == "after" and self._has_arguments


_PYTHON_STRINGS = (
    Watch([("enter", 0, "", Delimiter.of_literals('"')), ("enter", 1, "", Delimiter.of_literals("'"))]),
    Watch([("leave", 0, "", Delimiter.of_literals('"')), ("escape", 0, "", ESCAPE)]),
    Watch([("leave", 0, "", Delimiter.of_literals("'")), ("escape", 0, "", ESCAPE)]),
)
"""The delimiters outside of strings, and inside of each form of string."""


def read_call_list(text: str) -> list[dict[str, Json]]:
    """Calls of a list in Python's syntax, as objects with name and arguments. Raises ContentError."""
    reader = ValueReader(CallMembers(), None, 0, is_python=True)
    watches = _PYTHON_STRINGS
    position, inside = 0, -1
    while not reader.has_failed:
        watch: Watch = watches[inside + 1]
        delimiter, _ = watch.scan(text, position, is_end=True)
        end = len(text) if delimiter is None else delimiter.match.start()
        part = text[position:end]
        if inside >= 0:
            reader.inside(part)
        elif reader.outside(part) != len(part):
            break
        if delimiter is None:
            reader.finish(is_cut=False)
            break
        position = delimiter.match.end()
        if delimiter.kind == "enter":
            reader.enter(delimiter.number, delimiter.match)
            inside = delimiter.number
        elif delimiter.kind == "leave":
            reader.leave(delimiter.match)
            inside = -1
        else:
            reader.escape(delimiter.match[0])
    if reader.has_failed or not reader.is_done:
        raise ContentError("expected a list of calls")
    calls: list[dict[str, Json]] = []
    texts: list[str] = []
    for event in reader.events:
        if isinstance(event, CallDelta):
            if event.name is not None:
                calls.append({"name": event.name, "arguments": None})
                texts.append("")
            texts[-1] += event.arguments
    for call, arguments in zip(calls, texts, strict=True):
        call["arguments"] = json.loads(arguments)
    return calls
