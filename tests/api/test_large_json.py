"""JSON of large answers in steps: the bytes of a single call, written in a thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.api import large_json
from hf_transformer.api.large_json import STEP_ITEMS, STEP_NUMBERS, is_large, write_in_steps, write_large
from hf_transformer.core.pipeline import INLINE_VALUES
from hf_transformer.types.request import Context

LARGE = np.arange(2 * STEP_NUMBERS + 3, dtype=np.float32) / 7
ANSWERS: dict[str, Any] = {
    "nothing": {},
    "empty": {"a": [], "b": {}, "c": (), "d": np.zeros(0, np.float32), "e": None},
    "numbers": {"predictions": [LARGE, LARGE[:3]], 'é"': True},
    "rows": np.arange(4 * STEP_NUMBERS, dtype=np.int64).reshape(2, 1, -1),
    "words": [["a", "b"] * STEP_ITEMS, ["c"]],
    "objects": {"data": [{"index": index, "score": 0.5} for index in range(3 * STEP_ITEMS + 1)]},
    "nested": [{"data": [{"x": [1, {"y": [2]}]}] * 3, "label": "z"}] * 3,
    "mixed": [1, [2], {"a": [3]}, None],
    "text": "a",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_the_bytes_are_those_of_a_single_call(answer: Any) -> None:
    assert write_in_steps(answer) == orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def test_no_step_writes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    whole = large_json.write_small

    def counted(value: Any) -> bytes:
        sizes.append(len(whole(value)))
        return whole(value)

    monkeypatch.setattr(large_json, "write_small", counted)
    for name in ("numbers", "rows", "words", "objects"):
        total = len(write_in_steps(ANSWERS[name]))
        assert max(sizes) < total * 3 // 4, name
        sizes.clear()


async def test_a_large_answer_is_written_in_a_thread() -> None:
    threads: list[str] = []

    class Watched(dict[str, int]):
        def items(self) -> Any:
            threads.append(threading.current_thread().name)
            return super().items()

    context = Context("r", {})
    for values in (INLINE_VALUES, INLINE_VALUES + 1):
        context.values = values
        assert is_large(context) == (values > INLINE_VALUES)
    with ThreadPoolExecutor(1, "writer") as executor:
        assert await write_large(Watched(a=1), executor) == b'{"a":1}'
    assert threads == ["writer_0"]
