"""Decode loop for logits models: the service samples the tokens and batches the steps.

Continuous batching: each sequence submits its next step to the scheduler as soon as its last step is decoded. Steps of
different sequences therefore share batches, and a sequence can join or leave between two steps.

Batching does not affect the generated text, except that the last bits of a logit vary with the batch size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from typing import ClassVar

from hf_transformer.core.batch import padding_buckets
from hf_transformer.core.scheduler import Entry, Scheduler
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.cache import BYTES_PER_COST, cache_bytes
from hf_transformer.generation.logits_batch import StepBatchBuilder
from hf_transformer.generation.logits_sequence import LogitsSequence
from hf_transformer.generation.logits_signature import fit_logits
from hf_transformer.generation.masks import ABSENT, GrammarCompiler
from hf_transformer.generation.types import LANGUAGES, Generator, GeneratorSettings, Prompt, Sampling, Step, TokenScore
from hf_transformer.observability.metrics import ModelMetrics, Work
from hf_transformer.predictor.base import Predictor
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import Array, ModelSpec
from hf_transformer.types.tokenization import TaskTokenizer

PROMPT_TOKEN_COST = 200
"""Cost of a prompt token's log probability without the vocabulary's share, in units of the scheduler's INLINE_COST."""


class LogitsGenerator(Generator):
    """Generator of a decoder or an encoder-decoder that returns logits.

    With ``ignore_eos`` its steps include end-of-sequence tokens.
    """

    interface: ClassVar[str] = "logits"
    reasons_first = True
    supported_fields = frozenset(field.name for field in fields(Sampling)) - {"n", "stop", "names", "reasoning"}

    def __init__(
        self,
        spec: ModelSpec,
        predictor: Predictor,
        tokenizer: TaskTokenizer,
        settings: GeneratorSettings,
        *,
        executor: Executor,
        metrics: ModelMetrics,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Raises ContractError if the model's tensors do not match. Without ``grammars`` it takes no constraints."""
        self._grammars = grammars
        self._executor = executor
        if grammars is None:
            self.supported_fields -= {"constraint"}
            self.hints = {**self.hints, "constraint": ABSENT}
        self._signature = signature = fit_logits(spec, tokenizer, settings)
        if not signature.encoder_decoder:
            self.supported_fields -= {*LANGUAGES}
        if signature.encoder_decoder or not signature.all_positions:
            self.supported_fields -= {"prompt_logprobs"}
            reads = (
                "reads prompts in its encoder" if signature.encoder_decoder else "returns the last position's logits"
            )
            self.hints = {**self.hints, "prompt_logprobs": f"the model {reads} only"}
        self._settings = settings
        self._cache_budget = settings.cache_budget
        self._without_cache: dict[LogitsSequence, None] = {}
        """The sequences that wait for memory."""
        self._vocabulary = signature.vocabulary or signature.min_vocabulary
        self._eos_ids = frozenset(token for token in settings.eos_ids if 0 <= token < self._vocabulary)
        self._max_length = min(settings.max_length, signature.length or settings.max_length)
        # Limit batches in flight to the model's instances, so that waiting sequences form larger batches.
        scheduling, limit = settings.scheduling, settings.concurrency_limit
        limit.count = min(scheduling.max_batches_in_flight, spec.instances or 1)
        widths = padding_buckets(settings.pad_to_multiple_of, settings.max_length)
        self._builder = StepBatchBuilder(signature, settings.pad_id, scheduling, widths)
        self._scheduler = Scheduler[LogitsSequence](
            predictor, self._builder, scheduling, executor=executor, metrics=metrics, limit=limit
        )

    @property
    def work(self) -> Work:
        unsent = [*self._without_cache, *(item for item in self._scheduler.queued if item.is_new)]
        tokens = sum(len(item.prompt.ids) for item in unsent)
        return Work(len(unsent), tokens, self.texts - len(unsent), self.tokens - tokens)

    async def prepare(self, sampling: Sampling) -> object:
        if self._grammars is None or sampling.constraint is None:
            return None
        return await self._grammars.prepare(sampling.constraint, sampling.path("constraint"), self._executor)

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        for prompt, sampling in texts:
            sequence = self._sequence(prompt, sampling)
            self._cache_budget.check(sequence.cache_bytes)
            if sequence.needs_prompt_scores:
                limits, (_, width) = self._builder.limits(sequence), self._builder.bucket(sequence)
                size, most = limits.output_bytes(limits.fixed_length or width), limits.max_output_bytes
                if size > most:
                    expected = f"prompts with at most {most} bytes of outputs (--max_batch_output_bytes)"
                    raise TooLarge(sampling.path("prompt_logprobs"), expected, f"{size} bytes", "shorten the prompt")

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """Reserves memory for the cache, and runs the decode loop of one sequence."""
        sequence = self._sequence(prompt, sampling)
        if sequence.is_full and not sequence.needs_prompt_scores:
            yield Step(finish="length")
            return
        size = sequence.cache_bytes
        self._without_cache[sequence] = None
        try:
            await self._cache_budget.take(size)
        finally:
            del self._without_cache[sequence]
        entry: Entry[LogitsSequence] | None = None
        try:
            sequence.begin()
            entry = self._submit(sequence, sampling, context)
            while True:
                await entry.request.future
                self._scheduler.leave(entry.request)
                step = sequence.add(*entry.answer)
                if step.finish is not None:
                    break
                # Submit before yielding the token, so that the step joins the next batch.
                entry = self._submit(sequence, sampling, context)
                yield step
            yield step
        finally:
            if entry is not None:
                self._scheduler.leave(entry.request)
            entry = None  # an error's traceback refers to this frame and would keep the cache until a collection
            if sequence.mask is not None:
                sequence.mask.close()
            self._cache_budget.give_back(size)

    async def trial(self, prompt: Prompt) -> None:
        sequence = self._sequence(prompt, Sampling(max_tokens=1, greedy=True))
        sequence.begin()
        await self._scheduler.trial(sequence)

    def _submit(self, sequence: LogitsSequence, sampling: Sampling, context: Context) -> Entry[LogitsSequence]:
        """Submits the next step. Its cost is in units of the scheduler's INLINE_COST, a quarter of a microsecond."""
        cost = self._vocabulary // 600
        if not sampling.greedy:
            cost += self._vocabulary // 30
        if sampling.logprobs is not None:
            cost += self._vocabulary // 60
        if sequence.mask is not None:
            cost += self._vocabulary // 100 + sequence.mask.cost
        if sequence.needs_prompt_scores:
            cost += len(sequence.tokens) * (PROMPT_TOKEN_COST + self._vocabulary // 60)
        if sequence.is_new:
            cost += cache_bytes(self._signature.caches, len(sequence.tokens), len(sequence.source)) // BYTES_PER_COST
        entry = Entry(sequence, None, cost)
        self._scheduler.submit((entry,), _decode, None, context)
        if sequence.mask is not None and sequence.needs_mask:
            sequence.mask.start(self._executor)
        return entry

    def _sequence(self, prompt: Prompt, sampling: Sampling) -> LogitsSequence:
        """Creates a sequence. Raises InvalidInput for token ids outside the model's vocabulary, and for a prompt that
        is too long."""
        for field in ("logit_bias", "stop_token_ids", "score_ids"):
            ids: Iterable[int] = getattr(sampling, field)
            for token in ids:
                if not 0 <= token < self._vocabulary:
                    expected = f"token ids of the model, from 0 to {self._vocabulary - 1}"
                    raise InvalidInput(sampling.path(field), expected, str(token))
        limit, start = self._max_length, prompt.ids
        source: tuple[int, ...] = ()
        if max(start) >= self._vocabulary:
            expected = f"a prompt of the model's token ids, from 0 to {self._vocabulary - 1}"
            raise InvalidInput("", expected, str(max(start)))
        if self._signature.encoder_decoder:
            start, source = prompt.decoder_start or self._settings.decoder_start_ids, start
            if len(source) > limit:
                raise InvalidInput("", f"a prompt of at most {limit} tokens", str(len(source)))
            limit = min(self._settings.max_length, self._signature.target_length or self._settings.max_length)
        elif len(start) > (most := limit - (sampling.max_tokens != 0)):
            hint = f"the model's {limit} tokens include the new ones"
            raise InvalidInput("", f"a prompt of at most {most} tokens", str(len(start)), hint)
        max_new = limit - len(start)
        if sampling.max_tokens is not None:
            max_new = min(sampling.max_tokens, max_new)
        caches, grammars = self._signature.caches, self._grammars
        return LogitsSequence(prompt, start, source, sampling, self._eos_ids, max_new, caches, grammars)


def _decode(
    owner: object, item: LogitsSequence, rows: Mapping[str, Array], options: object
) -> tuple[int, TokenScore | None]:
    """Decodes one item; see core.scheduler.Decode."""
    return item.decode(rows)
