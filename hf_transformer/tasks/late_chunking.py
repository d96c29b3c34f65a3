"""Late chunking: vectors of a text's spans from one pass of the model over the whole text.

The vector of a span is the mean of its tokens' vectors, which depend on the whole text. Source: Günther et al., "Late
Chunking: Contextual Chunk Embeddings Using Long-Context Embedding Models" (arXiv 2409.04701), algorithms 1 and 2; the
second one is for texts in several windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hf_transformer.errors import EmptyList, InvalidInput, Path, TooLarge, describe
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import SpannedText

FORMS = ({"chunks"}, {"text", "spans"})
"""The keys of instances for late chunking."""
MAX_SPANS = 4096
"""Maximum number of chunks or spans of a text, since each window of the text has a range for each of them."""


@dataclass(frozen=True, slots=True)
class SpannedItem:
    """A text and the (start, end) in characters of its spans; ``path`` is that of their list, for errors."""

    text: str
    spans: tuple[tuple[int, int], ...]
    path: Path

    def with_prompt(self, prompt: str, cased: Callable[[str], str]) -> SpannedText:
        """The text after a prompt, in the model's case. A change of case may move characters."""
        moved = {0: len(cased(prompt))}
        places = sorted({0, *(place for span in self.spans for place in span)})
        for previous, place in pairwise(places):
            moved[place] = moved[previous] + len(cased(self.text[previous:place]))
        pieces = (self.text[start:end] for start, end in pairwise([*places, len(self.text)]))
        text = "".join(map(cased, (prompt, *pieces)))
        return SpannedText(text, tuple((moved[start], moved[end]) for start, end in self.spans))

    def missing(self, index: int) -> InvalidInput:
        """Error for a span without tokens."""
        expected = "a token in the part of the text that is not cut off"
        hint = "shorten the text, or start the service with --on_overflow=window"
        return InvalidInput((*self.path, index), expected, "none", hint)


def read_spanned(instance: dict[str, Json], path: Path) -> SpannedItem:
    """Parses {"chunks": [string, ...]} or {"text": string, "spans": [[start, end], ...]}.

    A space separates chunks, unless one of them has white space there.

    Raises:
        InvalidInput: any other form.
        TooLarge: more than MAX_SPANS chunks or spans.
    """
    if "chunks" in instance:
        return _join(instance["chunks"], (*path, "chunks"))
    text, spans, path_of_spans = instance["text"], instance["spans"], (*path, "spans")
    if not isinstance(text, str):
        raise InvalidInput((*path, "text"), "a string", describe(text))
    _require_list(spans, path_of_spans, "a list of [start, end] in characters")
    for index, span in enumerate(spans):
        if not _is_span(span, len(text)):
            expected = f"[start, end] with 0 <= start < end <= {len(text)}, the text's characters"
            raise InvalidInput((*path_of_spans, index), expected, describe(span))
    return SpannedItem(text, tuple((start, end) for start, end in spans), path_of_spans)


def _join(chunks: Json, path: Path) -> SpannedItem:
    _require_list(chunks, path, "a list of strings")
    pieces: list[str] = []
    spans, length = [], 0
    for index, chunk in enumerate(chunks):
        if not isinstance(chunk, str) or not chunk:
            raise InvalidInput((*path, index), "a string", "an empty one" if chunk == "" else describe(chunk))
        if pieces and not (pieces[-1][-1].isspace() or chunk[0].isspace()):
            pieces.append(" ")
            length += 1
        spans.append((length, length + len(chunk)))
        pieces.append(chunk)
        length += len(chunk)
    return SpannedItem("".join(pieces), tuple(spans), path)


def _require_list(value: Json, path: Path, expected: str) -> None:
    if value == []:
        raise EmptyList(path, expected)
    if not isinstance(value, list):
        raise InvalidInput(path, expected, describe(value))
    if len(value) > MAX_SPANS:
        raise TooLarge(path, f"at most {MAX_SPANS} for a text", str(len(value)))


def _is_span(span: Json, length: int) -> bool:
    if not isinstance(span, list) or [*map(type, span)] != [int, int]:
        return False
    start, end = span
    return bool(0 <= start < end <= length)


def check_pooling(pooling: Sequence[str], inside: str | None, path: Path) -> None:
    """Raises InvalidInput if a model's vectors are not means of its tokens' vectors."""
    if tuple(pooling) != ("mean",) or inside:
        got = f"the module {inside}" if inside else f"the pooling {', '.join(pooling)}"
        raise InvalidInput(path, "a text without chunks or spans, which need a model with mean pooling alone", got)
