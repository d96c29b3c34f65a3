"""The served model's own tokenizer."""

from __future__ import annotations

from hf_transformer.api.openapi.operations import (
    ALONE,
    Described,
    answer,
    body,
    failures,
    ref,
    work,
)
from hf_transformer.api.openapi.v1 import request
from hf_transformer.api.tokenize import PROMPTS
from hf_transformer.tasks.schema_forms import INTEGER, STRING, Schema, any_of, array, flag, record
from hf_transformer.types import Json

TAG = "Tokenization"
EXAMPLE = "What a fine day."


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    fails = failures(ALONE, ref("Error"))
    return {
        "/v1/models/{model}:tokenize": work(
            "tokenize",
            "Tokens of texts, and what the model's length would cut off",
            TAG,
            body(ref("TokenizeRequest"), {"instances": [EXAMPLE]}),
            answer(ref("TokenizeResponse"), "The tokens of each instance, in their order."),
            "Model",
            fails=fails,
        ),
        "/v1/models/{model}:detokenize": work(
            "detokenize",
            "The texts of tokens",
            TAG,
            body(ref("DetokenizeRequest"), {"instances": [[1, 2, 3]]}),
            answer(ref("DetokenizeResponse"), "A text per instance, in their order."),
            "Model",
            fails=fails,
        ),
    }


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    pair = record({"text": STRING, "text_pair": {"type": ["string", "null"]}}, "text_pair")
    ids = array({**INTEGER, "minimum": 0, "maximum": about.task.settings.vocabulary.vocab_size - 1})
    options = {
        "add_special_tokens": flag("Whether special tokens such as [CLS] are added; as for predictions if not given."),
        "return_tokens": flag("Whether the tokens are given, and not only how many there are.", True),
    }
    if about.task.reads_sentence_transformers:
        options |= {name: about.schemas.parameters["properties"][name] for name in PROMPTS}
    skip = {"skip_special_tokens": flag("Whether special tokens are left out.", False)}
    return {
        "TokenizeRequest": request(any_of(STRING, pair), record(options, *options), STRING),
        "TokenizeResponse": record({"predictions": array(ref("Tokens"), minItems=1)}),
        "Tokens": _tokens(),
        "DetokenizeRequest": request(any_of(ids, record({"token_ids": ids})), record(skip, *skip)),
        "DetokenizeResponse": record({"predictions": array(STRING, minItems=1)}),
    }


def _tokens() -> Schema:
    span = array(INTEGER, minItems=2, maxItems=2)
    numbers = {**array(INTEGER), "type": ["array", "null"]}
    of_tokens = {
        "ids": array(INTEGER),
        "tokens": array(STRING),
        "offsets": {**array(span), "type": ["array", "null"], "description": "First and last character of each."},
        "special_tokens_mask": {**numbers, "description": "1 for a special token, else 0."},
        "type_ids": numbers,
        "sequence_ids": {
            **array({"type": ["integer", "null"]}),
            "type": ["array", "null"],
            "description": "Of a pair: 0 for its first text, 1 for its second, null for special tokens.",
        },
    }
    counts = {
        "count": {**INTEGER, "description": "All tokens."},
        "max_length": {**INTEGER, "description": "Tokens that the model takes."},
        "kept": {**INTEGER, "description": "Tokens that the model would see."},
        "truncated": {**INTEGER, "description": "Tokens that would be cut off."},
        "truncated_text": {
            **array({**span, "type": ["array", "null"]}),
            "type": ["array", "null"],
            "description": "For each text, the characters that would be cut off.",
        },
    }
    return record({**of_tokens, **counts}, *of_tokens)
