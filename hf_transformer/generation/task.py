"""The tasks text_generation and text2text_generation: parameters of requests, and the form of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.sampling import CHOICES, DRAW, MIN_TOKENS, STOP, read_sampling
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.tasks import TASKS
from hf_transformer.tasks.base import Servable, read_text
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.tensors import OUTPUT
from hf_transformer.types.request import Json, Query
from hf_transformer.types.tensors import Tensor

MAX_TOKENS = ("max_new_tokens", "max_tokens")
PARAMETERS = (
    *("output_format", "max_length", *MAX_TOKENS, *MIN_TOKENS, "do_sample", *DRAW, "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "ignore_eos"),
    *(*STOP, "stop_token_ids", *CHOICES, "return_full_text", "stream"),
)


class TextGeneration(Servable):
    """A decoder alone: the text goes on where the prompt ends.

    Answers per instance, in both formats: [{"generated_text": "..."}], with an element for each of
    num_return_sequences. As a tensor BYTES [instances], the texts, or [instances, n] where there are several of each.
    """

    name: ClassVar[str] = "text_generation"
    parameters: ClassVar[Sequence[str]] = PARAMETERS
    other_names: ClassVar[tuple[str, ...]] = ("causal_lm", "text_completion")
    knows_full_text: ClassVar[bool] = True
    """Whether a prompt and its continuation are one text."""

    def options(self, parameters: Mapping[str, Json]) -> GenerationRequest:
        """A request with these parameters and no prompts yet. Raises InvalidInput or TooLarge."""
        given = Parameters(parameters, self.parameters)
        given.choice("output_format", self.settings.output_format, ("kserve", "pipeline"))
        given.flag("stream", False)  # up to the API
        defaults = self.settings.generation
        full = given.flag("return_full_text", defaults.return_full_text and self.knows_full_text)
        if full and not self.knows_full_text:
            raise InvalidInput.of(f"parameters.return_full_text: {self.name} gives the new text alone, expected false")
        tokens = given.one_of(*MAX_TOKENS)
        if tokens is not None and "max_length" in given:
            raise InvalidInput.of(f"parameters.max_length: can't be combined with {tokens}, which says what is new")
        max_length = None if tokens is not None else given.integer("max_length", defaults.max_length, 1)
        sampling = read_sampling(given, defaults, self.settings.vocabulary.vocab_size, tokens=tokens)
        return GenerationRequest(prompts=(), sampling=sampling, echo=full, max_length=max_length)

    def request(self, query: Query) -> GenerationRequest:
        """Reads a request in V1's or V2's form. Raises RequestError for a wrong instance or parameter."""
        request = self.options(query.parameters)
        request.prompts = [read_text(one, f"{query.name}[{index}]") for index, one in enumerate(query.instances)]
        request.name = query.name
        return request

    def answers(self, texts: Sequence[Sequence[str]]) -> list[Json]:
        """The predictions. ``texts`` has the whole texts of each prompt, one per choice."""
        return [[{"generated_text": text} for text in choices] for choices in texts]

    def tensor(self, predictions: Sequence[Json], options: GenerationRequest) -> Tensor:
        """BYTES [instances], or [instances, n] for n texts of each."""
        texts = [[one["generated_text"].encode() for one in choices] for choices in predictions]
        count = options.sampling.n
        data = np.empty((len(texts), count), np.object_)
        for row, choices in zip(data, texts, strict=True):
            row[:] = choices
        return Tensor(OUTPUT, "BYTES", data[:, 0] if count == 1 else data)


class Text2TextGeneration(TextGeneration):
    """An encoder-decoder, such as T5 and BART. Parameters and answers are those of text_generation, but the prompt is
    never part of an answer, and ``max_length`` bounds the answer alone."""

    name = "text2text_generation"
    other_names = ("summarization", "translation")
    knows_full_text = False


ALL_TASKS: Sequence[tuple[type[Servable], str]] = (
    *((task, suffix) for task, suffix in TASKS if suffix.endswith("WithLMHeadModel")),
    (Text2TextGeneration, "T5WithLMHeadModel"),
    (TextGeneration, "ForCausalLM"),
    (TextGeneration, "LMHeadModel"),
    (TextGeneration, "ModelWithLMHead"),
    (TextGeneration, "BertGenerationDecoder"),
    (Text2TextGeneration, "ForConditionalGeneration"),
    (Text2TextGeneration, "ForTextToText"),
    (Text2TextGeneration, "MarianMTModel"),
    (Text2TextGeneration, "EncoderDecoderModel"),
    *TASKS,
)
"""Every task that can be served, in the form of TASKS."""
