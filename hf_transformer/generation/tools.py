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
from hf_transformer.types import Json

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: ``arguments`` are an object as JSON text, as OpenAI's API has them."""

    name: str
    arguments: str


class ToolCallParser:
    """Separates calls from other text, which comes in pieces.

    A tag that has begun is held back, and so is the rest until the call is complete. White space around calls is
    dropped. A call that is not valid JSON, or not of the form above, is content as it stands.
    """

    def __init__(self) -> None:
        self._held = ""
        self._space = ""
        self._inside = False
        self._calls = 0

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The content and the calls that are certain now."""
        content = ""
        calls: list[ToolCall] = []
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
        """What was held back, at the end: a call may lack its closing tag if that is what ends the text."""
        calls: list[ToolCall] = []
        held, self._held = self._held, ""
        content = self._call(held, "", calls) if self._inside else self._content(held)
        self._inside = False
        if not self._calls:
            content += self._space
        self._space = ""
        return content, calls

    def _content(self, text: str) -> str:
        """The text without white space at its end, which stays back: only content that follows brings it out."""
        solid = text.rstrip()
        if not solid:
            self._space += text
            return ""
        given, self._space = self._space + solid, text[len(solid) :]
        return given

    def _call(self, text: str, end: str, calls: list[ToolCall]) -> str:
        """Adds the call to the others; returns it as content if it is none."""
        call = _read_call(text)
        if call is None:
            return self._content(BEGIN + text + end)
        self._space = ""
        self._calls += 1
        calls.append(call)
        return ""


def _read_call(text: str) -> ToolCall | None:
    """None for anything that is no call, or that JSON can't say again: Python also reads NaN, and halves of surrogate
    pairs."""
    try:
        found: Json = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return None
        arguments = found.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        call = ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))
        (call.name + call.arguments).encode()
    except (ValueError, RecursionError):
        return None
    return call
