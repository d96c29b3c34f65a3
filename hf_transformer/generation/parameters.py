"""The parameters of text_generation and text2text_generation in V1, V2 and Triton's generate endpoints.

``sampling.read_sampling`` reads their values, since other APIs have the same ones with other defaults.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from hf_transformer.generation.sampling import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MIN_POSITIVE,
    RANGES,
)
from hf_transformer.tasks.declaration import STRING, Schema, array, closed
from hf_transformer.tasks.options import Format, TaskParameters, by_flag
from hf_transformer.types.fields import Natural, Positive, about
from hf_transformer.types.request import Json


def _within(name: str) -> Meta:
    least, most = RANGES[name]
    return Meta(ge=least, le=most)


STOP_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
STOP_FORMS = [STOP_TEXT, array(STOP_TEXT, maxItems=MAX_STOPS), {"type": "null"}]
BIASES: Schema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": MAX_BIASES,
}
STOP_IDS: Schema = {
    "type": ["array", "null"],
    "items": {"type": "integer", "minimum": 0},
    "maxItems": MAX_STOP_TOKENS,
}
TEMPERATURES = [
    {"type": ["number", "null"], "minimum": MIN_POSITIVE, "maximum": RANGES["temperature"][1]},
    {"const": 0},
]
FALSE = {"enum": [False, None]}
CONSTRAINT = closed(
    json={"anyOf": [{"type": "object", "description": "A JSON schema."}, STRING, {"type": "null"}]},
    json_object={"type": ["boolean", "null"], "description": "Any JSON object."},
    regex={"type": ["string", "null"], "description": "A regular expression of the whole text."},
    choice={
        "type": ["array", "null"],
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "description": "The possible texts.",
    },
    grammar={"type": ["string", "null"], "description": "A grammar: Lark or GBNF, or what the backend takes."},
    disable_any_whitespace=FALSE,
    disable_additional_properties=FALSE,
    disable_fallback=FALSE,
)
CONSTRAINTS = [{"type": "string", "description": "The object as JSON text."}, {"type": "null"}, CONSTRAINT]
NewTokens: TypeAlias = Annotated[
    Positive | None, about("New tokens of a text, instead of max_length; --max_new_tokens is the limit.")
]
LeastTokens: TypeAlias = Annotated[Natural | None, about("New tokens before a text may end.")]
Stop: TypeAlias = Annotated[Json, about("Texts that end a text, and are no part of it.", schema={"anyOf": STOP_FORMS})]
Choices: TypeAlias = Annotated[Annotated[int, Meta(ge=1, le=MAX_CHOICES)], about("Texts for each prompt.")]


class TextGenerationParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    max_length: Annotated[
        Positive | None,
        about("Tokens of the prompt and the new text together, for text2text_generation of the answer alone."),
        by_flag("generation_max_length"),
    ] = None
    max_new_tokens: NewTokens = None
    max_tokens: Annotated[Positive | None, about("Another name of max_new_tokens.")] = None
    min_new_tokens: LeastTokens = None
    min_tokens: LeastTokens = None
    do_sample: Annotated[
        bool | None,
        about("Whether tokens are drawn; true where temperature, top_k, top_p or min_p is given."),
        by_flag("do_sample"),
    ] = None
    temperature: Annotated[
        Json,
        about("Divides the logits; 0 takes the likeliest token.", schema={"anyOf": TEMPERATURES}),
        by_flag("temperature"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("Only so many of the likeliest tokens; 0 and -1 are all."),
        by_flag("top_k"),
    ] = None
    top_p: Annotated[
        Annotated[float, _within("top_p")] | None,
        about("Only the likeliest tokens of this total probability."),
        by_flag("top_p"),
    ] = None
    min_p: Annotated[
        Annotated[float, _within("min_p")] | None,
        about("Only tokens at least this part as likely as the likeliest."),
    ] = None
    seed: Annotated[int | None, about("Makes sampling repeatable.")] = None
    repetition_penalty: Annotated[
        Annotated[float, _within("repetition_penalty")] | None, about("Above 1 against tokens of the text so far.")
    ] = None
    presence_penalty: Annotated[
        Annotated[float, _within("presence_penalty")] | None, about("Against tokens of the new text.")
    ] = None
    frequency_penalty: Annotated[
        Annotated[float, _within("frequency_penalty")] | None,
        about("The same for each time that the text has them."),
    ] = None
    logit_bias: Annotated[Json, about("Added to the logits of these tokens, by their ids.", schema=BIASES)] = None
    ignore_eos: Annotated[bool, about("Whether a text goes on past the token that ends it.")] = False
    stop: Stop = None
    stop_strings: Stop = None
    stop_words: Stop = None
    stop_token_ids: Annotated[Json, about("Tokens that end a text, and are no part of it.", schema=STOP_IDS)] = None
    num_return_sequences: Choices = 1
    n: Choices = 1
    return_full_text: Annotated[
        bool | None,
        about("Whether the prompt is part of the answer; never for text2text_generation."),
        by_flag("return_full_text"),
    ] = None
    stream: Annotated[bool, about("Whether the text is given in pieces (V1; gRPC streams).")] = False
    structured_outputs: Annotated[
        Json,
        about(
            "The form of the text: exactly one of its fields, as an object or as its JSON text. The service refuses it "
            "for a model that can't hold it.",
            schema={"anyOf": CONSTRAINTS},
        ),
    ] = None
