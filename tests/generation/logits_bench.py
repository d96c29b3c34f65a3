"""Models that give logits in every form that fits, and texts written with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.types import FinishReason, GeneratorSettings, Prompt, Sampling, TokenScore
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Context
from tests.generation.tiny_model import EOS, LONGEST, VOCABULARY, Form, TinyPredictor

SCHEDULING = SchedulerSettings(
    max_batches_in_flight=2, max_batch_tokens=10_000, max_batch_output_bytes=10**8, timeout=60.0
)
SETTINGS = GeneratorSettings(
    model_config={"vocab_size": VOCABULARY},
    eos_ids=frozenset({EOS}),
    pad_id=0,
    max_length=LONGEST,
    decoder_start_ids=(1,),
    scheduling=SCHEDULING,
)
SIXTEEN = Form(max_batch_size=16)
FORMS = {
    "plain": SIXTEEN,
    "without a mask": replace(SIXTEEN, mask=False),
    "positions": replace(SIXTEEN, positions=True),
    "int32, fp16": replace(SIXTEEN, datatype="INT32", floats="FP16"),
    "last": replace(SIXTEEN, logits="last"),
    "last, positions": replace(SIXTEEN, logits="last", positions=True),
    "vector": replace(SIXTEEN, logits="flat", positions=True),
    "own batch axis": replace(SIXTEEN, max_batch_size=0),
    "exact rows": replace(SIXTEEN, max_batch_size=0, rows=3),
    "no batch axis": replace(SIXTEEN, max_batch_size=0, flat=True),
    "no batch axis, cache": replace(SIXTEEN, max_batch_size=0, flat=True, past=True),
    "fixed length": replace(SIXTEEN, length=LONGEST),
    "fixed length, last": replace(SIXTEEN, length=LONGEST, logits="last", positions=True),
    "cache": replace(SIXTEEN, past=True, positions=True),
    "cache, equal lengths": replace(SIXTEEN, past=True),
    "cache, merged": replace(SIXTEEN, past=True, positions=True, branch=True),
    "cache, merged, own batch axis": replace(SIXTEEN, past=True, positions=True, branch=True, max_batch_size=0),
    "cache, exact rows": replace(SIXTEEN, past=True, positions=True, max_batch_size=0, rows=5),
    "cache, last": replace(SIXTEEN, past=True, positions=True, logits="last"),
    "encoder-decoder": replace(SIXTEEN, encoder_decoder=True),
    "encoder-decoder, last": replace(SIXTEEN, encoder_decoder=True, logits="last"),
    "encoder-decoder, cache": replace(SIXTEEN, encoder_decoder=True, past=True),
}
GREEDY = Sampling(greedy=True, max_tokens=12)
random = np.random.default_rng(3)
PROMPTS = [tuple(int(one) for one in random.integers(3, VOCABULARY, random.integers(1, 20))) for _ in range(24)]


@asynccontextmanager
async def generator(
    form: Form,
    scheduling: SchedulerSettings = SCHEDULING,
    predictor: type[TinyPredictor] = TinyPredictor,
    **settings: Any,
) -> AsyncIterator[tuple[LogitsGenerator, TinyPredictor]]:
    made = predictor(form)
    with ThreadPoolExecutor(2) as executor:
        yield (
            LogitsGenerator(
                form.spec,
                made,
                vocabulary(),
                replace(SETTINGS, scheduling=scheduling, **{"places": ConcurrencyLimit(0), **settings}),
                executor=executor,
                metrics=Metrics("m"),
            ),
            made,
        )


def vocabulary(size: int = VOCABULARY) -> Any:
    return SimpleNamespace(vocab_size=size)


async def write(
    made: LogitsGenerator, ids: Sequence[int], sampling: Sampling = GREEDY, headers: dict[str, str] | None = None
) -> tuple[list[int], FinishReason | None, list[TokenScore]]:
    found: list[int] = []
    scores: list[TokenScore] = []
    finish = None
    async for step in made.generate(Prompt("", tuple(ids)), sampling, Context("id", headers or {})):
        found += step.ids
        scores += step.scores
        finish = step.finish
    return found, finish, scores
