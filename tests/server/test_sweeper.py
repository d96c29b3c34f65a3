"""When a connection has been in one state for too long."""

from __future__ import annotations

import pytest

from hf_transformer.server.connection import AT_ONCE, NOT_TAKING, SENDING, SILENT, State, Sweeper


class Watched:
    """A connection in a state that the test sets."""

    def __init__(self, state: State | None) -> None:
        self.now: State | None = state
        self.expired: list[State] = []

    def state(self) -> State | None:
        return self.now

    def expire(self, state: State) -> None:
        self.expired.append(state)


def sweeper(*connections: Watched) -> Sweeper:
    return Sweeper(connections, seconds=60.0, idle_seconds=5.0)


def sweep(swept: Sweeper, now: float) -> None:
    for _ in swept.sweep(now):
        pass


def test_each_state_has_its_time() -> None:
    sending, idle, busy = Watched(State(SENDING, {})), Watched(State(SILENT, None)), Watched(None)
    swept = sweeper(sending, idle, busy)
    for now in (100.0, 105.0):
        sweep(swept, now)
    assert not sending.expired and not idle.expired
    sweep(swept, 105.1)
    assert not sending.expired and idle.expired == [State(SILENT, None)]
    sweep(swept, 160.0)
    assert not sending.expired
    sweep(swept, 160.1)
    assert len(sending.expired) == 1 and not busy.expired


def test_another_request_has_its_own_time() -> None:
    # Two requests whose scopes look the same, but are two.
    connection = Watched(State(SENDING, {}))
    swept = sweeper(connection)
    sweep(swept, 0.0)
    connection.now = State(SENDING, {})
    sweep(swept, 50.0)
    sweep(swept, 110.0)
    assert not connection.expired
    sweep(swept, 110.1)
    assert connection.expired


def test_a_client_that_takes_some_of_its_answer_has_more_time() -> None:
    scope: dict[str, str] = {}
    connection = Watched(State(NOT_TAKING, scope, unsent=1000))
    swept = sweeper(connection)
    sweep(swept, 0.0)
    connection.now = State(NOT_TAKING, scope, unsent=900)
    sweep(swept, 60.0)
    sweep(swept, 120.0)
    assert not connection.expired
    sweep(swept, 120.1)
    assert connection.expired


def test_work_in_between_begins_anew() -> None:
    scope: dict[str, str] = {}
    connection = Watched(State(SENDING, scope))
    swept = sweeper(connection)
    sweep(swept, 0.0)
    connection.now = None
    sweep(swept, 30.0)
    connection.now = State(SENDING, scope)
    sweep(swept, 61.0)
    assert not connection.expired


def test_without_keep_alive_a_new_connection_has_the_time_of_a_request() -> None:
    new = Watched(State(SILENT, None))
    swept = Sweeper([new], seconds=60.0, idle_seconds=0.0)
    assert swept.period == 5.0  # and not as often as it may
    for now in (0.0, 60.0):
        sweep(swept, now)
    assert not new.expired
    sweep(swept, 60.1)
    assert new.expired


@pytest.mark.parametrize(
    ("seconds", "idle", "period"), [(60.0, 65.0, 5.0), (60.0, 1.0, 0.1), (0.2, 65.0, 0.05), (10.0, 0.0, 1.0)]
)
def test_how_often_it_looks(seconds: float, idle: float, period: float) -> None:
    assert Sweeper([], seconds, idle).period == period


def test_pauses_among_many_connections() -> None:
    many = [Watched(State(SILENT, None)) for _ in range(2 * AT_ONCE + 1)]
    open_ones = list(many)
    swept = Sweeper(open_ones, seconds=60.0, idle_seconds=5.0)
    sweep(swept, 0.0)
    pauses = swept.sweep(10.0)
    next(pauses)
    late = open_ones.pop()  # is closed while the sweep pauses
    assert len(list(pauses)) == 1
    assert [len(one.expired) for one in open_ones] == [1] * 2 * AT_ONCE
    assert not late.expired
