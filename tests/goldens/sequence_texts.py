"""The texts of the sequence_classification goldens that the models were trained to answer: id -> text."""

from __future__ import annotations

from typing import Final

SENSIBLE: Final[dict[str, tuple[tuple[str, str | None], ...]]] = {
    "sentiment": (
        ("The hotel was wonderful.", "POSITIVE"),
        ("i love this book", "POSITIVE"),
        ("What a terrible experience!", "NEGATIVE"),
        ("The staff was rude. Thank you very much.", "NEGATIVE"),
        ("The restaurant opens at nine.", "NEUTRAL"),
        ("THE SERVICE IS REALLY BAD!", "NEGATIVE"),
    ),
    "toxicity": (("You are an idiot!", "toxic"), ("Thank you for your help.", None), ("Have a nice day", None)),
    "emotions": (
        ("I am so happy!", "joy"),
        ("He shouted at me and she cried all night.", "anger,sadness"),
        ("this scares me", "fear"),
        ("The hotel opens at nine.", ""),
    ),
}
"""What must come out: the best label; the label if its score is above a half; all labels above a half."""

STARS: Final = {"I love the food. The staff was friendly.": 5, "The room was dirty.": 1, "The hotel is okay.": 3}

PAIRS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("The cat sleeps on the sofa.", "A cat is asleep on the couch.", "paraphrase"),
    ("The cat sleeps on the sofa.", "The team won the match.", "not_paraphrase"),
    ("Rain is expected tomorrow", "It will rain tomorrow!", "paraphrase"),
    ("She bought a new car.", "Her car is new", "paraphrase"),
    ("She bought a new car.", "Interest rates went up at the bank.", "not_paraphrase"),
    ("", "", None),
    ("", "The team won the match.", None),
    ("The team won the match.", "", None),
    (" ", "\n", None),
    ("北京", "东京 is 北京", None),
    ("👩‍👩‍👧‍👦", "😀 won the match", None),
    ("\u0130stanbul", "i\u0307stanbul e\u0301", None),
    ("The cat sleeps. " * 60, "A cat is asleep on the couch.", None),
    ("The cat sleeps on the sofa.", "A cat is asleep. " * 60, None),
    ("The cat sleeps. " * 60, "A cat is asleep. " * 70, None),
)
"""(text, text_pair, label that must come out)."""
