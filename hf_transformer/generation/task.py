"""The tasks text_generation and text2text_generation: request parameters and the format of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.sampling import CHOICES, DRAW, MIN_TOKENS, STOP, STRUCTURED, read_sampling
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
    *(*STOP, "stop_token_ids", *CHOICES, "return_full_text", "stream", STRUCTURED),
)


class TextGeneration(Servable):
    """Task of a decoder-only model: the text continues the prompt.

    A prediction is [{"generated_text": "..."}] in both formats, with num_return_sequences elements. The tensor of the
    texts is BYTES [instances], or [instances, n] for several texts per instance.
    """

    name: ClassVar[str] = "text_generation"
    parameters: ClassVar[Sequence[str]] = PARAMETERS
    knows_full_text: ClassVar[bool] = True
    """Whether a prompt and its continuation form one text."""

    def options(self, parameters: Mapping[str, Json]) -> GenerationRequest:
        """Parses the parameters into a request without prompts. Raises InvalidInput or TooLarge."""
        reader = Parameters(parameters, self.parameters)
        reader.choice("output_format", self.settings.output_format, ("kserve", "pipeline"))
        reader.flag("stream", False)  # the API reads it
        defaults = self.settings.generation
        echo = reader.flag("return_full_text", defaults.return_full_text and self.knows_full_text)
        if echo and not self.knows_full_text:
            hint = f"{self.name} returns the new text alone"
            raise InvalidInput(("parameters", "return_full_text"), "false", "true", hint)
        tokens = reader.one_of(*MAX_TOKENS)
        if tokens is not None and "max_length" in reader:
            raise InvalidInput(("parameters", "max_length"), f"either max_length or {tokens}", "both")
        max_length = None if tokens is not None else reader.integer("max_length", defaults.max_length, 1)
        size, limit = self.settings.vocabulary.vocab_size, defaults.max_schema_bytes
        sampling = read_sampling(reader, defaults, size, tokens=tokens, max_schema_bytes=limit)
        return GenerationRequest(prompts=(), sampling=sampling, echo=echo, max_length=max_length)

    def request(self, query: Query) -> GenerationRequest:
        """Parses a V1 or V2 request. Raises RequestError for an invalid instance or parameter."""
        request = self.options(query.parameters)
        request.prompts = [read_text(text, (query.name, index)) for index, text in enumerate(query.instances)]
        request.name = query.name
        return request

    def answers(self, texts: Sequence[Sequence[str]]) -> list[Json]:
        """Builds predictions from the texts of each prompt, one text per choice."""
        return [[{"generated_text": text} for text in choices] for choices in texts]

    def tensor(self, predictions: Sequence[Json], options: GenerationRequest) -> Tensor:
        """Builds the tensor of the texts: BYTES [instances], or [instances, n] for n texts per instance."""
        texts = [[choice["generated_text"].encode() for choice in choices] for choices in predictions]
        count = options.sampling.n
        data = np.empty((len(texts), count), np.object_)
        for row, choices in zip(data, texts, strict=True):
            row[:] = choices
        return Tensor(OUTPUT, "BYTES", data[:, 0] if count == 1 else data)


class Text2TextGeneration(TextGeneration):
    """Task of an encoder-decoder, such as T5 and BART.

    The parameters are the same as for text_generation. An answer never contains the prompt, and ``max_length`` limits
    only the answer.
    """

    name = "text2text_generation"
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
"""All tasks with the suffixes of their architectures, in the format of TASKS."""
