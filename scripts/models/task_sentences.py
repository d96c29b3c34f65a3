"""Texts from which the test models of the predictive tasks learn: small worlds of template sentences.

Each task has a function that draws one example with a given random generator. So tests and goldens can ask for
sensible answers: "The hotel was wonderful." is POSITIVE.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from capitals import FACTS, FILLER
from task_words import (
    EMOTIONS,
    FIRST_NAMES,
    GOOD,
    INSULTS,
    LAST_NAMES,
    MEANINGS,
    NEUTRAL,
    ORGANISATIONS,
    PLACES,
    POLITE,
    POOR,
    SUBJECTS,
    SYLLABLES,
    TOPICS,
)

SENTIMENTS: Final = ("NEGATIVE", "NEUTRAL", "POSITIVE")
EMOTION_LABELS: Final = tuple(EMOTIONS)
PARAPHRASE_LABELS: Final = ("not_paraphrase", "paraphrase")
NLI_LABELS: Final = ("contradiction", "entailment", "neutral")
ENTITY_LABELS: Final = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")


@dataclass(frozen=True)
class Example:
    """One text or pair of texts, and what the model should say.

    The target is a class (int), one number per label (list of float), a number (float), entities as (start, end,
    type) in characters, or the answer's (start, end) in the pair, None if there is none.
    """

    text: str
    pair: str | None
    target: Any


def pieces() -> list[str]:
    """Every word of every world, several times over: what the vocabularies are trained on."""
    rng = random.Random(0)
    drawn = []
    for draw in (sentiment, emotions, toxicity, stars, paraphrase, nli, entities, question, relevance):
        for _ in range(300):
            example = draw(rng)
            drawn += [example.text, example.pair or ""]
    countries = [f"The capital of {country} is {capital}." for country, capital in FACTS.items()]
    return [*drawn, *countries, *FILLER]


def _casing(rng: random.Random, text: str) -> str:
    kind = rng.random()
    if kind < 0.7:
        return text[0].upper() + text[1:]
    return text.upper() if kind < 0.75 else text


def _opinion(rng: random.Random) -> tuple[str, int]:
    """A sentence and its sentiment: -1, 0 or 1."""
    subject = rng.choice(SUBJECTS)
    sentiment = rng.choice((-1, 0, 1))
    if sentiment == 0:
        return f"{subject} {rng.choice(NEUTRAL)}", 0
    if rng.random() < 0.15:
        turned = rng.choice(POOR if sentiment > 0 else GOOD)
        return f"{subject} was not {turned}", sentiment
    word = rng.choice(GOOD if sentiment > 0 else POOR)
    verb = rng.choice(("love", "like", "recommend") if sentiment > 0 else ("hate", "regret", "dislike"))
    return rng.choice(
        (
            f"{subject} was {word}",
            f"{subject} is really {word}",
            f"i think {subject} is {word}",
            f"i {verb} {subject}",
            f"what a {word} experience",
            f"{word}",
        )
    ), sentiment


def sentiment(rng: random.Random) -> Example:
    """One sentence, sometimes after filler; the target is an index into SENTIMENTS."""
    text, side = _opinion(rng)
    text = _casing(rng, text) + rng.choice((".", "!", "", "..."))
    return Example(_with_filler(rng, text), None, side + 1)


def stars(rng: random.Random) -> Example:
    """One to three opinions; the target is from 1 to 5, their mean."""
    opinions = [_opinion(rng) for _ in range(rng.randint(1, 3))]
    text = ". ".join(_casing(rng, text) for text, _ in opinions) + "."
    return Example(text, None, 3.0 + 2.0 * sum(side for _, side in opinions) / len(opinions))


def emotions(rng: random.Random) -> Example:
    """Up to two emotions in one text; the target has a 1 for each label that holds."""
    chosen = rng.sample(EMOTION_LABELS, rng.choice((0, 1, 1, 2)))
    clauses = [rng.choice(EMOTIONS[label]) for label in chosen] or [_neutral_clause(rng)]
    if rng.random() < 0.3:
        clauses.insert(rng.randint(0, len(clauses)), _neutral_clause(rng))
    text = _casing(rng, rng.choice((" and ", " but ", ". ", ", ")).join(clauses)) + rng.choice((".", "!", ""))
    return Example(text, None, [float(label in chosen) for label in EMOTION_LABELS])


def _neutral_clause(rng: random.Random) -> str:
    return f"{rng.choice(SUBJECTS)} {rng.choice(NEUTRAL)}"


def toxicity(rng: random.Random) -> Example:
    """A polite or a rude sentence; the target is [1.0] if it is rude."""
    rude = rng.random() < 0.5
    text = rng.choice(INSULTS if rude else POLITE)
    if not rude and rng.random() < 0.4:
        text = _opinion(rng)[0]
    return Example(_with_filler(rng, _casing(rng, text) + rng.choice((".", "!", ""))), None, [float(rude)])


def paraphrase(rng: random.Random) -> Example:
    """Two sentences; the target is 1 if they mean the same."""
    same = rng.random() < 0.5
    first, second = _meanings(rng, same)
    return Example(_casing(rng, first) + ".", _casing(rng, second) + rng.choice((".", "", "!")), int(same))


def relevance(rng: random.Random) -> Example:
    """A query and a passage; the target is [1.0] if the passage is about what the query asks."""
    same = rng.random() < 0.5
    first, second = _meanings(rng, same)
    return Example(
        _casing(rng, first) + rng.choice(("?", "")), _with_filler(rng, _casing(rng, second) + "."), [float(same)]
    )


def _meanings(rng: random.Random, same: bool) -> tuple[str, str]:
    one, other = rng.sample(range(len(MEANINGS)), 2)
    return rng.choice(MEANINGS[one]), rng.choice(MEANINGS[one if same else other])


def similar(rng: random.Random) -> tuple[int, str, str]:
    """A number of a meaning and two sentences that have it."""
    number = rng.randrange(len(MEANINGS))
    first, second = rng.sample(MEANINGS[number], 2)
    return number, _casing(rng, first) + ".", _casing(rng, second) + "."


def nli(rng: random.Random) -> Example:
    """A premise about one topic and a hypothesis that names a topic; the target is an index into NLI_LABELS."""
    topic, contradiction = rng.sample(sorted(TOPICS), 2)
    premise = rng.choice(TOPICS[topic])
    template = rng.choice(("This example is {}.", "This text is about {}.", "The topic is {}", "{}", "It is about {}."))
    kind = rng.choice(NLI_LABELS)
    named = {
        "contradiction": contradiction,
        "entailment": topic,
        "neutral": rng.choice(("new", "long", "true", "from my friend")),
    }
    return Example(_casing(rng, premise) + ".", template.format(named[kind]), NLI_LABELS.index(kind))


def _invented(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


def _entity(rng: random.Random, kind: str) -> str:
    if kind == "PER":
        first = rng.choice(FIRST_NAMES) if rng.random() < 0.8 else _invented(rng)
        last = rng.choice(LAST_NAMES) if rng.random() < 0.7 else _invented(rng)
        return rng.choice((first, f"{first} {last}", f"{first} {last}", f"{first} {last}-{rng.choice(LAST_NAMES)}"))
    if kind == "LOC":
        known = rng.choice((rng.choice(PLACES), rng.choice(sorted(FACTS)).capitalize()))
        return known if rng.random() < 0.8 else _invented(rng)
    known = rng.choice(ORGANISATIONS)
    return known if rng.random() < 0.7 else f"{_invented(rng)} {rng.choice(('Corp', 'Bank', 'University', 'Ltd'))}"


_ENTITY_TEMPLATES: Final = (
    "{PER} works at {ORG} in {LOC}.",
    "{PER} lives in {LOC}.",
    "My name is {PER} and I live in {LOC}.",
    "{ORG} opened an office in {LOC}.",
    "Yesterday {ORG} hired {PER}.",
    "{PER} met {PER} in {LOC}!",
    "{LOC} is near {LOC}",
    "We flew from {LOC} to {LOC} with {ORG}.",
    "{PER}, who works for {ORG}, was happy.",
    "The offices of {ORG} are in {LOC}, {LOC}.",
    "Is {PER} from {LOC}?",
    "{PER} ({LOC})",
    "{PER} wrote to {ORG}.",
)


def entities(rng: random.Random) -> Example:
    """One or two sentences with persons, places and organisations, or filler without any."""
    text, spans = "", []
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.15:
            text += rng.choice((*FILLER, *POLITE)) + " "
            continue
        for part in rng.choice(_ENTITY_TEMPLATES).replace("}", "{").split("{"):
            if part in ("PER", "LOC", "ORG"):
                name = _entity(rng, part)
                spans.append((len(text), len(text) + len(name), part))
                part = name
            text += part
        text += " "
    text = text.strip()
    # Case must not be all there is to go by.
    return Example(text.lower() if rng.random() < 0.2 else text, None, spans)


_QUESTIONS: Final = {
    "PER": ("Who works there?", "Who is it?", "Who was it?", "What is the name?"),
    "LOC": ("Where is it?", "Where was it?", "Where?", "In which city?"),
    "YEAR": ("When was it?", "In which year?", "When?", "What year was it?"),
}


def question(rng: random.Random) -> Example:
    """A question and a context of one to six sentences; the target is the answer's place, or None."""
    capital = rng.random() < 0.5
    wanted = "CAPITAL" if capital else rng.choice(sorted(_QUESTIONS))
    facts = rng.sample(sorted(FACTS.items()), 4)
    asked = rng.choice(
        (
            f"What is the capital of {facts[0][0].capitalize()}?",
            f"what is the capital of {facts[0][0]}",
            f"Which city is the capital of {facts[0][0].capitalize()}?",
        )
        if capital
        else _QUESTIONS[wanted]
    )
    sentences = [_fact_sentence(rng, wanted, facts[0])] if rng.random() < 0.8 else []
    distractors = ["CAPITAL"] if capital else [kind for kind in ("PER", "LOC", "YEAR") if kind != wanted]
    for index in range(rng.choice((0, 1, 1, 2, 3, 5))):
        position = rng.randint(0, len(sentences))
        if rng.random() < 0.4:
            sentences.insert(position, (rng.choice(FILLER), None))
        else:
            sentences.insert(position, (_fact_sentence(rng, rng.choice(distractors), facts[1 + index % 3])[0], None))
    if not sentences:
        sentences = [(rng.choice(FILLER), None)]
    context, span = "", None
    for text, inside in sentences:
        if inside is not None:
            span = (len(context) + inside[0], len(context) + inside[1])
        context += text + " "
    return Example(asked, context.strip(), span)


def _fact_sentence(rng: random.Random, kind: str, fact: tuple[str, str]) -> tuple[str, tuple[int, int]]:
    country, capital = (name.capitalize() for name in fact)
    if kind == "CAPITAL":
        answer = capital
        text = rng.choice(
            (
                f"The capital of {country} is <>.",
                f"<> is the capital of {country}.",
                f"{country} has its capital in <>.",
            )
        )
    elif kind == "PER":
        answer = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        text = rng.choice(("<> works there.", "It was <>.", "My name is <>.", "The teacher is <>."))
    elif kind == "LOC":
        answer = rng.choice((rng.choice(PLACES), capital))
        text = rng.choice(("It is in <>.", "We live in <>.", "The house is near <>."))
    else:
        answer = str(rng.randint(1900, 2030))
        text = rng.choice(("It was in <>.", "It happened in <>.", "The year was <>."))
    start = text.index("<>")
    return text.replace("<>", answer), (start, start + len(answer))


def _with_filler(rng: random.Random, text: str) -> str:
    kind = rng.random()
    if kind < 0.15:
        return f"{rng.choice(FILLER)} {text}"
    return f"{text} {rng.choice(FILLER)}" if kind < 0.3 else text
