"""Models that continue token ids: tensorrtllm_backend's interface, and what is like it.

    input_ids [S], input_lengths, request_output_len, and optionally end_id, pad_id, temperature, runtime_top_k or
    top_k, runtime_top_p or top_p, random_seed or seed, repetition_penalty, streaming, ... (see model_inputs.py)
    -> output_ids [beams, S], and optionally sequence_length, output_log_probs

Any of them may have a batch axis in front. A decoupled model answers with the new tokens as they come, another one with
all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.model_inputs import NO_WORDS, ModelInputs, json_problems
from hf_transformer.generation.token_rows import RowHabits, Rows
from hf_transformer.generation.types import FinishReason, Prompt, Sampling, Step, TokenScore
from hf_transformer.predictor.base import Predictor
from hf_transformer.types import Array, Context, ModelSpec, Tensor, TensorSpec

IDS, LENGTHS, NEW_TOKENS = "input_ids", "input_lengths", "request_output_len"
DECODER_IDS, DECODER_LENGTHS = "decoder_input_ids", "decoder_input_lengths"
OUTPUT, LENGTH, SCORES = "output_ids", "sequence_length", "output_log_probs"
PAD, WORDS = "pad_id", "stop_words_list"
_OWN = (IDS, LENGTHS, DECODER_IDS, DECODER_LENGTHS, PAD, WORDS)


class TokenGenerator(Generator):
    """Sends ids and reads ids; what may not be in the text, such as its end-of-sequence token, is left out."""

    kind: ClassVar[str] = "tokens"

    def __init__(self, spec: ModelSpec, predictor: Predictor, settings: GeneratorSettings) -> None:
        """Raises ContractError for a model that is not of this kind."""
        self._predictor = predictor
        self._decoupled = spec.decoupled
        self._eos = settings.eos_ids
        self._pad = settings.pad_id
        self._decoder_start = settings.decoder_start_ids
        # One token ends the text at the model, the others do as its stop words, or else when they are read here.
        *others, end = sorted(self._eos) or [-1]
        self._inputs = ModelInputs(spec, _OWN, end=end, more=self._more)
        self._words = _as_words(others)
        own: dict[str, Sequence[int] | int] = {PAD: self._pad}
        if self._decoder_start:
            own |= {DECODER_IDS: self._decoder_start, DECODER_LENGTHS: len(self._decoder_start)}
        self._own = {name: values for name, values in own.items() if name in self._inputs.by_name}
        outputs = {one.name for one in spec.outputs}
        self._outputs = [name for name in (OUTPUT, LENGTH) if name in outputs]
        self._scored = "logprobs" in self._inputs.honours and SCORES in outputs
        self._honours = self._inputs.honours if self._scored else self._inputs.honours - {"logprobs"}
        if others:  # the model holds its end_id back, and no other
            self._honours -= {"min_tokens"}
        self._honours |= {"stop_token_ids"}  # which are seen when they are read, whatever the model is told
        excludes = "exclude_input_in_output" in self._inputs.by_name
        self._habits = RowHabits(prompt=False if excludes else None)
        if problems := self._problems(spec):
            raise ContractError(spec.name, problems)

    @property
    def honours(self) -> frozenset[str]:
        return self._honours

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        reading, inputs, outputs = self._call(prompt, sampling)
        if not self._decoupled:
            reply = await self._predictor.infer(inputs, outputs, context.headers, cancellable=True)
            try:
                step = reading.step(reply.tensors)
            finally:
                reply.release()
            step.finish = reading.end().finish
            yield step
            return
        async with aclosing(self._predictor.stream(inputs, outputs, context.headers)) as responses:
            async for tensors in responses:
                if reading.finish is not None:  # but the model goes on
                    break
                step = reading.step(tensors)
                if step.ids:
                    yield step
        yield reading.end()

    def _call(self, prompt: Prompt, sampling: Sampling) -> tuple[_Reading, list[Tensor], Sequence[str]]:
        """What reads a call's responses, its inputs, and the names of its outputs."""
        if sampling.logprobs:
            raise InvalidInput(
                f"{sampling.names.get('logprobs', 'logprobs')}: {sampling.logprobs} of the likeliest tokens beside "
                "each, but this model tells the chosen token's alone; ask for none"
            )
        ends = frozenset[int]() if sampling.ignore_eos else self._eos
        if not ends.isdisjoint(sampling.stop_token_ids):  # the model's own: it ends there anyway, and holds it back
            others = tuple(one for one in sampling.stop_token_ids if one not in ends)
            sampling = replace(sampling, stop_token_ids=others)
        if sampling.stop_token_ids and sampling.min_tokens:
            raise InvalidInput(
                f"{sampling.names.get('stop_token_ids', 'stop_token_ids')}: this model can't hold them back until "
                "there are min_tokens; leave one of both out"
            )
        before = self._decoder_start or prompt.ids
        rows = Rows(self._habits, before, decoupled=self._decoupled)
        if (sampling.max_tokens or 1) > self._inputs.most_tokens:
            sampling = self._inputs.bounded(sampling)
        reading = _Reading(rows, ends.union(sampling.stop_token_ids) if sampling.stop_token_ids else ends, sampling)
        outputs = self._outputs if sampling.logprobs is None else [*self._outputs, SCORES]
        return reading, self._tensors(prompt, sampling), outputs

    def _tensors(self, prompt: Prompt, sampling: Sampling) -> list[Tensor]:
        inputs, ids = self._inputs.by_name, prompt.ids
        if LENGTHS not in inputs:
            return [inputs[IDS].row(ids), *self._inputs.tensors(sampling)]
        return [inputs[IDS].row(ids), inputs[LENGTHS].number(len(ids)), *self._inputs.tensors(sampling)]

    def _more(self, sampling: Sampling) -> Sequence[Tensor]:
        """What the interface has beside the prompt, and ModelInputs does not know of."""
        own, inputs = self._own, self._inputs.by_name
        if WORDS in inputs:
            words = self._told_words(sampling)
            if words or not inputs[WORDS].optional:
                own = {**own, WORDS: words or NO_WORDS}
        return [inputs[name].tensor(values) for name, values in own.items()]

    def _told_words(self, sampling: Sampling) -> Sequence[int]:
        """What ends a text beside the end_id, so that the model goes no further: the client's too, if they fit."""
        words = [] if sampling.ignore_eos else self._words
        if not sampling.stop_token_ids:
            return words
        more = _as_words([*words[: len(words) // 2], *sampling.stop_token_ids])
        return words if self._inputs.by_name[WORDS].value_problems(more, "") else more

    def _problems(self, spec: ModelSpec) -> list[str]:
        """What does not fit, in a sentence each."""
        inputs = self._inputs.by_name
        problems = []
        if IDS not in inputs or "max_tokens" not in self._inputs.honours or OUTPUT not in self._outputs:
            problems.append(
                f"A token model has the inputs {IDS} and {NEW_TOKENS} and the output {OUTPUT}; this one has "
                f"{_listed(spec.inputs)} and {_listed(spec.outputs)}. Name them so in config.pbtxt, or set "
                "--generation_interface."
            )
        if not self._decoder_start and DECODER_IDS in inputs and not inputs[DECODER_IDS].optional:
            problems.append(f"It requires the input {DECODER_IDS!r}, but config.json is of no encoder-decoder.")
        for name in (IDS, DECODER_IDS, LENGTHS):
            if name in inputs and inputs[name].datatype not in ("INT32", "INT64"):
                problems.append(f"Its input {name!r} is {inputs[name].datatype}; export it as INT32 or INT64.")
        for name in (IDS, DECODER_IDS):
            if name in inputs and not inputs[name].free:
                problems.append(f"Its input {name!r} always has the same length; set dims: [ -1 ] in config.pbtxt.")
        return [
            *problems,
            *self._unheld(),
            *self._inputs.problems,
            *json_problems(spec, self._predictor, self._inputs, [OUTPUT, SCORES]),
        ]

    def _unheld(self) -> list[str]:
        """What keeps inputs from holding the model's own tokens."""
        start, ends = self._decoder_start, self._words[: len(self._words) // 2]
        meanings = {
            PAD: f"the padding token {self._pad}",
            DECODER_IDS: f"the tokens {_joined(start)} that the decoder begins with",
            DECODER_LENGTHS: f"the length {len(start)} of what the decoder begins with",
            WORDS: f"the end-of-sequence tokens {_joined(ends)}",
        }
        inputs, own = self._inputs.by_name, self._own
        if self._words and WORDS in inputs:
            own = {**own, WORDS: self._words}
        return [found for name, values in own.items() for found in inputs[name].value_problems(values, meanings[name])]


def _as_words(ids: Sequence[int]) -> list[int]:
    """Tokens in tensorrtllm_backend's form of lists of words: their ids, and where each of them ends."""
    return [*ids, *range(1, len(ids) + 1)]


def _joined(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


def _listed(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(tensor.name for tensor in tensors) or "none"


class _Reading:
    """The answers of one call, read to steps."""

    finish: FinishReason | None = None
    """Why the text has ended, once it has."""
    _count = 0

    def __init__(self, rows: Rows, eos: frozenset[int], sampling: Sampling) -> None:
        self._rows = rows
        self._eos = eos
        self._most = sampling.max_tokens or 1
        self._scores: list[float] | None = None if sampling.logprobs is None else []

    def step(self, tensors: Mapping[str, Tensor]) -> Step:
        """What is new in one answer."""
        output, length = tensors.get(OUTPUT), tensors.get(LENGTH)
        row = [] if output is None else _row(output)
        total = None if length is None else _length(length)
        if total is not None and total < len(row):  # padding follows
            row = row[: max(total, 0)]
        if self._scores is not None:
            self._scores += _scores(tensors, len(row))
        return self._step(self._rows.take(row, total))

    def end(self) -> Step:
        """The last step: nothing more comes."""
        step = self._step(self._rows.rest())
        step.finish = self.finish or ("length" if self._count >= self._most else "stop")
        return step

    def _step(self, ids: list[int]) -> Step:
        if not ids or self.finish is not None:
            return Step()
        count = len(ids)
        if not self._eos.isdisjoint(ids):
            self.finish = "stop"
            kept = next(place for place, token in enumerate(ids) if token in self._eos)
        else:
            kept = self._most - self._count
            if kept >= count:
                kept = count
            else:
                self.finish = "length"
        self._count += kept
        if self._scores is None:
            return Step(ids[:kept] if kept < count else ids)
        if len(self._scores) < count:
            raise PredictorError(f"the predictor answered with {count} new output_ids, but fewer {SCORES}")
        scores, self._scores = self._scores[-count:], []
        return Step(ids[:kept], scores=[TokenScore(*pair) for pair in zip(ids[:kept], scores[:kept], strict=True)])


def _numbers(tensor: Tensor, kinds: str = "iu", said: str = "whole numbers") -> Array:
    """The data, of one of numpy's ``kinds``; of an empty list in JSON nobody can tell."""
    data = tensor.data
    if data.size and data.dtype.kind not in kinds:
        raise PredictorError(f"the predictor's {tensor.name} is {tensor.datatype}, expected {said}")
    return data


def _length(found: Tensor) -> int | None:
    """The first of the lengths, None where there is none."""
    data = found.data
    if data.size == 1 and data.dtype.kind in "iu":
        return int(data.item())
    if not data.size:
        return None
    return int(_numbers(found).flat[0])


def _row(output: Tensor) -> list[int]:
    """The ids of the first beam."""
    data = output.data
    if data.size == 1 and data.dtype.kind in "iu":  # as nearly always in a stream; the rest takes twice as long
        return [data.item()]
    data = _numbers(output)
    if data.ndim > 1 and data.shape[-1] != data.size:
        data = data[(0,) * (data.ndim - 1)]
    row: list[int] = data.ravel().tolist()
    return row


def _scores(tensors: Mapping[str, Tensor], count: int) -> list[float]:
    """The log probabilities beside ``count`` ids; beside a prompt there may be none."""
    found = tensors.get(SCORES)
    if found is None:
        return []
    data = _numbers(found, "fiu", "numbers")  # JSON may have 0 for 0.0
    scores: list[float] = data.ravel().astype(float).tolist()
    return scores[:count]
