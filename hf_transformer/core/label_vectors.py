"""Vectors of labels for bi-encoders, from a second model of the predictor, each computed once and kept by its label.

    distinct labels of a request --known?--> vectors
                                 --tokenizer--> encodings --scheduler--> vectors, kept --> LabelledEncoding.vectors

A label's vector depends on the label alone, so it is the same from whichever batch it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from hf_transformer.core.budget import Budget
from hf_transformer.core.contract import Signature
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import InvalidInput, NotReady, PredictorTimeout
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.tasks.numerics import require_finite
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array, ModelSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, LabelledEncoding

VECTORS = OutputRole("labels_embeddings", (Axis(name="size"),))
"""The output of a model of labels: a vector float32 [size] for each."""
FLAG = "--labels_model"
KEEP_SECONDS = 600.0
"""The time after which kept vectors are made again: a predictor doesn't tell that the weights of a version changed."""


@dataclass(frozen=True, slots=True)
class LabelVector:
    """The vector float32 [size] of a label, and the number of its tokens."""

    vector: Array
    tokens: int


@dataclass(frozen=True, slots=True)
class LabelModel:
    """The predictor's model of labels as it is now. ``known`` has the vectors since the time ``since`` on the event
    loop's clock, the least recently used first."""

    spec: ModelSpec
    since: float
    signature: Signature
    scheduler: Scheduler[Encoding]
    known: dict[str, LabelVector]


class LabelVectors:
    """Gives texts the vectors of their labels.

    Args:
        name: the model's name at the predictor.
        predictor: the model of labels, which ``open`` opens.
        tokenizer: the tokenizer of labels, which truncates them to the model's length.
        build: makes the signature and the scheduler for the predictor's model, or raises ContractError.
        executor: tokenizes many labels.
        limit: the maximum number of vectors that are kept (--max_label_vectors).
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        tokenizer: Tokenizer,
        build: Callable[[ModelSpec], tuple[Signature, Scheduler[Encoding]]],
        *,
        executor: Executor,
        limit: int,
    ) -> None:
        self.name = name
        self.predictor = predictor
        self._tokenizer = tokenizer
        self._build = build
        self._executor = executor
        self._limit = limit
        self._model: LabelModel | None = None

    async def check(self, deadline: float) -> None:
        """Asks the predictor for its model, and uses it from now on. Another model's vectors are forgotten, and all of
        them after KEEP_SECONDS.

        Raises NotReady for a missing model, ContractError for one that does not fit, and other RequestErrors of the
        predictor. ``deadline`` is on the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(deadline):
                if not await self.predictor.model_ready():
                    raise NotReady(
                        f"the predictor does not have {self.name!r}, which makes the vectors of labels, or has not "
                        f"loaded it yet ({FLAG})"
                    )
                spec = await self.predictor.model_spec()
        except TimeoutError as error:
            raise PredictorTimeout(f"the predictor did not describe its model {self.name!r} in time") from error
        now = asyncio.get_running_loop().time()
        if self._model is None or spec != self._model.spec:
            self._model = None
            signature, scheduler = self._build(spec)
            self._model = LabelModel(spec, now, signature, scheduler, {})
        elif now - self._model.since > KEEP_SECONDS:
            self._model = replace(self._model, since=now, known={})

    @property
    def size(self) -> int:
        """The length of a vector; -1 if the predictor does not say it. Raises NotReady before the first check."""
        return self._require().signature.outputs[0].sizes[0]

    async def attach(
        self, texts: Iterable[tuple[Encoding, Sequence[str]]], context: Context, budget: Budget, path: str
    ) -> None:
        """Sets ``vectors`` of LabelledEncodings, each with its labels.

        Counts the sequence and the tokens of each different label, and the bytes of all vectors, whether they are kept
        or not, so that a request does not depend on earlier ones. ``path`` is the list of instances, for errors.

        Raises RequestError.
        """
        pairs = [(cast(LabelledEncoding, encoding), tuple(labels)) for encoding, labels in texts]
        lists = dict.fromkeys(labels for _, labels in pairs)
        names = dict.fromkeys(label for labels in lists for label in labels)
        if not names:
            return
        model = self._require()
        budget.add_sequences(len(names), path)
        vectors = await self._vectors(model, [*names], context, budget)
        budget.hold((len(names) + sum(map(len, lists))) * next(iter(vectors.values())).nbytes, path)
        made = {labels: np.stack([vectors[label] for label in labels]) for labels in lists}
        for encoding, labels in pairs:
            encoding.vectors = made[labels]

    async def _vectors(
        self, model: LabelModel, names: Sequence[str], context: Context, budget: Budget
    ) -> Mapping[str, Array]:
        """The vectors of different labels: the kept ones, and those that the model makes now."""
        known, missing, tokens = model.known, list[str](), 0
        found: dict[str, Array] = {}
        for name in names:
            kept = known.pop(name, None)
            if kept is None:
                missing.append(name)
            else:
                known[name], found[name] = kept, kept.vector
                tokens += kept.tokens
        entries: list[Entry[Encoding]] = []
        if missing:
            windows = await self._tokenizer.encode_off_loop(missing, self._executor, PLAIN, sum(map(len, missing)))
            for name, [encoding] in zip(missing, windows, strict=True):
                if not encoding.ids:
                    raise InvalidInput("labels", "labels with at least one token each", repr(name[:40]))
                entries.append(Entry(encoding, name, 1))
                tokens += len(encoding)
        budget.add_tokens(tokens)
        if entries:
            own = Context(context.request_id, context.headers, deadline=context.deadline, over_grpc=context.over_grpc)
            submission = model.scheduler.submit(entries, _decode, None, own)
            try:
                await submission.future
            finally:
                model.scheduler.leave(submission)
            for entry in entries:
                found[entry.owner] = entry.answer
                known[entry.owner] = LabelVector(entry.answer, len(entry.item))
            while len(known) > self._limit:
                del known[next(iter(known))]
        return found

    def _require(self) -> LabelModel:
        if self._model is None:
            raise NotReady(f"the model of labels {self.name!r} is not ready ({FLAG})")
        return self._model


def _decode(name: str, encoding: Encoding, outputs: Mapping[str, Array], options: None) -> Array:
    """The vector of a label, as a copy. Raises PredictorError for NaN and infinity."""
    vector: Array = outputs[VECTORS.name].astype(np.float32)
    require_finite(vector)
    return vector
