"""fill_mask's best tokens as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.tasks import fill_mask
from hf_transformer.tasks.base import TaskSettings, Vocabulary
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types import Encoding

MASK, SIZE = 3, 10_000


class Words:
    """A vocabulary that counts how often it is asked for a text."""

    vocab_size, mask_id, mask_token, pad_token_id = SIZE, MASK, "[MASK]", 0

    def __init__(self) -> None:
        self.asked = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        self.asked += 1
        return "+".join(f"word{number}" * (50 if number == 77 else 1) for number in ids)


def predicted(task: FillMask, *best: int) -> object:
    """The answer for a text with masks that these tokens belong to."""
    encoding = Encoding([1, *[MASK] * len(best), 2], [0] * (len(best) + 2))
    logits = np.zeros((len(encoding), SIZE + 5), np.float32)
    logits[:, SIZE:] = 9  # columns of no tokens
    for position, token in enumerate(best, start=1):
        logits[position, token] = 1
    return task.decode("", encoding, {"logits": logits}, task.options({}))


def made() -> tuple[FillMask, Words]:
    words = Words()
    return FillMask(TaskSettings({"vocab_size": SIZE}, cast(Vocabulary, words))), words


def test_one_mask_s_token_is_put_into_words_once() -> None:
    task, words = made()
    assert [predicted(task, token) for token in (7, 8, 7, 7)] == ["word7", "word8", "word7", "word7"]
    assert words.asked == 2


def test_several_masks_are_put_into_words_together() -> None:
    task, words = made()
    assert [predicted(task, 7, 8), predicted(task, 8, 7)] == ["word7+word8", "word8+word7"]
    assert words.asked == 2


def test_so_many_words_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_mask, "MOST_WORDS", 5)
    task, words = made()
    for token in range(100, 150):
        assert predicted(task, token) == predicted(task, token) == f"word{token}"
        assert len(task._words) <= 5
    assert words.asked == 50
    assert predicted(task, 77) == "word77" * 50
    assert 77 not in task._words, "it is too long"


def test_a_mask_without_a_best_token() -> None:
    task, _ = made()
    with pytest.raises(PredictorError, match="not finite"):
        task.decode(
            "",
            Encoding([1, MASK], [0, 0]),
            {"logits": np.full((2, SIZE), np.nan, np.float32)},
            task.options({}),
        )
