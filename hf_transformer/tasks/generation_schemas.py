"""JSON schemas (2020-12) of text generation: of its tasks, see schemas.py, and of fields that other APIs have too."""

from __future__ import annotations

from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tasks.sampling import (
    LARGEST_PENALTY,
    LARGEST_TEMPERATURE,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    SMALLEST,
    SMALLEST_PENALTY,
)
from hf_transformer.tasks.schema_forms import STRING, Schema, any_of, array, flag, integer, nullable, record
from hf_transformer.tasks.task_schemas import TaskSchemas, parameters_of
from hf_transformer.tasks.text_generation import CHOICES, MAX_TOKENS, MIN_TOKENS, STOP
from hf_transformer.types import Json


def number(description: str, least: float, most: float, default: Json = None) -> Schema:
    """A number in a range."""
    return nullable({"type": "number", "minimum": least, "maximum": most}, description, default)


def stop() -> Schema:
    some = {**STRING, "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    texts = array(some, maxItems=MAX_STOPS)
    return any_of(some, texts, {"type": "null"}, description="What ends a text, and is no part of it.")


def stop_token_ids(settings: TaskSettings) -> Schema:
    ids = array({"type": "integer", "minimum": 0, "maximum": settings.vocabulary.vocab_size - 1})
    return nullable({**ids, "maxItems": MAX_STOP_TOKENS}, "Tokens that end a text, and are no part of it.")


def choices() -> Schema:
    return {**integer("Texts for each prompt.", 1, 1), "maximum": MAX_CHOICES}


def sampling(*, temperature: float, top_k: int, top_p: float) -> dict[str, Schema]:
    """Fields that say how tokens are chosen, by the names that all APIs have for them; with the API's defaults."""
    bias = {
        "type": ["object", "null"],
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": MAX_BIASES,
        "description": "Added to the logits of these tokens, by their ids.",
    }
    return {
        "temperature": any_of(
            number("Divides the logits.", SMALLEST, LARGEST_TEMPERATURE),
            {"const": 0, "description": "Takes the likeliest token."},
            default=temperature,
        ),
        "top_k": integer("Only so many of the likeliest tokens; 0 and -1 are all.", -1, top_k or None),
        "top_p": number("Only the likeliest tokens of this total probability.", SMALLEST, 1, top_p),
        "min_p": number("Only tokens at least this part as likely as the likeliest.", 0, 1),
        "seed": nullable({"type": "integer"}, "Makes sampling repeatable."),
        "repetition_penalty": number("Above 1 against tokens that were there.", SMALLEST_PENALTY, LARGEST_PENALTY),
        "presence_penalty": number("Against tokens of the new text.", -2, 2),
        "frequency_penalty": number("The same for each time that they are in it.", -2, 2),
        "logit_bias": bias,
        "ignore_eos": flag("Whether a text goes on past the token that ends it.", False),
    }


def text_generation(settings: TaskSettings) -> TaskSchemas:
    defaults = settings.generation
    full = flag("Whether the prompt is part of the answer.", defaults.return_full_text)
    length = integer("Tokens of the prompt and the new text together.", 1, defaults.max_length)
    return _schemas(settings, length, full, "The capital of france is")


def text2text_generation(settings: TaskSettings) -> TaskSchemas:
    full = {"enum": [False, None], "description": "The prompt is no part of the answer."}
    length = integer("Tokens of the answer, the one that it begins with included.", 1, settings.generation.max_length)
    return _schemas(settings, length, full, "translate English to German: The house is small.")


def _schemas(settings: TaskSettings, length: Schema, full: Schema, example: str) -> TaskSchemas:
    defaults = settings.generation
    text = record({"text": STRING})
    more = " Instead of max_length." if not defaults.max_new_tokens else f" At most {defaults.max_new_tokens}."
    own = {
        "max_length": length,
        **{name: integer("New tokens of a text." + more, 1) for name in MAX_TOKENS},
        **{name: integer("New tokens before a text may end.", 0) for name in MIN_TOKENS},
        "do_sample": flag("Whether tokens are drawn; true where one of the next four is given.", defaults.do_sample),
        **sampling(temperature=defaults.temperature, top_k=defaults.top_k, top_p=defaults.top_p),
        **{name: stop() for name in STOP},
        "stop_token_ids": stop_token_ids(settings),
        **{name: choices() for name in CHOICES},
        "return_full_text": full,
        "stream": flag("Whether the text is given as it comes (V1, gRPC streams).", False),
    }
    return TaskSchemas(
        instance=any_of(STRING, text, description="A prompt."),
        parameters=parameters_of(settings, **own),
        prediction=array(record({"generated_text": STRING}), minItems=1, description="The texts of one prompt."),
        example=example,
    )
