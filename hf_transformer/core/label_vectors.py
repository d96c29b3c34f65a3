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
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from hf_transformer.core.budget import Budget
from hf_transformer.core.contract import Signature
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import InvalidInput, NotReady, PredictorError, PredictorTimeout
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
INLINE_LABELS = 5_000
"""Maximum number of labels in all lists of a request for work on the event loop, about 2 ms."""
DECODE_COST = 20
"""The cost of copying a vector, in units of Task.decode_cost."""
KEEP_SECONDS = 600.0
"""The time after which kept vectors are made again: a predictor doesn't tell that the weights of a version changed."""
Labels: TypeAlias = tuple[str, ...]
Result = TypeVar("Result")


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
    tokenizer: Tokenizer
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
            tokenizer = self._tokenizer
            if signature.length is not None:
                tokenizer = tokenizer.with_max_length(min(signature.length, tokenizer.max_length))
            self._model = LabelModel(spec, now, signature, scheduler, tokenizer, {})
        elif now - self._model.since > KEEP_SECONDS:
            self._model = replace(self._model, since=now, known={})

    @property
    def size(self) -> int:
        """The length of a vector; -1 if the predictor does not say it. Raises NotReady before the first check."""
        return self._require().signature.outputs[0].sizes[0]

    async def attach(
        self,
        texts: Iterable[tuple[Encoding, Sequence[str]]],
        context: Context,
        budget: Budget,
        path: str,
        *,
        size: int = -1,
        anew: bool = False,
    ) -> None:
        """Sets ``vectors`` of LabelledEncodings, each with its labels.

        Counts the sequence and the tokens of each different label, and the bytes of all vectors before they are made,
        whether they are kept or not, so that a request does not depend on earlier ones. ``path`` is the list of
        instances, for errors. ``size`` is the length of a vector that the model of texts reads, -1 for any. ``anew``
        asks the model for each label, and keeps none.

        Raises RequestError.
        """
        pairs = [(cast(LabelledEncoding, encoding), tuple(labels)) for encoding, labels in texts]
        # The windows of a text, and often the texts of a request, have one list.
        lists = {id(labels): labels for _, labels in pairs}
        count = sum(map(len, lists.values()))
        names, rows, count = await self._run(count, _index_labels, lists)
        if not names:
            return
        model = self._require()
        if anew:
            model = replace(model, known={})
        budget.add_sequences(len(names), path)
        declared_size = model.signature.outputs[0].sizes[0]
        if declared_size > 0:
            budget.hold((len(names) + count) * declared_size * np.dtype(np.float32).itemsize, path)
        by_name = await self._vectors(model, names, context, budget)
        vectors = [by_name[name] for name in names]
        sizes = {vector.size for vector in vectors}
        if len(sizes) > 1:
            raise PredictorError(f"the model {self.name!r} answered vectors of different sizes for labels")
        if size != -1 and size not in sizes:  # either model was replaced; the next check will find it
            makes = f"{self.name!r} makes {vectors[0].size}"
            raise PredictorError(f"the model reads vectors of {size} numbers for labels, but {makes} ({FLAG})")
        if declared_size <= 0:
            budget.hold((len(names) + count) * vectors[0].nbytes, path)
        matrices = await self._run(count, _vectors_of_lists, vectors, rows)
        for encoding, labels in pairs:
            encoding.vectors = matrices[id(labels)]

    async def _run(self, count: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs work for ``count`` labels, in the executor above INLINE_LABELS."""
        if count <= INLINE_LABELS:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _vectors(
        self, model: LabelModel, names: Sequence[str], context: Context, budget: Budget
    ) -> Mapping[str, Array]:
        """The vectors of different labels: the kept ones, and those that the model makes now."""
        known, missing, tokens = model.known, list[str](), 0
        vectors: dict[str, Array] = {}
        for name in names:
            cached = known.pop(name, None)
            if cached is None:
                missing.append(name)
            else:
                known[name], vectors[name] = cached, cached.vector
                tokens += cached.tokens
        entries: list[Entry[Encoding]] = []
        if missing:
            windows = await model.tokenizer.encode_off_loop(missing, self._executor, PLAIN, sum(map(len, missing)))
            for name, [encoding] in zip(missing, windows, strict=True):
                if not encoding.ids:
                    raise InvalidInput("labels", "labels with at least one token each", repr(name[:40]))
                entries.append(Entry(encoding, name, DECODE_COST))
                tokens += len(encoding)
        budget.add_tokens(tokens)
        if entries:
            label_context = Context(
                context.request_id, context.headers, deadline=context.deadline, over_grpc=context.over_grpc
            )
            submission = model.scheduler.submit(entries, _decode, None, label_context)
            try:
                await submission.future
            finally:
                model.scheduler.leave(submission)
            for entry in entries:
                vectors[entry.owner] = entry.answer
                known[entry.owner] = LabelVector(entry.answer, len(entry.item))
            while len(known) > self._limit:
                del known[next(iter(known))]
        return vectors

    def _require(self) -> LabelModel:
        if self._model is None:
            raise NotReady(f"the model of labels {self.name!r} is not ready ({FLAG})")
        return self._model


def _index_labels(lists: Mapping[int, Labels]) -> tuple[list[str], Mapping[int, Array], int]:
    """The different labels of lists, the indices int64 [labels] of each list's labels among them, which equal lists
    share, and the number of labels in the different lists."""
    indices: dict[str, int] = {}
    rows: dict[Labels, Array] = {}
    for labels in lists.values():  # no long call of C, which would keep the interpreter's lock
        if labels not in rows:
            for name in labels:
                indices.setdefault(name, len(indices))
            rows[labels] = np.fromiter(map(indices.__getitem__, labels), np.int64, len(labels))
    return [*indices], {key: rows[labels] for key, labels in lists.items()}, sum(map(len, rows))


def _vectors_of_lists(vectors: Sequence[Array], rows: Mapping[int, Array]) -> Mapping[int, Array]:
    """The vectors float32 [labels, size] of each list. Lists with the same indices share them."""
    matrix = np.stack(vectors)
    different = {id(indices): indices for indices in rows.values()}
    matrices = {key: matrix[indices] for key, indices in different.items()}
    return {key: matrices[id(indices)] for key, indices in rows.items()}


def _decode(name: str, encoding: Encoding, outputs: Mapping[str, Array], options: None) -> Array:
    """The vector of a label, as a copy. Raises PredictorError for NaN and infinity."""
    vector: Array = outputs[VECTORS.name].astype(np.float32)
    require_finite(vector)
    return vector
