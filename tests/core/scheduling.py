"""A scheduler over a scripted predictor; requests are identified by their first token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hf_transformer.core.batch import EncodingBatchBuilder, PaddingPolicy
from hf_transformer.core.contract import InputSignature, OutputSignature, Signature
from hf_transformer.core.remote import RemoteScheduler
from hf_transformer.core.scheduler import ConcurrencyLimit, Decode, Entry, Scheduler, SchedulerSettings
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding
from tests.support.scripted_predictor import ScriptedPredictor

IDS, MASK = (InputSignature(name, name, "INT64") for name in ("input_ids", "attention_mask"))
LOGITS = OutputSignature("logits", "logits", "FP32", (TOKENS, Axis(name="labels", minimum=1)), (-1, 1))
SIGNATURE = Signature((IDS,), (LOGITS,), 4, None, True, None, False)
MASKED = Signature((IDS, MASK), (LOGITS,), 8, None, True, None, True)
SETTINGS = SchedulerSettings(
    max_batches_in_flight=1, max_batch_tokens=10**6, max_batch_output_bytes=10**9, timeout=600.0
)


def text(length: int, first: int = 1) -> Encoding:
    return Encoding([first] * length, [0] * length)


def first_logit(number: int, item: Encoding, rows: Mapping[str, Array], options: Any) -> Any:
    return int(rows["logits"][0, 0])


async def run(
    scheduler: Scheduler[Encoding] | RemoteScheduler,
    items: Sequence[Encoding],
    decode: Decode = first_logit,
    context: Context | None = None,
    *,
    cost: int = 1,
) -> list[Any]:
    """Returns the answers of one request. The owner of an entry is its number."""
    entries = [Entry(item, number, cost) for number, item in enumerate(items)]
    request = scheduler.submit(entries, decode, None, context or Context("id", {}))
    try:
        await request.future
    finally:
        scheduler.leave(request)
    return [entry.answer for entry in entries]


class SchedulerHarness:
    """A scheduler, with ``builder`` or one of the signature's."""

    def __init__(
        self,
        executor: ThreadPoolExecutor,
        settings: SchedulerSettings = SETTINGS,
        signature: Signature = SIGNATURE,
        *,
        builder: EncodingBatchBuilder | None = None,
        predictor: ScriptedPredictor | None = None,
        limit: ConcurrencyLimit | None = None,
    ) -> None:
        self.predictor = predictor or ScriptedPredictor()
        self.metrics = Metrics()
        self.builder = builder or EncodingBatchBuilder(signature, PaddingPolicy(0, left=False))
        self.scheduler = Scheduler(
            self.predictor, self.builder, settings, executor=executor, metrics=self.metrics.of("bert"), limit=limit
        )

    async def send(self, *first: int, length: int = 3, **options: Any) -> asyncio.Task[list[Any]]:
        """Sends a request with an instance per number."""
        return await self.send_texts(*[text(length, number) for number in first], **options)

    async def send_texts(self, *texts: Encoding, **options: Any) -> asyncio.Task[list[Any]]:
        decode = options.pop("decode", first_logit)
        context = Context("id", options.pop("headers", {}), deadline=options.pop("deadline", None))
        task = asyncio.create_task(run(self.scheduler, texts, decode, context, **options))
        await self.predictor.turn()
        return task

    async def answer(self, *numbers: int) -> None:
        self.predictor.answer(*numbers)
        await self.predictor.turn()

    async def answer_all(self, *tasks: asyncio.Task[list[Any]]) -> list[list[Any]]:
        """Answers batches until all these requests are answered."""
        while not all(task.done() for task in tasks):
            await self.answer()
        return [await task for task in tasks]

    async def fail(self, number: int, error: Exception) -> None:
        self.predictor.fail(number, error)
        await self.predictor.turn()

    @property
    def sent(self) -> list[list[int]]:
        return [call.first_ids for call in self.predictor.calls]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [call.ids.shape for call in self.predictor.calls]


@asynccontextmanager
async def scheduling(
    signature: Signature = SIGNATURE, builder: EncodingBatchBuilder | None = None, **settings: Any
) -> AsyncIterator[SchedulerHarness]:
    with ThreadPoolExecutor(1) as executor:
        yield SchedulerHarness(executor, replace(SETTINGS, **settings), signature, builder=builder)
