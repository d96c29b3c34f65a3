"""What an examination looks at, and what it has learned so far."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from hf_transformer.config.options import Config
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.model_parts import Parts
from hf_transformer.pair import BoundPair, Pair
from hf_transformer.predictor.base import Address, AdminTransport, Predictor
from hf_transformer.tasks.base import Task
from hf_transformer.types import ModelSpec

Known = TypeVar("Known")


@dataclass(slots=True)
class Subject:
    """``config`` and ``notes`` are what ``parse_config`` gave. The rest is None until the check is done that finds it
    out, so a check that needs it names that one. ``admin`` asks what the predictor says of itself, and ``predictor``
    makes calls over the same connections, with a bound in time; ``bound`` is the pair of a predictive task, and
    ``generation`` what continues prompts in a generative one. What ``stack`` has is closed when the examination ends.
    """

    config: Config
    notes: Sequence[str]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    parts: Parts | None = None
    address: Address | None = None
    admin: AdminTransport | None = None
    predictor: Predictor | None = None
    spec: ModelSpec | None = None
    pair: Pair | None = None
    bound: BoundPair | None = None
    generation: GenerationPipeline | None = None

    @property
    def generates(self) -> bool:
        """Whether the task is a generative one."""
        return self.parts is not None and not isinstance(self.parts.task, Task)


def known(value: Known | None) -> Known:
    """What an earlier check has found out; the table's ``needs`` see to it that it did."""
    if value is None:
        raise RuntimeError("a check ran without the one that it needs")
    return value
