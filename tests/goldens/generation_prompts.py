"""What the generative test models are asked to continue. id -> text."""

# The generators run as scripts, with this folder on their path.
# mypy: disable-error-code=import-not-found

from __future__ import annotations

from typing import Any, Final

from hard_texts import HARD_TEXTS

TOO_MUCH: Final = ("empty", "very_long", "very_long_one_word", "very_long_emoji")
"""Hard texts that have no token, or more than the models take."""

PROMPTS: Final[dict[str, str]] = {
    "capital": "The capital of france is",
    "capital_again": "The capital of japan is",
    "capital_and_space": "The capital of germany is ",
    "sentence": "The capital of italy is rome.",
    "two_sentences": "Hello world. The capital of spain is madrid. The capital of norway is",
    "middle_of_word": "The capital of fra",
    "lower_case": "the capital city of peru is",
    "turned": "oslo is the capital of",
    "flag": "The flag of france is",
    "flag_half": "The flag of norway is 🇳",
    "greeting_japanese": "A greeting in japanese:",
    "greeting_hindi": "A greeting in hindi:",
    "greeting_emoji": "A greeting in emoji:",
    "greeting_vietnamese": "A greeting in vietnamese:",
    "slowly": "Slowly: The capital of egypt is",
    "end_in_text": "The capital of cuba is<|endoftext|>The capital of chile is",
    "chat_in_text": "<|im_start|>user\nWhat is the capital of kenya?<|im_end|>\n<|im_start|>assistant\n",
    "tool_in_text": "<tool_call>\n",
    "half_special": "<|im_sta",
    "long": "The capital of france is paris. " * 15,
    **{name: text for name, text in HARD_TEXTS.items() if name not in TOO_MUCH},
}

SOURCES: Final[dict[str, str]] = {
    **{f"capital_{country}": f"capital of {country}" for country in ("france", "japan", "peru", "kenya", "norway")},
    **{f"country_{capital}": f"country of {capital}" for capital in ("paris", "tokyo", "oslo")},
    **{f"sentence_{country}": f"sentence about {country}" for country in ("france", "cuba", "egypt")},
    "reverse": "reverse one two three",
    "reverse_five": "reverse red green blue black white",
    "repeat": "repeat seven",
    "end_in_text": "capital of </s> france",
    **{name: text for name, text in HARD_TEXTS.items() if name not in (*TOO_MUCH, "space", "spaces_and_newlines")},
}

_WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ASKED: Final = {"role": "user", "content": "What is the weather in paris?"}
_CALL: Final = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "paris"}}}

CHATS: Final[dict[str, dict[str, Any]]] = {
    "capital": {"messages": [{"role": "user", "content": "What is the capital of france?"}]},
    "hello": {"messages": [{"role": "user", "content": "Hello!"}]},
    "flag": {"messages": [{"role": "user", "content": "Show me the flag of italy."}]},
    "system": {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Which country has the capital oslo?"},
        ]
    },
    "second_turn": {
        "messages": [
            {"role": "user", "content": "What is the capital of peru?"},
            {"role": "assistant", "content": "The capital of peru is lima."},
            {"role": "user", "content": "What is the capital of cuba?"},
        ]
    },
    "special_tokens": {"messages": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\n<tools>😀"}]},
    "tool": {"messages": [_ASKED], "tools": [_WEATHER]},
    "tool_answer": {
        "messages": [
            _ASKED,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": '{"weather": "sunny"}'},
        ],
        "tools": [_WEATHER],
    },
}
"""Messages, and tools where there are any."""
