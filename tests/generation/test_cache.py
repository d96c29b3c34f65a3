"""Key-value caches: what is kept of a step, and what goes into the next one."""

from __future__ import annotations

import numpy as np

from hf_transformer.generation.cache import BLOCK, Cache, CacheTensor, cache_bytes, past

KEY = CacheTensor("past.key", "present.key", "FP32", (2, -1, 3))
VALUE = CacheTensor("past.value", "present.value", "FP16", (-1, 4))
SOURCE = CacheTensor("past.source", "present.source", "FP32", (2, -1, 3), source=True)


def ramp(*shape: int, start: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def test_bytes() -> None:
    assert (KEY.token_bytes, VALUE.token_bytes) == (2 * 3 * 4, 4 * 2)
    assert cache_bytes((KEY, VALUE, SOURCE), 10, 7) == 10 * (24 + 8) + 7 * 24
    assert KEY.sized(5) == (2, 5, 3) and VALUE.sized(0) == (0, 4)


def test_new_tokens_are_copied_behind_the_others() -> None:
    cache = Cache((KEY, VALUE, SOURCE), 8, 2)
    buffers = {"present.key": ramp(2, 3, 3), "present.value": ramp(3, 4), "present.source": ramp(2, 2, 3)}
    cache.add(buffers, 3)
    kept = {name: data.copy() for name, data in buffers.items()}
    for data in buffers.values():
        data[...] = -1
    cache.add({"present.key": ramp(2, 1, 3, start=100), "present.value": ramp(1, 4, start=100)}, 1)
    assert cache.length == 4
    [key] = past(KEY, [cache], 4)
    assert np.array_equal(key[:, :3], kept["present.key"]) and np.array_equal(key[:, 3:], ramp(2, 1, 3, start=100))
    [value] = past(VALUE, [cache], 4)
    assert value.dtype == np.float16 and np.array_equal(value[:3], kept["present.value"])
    assert np.array_equal(past(SOURCE, [cache], 2)[0], kept["present.source"])


def test_a_batch_is_padded_with_zeros() -> None:
    caches = [Cache((KEY, SOURCE), 8, length) for length in (1, 3)]
    for cache, length in zip(caches, (4, 2), strict=True):
        source = cache.data["present.source"].shape[1]
        cache.add({"present.key": ramp(2, length, 3), "present.source": ramp(2, source, 3)}, length)
    first, second = past(KEY, caches, 4)
    assert np.array_equal(first, ramp(2, 4, 3))
    assert not second[:, :2].any() and np.array_equal(second[:, 2:], ramp(2, 2, 3))
    first, second = past(SOURCE, caches, 3)
    assert np.array_equal(first[:, :1], ramp(2, 1, 3)) and not first[:, 1:].any()
    assert np.array_equal(second, ramp(2, 3, 3))


def test_texts_that_begin_have_a_cache_of_no_tokens() -> None:
    assert past(KEY, [Cache((KEY,), 8, 0), Cache((KEY,), 9, 0)], 0).shape == (2, 2, 0, 3)


def test_memory_grows_by_blocks_and_what_is_there_stays() -> None:
    cache, whole = Cache((KEY,), 3 * BLOCK, 0), ramp(2, 3 * BLOCK, 3)
    first = BLOCK // 2
    sizes = [cache.bytes_for(first)]
    cache.add({"present.key": whole[:, :first]}, first)
    for place in range(first, 3 * BLOCK):
        sizes.append(cache.bytes_for(place + 1))
        grows = place + 1 > cache.capacity
        cache.add({"present.key": whole[:, place : place + 1]}, 1)
        assert grows == (sizes[-1] > sizes[-2])
        assert cache.data["present.key"].nbytes == sizes[-1] == cache.bytes_for(1)
    assert np.array_equal(past(KEY, [cache], 3 * BLOCK)[0], whole)
    assert sorted(set(sizes)) == [one * KEY.token_bytes for one in (first + BLOCK, first + 2 * BLOCK + 1, 3 * BLOCK)]
