"""A generator that gives what a test has written down, and counts its running sequences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hf_transformer.core.limits import Limits, Place
from hf_transformer.core.scheduler import SchedulerSettings
from hf_transformer.errors import RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import (
    FinishReason,
    GenerationRequest,
    Generator,
    GeneratorSettings,
    Piece,
    Prompt,
    Sampling,
    Step,
)
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context

PROMPT = "The capital of france is"
SCHEDULING = SchedulerSettings(
    max_batches_in_flight=4, max_batch_tokens=1000, max_batch_output_bytes=10**8, timeout=60.0
)
LIMITS = Limits(
    max_instances=8, max_text_length=10_000, max_total_length=20_000, max_sequences=12, max_answer_values=10**6
)
Script = Callable[[Prompt, Sampling], Iterable[Step | RequestError]]


def steps(ids: Sequence[int], finish: FinishReason = "stop") -> list[Step]:
    """A step for each id, and one for the end."""
    return [*(Step(ids=(number,)) for number in ids), Step(finish=finish)]


class ScriptedGenerator(Generator):
    """Gives the steps of a script; ``Step`` by step, or an error in its place. ``wait`` is awaited before each."""

    interface = "tokens"

    def __init__(self, script: Script, *, honours: Iterable[str] = (), wait: Callable[[], Any] | None = None) -> None:
        self._script = script
        self.honours = frozenset(honours)
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
    """A pipeline with small limits; ``options`` are its own."""
    settings = GeneratorSettings(
        model_config={},
        eos_ids=frozenset(),
        pad_id=0,
        max_length=max_length,
        decoder_start_ids=decoder_start_ids,
        scheduling=SCHEDULING,
    )
    chosen = {"limits": LIMITS, "metrics": Metrics("m"), "timeout": 30.0, **options}
    task = task or TextGeneration(TaskSettings(model_config={}, vocabulary=tokenizer))
    return GenerationPipeline(task, tokenizer, generator, settings, executor=executor, **chosen)


def context(*, place: Place | None = None, **options: Any) -> Context:
    made = Context(request_id="r", headers={}, **options)
    made.place = place
    return made


def asking(*prompts: Any, **options: Any) -> GenerationRequest:
    fields = {
        name: options.pop(name)
        for name in ("echo", "max_length", "special_tokens", "name", "single")
        if name in options
    }
    return GenerationRequest(prompts=prompts or (PROMPT,), sampling=Sampling(**options), **fields)


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode([text])[0].ids)


def saying(tokenizer: Tokenizer, text: str, **options: Any) -> ScriptedGenerator:
    return ScriptedGenerator(lambda *_: steps(ids_of(tokenizer, text)), **options)


def endless(**options: Any) -> ScriptedGenerator:
    return ScriptedGenerator(lambda *_: (Step(ids=(5,)) for _ in iter(int, 1)), **options)


async def pieces_of(pipeline: GenerationPipeline, request: GenerationRequest, **options: Any) -> list[Piece]:
    async with await pipeline.start(request, context(**options)) as generation:
        return [piece async for piece in generation]
