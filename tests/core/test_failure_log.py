"""How many lines failures get, and which."""

from __future__ import annotations

import pytest

from hf_transformer.core.failure_log import PAUSE, FailureLog
from hf_transformer.errors import PredictorError, PredictorTimeout

FAIL, END = "requests fail with 502: wrong", "the predictor answers again"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failures_that_come_and_go_have_a_line_each_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    log = FailureLog(clock=clock)
    for _ in range(30):  # three seconds apart
        log.failed(PredictorError("wrong"))
        assert log.failing
        log.answered()
        assert not log.failing
        clock.now += PAUSE * 0.3
    more = f"{FAIL} (3 more have failed since the last such line)"
    assert caplog.messages == [FAIL, END, *[more, END] * 7]


def test_a_row_of_failures_has_one_line_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    log = FailureLog(clock=clock)
    for _ in range(1000):
        log.failed(PredictorError("wrong"))
        clock.now += PAUSE
    log.answered()
    log.answered()
    log.failed(PredictorTimeout("late"))
    assert caplog.messages == [
        FAIL,
        END,
        "requests fail with 504: late (999 more have failed since the last such line)",
    ]


def test_the_end_of_failures_that_had_no_line_has_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailureLog(clock=Clock())
    for _ in range(5):
        log.failed(PredictorError("wrong"))
        log.answered()
    assert caplog.messages == [FAIL, END]
