"""Generators for models that take text, return text and tokenize internally.

    text_input, and optionally stream, sampling_parameters (JSON), exclude_input_in_output, return_finish_reason, ...
    -> text_output, and optionally finish_reason, num_output_tokens                  vllm_backend
    text_input, max_tokens, temperature, top_k, ... -> text_output                   tensorrtllm_backend's ensemble
    text_input, sampling_param_max_tokens, ... -> text_output, finish_reason         TensorRT-LLM's LLM API model
    text_input -> text, including the prompt                                         Triton's tutorial

vLLM's backend and the LLM API model may have an optional input for images, ``image`` (base64) or ``image_url``.

A decoupled model streams the new text, or the whole text so far (LLM API). Other models return the text in one
response.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Final

import orjson

from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.constraint import STRUCTURED_OUTPUTS, vllm_fields, with_reasoning
from hf_transformer.generation.images import ImageForm
from hf_transformer.generation.inputs import EXCLUDING, FIELDS, LLM_API, ResponseBound, TensorGenerator, numeric_data
from hf_transformer.generation.types import NEUTRAL, FinishReason, GeneratorSettings, Prompt, Sampling, Step
from hf_transformer.predictor.base import Predictor
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec, Tensor
from hf_transformer.types.tokenization import Encoding, Tokenization

logger = logging.getLogger(__name__)

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUTS: Final = ("text_output", "text")
PARAMETERS: Final = "sampling_parameters"
REASON, COUNT = "finish_reason", "num_output_tokens"
_RETURNED: Final = {"return_finish_reason": REASON, "return_num_output_tokens": COUNT}
"""Boolean inputs that enable an optional output, each with the name of that output."""

IMAGE_INPUTS: Final[Mapping[str, ImageForm]] = {"image": "base64", "image_url": "url"}
"""Optional inputs for images: of vLLM's backend, and of TensorRT-LLM's LLM API model since August 2026.

Sources: https://github.com/triton-inference-server/vllm_backend, src/utils/request.py, and
https://github.com/NVIDIA/TensorRT-LLM, triton_backend/all_models/llmapi/tensorrt_llm
"""
_IN_JSON: Final = (
    *("min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Fields of Sampling with the same name and neutral value in vLLM's SamplingParams."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()
_INCOMPLETE: Final = ("abort", "cancelled", "timeout")
"""Finish reasons of vLLM and TensorRT-LLM for an incomplete text."""
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {"stop": "stop", "length": "length"}
_WITHOUT_SPECIAL: Final = Tokenization(whole=True, special_tokens=False)
_WITH_OFFSETS: Final = Tokenization(whole=True, special_tokens=False, detail=True)


class TextGenerator(TensorGenerator):
    """Generator of a model that takes and returns text.

    Counts tokens with the service's tokenizer if the model does not return their number.
    """

    interface: ClassVar[str] = "text"

    def __init__(
        self,
        spec: ModelSpec,
        predictor: Predictor,
        tokenizer: Tokenizer,
        settings: GeneratorSettings,
        *,
        executor: Executor,
    ) -> None:
        """Raises ContractError if the model's tensors do not match."""
        self._decode = tokenizer.decode
        self._max_length = settings.max_length
        self._counter = TokenCounter(tokenizer, executor)
        self._leading_token = leading_token(tokenizer)
        self._input = settings.input_names[0] if settings.input_names else TEXT_INPUT
        names = {tensor.name for tensor in spec.outputs}
        output_names = settings.output_names[:1] or TEXT_OUTPUTS
        self._output = next((name for name in output_names if name in names), "")
        super().__init__(spec, predictor, (self._input, PARAMETERS, *_RETURNED), end=None)
        inputs = self._inputs
        taken = [name for name in IMAGE_INPUTS if name in inputs and inputs[name].takes_images]
        self._image_input = taken[0] if taken else ""
        self.image_form = IMAGE_INPUTS[taken[0]] if taken else None
        self._takes_json = PARAMETERS in inputs
        self._form = settings.structured_output_form
        self._reasoning_by = settings.structured_output_reasoning
        self.takes_adapters = self._takes_json
        self.supported_fields -= {"logprobs"}  # the model does not return the corresponding tokens
        if self._takes_json:
            self.supported_fields |= {"max_tokens", "greedy", *_IN_JSON}
            self.hints = {**self.hints, "constraint": "the service runs with --structured_output_form=none"}
            if settings.structured_output_form != "none":
                self.supported_fields |= {"constraint"}
            self.reasons_first = self._form == STRUCTURED_OUTPUTS or self._reasoning_by == "engine"
        returned = [name for name, output in _RETURNED.items() if name in inputs and output in names]
        self._outputs = [self._output, *(_RETURNED[name] for name in returned)]
        # vLLM's backend excludes the prompt when it streams.
        self._excludes_prompt = not inputs.keys().isdisjoint(EXCLUDING) or ("stream" in inputs and spec.decoupled)
        # The LLM API model streams RequestOutput.text, the whole text so far; other models stream new text.
        self._cumulative = spec.decoupled and any(name.startswith(LLM_API) for name in inputs)
        self._require_fit(self._problems(output_names))
        self._return_flags = [inputs[name].tensor(True) for name in returned]
        self._truncates = "max_tokens" not in self.supported_fields
        if self._truncates:
            logger.warning(
                "%s has no input for max_tokens (%s, or %s): the service truncates its texts, and a text may end "
                "earlier by the model's own default",
                spec.name,
                ", ".join(FIELDS["max_tokens"]),
                PARAMETERS,
            )

    async def prepare(self, sampling: Sampling) -> object:
        if not self._takes_json:
            return await super().prepare(sampling)
        if sampling.constraint is not None and sampling.constraint.kind == "tool" and self._form != STRUCTURED_OUTPUTS:
            hint = f"calls next to other text need --structured_output_form={STRUCTURED_OUTPUTS}"
            raise InvalidInput(sampling.path("constraint"), "a constraint on the whole text", hint=hint)
        return None

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        text = prompt.text
        if not prompt.special_tokens and self._leading_token:  # the model's tokenizer adds it again
            text = text.removeprefix(self._leading_token)
        prefix = None if self._excludes_prompt else PromptRemover(text, partial(self._decode, prompt.ids, True))
        reader, whole = TextResponseReader(self, sampling.max_tokens or 1, prefix), ""
        inputs = self._tensors(text, sampling, context.adapter)
        if prompt.images:
            inputs = self._with_images(prompt, inputs)
        # A model without an input for max_tokens has its own limit.
        most = self._max_length if self._truncates else sampling.max_tokens or 1
        bound = ResponseBound(most, self._output, prompt.text, self._cumulative)
        async with aclosing(self._responses(inputs, self._outputs, context, bound)) as responses:
            async for tensors in responses:
                new = reader.push(tensors)
                if not self._decoupled:
                    whole = new  # yielded with the finish reason
                elif new:
                    if self._truncates:
                        new = await reader.truncate(new)
                    if new:
                        yield Step((), new)
                if reader.is_truncated:
                    break
        yield await reader.last(whole + reader.flush())

    def _tensors(self, text: str, sampling: Sampling, adapter: str) -> list[Tensor]:
        tensors = [self._inputs[self._input].tensor(text), *self._sampling_tensors(sampling), *self._return_flags]
        if self._takes_json:
            chosen = {"lora_name": adapter} if adapter else {}
            form = {} if sampling.constraint is None else vllm_fields(sampling.constraint, self._form)
            if sampling.constraint is not None and sampling.reasoning is not None and self._reasoning_by == "grammar":
                form = with_reasoning(sampling.constraint, sampling.reasoning()) or form
            parameters = orjson.dumps({**_sampling_params(sampling), **form, **chosen}).decode()
            tensors.append(self._inputs[PARAMETERS].tensor(parameters))
        return tensors

    def _with_images(self, prompt: Prompt, inputs: list[Tensor]) -> list[Tensor]:
        """Adds the images to the inputs of a call. A model that takes URLs renders the chat template itself."""
        image_input = self._inputs[self._image_input]
        if self.image_form == "base64":
            return [*inputs, image_input.tensor([image.base64 for image in prompt.images])]
        question = self._inputs[self._input].tensor(prompt.question)
        return [question, *inputs[1:], image_input.tensor([image.url for image in prompt.images])]

    def _problems(self, output_names: Sequence[str]) -> list[str]:
        inputs, problems = self._inputs, []
        if self._input not in inputs or not self._output:
            expected = f"the input {self._input} and the output {' or '.join(output_names)}"
            problems.append(
                self._interface_problem(expected, "or with --tensor_input_names and --tensor_output_names, ")
            )
        for tensor in self._spec.outputs:
            if tensor.name == self._output and tensor.datatype != "BYTES":
                problems.append(f"Its output {tensor.name!r} is {tensor.datatype}; text is TYPE_STRING.")
        for name in (self._input, PARAMETERS, *_RETURNED):
            if name in inputs:
                problems += inputs[name].problems("flag" if name in _RETURNED else "text")
        return problems


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Builds vLLM's SamplingParams from all values that are not neutral.

    Always includes max_tokens and temperature, because their defaults differ between engines.
    """
    params: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    params |= {name: value for name in _IN_JSON if (value := getattr(sampling, name)) != getattr(NEUTRAL, name)}
    if sampling.greedy:
        for field in ("top_k", "top_p", "min_p", "seed"):
            params.pop(field, None)
        params["temperature"] = 0.0
    if sampling.shown_tokens:
        params["skip_special_tokens"] = False
    return params


class TextResponseReader:
    """Reads the responses of one call to a text model.

    ``prefix`` removes the prompt if the model may return it. ``is_truncated`` is true if the service truncated the text
    at ``max_tokens``, because the model has no input for it.
    """

    def __init__(self, generator: TextGenerator, max_tokens: int, prefix: PromptRemover | None) -> None:
        self._outputs = generator._outputs
        self._counter = generator._counter
        self._truncates = generator._truncates
        self._cumulative = generator._cumulative
        self._max_tokens = max_tokens
        self._prefix = prefix
        self._read = self._received = b""  # of a cumulative text
        self._parts: list[str] = []
        self._count = 0  # tokens, if the model counts them
        self._reason: FinishReason | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a response may end within a character
        self.is_truncated = False

    def push(self, tensors: Mapping[str, Tensor]) -> str:
        """Reads one response, and returns its new text. Raises PredictorError for invalid datatypes and for incomplete
        texts."""
        output = tensors.get(self._outputs[0])
        new = "" if output is None else self._without_prompt(self._decoder.decode(self._new_bytes(_first_text(output))))
        if COUNT in tensors:
            self._count += int(numeric_data(tensors[COUNT]).sum())
        if REASON in tensors:
            reason = _first_text(tensors[REASON]).decode("utf-8", "replace")
            self._reason = _FINISH_REASONS.get(reason, self._reason)
            if reason in _INCOMPLETE:
                raise PredictorError(f"the predictor returned an incomplete text (finish_reason {reason})")
        return new

    def _new_bytes(self, text: bytes) -> bytes:
        """Returns the bytes that are new in this response.

        Trailing replacement characters stand for an incomplete character, which the next response may complete.
        """
        if not self._cumulative:
            return text
        self._received, complete = text, text
        while complete.endswith(_REPLACEMENT):
            complete = complete.removesuffix(_REPLACEMENT)
        new, self._read = complete[len(self._read) :], max(self._read, complete, key=len)
        return new

    def flush(self) -> str:
        """Returns the buffered text after the last response."""
        rest = self._without_prompt(self._decoder.decode(self._received[len(self._read) :], True))
        if self._prefix is not None and (held := self._prefix.flush()):
            self._parts.append(held)
            rest += held
        return rest

    async def truncate(self, new: str) -> str:
        """Truncates the new text at ``max_tokens``, if the model doesn't."""
        if not self._truncates or not new:
            return new
        if self.is_truncated:
            return ""
        text = "".join(self._parts)
        end = await self._counter.end_of(text, self._max_tokens)
        if end is None:
            return new
        self.is_truncated, self._reason = True, "length"
        return text[len(text) - len(new) : end]

    async def last(self, new: str) -> Step:
        """Builds the last step, with the rest of the text.

        If the model returns no finish reason, the number of tokens determines it.
        """
        new = await self.truncate(new)
        if self._reason is not None:
            return Step((), new, (), self._reason)
        if COUNT in self._outputs:
            return Step((), new, (), "length" if self._count >= self._max_tokens else "stop")
        whole = "".join(self._parts)
        if len(whole.encode()) < self._max_tokens:  # every token has at least one byte
            return Step((), new, (), "stop")
        count = await self._counter.count(whole)
        return Step((), new, (), "length" if count >= self._max_tokens else "stop", count)

    def _without_prompt(self, text: str) -> str:
        if self._prefix is not None:
            text = self._prefix.push(text)
        self._parts.append(text)
        return text


def _first_text(tensor: Tensor) -> bytes:
    """First element of a predictor's tensor, or empty bytes. Raises PredictorError if the datatype is not BYTES."""
    if tensor.datatype != "BYTES":
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected BYTES")
    text: bytes = tensor.data.item(0) if tensor.data.size else b""
    return text


class PromptRemover:
    """Removes ``prompt`` from the beginning of a streamed text.

    ``read_back`` returns the prompt without special tokens, since some models omit them from the returned prompt. The
    class calls it at most once, and only if the text does not begin with ``prompt``.
    """

    def __init__(self, prompt: str, read_back: Callable[[], str]) -> None:
        self._prompt = prompt
        self._read_back: Callable[[], str] | None = read_back
        self._held = ""
        self._is_decided = not prompt

    def push(self, text: str) -> str:
        """Adds a chunk. Returns the text after the prompt, or nothing while the text may still be the prompt."""
        if self._is_decided:
            return text
        self._held += text
        while not self._held.startswith(self._prompt):
            if self._prompt.startswith(self._held):
                return ""
            if self._read_back is None:
                break
            self._prompt, self._read_back = self._read_back(), None
        self._is_decided = True
        return self._held.removeprefix(self._prompt)

    def flush(self) -> str:
        """Returns the buffered text at the end. Removes the prompt without special tokens if the text begins with
        it."""
        if self._is_decided:
            return ""
        if self._read_back is None or not self._held:
            return self._held
        return self._held.removeprefix(self._read_back())


class TokenCounter:
    """Counts the tokens of generated text with the service's tokenizer. Long texts are tokenized in a thread."""

    def __init__(self, tokenizer: Tokenizer, executor: Executor) -> None:
        self._tokenizer = tokenizer
        self._executor = executor

    async def count(self, text: str) -> int:
        """Number of tokens of a text. Raises InvalidInput for a text that the tokenizer can't encode."""
        return len((await self._encode(text, _WITHOUT_SPECIAL)).ids)

    async def end_of(self, text: str, max_tokens: int) -> int | None:
        """Number of characters of the first ``max_tokens`` tokens; None if the text has at most ``max_tokens``
        tokens."""
        if len(text.encode()) <= max_tokens:
            return None
        encoding = await self._encode(text, _WITH_OFFSETS)
        if len(encoding.ids) <= max_tokens:
            return None
        if encoding.offsets is not None:
            return encoding.offsets[max_tokens - 1][1]
        return len(self._tokenizer.decode(encoding.ids[:max_tokens]))

    async def _encode(self, text: str, options: Tokenization) -> Encoding:
        [[encoding]] = await self._tokenizer.encode_off_loop([text], self._executor, options)
        return encoding


def leading_token(tokenizer: Tokenizer) -> str:
    """Special token that the tokenizer adds before a text, usually BOS. Empty unless it adds exactly one token
    there."""
    try:
        [[bare]] = tokenizer.encode_windows(["a"], _WITHOUT_SPECIAL)
        [[whole]] = tokenizer.encode_windows(["a"], Tokenization(whole=True))
    except InvalidInput:  # a tokenizer of another alphabet
        return ""
    added = len(whole.ids) - len(bare.ids)
    if added < 1 or whole.ids[1 : 1 + len(bare.ids)] != bare.ids:
        return ""
    return tokenizer.id_to_token(whole.ids[0]) or ""
