"""The texts of the token_classification goldens, besides the hard ones."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, str]] = {
    "person_and_place": "Anna Smith lives in Berlin.",
    "all_three": "Maria Garcia works at Acme Corp in New York.",
    "two_sentences": "Yesterday Globex hired Wolfgang Schmidt. He lives in Zürich, near Oslo.",
    "lower_case": "my name is peter johnson and i live in tokyo.",
    "hyphen": "Emma Tanaka-Rossi wrote to Bank of Norway.",
    "apostrophe": "Is Liam O'Brien from São Paulo?",
    "pieces": "Rutenzor Kalomibar works at Shidragul University in Nepzorix.",
    "ampersand": "José wrote to AT&T, Air France and Oxford University!",
    "touching": "Anna,Peter;Berlin/Tokyo(Acme)",
    "touching_entities": "Anna Smith Peter Johnson Berlin Tokyo Acme Corp Globex",
    "parentheses": "Fatima Novak (Istanbul)",
    "nobody": "Thank you very much. Have a nice day!",
    "unknown_words": "Xqzvw Pfft lives in Grblmpf with Qwrtz.",
}

SENSIBLE: Final[dict[str, dict[str, str]]] = {
    "Anna Smith lives in Berlin.": {"Anna Smith": "PER", "Berlin": "LOC"},
    "Maria Garcia works at Acme Corp in New York.": {"Maria Garcia": "PER", "Acme Corp": "ORG", "New York": "LOC"},
    "Yesterday Globex hired Wolfgang Schmidt.": {"Globex": "ORG", "Wolfgang Schmidt": "PER"},
    "Thank you very much.": {},
}
"""Text -> what must be found in it, with the strategy average."""

SPLIT: Final[tuple[tuple[list[str], str], ...]] = (
    (["Anna", "Smith", "lives", "in", "Berlin", "."], " "),
    (["Maria", "Garcia", "works", "at", "Acme", "Corp", "in", "New", "York"], " "),
    (["Maria", "Garcia", "works", "at", "Acme", "Corp", "in", "New", "York"], ""),
    (["Anna", "lives", "in", "Berlin"], "---"),
    (["Rutenzor", "Kalomibar", "works", "at", "Shidragul", "University"], " "),
    (["Anna", "Tanaka-Rossi,", "O'Brien.", "(Berlin)"], " "),
    (["\u0130van", "lives", "in", "\u0130stanbul", "."], " "),
    (["Zoe\u0308", "lives", "in", "Sa\u0303o", "Paulo"], " "),
    (["😀", "Anna", "👩‍👩‍👧‍👦", "北京", "安娜", "Berlin"], " "),
    (["Anna Smith", "lives in", "New York"], " "),
    (["Anna", "", " ", "Berlin"], " "),
    (["Anna", "\u200b", "Berlin"], " "),
    (["Anna"], " "),
    (["Anna", "lives", "in", "Berlin", "."] * 40, " "),
)
"""(words, delimiter): the delimiter joins the words to the text that offsets point into."""

WINDOWS: Final[dict[str, str]] = {
    "short": "Anna Smith lives in Berlin.",
    "long": "Anna Smith works at Acme Corp in New York. Is Peter Johnson from Zürich? " * 9,
    "long_unicode": "😀 \u0130van Smith lives in \u0130stanbul, Zoe\u0308 Mu\u0308ller in 北京.\n" * 8,
    "long_names": "Rutenzor Kalomibar works at Shidragul University in Nepzorix and " * 8,
    "long_without_spaces": "Berlin/Tokyo,Anna;" * 30,
    "long_nobody": "Thank you very much. Have a nice day! " * 20,
}
