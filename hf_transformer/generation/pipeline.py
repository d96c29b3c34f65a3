"""One request of text generation, from prompts to texts. Read this first.

    prompts --tokenizer--> ids --Generator--> steps --SequenceAssembler--> pieces of text --Generation--> the client

``start`` does everything that can fail because of the request itself; a Generation (stream.py) then generates all
sequences at the same time.
"""

from __future__ import annotations

import time
from dataclasses import replace

from hf_transformer.core.pipeline import TRIAL_TEXT, Pipeline, PipelineOptions
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stream import Generation, SequenceAssembler
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.text import TokenCounter
from hf_transformer.generation.types import GenerationRequest, Generator, GeneratorSettings, Prompt
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tokenization import TokenIds, Tokenization

ALWAYS_SUPPORTED = frozenset({"stop", "n", "max_tokens", "max_length"})
"""Parameters that need no support by the model, since they are honoured here."""


class GenerationPipeline(Pipeline):
    """A task, its tokenizer and the generator of its predictor, put in a row.

    ``timeout`` is in seconds and bounds a whole request.

    Attributes: ``interface``, the model's kind: tokens, text or logits; ``supported_fields``, the fields of
    Sampling that a request may change.
    """

    def __init__(
        self,
        task: TextGeneration,
        tokenizer: Tokenizer,
        generator: Generator,
        settings: GeneratorSettings,
        options: PipelineOptions,
        *,
        timeout: float,
    ) -> None:
        super().__init__(tokenizer, options)
        self._task = task
        self._generator = generator
        self._settings = settings
        self._timeout = timeout
        self.interface = generator.interface
        self.supported_fields = ALWAYS_SUPPORTED | generator.supported_fields
        self._max_new_tokens = task.settings.generation.max_new_tokens
        self._vocabulary = Vocabulary(tokenizer)
        self._count_text = TokenCounter(tokenizer, options.executor).count

    async def start(self, request: GenerationRequest, context: Context) -> Generation:
        """Checks and tokenizes all prompts. The result's time runs; it generates once it is entered.

        Raises InvalidInput for a prompt without tokens and for a parameter that is wrong or can't be honoured by this
        model, and TooLarge for too many prompts, or too long ones.
        """
        began, place = time.perf_counter(), context.ticket
        length = self._check(request)
        if place is not None:
            place.expect(length)
        if self._log_texts is not None:
            self._log_texts(request.prompts, context)
        read = time.perf_counter()
        prompts = await self._prompts(request)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        sequences = [one for index, prompt in enumerate(prompts) for one in self._sequences(request, index, prompt)]
        self._generator.check([(one.prompt, one.sampling) for one in sequences])
        context.instances, context.tokens = len(prompts), tokens
        encoded = time.perf_counter()
        context.preprocess, context.parse, context.tokenize = encoded - began, read - context.arrived, encoded - read
        if place is not None:
            place.charge(tokens)
        self._metrics.generation.prompt_tokens += tokens
        metrics, count = self._metrics, self._count_text
        return Generation(
            sequences, self._generator, context, metrics, prompt_tokens=tokens, count_text=count, timeout=self._timeout
        )

    async def __call__(self, query: Query, context: Context) -> Answers:
        """All texts of a request, as predictions. Raises RequestError, one for the whole request."""
        task = self._task
        request = task.request(query)
        async with await self.start(request, context) as generation:
            texts = [[one.text for one in choices] for choices in await generation.collect()]
        written = time.perf_counter()
        predictions = task.answers(texts)
        tensor = task.tensor(predictions, request) if query.tensors else None
        context.postprocess += time.perf_counter() - written
        return Answers(predictions, (), context.tokens, tensor)

    async def trial(self) -> None:
        """Generates a token after a short text. Raises RequestError if the model can't."""
        try:
            [encoding] = self.tokenizer.encode((TRIAL_TEXT,))
            ids = encoding.ids[: max(1, self._settings.max_length - 1)]
        except InvalidInput:
            ids = []
        # The first token, if the tokenizer has no tokens for these words.
        prompt = Prompt(TRIAL_TEXT, tuple(ids)) if ids else Prompt(self.tokenizer.decode((0,)), (0,))
        await self._generator.trial(prompt)

    def _check(self, request: GenerationRequest) -> int:
        """The number of characters of all prompts. Raises InvalidInput for a parameter that this model can't honour,
        and RequestError for too many, too few or too long prompts."""
        sampling, most = request.sampling, self._limits.max_sequences
        for field in sampling.names:
            if field not in self.supported_fields:
                raise InvalidInput.of(
                    f"{sampling.path(field)}: this model is a {self._generator.interface} model, which can't honour "
                    "it; leave it out"
                )
        if not request.prompts:
            raise InvalidInput.of(f"{request.name}: expected at least one, got none")
        length = self._limits.check_texts(request.prompts, request.name, single=request.single)
        limit, name, asked = self._max_new_tokens, "max_tokens", sampling.max_tokens
        if asked is None and "max_length" in sampling.names:
            name, asked = "max_length", request.max_length
        # A prompt has a token at least.
        if limit is not None and asked is not None and asked - (name == "max_length") > limit:
            raise TooLarge.of(
                f"{sampling.path(name)}: {asked}, at most {limit} new tokens are given (--max_new_tokens)"
            )
        count = len(request.prompts) * sampling.n
        if count > most:
            raise TooLarge.of(
                f"{request.name}: {len(request.prompts)} with {sampling.n} texts each "
                f"({sampling.names.get('n', 'n')}) are {count}, at most {most} are written in one "
                "request (--max_sequences)"
            )
        return length

    async def _prompts(self, request: GenerationRequest) -> list[Prompt]:
        """The whole prompts in tokens. ``_max_tokens`` refuses those that are too long."""
        size, special, given = self.tokenizer.vocab_size, request.special_tokens, []
        for index, text in enumerate(request.prompts):
            if isinstance(text, TokenIds):
                given.append(text.ids)
                for one in text.ids:
                    if not 0 <= one < size:
                        where = _where(request, index)
                        raise InvalidInput.of(f"{where}: {one} is no token id; they go from 0 to {size - 1}")
        how = Tokenization(whole=True, special_tokens=None if special else False)
        found = await self.tokenizer.encode_off_loop(request.prompts, self._executor, how)
        # With special tokens: else a model that reads text would not see them.
        decoded = iter(await self.tokenizer.decode_off_loop(given, self._executor, False))
        prompts = []
        for index, (text, [encoding]) in enumerate(zip(request.prompts, found, strict=True)):
            if not encoding.ids:
                raise InvalidInput.of(f"{_where(request, index)}: the prompt has no tokens")
            if isinstance(text, TokenIds):
                prompts.append(Prompt(next(decoded), tuple(encoding.ids), False))
            else:
                prompts.append(Prompt(str(text), tuple(encoding.ids), special))
        return prompts

    def _sequences(self, request: GenerationRequest, index: int, prompt: Prompt) -> list[SequenceAssembler]:
        """One for each choice of a prompt."""
        sampling, most = request.sampling, self._max_tokens(request, index, prompt)
        if sampling.n != 1 or sampling.max_tokens != most:
            sampling = replace(sampling, n=1, max_tokens=most)
        before = prompt.text if request.echo else ""
        continues = not self._settings.decoder_start_ids
        found = []
        for choice in range(request.sampling.n):
            own = sampling if sampling.seed is None or not choice else replace(sampling, seed=sampling.seed + choice)
            found.append(SequenceAssembler(self._vocabulary, prompt, own, (index, choice), before, continues))
        return found

    def _max_tokens(self, request: GenerationRequest, index: int, prompt: Prompt) -> int:
        """The limit of new tokens: the client's number, else --max_new_tokens, but no more than the model's length
        leaves after the prompt, or in an encoder-decoder after the tokens that its decoder starts with."""
        sampling, limit, most = request.sampling, self._settings.max_length, self._max_new_tokens
        start = self._settings.decoder_start_ids
        taken = len(start) if start else len(prompt.ids)
        if len(prompt.ids) > limit or taken >= limit:
            more = "" if start else ", which leaves none for new ones"
            raise TooLarge.of(
                f"{_where(request, index)}: the prompt has {len(prompt.ids)} tokens, and the model takes {limit}{more}"
            )
        found = limit - taken
        if sampling.max_tokens is not None:
            found = min(found, sampling.max_tokens)
        elif most is not None and (request.max_length is None or request.max_length > most + 1):
            found = min(found, most)
        elif request.max_length is not None:
            if request.max_length <= taken:
                raise InvalidInput.of(
                    f"{sampling.path('max_length')}: {request.max_length} tokens are to be enough for the text and "
                    f"the tokens before it, and {_where(request, index)} has {taken} already; give a larger one, or "
                    "say how many new tokens there may be"
                )
            found = min(found, request.max_length - taken)
        if sampling.min_tokens > found:
            raise InvalidInput.of(
                f"{sampling.path('min_tokens')}: {sampling.min_tokens} new tokens at least, and there may be "
                f"{found} after the {len(prompt.ids)} of {_where(request, index)}"
            )
        return found


def _where(request: GenerationRequest, index: int) -> str:
    return request.name if request.single else f"{request.name}[{index}]"
