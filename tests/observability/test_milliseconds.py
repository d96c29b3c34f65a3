"""Durations as text, from the table and without it."""

from __future__ import annotations

import pytest

from hf_transformer.api.endpoint import server_timing
from hf_transformer.observability.milliseconds import SHORT, in_milliseconds
from hf_transformer.types import Timings


def test_the_table_says_what_formatting_says() -> None:
    for number in range(int(SHORT * 1e6) + 1):
        assert in_milliseconds(number / 1e6) == f"{number / 1000:.3f}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.000"),
        (SHORT, "9.900"),
        (0.0099001, "9.900"),
        (0.0100004, "10.000"),
        (60.0, "60000.000"),
        (-0.001, "-1.000"),
    ],
)
def test_at_the_ends_of_the_table_and_beyond(seconds: float, text: str) -> None:
    assert in_milliseconds(seconds) == text


@pytest.mark.parametrize("predict", [0.0009, 0.0100004, 59.9999])
def test_the_header_for_short_and_long_requests(predict: float) -> None:
    timings = Timings(0.0, 0.0002, predict, 0.0000126, 0.0001, 0.0000004)
    rest = predict - 0.0002
    expected = f"parse;dur=0.100, tokenize;dur=0.000, queue;dur=0.200, predict;dur={rest * 1e3:.3f}, decode;dur=0.013"
    assert server_timing(timings) == expected.encode()


def test_a_queue_longer_than_the_prediction() -> None:
    assert b"predict;dur=0.000," in server_timing(Timings(queue=0.002, predict=0.001))
