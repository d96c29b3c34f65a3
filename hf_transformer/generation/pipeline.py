"""Text generation pipeline: from the prompts of a request to generated texts. This is the package's entry point.

    prompts --tokenizer--> ids --Generator--> steps --SequenceAssembler--> pieces of text --Generation--> client

``start`` validates the request and raises all errors caused by it. A Generation (stream.py) then generates all
sequences concurrently.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from hf_transformer.core.budget import Budget
from hf_transformer.core.pipeline import TRIAL_TEXT, Pipeline, PipelineOptions
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, TooLarge, show_path
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stream import LOGPROB_BYTES, Generation, SequenceAssembler
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.text import TokenCounter
from hf_transformer.generation.types import (
    LANGUAGES,
    NEUTRAL,
    GenerationRequest,
    Generator,
    GeneratorSettings,
    Prompt,
    Sampling,
)
from hf_transformer.generation.verification import Verifier
from hf_transformer.tokenizer.languages import Languages
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Answers, Context, Query, TracedOperation
from hf_transformer.types.tokenization import TextInput, TokenIds, Tokenization

PROMPT_BYTES, ECHO_BYTES = 4, 12
"""Bytes of a prompt's character in the model's input, and in the answer, as text and as JSON."""
IMAGE_COPIES = 3
"""Copies of an image's base64 in a call to the predictor: in the tensor, the message and the connection."""
ALWAYS_SUPPORTED = frozenset({"stop", "n", "max_tokens", "max_length"})
"""Fields that the service implements itself, without support from the model."""


class GenerationPipeline(Pipeline):
    """Runs requests through a task, its tokenizer and the generator of a model.

    ``timeout`` is the limit of a whole request, in seconds. ``verifier`` verifies texts with a constraint.

    Attributes:
        interface: the model's interface: tokens, text or logits.
        supported_fields: fields of Sampling that a request may set.
        reasons_first: see Generator.
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
        self.image_form = generator.image_form
        self.reasons_first = generator.reasons_first
        self.supported_fields = ALWAYS_SUPPORTED | generator.supported_fields
        self._languages = languages = Languages.of(tokenizer)
        if languages is None:
            self.supported_fields -= {*LANGUAGES}
        elif languages.is_mark:
            self.supported_fields |= {"tgt_lang"}
        if languages is not None and not languages.has_source:
            self.supported_fields -= {"src_lang"}
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
        context.operation = described(request)
        self.check(request.sampling, request.max_length)
        if not request.prompts:
            raise InvalidInput(request.name, "at least one prompt", "none")
        if request.images:
            if self.image_form is None:  # the model has changed since its chat was rendered
                raise InvalidInput(request.name, "text", "images")
            copies = sum(len(image.base64) for image in request.images) * IMAGE_COPIES * request.sampling.n
            budget.hold(copies, request.name)
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
        for field in LANGUAGES:
            self._language(sampling, field)
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
        texts = self._marked(request)
        encodings = await self.tokenizer.encode_off_loop(texts, self._executor, options)
        budget.hold(self.tokenizer.decoded_length(id_prompts) * request.sampling.n * PROMPT_BYTES, request.name)
        # Keep special tokens, since a text model needs them.
        decoded = iter(await self.tokenizer.decode_off_loop(id_prompts, self._executor, False))
        source, start = self._language(request.sampling, "src_lang"), self._decoder_start(request.sampling)
        prompts = []
        for index, (text, [encoding]) in enumerate(zip(texts, encodings, strict=True)):
            if not encoding.ids:
                raise InvalidInput(request.prompt_path(index), "a prompt of at least one token", "none")
            if isinstance(text, TokenIds):
                if source is not None:
                    hint = "token ids have their language already"
                    raise InvalidInput(request.sampling.path("src_lang"), "no language", hint=hint)
                prompts.append(Prompt(next(decoded), tuple(encoding.ids), False, decoder_start=start))
            else:
                sent = self.tokenizer.broken(text) if self.interface == "text" and isinstance(text, str) else str(text)
                ids = tuple(encoding.ids)
                if source is not None and self._languages is not None:
                    if not special:
                        path, hint = request.sampling.path("src_lang"), "the language is one of them"
                        raise InvalidInput(path, "no language without special tokens", hint=hint)
                    ids = self._languages.with_source(ids, source)
                prompt = Prompt(sent, ids, special, images=request.images, question=request.question)
                prompt.decoder_start = start
                prompts.append(prompt)
        return prompts

    def _language(self, sampling: Sampling, field: str) -> int | None:
        """The token of a request's language. Raises InvalidInput for an unknown one."""
        code = getattr(sampling, field)
        return None if code is None or self._languages is None else self._languages.id(code, sampling.path(field))

    def _marked(self, request: GenerationRequest) -> Sequence[TextInput]:
        """Puts the mark of the target language before prompts, for a model with such marks."""
        target, languages = request.sampling.tgt_lang, self._languages
        if target is None or languages is None or not languages.is_mark:
            return request.prompts
        marked: list[TextInput] = []
        for index, text in enumerate(request.prompts):
            if not isinstance(text, str):
                expected = f"no token ids with {show_path(request.sampling.path('tgt_lang'))}"
                raise InvalidInput(request.prompt_path(index), expected)
            marked.append(languages.marked(text, target))
        return marked

    def _decoder_start(self, sampling: Sampling) -> tuple[int, ...]:
        """The decoder's first tokens for a target language: the model's own, and the language."""
        target = self._language(sampling, "tgt_lang")
        if target is None or self._languages is None or self._languages.is_mark:
            return ()
        return (*self._settings.decoder_start_ids[:1], target)

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
        start, size = prompt.decoder_start or self._settings.decoder_start_ids, len(prompt.ids)
        path = request.prompt_path(index)
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


def described(request: GenerationRequest) -> TracedOperation:
    """The operation and parameters of a request in OpenTelemetry's terms. Stop strings are texts of users.

    Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    """
    sampling = request.sampling
    parameters: dict[str, int | float] = {"temperature": 0.0 if sampling.greedy else float(sampling.temperature)}
    if sampling.max_tokens is not None:
        parameters["max_tokens"] = sampling.max_tokens
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if sampling.n != NEUTRAL.n:
        parameters["choice.count"] = sampling.n
    for name in () if sampling.greedy else ("top_k", "top_p"):
        if (value := getattr(sampling, name)) != getattr(NEUTRAL, name):
            parameters[name] = float(value)
    for name in ("frequency_penalty", "presence_penalty"):
        if value := getattr(sampling, name):
            parameters[name] = float(value)
    return TracedOperation("chat" if request.name == "messages" else "text_completion", parameters, 0)
