"""The inputs of generative models, filled from a request's sampling, by the names of tensorrtllm_backend and others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from hf_transformer.generation.per_sampling import PerSampling
from hf_transformer.generation.types import Sampling
from hf_transformer.predictors.base import Predictor
from hf_transformer.types import NUMPY_DTYPES, ModelSpec, Tensor, TensorSpec

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "max_tokens": ("request_output_len", "max_tokens"),
    "min_tokens": ("min_length", "min_tokens"),
    "temperature": ("temperature",),
    "top_k": ("runtime_top_k", "top_k"),
    "top_p": ("runtime_top_p", "top_p"),
    "min_p": ("runtime_min_p", "min_p"),
    "repetition_penalty": ("repetition_penalty",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "seed": ("random_seed", "seed"),
    "logprobs": ("return_log_probs",),
}
"""Which input a field of Sampling goes into; the first that the model has."""

NO_END: Final = -1
"""No token ends the text, in tensorrtllm_backend's end_id."""

NO_WORDS: Final = (0, -1)
"""No words in tensorrtllm_backend's form of lists of words, [2, S]: their ids, and where each of them ends, or -1."""

CONSTANT: Final[Mapping[str, Any]] = {
    "streaming": False,
    "stream": False,
    "beam_width": 1,
    "num_return_sequences": 1,
    "exclude_input_in_output": True,
    "stop_words_list": NO_WORDS,
    "bad_words_list": NO_WORDS,
    "stop_words": "",
    "bad_words": "",
}
"""What goes into inputs of which a request says nothing: one text, and no words."""

STREAMING: Final = ("streaming", "stream")
"""True for a decoupled model."""

KEPT_NUMBERS: Final = 32
"""Tensors of one number that an input keeps: making them all was two thirds of what the tensors of a request took."""

_ALSO_OPTIONAL: Final = frozenset({*STREAMING, "exclude_input_in_output"})
"""Those of CONSTANT that a model gets even if it can do without."""


class ModelInput:
    """One input of a model; ``batched`` says that Triton puts a batch axis in front of its shape."""

    def __init__(self, spec: TensorSpec, batched: bool) -> None:
        self.name = spec.name
        self.optional = spec.optional
        self.datatype = spec.datatype
        self.dims = (1, *spec.shape) if batched else spec.shape
        self._fixed = math.prod(size for size in self.dims if size >= 0)
        self.free = self._fixed == 1 and any(size < 0 for size in self.dims)
        """Whether it takes any number of elements."""
        self._shape = self._usual_shape()
        self._numbers: dict[tuple[float, type], Tensor] = {}

    def tensor(self, values: Any) -> Tensor:
        """A tensor of a value or a flat list. Raises ValueError for so many that do not fit the shape."""
        if isinstance(values, (int, float)):
            return self.number(values)
        return self.text(values) if isinstance(values, str) else self.row(values)

    def row(self, values: Sequence[int]) -> Tensor:
        """A tensor of a flat list. Raises ValueError as ``tensor`` does."""
        data = np.array(values, self._dtype)
        shape = self._shape if self.free else self.shape(len(data))
        return Tensor(self.name, self.datatype, data.reshape(shape))

    def text(self, value: str) -> Tensor:
        """A tensor of one text."""
        return Tensor(self.name, self.datatype, np.array((value,), np.object_).reshape(self._shape))

    def number(self, value: float) -> Tensor:
        """A tensor of one number; most requests have the same ones."""
        key = value, type(value)
        found = self._numbers.get(key)
        if found is None:
            found = Tensor(self.name, self.datatype, np.full(self.shape(1), value, self._dtype))
            found.data.flags.writeable = False
            if len(self._numbers) < KEPT_NUMBERS:
                self._numbers[key] = found
        return found

    def shape(self, count: int) -> tuple[int, ...]:
        """The shape of so many elements: the innermost free axis is as long as it takes, other free ones are 1.

        Raises:
            ValueError: none has so many.
        """
        rest, over = divmod(count, self._fixed) if self._fixed else (0, count)
        free = [axis for axis, size in enumerate(self.dims) if size < 0]
        if over or (not free and rest != 1):
            raise ValueError(f"{count} elements do not fit into {list(self.dims)}")
        return tuple((rest if axis == free[-1] else 1) if size < 0 else size for axis, size in enumerate(self.dims))

    def _usual_shape(self) -> tuple[int, ...]:
        """What numpy makes the shape of any number of elements of, where they fit, else that of one."""
        last = max((axis for axis, size in enumerate(self.dims) if size < 0), default=-1)
        return tuple((-1 if axis == last else 1) if size < 0 else size for axis, size in enumerate(self.dims))

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        if self.datatype == "BYTES":
            return np.dtype(np.object_)
        return np.dtype(np.float32) if self.datatype == "BF16" else NUMPY_DTYPES[self.datatype]

    def holds(self, value: str | int | Sequence[int]) -> bool:
        """Whether its datatype has a value, or all of a list: unsigned ones have no -1."""
        dtype = self._dtype
        if isinstance(value, str) or dtype.kind == "O":
            return isinstance(value, str) and dtype.kind == "O"
        if dtype.kind not in "iu":
            return True
        limits = np.iinfo(dtype)
        return all(limits.min <= one <= limits.max for one in ([value] if isinstance(value, int) else value))

    def value_problems(self, value: str | int | Sequence[int], meaning: str) -> list[str]:
        """What keeps it from holding a value, or a list of some; ``meaning`` says what it is."""
        count = 1 if isinstance(value, str | int) else len(value)
        try:
            self.shape(count)
        except ValueError:
            many = "one value goes" if count == 1 else f"{count} values go"
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; {many} there."]
        if self.holds(value):
            return []
        expected = "TYPE_STRING" if isinstance(value, str) else "INT32"
        return [f"Its input {self.name!r} is {self.datatype}, which can't hold {meaning}; export it as {expected}."]

    def scalar_problems(self, *, fraction: bool) -> list[str]:
        """What keeps it from holding one number, which may be a ``fraction``."""
        try:
            self.shape(1)
        except ValueError:
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; one value goes there."]
        if self.datatype == "BYTES" or (fraction and self._dtype.kind != "f"):
            return [f"Its input {self.name!r} is {self.datatype}; export it as {'FP32' if fraction else 'INT32'}."]
        return []

    def text_problems(self) -> list[str]:
        """What keeps it from holding one text."""
        try:
            self.shape(1)
        except ValueError:
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; one text goes there."]
        return [] if self.datatype == "BYTES" else [f"Its input {self.name!r} is {self.datatype}; text is TYPE_STRING."]

    @property
    def bits(self) -> int:
        """Of the positive numbers that it holds, if it is of whole ones; at most 63, so that JSON can say them."""
        dtype = self._dtype
        return min(63, dtype.itemsize * 8 - (dtype.kind == "i"))


class ModelInputs:
    """All inputs of a model that a request's sampling fills, or the interface itself whatever the request is.

    Attributes: ``by_name`` has them all, ``problems`` a sentence for each that does not fit.
    """

    def __init__(
        self,
        spec: ModelSpec,
        own: Collection[str],
        *,
        end: int | None,
        more: Callable[[Sampling], Sequence[Tensor]] = lambda sampling: (),
    ) -> None:
        """
        Args:
            spec: the model.
            own: the names of those that the caller fills.
            end: what goes into end_id unless the end is to be ignored; None leaves it to the model.
            more: of those that the caller fills, the tensors that depend on the sampling alone; kept with the others.
        """
        self.by_name = {one.name: ModelInput(one, bool(spec.max_batch_size)) for one in spec.inputs}
        named = {field: next((name for name in names if name in self.by_name), "") for field, names in FIELDS.items()}
        self._fields = {field: self.by_name[name] for field, name in named.items() if name and name not in own}
        self._end = self.by_name.get("end_id")
        self._end_id = end
        constant = {name: self.by_name[name] for name in CONSTANT if name in self.by_name}
        constant = {name: one for name, one in constant.items() if name in _ALSO_OPTIONAL or not one.optional}
        self.problems = self._unfilled({*own, *constant})
        self._constant: list[Tensor] = []
        self._kept = PerSampling(lambda sampling: [*self._chosen(sampling), *more(sampling)])
        for name, one in constant.items():
            value = spec.decoupled if name in STREAMING else CONSTANT[name]
            problems = one.value_problems(value, "-1, the mark of no words" if value is NO_WORDS else repr(value))
            self.problems += problems
            if not problems and name not in own:
                self._constant.append(one.tensor(value))

    def _unfilled(self, others: Collection[str]) -> list[str]:
        """What does not fit of all inputs but ``others``."""
        scalars = {one.name: field in _FRACTIONS for field, one in self._fields.items()} | {"end_id": False}
        problems = []
        for name, one in self.by_name.items():
            if name in scalars:
                found = one.scalar_problems(fraction=scalars[name])
                problems += found or (self._unheld_end(one) if one is self._end else [])
            elif name not in others and not one.optional:
                problems.append(f"It requires the input {name!r}, which nothing here fills: mark it optional.")
        return problems

    def _unheld_end(self, one: ModelInput) -> list[str]:
        """What keeps end_id from holding what it gets in each request that does not ignore the end."""
        if self._end_id is None and one.optional:
            return []
        end = NO_END if self._end_id is None else self._end_id
        none = end == NO_END
        return one.value_problems(end, f"{end}, the mark of no end" if none else f"the end-of-sequence token {end}")

    @property
    def filled(self) -> frozenset[str]:
        """The names of the inputs that get a value here, always or for some requests."""
        names = {one.name for one in self._fields.values()} | {one.name for one in self._constant}
        return frozenset(names if self._end is None else {*names, self._end.name})

    @property
    def honours(self) -> frozenset[str]:
        """The fields of Sampling that have an input; greedy is a top_k of 1, or a top_p of 0."""
        found = set(self._fields)
        if found & {"top_k", "top_p"}:
            found.add("greedy")
        if self._end is not None and self._end.holds(NO_END):
            found.add("ignore_eos")
        return frozenset(found)

    def tensors(self, sampling: Sampling) -> list[Tensor]:
        """The tensors for one request.

        What a model does without temperature, top_k, top_p and a seed differs (tensorrtllm_backend is greedy then, and
        has one seed for all), so these are always sent; the rest where it is not neutral, or required.
        """
        kept, seed = self._kept(sampling), self._fields.get("seed")
        if seed is None or sampling.greedy or sampling.seed is not None:
            return [*kept]
        return [*kept, seed.number(random.getrandbits(63) % 2**seed.bits)]  # each request has a new one

    def _chosen(self, sampling: Sampling) -> Sequence[Tensor]:
        """All but a seed that nobody has chosen."""
        tensors = [*self._constant]
        greedy = self._greedy if sampling.greedy else {}
        for field, one in self._fields.items():
            value = greedy[field] if field in greedy else getattr(sampling, field)
            if field == "seed":
                seed = 0 if sampling.greedy else sampling.seed
                if seed is not None:
                    tensors.append(one.tensor(seed % 2**one.bits))
            elif field == "top_k":  # a client may say "all" by any number, however large
                tensors.append(one.tensor(min(value, 2**one.bits - 1)))
            elif field == "logprobs":
                if value is not None or not one.optional:
                    tensors.append(one.tensor(value is not None))
            elif field in _ALWAYS_SENT or value != getattr(_NEUTRAL, field) or not one.optional:
                tensors.append(one.tensor(value))
        if self._end is not None:
            end = NO_END if sampling.ignore_eos else self._end_id
            if end is not None or not self._end.optional:
                tensors.append(self._end.tensor(NO_END if end is None else end))
        return tensors

    @property
    def _greedy(self) -> Mapping[str, float]:
        """What makes the model take the likeliest token: top_k where there is one, since not all take a top_p of 0."""
        likeliest: Mapping[str, float] = {"top_k": 1, "top_p": 1.0} if "top_k" in self._fields else {"top_p": 0.0}
        return {"temperature": 1.0, "min_p": 0.0, **likeliest}


_NEUTRAL = Sampling()
_ALWAYS_SENT = frozenset({"max_tokens", "temperature", "top_k", "top_p"})
_FRACTIONS = frozenset({"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"})
"""Fields of Sampling that whole numbers can't hold."""


def json_problems(spec: ModelSpec, predictor: Predictor, inputs: ModelInputs, others: Collection[str]) -> list[str]:
    """Why a decoupled model can't be asked through JSON, where the predictor's streams are; else nothing.

    ``others`` are the names of further tensors that are sent or read.
    """
    if not (spec.decoupled and predictor.streams_json):
        return []
    used = {*inputs.filled, *others}
    return [
        f"Its tensor {one.name!r} is {one.datatype}, which can't be streamed over REST: use "
        "--predictor_protocol=grpc-v2."
        for one in (*spec.inputs, *spec.outputs)
        if one.name in used and one.datatype in ("FP16", "BF16")
    ]
