"""Models that continue text and have a tokenizer of their own.

    text_input, and optionally stream, sampling_parameters (JSON), exclude_input_in_output, return_finish_reason, ...
    -> text_output, and optionally finish_reason, num_output_tokens                  vllm_backend
    text_input, max_tokens, temperature, top_k, ... -> text_output                   tensorrtllm_backend's ensemble
    text_input -> text, the prompt included                                          Triton's tutorial

A decoupled model answers with the new text as it comes, another one with all of it.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Final

import orjson

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import PredictorError
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.model_inputs import ModelInputs, json_problems
from hf_transformer.generation.text_ends import Leading, TokenCounter, leading_token
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, Step
from hf_transformer.predictor.base import Predictor
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context, ModelSpec, Tensor

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUTS: Final = ("text_output", "text")
PARAMETERS: Final = "sampling_parameters"
REASON, COUNT = "finish_reason", "num_output_tokens"
_RETURNED: Final = {"return_finish_reason": REASON, "return_num_output_tokens": COUNT}
"""Inputs that ask for an output."""

_IN_JSON: Final = (
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
)
"""Fields of Sampling that vLLM's SamplingParams has under the same name, and with the same neutral value."""

_UTF8: Final = codecs.getincrementaldecoder("utf-8")

_REASONS: Final[Mapping[str, FinishReason]] = {"stop": "stop", "length": "length"}


class TextGenerator(Generator):
    """Sends text and reads text; tokens are counted with the service's own tokenizer where the model does not tell."""

    kind: ClassVar[str] = "text"
    gives_ids: ClassVar[bool] = False

    def __init__(
        self,
        spec: ModelSpec,
        predictor: Predictor,
        tokenizer: Tokenizer,
        settings: GeneratorSettings,
        *,
        executor: Executor,
    ) -> None:
        """Raises ContractError for a model that is not of this kind."""
        self._predictor = predictor
        self._decoupled = spec.decoupled
        self._decode = tokenizer.decode
        self._counter = TokenCounter(tokenizer, executor)
        self._first = leading_token(tokenizer)
        self._input = settings.input_names[0] if settings.input_names else TEXT_INPUT
        names = {one.name for one in spec.outputs}
        wanted = settings.output_names[:1] or TEXT_OUTPUTS
        self._output = next((name for name in wanted if name in names), "")
        self._inputs = ModelInputs(spec, (self._input, PARAMETERS, *_RETURNED), end=None, more=self._more)
        inputs = self._inputs.by_name
        self._json = PARAMETERS in inputs
        honours = self._inputs.honours - {"logprobs"}  # which tokens they are of is not told
        self._honours = honours | {"max_tokens", "greedy", *_IN_JSON} if self._json else honours
        self._is_limited = "max_tokens" in self._honours
        asked = [name for name, output in _RETURNED.items() if name in inputs and output in names]
        self._outputs = [self._output, *(_RETURNED[name] for name in asked)]
        # vLLM's backend leaves the prompt out where it streams.
        self._excludes = "exclude_input_in_output" in inputs or ("stream" in inputs and spec.decoupled)
        if problems := self._problems(spec, wanted):
            raise ContractError(spec.name, problems)
        self._asked = [inputs[name].tensor(True) for name in asked]

    @property
    def honours(self) -> frozenset[str]:
        return self._honours

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        text, sampling = self._sent(prompt), self._told(sampling)
        inputs, reading = self._tensors(text, sampling), self._reading(prompt, text, sampling)
        limit = None if self._is_limited else sampling.max_tokens
        if not self._decoupled:
            reply = await self._predictor.infer(inputs, self._outputs, context.headers, cancellable=True)
            try:
                new = reading.take(reply.tensors)
            finally:
                reply.release()
            yield await reading.last(await self._cut(reading, new + reading.rest(), limit))
            return
        async with aclosing(self._predictor.stream(inputs, self._outputs, context.headers)) as responses:
            async for tensors in responses:
                new = reading.take(tensors)
                if limit is not None:
                    new = await self._cut(reading, new, limit)
                if new:
                    yield Step((), new)
                if reading.is_over:
                    break
        yield await reading.last(await self._cut(reading, reading.rest(), limit))

    def _sent(self, prompt: Prompt) -> str:
        """The prompt, without what the model's tokenizer puts in front of it."""
        text = prompt.text
        if not prompt.special_tokens and self._first and text.startswith(self._first):
            return text[len(self._first) :]
        return text

    def _told(self, sampling: Sampling) -> Sampling:
        """With no more new tokens than the model can be told of, where these are not the client's own."""
        return sampling if (sampling.max_tokens or 1) <= self._inputs.most_tokens else self._inputs.bounded(sampling)

    def _reading(self, prompt: Prompt, text: str, sampling: Sampling) -> _Reading:
        """``text`` is what was sent of the prompt."""
        leading = None if self._excludes else Leading(text, partial(self._decode, prompt.ids, True))
        return _Reading(self._outputs, self._counter, sampling.max_tokens or 1, leading)

    def _tensors(self, text: str, sampling: Sampling) -> list[Tensor]:
        return [self._inputs.by_name[self._input].text(text), *self._inputs.tensors(sampling)]

    def _more(self, sampling: Sampling) -> Sequence[Tensor]:
        """What asks for outputs, and the parameters as JSON."""
        if not self._json:
            return self._asked
        return [*self._asked, self._inputs.by_name[PARAMETERS].text(orjson.dumps(_parameters(sampling)).decode())]

    async def _cut(self, reading: _Reading, new: str, limit: int | None) -> str:
        """The new text, up to the last token that may be there, of a model that is not told how many these are."""
        if limit is None or not new:
            return new
        if reading.is_over:
            return ""
        text = reading.text
        kept = await self._counter.cut(text, limit)
        if kept is None:
            return new
        reading.is_over, reading.reason = True, "length"
        return text[len(text) - len(new) : kept]

    def _problems(self, spec: ModelSpec, wanted: Sequence[str]) -> list[str]:
        """What does not fit, in a sentence each."""
        inputs, outputs = self._inputs.by_name, {one.name: one for one in spec.outputs}
        problems = []
        if self._input not in inputs or not self._output:
            problems.append(
                f"A text model has the input {self._input} and the output {' or '.join(wanted)}; this one has "
                f"{', '.join(inputs) or 'none'} and {', '.join(outputs) or 'none'}. Name them so in config.pbtxt, or "
                "with --tensor_input_names and --tensor_output_names, or set --generation_interface."
            )
        for name in (self._input, PARAMETERS):
            if name in inputs:
                problems += inputs[name].text_problems()
        if self._output and outputs[self._output].datatype != "BYTES":
            found = outputs[self._output].datatype
            problems.append(f"Its output {self._output!r} is {found}; text is TYPE_STRING.")
        for name in _RETURNED:
            if name in inputs:
                problems += inputs[name].scalar_problems(bool)
        return [*problems, *self._inputs.problems, *json_problems(spec, self._predictor, self._inputs, ())]


def _parameters(sampling: Sampling) -> dict[str, Any]:
    """vLLM's SamplingParams: all that is not neutral, and what others may have another default for."""
    found: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    found |= {
        field: getattr(sampling, field) for field in _IN_JSON if getattr(sampling, field) != getattr(_NEUTRAL, field)
    }
    if sampling.greedy:
        for field in ("top_k", "top_p", "min_p", "seed"):
            found.pop(field, None)
        found["temperature"] = 0.0
    return found


_NEUTRAL: Final = Sampling()


class _Reading:
    """The answers of one call, read to text, which may have ``most`` tokens. ``leading`` leaves out the prompt, of a
    model that may give it back."""

    reason: FinishReason | None = None
    is_over = False
    """Whether the text was cut, and what the model still says is too much."""
    _count = 0  # of tokens, as far as the model tells
    _decoder: codecs.IncrementalDecoder | None = None  # once an answer ends within a character

    def __init__(self, outputs: Sequence[str], counter: TokenCounter, most: int, leading: Leading | None) -> None:
        self._outputs = outputs
        self._counter = counter
        self._most = most
        self._leading = leading
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._parts)

    def take(self, tensors: Mapping[str, Tensor]) -> str:
        """The new text of one answer. Raises PredictorError for what is no text."""
        found = tensors.get(self._outputs[0])
        new = "" if found is None else self._certain(self._decode(_element(found)))
        if len(self._outputs) > 1:
            self._note(tensors)
        return new

    def rest(self) -> str:
        """What was held back: there are no more answers."""
        rest = "" if self._decoder is None else self._certain(self._decoder.decode(b"", True))
        if self._leading is not None and (held := self._leading.rest()):
            self._parts.append(held)
            rest += held
        return rest

    async def last(self, text: str) -> Step:
        """The last step, with the rest of the text, and why it has ended: what the model says, or whether there are as
        many tokens as there may be."""
        if self.reason is not None:
            return Step((), text, (), self.reason)
        if COUNT in self._outputs:
            return Step((), text, (), "length" if self._count >= self._most else "stop")
        whole = self.text
        if len(whole.encode()) < self._most:  # every token is a byte at least
            return Step((), text, (), "stop")
        count = await self._counter.count(whole)
        return Step((), text, (), "length" if count >= self._most else "stop", count)

    def _decode(self, data: bytes) -> str:
        """The characters that are whole now."""
        if self._decoder is None:
            try:
                return data.decode()
            except UnicodeDecodeError:
                self._decoder = _UTF8("replace")
        return self._decoder.decode(data)

    def _certain(self, text: str) -> str:
        """What certainly is no more of the prompt, which is new."""
        if self._leading is not None:
            text = self._leading.take(text)
        self._parts.append(text)
        return text

    def _note(self, tensors: Mapping[str, Tensor]) -> None:
        """What the model tells beside the text. Raises PredictorError for a text that it has broken off."""
        if COUNT in tensors:
            self._count += _count(tensors[COUNT])
        if REASON in tensors:
            said = _element(tensors[REASON]).decode("utf-8", "replace")
            self.reason = _REASONS.get(said, self.reason)
            if said == "abort":
                raise PredictorError("the predictor has broken the text off (finish_reason abort)")


def _count(tensor: Tensor) -> int:
    if tensor.data.size and tensor.data.dtype.kind not in "iu":
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected whole numbers")
    return int(tensor.data.sum())


def _element(tensor: Tensor) -> bytes:
    """The first element, of one text."""
    if tensor.datatype != "BYTES":
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected BYTES")
    found: bytes = tensor.data.flat[0] if tensor.data.size else b""
    return found
