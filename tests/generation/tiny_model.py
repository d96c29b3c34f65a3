"""A tiny language model, and a predictor that runs it on command.

Like a transformer it reads every token with its position, and all earlier tokens through the mask. So a text changes if
the model attends to padding, a position is shifted, or a cache belongs to another sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, TokenScore
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import ModelCall, Outputs
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, ModelSpec, Tensor, TensorSpec
from tests.generation.scripted_models import settings
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor

VOCABULARY, WIDTH, LONGEST = 50, 8, 64
EOS = 2
COUNTED = 0.25
"""Weight of every attended token, so that even a token of zeros counts."""


@dataclass(frozen=True, kw_only=True)
class ModelVariant:
    """Inputs and outputs of an exported model (generation/logits_signature.py). ``flat`` means no batch axis."""

    mask: bool = True
    positions: bool = False
    logits: str = "all"
    past: bool = False
    branch: bool = False
    encoder_decoder: bool = False
    max_batch_size: int = 16
    rows: int = -1
    length: int = -1
    flat: bool = False
    datatype: str = "INT64"
    floats: str = "FP32"

    @property
    def spec(self) -> ModelSpec:
        """Description by the predictor."""
        batch = () if self.max_batch_size or self.flat else (self.rows,)
        names = ["input_ids", *(["attention_mask"] if self.mask else []), *(["position_ids"] if self.positions else [])]
        names += ["decoder_input_ids"] if self.encoder_decoder else []
        inputs = [TensorSpec(name, self.datatype, (*batch, self.length)) for name in names]
        last = {"all": (self.length, VOCABULARY), "last": (1, VOCABULARY), "flat": (VOCABULARY,)}[self.logits]
        outputs = [TensorSpec("logits", self.floats, (*batch, *last))]
        for middle in ("decoder.", "encoder.") if self.encoder_decoder and self.past else ("",) if self.past else ():
            for part in ("key", "value"):
                shape = (*batch, 2, -1, WIDTH)
                inputs.append(TensorSpec(f"past_key_values.0.{middle}{part}", self.floats, shape))
                outputs.append(TensorSpec(f"present.0.{middle}{part}", self.floats, shape))
        if self.branch:
            inputs.append(TensorSpec("use_cache_branch", "BOOL", (1,)))
        return ModelSpec("tiny", "1", tuple(inputs), tuple(outputs), self.max_batch_size)


class TinyModel:
    """Weights and computation of the model."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.tokens = random.standard_normal((VOCABULARY, WIDTH)).round(2)
        self.positions = random.standard_normal((LONGEST, WIDTH)).round(2)
        self.heads = random.standard_normal((WIDTH, VOCABULARY)).round(2)

    def states(self, ids: Array, positions: Array | None = None) -> Array:
        """Cached states [B, S, WIDTH] of tokens."""
        if positions is None:
            positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        return self.tokens[ids] + self.positions[positions]

    def logits(self, states: Array, mask: Array, new: int, source: Array | None = None) -> Array:
        """Logits [B, new, VOCABULARY] after the last ``new`` of ``states`` [B, T, WIDTH]; ``mask`` is [B, T]."""
        total = states.shape[1]
        logits = []
        for end in range(total - new + 1, total + 1):
            seen = np.where(mask[:, :end, np.newaxis] != 0, states[:, :end] + COUNTED, 0).sum(axis=1)
            state = np.tanh(seen) + states[:, end - 1] + (0 if source is None else np.tanh(source))
            logits.append(state @ self.heads)
        return np.stack(logits, axis=1)

    def greedy(
        self, prompt: Sequence[int], count: int, source: Sequence[int] | None = None, dtype: Any = np.float32
    ) -> list[int]:
        """Greedy continuation, computed from the whole text in each step."""
        ids = list(prompt)
        while len(ids) < len(prompt) + count:
            ids.append(int(self.next_logits(ids, source).astype(dtype).argmax()))
            if ids[-1] == EOS:
                break
        return ids[len(prompt) :]

    def next_logits(self, ids: Sequence[int], source: Sequence[int] | None = None) -> Array:
        """Logits [VOCABULARY] after a text."""
        read = None if source is None else (self.states(np.array([source])) + COUNTED).sum(axis=1)
        found: Array = self.logits(self.states(np.array([ids])), np.ones((1, len(ids))), 1, read)[0, 0]
        return found


class TinyPredictor(ScriptedPredictor):
    """Runs a TinyModel.

    Attributes:
        held: makes calls wait for ``release``.
        faults: errors to raise, by the number of the call.
        change: modifies each call's outputs.
    """

    def __init__(self, variant: ModelVariant) -> None:
        super().__init__()
        self.variant = variant
        self.spec = variant.spec
        self.model = TinyModel()
        self.faults: dict[int, Exception] = {}
        self.held = False
        self.change: Any = None

    async def release(self, turns: int = 20) -> None:
        """Releases the waiting calls, and runs the event loop for some turns."""
        self.answer()
        await self.turn(turns)

    @property
    def rows(self) -> list[int]:
        """Number of rows of each call."""
        return [len(call["input_ids"]) for call in self.calls]

    async def respond(self, made: RecordedCall) -> Outputs:
        number, call = len(self.calls) - 1, made.given
        self._verify(call.inputs)
        await (made.end if self.held else asyncio.sleep(0))
        if number in self.faults:
            raise self.faults.pop(number)
        dtype = NUMPY_DTYPES[self.variant.floats]
        found = {name: data.astype(dtype) for name, data in self._answer(made.inputs).items() if name in call.outputs}
        tensors = {name: Tensor(name, self.variant.floats, data) for name, data in found.items()}
        if self.change is not None:
            self.change(number, tensors)
        for name, size in call.sizes.items():
            assert self.change is not None or tensors[name].data.nbytes == size, (name, size)
        for tensor in tensors.values():
            tensor.data.flags.writeable = False
        return tensors

    def on_release(self, made: RecordedCall, outputs: Outputs) -> None:
        super().on_release(made, outputs)
        for tensor in outputs.values():  # another call reuses the buffer
            tensor.data.flags.writeable = True
            tensor.data[...] = 0

    def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        raise AssertionError("a logits model is called once per step")

    def _verify(self, inputs: Sequence[Tensor]) -> None:
        """Fails for inputs that Triton would refuse."""
        declared = {spec.name: spec for spec in self.variant.spec.inputs}
        sent = {tensor.name for tensor in inputs}
        assert sent <= declared.keys(), sent
        assert {spec.name for spec in declared.values() if not spec.optional} <= sent, sent
        for tensor in inputs:
            spec = declared[tensor.name]
            assert spec.datatype == tensor.datatype and tensor.data.dtype == NUMPY_DTYPES[spec.datatype], tensor.name
            shape = (-1, *spec.shape) if self.variant.max_batch_size else spec.shape
            assert len(shape) == tensor.data.ndim, (tensor.name, tensor.shape)
            assert all(want in (-1, size) for want, size in zip(shape, tensor.shape, strict=True)), tensor.name

    def _answer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        variant = self.variant
        if variant.flat:
            inputs = {name: data[np.newaxis] for name, data in inputs.items()}
        read = inputs["decoder_input_ids" if variant.encoder_decoder else "input_ids"]
        middle = "decoder." if variant.encoder_decoder else ""
        past = inputs.get(f"past_key_values.0.{middle}key", np.zeros((len(read), 2, 0, WIDTH)))[:, 0]
        before = past.shape[1]
        if variant.branch:
            assert inputs["use_cache_branch"].all() == (before > 0)
        total = before + read.shape[1]
        positions = inputs.get("position_ids", np.broadcast_to(np.arange(before, total), read.shape))
        states = np.concatenate([past, self.model.states(read, positions)], axis=1)
        ones = np.ones((len(read), total))
        mask = ones if variant.encoder_decoder else inputs.get("attention_mask", ones)
        source, more = self._source(inputs, before) if variant.encoder_decoder else (None, {})
        logits = self.model.logits(states, np.broadcast_to(mask, ones.shape), read.shape[1], source)
        if variant.logits != "all":
            logits = logits[:, -1] if variant.logits == "flat" else logits[:, -1:]
        kept = np.stack([states, -states], axis=1)
        outputs = {"logits": logits, f"present.0.{middle}key": kept, f"present.0.{middle}value": 2 * kept, **more}
        return {name: data[0] for name, data in outputs.items()} if variant.flat else outputs

    def _source(self, inputs: dict[str, Array], before: int) -> tuple[Array, dict[str, Array]]:
        states = self.model.states(inputs["input_ids"])
        if before and self.variant.past:
            states = inputs["past_key_values.0.encoder.value"][:, 1] / -2
        kept = np.stack([states, -states], axis=1)
        summed = np.where(inputs["attention_mask"][..., np.newaxis] != 0, states + COUNTED, 0).sum(axis=1)
        return summed, {"present.0.encoder.key": kept, "present.0.encoder.value": 2 * kept}


# Generators of the tiny model

SCHEDULING = SchedulerSettings(
    max_batches_in_flight=2, max_batch_tokens=10_000, max_batch_output_bytes=10**8, timeout=60.0
)
SETTINGS = settings(
    model_config={"vocab_size": VOCABULARY},
    eos_ids=frozenset({EOS}),
    max_length=LONGEST,
    decoder_start_ids=(1,),
    scheduling=SCHEDULING,
)
VARIANTS = {
    "plain": ModelVariant(),
    "without a mask": ModelVariant(mask=False),
    "positions": ModelVariant(positions=True),
    "int32, fp16": ModelVariant(datatype="INT32", floats="FP16"),
    "last": ModelVariant(logits="last"),
    "last, positions": ModelVariant(logits="last", positions=True),
    "vector": ModelVariant(logits="flat", positions=True),
    "own batch axis": ModelVariant(max_batch_size=0),
    "exact rows": ModelVariant(max_batch_size=0, rows=3),
    "no batch axis": ModelVariant(max_batch_size=0, flat=True),
    "no batch axis, cache": ModelVariant(max_batch_size=0, flat=True, past=True),
    "fixed length": ModelVariant(length=LONGEST),
    "fixed length, last": ModelVariant(length=LONGEST, logits="last", positions=True),
    "cache": ModelVariant(past=True, positions=True),
    "cache, equal lengths": ModelVariant(past=True),
    "cache, merged": ModelVariant(past=True, positions=True, branch=True),
    "cache, merged, own batch axis": ModelVariant(past=True, positions=True, branch=True, max_batch_size=0),
    "cache, exact rows": ModelVariant(past=True, positions=True, max_batch_size=0, rows=5),
    "cache, last": ModelVariant(past=True, positions=True, logits="last"),
    "encoder-decoder": ModelVariant(encoder_decoder=True),
    "encoder-decoder, last": ModelVariant(encoder_decoder=True, logits="last"),
    "encoder-decoder, cache": ModelVariant(encoder_decoder=True, past=True),
}
GREEDY = Sampling(greedy=True, max_tokens=12)
random = np.random.default_rng(3)
PROMPTS = [tuple(int(one) for one in random.integers(3, VOCABULARY, random.integers(1, 20))) for _ in range(24)]


@asynccontextmanager
async def generator(
    variant: ModelVariant, scheduling: SchedulerSettings = SCHEDULING, **more: Any
) -> AsyncIterator[tuple[LogitsGenerator, TinyPredictor]]:
    made = TinyPredictor(variant)
    with ThreadPoolExecutor(2) as executor:
        own = replace(SETTINGS, scheduling=scheduling, **{"concurrency_limit": ConcurrencyLimit(0), **more})
        yield LogitsGenerator(variant.spec, made, vocabulary(), own, executor=executor, metrics=Metrics().of("m")), made


def vocabulary(size: int = VOCABULARY) -> Any:
    return SimpleNamespace(vocab_size=size)


async def write(
    made: LogitsGenerator, ids: Sequence[int], sampling: Sampling = GREEDY
) -> tuple[list[int], FinishReason | None, list[TokenScore]]:
    steps = [one async for one in made.generate(Prompt("", tuple(ids)), sampling, Context("id", {}))]
    scores = [score for step in steps for score in step.scores]
    return [number for step in steps for number in step.ids], steps[-1].finish, scores
