"""The tasks text_generation and text2text_generation: request parameters and the format of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.parameters import TextGenerationParameters
from hf_transformer.generation.sampling import read_sampling
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.tasks import TASKS
from hf_transformer.tasks.base import Servable, read_text
from hf_transformer.tasks.declaration import BATCH, DECODED, SEQUENCE, STRING, Demo, Example, ExportHead, array, closed
from hf_transformer.tasks.tensors import OUTPUT
from hf_transformer.types.fields import Form
from hf_transformer.types.request import Json, Query
from hf_transformer.types.task_names import TASK_NAMES
from hf_transformer.types.tensors import Tensor

FORM: Final = Form(TextGenerationParameters)
CAPITAL, HOUSE = "The capital of france is", "translate English to German: The house is small."


class TextGeneration(Servable):
    """Task of a decoder-only model: the text continues the prompt.

    A prediction is [{"generated_text": "..."}] in both formats, with num_return_sequences elements. The tensor of the
    texts is BYTES [instances], or [instances, n] for several texts per instance.
    """

    name: ClassVar[str] = "text_generation"
    options_type = TextGenerationParameters
    purpose = "Goes on with a text or a chat"
    examples = (
        Example("a text that goes on", {"instances": [CAPITAL], "parameters": {"max_new_tokens": 8}}),
        Example(
            "two sampled texts",
            {
                "instances": [CAPITAL],
                "parameters": {"temperature": 0.8, "seed": 1, "num_return_sequences": 2, "return_full_text": False},
            },
            "sampled",
        ),
        Example("streamed", {"instances": [CAPITAL], "parameters": {"max_new_tokens": 8, "stream": True}}, "streamed"),
    )
    demo = Demo("gpt2", CAPITAL)
    export_head = ExportHead("AutoModelForCausalLM", {"logits": (BATCH, SEQUENCE, "vocab_size")})
    prediction_schemas = (
        {
            "description": "The texts of one prompt; for text_generation and text2text_generation.",
            **array(closed(["generated_text"], generated_text=STRING), minItems=1),
        },
    )
    knows_full_text: ClassVar[bool] = True
    """Whether a prompt and its continuation form one text."""

    def options(self, parameters: Mapping[str, Json]) -> GenerationRequest:
        """Parses the parameters into a request without prompts. Raises InvalidInput or TooLarge."""
        return self.convert(FORM.read(parameters, path=("parameters",)), FORM.aliases(parameters))

    def convert(self, request: TextGenerationParameters, names: Mapping[str, str]) -> GenerationRequest:
        """Converts parameters to a request without prompts. ``names`` are the client's names, where these differ.

        Raises:
            InvalidInput, TooLarge: parameters contradict each other, or the vocabulary.
        """
        defaults, echo = self.settings.generation, request.return_full_text
        if echo is None:
            echo = defaults.return_full_text and self.knows_full_text
        if echo and not self.knows_full_text:
            hint = f"{self.name} returns the new text alone"
            raise InvalidInput(("parameters", "return_full_text"), "false", "true", hint)
        if request.max_tokens is not None and request.max_length is not None:
            expected = f"either max_length or {names.get('max_tokens', 'max_tokens')}"
            raise InvalidInput(("parameters", "max_length"), expected, "both")
        sampling = read_sampling(
            request,
            defaults,
            self.settings.vocabulary.vocab_size,
            names=names,
            n=request.n,
            do_sample=request.do_sample,
            max_schema_bytes=defaults.max_schema_bytes,
        )
        if request.max_length is not None:
            sampling = replace(sampling, names={**sampling.names, "max_length": "max_length"})
        max_length = None if request.max_tokens is not None else request.max_length or defaults.max_length
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
    purpose = "Turns a text into another one"
    examples = (
        Example("another text", {"instances": ["capital of france"]}),
        Example("a translation, with T5's prefix", {"instances": [HOUSE]}, "prefixed"),
        Example("streamed", {"instances": [HOUSE], "parameters": {"stream": True}}, "streamed"),
    )
    demo = Demo("t5", "capital of france")
    export_head = ExportHead("AutoModelForSeq2SeqLM", {"logits": (BATCH, DECODED, "vocab_size")})
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
TASK_CLASSES: Mapping[str, type[Servable]] = {
    name: task for name in TASK_NAMES for task, _ in ALL_TASKS if task.name == name
}
"""All tasks by name, in the order of the command line's help."""
GENERATIVE = (TextGeneration.name, Text2TextGeneration.name)
"""The tasks that generate text."""
