"""Answers read with a template, whole and in pieces."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hf_transformer.generation.responses.contents import ToolTypes, tool_types
from hf_transformer.generation.responses.events import CallDelta, CallEnd, Event, RegionClosed, TextDelta
from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.parser import ResponseParser
from hf_transformer.generation.responses.template import Program, compile_template
from tests.goldens.response_texts import FAMILIES, TOOLS

TYPES: Final = tool_types(TOOLS)
PROGRAMS: Final[Mapping[str, Program]] = {
    name: compile_template(compose(*family.parts), name) for name, family in FAMILIES.items()
}
HERMES: Final = PROGRAMS["qwen3"]


@dataclass
class Answer:
    """An answer for a client. ``calls`` are names with their arguments as text, ``complete`` tells which are whole."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)
    unreadable: int = 0
    regions: list[tuple[str, str, Any]] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)


def joined(events: Iterable[Event]) -> Answer:
    """The answer that events make."""
    answer = Answer()
    for event in events:
        if isinstance(event, TextDelta):
            if event.role == "content":
                answer.content += event.text
            else:
                answer.reasoning += event.text
        elif isinstance(event, CallDelta):
            if event.name is not None:
                assert event.index == len(answer.calls)
                answer.calls.append((event.name, ""))
            name, arguments = answer.calls[event.index]
            answer.calls[event.index] = name, arguments + event.arguments
        elif isinstance(event, CallEnd):
            answer.complete.append(event.is_complete)
        elif isinstance(event, RegionClosed):
            answer.regions.append((event.name, event.text, event.value))
    return answer


def read(
    program: Program, text: str, prompt: str = "", tools: ToolTypes | None = TYPES, pieces: Sequence[str] = ()
) -> Answer:
    """Reads a text, in pieces if they are given."""
    parser = ResponseParser(program, prompt, tools, collects=True)
    events = list(parser.prompt_events)
    for piece in pieces or [text]:
        events += parser.push(piece)
    events += parser.flush()
    answer = joined(events)
    answer.unreadable, answer.message = parser.unreadable, parser.message()
    return answer


def cuttings(text: str, count: int = 3) -> list[list[str]]:
    """The text as single characters, and cut at random places."""
    generator = random.Random(text)
    ways = [list(text)]
    for _ in range(count):
        places = sorted(generator.sample(range(len(text) + 1), min(len(text), generator.randrange(1, 9))))
        ways.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if a < b])
    return [way for way in ways if way]
