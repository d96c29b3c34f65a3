"""Asks a model directly, without scheduler and task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from hf_transformer.core.batch import EncodingForm
from hf_transformer.errors import PredictorDenied, PredictorError
from hf_transformer.model_wiring import filling
from hf_transformer.pair import BoundPair
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import Array, Encoding

Outputs = Mapping[str, Array]
"""One text's outputs by role, without batch axis and padding."""


async def ask(predictor: Predictor, pair: BoundPair, encodings: Sequence[Encoding]) -> list[Outputs]:
    """One batch of texts; each one's outputs, copied. Raises RequestError, also for another shape than promised."""
    form = EncodingForm(pair.signature, filling(pair.config, pair.tokenizer, pair.signature))
    packed = form.pack(encodings)
    reply = await predictor.infer(packed.inputs, packed.outputs, {})
    try:
        found = form.unpack(encodings, packed, reply.tensors)
        return [{role: data.copy() for role, data in rows.items()} for rows in found]
    finally:
        reply.release()


def width_of(pair: BoundPair, encoding: Encoding) -> int:
    """Tokens of a text as it is sent alone, --pad_to_multiple_of included."""
    widths = filling(pair.config, pair.tokenizer, pair.signature).widths
    return len(encoding) if widths is None else widths.of(len(encoding))


async def highest(least: int, most: int, works: Callable[[int], Awaitable[bool]]) -> int:
    """The highest number from ``least`` on that works, where ``most`` does not; ``least`` - 1 if none does."""
    low, high = least - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if await works(middle):
            low = middle
        else:
            high = middle
    return low


async def answers(predictor: Predictor, pair: BoundPair, encoding: Encoding) -> bool:
    """Whether the model answers one text; another failure than one of its own is raised."""
    return await succeeds(ask(predictor, pair, [encoding]))


async def succeeds(question: Awaitable[object]) -> bool:
    """Whether the model answers; another failure than one of its own is raised."""
    try:
        await question
    except PredictorDenied:
        raise
    except PredictorError:
        return False
    return True


def difference(one: Outputs, other: Outputs) -> float:
    """The largest difference between two texts' outputs, as a part of the largest value; 0.0 where they are equal."""
    worst = 0.0
    for role, values in one.items():
        size = float(np.abs(values.astype(np.float64)).max(initial=0.0))
        change = float(np.abs(values.astype(np.float64) - other[role].astype(np.float64)).max(initial=0.0))
        worst = max(worst, change / max(size, 1e-6))
    return worst
