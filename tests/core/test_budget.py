"""The budget of a request: sums, refusals with their flags, and the share of Admission."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_transformer.core.budget import DETAILED_TOKEN_BYTES, SPAN_BYTES, TOKEN_BYTES, WINDOW_BYTES, Budget
from hf_transformer.errors import TooLarge, TooManyRequests
from tests.support.budgets import admitted, budget, sharing


def test_texts_may_be_as_many_and_as_long_as_the_limits() -> None:
    most = {"max_instances": 2, "max_text_length": 4, "max_total_length": 7}
    assert budget(**most).add_texts(["abcd", "abc"], ("prompt",), 9) == 7
    for texts, says in (
        (["a"] * 3, "prompt: expected at most 2 in a request"),
        (["a", "abcde"], r"prompt\[1\]: expected at most 4 characters"),
        (["abcd"] * 2, "prompt: expected at most 7 characters in all texts"),
    ):
        with pytest.raises(TooLarge, match=says):
            budget(**most).add_texts(texts, ("prompt",), 9)
    with pytest.raises(TooLarge, match=r"prompt: expected at most 7 characters in all texts .*, got 8"):
        budget(**most).add_texts(["abcd"], ("prompt",), 9, times=2)


ADDED: dict[str, tuple[Callable[[Budget], object], str]] = {
    "instances": (lambda one: one.add_instances(5, "field"), "--max_instances"),
    "sequences": (lambda one: one.add_sequences(5, "field"), "--max_sequences"),
    "characters": (lambda one: one.add_characters(5, "field"), "--max_total_length"),
    "values": (lambda one: one.add_values(5, 0, "field"), "--max_answer_values"),
}


@pytest.mark.parametrize(("add", "flag"), ADDED.values(), ids=ADDED)
def test_the_counts_of_a_request_add_up(add: Callable[[Budget], object], flag: str) -> None:
    one = budget(max_instances=9, max_sequences=9, max_total_length=9, max_answer_values=9)
    add(one)
    with pytest.raises(TooLarge, match=f"^field: expected at most 9 .*{flag}.*got (about )?10"):
        add(one)


def test_windows_are_sequences_of_their_texts() -> None:
    request = budget(max_sequences=9, max_window_tokens=100)
    request.add_sequences(2, "texts")
    request.windows(5, 50, detail=False)
    with pytest.raises(TooLarge, match=r"at most 9 windows in a request \(--max_sequences\), got 10;"):
        request.windows(5, 50, detail=False)
    request = budget(max_sequences=9, max_window_tokens=100)
    request.add_sequences(2, "texts")
    request.windows(2, 100, detail=False)
    with pytest.raises(TooLarge, match=r"at most 100 tokens in all windows .* \(--max_window_tokens\), got 101;"):
        request.windows(2, 1, detail=False)


@pytest.mark.parametrize(("detail", "each"), [(False, TOKEN_BYTES), (True, DETAILED_TOKEN_BYTES)])
def test_windows_are_in_admission_before_they_are_cut(detail: bool, each: int) -> None:
    first, ticket = admitted(10**6, 1000)
    admission, sharers = ticket.admission, [sharing(ticket) for _ in range(2)]  # all have entered
    first.for_threads().windows(2, 900, detail=detail)
    assert (admission.reserved_tokens, admission.reserved_bytes) == (900, 2 * WINDOW_BYTES + 900 * each)
    first.add_tokens(950)
    assert admission.tokens + admission.reserved_tokens == 950 + 2, "the tokens of windows count once"
    (second, second_ticket), (third, third_ticket) = sharers
    second.for_threads().windows(2, 900, detail=detail)  # the last request may exceed the limit
    assert not admission.has_room
    with pytest.raises(TooManyRequests, match="--max_queued_tokens allows 1000"):
        third.for_threads().windows(2, 2, detail=detail)
    for one in (ticket, second_ticket, third_ticket, third_ticket):
        one.leave()
    assert (admission.reserved_tokens, admission.reserved_bytes, admission.tokens, admission.bytes) == (0, 0, 0, 0)
    with pytest.raises(TooManyRequests, match="the request has ended"):
        first.windows(2, 2, detail=detail)  # a thread that goes on after its client has gone
    assert admission.reserved_tokens == 0


def test_threads_and_the_event_loop_lose_no_count() -> None:
    request, ticket = admitted(10**9, 10**9, max_sequences=10**9, max_window_tokens=10**9)
    request.for_threads()
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: request.windows(2, 3, detail=False), range(4000)):
            request.hold(1, "answer")
    admission = ticket.admission
    assert (admission.reserved_tokens, admission.bytes) == (12_000, 4000)
    ticket.leave()
    assert (admission.reserved_tokens, admission.reserved_bytes, admission.bytes) == (0, 0, 0)


def test_bytes_that_would_not_fit_alone_are_too_large_and_others_come_again() -> None:
    first, ticket = admitted(1000)
    ticket.hold(100)
    first.hold(400, "answer")
    with pytest.raises(TooLarge, match=r"^answer: .* at most 1000 bytes .* \(--max_bytes_in_flight\), got about 1001"):
        first.hold(501, "answer")
    second, other_ticket = sharing(ticket)
    with pytest.raises(TooManyRequests, match="--max_bytes_in_flight=1000; try again"):
        second.hold(501, "answer")
    with pytest.raises(TooManyRequests, match="--max_bytes_in_flight=1000; try again"):
        second.for_threads().spans(501 // SPAN_BYTES + 1)
    ticket.leave()
    second.hold(501, "answer")
    other_ticket.leave()
    assert (ticket.admission.bytes, ticket.admission.reserved_bytes) == (0, 0)


def test_an_instance_is_refused_before_it_is_expanded() -> None:
    one = budget(max_sequences=9, max_total_length=9, max_answer_values=9)
    one.check("all", "one", 9, 9, 9)
    for counts, says in (
        ((10, 9, 9), "^all: .*--max_sequences"),
        ((9, 10, 9), "^one: .*--max_total_length"),
        ((9, 9, 10), "^one: .*--max_answer_values"),
    ):
        with pytest.raises(TooLarge, match=says):
            budget(max_sequences=9, max_total_length=9, max_answer_values=9).check("all", "one", *counts)
