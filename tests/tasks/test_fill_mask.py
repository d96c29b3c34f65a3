"""fill_mask's best tokens as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.tasks.base import TaskSettings, TaskTokenizer
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types import Encoding

MASK, SIZE = 3, 10_000


class Words:
    """A vocabulary that writes a token as its number."""

    vocab_size, mask_id, mask_token, pad_token_id = SIZE, MASK, "[MASK]", 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "+".join(f"word{number}" for number in ids)


def predicted(task: FillMask, *best: int) -> object:
    """The answer for a text with masks that these tokens belong to."""
    encoding = Encoding([1, *[MASK] * len(best), 2], [0] * (len(best) + 2))
    logits = np.zeros((len(encoding), SIZE + 5), np.float32)
    logits[:, SIZE:] = 9  # columns of no tokens
    for position, token in enumerate(best, start=1):
        logits[position, token] = 1
    return task.decode("", encoding, {"logits": logits}, task.options({}))


def made() -> FillMask:
    return FillMask(TaskSettings({"vocab_size": SIZE}, cast(TaskTokenizer, Words())))


@pytest.mark.parametrize("best", [(7,), (8,), (7, 8), (8, 7)], ids=str)
def test_the_best_tokens_of_all_masks_are_decoded_together(best: tuple[int, ...]) -> None:
    assert predicted(made(), *best) == "+".join(f"word{token}" for token in best)


def test_a_mask_without_a_best_token() -> None:
    task, nothing = made(), {"logits": np.full((2, SIZE), np.nan, np.float32)}
    with pytest.raises(PredictorError, match="not finite"):
        task.decode("", Encoding([1, MASK], [0, 0]), nothing, task.options({}))
