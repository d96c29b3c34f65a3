"""What is new in a token model's responses."""

from __future__ import annotations

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.generation.token_rows import RowHabits, Rows


def read(habits: RowHabits, *rows: list[int], prompt: tuple[int, ...] = (1, 2, 3), decoupled: bool = True) -> list[int]:
    reader = Rows(habits, prompt, decoupled=decoupled)
    return [token for row in rows for token in reader.take(row)] + reader.rest()


def test_new_tokens_alone() -> None:
    habits = RowHabits()
    assert read(habits, [5], [6], [7, 8], []) == [5, 6, 7, 8]
    assert habits == RowHabits(prompt=False, cumulative=False)


def test_all_tokens_so_far() -> None:
    habits = RowHabits()
    assert read(habits, [5], [5, 6], [5, 6, 7], [5, 6, 7]) == [5, 6, 7]
    assert habits == RowHabits(prompt=False, cumulative=True)
    assert read(habits, [5], [5, 5]) == [5, 5]


def test_all_tokens_so_far_behind_the_prompt() -> None:
    habits = RowHabits()
    assert read(habits, [1, 2, 3, 5], [1, 2, 3, 5, 6], [1, 2, 3, 5, 6, 7]) == [5, 6, 7]
    assert habits.cumulative is True


def test_the_prompt_in_the_first_response_alone() -> None:
    assert read(RowHabits(), [1, 2, 3, 5], [6], [7]) == [5, 6, 7]


def test_new_tokens_that_begin_as_the_last_ones_did() -> None:
    habits = RowHabits()
    assert read(habits, [5], [5, 6], [7]) == [5, 5, 6, 7]
    assert habits.cumulative is False
    assert read(habits, [5], [5, 6], [5, 6, 7]) == [5, 5, 6, 5, 6, 7]


def test_what_could_be_either_is_held_back_until_the_next_response() -> None:
    reader = Rows(RowHabits(), (1,), decoupled=True)
    assert reader.take([5]) == [5]
    assert reader.take([5, 6]) == []
    assert reader.take([5, 6, 7]) == [6, 7]


def test_at_the_end_what_was_held_back_is_new() -> None:
    assert read(RowHabits(), [5], [5, 6]) == [5, 5, 6]


def test_a_long_beginning_is_no_chance() -> None:
    first = list(range(10, 18))
    assert read(RowHabits(), first, [*first, 5]) == [*first, 5]


def test_a_length_that_counts_what_came_before() -> None:
    reader = Rows(habits := RowHabits(), (1,), decoupled=True)
    assert reader.take([5], 1) == [5]
    assert reader.take([5, 6], 3) == [5, 6]
    assert habits.cumulative is False


def test_a_response_that_does_not_go_on() -> None:
    with pytest.raises(PredictorError, match="all output_ids so far, but one does not"):
        read(RowHabits(cumulative=True), [5], [5, 6], [7])


@pytest.mark.parametrize(
    ("row", "expected"),
    [([1, 2, 3, 5], [5]), ([1, 2, 3], []), ([5, 6], [5, 6]), ([1, 2], [1, 2]), ([], [])],
    ids=["with the prompt", "the prompt alone", "without", "a part of it", "nothing"],
)
def test_one_response_with_all(row: list[int], expected: list[int]) -> None:
    assert read(RowHabits(), row, decoupled=False) == expected


def test_a_model_that_leaves_the_prompt_out_may_repeat_it() -> None:
    habits = RowHabits()
    assert read(habits, [5, 6], decoupled=False) == [5, 6]
    assert read(habits, [1, 2, 3, 5], decoupled=False) == [1, 2, 3, 5]


def test_a_stream_that_begins_with_the_prompt_s_only_token() -> None:
    assert read(RowHabits(), [1], [6], prompt=(1,)) == [1, 6]
