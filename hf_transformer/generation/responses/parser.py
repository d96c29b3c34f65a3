"""The streaming executor of response templates: a model's text to content, reasoning and tool calls.

A ResponseParser holds the state of one sequence. ``push`` takes the next piece of text and returns events, ``flush``
the last ones. The events and the message do not depend on how the text is cut into pieces. No text is searched again
from its beginning: time is linear in the text.

The regions, their values and the message are those of transformers' executor. It differs where that one raises an error
or loses text:

- A closing delimiter inside of a string, or of a tag's value, is a part of it.
- A call that can't be read, or whose name is no tool of the request, is content, with its delimiters.
- A region of content after another one continues it; in transformers it replaces it.
- A prompt without the start anchor is no part of the answer.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hf_transformer.generation.responses.calls import (
    CallMembers,
    CallReader,
    TagReader,
    call_members,
    complete_calls,
)
from hf_transformer.generation.responses.contents import ContentError, ToolTypes
from hf_transformer.generation.responses.delimiters import Found, PatternTimeout, Watch
from hf_transformer.generation.responses.events import (
    CallDelta,
    CallEnd,
    Event,
    RegionClosed,
    RegionOpened,
    Role,
    TextDelta,
    Unreadable,
)
from hf_transformer.generation.responses.regions import WholeReader, region_value
from hf_transformer.generation.responses.template import Program, TemplateField, placeholder
from hf_transformer.generation.responses.values import ValueReader
from hf_transformer.types.request import Json

logger = logging.getLogger(__name__)

SLICE = 256
"""Maximum number of characters to search at once, beside a possible delimiter. Each delimiter is searched in all of
them again after the one before it."""
MAX_IDLE = 8
"""Number of delimiters in a row at one place of the text, without any character. Usually there are at most two."""
CONTEXT = 64
"""Number of characters before the current position that patterns may look back at."""
_EMPTY: tuple[Json, ...] = (None, "", [], {})


class ResponseParser:
    """Parser of one answer.

    Args:
        prompt: the text before the answer. Its end may begin the message, for example with ``<think>``.
        tools: the types of each tool's arguments; empty for a request without tools, whose calls are content, and None
            to accept any name.
        collects: whether to keep texts for the values of regions and for ``message``.

    Attributes:
        prompt_events: events of the part of the prompt that belongs to the message.
        unreadable: number of calls that could not be read, or not completely.
    """

    def __init__(
        self, program: Program, prompt: str = "", tools: ToolTypes | None = None, *, collects: bool = False
    ) -> None:
        self._program = program
        self._tools = tools
        self._collects = collects
        self._base = program.without_calls if tools is not None and not tools else program.all_fields
        self._watch: Watch = self._base
        self._buffer, self._position = "", 0
        self._field = self._implicit
        self._is_explicit = self._is_open = False
        self._groups: dict[str, str] = {}
        self._parts: list[str] = []
        self._reader: CallReader | None = None
        self._literal = -1
        self._held: list[str] | None = None  # raw text that becomes content if the call can't be read
        self._spaces: dict[str, str] = {}  # white space at the end of each field's text
        self._written: set[str] = set()  # fields with text
        self._joins: dict[str, str] = {}  # text between a field's regions
        self._space_before = ""
        self._is_raw = not program.health.is_good
        self._output: dict[str, Json] = deepcopy(dict(program.defaults))
        self._calls = 0
        self._written_calls: list[CallDelta | CallEnd] = []  # of the region, if the parser collects
        self._opening = ""
        self._has_calls = self._has_incomplete = False
        self.unreadable = 0
        self.prompt_events: list[Event] = []
        if prompt and not self._is_raw:
            try:
                prompt = program.after_anchor(prompt)
            except PatternTimeout as exc:
                self._give_up(exc)
                prompt = ""
            if prompt:
                self.prompt_events = self.push(prompt)

    @property
    def _implicit(self) -> TemplateField | None:
        index = self._program.implicit
        return None if index is None else self._program.fields[index]

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is within a region of reasoning now."""
        return self._field is not None and self._is_explicit and self._field.role == "reasoning"

    @property
    def has_calls(self) -> bool:
        """Whether the text has calls, and all of them are complete."""
        return self._has_calls and not self._has_incomplete

    def push(self, text: str) -> list[Event]:
        """Adds a piece of text. Returns the events that it completes."""
        if len(text) <= SLICE:
            return self._add(text) if text else []
        events: list[Event] = []
        for start in range(0, len(text), SLICE):
            events += self._add(text[start : start + SLICE])
        return events

    def plain(self, text: str) -> Role:
        """Adds text that is a delta as it is, and returns its role: content or reasoning without any character that may
        begin a delimiter, and without white space at its end. Empty for other text, which ``push`` takes.

        Most pieces are such ones. This costs a third of ``push``, which gives the same.
        """
        field = self._field
        if field is None or self._reader is not None or self._position < len(self._buffer) or self._collects:
            return ""
        name = field.name
        if not self._is_open or name not in self._written or name in self._joins or self._spaces.get(name):
            return ""
        if not field.is_text or not self._watch.passes(text):
            return ""
        self._buffer = self._buffer[-CONTEXT:] + text
        self._position = len(self._buffer)
        return field.role

    def _add(self, text: str) -> list[Event]:
        if self._is_raw:
            return [TextDelta("content", text)]
        events: list[Event] = []
        start = max(0, self._position - CONTEXT)
        self._buffer = self._buffer[start:] + text
        self._position -= start
        self._run(events, is_end=False)
        return events

    def flush(self) -> list[Event]:
        """Returns the events at the end of the text."""
        events: list[Event] = []
        if not self._is_raw:
            self._run(events, is_end=True)
        return events

    def message(self) -> dict[str, Json]:
        """The message after ``flush``: values by field, with the template's defaults and without empty ones."""
        defaults = self._program.defaults
        return {name: value for name, value in self._output.items() if name in defaults or value not in _EMPTY}

    # Scanning

    def _run(self, events: list[Event], *, is_end: bool) -> None:
        idle, rest = 0, -1
        try:
            while self._step(events, is_end=is_end):
                left = len(self._buffer) - self._position
                idle, rest = (idle + 1 if left == rest else 0), left
                if idle > MAX_IDLE:
                    raise PatternTimeout("delimiters that match nothing, again and again")
        except PatternTimeout as exc:
            self._give_up(exc)
            text = "".join(self._held or ()) + self._buffer[self._position :]
            self._buffer, self._position, self._held = "", 0, None
            if self._reader is not None and self._reader.has_begun:
                self._break_off(events, self._reader)
            if text:
                events.append(TextDelta("content", text))

    def _give_up(self, reason: PatternTimeout) -> None:
        """Shows the rest of the text as it is. After some such texts the program is not used any more."""
        self._is_raw = True
        self.unreadable += 1
        health = self._program.health
        health.timeouts += 1
        if not health.is_good:
            logger.error(
                "the response template of %s takes too long and is not used any more: answers stay as the model "
                "writes them; the pattern is %.200r",
                self._program.name,
                str(reason),
            )

    def _step(self, events: list[Event], *, is_end: bool) -> bool:
        """Handles the text up to the next delimiter. Returns whether text may remain that can be handled now."""
        delimiter, end = self._watch.scan(self._buffer, self._position, is_end=is_end)
        stop = end if delimiter is None else delimiter.match.start()
        if stop > self._position and not self._take(events, stop):
            return True  # the region has ended before
        if delimiter is not None:
            return self._handle(events, delimiter)
        if is_end:
            return self._finish(events)
        return False

    def _handle(self, events: list[Event], delimiter: Found) -> bool:
        match, reader = delimiter.match, self._reader
        if delimiter.kind == "open":
            self._position = match.end()
            self._space_before = "" if self._field is None else self._spaces.get(self._field.name, "")
            self._close(events)
            self._open(events, self._program.fields[delimiter.number], match)
        elif delimiter.kind == "close":
            self._position = match.end()
            had_text = self._is_open
            self._groups.update({name: text for name, text in match.groupdict().items() if text is not None})
            if not self._end_reader(events, is_cut=False, closing=match[0]):
                return True
            self._close(events)
            if not had_text and match.start() == match.end():
                return False  # it would match here again
        else:
            if delimiter.kind == "enter" and reader is not None and reader.is_done:
                self._close(events)
                return True
            self._position = match.end()
            self._collect(match[0])
            if self._held is not None:
                self._held.append(match[0])
            if delimiter.kind == "enter" and self._field is not None:
                self._literal, self._watch = delimiter.number, self._field.inside[delimiter.number]
            elif delimiter.kind == "leave" and self._field is not None:
                self._literal, self._watch = -1, self._field.outside
            if reader is not None:
                if delimiter.kind == "enter":
                    reader.enter(delimiter.number, match)
                elif delimiter.kind == "leave":
                    reader.leave(match)
                else:
                    reader.escape(match[0])
                self._take_events(events)
                if reader.has_failed:
                    self._give_back(events, match[0])
        return True

    def _finish(self, events: list[Event]) -> bool:
        if not self._end_reader(events, is_cut=True):
            return True
        self._close(events)
        return False

    # Text

    def _take(self, events: list[Event], stop: int) -> bool:
        """Takes the text up to ``stop``. Returns whether the region continues."""
        text = self._buffer[self._position : stop]
        field = self._field
        if field is None:
            self._position = stop
            return True
        if not self._is_open:
            self._is_open = True
            events.append(RegionOpened(field.name))
        reader = self._reader
        if reader is None:
            self._position = stop
            self._collect(text)
            if field.is_text and field.role:
                self._show(events, field, text)
            return True
        if self._literal >= 0:
            self._position = stop
            reader.inside(text)
            count = len(text)
        else:
            count = reader.outside(text)
            self._position += count
        self._collect(text[:count])
        if self._held is not None or reader.mark >= 0:
            if reader.mark >= 0:
                self._held = [text[reader.mark : count]]
                reader.mark = -1
            elif self._held is not None:
                self._held.append(text[:count])
        self._take_events(events)
        if reader.has_failed:
            self._give_back(events)
            return False
        if count < len(text):
            self._close(events)
            return False
        return True

    def _collect(self, text: str) -> None:
        if self._collects or (self._reader is None and self._field is not None and not self._field.is_text):
            self._parts.append(text)

    def _show(self, events: list[Event], field: TemplateField, text: str) -> None:
        """Adds text of the content or the reasoning, without white space at its ends."""
        name = field.name
        if field.strips:
            space = self._spaces.get(name, "")
            if name not in self._written:
                text = text.lstrip()
            stripped = text.rstrip()
            if not stripped:
                if text:
                    self._spaces[name] = space + text
                return
            if space or len(stripped) < len(text):
                self._spaces[name] = text[len(stripped) :]
                text = space + stripped
        if name not in self._written:
            self._written.add(name)
        elif name in self._joins:
            text = self._joins.pop(name) + text.lstrip()
        last = events[-1] if events else None
        if isinstance(last, TextDelta) and last.role == field.role:
            last.text += text
        else:
            events.append(TextDelta(field.role, text))

    # Regions

    def _open(self, events: list[Event], field: TemplateField, match: Any) -> None:
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        self._field, self._is_explicit, self._is_open, self._groups = field, True, True, groups
        self._parts, self._literal, self._written_calls = [], -1, []
        self._watch = field.outside
        events.append(RegionOpened(field.name))
        if field.role == "calls":
            self._reader = self._make_reader(field)
            self._opening = match[0]
            self._held = [self._opening]
            if self._reader.has_failed:
                self._give_back(events)

    def _make_reader(self, field: TemplateField) -> CallReader:
        groups = self._groups
        members = call_members(field)
        if field.content == "json" and members is not None and field.literals:
            name, call_id = self._named(field, members), groups.get("id")
            bare = bool(field.arguments.get("unquoted_keys"))
            return ValueReader(members, self._tools, self._calls, name=name, call_id=call_id, has_bare_keys=bare)
        if field.content == "python-call-list" and members is not None and members.has_lists:
            return ValueReader(members, self._tools, self._calls, is_python=True)
        if field.content == "xml-inline" and members is not None and not members.name and field.literals:
            if not field.arguments.get("merge_duplicates"):
                return TagReader(field, self._tools, self._calls, self._named(field, members), groups.get("id"))
        return WholeReader(field, self._tools, self._calls, groups)

    def _named(self, field: TemplateField, members: CallMembers) -> str:
        """The tool's name in the opening delimiter."""
        group = placeholder(field.transform["function"]["name"]) if not members.name and field.transform else None
        return "" if group is None else self._groups.get(group[0], "")

    def _close(self, events: list[Event]) -> None:
        """Ends the region, and returns to the implicit one."""
        field = self._field
        if field is not None and self._is_open:
            closed = RegionClosed(field.name)
            if self._collects or not field.is_text:
                self._set_value(events, field, closed)
            else:
                events.append(closed)
            if field.role in ("content", "reasoning") and field.is_text:
                self._end_text(field)
        self._reset()

    def _reset(self) -> None:
        if self._reader is not None:
            self._calls = self._reader.count
        self._field, self._is_explicit, self._is_open = self._implicit, False, False
        self._reader, self._held, self._literal, self._parts, self._groups = None, None, -1, [], {}
        self._watch = self._base

    def _end_text(self, field: TemplateField) -> None:
        if field.name in self._written:
            if field.strips:
                self._spaces[field.name] = ""
            if field.repeats:
                self._joins[field.name] = "\n" if field.join is None else field.join
        else:
            self._spaces.pop(field.name, None)

    def _set_value(self, events: list[Event], field: TemplateField, closed: RegionClosed) -> None:
        text = "".join(self._parts)
        try:
            value = region_value(field, text, self._groups, self._tools)
        except ContentError:
            if self._reader is None:
                self.unreadable += 1
                events.append(Unreadable(field.name))
                if text:
                    events.append(TextDelta("content", text))
                return
            value = self._repaired(field) if self._collects else None
        if self._collects:
            closed.value, closed.text = value, text
        if value is not None:
            self._keep(field, value)
        events.append(closed)

    def _repaired(self, field: TemplateField) -> Json:
        """Value of a region that only this parser's readers can read, None without a complete call."""
        calls = complete_calls(self._written_calls)
        if field.transform_each or len(calls) > 1:
            return calls
        return calls[0] if calls else None

    def _keep(self, field: TemplateField, value: Json) -> None:
        name, output = field.name, self._output
        if field.join is not None and isinstance(output.get(name), str):
            output[name] += field.join + value
        elif field.join is None and field.repeats:
            output.setdefault(name, []).append(value)
        else:
            output[name] = value

    # Calls

    def _take_events(self, events: list[Event]) -> None:
        reader = self._reader
        if reader is None:
            return
        if reader.events:
            self._has_calls = True
            if self._collects:
                self._written_calls += [replace(event) for event in reader.events]
            first, last = reader.events[0], events[-1] if events else None
            if isinstance(first, CallDelta) and first.name is None and isinstance(last, CallDelta):
                last.arguments += first.arguments
                del reader.events[0]
            events += reader.events
            reader.events = []
        if reader.has_begun:
            self._held = None

    def _end_reader(self, events: list[Event], *, is_cut: bool, closing: str = "") -> bool:
        """Ends the region's calls. Returns False if its text is content instead."""
        reader = self._reader
        if reader is None:
            return True
        reader.finish(is_cut)
        had_begun = reader.has_begun
        self._take_events(events)
        if not reader.has_failed:
            return True
        if had_begun:
            self._break_off(events, reader)
            if not is_cut:
                self.unreadable += 1
            return True
        self._position -= len(closing)
        self._give_back(events)
        return False

    def _break_off(self, events: list[Event], reader: CallReader) -> None:
        """Ends a call that has begun and stays incomplete."""
        events.append(CallEnd(reader.count, False))
        reader.has_begun, self._has_incomplete = False, True
        reader.count += 1

    def _give_back(self, events: list[Event], at: str = "") -> None:
        """Ends a region whose call can't be read. Its text since the last complete call is content, read anew.

        A call that has begun stays incomplete, and only the text from the error on is content. ``at`` is the delimiter
        at which it failed.
        """
        reader, field = self._reader, self._field
        if reader is None or field is None:
            return
        self.unreadable += 1
        events.append(Unreadable(field.name))
        raw = "".join(self._held or ())
        is_first = raw.startswith(self._opening) and self._held is not None and reader.count == self._calls
        if reader.has_begun:
            self._break_off(events, reader)
            raw = reader.unread + at
        self._reset()
        self._buffer = raw + self._buffer[self._position :]
        self._position = 0
        if is_first and raw:
            # The opening delimiter must not match again.
            if self._field is not None:
                self._spaces[self._field.name] = self._space_before
                self._joins.pop(self._field.name, None)
            self._take(events, max(len(self._opening), 1))
