"""The HTTP APIs over a generative model of any tensors, and the real generators; its answers are scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hf_transformer.generation.build import make_generator
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GeneratorSettings
from hf_transformer.types import ModelSpec
from tests.api.generating import Bench
from tests.generation.scripted import LIMITS, SCHEDULING
from tests.generation.scripted_models import Response, ScriptedModel


@dataclass
class Declared(Bench):
    """A served model with the tensors of ``spec``, each of whose calls is answered with ``responses``."""

    spec: ModelSpec | None = None
    responses: Sequence[Response] = ()
    given: dict[str, Any] = field(default_factory=dict)

    def build(self, spec: ModelSpec) -> GenerationPipeline:
        assert self.spec is not None
        self.called = ScriptedModel(*self.responses)
        given = {"model_config": {}, "eos_ids": frozenset({2}), "pad_id": 0, "max_length": 256, **self.given}
        settings = GeneratorSettings(scheduling=SCHEDULING, **given)
        generator = make_generator(
            self.spec, self.called, self.tokenizer, settings, executor=self.executor, metrics=self.metrics
        )
        return GenerationPipeline(
            self.made_task,
            self.tokenizer,
            generator,
            settings,
            executor=self.executor,
            limits=LIMITS,
            metrics=self.metrics,
            timeout=30.0,
        )


@asynccontextmanager
async def declared(spec: ModelSpec, *responses: Response, **options: Any) -> AsyncIterator[Declared]:
    """Such a service; each of its requests has to give its place back."""
    made = Declared(spec=spec, responses=responses, **options)
    assert await made.model.look() == ""
    try:
        yield made
        assert made.in_flight == 0
    finally:
        made.executor.shutdown()
