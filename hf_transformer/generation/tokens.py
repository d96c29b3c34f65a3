"""Models that continue token ids: tensorrtllm_backend's interface, and models that have it too.

    input_ids [S], input_lengths, request_output_len, and optionally end_id, pad_id, temperature, runtime_top_k or
    top_k, runtime_top_p or top_p, random_seed or seed, repetition_penalty, streaming, ... (see inputs.py)
    -> output_ids [beams, S], and optionally sequence_length, output_log_probs

Any of them may have a batch axis in front. A decoupled model streams the new tokens, another one gives all at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import ClassVar

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.inputs import NO_WORDS, TensorGenerator, numbers
from hf_transformer.generation.types import FinishReason, GeneratorSettings, Prompt, Sampling, Step, TokenScore
from hf_transformer.predictor.base import Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec, Tensor

IDS, LENGTHS, NEW_TOKENS = "input_ids", "input_lengths", "request_output_len"
DECODER_IDS, DECODER_LENGTHS = "decoder_input_ids", "decoder_input_lengths"
OUTPUT, LENGTH, SCORES = "output_ids", "sequence_length", "output_log_probs"
PAD, WORDS = "pad_id", "stop_words_list"
_OWN = (IDS, LENGTHS, DECODER_IDS, DECODER_LENGTHS, PAD, WORDS)


class TokenGenerator(TensorGenerator):
    """Sends ids and reads ids. Tokens that end the text are left out."""

    interface: ClassVar[str] = "tokens"

    def __init__(self, spec: ModelSpec, predictor: Predictor, settings: GeneratorSettings) -> None:
        """Raises ContractError for a model that is not of this kind."""
        self._eos = settings.eos_ids
        self._decoder_start = settings.decoder_start_ids
        # The model ends the text at one token, and at the others if it has stop words; else they are looked for here.
        *self._others, end = sorted(self._eos) or [-1]
        super().__init__(spec, predictor, _OWN, end=end)
        own: dict[str, Sequence[int] | int] = {PAD: settings.pad_id}
        if self._decoder_start:
            own |= {DECODER_IDS: self._decoder_start, DECODER_LENGTHS: len(self._decoder_start)}
        self._own = {name: values for name, values in own.items() if name in self._inputs}
        outputs = {one.name for one in spec.outputs}
        self._outputs = [name for name in (OUTPUT, LENGTH) if name in outputs]
        self.supported_fields |= {"stop_token_ids"}  # looked for here if the model doesn't
        if SCORES not in outputs:
            self.supported_fields -= {"logprobs"}
        if self._others:  # the model holds its end_id back, and no other
            self.supported_fields -= {"min_tokens"}
        self._may_repeat = "exclude_input_in_output" not in self._inputs
        """Whether a response may begin with the prompt; a model that once did not never does."""
        if problems := self._problems():
            raise ContractError(spec.name, problems)

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        sampling, ends = self._ends(sampling)
        before = self._decoder_start or prompt.ids
        reading = _Reading(partial(self._without_prompt, [*before]), ends, sampling)
        inputs = self._tensors(prompt, sampling)
        outputs = self._outputs if sampling.logprobs is None else [*self._outputs, SCORES]
        async with aclosing(self._responses(inputs, outputs, context)) as responses:
            async for tensors in responses:
                if reading.finish is not None:  # but the model goes on
                    break
                step = reading.step(tensors)
                if not self._decoupled:
                    step.finish = reading.end().finish
                    yield step
                    return
                if step.ids:
                    yield step
        yield reading.end()

    def _ends(self, sampling: Sampling) -> tuple[Sampling, frozenset[int]]:
        """The sampling as the model gets it, and the tokens that end the text. Raises InvalidInput."""
        if sampling.logprobs:
            raise InvalidInput.of(
                f"{sampling.path('logprobs')}: {sampling.logprobs} of the likeliest tokens beside each, but this "
                "model gives the chosen token's alone; ask for none"
            )
        ends = frozenset[int]() if sampling.ignore_eos else self._eos
        if not ends.isdisjoint(sampling.stop_token_ids):  # the model ends there anyway, and holds it back
            others = tuple(one for one in sampling.stop_token_ids if one not in ends)
            sampling = replace(sampling, stop_token_ids=others)
        if sampling.stop_token_ids and sampling.min_tokens:
            raise InvalidInput.of(
                f"{sampling.path('stop_token_ids')}: this model can't hold them back until there are min_tokens; "
                "leave one of both out"
            )
        return sampling, ends.union(sampling.stop_token_ids)

    def _without_prompt(self, prompt: list[int], row: list[int]) -> list[int]:
        """The tokens of a first response, which may begin with the prompt."""
        # In a stream a first response with the prompt alone would make no sense.
        if row[: len(prompt)] != prompt or (self._decoupled and len(row) == len(prompt)):
            self._may_repeat = False
        return row[len(prompt) :] if self._may_repeat else row

    def _tensors(self, prompt: Prompt, sampling: Sampling) -> list[Tensor]:
        inputs, own = self._inputs, self._own
        if WORDS in inputs:  # the tokens beside end_id at which the model ends a text; the client's too, if they fit
            words = [] if sampling.ignore_eos else self._others
            more = [*words, *sampling.stop_token_ids]
            words = _as_words(more if inputs[WORDS].fits(2 * len(more)) else words)
            if words or not inputs[WORDS].optional:
                own = {**own, WORDS: words or NO_WORDS}
        tensors = [inputs[IDS].tensor(prompt.ids)]
        if LENGTHS in inputs:
            tensors.append(inputs[LENGTHS].tensor(len(prompt.ids)))
        tensors += [inputs[name].tensor(values) for name, values in own.items()]
        return [*tensors, *self._sampled(sampling)]

    def _problems(self) -> list[str]:
        inputs, own = self._inputs, dict(self._own)
        problems = []
        if IDS not in inputs or "max_tokens" not in self.supported_fields or OUTPUT not in self._outputs:
            problems.append(
                f"A token model has the inputs {IDS} and {NEW_TOKENS} and the output {OUTPUT}; this one has "
                f"{self._tensors_it_has}. Name them so in config.pbtxt, or set --generation_interface."
            )
        if not self._decoder_start and DECODER_IDS in inputs and not inputs[DECODER_IDS].optional:
            problems.append(f"It requires the input {DECODER_IDS!r}, but config.json is of no encoder-decoder.")
        if WORDS in inputs and (self._others or not inputs[WORDS].optional):
            own[WORDS] = _as_words(self._others) or NO_WORDS
        counts = dict.fromkeys([name for name in (IDS, LENGTHS) if name in inputs], 1)
        counts |= {name: 1 if isinstance(values, int) else len(values) for name, values in own.items()}
        for name, count in counts.items():
            if name in (IDS, DECODER_IDS) and not (inputs[name].fits(1) and inputs[name].fits(2)):
                problems.append(f"Its input {name!r} always has the same length; set dims: [ -1 ] in config.pbtxt.")
            else:
                may_be_none = name == WORDS and not inputs[WORDS].optional
                problems += inputs[name].problems("signed" if may_be_none else "whole", count)
        return [*problems, *self._shared_problems((OUTPUT, SCORES))]


def _as_words(ids: Sequence[int]) -> list[int]:
    """Tokens in the form of NO_WORDS."""
    return [*ids, *range(1, len(ids) + 1)]


class _Reading:
    """Reads the responses of one call. ``finish`` says why the text has ended, once it has."""

    finish: FinishReason | None = None

    def __init__(
        self, without_prompt: Callable[[list[int]], list[int]], ends: frozenset[int], sampling: Sampling
    ) -> None:
        self._without_prompt = without_prompt
        self._has_begun = False
        self._ends = ends
        self._most = sampling.max_tokens or 1
        self._count = 0
        self._scores: list[float] | None = None if sampling.logprobs is None else []

    def step(self, tensors: Mapping[str, Tensor]) -> Step:
        """The new tokens of one response."""
        output, length = tensors.get(OUTPUT), tensors.get(LENGTH)
        ids = [] if output is None else _first_beam(output)
        total = None if length is None or not length.data.size else int(numbers(length).flat[0])
        if total is not None and total < len(ids):  # padding follows
            ids = ids[: max(total, 0)]
        if self._scores is not None and SCORES in tensors:
            found = numbers(tensors[SCORES], "fiu", "numbers")  # JSON may have 0 for 0.0
            self._scores += found.ravel().astype(float).tolist()[: len(ids)]
        if ids and not self._has_begun:
            self._has_begun = True
            ids = self._without_prompt(ids)
        if not ids or self.finish is not None:
            return Step()
        kept = ids
        if not self._ends.isdisjoint(ids):
            self.finish = "stop"
            kept = ids[: next(place for place, token in enumerate(ids) if token in self._ends)]
        elif self._count + len(ids) > self._most:
            self.finish = "length"
            kept = ids[: self._most - self._count]
        self._count += len(kept)
        if self._scores is None:
            return Step(kept)
        if len(self._scores) < len(ids):
            raise PredictorError(f"the predictor answered with {len(ids)} new output_ids, but fewer {SCORES}")
        # A prompt may have scores too.
        scores, self._scores = self._scores[-len(ids) :], []
        return Step(kept, scores=[TokenScore(*pair) for pair in zip(kept, scores, strict=False)])

    def end(self) -> Step:
        """The last step: no response follows."""
        return Step(finish=self.finish or ("length" if self._count >= self._most else "stop"))


def _first_beam(output: Tensor) -> list[int]:
    data = numbers(output)
    if data.ndim > 1 and data.shape[-1] != data.size:
        data = data[(0,) * (data.ndim - 1)]
    row: list[int] = data.ravel().tolist()
    return row
