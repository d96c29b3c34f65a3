"""Models that continue text and have a tokenizer of their own.

    text_input, and optionally stream, sampling_parameters (JSON), exclude_input_in_output, return_finish_reason, ...
    -> text_output, and optionally finish_reason, num_output_tokens                  vllm_backend
    text_input, max_tokens, temperature, top_k, ... -> text_output                   tensorrtllm_backend's ensemble
    text_input, sampling_param_max_tokens, ... -> text_output, finish_reason         TensorRT-LLM's LLM API model
    text_input -> text, the prompt included                                          Triton's tutorial

A decoupled model streams the new text, or the whole text so far (LLM API); another one gives all at once.
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

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.inputs import EXCLUDING, FIELDS, LLM_API, TensorGenerator, numbers
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
"""Inputs that ask for an output."""

_IN_JSON: Final = (
    *("min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Fields of Sampling that vLLM's SamplingParams has under the same name, and with the same neutral value."""

_UTF8: Final = codecs.getincrementaldecoder("utf-8")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()
_BROKEN_OFF: Final = ("abort", "cancelled", "timeout")
"""Reasons for an end, of vLLM and TensorRT-LLM, after which the text is not whole."""
_REASONS: Final[Mapping[str, FinishReason]] = {"stop": "stop", "length": "length"}
_COUNTED: Final = Tokenization(whole=True, special_tokens=False)
_LOCATED: Final = Tokenization(whole=True, special_tokens=False, detail=True)


class TextGenerator(TensorGenerator):
    """Sends text and reads text. Tokens are counted with the service's own tokenizer if the model does not count."""

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
        """Raises ContractError for a model that is not of this kind."""
        self._decode = tokenizer.decode
        self._counter = TokenCounter(tokenizer, executor)
        self._first = leading_token(tokenizer)
        self._input = settings.input_names[0] if settings.input_names else TEXT_INPUT
        names = {one.name for one in spec.outputs}
        wanted = settings.output_names[:1] or TEXT_OUTPUTS
        self._output = next((name for name in wanted if name in names), "")
        super().__init__(spec, predictor, (self._input, PARAMETERS, *_RETURNED), end=None)
        inputs = self._inputs
        self._json = PARAMETERS in inputs
        self.supported_fields -= {"logprobs"}  # the model does not say which tokens they are of
        if self._json:
            self.supported_fields |= {"max_tokens", "greedy", *_IN_JSON}
        asked = [name for name, output in _RETURNED.items() if name in inputs and output in names]
        self._outputs = [self._output, *(_RETURNED[name] for name in asked)]
        # vLLM's backend leaves the prompt out where it streams.
        self._excludes = not inputs.keys().isdisjoint(EXCLUDING) or ("stream" in inputs and spec.decoupled)
        # Its model.py sends RequestOutput.text, which grows, where others send what is new.
        self._grows = spec.decoupled and any(name.startswith(LLM_API) for name in inputs)
        if problems := self._problems(wanted):
            raise ContractError(spec.name, problems)
        self._asked = [inputs[name].tensor(True) for name in asked]
        if "max_tokens" not in self.supported_fields:
            logger.warning(
                "%s has no input for max_tokens (%s, or %s): the service truncates its texts, and a text may end "
                "earlier by the model's own default",
                spec.name,
                ", ".join(FIELDS["max_tokens"]),
                PARAMETERS,
            )

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        text = prompt.text
        if not prompt.special_tokens and self._first:  # the model's tokenizer puts it in front
            text = text.removeprefix(self._first)
        leading = None if self._excludes else LeadingPrompt(text, partial(self._decode, prompt.ids, True))
        cuts = "max_tokens" not in self.supported_fields
        reading = _Reading(
            self._outputs, self._counter, sampling.max_tokens or 1, leading, cuts=cuts, grows=self._grows
        )
        held = ""
        async with aclosing(self._responses(self._tensors(text, sampling), self._outputs, context)) as responses:
            async for tensors in responses:
                new = reading.take(tensors)
                if not self._decoupled:
                    held = new  # it comes with the end
                elif new := await reading.truncated(new):
                    yield Step((), new)
                if reading.is_over:
                    break
        yield await reading.last(held + reading.rest())

    def _tensors(self, text: str, sampling: Sampling) -> list[Tensor]:
        tensors = [self._inputs[self._input].tensor(text), *self._sampled(sampling), *self._asked]
        if self._json:
            parameters = orjson.dumps(_parameters(sampling)).decode()
            tensors.append(self._inputs[PARAMETERS].tensor(parameters))
        return tensors

    def _problems(self, wanted: Sequence[str]) -> list[str]:
        inputs, outputs = self._inputs, {one.name: one for one in self._spec.outputs}
        problems = []
        if self._input not in inputs or not self._output:
            problems.append(
                f"A text model has the input {self._input} and the output {' or '.join(wanted)}; this one has "
                f"{self._tensors_it_has}. Name them so in config.pbtxt, or with --tensor_input_names and "
                "--tensor_output_names, or set --generation_interface."
            )
        if self._output and outputs[self._output].datatype != "BYTES":
            found = outputs[self._output].datatype
            problems.append(f"Its output {self._output!r} is {found}; text is TYPE_STRING.")
        for name in (self._input, PARAMETERS, *_RETURNED):
            if name in inputs:
                problems += inputs[name].problems("flag" if name in _RETURNED else "text")
        return [*problems, *self._shared_problems(())]


def _parameters(sampling: Sampling) -> dict[str, Any]:
    """vLLM's SamplingParams: every value that is not neutral, and those with another default in other engines."""
    found: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    found |= {name: value for name in _IN_JSON if (value := getattr(sampling, name)) != getattr(NEUTRAL, name)}
    if sampling.greedy:
        for field in ("top_k", "top_p", "min_p", "seed"):
            found.pop(field, None)
        found["temperature"] = 0.0
    return found


class _Reading:
    """Reads the responses of one call, whose text may have ``most`` tokens.

    ``leading`` leaves out the prompt of a model that may give it back. Where the model takes no max_tokens, the text is
    truncated here (``cuts``); ``is_over`` says whether it was. With ``grows`` each response has the whole text so far.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        counter: TokenCounter,
        most: int,
        leading: LeadingPrompt | None,
        *,
        cuts: bool,
        grows: bool = False,
    ) -> None:
        self._outputs = outputs
        self._counter = counter
        self._most = most
        self._leading = leading
        self._cuts = cuts
        self._grows = grows
        self._taken = self._grown = b""  # of a text that grows: the bytes that were taken, and all
        self._parts: list[str] = []
        self._count = 0  # of tokens, if the model counts them
        self._reason: FinishReason | None = None
        self._decoder = _UTF8("replace")  # a response may end within a character
        self.is_over = False

    def take(self, tensors: Mapping[str, Tensor]) -> str:
        """The new text of one response. Raises PredictorError for other data, and for a text that was broken off."""
        found = tensors.get(self._outputs[0])
        new = "" if found is None else self._certain(self._decoder.decode(self._new(_element(found))))
        if COUNT in tensors:
            self._count += int(numbers(tensors[COUNT]).sum())
        if REASON in tensors:
            said = _element(tensors[REASON]).decode("utf-8", "replace")
            self._reason = _REASONS.get(said, self._reason)
            if said in _BROKEN_OFF:
                raise PredictorError(f"the predictor has broken the text off (finish_reason {said})")
        return new

    def _new(self, text: bytes) -> bytes:
        """The part of a response's text that no response before had. Replacement characters at its end are half a
        character, which the next response may have whole."""
        if not self._grows:
            return text
        self._grown, whole = text, text
        while whole.endswith(_REPLACEMENT):
            whole = whole.removesuffix(_REPLACEMENT)
        new, self._taken = whole[len(self._taken) :], max(self._taken, whole, key=len)
        return new

    def rest(self) -> str:
        """The text that was held back, after the last response."""
        rest = self._certain(self._decoder.decode(self._grown[len(self._taken) :], True))
        if self._leading is not None and (held := self._leading.rest()):
            self._parts.append(held)
            rest += held
        return rest

    async def truncated(self, new: str) -> str:
        """The new text, up to the last token that there may be."""
        if not self._cuts or not new:
            return new
        if self.is_over:
            return ""
        text = "".join(self._parts)
        kept = await self._counter.end_of(text, self._most)
        if kept is None:
            return new
        self.is_over, self._reason = True, "length"
        return text[len(text) - len(new) : kept]

    async def last(self, new: str) -> Step:
        """The last step, with the rest of the text and the model's reason for the end; without one, the number of
        tokens decides."""
        new = await self.truncated(new)
        if self._reason is not None:
            return Step((), new, (), self._reason)
        if COUNT in self._outputs:
            return Step((), new, (), "length" if self._count >= self._most else "stop")
        whole = "".join(self._parts)
        if len(whole.encode()) < self._most:  # every token is a byte at least
            return Step((), new, (), "stop")
        count = await self._counter.count(whole)
        return Step((), new, (), "length" if count >= self._most else "stop", count)

    def _certain(self, text: str) -> str:
        """The part that is certainly not the prompt's."""
        if self._leading is not None:
            text = self._leading.take(text)
        self._parts.append(text)
        return text


def _element(tensor: Tensor) -> bytes:
    """The first element, of one text."""
    if tensor.datatype != "BYTES":
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected BYTES")
    found: bytes = tensor.data.flat[0] if tensor.data.size else b""
    return found


class LeadingPrompt:
    """Removes ``prompt``, as it was sent, from the beginning of a text that comes in parts.

    ``read_back`` returns it without special tokens, as the model's tokenizer may give a chat back. It is called at most
    once, and only if the text does not begin with ``prompt``.
    """

    def __init__(self, prompt: str, read_back: Callable[[], str]) -> None:
        self._prompt = prompt
        self._read_back: Callable[[], str] | None = read_back
        self._held = ""
        self._decided = not prompt

    def take(self, text: str) -> str:
        """The part that is certainly not the prompt's."""
        if self._decided:
            return text
        self._held += text
        while not self._held.startswith(self._prompt):
            if self._prompt.startswith(self._held):
                return ""
            if self._read_back is None:
                break
            self._prompt, self._read_back = self._read_back(), None
        self._decided = True
        return self._held.removeprefix(self._prompt)

    def rest(self) -> str:
        """The text that was held back at the end, without a prompt that has lost the special tokens at its own end."""
        if self._decided:
            return ""
        if self._read_back is None or not self._held:
            return self._held
        return self._held.removeprefix(self._read_back())


class TokenCounter:
    """Counts the tokens of new text with the service's tokenizer; long texts in a thread."""

    def __init__(self, tokenizer: Tokenizer, executor: Executor) -> None:
        self._tokenizer = tokenizer
        self._executor = executor

    async def count(self, text: str) -> int:
        """The number of tokens. Raises InvalidInput for a text that can't be encoded."""
        return len((await self._encoded(text, _COUNTED)).ids)

    async def end_of(self, text: str, most: int) -> int | None:
        """The number of characters of the first ``most`` tokens; None if the text has no more tokens."""
        if len(text.encode()) <= most:
            return None
        encoding = await self._encoded(text, _LOCATED)
        if len(encoding.ids) <= most:
            return None
        if encoding.offsets is not None:
            return encoding.offsets[most - 1][1]
        return len(self._tokenizer.decode(encoding.ids[:most]))

    async def _encoded(self, text: str, how: Tokenization) -> Encoding:
        [[encoding]] = await self._tokenizer.encode_off_loop([text], self._executor, how)
        return encoding


def leading_token(tokenizer: Tokenizer) -> str:
    """The special token that the tokenizer puts in front of every text; empty if it has none, or more than one."""
    try:
        [[bare]] = tokenizer.encode_windows(["a"], _COUNTED)
        [[whole]] = tokenizer.encode_windows(["a"], Tokenization(whole=True))
    except InvalidInput:  # it can't encode any such text
        return ""
    added = len(whole.ids) - len(bare.ids)
    if added < 1 or whole.ids[1 : 1 + len(bare.ids)] != bare.ids:
        return ""
    return tokenizer.id_to_token(whole.ids[0]) or ""
