"""Key-value caches: copies of new tokens, inputs of the next step, and the budget."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from hf_transformer.generation.cache import Cache, CacheBudget, CacheTensor, past_input

KEY = CacheTensor("past.key", "present.key", "FP32", (2, -1, 3))
VALUE = CacheTensor("past.value", "present.value", "FP16", (-1, 4))
SOURCE = CacheTensor("past.source", "present.source", "FP32", (2, -1, 3), source=True)


def ramp(*shape: int, start: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def test_new_tokens_are_copied_after_the_cached_ones() -> None:
    cache = Cache((KEY, VALUE, SOURCE), 8, 2)
    buffers = {"present.key": ramp(2, 3, 3), "present.value": ramp(3, 4), "present.source": ramp(2, 2, 3)}
    cache.append(buffers, 3)
    kept = {name: data.copy() for name, data in buffers.items()}
    for data in buffers.values():
        data[...] = -1
    cache.append({"present.key": ramp(2, 1, 3, start=100), "present.value": ramp(1, 4, start=100)}, 1)
    assert cache.length == 4
    [key] = past_input(KEY, [cache], 4)
    assert np.array_equal(key[:, :3], kept["present.key"]) and np.array_equal(key[:, 3:], ramp(2, 1, 3, start=100))
    [value] = past_input(VALUE, [cache], 4)
    assert value.dtype == np.float16 and np.array_equal(value[:3], kept["present.value"])
    assert np.array_equal(past_input(SOURCE, [cache], 2)[0], kept["present.source"])


def test_a_batch_is_padded_with_zeros() -> None:
    caches = [Cache((KEY, SOURCE), 8, length) for length in (1, 3)]
    for cache, length in zip(caches, (4, 2), strict=True):
        source = cache.data["present.source"].shape[1]
        cache.append({"present.key": ramp(2, length, 3), "present.source": ramp(2, source, 3)}, length)
    first, second = past_input(KEY, caches, 4)
    assert np.array_equal(first, ramp(2, 4, 3))
    assert not second[:, :2].any() and np.array_equal(second[:, 2:], ramp(2, 2, 3))
    first, second = past_input(SOURCE, caches, 3)
    assert np.array_equal(first[:, :1], ramp(2, 1, 3)) and not first[:, 1:].any()
    assert np.array_equal(second, ramp(2, 3, 3))


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_sequences_wait_for_memory_in_order_of_arrival() -> None:
    budget, begun = CacheBudget(100), list[str]()

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        begun.append(name)

    await budget.take(60)
    tasks = [asyncio.create_task(take(name, size)) for name, size in (("large", 90), ("small", 5), ("smaller", 4))]
    await turn()
    assert not begun and budget.held == 60, "a small one does not overtake a large one"
    budget.give_back(60)
    await turn()
    assert begun == ["large", "small", "smaller"] and budget.held == 99
    for task in tasks:
        await task


@pytest.mark.parametrize("first", ["its turn", "the cancellation"])
async def test_a_waiter_cancelled_as_it_is_served_takes_nothing(first: str) -> None:
    budget = CacheBudget(100)
    await budget.take(60)
    waiting, next_one = asyncio.create_task(budget.take(90)), asyncio.create_task(budget.take(20))
    await turn()
    if first == "its turn":
        budget.give_back(60)
        waiting.cancel()
    else:
        waiting.cancel()
        budget.give_back(60)
    await turn()
    assert waiting.cancelled() and next_one.done() and budget.held == 20


async def test_all_waiters_are_served_within_the_budget() -> None:
    budget, chance, done = CacheBudget(1000), random.Random(5), list[int]()

    async def sequence(number: int) -> None:
        size = chance.randint(1, 1000)
        await budget.take(size)
        try:
            for _ in range(chance.randint(0, 5)):
                assert budget.held <= 1000
                await asyncio.sleep(0)
            done.append(number)
        finally:
            budget.give_back(size)

    tasks = [asyncio.create_task(sequence(number)) for number in range(300)]
    while pending := [task for task in tasks if not task.done()]:
        if chance.random() < 0.1:
            chance.choice(pending).cancel()
        await asyncio.sleep(0)
    assert len(done) == sum(not task.cancelled() for task in tasks) and budget.held == 0
