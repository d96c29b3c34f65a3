"""A circuit over a scripted predictor, whose probe asks when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from hf_transformer.errors import PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.circuit import CircuitPredictor
from hf_transformer.types import Tensor
from tests.predictor.scripted import Scripted
from tests.predictor.shared_calls import until


def down(count: int, kind: str = "connection") -> list[BaseException | None]:
    return [PredictorUnavailable(f"call {number}", kind) for number in range(count)]


class Guarded:
    """A circuit over a script. Its probe sleeps until ``probe`` wakes it."""

    def __init__(self, *errors: BaseException | None, failures: int = 3, jitter: float = 1.0) -> None:
        self.inner = Scripted(*errors)
        self.pauses: list[float] = []
        self.awake = asyncio.Semaphore(0)
        self.metrics = Metrics("m")
        self.predictor = CircuitPredictor(self.inner, failures, self.metrics, sleep=self.sleep, jitter=lambda: jitter)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.awake.acquire()

    async def probe(self, said: bool | BaseException | None) -> None:
        """Lets the probe ask once, and waits for its next pause or its end."""
        await until(lambda: bool(self.pauses))
        self.inner.ready = [said]
        pauses = len(self.pauses)
        self.awake.release()
        await until(lambda: len(self.pauses) > pauses or not self.predictor.is_open)

    async def infer(self) -> Mapping[str, Tensor]:
        async with self.predictor.infer([], ["logits"], {}, sizes={"logits": 4}) as outputs:
            return outputs

    async def fail(self, times: int) -> list[str]:
        """What calls say that all must fail."""
        said = []
        for _ in range(times):
            with pytest.raises(RequestError) as caught:
                await self.infer()
            said.append(str(caught.value))
        return said

    def sample(self, name: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f"hf_transformer_predictor_{name} "):
                return float(line.split()[1])
        raise AssertionError(name)

    def errors(self, kind: str) -> float:
        return self.sample(f'errors_total{{kind="{kind}"}}')
