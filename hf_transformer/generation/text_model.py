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
from typing import Any, ClassVar, Final

import orjson

from hf_transformer.contract import ContractError
from hf_transformer.errors import PredictorError
from hf_transformer.following import Followed, source_of
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.followed_steps import FollowedSteps
from hf_transformer.generation.model_inputs import ModelInputs, json_problems
from hf_transformer.generation.text_ends import Leading, TokenCounter, leading_token
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, Step
from hf_transformer.predictors.base import Predictor
from hf_transformer.tokenizer import Tokenizer
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
    "ignore_eos",
)
"""Fields of Sampling that vLLM's SamplingParams has under the same name, and with the same neutral value."""

_UTF8: Final = codecs.getincrementaldecoder("utf-8")

_REASONS: Final[Mapping[str, FinishReason]] = {"stop": "stop", "length": "length"}


class TextGenerator(Generator):
    """Sends text and reads text; tokens are counted with the service's own tokenizer where the model does not tell."""

    kind: ClassVar[str] = "text"

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
        self._counter = TokenCounter(tokenizer, executor)
        self._first = leading_token(tokenizer)
        self._input = settings.input_names[0] if settings.input_names else TEXT_INPUT
        names = {one.name for one in spec.outputs}
        wanted = settings.output_names[:1] or TEXT_OUTPUTS
        self._output = next((name for name in wanted if name in names), "")
        self._inputs = ModelInputs(spec, (self._input, PARAMETERS, *_RETURNED), end=None)
        inputs = self._inputs.by_name
        self._json = PARAMETERS in inputs
        honours = self._inputs.honours - {"logprobs"}  # which tokens they are of is not told
        self._honours = honours | {"max_tokens", "greedy", *_IN_JSON} if self._json else honours
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

    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        followed = FollowedSteps()
        return Followed(self._generate(prompt, sampling, context, followed), followed)

    async def _generate(
        self, prompt: Prompt, sampling: Sampling, context: Context, followed: FollowedSteps
    ) -> AsyncGenerator[Step, None]:
        text = prompt.text
        if not prompt.special_tokens and self._first and text.startswith(self._first):
            text = text[len(self._first) :]  # the model's tokenizer puts it there
        inputs = self._tensors(text, sampling)
        reading = _Reading(self._outputs, "" if self._excludes else text)
        limit = None if "max_tokens" in self._honours else sampling.max_tokens
        if not self._decoupled:
            async with self._predictor.infer(inputs, self._outputs, context.headers) as tensors:
                reading.take(tensors)
            reading.finish()
            written = await self._cut(reading, limit)
            yield await self._last(written, reading, sampling)
            return
        async with aclosing(self._predictor.stream(inputs, self._outputs, context.headers)) as responses:
            if limit is None:  # else tokens have to be counted, which takes a turn
                followed.begin(source_of(responses), reading)
            async for tensors in responses:
                reading.take(tensors)
                written = reading.take_new() if limit is None else await self._cut(reading, limit)
                if written:
                    yield Step(text=written)
                if reading.is_cut:
                    break
        reading.finish()
        yield await self._last(await self._cut(reading, limit), reading, sampling)

    async def canary(self, prompt: Prompt) -> None:
        sampling = Sampling(max_tokens=1, greedy=True)
        async with aclosing(self.generate(prompt, sampling, Context("canary", {}))) as steps:
            async for _ in steps:
                pass

    async def close(self) -> None:
        """Nothing goes on for nobody: each call is one continuation's own."""

    def _tensors(self, text: str, sampling: Sampling) -> list[Tensor]:
        inputs = self._inputs.by_name
        tensors = [inputs[self._input].tensor(text), *self._asked, *self._inputs.tensors(sampling)]
        if self._json:
            tensors.append(inputs[PARAMETERS].tensor(orjson.dumps(_parameters(sampling)).decode()))
        return tensors

    async def _cut(self, reading: _Reading, limit: int | None) -> str:
        """The new text, up to the last token that may be there, of a model that is not told how many these are."""
        new = reading.take_new()
        if limit is None or not new:
            return new
        if reading.is_cut:
            return ""
        before = len(reading.text) - len(new)
        kept = await self._counter.cut(reading.text, limit)
        if kept is None:
            return new
        reading.is_cut, reading.reason = True, "length"
        return reading.text[before:kept]

    async def _last(self, text: str, reading: _Reading, sampling: Sampling) -> Step:
        """The last step, with the rest of the text, and why it has ended: what the model says, or whether there are as
        many tokens as there may be."""
        if reading.reason is not None:
            return Step(text=text, finish=reading.reason)
        most = sampling.max_tokens or 1
        if COUNT in self._outputs:
            return Step(text=text, finish="length" if reading.count >= most else "stop")
        count = await self._counter.count_if(reading.text, most)
        return Step(text=text, finish="length" if (count or 0) >= most else "stop", total=count)

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
                problems += inputs[name].scalar_problems(fraction=False)
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
    """The answers of one call, read to text."""

    def __init__(self, outputs: Sequence[str], prompt: str) -> None:
        """prompt: what may stand in front."""
        self._output = outputs[0]
        self._decoder = _UTF8("replace")
        self._leading = Leading(prompt)
        self.text = ""
        """All of it so far."""
        self._new = ""
        self.count = 0
        """Tokens, as far as the model tells."""
        self.reason: FinishReason | None = None
        self.is_cut = False
        """Whether the text has ended, and what the model still says is too much."""

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """One answer. Raises PredictorError for what is no text."""
        if self._output in tensors:
            self._add(self._leading.take(self._decoder.decode(_element(tensors[self._output]))))
        if COUNT in tensors:
            self.count += _count(tensors[COUNT])
        if REASON in tensors:
            said = _element(tensors[REASON]).decode("utf-8", "replace")
            self.reason = _REASONS.get(said, self.reason)
            if said == "abort":
                raise PredictorError("the predictor has broken the text off (finish_reason abort)")

    @property
    def is_over(self) -> bool:
        """Whether it is cut."""
        return self.is_cut

    def new(self, tensors: Mapping[str, Tensor]) -> Step | None:
        """What an answer adds to the text, None for nothing. Raises PredictorError as ``take`` does."""
        self.take(tensors)
        written = self.take_new()
        return Step(text=written) if written else None

    def take_new(self) -> str:
        """What has come since this was called last."""
        new, self._new = self._new, ""
        return new

    def finish(self) -> None:
        """There are no more answers."""
        self._add(self._leading.take(self._decoder.decode(b"", True)))
        self._add(self._leading.rest())

    def _add(self, text: str) -> None:
        self.text += text
        self._new += text


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
