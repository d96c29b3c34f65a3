"""Generators for models that take and return token ids, with the tensors of tensorrtllm_backend.

    input_ids [S], input_lengths, request_output_len, and optionally end_id, pad_id, temperature, runtime_top_k or
    top_k, runtime_top_p or top_p, random_seed or seed, repetition_penalty, streaming, ... (see inputs.py)
    -> output_ids [beams, S], and optionally sequence_length, output_log_probs

Each tensor may have a leading batch axis. A decoupled model streams new tokens; others return all tokens in one
response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.inputs import NO_WORDS, ResponseBound, TensorGenerator, numeric_data
from hf_transformer.generation.types import (
    LANGUAGES,
    FinishReason,
    GeneratorSettings,
    Prompt,
    Sampling,
    Step,
    TokenScore,
)
from hf_transformer.predictor.base import Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec, Tensor

IDS, LENGTHS, NEW_TOKENS = "input_ids", "input_lengths", "request_output_len"
DECODER_IDS, DECODER_LENGTHS = "decoder_input_ids", "decoder_input_lengths"
OUTPUT, LENGTH, SCORES = "output_ids", "sequence_length", "output_log_probs"
PAD, WORDS = "pad_id", "stop_words_list"
_RESERVED = (IDS, LENGTHS, DECODER_IDS, DECODER_LENGTHS, PAD, WORDS)


class TokenGenerator(TensorGenerator):
    """Generator of a model that takes and returns token ids. Its steps omit end tokens."""

    interface: ClassVar[str] = "tokens"

    def __init__(self, spec: ModelSpec, predictor: Predictor, settings: GeneratorSettings) -> None:
        """Raises ContractError if the model's tensors do not match."""
        self._eos_ids = settings.eos_ids
        self._decoder_start = settings.decoder_start_ids
        # end_id takes one token. Other end tokens are sent as stop words, or this class searches for them.
        *self._other_eos_ids, end = sorted(self._eos_ids) or [-1]
        super().__init__(spec, predictor, _RESERVED, end=end)
        values: dict[str, Sequence[int] | int] = {PAD: settings.pad_id}
        if self._decoder_start:
            values |= {DECODER_IDS: self._decoder_start, DECODER_LENGTHS: len(self._decoder_start)}
        self._reserved_values = {name: value for name, value in values.items() if name in self._inputs}
        outputs = {tensor.name for tensor in spec.outputs}
        self._outputs = [name for name in (OUTPUT, LENGTH) if name in outputs]
        self.supported_fields |= {"stop_token_ids"}  # this class searches for them if the model has no stop words
        if DECODER_IDS in self._reserved_values:
            self.supported_fields |= {*LANGUAGES}
        if SCORES not in outputs:
            self.supported_fields -= {"logprobs"}
        if self._other_eos_ids:  # min_tokens makes the model suppress its end_id, and no other token
            self.supported_fields -= {"min_tokens"}
        self._may_repeat_prompt = "exclude_input_in_output" not in self._inputs
        """Whether a response may begin with the prompt. The first response without the prompt sets it to False
        permanently."""
        self._require_fit(self._problems(), (OUTPUT, SCORES))

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        sampling, end_ids = self._end_tokens(sampling)
        start = prompt.decoder_start or self._decoder_start or prompt.ids
        reader = TokenResponseReader(self, [*start], end_ids, sampling)
        inputs = self._tensors(prompt, sampling)
        outputs = self._outputs if sampling.logprobs is None else [*self._outputs, SCORES]
        bound = ResponseBound(sampling.max_tokens or 1)
        async with aclosing(self._responses(inputs, outputs, context, bound)) as responses:
            async for tensors in responses:
                if reader.finish is not None:  # the model continues after the end
                    break
                step = reader.push(tensors)
                if not self._decoupled:
                    step.finish = reader.last().finish
                    yield step
                    return
                if step.ids:
                    yield step
        yield reader.last()

    def _end_tokens(self, sampling: Sampling) -> tuple[Sampling, frozenset[int]]:
        """Returns the sampling parameters to send to the model, and the tokens that end the text. Raises
        InvalidInput."""
        if sampling.logprobs:
            hint = "this model returns the log probability of the chosen token alone"
            raise InvalidInput(sampling.path("logprobs"), "0", str(sampling.logprobs), hint)
        end_ids = frozenset[int]() if sampling.ignore_eos else self._eos_ids
        if not end_ids.isdisjoint(sampling.stop_token_ids):  # the model ends there anyway, and suppresses them itself
            remaining = tuple(token for token in sampling.stop_token_ids if token not in end_ids)
            sampling = replace(sampling, stop_token_ids=remaining)
        if sampling.stop_token_ids and sampling.min_tokens:
            hint = "this model can't suppress stop tokens; leave out either parameter"
            raise InvalidInput(sampling.path("stop_token_ids"), "no stop tokens with min_tokens", "both", hint)
        return sampling, end_ids.union(sampling.stop_token_ids)

    def _without_prompt(self, prompt: list[int], ids: list[int]) -> list[int]:
        """Removes the prompt from the tokens of a first response."""
        # A stream never begins with a response that contains only the prompt: such a response is new text.
        if ids[: len(prompt)] != prompt or (self._decoupled and len(ids) == len(prompt)):
            self._may_repeat_prompt = False
        return ids[len(prompt) :] if self._may_repeat_prompt else ids

    def _tensors(self, prompt: Prompt, sampling: Sampling) -> list[Tensor]:
        inputs, values = self._inputs, self._reserved_values
        if WORDS in inputs:  # the model ends a text at these tokens; the client's are added if they fit
            eos_ids = [] if sampling.ignore_eos else self._other_eos_ids
            all_ids = [*eos_ids, *sampling.stop_token_ids]
            words = _stop_words(all_ids if inputs[WORDS].fits(2 * len(all_ids)) else eos_ids)
            if words or not inputs[WORDS].optional:
                values = {**values, WORDS: words or NO_WORDS}
        if prompt.decoder_start:
            values = {**values, DECODER_IDS: prompt.decoder_start}
            if DECODER_LENGTHS in inputs:
                values[DECODER_LENGTHS] = len(prompt.decoder_start)
        tensors = [inputs[IDS].tensor(prompt.ids)]
        if LENGTHS in inputs:
            tensors.append(inputs[LENGTHS].tensor(len(prompt.ids)))
        tensors += [inputs[name].tensor(value) for name, value in values.items()]
        return [*tensors, *self._sampling_tensors(sampling)]

    def _problems(self) -> list[str]:
        inputs, values = self._inputs, dict(self._reserved_values)
        problems = []
        if IDS not in inputs or "max_tokens" not in self.supported_fields or OUTPUT not in self._outputs:
            problems.append(self._interface_problem(f"the inputs {IDS} and {NEW_TOKENS} and the output {OUTPUT}"))
        if not self._decoder_start and DECODER_IDS in inputs and not inputs[DECODER_IDS].optional:
            problems.append(f"It requires the input {DECODER_IDS!r}, but config.json describes no encoder-decoder.")
        if WORDS in inputs and (self._other_eos_ids or not inputs[WORDS].optional):
            values[WORDS] = _stop_words(self._other_eos_ids) or NO_WORDS
        counts = dict.fromkeys([name for name in (IDS, LENGTHS) if name in inputs], 1)
        counts |= {name: 1 if isinstance(value, int) else len(value) for name, value in values.items()}
        for name, count in counts.items():
            if name in (IDS, DECODER_IDS) and not (inputs[name].fits(1) and inputs[name].fits(2)):
                problems.append(f"Its input {name!r} has a fixed length; set dims: [ -1 ] in config.pbtxt.")
            else:
                may_be_negative = name == WORDS and not inputs[WORDS].optional
                problems += inputs[name].problems("signed" if may_be_negative else "whole", count)
        return problems


def _stop_words(ids: Sequence[int]) -> list[int]:
    """Builds a word list of one-token words, in the format of NO_WORDS."""
    return [*ids, *range(1, len(ids) + 1)]


class TokenResponseReader:
    """Reads the responses of one call to a token model. ``finish`` is None before the end of the text."""

    finish: FinishReason | None = None

    def __init__(
        self, generator: TokenGenerator, prompt: list[int], end_ids: frozenset[int], sampling: Sampling
    ) -> None:
        self._generator = generator
        self._prompt = prompt
        self._has_begun = False
        self._end_ids = end_ids
        self._max_tokens = sampling.max_tokens or 1
        self._count = 0
        self._scores: list[float] | None = None if sampling.logprobs is None else []

    def push(self, tensors: Mapping[str, Tensor]) -> Step:
        """Reads one response, and returns its new tokens."""
        output, length = tensors.get(OUTPUT), tensors.get(LENGTH)
        ids = [] if output is None else _first_beam(output, len(self._prompt) + self._max_tokens + 1)
        total = None if length is None or not length.data.size else int(numeric_data(length).flat[0])
        if total is not None and total < len(ids):  # padding follows
            ids = ids[: max(total, 0)]
        if self._scores is not None and SCORES in tensors:
            scores = numeric_data(tensors[SCORES], "fiu", "numbers")  # JSON may have 0 for 0.0
            self._scores += map(float, scores.ravel()[: len(ids)].tolist())
        if ids and not self._has_begun:
            self._has_begun = True
            ids = self._generator._without_prompt(self._prompt, ids)
        if not ids or self.finish is not None:
            return Step()
        kept = ids
        if not self._end_ids.isdisjoint(ids):
            self.finish = "stop"
            kept = ids[: next(index for index, token in enumerate(ids) if token in self._end_ids)]
        elif self._count + len(ids) > self._max_tokens:
            self.finish = "length"
            kept = ids[: self._max_tokens - self._count]
        self._count += len(kept)
        if self._scores is None:
            return Step(kept)
        if len(self._scores) < len(ids):
            raise PredictorError(f"the predictor answered with {len(ids)} new output_ids, but fewer {SCORES}")
        # The prompt may have scores too.
        new_scores, self._scores = self._scores[-len(ids) :], []
        return Step(kept, scores=list(map(TokenScore, kept, new_scores)))

    def last(self) -> Step:
        """Builds the last step, after the last response."""
        return Step(finish=self.finish or ("length" if self._count >= self._max_tokens else "stop"))


def _first_beam(output: Tensor, most: int) -> list[int]:
    """The first ``most`` tokens. More are padding, or a model's that ignores its limit."""
    data = numeric_data(output)
    if data.ndim > 1 and data.shape[-1] != data.size:
        data = data[(0,) * (data.ndim - 1)]
    row: list[int] = data.ravel()[:most].tolist()
    return row
