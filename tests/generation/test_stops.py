"""Stop strings, wherever the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.stops import Replacing, StopSearch

letters = st.text("ab.", max_size=30)
stops = st.lists(st.text("ab.", min_size=1, max_size=5), max_size=4)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def naive(text: str, wanted: list[str]) -> tuple[str, bool]:
    """Reads a character at a time, and looks through all that was read for the longest stop string at its end."""
    for end in range(1, len(text) + 1):
        for stop in sorted(wanted, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], True
    return text, False


@given(text=letters, wanted=stops, cuts=st.lists(st.integers(0, 100), max_size=20))
def test_pieces_end_where_the_whole_text_does(text: str, wanted: list[str], cuts: list[int]) -> None:
    search, given_out, stopped = StopSearch(wanted), "", False
    for piece in pieces_of(text, cuts):
        more, stopped = search.push(piece)
        given_out += more
        if stopped:
            break
    if not stopped:
        given_out += search.held
    assert (given_out, stopped) == naive(text, wanted)


@given(text=letters, wanted=stops)
def test_nothing_is_held_back_that_can_not_become_a_stop(text: str, wanted: list[str]) -> None:
    search, given_out = StopSearch(wanted), ""
    for end, character in enumerate(text, 1):
        more, stopped = search.push(character)
        given_out += more
        if stopped:
            return
        held = text[len(given_out) : end]
        assert not held or any(stop.startswith(held) and stop != held for stop in wanted)


@given(text=st.text("ab ", max_size=40), old=st.text("ab ", min_size=1, max_size=4), cuts=st.lists(st.integers(0, 100)))
def test_replacing_in_pieces_is_replacing_in_the_whole(text: str, old: str, cuts: list[int]) -> None:
    replacing = Replacing(old, "X")
    assert "".join([*map(replacing.push, pieces_of(text, cuts)), replacing.held]) == text.replace(old, "X")
