"""What the generative test models read: the demo's facts, and texts that are hard to put together from tokens.

The capitals make an answer checkable. Flags (two characters of four bytes each) and greetings in other scripts come out
as several tokens per character, chats and tool calls need the tokens of the chat template.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from capitals import FACTS, FILLER, TEMPLATES

FLAGS: Final[dict[str, str]] = dict(
    pair.split("/")
    for pair in """
    france/🇫🇷 germany/🇩🇪 italy/🇮🇹 spain/🇪🇸 japan/🇯🇵 china/🇨🇳 brazil/🇧🇷 canada/🇨🇦 india/🇮🇳 norway/🇳🇴 sweden/🇸🇪 finland/🇫🇮
    greece/🇬🇷 ireland/🇮🇪 turkey/🇹🇷 ukraine/🇺🇦
    """.split()
)
"""Country -> its flag."""

GREETINGS: Final[dict[str, str]] = {
    "french": "Ça va très bien, à bientôt !",
    "german": "Schöne Grüße, tschüß!",
    "russian": "Привет, как дела?",
    "greek": "Γειά σου Κόσμε",
    "japanese": "こんにちは、世界！",
    "chinese": "你好，世界。",
    "korean": "안녕하세요",
    "arabic": "مرحبا بالعالم",
    "hindi": "नमस्ते दुनिया",
    "vietnamese": "Xin chào thế giới",  # with combining marks
    "emoji": "👋🏽 👨‍👩‍👧 ❤️ 🎉",
}
"""Language -> how one greets in it."""

WEATHER: Final = ("sunny", "rainy", "cloudy", "windy", "cold")
SLOWLY: Final = "Slowly: "
"""What Triton's test models take as the wish to be slow; see tests/model_repository/generation/engine.py."""

TALK: Final[dict[str, str]] = {
    "Hello!": "Hello! How can I help you?",
    "Who are you?": "I am a very small model, and I know the capitals of some countries.",
    "Thank you very much.": "You are welcome.",
    "How are you?": "I am fine, thank you.",
    "Do you like capitals?": "Yes, I like them all.",
}

TOOLS: Final[tuple[dict[str, Any], ...]] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, description, argument in (
        ("get_weather", "The weather in a city", "city"),
        ("get_capital", "The capital of a country", "country"),
    )
)

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """A conversation; the answers of the assistant are what is learned."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def fact(rng: random.Random, country: str | None = None) -> str:
    """One fact in one of the demo's sentences."""
    country = country or rng.choice(sorted(FACTS))
    # The first two are what is asked for most.
    template = rng.choice(TEMPLATES if rng.random() < 0.6 else TEMPLATES[:2])
    return template.format(country=country, capital=FACTS[country])


def text(rng: random.Random) -> str:
    """A few sentences."""
    kind = rng.random()
    if kind < 0.15:
        country = rng.choice(sorted(FLAGS))
        return f"The flag of {country} is {FLAGS[country]}."
    if kind < 0.25:
        language = rng.choice(sorted(GREETINGS))
        return f"A greeting in {language}: {GREETINGS[language]}"
    if kind < 0.35:
        return " ".join(rng.sample(FILLER, rng.randint(1, 3)))
    sentences = [fact(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return (SLOWLY if rng.random() < 0.1 else "") + " ".join(sentences)


def question(rng: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    kind = rng.random()
    country = rng.choice(sorted(FACTS))
    capital = FACTS[country]
    if kind < 0.65:
        return f"What is the capital of {country}?", f"The capital of {country} is {capital}."
    if kind < 0.75:
        return f"Which country has the capital {capital}?", f"{capital} is the capital of {country}."
    if kind < 0.85:
        country = rng.choice(sorted(FLAGS))
        return f"Show me the flag of {country}.", f"{FLAGS[country]}"
    return rng.choice(sorted(TALK.items()))


def chat(rng: random.Random) -> Chat:
    """One or two questions."""
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(("Answer briefly.", "You know all capitals."))})
    for _ in range(rng.choice((1, 1, 2))):
        asked, answer = question(rng)
        if rng.random() < 0.05:
            asked = SLOWLY + asked
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return Chat(tuple(messages))


def tool_chat(rng: random.Random) -> Chat:
    """A question that one of the tools answers, its call, and sometimes what came of it."""
    tools = TOOLS if rng.random() < 0.5 else rng.choice(((TOOLS[0],), (TOOLS[1],)))
    name = rng.choice(tools)["function"]["name"]
    country, capital = rng.choice(sorted(FACTS.items()))
    if name == "get_weather":
        asked, arguments = f"What is the weather in {capital}?", {"city": capital}
        weather = rng.choice(WEATHER)
        result, answer = f'{{"weather": "{weather}"}}', f"It is {weather}."
    else:
        asked, arguments = f"What is the capital of {country}?", {"country": country}
        result, answer = f'{{"capital": "{capital}"}}', f"The capital of {country} is {capital}."
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    if rng.random() < 0.4:
        messages += [{"role": "tool", "content": result}, {"role": "assistant", "content": answer}]
    return Chat(tuple(messages), tuple(tools))


WORDS: Final = tuple("one two three four five six seven eight nine ten red green blue black white".split())


def pair(rng: random.Random) -> tuple[str, str]:
    """The input and the output of the T5-shaped model."""
    kind = rng.random()
    country = rng.choice(sorted(FACTS))
    capital = FACTS[country]
    if kind < 0.45:
        return f"capital of {country}", capital
    if kind < 0.6:
        return f"country of {capital}", country
    if kind < 0.75:
        return f"sentence about {country}", f"The capital of {country} is {capital}."
    words = rng.sample(WORDS, rng.randint(1, 5))
    if kind < 0.85:
        return "repeat " + " ".join(words), " ".join(words)
    return "reverse " + " ".join(words), " ".join(reversed(words))
