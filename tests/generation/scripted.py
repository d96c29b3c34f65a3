"""A scripted generator, and pipelines around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from hf_transformer.core.budget import Budget
from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.core.pipeline import PipelineOptions
from hf_transformer.errors import RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import FinishReason, GenerationRequest, Generator, Piece, Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context
from tests.generation.scripted_models import settings
from tests.support.budgets import limits

PROMPT = "The capital of france is"
LIMITS = limits(max_instances=8, max_text_length=10_000, max_total_length=20_000, max_sequences=12)
Script = Callable[[Prompt, Sampling], Iterable[Step | RequestError]]


def steps(ids: Sequence[int], finish: FinishReason = "stop") -> list[Step]:
    """One step per id, and the last step."""
    return [*(Step(ids=(number,)) for number in ids), Step(finish=finish)]


class ScriptedGenerator(Generator):
    """Yields the steps of a script, and raises its errors. Awaits ``wait`` before each.

    Attributes:
        asked: prompt and sampling of each call.
        given: number of steps yielded so far.
        running: number of open sequences.
    """

    interface = "tokens"

    def __init__(
        self, script: Script, *, supported_fields: Iterable[str] = (), wait: Callable[[], Any] | None = None
    ) -> None:
        self._script = script
        self.supported_fields = frozenset(supported_fields)
        self._wait = wait
        self.asked: list[tuple[Prompt, Sampling]] = []
        self.given = 0
        self.running = 0

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        self.asked.append((prompt, sampling))
        self.running += 1
        try:
            for step in self._script(prompt, sampling):
                await (self._wait() if self._wait else asyncio.sleep(0))
                if isinstance(step, RequestError):
                    raise step
                self.given += 1
                yield step
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.running -= 1


def pipeline_of(
    tokenizer: Tokenizer,
    generator: Generator,
    executor: ThreadPoolExecutor,
    *,
    task: TextGeneration | None = None,
    max_length: int = 64,
    decoder_start_ids: tuple[int, ...] = (),
    **options: Any,
) -> GenerationPipeline:
    """A pipeline with small limits; ``options`` override its arguments."""
    generator_settings = settings(eos_ids=frozenset(), max_length=max_length, decoder_start_ids=decoder_start_ids)
    timeout, verifier = options.pop("timeout", 30.0), options.pop("verifier", None)
    shared = PipelineOptions(executor, **{"limits": LIMITS, "metrics": Metrics().of("m"), **options})
    task = task or TextGeneration(TaskSettings(model_config={}, vocabulary=tokenizer))
    return GenerationPipeline(
        task, tokenizer, generator, generator_settings, shared, timeout=timeout, verifier=verifier
    )


def context(*, ticket: AdmissionTicket | None = None, **options: Any) -> Context:
    context = Context(request_id="r", headers={}, **options)
    context.ticket = ticket
    context.budget = None if ticket is None else Budget(LIMITS, ticket)
    return context


def asking(*prompts: Any, **options: Any) -> GenerationRequest:
    names = ("echo", "max_length", "special_tokens", "name", "single")
    fields = {name: options.pop(name) for name in names if name in options}
    return GenerationRequest(prompts=prompts or (PROMPT,), sampling=Sampling(**options), **fields)


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode([text])[0].ids)


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def chunks(text: str, cuts: Iterable[int]) -> list[str]:
    """Splits a text at any numbers, taken modulo its length."""
    ends = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(ends)]


def endless(**options: Any) -> ScriptedGenerator:
    return ScriptedGenerator(lambda *_: (Step(ids=(5,)) for _ in iter(int, 1)), **options)


class PipelineHarness:
    """Pipelines of scripted generators; ``called`` records their callbacks."""

    def __init__(self, tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.called: list[object] = []

    def saying(self, text: str, **options: Any) -> ScriptedGenerator:
        return ScriptedGenerator(lambda *_: steps(self.ids(text)), **options)

    def ids(self, text: str) -> tuple[int, ...]:
        return ids_of(self.tokenizer, text)

    def pipeline(self, generator: ScriptedGenerator, **options: Any) -> GenerationPipeline:
        return pipeline_of(self.tokenizer, generator, self.executor, **options)

    async def read(
        self, generator: ScriptedGenerator, request: GenerationRequest, deadline: float | None = None, **options: Any
    ) -> list[Piece]:
        """Reads all pieces of a request."""
        async with await self.pipeline(generator, **options).start(request, context(deadline=deadline)) as generation:
            return [piece async for piece in generation]

    @asynccontextmanager
    async def streaming(
        self, generator: ScriptedGenerator, choices: int = 1, deadline: float | None = None, **options: Any
    ) -> AsyncGenerator[Generation, None]:
        running = await self.pipeline(generator, **options).start(asking(n=choices), context(deadline=deadline))
        running.set_callbacks(
            lambda context: self.called.append(context.request_id), lambda error: self.called.append(type(error))
        )
        async with running:
            yield running
