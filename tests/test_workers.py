"""The roster of workers, shared with processes that are spawned."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from hf_transformer.workers import Roster


def work(roster: Roster, orders: Connection) -> None:
    """A worker that does what it is told."""
    roster.claim()
    orders.send("claimed")
    while (order := orders.recv()) != "end":
        roster.say(ready=order == "ready")
        orders.send("done")


class Worker:
    def __init__(self, roster: Roster) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.orders, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(roster, theirs))
        self.process.start()
        assert self.orders.recv() == "claimed"

    def tell(self, order: str) -> None:
        self.orders.send(order)
        if order != "end":
            assert self.orders.recv() == "done"

    def end(self) -> None:
        self.orders.send("end")
        self.process.join()


def test_ready_once_all_are_and_from_then_on() -> None:
    roster = Roster(2)
    first, second = Worker(roster), Worker(roster)
    try:
        assert roster.waiting_for == 2
        first.tell("ready")
        assert roster.waiting_for == 1
        first.tell("not ready")
        second.tell("ready")
        assert roster.waiting_for == 1
        first.tell("ready")
        assert roster.waiting_for == 0
        first.tell("not ready")
        assert roster.waiting_for == 0
    finally:
        first.end()
        second.end()


def test_a_replacement_takes_the_place_of_the_dead() -> None:
    roster = Roster(2)
    first, second = Worker(roster), Worker(roster)
    first.tell("ready")
    first.process.kill()
    first.process.join()
    second.tell("ready")
    assert roster.waiting_for == 1  # the dead one's byte does not count
    second.tell("not ready")
    third = Worker(roster)
    try:
        assert roster.waiting_for == 2
        second.tell("ready")
        third.tell("ready")
        assert roster.waiting_for == 0
    finally:
        second.end()
        third.end()


def test_one_too_many_is_ready_for_itself() -> None:
    roster = Roster(1)
    first, extra = Worker(roster), Worker(roster)
    try:
        extra.tell("ready")
        assert roster.waiting_for == 1
        first.tell("ready")
        assert roster.waiting_for == 0
    finally:
        first.end()
        extra.end()
