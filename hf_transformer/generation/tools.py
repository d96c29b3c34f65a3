"""Tool calls in a model's text, in the form of Hermes, Qwen and others that are trained alike:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: https://github.com/NousResearch/Hermes-Function-Calling, its prompt format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hf_transformer.generation.stops import open_end
from hf_transformer.types.request import Json

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: ``arguments`` are an object as JSON text, as OpenAI's API has them."""

    name: str
    arguments: str


class ToolCallParser:
    """Separates calls from other text, which comes in pieces.

    A call is held back until it is complete. White space around calls is dropped. A call that is not valid JSON, or not
    of the form above, is content as it stands.
    """

    def __init__(self) -> None:
        self._held = self._space = ""
        self._inside = self._has_calls = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The content and the calls that are certain now."""
        content, calls = "", list[ToolCall]()
        searched = max(0, len(self._held) - len(END))
        text = self._held + text
        while True:
            if self._inside:
                end = text.find(END, searched)
                if end < 0:
                    self._held = text
                    return content, calls
                content += self._call(text[:end], END, calls)
                text, searched, self._inside = text[end + len(END) :], 0, False
            begin = text.find(BEGIN)
            if begin < 0:
                place = open_end(text, BEGIN)
                self._held = text[place:]
                return content + self._content(text[:place]), calls
            content += self._content(text[:begin])
            text, self._inside = text[begin + len(BEGIN) :], True

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The rest, at the end of the text, where a call may lack its closing tag."""
        calls = list[ToolCall]()
        content = self._call(self._held, "", calls) if self._inside else self._content(self._held)
        return content if self._has_calls else content + self._space, calls

    def _content(self, text: str) -> str:
        """The text without white space at its end, which is held back until other content follows."""
        solid = text.rstrip()
        if not solid:
            self._space += text
            return ""
        given, self._space = self._space + solid, text[len(solid) :]
        return given

    def _call(self, text: str, end: str, calls: list[ToolCall]) -> str:
        """Adds a call to ``calls``; returns any other text as content."""
        call = _read_call(text)
        if call is None:
            return self._content(BEGIN + text + end)
        self._space, self._has_calls = "", True
        calls.append(call)
        return ""


def _read_call(text: str) -> ToolCall | None:
    """None for anything that is no call, or that JSON can't express: Python also reads NaN, and halves of surrogate
    pairs."""
    try:
        found: Json = json.loads(text)
        arguments = found.get("arguments", {}) if isinstance(found, dict) else None
        if not isinstance(arguments, dict) or not isinstance(found.get("name"), str):
            return None
        call = ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))
        (call.name + call.arguments).encode()
    except (ValueError, RecursionError):
        return None
    return call
