"""Masking: entities in a text are replaced by a pattern, and the rest of the text stays as it is.

    [{label}]          My name is [PER].
    {label}_{index}    PER_1 met PER_2, and PER_1 left: one index for each text of a label
    {label}:{hash}     HMAC-SHA-256 of the entity's text, 32 hexadecimal digits
    *                  a single character is repeated to the length of the entity

A pattern comes from a client, so only these three names are placeholders, and other braces are refused. Of entities
that overlap, the one with the highest score is masked. Positions are characters (code points) of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush
from hmac import digest
from typing import Annotated, Final, TypeAlias

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.types.fields import about
from hf_transformer.types.request import Json

MAX_PATTERN: Final = 100
"""Maximum characters of a pattern, since it repeats for each entity."""
HASH_DIGITS: Final = 32
INDEX_DIGITS: Final = 7
"""Digits that an index is counted with: a text has fewer entities than ten million."""
CHARACTER_BYTES: Final = 6
"""The most bytes of a character in JSON, an escape."""
_PART: Final = re.compile(r"\{(label|index|hash)\}|([{}])")
PATH: Final = ("parameters", "mask")
MaskPattern: TypeAlias = Annotated[
    str | None,
    about(
        "Answer with masked_text, in which this stands for each entity: a text with {label}, {index} or {hash}, or a "
        "character that is repeated to the entity's length.",
        schema={"minLength": 1, "maxLength": MAX_PATTERN},
    ),
]


@dataclass(frozen=True, slots=True)
class PersonalData:
    """The settings of masking.

    Attributes:
        mask_key: the key of {hash}, from --mask_key_file.
        names: the names of a model's labels in Presidio's routes; None for a label without a name.
        patterns: whether Presidio's routes also find what regular expressions find (--enable_pii_patterns).
    """

    mask_key: bytes | None = field(default=None, repr=False)
    names: Mapping[str, str | None] | None = None
    patterns: bool = False


@dataclass(frozen=True, slots=True)
class TextEntity:
    """An entity: ``text[start:end]`` of its text."""

    start: int
    end: int
    label: str
    score: float


def read_entities(entities: Sequence[Mapping[str, Json]], text: str) -> list[TextEntity]:
    """Returns the entities in answers of token_classification (``entity_group``) and of tasks with ``label``.

    An entity without characters in ``text`` is left out.
    """
    found = []
    for entity in entities:
        label = entity["entity_group"] if "entity_group" in entity else entity["label"]
        start, end = max(entity["start"], 0), min(entity["end"], len(text))
        if start < end:
            found.append(TextEntity(start, end, label, entity["score"]))
    return found


def resolve_overlaps(entities: Sequence[TextEntity]) -> list[TextEntity]:
    """Returns entities that don't overlap, in text order.

    The highest score wins, then the longer entity, then the earlier one. An entity that overlaps a winner is cut to
    the characters outside of all winners, so that each character of an entity is masked.
    """
    resolved: list[TextEntity] = []
    for run in _runs(entities):
        if len(run) == 1:
            resolved += run
        else:
            resolved += _resolve_run(run)
    return resolved


def _runs(entities: Sequence[TextEntity]) -> Iterator[list[TextEntity]]:
    """Groups entities that overlap, each with its neighbour."""
    run: list[TextEntity] = []
    end = 0
    for entity in sorted(entities, key=lambda entity: entity.start):
        if run and entity.start >= end:
            yield run
            run = []
        end = max(end, entity.end) if run else entity.end
        run.append(entity)
    if run:
        yield run


def _resolve_run(run: Sequence[TextEntity]) -> Iterator[TextEntity]:
    """Sweeps over the borders of entities; between two borders the best entity that covers them wins.

    The order of entities is fixed, so a heap of their ranks makes this O(n log n) for any overlaps.
    """
    ranked = sorted(run, key=lambda entity: (-entity.score, entity.start - entity.end, entity.start, entity.label))
    starts = sorted(range(len(ranked)), key=lambda rank: ranked[rank].start)
    borders = sorted({border for entity in run for border in (entity.start, entity.end)})
    active: list[int] = []
    following, current, begin = 0, -1, 0
    for border in borders:
        while following < len(starts) and ranked[starts[following]].start <= border:
            heappush(active, starts[following])
            following += 1
        while active and ranked[active[0]].end <= border:
            heappop(active)
        best = active[0] if active else -1
        if best != current:
            if current >= 0:
                entity = ranked[current]
                yield TextEntity(begin, border, entity.label, entity.score)
            current, begin = best, border


class Mask:
    """A pattern that replaces entities. ``key`` is that of {hash}.

    Raises:
        InvalidInput: the pattern is empty, has braces that are no placeholder, or needs a key that is absent.
        TooLarge: the pattern is too long.
    """

    def __init__(self, pattern: str, key: bytes | None = None) -> None:
        if not pattern:
            raise InvalidInput(PATH, "a pattern", "an empty text")
        if len(pattern) > MAX_PATTERN:
            raise TooLarge(PATH, f"at most {MAX_PATTERN} characters", str(len(pattern)))
        self._literals: list[str] = []
        self._names: list[str] = []
        begin = 0
        for found in _PART.finditer(pattern):
            if found[2]:
                raise InvalidInput(PATH, "braces only in {label}, {index} and {hash}", "another brace")
            self._literals.append(pattern[begin : found.start()])
            self._names.append(found[1])
            begin = found.end()
        self._literals.append(pattern[begin:])
        if "hash" in self._names and key is None:
            raise InvalidInput(PATH, "a pattern without {hash}", "{hash}", "the service has no --mask_key_file")
        self._key = key or b""
        self._repeats = not self._names and len(pattern) == 1

    def longest(self, label: int) -> int:
        """The most characters that replace an entity, with a label of ``label`` characters; 0 if the entity's own
        length is the most."""
        if self._repeats:
            return 0
        sizes = {"label": label, "index": INDEX_DIGITS, "hash": HASH_DIGITS}
        return sum(map(len, self._literals)) + sum(sizes[name] for name in self._names)

    def apply(self, text: str, entities: Sequence[TextEntity]) -> str:
        """Returns the text with its entities masked. Entities may overlap."""
        parts: list[str] = []
        indices: dict[str, dict[str, int]] = {}
        end = 0
        for entity in resolve_overlaps(entities):
            found = text[entity.start : entity.end]
            of_label = indices.setdefault(entity.label, {})
            index = of_label.setdefault(found, len(of_label) + 1)
            parts += text[end : entity.start], self._replacement(entity.label, found, index)
            end = entity.end
        parts.append(text[end:])
        return "".join(parts)

    def _replacement(self, label: str, found: str, index: int) -> str:
        if self._repeats:
            return self._literals[0] * len(found)
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            if name == "label":
                parts.append(label)
            elif name == "index":
                parts.append(str(index))
            else:
                parts.append(digest(self._key, found.encode("utf-8", "surrogatepass"), sha256).hex()[:HASH_DIGITS])
            parts.append(literal)
        return "".join(parts)
