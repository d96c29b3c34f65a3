"""Declared parameters of generation, which all APIs have: how tokens are chosen, and where a text ends.

Their names are those of vLLM's SamplingParams. The bodies of the OpenAI API (api/generated_answers.py), of Triton's
generate extension (api/generate.py), and the parameters of V1 and V2 here extend them.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from hf_transformer.tasks.options import Format, TaskParameters, by_flag
from hf_transformer.types.fields import Body, Natural, Positive, about, json_schemas, only
from hf_transformer.types.request import Json

MIN_POSITIVE: Final = 1e-6
"""Smallest temperature above 0, and smallest top_p. Models may round smaller float32 values to 0."""
MAX_TEMPERATURE: Final = 100.0
SEED_MODULUS: Final = 2**63
"""Modulus of seeds. It maps negative seeds to the unsigned seeds that predictors accept."""
DRAW: Final = ("temperature", "top_k", "top_p", "min_p")
"""Parameters that enable sampling unless the request sets do_sample."""
STOP: Final = ("stop", "stop_strings", "stop_words")
"""Names of one parameter: from vLLM, transformers and TensorRT-LLM."""
STRUCTURED: Final = "structured_outputs"
PROMPT_LOGPROBS: Final = "prompt_logprobs"

NewTokens: TypeAlias = Annotated[Positive | None, about("Maximum number of new tokens of a text.")]
LeastTokens: TypeAlias = Annotated[Natural | None, about("Number of new tokens before a text may end.")]
Choices: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=128)] | None,
    about("Number of texts for each prompt.", limits="texts per prompt", schema={"default": 1}),
]
TopTokens: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=20)] | None, about("Likeliest tokens beside each token.", limits="tokens per token")
]
"""At most 20, as in OpenAI's chat API."""
StopText: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=1000), about(expected="strings of 1 to 1000 characters", limits="characters")
]
StopTexts: TypeAlias = Annotated[
    StopText | Annotated[list[StopText], Meta(max_length=16)] | None,
    about("Texts that end a text, which excludes them.", expected="a string or a list of strings", limits="strings"),
]
"""The limits bound the buffer of a stream. OpenAI allows 4 strings."""
StopIds: TypeAlias = Annotated[
    Annotated[list[Annotated[int, about(expected="a token id")]], Meta(max_length=128)] | None,
    about("Tokens that end a text, which excludes them.", expected="a list of token ids", limits="token ids"),
]
Biases: TypeAlias = Annotated[
    Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None,
    about(
        "Numbers to add to the logits of tokens, by their ids.",
        expected="an object of biases by token id",
        limits="token ids",
    ),
]
Seed: TypeAlias = Annotated[int | None, about("Seed that makes sampling repeatable.")]
Language: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=32), about(expected="a language of 1 to 32 characters", limits="characters")
]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
"""The range is that of OpenAI's API."""


class StructuredOutputs(Body):
    """The form of a text: exactly one of these fields. Read by constraint.read_structured_outputs."""

    json: Annotated[dict[str, Json] | str | None, about("A JSON schema.")] = None
    json_object: Annotated[bool | None, about("Any JSON object.")] = None
    regex: Annotated[str | None, about("A regular expression of the whole text.")] = None
    choice: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] | None, about("The possible texts.")
    ] = None
    grammar: Annotated[str | None, about("A grammar: Lark or GBNF, or the backend's own form.")] = None
    disable_any_whitespace: Annotated[Json, only(False)] = None
    disable_additional_properties: Annotated[Json, only(False)] = None
    disable_fallback: Annotated[Json, only(False)] = None


CONSTRAINT_FORMS: Final = [
    json_schemas([StructuredOutputs])[1][StructuredOutputs.__name__],
    {"type": "string", "description": "The object as JSON text."},
    {"type": "null"},
]


class SamplingFields(TaskParameters):
    """Parameters of generation in all APIs. An absent one has the service's default, or OpenAI's."""

    max_tokens: NewTokens = None
    min_tokens: LeastTokens = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None,
        about("Divisor of the logits; 0 selects the likeliest token."),
        by_flag("temperature"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("Number of likeliest tokens to choose from; 0 and -1 mean all."),
        by_flag("top_k"),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=MIN_POSITIVE, le=1)] | None,
        about("Total probability of the likeliest tokens to choose from."),
        by_flag("top_p"),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Minimum probability of a token, relative to the likeliest one."),
    ] = None
    seed: Seed = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100)] | None,
        about("Penalty of tokens of prompt and text; above 1 against repetition."),
    ] = None
    presence_penalty: Annotated[Penalty | None, about("Penalty of tokens that the new text contains.")] = None
    frequency_penalty: Annotated[
        Penalty | None, about("Penalty of tokens for each time that the new text contains them.")
    ] = None
    logit_bias: Biases = None
    src_lang: Annotated[Language | None, about("Language of the text, for models that translate between many.")] = None
    tgt_lang: Annotated[Language | None, about("Language of the answer, for models that translate between many.")] = (
        None
    )
    ignore_eos: Annotated[
        bool | None, about("Whether a text continues after its end token.", schema={"default": False})
    ] = None
    stop: StopTexts = None
    stop_token_ids: StopIds = None
    structured_outputs: Annotated[
        Json,
        about("Form of the text. Not every model supports it.", schema={"anyOf": CONSTRAINT_FORMS}),
    ] = None

    def constraints(self) -> dict[str, Json]:
        """The fields of vLLM's API for a constraint that the request has."""
        return {} if self.structured_outputs is None else {STRUCTURED: self.structured_outputs}


class TextGenerationParameters(SamplingFields):
    """Parameters of text_generation and text2text_generation in V1 and V2, under transformers' names too."""

    output_format: Format = "kserve"
    max_length: Annotated[
        Positive | None,
        about("Maximum number of tokens of prompt and new text together; of the answer for text2text_generation."),
        by_flag("generation_max_length"),
    ] = None
    max_tokens: Annotated[
        Positive | None,
        about("Maximum number of new tokens of a text, instead of max_length.", also=("max_new_tokens",)),
    ] = None
    min_tokens: Annotated[LeastTokens, about(also=("min_new_tokens",))] = None
    do_sample: Annotated[
        bool | None,
        about("Whether to draw tokens; true if temperature, top_k, top_p or min_p is present."),
        by_flag("do_sample"),
    ] = None
    stop: Annotated[StopTexts, about(also=STOP[1:])] = None
    n: Annotated[Choices, about(also=("num_return_sequences",))] = None
    return_full_text: Annotated[
        bool | None,
        about("Whether the answer contains the prompt; never for text2text_generation."),
        by_flag("return_full_text"),
    ] = None
    stream: Annotated[bool | None, about("Whether to answer in pieces (V1, and gRPC streams).")] = None
