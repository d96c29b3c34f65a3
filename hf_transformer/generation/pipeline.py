"""Text generation pipeline: from the prompts of a request to generated texts. This is the package's entry point.

    prompts --tokenizer--> ids --Generator--> steps --SequenceAssembler--> pieces of text --Generation--> client

``start`` validates the request and raises all errors caused by it. A Generation (stream.py) then generates all
sequences concurrently.
"""

from __future__ import annotations

import time
from dataclasses import replace

from hf_transformer.core.budget import Budget
from hf_transformer.core.pipeline import TRIAL_TEXT, Pipeline, PipelineOptions
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, TooLarge, show_path
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stream import LOGPROB_BYTES, Generation, SequenceAssembler
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.text import TokenCounter
from hf_transformer.generation.types import GenerationRequest, Generator, GeneratorSettings, Prompt, Sampling
from hf_transformer.generation.verification import Verifier
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tokenization import TokenIds, Tokenization

PROMPT_BYTES, ECHO_BYTES = 4, 12
"""Bytes of a prompt's character in the model's input, and in the answer, as text and as JSON."""
ALWAYS_SUPPORTED = frozenset({"stop", "n", "max_tokens", "max_length"})
"""Fields that the service implements itself, without support from the model."""


class GenerationPipeline(Pipeline):
    """Runs requests through a task, its tokenizer and the generator of a model.

    ``timeout`` is the limit of a whole request, in seconds. ``verifier`` verifies texts with a constraint.

    Attributes:
        interface: the model's interface: tokens, text or logits.
        supported_fields: fields of Sampling that a request may set.
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
        verifier: Verifier | None = None,
    ) -> None:
        super().__init__(tokenizer, options)
        self._task = task
        self._generator = generator
        options.metrics.watch_work(generator)
        self._settings = settings
        self._timeout = timeout
        self._verifier = verifier
        self.interface = generator.interface
        self.supported_fields = ALWAYS_SUPPORTED | generator.supported_fields
        self._max_new_tokens = task.settings.generation.max_new_tokens
        self._vocabulary = Vocabulary(tokenizer)
        self._count_text = TokenCounter(tokenizer, options.executor).count

    async def start(self, request: GenerationRequest, context: Context) -> Generation:
        """Validates and tokenizes all prompts. The returned Generation starts when its context is entered.

        Its timeout starts immediately.

        Raises:
            InvalidInput: a prompt has no tokens, or the model does not support a parameter.
            TooLarge: there are too many prompts, or they are too long.
        """
        began, budget = time.perf_counter(), self._budget(context)
        self.check(request.sampling, request.max_length)
        if not request.prompts:
            raise InvalidInput(request.name, "at least one prompt", "none")
        length = self._count(request, budget)
        budget.expect(length)
        if self._log_texts is not None:
            self._log_texts(request.prompts, context)
        read = time.perf_counter()
        constraint, verifier, prepared = request.sampling.constraint, None, None
        if constraint is not None:
            verifier = self._verifier
            prepared = await self._generator.prepare(request.sampling)
            if verifier is not None:
                await verifier.prepare(constraint, request.sampling.path("constraint"))
        prompts = await self._tokenize(request, budget)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        self._count_logprobs(request.sampling, tokens, budget)
        sequences = [one for index, prompt in enumerate(prompts) for one in self._sequences(request, index, prompt)]
        self._generator.check([(one.prompt, one.sampling) for one in sequences])
        context.instances, context.tokens = len(prompts), tokens
        encoded = time.perf_counter()
        context.preprocess, context.parse, context.tokenize = encoded - began, read - context.arrived, encoded - read
        budget.add_tokens(tokens)
        self._metrics.generation.prompt_tokens += tokens
        generator, metrics, executor = self._generator, self._metrics, self._executor
        count, limit = self._count_text, self._timeout
        return Generation(
            sequences,
            generator,
            context,
            metrics,
            executor,
            prompt_tokens=tokens,
            count_text=count,
            timeout=limit,
            verifier=verifier,
            budget=budget,
            prepared=prepared,
        )

    async def __call__(self, query: Query, context: Context) -> Answers:
        """Generates all texts of a request, and returns them as predictions. The first error fails the whole
        request."""
        task = self._task
        request = task.request(query)
        async with await self.start(request, context) as generation:
            texts = [[piece.text for piece in choices] for choices in await generation.collect()]
        generated = time.perf_counter()
        predictions = task.answers(texts)
        tensor = task.tensor(predictions, request) if query.tensors else None
        context.postprocess += time.perf_counter() - generated
        return Answers(predictions, (), context.tokens, tensor)

    async def trial(self) -> None:
        """Generates one token after a short text, as a test of the model. Raises RequestError on failure."""
        try:
            [encoding] = self.tokenizer.encode((TRIAL_TEXT,))
            ids = encoding.ids[: max(1, self._settings.max_length - 1)]
        except InvalidInput:
            ids = []
        # If the tokenizer's alphabet lacks these words, use its first token.
        prompt = Prompt(TRIAL_TEXT, tuple(ids)) if ids else Prompt(self.tokenizer.decode((0,)), (0,))
        await self._generator.trial(prompt)

    def check(self, sampling: Sampling, max_length: int | None = None) -> None:
        """Checks the parameters of a request.

        Raises:
            InvalidInput: the model does not support a parameter.
            TooLarge: there are too many new tokens.
        """
        for field, name in sampling.names.items():
            if field not in self.supported_fields:
                expected = f"a parameter that this {self._generator.interface} model supports"
                hint = self._generator.hints.get(field, "leave it out")
                hint = f"the service's {name} sets it" if isinstance(name, str) and name.startswith("--") else hint
                raise InvalidInput(sampling.path(field), expected, hint=hint)
        max_new, field, value = self._max_new_tokens, "max_tokens", sampling.max_tokens
        if value is None and "max_length" in sampling.names:
            field, value = "max_length", max_length
        # A prompt has at least one token.
        if max_new is not None and value is not None and value - (field == "max_length") > max_new:
            raise TooLarge(sampling.path(field), f"at most {max_new} new tokens (--max_new_tokens)", str(value))

    def _count(self, request: GenerationRequest, budget: Budget) -> int:
        """Counts the texts of a request, and returns the number of characters of all prompts.

        Raises TooLarge for too many prompts or texts, or too long ones. Each text contains its prompt: in the model's
        input, and with ``echo`` in the answer.
        """
        sampling, prompts, limit = request.sampling, request.prompts, budget.limits.max_sequences
        longest = self._settings.max_length
        length = budget.add_texts(prompts, (request.name,), longest, single=request.single, times=sampling.n)
        count = len(prompts) * sampling.n
        if count > limit:
            each = f"{len(prompts)} with {sampling.names.get('n', 'n')}={sampling.n}"
            raise TooLarge(request.name, f"at most {limit} texts in a request (--max_sequences)", f"{count} ({each})")
        budget.add_sequences(count, request.name)
        budget.hold(length * sampling.n * (PROMPT_BYTES + ECHO_BYTES * request.echo), request.name)
        return length

    def _count_logprobs(self, sampling: Sampling, tokens: int, budget: Budget) -> None:
        """Counts the log probabilities of prompts of ``tokens`` tokens together. Raises TooLarge for too many."""
        if sampling.prompt_logprobs is None:
            return
        count = tokens * sampling.n * (1 + sampling.prompt_logprobs)
        path = sampling.path("prompt_logprobs")
        budget.check_values(count, path, "log probabilities of prompts in an answer")
        budget.add_values(count, count * LOGPROB_BYTES, path)

    async def _tokenize(self, request: GenerationRequest, budget: Budget) -> list[Prompt]:
        """Tokenizes the prompts without truncation. ``_max_tokens`` rejects long prompts later."""
        size, special, id_prompts = self.tokenizer.vocab_size, request.special_tokens, []
        for index, text in enumerate(request.prompts):
            if isinstance(text, TokenIds):
                id_prompts.append(text.ids)
                for token in text.ids:
                    if not 0 <= token < size:
                        raise InvalidInput(request.prompt_path(index), f"token ids from 0 to {size - 1}", str(token))
        options = Tokenization(whole=True, special_tokens=None if special else False)
        encodings = await self.tokenizer.encode_off_loop(request.prompts, self._executor, options)
        budget.hold(self.tokenizer.decoded_length(id_prompts) * request.sampling.n * PROMPT_BYTES, request.name)
        # Keep special tokens, since a text model needs them.
        decoded = iter(await self.tokenizer.decode_off_loop(id_prompts, self._executor, False))
        prompts = []
        for index, (text, [encoding]) in enumerate(zip(request.prompts, encodings, strict=True)):
            if not encoding.ids:
                raise InvalidInput(request.prompt_path(index), "a prompt of at least one token", "none")
            if isinstance(text, TokenIds):
                prompts.append(Prompt(next(decoded), tuple(encoding.ids), False))
            else:
                prompts.append(Prompt(str(text), tuple(encoding.ids), special))
        return prompts

    def _sequences(self, request: GenerationRequest, index: int, prompt: Prompt) -> list[SequenceAssembler]:
        """Builds one assembler for each choice of a prompt."""
        sampling, max_tokens = request.sampling, self._max_tokens(request, index, prompt)
        if sampling.n != 1 or sampling.max_tokens != max_tokens:
            sampling = replace(sampling, n=1, max_tokens=max_tokens)
        seed, prefix = sampling.seed, prompt.text if request.echo else None
        continues = not self._settings.decoder_start_ids
        assemblers = []
        for choice in range(request.sampling.n):
            chosen = sampling if seed is None or not choice else replace(sampling, seed=seed + choice)
            assemblers.append(SequenceAssembler(self._vocabulary, prompt, chosen, (index, choice), prefix, continues))
        return assemblers

    def _max_tokens(self, request: GenerationRequest, index: int, prompt: Prompt) -> int:
        """Limit of new tokens for a prompt: the client's limit or --max_new_tokens, capped by the model's maximum
        length.

        Raises:
            InvalidInput: max_length or min_tokens contradicts the limit.
            TooLarge: the prompt leaves no room.
        """
        sampling, limit, max_new = request.sampling, self._settings.max_length, self._max_new_tokens
        start, size, path = self._settings.decoder_start_ids, len(prompt.ids), request.prompt_path(index)
        used = len(start) if start else size
        most = limit if start else limit - (sampling.max_tokens != 0)
        if size > most or len(start) >= limit:
            hint = "" if start else f"the model's {limit} tokens include the new ones"
            raise ContextLengthExceeded(path, f"a prompt of at most {most} tokens", str(size), hint, limit=limit)
        room = limit - used
        if sampling.max_tokens is not None:
            room = min(room, sampling.max_tokens)
        elif max_new is not None and (request.max_length is None or request.max_length > max_new + 1):
            room = min(room, max_new)
        elif request.max_length is not None:
            if request.max_length <= used:
                expected = f"more than the {used} tokens before the new text of {show_path(path)}"
                hint = "set a larger value, or the number of new tokens"
                raise InvalidInput(sampling.path("max_length"), expected, str(request.max_length), hint)
            room = min(room, request.max_length - used)
        if sampling.min_tokens > room:
            expected = f"at most {room}, the limit of new tokens of {show_path(path)}"
            raise InvalidInput(sampling.path("min_tokens"), expected, str(sampling.min_tokens))
        return room
