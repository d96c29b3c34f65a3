"""How much key-value caches may take: who may grow, who waits, and that they never all wait for each other."""

from __future__ import annotations

import random
from functools import partial
from itertools import permutations

import pytest

from hf_transformer.errors import TooLarge, TooManyRequests
from hf_transformer.generation.cache_budget import CacheBudget, Share, least


def nobody() -> None:
    raise AssertionError("nobody waits")


def test_a_share_is_counted_with_what_it_has_by_now() -> None:
    budget = CacheBudget(100)
    shares = [budget.open(10, 80) for _ in range(3)]
    assert budget.held == 30
    assert shares[0].grow(60, nobody) and budget.held == 80
    assert shares[0].grow(40, nobody) and budget.held == 80, "it has more already"
    for share in shares:
        share.close()
    assert budget.held == 0


def test_who_may_not_grow_now_is_woken_when_it_has() -> None:
    budget, woken = CacheBudget(100), list[int]()
    one, two = budget.open(40, 80), budget.open(10, 80)
    assert not two.grow(30, lambda: woken.append(two.size)), "40 are left to the first, and it may want 40"
    assert not two.grow(30, lambda: woken.append(two.size)), "asking again changes nothing"
    assert one.grow(80, nobody), "the one that may end first is never refused"
    assert budget.held == 90 and not woken
    one.close()
    assert (woken, budget.held) == ([30], 30)
    assert two.grow(80, nobody)


def test_who_closes_does_not_wait_any_more() -> None:
    budget = CacheBudget(100)
    one, two = budget.open(40, 80), budget.open(10, 80)
    assert not two.grow(30, nobody)
    two.close()
    one.close()
    assert budget.held == 0 and budget.open(100, 100).size == 100


def test_those_who_wait_get_theirs_in_turn() -> None:
    budget, woken = CacheBudget(100), list[int]()
    first, *others = [budget.open(10, 60) for _ in range(4)]
    assert first.grow(60, nobody)
    for number, share in enumerate(others):
        assert not share.grow(30, partial(woken.append, number))
    first.close()
    assert woken == [0, 1] and budget.held == 70
    others[0].close()
    assert woken == [0, 1, 2] and budget.held == 60


def test_nobody_begins_while_others_wait() -> None:
    budget = CacheBudget(100)
    one, two = budget.open(40, 80), budget.open(10, 80)
    budget.open(1, 2).close()
    assert not two.grow(30, lambda: None)
    with pytest.raises(TooManyRequests, match=r"have 50 bytes, --max_cache_bytes allows 100: .* one of 1 .* come to 2"):
        budget.open(1, 2)
    assert budget.held == 50
    one.close()
    budget.open(1, 2)


def test_what_never_fits_is_too_large() -> None:
    budget = CacheBudget(100)
    with pytest.raises(TooLarge, match="need 101 bytes, --max_cache_bytes allows 100"):
        budget.open(1, 101)
    budget.open(90, 100)
    budget.check([(10, 60)] * 5)
    with pytest.raises(TooLarge, match="need 110 bytes, --max_cache_bytes allows 100"):
        budget.check([(10, 60)] * 6)
    budget.check([])
    with pytest.raises(TooManyRequests):
        budget.open(90, 100)


def test_the_least_that_texts_need() -> None:
    source = random.Random(5)
    for _ in range(300):
        caches = [(size, size + source.randrange(9)) for size in (source.randrange(9) for _ in range(4))]

        def peak(order: tuple[tuple[int, int], ...]) -> int:
            return max(sum(size for size, _ in order[place:]) + most - size for place, (size, most) in enumerate(order))

        assert least(caches) == min(peak(order) for order in permutations(caches))


@pytest.mark.parametrize("seed", range(40))
def test_all_come_to_their_ends(seed: int) -> None:
    """Texts of all sizes that grow, wait, end and begin in any order: some of them can always go on."""
    source = random.Random(seed)
    budget, going, waiting = CacheBudget(1000), set[Share](), set[Share]()
    begun = ended = 0
    while ended < 200:
        if begun < 200:
            most = source.randrange(1, 1001)
            try:
                going.add(budget.open(source.randrange(1, most + 1), most))
                begun += 1
            except TooManyRequests:
                assert going
        share = source.choice(sorted(going, key=lambda one: (one.most, one.size)))
        going.remove(share)
        if share.size == share.most or source.random() < 0.1:
            share.close()
            ended += 1
        elif share.grow(min(share.most, share.size + 50), partial(_on, share, waiting, going)):
            going.add(share)
        else:
            waiting.add(share)
        assert budget.held <= 1000
        assert going or not waiting, "all wait for each other"
    assert budget.held == 0


def _on(share: Share, waiting: set[Share], going: set[Share]) -> None:
    waiting.remove(share)
    going.add(share)
