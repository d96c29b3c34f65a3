"""Parser of tool calls in generated text, in the format of Hermes and Qwen models:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: https://github.com/NousResearch/Hermes-Function-Calling, its prompt format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hf_transformer.generation.stops import partial_match
from hf_transformer.types.request import Json

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; ``arguments`` is a JSON object as text, as in OpenAI's API."""

    name: str
    arguments: str


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
