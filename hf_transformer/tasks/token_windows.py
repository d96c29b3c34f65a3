"""Tokens of a text that was read in several windows: each taken once, from the window that shows more around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_transformer.types import Encoding


@dataclass(frozen=True, slots=True)
class WindowShape:
    """A window: its ``length`` in tokens, the special ones that it has ``before`` and ``after`` the text's own, and
    where in the text it begins, as (word, character): words are counted only where a text came in words."""

    length: int
    before: int
    after: int
    begins: tuple[int, int]

    @classmethod
    def of(cls, encoding: Encoding) -> WindowShape:
        """The shape of an encoding that has all details."""
        special = encoding.special_mask or []
        length = len(encoding)
        before = next((place for place, one in enumerate(special) if not one), length)
        after = next((place for place, one in enumerate(reversed(special)) if not one), 0)
        if before == length or encoding.offsets is None:
            return cls(length, length, 0, (0, 0))
        word = encoding.word_ids[before] if encoding.word_ids is not None else None
        return cls(length, before, after, (word or 0, encoding.offsets[before][0]))


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens ``begin`` to ``end`` of window number ``window``; in the whole text they begin at ``place``."""

    window: int
    begin: int
    end: int
    place: int


def pieces_of(windows: Sequence[WindowShape], stride: int) -> list[Piece]:
    """What each window contributes to the tokens of the whole text, in the order of the text.

    Neighbours share ``stride`` tokens; the first half of these is taken from the window before, the second from the one
    after. Special tokens are those before the first window and after the last.
    """
    order = list(range(len(windows)))
    if windows[0].begins > windows[-1].begins:  # a tokenizer that cuts on the left gives the end of the text first
        order.reverse()
    pieces: list[Piece] = []
    place = 0
    for number, window in enumerate(order):
        shape = windows[window]
        begin = shape.before + (stride + 1) // 2 if number else 0
        end = shape.length - (shape.after + stride // 2 if number < len(order) - 1 else 0)
        pieces.append(Piece(window, begin, end, place))
        place += end - begin
    return pieces
