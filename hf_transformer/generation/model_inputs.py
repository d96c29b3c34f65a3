"""The inputs of generative models, filled from a request's sampling, by the names of tensorrtllm_backend and others."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model_input import ModelInput
from hf_transformer.generation.types import Sampling
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import ModelSpec, Tensor

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

_ALSO_OPTIONAL: Final = frozenset({*STREAMING, "exclude_input_in_output"})
"""Those of CONSTANT that a model gets even if it can do without."""


class ModelInputs:
    """All inputs of a model that a request's sampling fills, or the interface itself whatever the request is.

    Attributes: ``by_name`` has them all, ``problems`` a sentence for each that does not fit, ``most_tokens`` the
    largest number of new tokens that the model can be told.
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
            more: of those that the caller fills, the tensors that depend on the sampling alone.
        """
        self.by_name = {one.name: ModelInput(one, bool(spec.max_batch_size)) for one in spec.inputs}
        named = {field: next((name for name in names if name in self.by_name), "") for field, names in FIELDS.items()}
        self._fields = {field: self.by_name[name] for field, name in named.items() if name and name not in own}
        self.most_tokens = self._fields["max_tokens"].most if "max_tokens" in self._fields else sys.maxsize
        self._end = self.by_name.get("end_id")
        self._end_id = end
        constant = {name: self.by_name[name] for name in CONSTANT if name in self.by_name}
        constant = {name: one for name, one in constant.items() if name in _ALSO_OPTIONAL or not one.optional}
        self.problems = self._unfilled({*own, *constant})
        self._constant: list[Tensor] = []
        self._more = more
        for name, one in constant.items():
            value = spec.decoupled if name in STREAMING else CONSTANT[name]
            problems = one.value_problems(value, "-1, the mark of no words" if value is NO_WORDS else repr(value))
            self.problems += problems
            if not problems and name not in own:
                self._constant.append(one.tensor(value))

    def _unfilled(self, others: Collection[str]) -> list[str]:
        """What does not fit of all inputs but ``others``."""
        scalars = {one.name: _KINDS.get(field, int) for field, one in self._fields.items()} | {"end_id": int}
        problems = []
        for name, one in self.by_name.items():
            if name in scalars:
                found = one.scalar_problems(scalars[name])
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
        return [*self._chosen(sampling), *self._more(sampling)]

    def bounded(self, sampling: Sampling) -> Sampling:
        """The sampling for a model that can't be told of as many new tokens: where the client leaves it to the service
        how many there may be, no more than ``most_tokens``. What it has asked for itself ``tensors`` refuses.

        Raises:
            InvalidInput: it asks for more than these at least.
        """
        names, most = sampling.names, self.most_tokens
        if (sampling.max_tokens or 0) <= most or "max_tokens" in names or "max_length" in names:
            return sampling
        if sampling.min_tokens > most:
            one = self._fields["max_tokens"]
            raise InvalidInput(
                f"{names.get('min_tokens', 'min_tokens')}: {sampling.min_tokens} new tokens at least, but the model's "
                f"input {one.name!r} is {one.datatype}, which can't hold them; expected at most {most}"
            )
        return replace(sampling, max_tokens=most)

    def _chosen(self, sampling: Sampling) -> Sequence[Tensor]:
        """All but those of ``more``. Raises InvalidInput for a number that an input can't hold."""
        tensors = [*self._constant]
        greedy = self._greedy if sampling.greedy else {}
        for field, one in self._fields.items():
            value = greedy[field] if field in greedy else getattr(sampling, field)
            if field == "seed":
                seed = 0 if sampling.greedy else sampling.seed
                seed = random.getrandbits(63) if seed is None else seed  # each request has a new one
                tensors.append(one.number(seed % (one.most + 1)))
            elif field == "top_k":  # a client may say "all" by any number, however large
                tensors.append(one.number(min(value, one.most)))
            elif field == "logprobs":
                if value is not None or not one.optional:
                    tensors.append(one.number(value is not None))
            elif field in _ALWAYS_SENT or value != getattr(_NEUTRAL, field) or not one.optional:
                try:
                    tensors.append(one.number(value))
                except OverflowError:
                    raise _unheld(one, sampling, field, value) from None
        if self._end is not None:
            end = NO_END if sampling.ignore_eos else self._end_id
            if end is not None or not self._end.optional:
                tensors.append(self._end.number(NO_END if end is None else end))
        return tensors

    @property
    def _greedy(self) -> Mapping[str, float]:
        """What makes the model take the likeliest token: top_k where there is one, since not all take a top_p of 0."""
        likeliest: Mapping[str, float] = {"top_k": 1, "top_p": 1.0} if "top_k" in self._fields else {"top_p": 0.0}
        return {"temperature": 1.0, "min_p": 0.0, **likeliest}


_NEUTRAL = Sampling()
_ALWAYS_SENT = frozenset({"max_tokens", "temperature", "top_k", "top_p"})
_FRACTIONS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_KINDS: Final[Mapping[str, type[bool] | type[int] | type[float]]] = {
    **dict.fromkeys(_FRACTIONS, float),
    "logprobs": bool,
}
"""Of the values of Sampling's fields; those of the others are whole numbers."""


def _unheld(one: ModelInput, sampling: Sampling, field: str, value: float) -> InvalidInput:
    """For a number that the client has asked for and the model can't be told."""
    names = sampling.names
    name = names.get(field) or (names.get("max_length") if field == "max_tokens" else None) or field
    return InvalidInput(
        f"{name}: the model's input {one.name!r} is {one.datatype}, which can't hold {value}; expected at most "
        f"{one.most}"
    )


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
