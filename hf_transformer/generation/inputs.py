"""Shared base class for token and text models, which sample the tokens themselves.

Sampling parameters of a request are sent as model inputs, named as in Triton's backends. Startup fails if an input's
datatype can't represent its values: integers need at least 32 bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.constraint import tensorrt_guide
from hf_transformer.generation.types import NEUTRAL, Generator, Sampling
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor
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
"""Datatypes that can represent each kind of value, the usual datatype first."""

LLM_API: Final = "sampling_param_"
"""Prefix of the inputs of TensorRT-LLM's LLM API model. A field name of its SamplingParams follows the prefix."""
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
"""Possible input names for each field of Sampling. The first name present in the model applies."""
KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(FIELDS, "float"),
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "seed"), "whole"),
    "logprobs": "flag",
}
"""Kind of value of each field of Sampling."""
END: Final = "end_id"
NO_END: Final = -1
"""Value of end_id that disables the end token."""
NO_WORDS: Final = (0, -1)
"""Empty word list in tensorrtllm_backend's format [2, S]: token ids, and the end offset of each word or -1."""
GUIDE_TYPE: Final = "guided_decoding_guide_type"
GUIDE: Final = "guided_decoding_guide"
"""Optional inputs of TensorRT-LLM's models for structured output: a name, and a schema, expression or grammar."""
MAX_INT32: Final = 2**31 - 1
"""Largest integer that fits every integer datatype."""

EXCLUDING: Final = ("exclude_input_in_output", f"{LLM_API}exclude_input_from_output")
"""Inputs that exclude the prompt from the returned text."""
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
"""Inputs with the same value in all requests: a single sequence, and empty word lists."""
STREAMING: Final = ("streaming", "stream")
"""Constant inputs with the value true for a decoupled model."""
SENT_IF_OPTIONAL: Final = (*STREAMING, *EXCLUDING)
"""Constant inputs to send even if they are optional."""

TOKEN_BYTES, MIN_BOUND_BYTES, RESPONSE_BYTES = 256, 2**16, 64
"""Bytes of text allowed for each token on average, and for each text in addition; and the least that a response counts.
Tokens have four bytes on average, and the longest of common vocabularies are 128 to 256 spaces."""
_ALWAYS_SENT: Final = frozenset({"max_tokens", "temperature", "top_k", "top_p"})


class ModelInput:
    """One input of a model. ``batched`` means that Triton prepends a batch axis to the shape."""

    def __init__(self, spec: TensorSpec, batched: bool) -> None:
        self.name = spec.name
        self.optional = spec.optional
        self.datatype = spec.datatype
        self.dims = (1, *spec.shape) if batched else spec.shape
        self._fixed_size = math.prod(size for size in self.dims if size >= 0)
        self._free_axes = [axis for axis, size in enumerate(self.dims) if size < 0]
        self._dtype: np.dtype[Any] = np.dtype(np.object_ if spec.datatype == "BYTES" else np.float32)  # also of BF16
        self._dtype = NUMPY_DTYPES.get(spec.datatype, self._dtype)

    @property
    def takes_images(self) -> bool:
        """Whether the input is optional, of texts, and has room for any number of them."""
        return self.optional and self.datatype == "BYTES" and bool(self._free_axes) and self._fixed_size == 1

    def fits(self, count: int) -> bool:
        """Whether the shape allows ``count`` elements."""
        size, remainder = divmod(count, self._fixed_size) if self._fixed_size else (0, count)
        return not remainder and (bool(self._free_axes) or size == 1)

    def tensor(self, values: Any) -> Tensor:
        """Builds a tensor from a single value or a flat list. Values fill the innermost free axis; other free axes have
        size 1."""
        flat = values if isinstance(values, (list, tuple)) else (values,)
        sizes = [1 if size < 0 else size for size in self.dims]
        if self._free_axes:
            sizes[self._free_axes[-1]] = len(flat) // self._fixed_size
        return Tensor(self.name, self.datatype, np.array(flat, self._dtype).reshape(sizes))

    def problems(self, kind: Kind, count: int = 1) -> list[str]:
        """Descriptions of mismatches between the input and ``count`` values of a kind; empty if they fit."""
        if not self.fits(count):
            needed = f"{count} values" if count > 1 else "one text" if kind == "text" else "one value"
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; expected room for {needed}."]
        if self.datatype in DATATYPES[kind]:
            return []
        usual = "TYPE_STRING" if kind == "text" else DATATYPES[kind][0]
        return [f"Its input {self.name!r} is {self.datatype}; export it as {usual}."]


class TensorGenerator(Generator):
    """Generator of a model that samples the tokens itself and returns a whole text in one call.

    The subclass fills the inputs listed in ``reserved``. ``end`` is the value of end_id without ignore_eos; None keeps
    the model's default.
    """

    def __init__(self, spec: ModelSpec, predictor: Predictor, reserved: Collection[str], *, end: int | None) -> None:
        self._spec = spec
        self._predictor = predictor
        self._decoupled = spec.decoupled
        self._inputs = inputs = {tensor.name: ModelInput(tensor, bool(spec.max_batch_size)) for tensor in spec.inputs}
        names = {field: next((name for name in names if name in inputs), "") for field, names in FIELDS.items()}
        self._fields = {field: inputs[name] for field, name in names.items() if name and name not in reserved}
        self._end = inputs.get(END)
        self._end_id = end
        self._constant: list[Tensor] = []
        self._input_problems: list[str] = []
        self._takes_guide = all(name in inputs and inputs[name].optional for name in (GUIDE_TYPE, GUIDE))
        filled = {*reserved, END, *(tensor.name for tensor in self._fields.values())}
        for name, tensor in inputs.items():
            if name in CONSTANT and name not in reserved:
                if tensor.optional and name not in SENT_IF_OPTIONAL:
                    continue
                value = spec.decoupled if name in STREAMING else CONSTANT[name]
                kind: Kind = "flag" if isinstance(value, bool) else "text" if isinstance(value, str) else "whole"
                problems = tensor.problems("signed", 2) if value is NO_WORDS else tensor.problems(kind)
                self._input_problems += problems
                if not problems:
                    self._constant.append(tensor.tensor(value))
            elif name not in filled and not tensor.optional:
                self._input_problems.append(
                    f"It requires the input {name!r}, which this service can't fill: mark it optional."
                )
        for field, tensor in self._fields.items():
            self._input_problems += tensor.problems(KINDS[field])
        self.supported_fields = frozenset(self._fields)
        if self.supported_fields & {"top_k", "top_p"}:  # a top_k of 1, or a top_p of 0
            self.supported_fields |= {"greedy"}
        self.hints = {**self.hints, "constraint": f"it has no inputs {GUIDE_TYPE} and {GUIDE}"}
        if self._takes_guide:
            self._input_problems += [one for name in (GUIDE_TYPE, GUIDE) for one in inputs[name].problems("text")]
            self.supported_fields |= {"constraint"}
        if self._end is not None:
            may_be_negative = end == NO_END or (end is None and not self._end.optional)
            self._input_problems += self._end.problems("signed" if may_be_negative else "whole")
            if self._end.datatype in DATATYPES["signed"]:
                self.supported_fields |= {"ignore_eos"}

    async def prepare(self, sampling: Sampling) -> object:
        if self._takes_guide and sampling.constraint is not None and sampling.constraint.kind == "tool":
            hint = "its guided decoding has no form for calls next to other text"
            raise InvalidInput(sampling.path("constraint"), "a constraint on the whole text", hint=hint)
        return None

    def _require_fit(self, problems: list[str], outputs: Collection[str] = ()) -> None:
        """Raises ContractError if the model has problems: ``problems``, invalid inputs, or datatypes that JSON can't
        stream.

        ``outputs`` are the subclass's numeric outputs.
        """
        problems, spec = [*problems, *self._input_problems], self._spec
        used = {END, *outputs, *(one.name for one in self._fields.values()), *(one.name for one in self._constant)}
        if spec.decoupled and self._predictor.streams_json:
            problems += [
                f"Its tensor {tensor.name!r} is {tensor.datatype}, which can't be streamed over REST: use "
                "--predictor_protocol=grpc-v2."
                for tensor in (*spec.inputs, *spec.outputs)
                if tensor.name in used and tensor.datatype in ("FP16", "BF16")
            ]
        if problems:
            raise ContractError(spec.name, problems)

    def _interface_problem(self, expected: str, flags: str = "") -> str:
        """Describes the ``expected`` tensors of this interface and the model's actual tensors.

        ``flags`` is an optional hint about command-line flags for renaming tensors.
        """
        inputs, outputs = (", ".join(one.name for one in side) for side in (self._spec.inputs, self._spec.outputs))
        return (
            f"A {self.interface} model has {expected}; this one has {inputs or 'none'} and {outputs or 'none'}. "
            f"Rename them in config.pbtxt, {flags}or set --generation_interface."
        )

    def _sampling_tensors(self, sampling: Sampling) -> list[Tensor]:
        """Builds the tensors of one request, without the reserved inputs.

        Always sends temperature, top_k, top_p and the seed, because models have different defaults: tensorrtllm_backend
        decodes greedily without them and uses the same seed for all requests. Omits other fields that are neutral and
        optional.
        """
        tensors = [*self._constant]
        greedy: dict[str, float] = {}
        if sampling.greedy:  # prefer top_k, since some models reject a top_p of 0
            greedy = {"top_k": 1, "top_p": 1.0} if "top_k" in self._fields else {"top_p": 0.0}
            greedy |= {"temperature": 1.0, "min_p": 0.0, "seed": 0}
        for field, tensor in self._fields.items():
            value = greedy[field] if field in greedy else getattr(sampling, field)
            if field == "seed":
                seed = random.getrandbits(63) if value is None else int(value)  # a random seed per request by default
                tensors.append(tensor.tensor(seed & (2**63 - 1 if tensor.datatype.endswith("64") else MAX_INT32)))
            elif field == "top_k":  # any large number means the whole vocabulary
                tensors.append(tensor.tensor(min(value, MAX_INT32)))
            elif field == "logprobs":
                if value is not None or not tensor.optional:
                    tensors.append(tensor.tensor(value is not None))
            elif field in _ALWAYS_SENT or value != getattr(NEUTRAL, field) or not tensor.optional:
                tensors.append(tensor.tensor(value))
        if sampling.constraint is not None and self._takes_guide:
            guide = zip((GUIDE_TYPE, GUIDE), tensorrt_guide(sampling.constraint), strict=True)
            tensors += [self._inputs[name].tensor(text) for name, text in guide if text]
        if self._end is not None:
            end = NO_END if sampling.ignore_eos else self._end_id
            if end is not None or not self._end.optional:
                tensors.append(self._end.tensor(NO_END if end is None else end))
        return tensors

    def _responses(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], context: Context, bound: ResponseBound
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """Calls the model. A model that is not decoupled returns one response. The caller closes the generator."""
        if self._decoupled:
            return self._predictor.stream(ModelCall(inputs, outputs, context.headers, check=bound.check))
        return self._unary_response(
            ModelCall(inputs, outputs, context.headers, cancellable=True, max_bytes=bound.max_bytes, check=bound.check)
        )

    async def _unary_response(self, call: ModelCall) -> AsyncGenerator[Mapping[str, Tensor], None]:
        reply = await self._predictor.infer(call)
        try:
            yield reply.tensors
        finally:
            reply.release()


class ResponseBound:
    """Bounds the responses for one text, since a model may ignore its limit of tokens.

    Args:
        max_tokens: the limit of tokens that the model knows.
        text_output: the output with new text; empty for a model that returns ids, whose responses are only counted.
        prompt: the prompt's text, which some models repeat.
        cumulative: whether each response has the whole text so far.
    """

    def __init__(self, max_tokens: int, text_output: str = "", prompt: str = "", cumulative: bool = False) -> None:
        self._max_tokens = max_tokens
        self._output = text_output
        self._cumulative = cumulative
        self._limit = self._remaining = (
            MIN_BOUND_BYTES + TOKEN_BYTES * max_tokens + len(prompt.encode(errors="replace"))
        )

    @property
    def max_bytes(self) -> int:
        """Limit of a response with the whole text and other outputs, in bytes; 0 for a model that returns ids."""
        return self._limit + MIN_BOUND_BYTES if self._output else 0

    def check(self, outputs: Outputs) -> None:
        """Raises PredictorError after a response with which the text is too long, or there are too many responses."""
        tensor = outputs.get(self._output)
        data = [] if tensor is None or tensor.datatype != "BYTES" else tensor.data.ravel().tolist()
        size = sum(map(len, data))
        self._remaining -= RESPONSE_BYTES if self._cumulative else max(size, RESPONSE_BYTES)
        if self._remaining < 0 or size > self._limit:
            raise PredictorError(
                f"the predictor sent more than {self._limit} bytes, or {self._limit // RESPONSE_BYTES} responses, "
                f"for a text of at most {self._max_tokens} tokens"
            )


def numeric_data(tensor: Tensor, kinds: str = "iu", expected: str = "whole numbers") -> Array:
    """Data of a predictor's tensor. Raises PredictorError unless ``kinds`` includes numpy's kind of its dtype.

    An empty tensor is valid with any dtype, since an empty JSON list has no type.
    """
    data = tensor.data
    if data.size and data.dtype.kind not in kinds:
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected {expected}")
    return data
