"""Parsers of tool calls in generated text. Calls that the model makes freely have the format of Hermes and Qwen models:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

A forced call (``tool_choice``) is the whole text: its arguments alone, or [{"name": ..., "arguments": {...}}, ...].

Source: https://github.com/NousResearch/Hermes-Function-Calling, its prompt format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from hf_transformer.generation.stops import partial_match
from hf_transformer.types.request import Json

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(r'\s*+\}?\s*+[\[,]\s*+\{\s*+"name"\s*+:\s*+("(?:[^"\\]|\\.)*+")\s*+,\s*+"arguments"\s*+:\s*+(?=\{)')
"""The text between the arguments of two forced calls, or before the first ones, with the name.

Possessive quantifiers: backtracking through long white space would block the event loop.
"""
_LAST = re.compile(r"\s*+\}?\s*+\]?\s*+")
_STRUCTURE = re.compile(r'[{}"]|\\.?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; ``arguments`` is a JSON object as text, as in OpenAI's API."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call. ``name`` is set in its first part; ``arguments`` are a part of a JSON object."""

    name: str | None
    arguments: str


class ForcedCallParser:
    """Reads forced calls while they are written. ``name`` is the called tool; empty for a list of calls.

    Returns text that is no call as content at the end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = self._is_in_arguments = False
        self._held = ""
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """Adds a chunk. Returns no content, and the new parts of calls."""
        if self._name:
            begin = [] if self._has_begun or not text else [CallPiece(self._name, "")]
            self._has_begun = self._has_begun or bool(text)
            return "", [*begin, *([CallPiece(None, text)] if text else [])]
        pieces: list[CallPiece] = []
        self._held += text
        while self._held:
            if not self._is_in_arguments:
                head = _CALL.match(self._held)
                if head is None:
                    break
                pieces.append(CallPiece(json.loads(head[1], strict=False), ""))
                self._held, self._has_begun, self._is_in_arguments = self._held[head.end() :], True, True
            end = self._end_of_arguments()
            if end:
                pieces.append(CallPiece(None, self._held[:end]))
                self._held = self._held[end:]
        return "", pieces

    def flush(self) -> tuple[str, list[CallPiece]]:
        """Returns the rest at the end of the text."""
        is_text = not self._has_begun or not _LAST.fullmatch(self._held)
        return (self._held if is_text else ""), []

    def _end_of_arguments(self) -> int:
        """Returns the end of the arguments in the buffer, or of the buffer."""
        start, self._is_escaped = int(self._is_escaped), False
        for match in _STRUCTURE.finditer(self._held, start):
            character = match[0]
            if character[0] == "\\":
                self._is_escaped = len(character) == 1  # the escaped character follows in the next chunk
            elif character == '"':
                self._is_in_string = not self._is_in_string
            elif not self._is_in_string:
                self._depth += 1 if character == "{" else -1
                if not self._depth:
                    self._is_in_arguments = False
                    return match.end()
        return len(self._held)


class ToolCallParser:
    """Separates tool calls from the content of a streamed text.

    Buffers a call until it is complete, and drops white space around calls. Returns invalid calls as content.
    """

    def __init__(self) -> None:
        self._held = self._space = ""
        self._is_in_call = self._has_calls = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Adds a chunk. Returns the content that can no longer change, and complete calls."""
        content, calls = "", list[ToolCall]()
        searched = max(0, len(self._held) - len(END))
        text = self._held + text
        while True:
            if self._is_in_call:
                end = text.find(END, searched)
                if end < 0:
                    self._held = text
                    return content, calls
                content += self._end_call(text[:end], END, calls)
                text, searched, self._is_in_call = text[end + len(END) :], 0, False
            begin = text.find(BEGIN)
            if begin < 0:
                end = partial_match(text, BEGIN)
                self._held = text[end:]
                return content + self._add_content(text[:end]), calls
            content += self._add_content(text[:begin])
            text, self._is_in_call = text[begin + len(BEGIN) :], True

    def flush(self) -> tuple[str, list[ToolCall]]:
        """Returns the rest at the end of the text. Accepts a last call without its closing tag."""
        calls = list[ToolCall]()
        content = self._end_call(self._held, "", calls) if self._is_in_call else self._add_content(self._held)
        return content if self._has_calls else content + self._space, calls

    def _add_content(self, text: str) -> str:
        """Returns the text without trailing white space. Buffers that white space until more content follows."""
        stripped = text.rstrip()
        if not stripped:
            self._space += text
            return ""
        content, self._space = self._space + stripped, text[len(stripped) :]
        return content

    def _end_call(self, text: str, end: str, calls: list[ToolCall]) -> str:
        """Appends a valid call to ``calls``; returns an invalid one as content."""
        call = _parse_call(text)
        if call is None:
            return self._add_content(BEGIN + text + end)
        self._space, self._has_calls = "", True
        calls.append(call)
        return ""


def _parse_call(text: str) -> ToolCall | None:
    """Parses one call. Returns None for an invalid call, and for values not allowed in JSON: NaN, lone surrogates."""
    try:
        value: Json = json.loads(text)
        arguments = value.get("arguments", {}) if isinstance(value, dict) else None
        if not isinstance(arguments, dict) or not isinstance(value.get("name"), str):
            return None
        call = ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))
        (call.name + call.arguments).encode()
    except (ValueError, RecursionError):
        return None
    return call
