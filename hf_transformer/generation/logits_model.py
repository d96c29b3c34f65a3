"""Models that give logits: the service makes the text itself, token by token (kind c)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from weakref import WeakValueDictionary

from hf_transformer.core.batch import widths_of
from hf_transformer.core.contract import ContractError
from hf_transformer.core.scheduler import Scheduler
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.cache import Cache, cache_bytes, next_capacity
from hf_transformer.generation.cache_budget import Share
from hf_transformer.generation.logits_batches import Running, StepForm
from hf_transformer.generation.logits_contract import LogitsBinding, bind_logits
from hf_transformer.generation.sampling import Chooser
from hf_transformer.generation.shared_start import SharedStart
from hf_transformer.generation.stepping import Continuation, Extent
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import TaskTokenizer
from hf_transformer.types import Context, ModelSpec

HONOURED = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "greedy",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop_token_ids",
        "ignore_eos",
        "logprobs",
    }
)
"""All that there is: nothing of it is the model's business."""


def make_logits_generator(
    spec: ModelSpec,
    predictor: Predictor,
    tokenizer: TaskTokenizer,
    settings: GeneratorSettings,
    *,
    executor: Executor,
    metrics: Metrics,
) -> LogitsGenerator:
    """A generator for a model that gives logits: a causal one, or an encoder-decoder. On the event loop.

    Raises:
        ContractError: the model does not fit; with a sentence for each reason.
    """
    binding = bind_logits(spec, tokenizer, settings)
    if binding.encoder_decoder and not settings.decoder_start_ids:
        raise ContractError(
            spec.name,
            [
                "It takes decoder_input_ids, but neither config.json nor generation_config.json says what they begin "
                "with: add decoder_start_token_id."
            ],
        )
    # Never more batches than the model works on at a time: those that wait for it could as well have been one.
    scheduling, places = settings.scheduling, settings.places
    places.count = min(scheduling.max_batches_in_flight, max(spec.instances, 1))
    widths = widths_of(settings.pad_to_multiple_of, settings.max_length)
    form = StepForm(binding, settings.pad_id, scheduling, widths)
    scheduler = Scheduler[Running](predictor, form, scheduling, executor=executor, metrics=metrics, limit=places)
    return LogitsGenerator(binding, scheduler, settings)


class LogitsGenerator(Generator):
    """Makes texts of logits. A text is the same alone as among others, and a seeded one each time, but for what another
    batch size changes in a logit's last bits.

    With ``ignore_eos`` an end-of-sequence token is a token like others, and is among the ids.
    """

    kind = "logits"

    def __init__(self, binding: LogitsBinding, scheduler: Scheduler[Running], settings: GeneratorSettings) -> None:
        self._binding = binding
        self._scheduler = scheduler
        self._settings = settings
        self._budget = settings.caches
        self._starts: WeakValueDictionary[int, SharedStart] = WeakValueDictionary()  # by the id of their prompt
        self._vocabulary = binding.vocabulary or binding.least_vocabulary
        self._eos_ids = frozenset(one for one in settings.eos_ids if 0 <= one < self._vocabulary)
        self._longest = min(settings.max_length, binding.length or settings.max_length)

    @property
    def honours(self) -> frozenset[str]:
        return HONOURED

    def check(self, texts: Sequence[tuple[Prompt, Sampling]]) -> None:
        """Raises TooLarge where their caches need more than --max_cache_bytes, and what ``generate`` does of a prompt
        or a limit."""
        if self._binding.caches:
            extents = (self._extent(prompt, sampling) for prompt, sampling in texts if sampling.max_tokens != 0)
            self._budget.check([self._cache_bytes(extent) for extent in extents])

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        """See Generator.generate; raises TooManyRequests and TooLarge too, where there is no room for its cache."""
        text = self._begin(prompt, sampling, context)
        try:
            while True:
                step = await text.next()
                yield step
                if step.finish is not None:
                    return
        finally:
            text.close()

    async def canary(self, prompt: Prompt) -> None:
        sampling = Sampling(max_tokens=1, greedy=True)
        extent = self._extent(prompt, sampling)
        await self._scheduler.trial(self._continuation(extent, sampling, Context("", {})))

    def _begin(self, prompt: Prompt, sampling: Sampling, context: Context) -> Continuation:
        extent = self._extent(prompt, sampling)
        self._check_ids("logit_bias", sampling.logit_bias, sampling)
        self._check_ids("stop_token_ids", sampling.stop_token_ids, sampling)
        share = self._budget.open(*self._cache_bytes(extent)) if self._binding.caches else None
        try:
            return self._continuation(extent, sampling, context, share, self._start(prompt, context))
        except BaseException:  # there may be less memory than the flag says
            if share is not None:
                share.close()
            raise

    def _check_ids(self, field: str, ids: Iterable[int], sampling: Sampling) -> None:
        """Raises InvalidInput for a token that the model does not have; ``field`` of the sampling has the ids."""
        beyond = next((one for one in ids if not 0 <= one < self._vocabulary), None)
        if beyond is not None:
            name = sampling.names.get(field, field)
            raise InvalidInput(f"{name}: the model has {self._vocabulary} tokens, and none with the id {beyond}")

    def _continuation(
        self,
        extent: Extent,
        sampling: Sampling,
        context: Context,
        share: Share | None = None,
        start: SharedStart | None = None,
    ) -> Continuation:
        binding = self._binding
        cache = Cache(binding.caches, _capacity(extent), len(extent.source)) if binding.caches else None
        return Continuation(
            self._scheduler,
            extent,
            Chooser(sampling, extent.start, self._eos_ids.union(sampling.stop_token_ids)),
            cache,
            context,
            cost=_cost(sampling, self._vocabulary),
            share=share,
            start=start,
        )

    def _start(self, prompt: Prompt, context: Context) -> SharedStart | None:
        """What makes the first step of all texts of this very prompt, where there are several."""
        if prompt.texts == 1:
            return None
        start = self._starts.get(id(prompt))
        if start is None:
            sent = partial(self._starts.pop, id(prompt), None)
            self._starts[id(prompt)] = start = SharedStart(self._scheduler, prompt, context, sent)
        return start

    def _cache_bytes(self, extent: Extent) -> tuple[int, int]:
        """Bytes that a text's cache begins with, and those that it may come to."""
        most, source = _capacity(extent), len(extent.source)
        first = next_capacity(len(extent.start), most)
        return cache_bytes(self._binding.caches, first, source), cache_bytes(self._binding.caches, most, source)

    def _extent(self, prompt: Prompt, sampling: Sampling) -> Extent:
        """Where the text begins and ends. Raises InvalidInput if it can't."""
        ids, longest = prompt.ids, self._longest
        if not ids:
            raise InvalidInput("the prompt has no tokens; expected at least one")
        if max(ids) >= self._vocabulary or min(ids) < 0:
            wrong = max(ids) if max(ids) >= self._vocabulary else min(ids)
            raise InvalidInput(f"the prompt has the token {wrong}, but the model's are 0 to {self._vocabulary - 1}")
        ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= self._eos_ids
        start: tuple[int, ...] = tuple(ids)
        source: tuple[int, ...] = ()
        if self._binding.encoder_decoder:
            start, source = self._settings.decoder_start_ids, tuple(ids)
            if len(source) > longest:
                raise InvalidInput(f"the prompt has {len(source)} tokens, the model takes {longest}")
            longest = min(self._settings.max_length, self._binding.target_length or self._settings.max_length)
        elif len(start) >= longest:
            raise InvalidInput(f"the prompt has {len(start)} tokens, and the model takes {longest} with those to come")
        left = longest - len(start)
        return Extent(start, source, ends, left if sampling.max_tokens is None else min(sampling.max_tokens, left))


def _capacity(extent: Extent) -> int:
    """Tokens of the cache: the last one that is generated is never sent."""
    return len(extent.start) + max(extent.max_new - 1, 0)


def _cost(sampling: Sampling, vocabulary: int) -> int:
    """How long it takes to choose a token, in the units of the scheduler's INLINE_COST (a quarter of a microsecond)."""
    greedy = vocabulary // 600
    return (
        greedy + (0 if sampling.greedy else vocabulary // 30) + (0 if sampling.logprobs is None else vocabulary // 60)
    )
