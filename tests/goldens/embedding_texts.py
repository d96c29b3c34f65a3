"""The texts of the goldens of embeddings, reranking and zero-shot classification, besides the hard ones."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, str]] = {
    "cat": "The cat sleeps on the sofa.",
    "couch": "a cat is asleep on the couch",
    "rain": "It will rain tomorrow!",
    "paris": "Paris is the capital of France.",
    "question": "What is the capital of France?",
    "two_sentences": "The train is late. The team won the match.",
    "prompt_in_text": "query: where does the cat sleep",
}

MEANINGS: Final[tuple[tuple[str, str], ...]] = (
    ("The cat sleeps on the sofa.", "Our cat naps on the sofa."),
    ("It will rain tomorrow.", "The forecast says rain."),
    ("He plays the guitar.", "He is a guitar player."),
    ("The train is late.", "The train has a delay."),
    ("Paris is the capital of France.", "What is the capital of France"),
    ("The team won the match.", "The match was won."),
)
"""Pairs that mean the same."""

QUERIES: Final[dict[str, tuple[str, list[str]]]] = {
    "france": (
        "What is the capital of France?",
        ["The team won the match.", "Paris is the capital of France.", "Our cat naps on the sofa.", "Rome."],
    ),
    "cat": ("Where does the cat sleep?", ["The train is late.", "A cat is asleep on the couch.", "They make dinner."]),
    "match": ("who won the match", ["The match was won.", "Rain is expected tomorrow.", "The bank raised rates."]),
    "one_text": ("Who cooks dinner?", ["They cook dinner together."]),
    "same_texts": ("Who cooks dinner?", ["Her car is new.", "They cook dinner together.", "Her car is new."]),
    "empty_query": ("", ["They cook dinner together.", "", "."]),
    "long_query": ("Where does the cat sleep? " * 40, ["A cat is asleep on the couch.", "The train is late."]),
    "long_texts": ("Where does the cat sleep?", ["A cat is asleep. " * 60, "The train is late. " * 60]),
    "both_long": ("Where does the cat sleep? " * 40, ["A cat is asleep. " * 60, "The train is late. " * 60]),
    "unicode": ("\u0130stanbul e\u0301 👩‍👩‍👧‍👦 北京?", ["北京 is 東京", "i\u0307stanbul", "é", "👩 👧 👦", "\t\n"]),
}
"""id -> (query, texts)."""

BEST_TEXTS: Final[dict[str, int]] = {"france": 1, "cat": 1, "match": 0}
"""Query's id -> the index of the text that must come first."""

LABELS: Final = ["sport", "politics", "cooking", "technology", "travel", "music", "health", "money"]
SEQUENCES: Final[dict[str, tuple[str, list[str], str | None]]] = {
    "sport": ("The team won the match.", LABELS, "sport"),
    "politics": ("The president signed the law.", LABELS, "politics"),
    "cooking": ("She cooks pasta with cheese.", ["travel", "cooking", "sport"], "cooking"),
    "music": ("he plays the guitar", ["music", "money"], "music"),
    "one_label": ("The doctor treats the patient.", ["health"], "health"),
    "same_label_twice": ("The doctor treats the patient.", ["health", "sport", "sport"], None),
    "unknown_labels": (
        "The doctor treats the patient.",
        ["\u0130stanbul", "e\u0301", "北京", "👩‍👩‍👧‍👦", "a b  c"],
        None,
    ),
    "label_with_braces": ("The bank raised interest rates.", ["money", "{}", "{0}"], None),
    "two_topics": ("The team won the match. The band played an old song.", LABELS, None),
    "long_label": ("The bank raised interest rates.", ["money " * 30, "sport"], None),
}
"""id -> (sequence, candidate labels, the label that must come first)."""

TEMPLATES: Final = ("This text is about {}.", "{}", "The topic is {}", "\u0130t is about {} e\u0301 😀!", "{0}, {0}!")
"""Hypothesis templates, besides the default one."""
