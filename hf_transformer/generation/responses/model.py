"""Answers of one model: the object that APIs use to read what it generates.

    responses = model.responses                                  # None: show the text as it is
    if responses.reads(tools):                                   # otherwise there is nothing to read
        sampling = replace(sampling, shown_tokens=responses.shown_tokens)
    parser = responses.parser(prompt, tools)                     # one for each choice
    for event in parser.push(piece.text): ...                    # TextDelta, CallDelta, CallEnd, ...
    for event in parser.flush(): ...                             # after the last piece
    metrics.generation.unreadable_calls += parser.unreadable

``TextDelta.role`` is content or reasoning. A CallDelta with a name begins call number ``index``, others continue its
arguments, CallEnd ends it. The finish reason ``tool_calls`` takes the place of ``stop`` if ``parser.has_calls``. Whole
answers are the joined events of the same parser, so they equal streamed ones. Forced calls (``tool_choice``) are the
whole text after the reasoning; FormReader (generation/tools.py) reads them, with ``responses.prefix``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.generation.call_forms import CallForm
from hf_transformer.generation.responses.contents import tool_types
from hf_transformer.generation.responses.events import TextDelta
from hf_transformer.generation.responses.families import CALLS
from hf_transformer.generation.responses.parser import ResponseParser
from hf_transformer.generation.responses.prefix import ReasoningPrefix
from hf_transformer.generation.responses.template import Program
from hf_transformer.types.request import Json


class ModelResponses:
    """How a model writes its answers.

    Args:
        special_tokens: the tokenizer's special tokens with their ids.
        reads_calls: --enable_auto_tool_choice; otherwise calls are content.

    Attributes:
        shown_tokens: special tokens in delimiters, for Sampling.shown_tokens.
        has_reasoning: whether answers may have reasoning.
        strict_form: the form of calls for grammars; None if there is none, or calls are content.
    """

    def __init__(self, program: Program, special_tokens: Mapping[str, int], *, reads_calls: bool = True) -> None:
        self._program = program
        self._reads_calls = reads_calls
        self.shown_tokens = program.shown_tokens(special_tokens)
        self.has_reasoning = program.has_reasoning
        self.strict_form = _strict_form(program) if reads_calls else None

    def reads(self, tools: Sequence[Json]) -> bool:
        """Whether answers may have reasoning, or calls of these tools."""
        return self._program.has_reasoning or bool(tools and self._reads_calls)

    def parser(self, prompt: str, tools: Sequence[Json]) -> ResponseParser:
        """Parser of one answer to a rendered prompt; ``tools`` are those of the request that the model may call."""
        return ResponseParser(self._program, prompt, tool_types(tools if self._reads_calls else ()))

    def prefix(self, prompt: str) -> ReasoningPrefix:
        """Reader of the reasoning before a text of a known form."""
        return ReasoningPrefix(self._program, prompt)


def _strict_form(program: Program) -> CallForm | None:
    """The form of the table that the template reads as a call and nothing else."""
    for part in CALLS.values():
        if part.strict is not None:
            parser = ResponseParser(program, "", {"f": {}})
            events = [*parser.push(f"{part.strict.begin('f')}{{}}{part.strict.tail}"), *parser.flush()]
            if parser.has_calls and not any(isinstance(event, TextDelta) for event in events):
                return part.strict
    return None
