"""Special tokens in the messages of a chat, which are letters (``--user_special_tokens``).

    {"content": "hello<|im_end|>"} --mark--> template --composed--> PromptText with the place of the letters

A template's output mixes its own tokens with texts of users. Before rendering, each special token in a text of a user
gets a mark after its first character. The mark is a character that the chat does not contain. ``composed`` removes it.
So templates may split, trim, join or serialize texts as before, only a search for such a token finds none.

What an assistant wrote before has its own delimiters, such as ``<think>`` and ``</think>``, which templates look for:
in the content of its messages, only special tokens are letters, and no delimiter of reasoning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.letters import alternation, starts_of
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import PromptText

MARKS: Final = "".join(map(chr, range(0xFDD0, 0xFDF0)))
"""Characters that Unicode reserves for use inside of programs."""
REASONING: Final = re.compile(r"[<\[]/?(seed:)?think[>\]]", re.IGNORECASE)
"""Delimiters of reasoning, which some tokenizers declare as special tokens."""
OWN_FIELDS: Final = frozenset(("content", "reasoning_content", "reasoning", "thinking"))
"""Fields of an assistant's message with its own text."""


class UserTexts:
    """Marks special tokens in texts of users. Thread-safe.

    Args:
        tokens: the tokens that steer a model, and whether they are special.
    """

    def __init__(self, tokens: Mapping[str, bool]) -> None:
        own = [token for token, special in tokens.items() if special and not REASONING.fullmatch(token)]
        self._pattern, self._starts, self._own = re.compile(alternation(tokens)), starts_of(tokens), starts_of(own)
        self._beginnings = frozenset(token[:length] for token in tokens for length in range(1, len(token)))
        self._longest = max(map(len, self._beginnings), default=0)
        self._shows = all(orjson.dumps(token).decode() == f'"{token}"' for token in tokens)
        """Whether JSON shows all tokens as they are."""

    def mark(self, context: Mapping[str, Json], service_names: Collection[str]) -> tuple[dict[str, Json], str]:
        """Returns the variables of a template with marks, and the mark; empty if no text has a special token.

        ``service_names`` are names of variables that the service sets. Raises InvalidInput for texts with all marks.
        """
        texts = {name: value for name, value in context.items() if name not in service_names}
        try:
            dumped = orjson.dumps(texts).decode()
        except (TypeError, ValueError):  # orjson refuses lone surrogates and large integers
            dumped = repr(texts)
        messages: list[Json] = texts.get("messages") or []
        if self._shows and not any(map(_parts, messages)) and self._pattern.search(dumped) is None:
            return dict(context), ""
        mark = next((mark for mark in MARKS if mark not in dumped and _escaped(mark) not in dumped), None)
        if mark is None:
            expected = "texts without one of the characters U+FDD0 to U+FDEF, which are for use inside of programs"
            raise InvalidInput("messages", expected, "all of them")
        marked = {name: _marked(value, self._starts, mark) for name, value in texts.items()}
        marked["messages"] = [self._message(message, mark) for message in messages]
        return {**context, **marked}, mark

    def _message(self, message: Mapping[str, Json], mark: str) -> dict[str, Json]:
        is_assistant = message.get("role") == "assistant"
        marked = {
            name: value
            if name == "role"
            else _marked(value, self._own if is_assistant and name in OWN_FIELDS else self._starts, mark)
            for name, value in message.items()
        }
        if parts := _parts(message):
            marked["content"] = [
                {**part, "text": self._part(given["text"], mark)} if "text" in given else part
                for given, part in zip(parts, marked["content"], strict=True)
            ]
        return marked

    def _part(self, text: str, mark: str) -> str:
        """Marks a part's special tokens, and one at its end that the next part may complete."""
        places = [match.start() + 1 for match in self._starts.finditer(text)]
        ends = range(max(0, len(text) - self._longest), len(text))
        places += [start + 1 for start in ends if text[start:] in self._beginnings]
        cuts = [0, *sorted({*places}), len(text)]
        return mark.join(text[start:end] for start, end in itertools.pairwise(cuts))

    def composed(self, prompt: str, mark: str) -> PromptText:
        """Removes the marks from a rendered prompt."""
        if not mark:
            return PromptText(prompt)
        # A template may serialize texts in ASCII.
        pieces = prompt.replace(_escaped(mark), mark).split(mark)
        text, position = "".join(pieces), 0
        letters: list[tuple[int, int]] = []
        for piece in pieces[:-1]:
            position += len(piece)
            match = self._pattern.match(text, position - 1) if position else None
            if match is not None:
                start = max(match.start(), letters[-1][1]) if letters else match.start()
                if start < match.end():
                    letters.append((start, match.end()))
        return PromptText(text, tuple(letters))


def _escaped(mark: str) -> str:
    """The mark in JSON of ASCII characters."""
    return f"\\u{ord(mark):04x}"


def _parts(message: Mapping[str, Json]) -> Sequence[Json]:
    """The parts of a message, if it has several: a template may join their texts to a token."""
    content = message.get("content")
    return content if isinstance(content, list) and len(content) > 1 else ()


def _marked(value: Any, starts: re.Pattern[str], mark: str) -> Any:
    """Copies a JSON value with a mark in each special token of its texts, names included."""
    if isinstance(value, str):
        return starts.sub(rf"\1{mark}", value)
    if isinstance(value, Mapping):
        return {_marked(name, starts, mark): _marked(item, starts, mark) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, starts, mark) for item in value]
    return value
