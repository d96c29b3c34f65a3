"""What token and text models share: a request's sampling fills their inputs, which are named as in Triton's backends,
and one call gives a whole text.

A model is refused at the start if an input can't hold its values: whole numbers need 32 bits at least.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.generation.types import NEUTRAL, Generator, Sampling
from hf_transformer.predictor.base import ModelCall, Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, ModelSpec, Tensor, TensorSpec

Kind = Literal["whole", "signed", "float", "flag", "text"]
WHOLE: Final = ("INT32", "INT64", "UINT32", "UINT64")
DATATYPES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "whole": WHOLE,
    "signed": ("INT32", "INT64"),
    "float": ("FP32", "FP64", "FP16", "BF16"),
    "flag": ("BOOL", *WHOLE),
    "text": ("BYTES",),
}
"""The datatypes that hold a kind of value, the usual one first."""

LLM_API: Final = "sampling_param_"
"""How the inputs of TensorRT-LLM's LLM API model begin that its SamplingParams has under the rest of the name."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
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
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {field: (*names, f"{LLM_API}{field}") for field, names in _NAMES.items()}
"""The inputs for a field of Sampling, of which the first that the model has is filled, and the kind of its values."""
KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(FIELDS, "float"),
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "seed"), "whole"),
    "logprobs": "flag",
}
END: Final = "end_id"
NO_END: Final = -1
"""The value of end_id if no token ends the text."""
NO_WORDS: Final = (0, -1)
"""tensorrtllm_backend's form of lists of words, [2, S]: the ids, and the end of each word, or -1. This one is empty."""
LARGEST: Final = 2**31 - 1
"""Whole numbers up to here fit every input."""

EXCLUDING: Final = ("exclude_input_in_output", f"{LLM_API}exclude_input_from_output")
"""Inputs that leave the prompt out of the text."""
CONSTANT: Final[Mapping[str, Any]] = {
    "streaming": False,
    "stream": False,
    "beam_width": 1,
    "num_return_sequences": 1,
    **dict.fromkeys(EXCLUDING, True),
    "stop_words_list": NO_WORDS,
    "bad_words_list": NO_WORDS,
    "stop_words": "",
    "bad_words": "",
}
"""Inputs with one value for all requests: one text, and no words."""
STREAMING: Final = ("streaming", "stream")
"""Those of them that are true for a decoupled model."""
EVEN_IF_OPTIONAL: Final = (*STREAMING, *EXCLUDING)
"""Those that are sent even to a model that does not require them."""

_ALWAYS_SENT: Final = frozenset({"max_tokens", "temperature", "top_k", "top_p"})


class ModelInput:
    """One input of a model; ``batched`` says that Triton puts a batch axis in front of its shape."""

    def __init__(self, spec: TensorSpec, batched: bool) -> None:
        self.name = spec.name
        self.optional = spec.optional
        self.datatype = spec.datatype
        self.dims = (1, *spec.shape) if batched else spec.shape
        self._fixed = math.prod(size for size in self.dims if size >= 0)
        self._free = [axis for axis, size in enumerate(self.dims) if size < 0]
        self._dtype: np.dtype[Any] = np.dtype(np.object_ if spec.datatype == "BYTES" else np.float32)  # also of BF16
        self._dtype = NUMPY_DTYPES.get(spec.datatype, self._dtype)

    def fits(self, count: int) -> bool:
        """Whether it may have ``count`` elements."""
        rest, over = divmod(count, self._fixed) if self._fixed else (0, count)
        return not over and (bool(self._free) or rest == 1)

    def tensor(self, values: Any) -> Tensor:
        """A tensor of one value or a flat list, along the innermost free axis; other free axes are 1."""
        flat = values if isinstance(values, (list, tuple)) else (values,)
        rest = len(flat) // self._fixed
        sizes = [1 if size < 0 else size for size in self.dims]
        if self._free:
            sizes[self._free[-1]] = rest
        return Tensor(self.name, self.datatype, np.array(flat, self._dtype).reshape(sizes))

    def problems(self, kind: Kind, count: int = 1) -> list[str]:
        """A sentence on why it can't hold ``count`` values of a kind; else nothing."""
        if not self.fits(count):
            many = f"one {'text' if kind == 'text' else 'value'} goes" if count == 1 else f"{count} values go"
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; {many} there."]
        if self.datatype in DATATYPES[kind]:
            return []
        usual = "TYPE_STRING" if kind == "text" else DATATYPES[kind][0]
        return [f"Its input {self.name!r} is {self.datatype}; export it as {usual}."]


class TensorGenerator(Generator):
    """A model that chooses the tokens itself, and gives a whole text in one call.

    The subclass fills the inputs ``own``. ``end`` is the value of end_id without ignore_eos; None leaves it to the
    model.
    """

    def __init__(self, spec: ModelSpec, predictor: Predictor, own: Collection[str], *, end: int | None) -> None:
        self._spec = spec
        self._predictor = predictor
        self._decoupled = spec.decoupled
        self._inputs = inputs = {one.name: ModelInput(one, bool(spec.max_batch_size)) for one in spec.inputs}
        named = {field: next((name for name in names if name in inputs), "") for field, names in FIELDS.items()}
        self._fields = {field: inputs[name] for field, name in named.items() if name and name not in own}
        self._end = inputs.get(END)
        self._end_id = end
        self._constant: list[Tensor] = []
        self._problems_of_inputs: list[str] = []
        filled = {*own, END, *(one.name for one in self._fields.values())}
        for name, one in inputs.items():
            if name in CONSTANT and name not in own:
                if one.optional and name not in EVEN_IF_OPTIONAL:
                    continue
                value = spec.decoupled if name in STREAMING else CONSTANT[name]
                kind: Kind = "flag" if isinstance(value, bool) else "text" if isinstance(value, str) else "whole"
                problems = one.problems("signed", 2) if value is NO_WORDS else one.problems(kind)
                self._problems_of_inputs += problems
                if not problems:
                    self._constant.append(one.tensor(value))
            elif name not in filled and not one.optional:
                self._problems_of_inputs.append(
                    f"It requires the input {name!r}, which nothing here fills: mark it optional."
                )
        for field, one in self._fields.items():
            self._problems_of_inputs += one.problems(KINDS[field])
        self.supported_fields = frozenset(self._fields)
        if self.supported_fields & {"top_k", "top_p"}:  # a top_k of 1, or a top_p of 0
            self.supported_fields |= {"greedy"}
        if self._end is not None:
            may_be_none = end == NO_END or (end is None and not self._end.optional)
            self._problems_of_inputs += self._end.problems("signed" if may_be_none else "whole")
            if self._end.datatype in DATATYPES["signed"]:
                self.supported_fields |= {"ignore_eos"}

    def _shared_problems(self, outputs: Collection[str]) -> list[str]:
        """A sentence for each input that does not fit, and each tensor that can't be streamed as JSON (REST)."""
        problems, spec = [*self._problems_of_inputs], self._spec
        used = {END, *outputs, *(one.name for one in self._fields.values()), *(one.name for one in self._constant)}
        if spec.decoupled and self._predictor.streams_json:
            problems += [
                f"Its tensor {one.name!r} is {one.datatype}, which can't be streamed over REST: use "
                "--predictor_protocol=grpc-v2."
                for one in (*spec.inputs, *spec.outputs)
                if one.name in used and one.datatype in ("FP16", "BF16")
            ]
        return problems

    @property
    def _tensors_it_has(self) -> str:
        """Its inputs and outputs, for messages."""
        inputs, outputs = (", ".join(one.name for one in side) for side in (self._spec.inputs, self._spec.outputs))
        return f"{inputs or 'none'} and {outputs or 'none'}"

    def _sampled(self, sampling: Sampling) -> list[Tensor]:
        """The tensors for one request, without the subclass's own.

        Models differ in their defaults of temperature, top_k, top_p and the seed (tensorrtllm_backend is greedy
        without them, and has one seed for all), so these are always sent; others unless neutral and optional.
        """
        tensors = [*self._constant]
        greedy: dict[str, float] = {}
        if sampling.greedy:  # by top_k if there is one, since not all models take a top_p of 0
            greedy = {"top_k": 1, "top_p": 1.0} if "top_k" in self._fields else {"top_p": 0.0}
            greedy |= {"temperature": 1.0, "min_p": 0.0, "seed": 0}
        for field, one in self._fields.items():
            value = greedy[field] if field in greedy else getattr(sampling, field)
            if field == "seed":
                seed = random.getrandbits(63) if value is None else int(value)  # each request has a new one
                tensors.append(one.tensor(seed & (2**63 - 1 if one.datatype.endswith("64") else LARGEST)))
            elif field == "top_k":  # any large number means all
                tensors.append(one.tensor(min(value, LARGEST)))
            elif field == "logprobs":
                if value is not None or not one.optional:
                    tensors.append(one.tensor(value is not None))
            elif field in _ALWAYS_SENT or value != getattr(NEUTRAL, field) or not one.optional:
                tensors.append(one.tensor(value))
        if self._end is not None:
            end = NO_END if sampling.ignore_eos else self._end_id
            if end is not None or not self._end.optional:
                tensors.append(self._end.tensor(NO_END if end is None else end))
        return tensors

    def _responses(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], context: Context
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """The model's responses, a single one if it is not decoupled. Close it."""
        if self._decoupled:
            return self._predictor.stream(ModelCall(inputs, outputs, context.headers))
        return self._single(inputs, outputs, context)

    async def _single(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], context: Context
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        reply = await self._predictor.infer(ModelCall(inputs, outputs, context.headers, cancellable=True))
        try:
            yield reply.tensors
        finally:
            reply.release()


def numbers(tensor: Tensor, kinds: str = "iu", expected: str = "whole numbers") -> Array:
    """The data of one of the predictor's tensors. Raises PredictorError if it is of none of numpy's ``kinds``; an empty
    list in JSON has no kind."""
    data = tensor.data
    if data.size and data.dtype.kind not in kinds:
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected {expected}")
    return data
