"""Readers of a generated message, also of texts of known forms: forced calls, and answers with a constraint.

A forced call (``tool_choice``) is the whole text: its arguments alone, or [{"name": ..., "arguments": {...}}, ...]. A
model with reasoning writes that before it. Calls that the model makes freely have its own form, which a response
template describes (responses/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from hf_transformer.generation.responses.events import CallDelta, Event, Role, TextDelta

if TYPE_CHECKING:
    from hf_transformer.generation.responses.parser import ResponseParser  # imports regex
    from hf_transformer.generation.responses.prefix import ReasoningPrefix

ReadDelta: TypeAlias = TextDelta | CallDelta
TextReader: TypeAlias = "ResponseParser | FormReader | ForcedCallReader"
"""A reader of one message while it is written."""

_CALL = re.compile(r'\s*+\}?\s*+[\[,]\s*+\{\s*+"name"\s*+:\s*+("(?:[^"\\]|\\.)*+")\s*+,\s*+"arguments"\s*+:\s*+(?=\{)')
"""The text between the arguments of two forced calls, or before the first ones, with the name.

Possessive quantifiers: backtracking through long white space would block the event loop.
"""
MAX_HEAD = 4_000
"""Maximum number of characters before the arguments of a call. A longer text is no call."""
_LAST = re.compile(r"\s*+\}?\s*+\]?\s*+")
_STRUCTURE = re.compile(r'[{}"]|\\.?', re.DOTALL)


class MessageReader:
    """Reads a generated message as content, reasoning and calls.

    Args:
        reader: reads the text; None if all of it is content.
        forced: the tool that the message has to call, empty for any of them; None if it may be text.
        one_call: whether to drop all calls but the first.
    """

    __slots__ = ("_is_named", "_one_call", "_reader")

    def __init__(self, reader: TextReader | None, *, forced: str | None = None, one_call: bool = False) -> None:
        self._reader = reader
        self._is_named = bool(forced)
        self._one_call = one_call

    @property
    def unreadable(self) -> int:
        """Number of calls that could not be read."""
        return 0 if self._reader is None else self._reader.unreadable

    @property
    def has_calls(self) -> bool:
        """Whether the message has calls, and all of them are complete."""
        return self._reader is not None and self._reader.has_calls

    def read(self, text: str, *, is_last: bool) -> list[ReadDelta]:
        """Adds text. Returns new text, and new calls or parts of calls, in the order of the message. Buffers text that
        may begin a call."""
        reader = self._reader
        if reader is None:
            return [TextDelta("content", text)] if text else []
        if not is_last and (role := reader.plain(text)):
            return [TextDelta(role, text)]
        events = [*reader.push(text), *reader.flush()] if is_last else reader.push(text)
        deltas: list[ReadDelta] = []
        for event in events:
            if isinstance(event, TextDelta):
                last = deltas[-1] if deltas else None
                if isinstance(last, TextDelta) and last.role == event.role:
                    last.text += event.text
                else:
                    deltas.append(event)
            elif isinstance(event, CallDelta) and not (self._one_call and event.index):
                deltas.append(event)
        return deltas

    def reason(self, finish: str | None) -> str | None:
        """Returns the message's finish reason: ``tool_calls`` replaces ``stop`` if the message has calls, except, as in
        OpenAI's API, for the call of a tool that the request names."""
        return "tool_calls" if self.has_calls and finish == "stop" and not self._is_named else finish


class FormReader:
    """Reads a text of a known form while it is written: reasoning, then forced calls or content.

    Args:
        prefix: reads the reasoning before the form; None without any.
        forced: the called tool; empty for a list of calls, None for content.

    Attributes:
        has_calls: whether the text has calls.
        unreadable: number of calls that could not be read; always 0.
    """

    unreadable = 0

    def __init__(self, prefix: ReasoningPrefix | None, forced: str | None) -> None:
        self._prefix = prefix
        self._calls = None if forced is None else ForcedCallParser(forced)
        self._space = ""
        self._has_reasoning = False

    @property
    def has_calls(self) -> bool:
        return self._calls is not None and self._calls.count > 0

    def plain(self, text: str) -> Role:
        """As ResponseParser.plain."""
        is_content = self._calls is None and (self._prefix is None or self._prefix.is_over)
        return "content" if is_content else ""

    def push(self, text: str) -> list[Event]:
        """Adds a piece of text. Returns the events that it completes."""
        reasoning, rest = ("", text) if self._prefix is None else self._prefix.push(text)
        return self._events(reasoning, rest)

    def flush(self) -> list[Event]:
        """Returns the events at the end of the text."""
        events = [] if self._prefix is None else self._events(*self._prefix.flush())
        if self._calls is not None and (rest := self._calls.flush()):
            events.append(TextDelta("content", rest))
        return events

    def _events(self, reasoning: str, rest: str) -> list[Event]:
        events: list[Event] = []
        if reasoning:
            reasoning = self._space + (reasoning if self._has_reasoning else reasoning.lstrip())
            stripped = reasoning.rstrip()
            self._space = reasoning[len(stripped) :]
            if stripped:
                self._has_reasoning = True
                events.append(TextDelta("reasoning", stripped))
        if rest and self._calls is None:
            events.append(TextDelta("content", rest))
        elif rest and self._calls is not None:
            events += self._calls.push(rest)
        return events


class ForcedCallReader:
    """Reads an answer whose forced calls have the model's own form, or are the whole content as JSON.

    Args:
        parser: reads the model's own form; None without any.
        forced: as FormReader's.
    """

    def __init__(self, parser: ResponseParser | None, forced: str) -> None:
        self._parser = parser
        self._calls: ForcedCallParser | None = ForcedCallParser(forced)  # None: the content is text
        self._begins = "{" if forced else "["  # empty after it
        self._count = 0

    @property
    def unreadable(self) -> int:
        return 0 if self._parser is None else self._parser.unreadable

    @property
    def has_calls(self) -> bool:
        return self._count > 0 or (self._parser is not None and self._parser.has_calls)

    def plain(self, text: str) -> Role:
        """As ResponseParser.plain: all text is looked at."""
        return ""

    def push(self, text: str) -> list[Event]:
        """Adds a piece of text. Returns the events that it completes."""
        return self._with_calls([TextDelta("content", text)] if self._parser is None else self._parser.push(text))

    def flush(self) -> list[Event]:
        """Returns the events at the end of the text."""
        events = [] if self._parser is None else self._with_calls(self._parser.flush())
        if self._calls is not None and (rest := self._calls.flush()):
            events.append(TextDelta("content", rest))
        return events

    def _with_calls(self, events: Iterable[Event]) -> list[Event]:
        """Replaces content that is a forced call. Content that begins in another way stays content."""
        read: list[Event] = []
        for event in events:
            if self._calls is None or not isinstance(event, TextDelta) or event.role != "content":
                read.append(event)
            elif self._begins and (begin := event.text.lstrip()) and not begin.startswith(self._begins):
                self._calls = None
                read.append(event)
            else:
                self._begins = "" if event.text.strip() else self._begins
                read += self._calls.push(event.text)
                self._count = self._calls.count
        return read


class ForcedCallParser:
    """Reads forced calls while they are written. ``name`` is the called tool; empty for a list of calls.

    ``count`` is the number of calls so far. Returns text that is no call at the end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = 0
        self._is_in_arguments = False
        self._held = ""
        self._text: list[str] = []  # text that is no call, after the held one
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def push(self, text: str) -> list[CallDelta]:
        """Adds a chunk. Returns the new parts of calls."""
        if self._name:
            if not text:
                return []
            begin = None if self.count else self._name
            self.count = 1
            return [CallDelta(0, begin, text)]
        deltas: list[CallDelta] = []
        if self._text or (len(self._held) > MAX_HEAD and not self._is_in_arguments):
            self._text.append(text)
            return deltas
        self._held += text
        while self._held:
            if not self._is_in_arguments:
                head = _CALL.match(self._held)
                if head is None:
                    break
                deltas.append(CallDelta(self.count, json.loads(head[1], strict=False), ""))
                self._held, self._is_in_arguments = self._held[head.end() :], True
                self.count += 1
            if end := self._end_of_arguments():
                deltas.append(CallDelta(self.count - 1, None, self._held[:end]))
                self._held = self._held[end:]
        return deltas

    def flush(self) -> str:
        """Returns the rest at the end of the text."""
        rest = "".join([self._held, *self._text])
        is_text = not self.count or not _LAST.fullmatch(rest)
        return rest if is_text else ""

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
