"""The reasoning before a text of a known form: a forced call, or an answer with a constraint.

The form begins where the reasoning has ended, so delimiters within it are text. Two users read the same prefix: the API
splits the answer, and a logits model's mask begins after it.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hf_transformer.generation.responses.delimiters import MAX_DELIMITER, PatternTimeout
from hf_transformer.generation.responses.families import ReasoningTexts, reasoning_texts
from hf_transformer.generation.responses.parser import SLICE
from hf_transformer.generation.responses.template import Program, TemplateField

if TYPE_CHECKING:
    from collections.abc import Set

    from hf_transformer.generation.detokenizer import Vocabulary


class ReasoningPrefix:
    """Splits a text into reasoning and the rest, which has the form.

    Args:
        prompt: the text before the answer. Its end may begin the reasoning, or have ended it.

    Attributes:
        is_over: whether the form has begun.
    """

    def __init__(self, program: Program, prompt: str) -> None:
        self._program = program
        self._buffer = ""
        self._field: TemplateField | None = None
        self._has_reasoned = False
        self.is_over = not program.health.is_good
        if prompt and not self.is_over:
            try:
                self.push(program.after_anchor(prompt))
            except PatternTimeout:
                program.health.timeouts += 1
                self.is_over = True
            self.is_over = self.is_over or (self._has_reasoned and self._field is None)

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is within the reasoning now."""
        return self._field is not None

    @property
    def state(self) -> Literal["open", "possible", "over"]:
        """Whether the reasoning has begun, may begin, or is over."""
        return "open" if self.is_reasoning else "over" if self.is_over else "possible"

    @property
    def texts(self) -> ReasoningTexts | None:
        """The delimiters as texts, if the template has them so."""
        return reasoning_texts(self._program)

    def push(self, text: str) -> tuple[str, str]:
        """Adds a piece of text. Returns new reasoning, and new text of the form."""
        reasoning, rest = "", ""
        for start in range(0, len(text), SLICE):
            if self.is_over:
                return reasoning, rest + text[start:]
            self._buffer += text[start : start + SLICE]
            new, after = self._advance(is_end=False)
            reasoning, rest = reasoning + new, rest + after
        return reasoning, rest

    def flush(self) -> tuple[str, str]:
        """Returns the buffered rest at the end of the text."""
        if self.is_over:
            return "", ""
        reasoning, rest = self._advance(is_end=True)
        return reasoning, rest + self._release()

    def takes(self, text: str) -> bool:
        """Adds text that belongs to the reasoning or its delimiters, and nothing else; otherwise changes nothing."""
        before = (self._buffer, self._field, self._has_reasoned)
        length = len(self._buffer) + len(text)
        self.push(text)
        # White space is no reasoning, and could go on for ever.
        is_blank = self._field is None and not self._buffer.strip() and len(self._buffer) == length
        if not self.is_over and not is_blank:
            return True
        self._buffer, self._field, self._has_reasoned = before
        self.is_over = False
        return False

    @property
    def is_between(self) -> bool:
        """Whether the form may begin with the next token: outside of the reasoning and its delimiters."""
        return self._field is None and not self._buffer.strip()

    def _advance(self, *, is_end: bool) -> tuple[str, str]:
        reasoning = ""
        try:
            while not self.is_over:
                watch = self._program.without_calls if self._field is None else self._field.outside
                delimiter, end = watch.scan(self._buffer, 0, is_end=is_end)
                if delimiter is None and end < len(self._buffer):
                    # A delimiter at the end of the text counts at once, since the form may begin with the next token.
                    last, _ = watch.scan(self._buffer, 0, is_end=True)
                    if last is not None and last.match[0] and last.match.end() == len(self._buffer):
                        delimiter = last
                stop = end if delimiter is None else delimiter.match.start()
                if self._field is not None:
                    reasoning += self._buffer[:stop]
                    self._buffer = self._buffer[stop:] if delimiter is None else self._buffer[delimiter.match.end() :]
                    if delimiter is None:
                        return reasoning, ""
                    self._field, self._has_reasoned = None, True
                elif (
                    self._buffer[:stop].strip()
                    or stop > MAX_DELIMITER
                    or (delimiter is not None and not delimiter.match[0])
                ):
                    self.is_over = True
                elif delimiter is None:
                    return reasoning, ""
                else:
                    self._buffer = self._buffer[delimiter.match.end() :]
                    if delimiter.kind == "open" and self._program.fields[delimiter.number].role == "reasoning":
                        self._field = self._program.fields[delimiter.number]
        except PatternTimeout:
            self._program.health.timeouts += 1
            self.is_over = True
        return reasoning, self._release()

    def _release(self) -> str:
        rest, self._buffer = self._buffer, ""
        return rest.lstrip() if self._has_reasoned else rest


@dataclass(slots=True)
class TokenPrefix:
    """The prefix of one sequence of token ids.

    Attributes:
        shown_tokens: special tokens that are a part of the text.
        pending: tokens that may begin a delimiter, or else the form.
    """

    prefix: ReasoningPrefix
    vocabulary: Vocabulary
    shown_tokens: Set[int]
    decoder: codecs.IncrementalDecoder
    pending: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, prefix: ReasoningPrefix, vocabulary: Vocabulary, shown_tokens: Set[int]) -> TokenPrefix:
        return cls(prefix, vocabulary, shown_tokens, codecs.getincrementaldecoder("utf-8")("replace"))

    @property
    def must_continue(self) -> bool:
        """Whether the next token has to belong to the prefix."""
        return not self.prefix.is_between

    def takes(self, token: int) -> bool:
        """Adds a token that belongs to the prefix; otherwise changes nothing."""
        if self.vocabulary.is_special(token) and token not in self.shown_tokens:
            return self.prefix.is_reasoning
        state = self.decoder.getstate()
        text = self.decoder.decode(self.vocabulary.text_and_bytes(token)[1])
        if not text:  # the beginning of a character
            if self.prefix.is_reasoning:
                return True
        elif self.prefix.takes(text):
            if self.prefix.is_reasoning or self.prefix.is_between:
                self.pending.clear()
            else:
                self.pending.append(token)
            return True
        self.decoder.setstate(state)
        return False
