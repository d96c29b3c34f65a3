"""Requests that go on although nobody waits for them any longer, without sockets."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.predictor.http1_connection import Hold
from hf_transformer.predictor.http1_errors import DeadlineExceeded, Disconnected
from hf_transformer.predictor.http1_parser import Answer
from tests.predictor.test_http1_connection import OK, Clock, Owned, loop

__all__ = ["loop"]


def held(owned: Owned, hold: Hold, seconds: float = 10.0) -> asyncio.Task[Answer]:
    """A request under way that was cancelled."""
    task = owned.loop.create_task(owned.exchange(seconds=seconds, hold=hold))
    owned.turn()
    task.cancel("first")
    return task


def test_it_ends_with_the_answer(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = held(owned, hold)
    owned.turn()
    call.cancel("second")
    owned.turn()
    assert not call.done() and not owned.wire.aborted
    assert hold.cancelled is not None and hold.cancelled.args == ("second",)
    owned.receive(OK)
    assert loop.run_until_complete(call).status == 200
    assert (owned.told, owned.wire.aborted) == (["made", "free"], False)


def test_nobody_was_cancelled(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = loop.create_task(owned.exchange(hold=hold))
    owned.turn()
    owned.receive(OK)
    assert loop.run_until_complete(call).status == 200
    assert hold.cancelled is None


def test_an_answer_that_crosses_the_cancellation(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = held(owned, hold)
    owned.receive(OK)  # before the task has run again
    later = loop.create_task(owned.exchange())
    assert loop.run_until_complete(call).status == 200
    assert hold.cancelled is not None
    owned.turn()
    owned.receive(OK)  # the connection serves the next call all the same
    assert loop.run_until_complete(later).status == 200
    assert (owned.told, owned.wire.aborted) == (["made", "free", "free"], False)


def test_a_cancellation_that_crosses_the_answer(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = loop.create_task(owned.exchange(hold=hold))
    owned.turn()
    owned.receive(OK)
    call.cancel()
    assert loop.run_until_complete(call).status == 200
    assert hold.cancelled is not None and not owned.wire.aborted


@pytest.mark.parametrize("crossing", [True, False], ids=["crossing", "later"])
def test_it_ends_with_the_connection(loop: Clock, crossing: bool) -> None:
    owned, hold = Owned(loop), Hold()
    call = held(owned, hold)
    if not crossing:
        owned.turn()
    owned.connection.connection_lost(None)
    with pytest.raises(Disconnected):
        loop.run_until_complete(call)
    assert hold.cancelled is not None


def test_it_ends_at_the_deadline(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = held(owned, hold, 5.0)
    owned.turn()
    loop.now += 5.0
    with pytest.raises(DeadlineExceeded):
        loop.run_until_complete(call)
    assert owned.wire.aborted


def test_it_is_no_longer_held(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold()
    call = held(owned, hold)
    owned.turn()
    hold.released = True
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    assert (owned.told, owned.wire.aborted) == (["made", "lost"], True)


def test_it_is_left_at_once_and_goes_on(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold(leave=True)
    call = held(owned, hold)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    assert hold.rest is not None and not hold.rest.done() and not owned.wire.aborted
    owned.receive(OK)
    assert hold.rest.result().status == 200
    assert (owned.told, owned.wire.aborted) == (["made", "free"], False)


def test_it_is_left_when_it_has_just_ended(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold(leave=True)
    call = held(owned, hold)
    owned.receive(OK)
    assert loop.run_until_complete(call).status == 200
    assert hold.rest is None and hold.cancelled is not None


def test_what_is_left_ends_at_the_deadline(loop: Clock) -> None:
    owned, hold = Owned(loop), Hold(leave=True)
    call = held(owned, hold, 5.0)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(call)
    loop.now += 5.0
    owned.turn()
    assert hold.rest is not None and isinstance(hold.rest.exception(), DeadlineExceeded)
    assert (owned.told, owned.wire.aborted) == (["made", "lost"], True)
