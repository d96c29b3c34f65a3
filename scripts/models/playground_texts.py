"""A demo model's note and examples in the playground, as ``playground`` in its config.json or gliner_config.json.

The training scripts call ``write_playground``. Without training, for changed texts, in an environment with onnx:

    python scripts/models/playground_texts.py
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class PlaygroundTexts:
    """The sentences that a model was trained on, in words, and request bodies to try."""

    trained_on: str
    examples: tuple[dict[str, Any], ...]


def _texts(*texts: str, **parameters: Any) -> tuple[dict[str, Any], ...]:
    """A request for each text."""
    more = {"parameters": parameters} if parameters else {}
    return tuple({"instances": [text], **more} for text in texts)


def _sorted(query: str, *texts: str) -> dict[str, Any]:
    return {"instances": [{"query": query, "texts": texts}]}


def _asked(question: str, context: str) -> dict[str, Any]:
    return {"instances": [{"question": question, "context": context}]}


def _chat(*messages: str) -> dict[str, Any]:
    """A chat that begins with the user."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(messages)]}


TEXTS: Final = {
    "bert": PlaygroundTexts(
        'the capitals of 123 countries, in sentences such as "France has its capital in Paris."',
        _texts(
            "The capital of france is [MASK].",
            "[MASK] is the capital of japan.",
            "We went to [MASK], the capital of egypt.",
        ),
    ),
    "sentiment": PlaygroundTexts(
        'short opinions such as "I think the food was awful."',
        _texts(
            "The hotel was wonderful.",
            "What a terrible experience!",
            "The film was not good.",
            "The meeting was at noon.",
        ),
    ),
    "nli": PlaygroundTexts(
        'pairs such as "The team won the match." and "This text is about sport."',
        _texts("The team won the match.", candidate_labels=["politics", "sport", "cooking"])
        + _texts("The president signed the law.", candidate_labels=["politics", "sport", "cooking"])
        + _texts("She cooks pasta with cheese.", candidate_labels=["cooking", "travel", "music"]),
    ),
    "cross": PlaygroundTexts(
        'questions with sentences that answer them or not, such as "Who won the match?"',
        (
            _sorted(
                "What is the capital of France?",
                "The team won the match.",
                "Paris is the capital of France.",
                "The cat sleeps on the sofa.",
            ),
            _sorted(
                "Where does the cat sleep?",
                "It will rain tomorrow.",
                "A cat is asleep on the couch.",
                "The train has a delay.",
                "She has purchased a car.",
            ),
            _sorted(
                "Who won the match?",
                "They cook dinner together.",
                "The doctor treats patients.",
                "Our team was victorious in the match.",
            ),
        ),
    ),
    "ner": PlaygroundTexts(
        'sentences with persons, places and organisations, such as "Anna Smith lives in Berlin."',
        _texts(
            "Anna Smith lives in Berlin.",
            "We flew from Paris to Tokyo with Air France.",
            "Yesterday the Red Cross hired Peter Johnson.",
            "Maria Garcia works at Acme Corp in Madrid.",
        ),
    ),
    "gliner": PlaygroundTexts(
        'sentences with persons, cities and companies, such as "Anna Smith lives in Berlin."',
        _texts("Anna Smith lives in Berlin and works for Siemens.", labels=["person", "city", "company"])
        + _texts("The hotel in Paris was wonderful.", labels=["city"])
        + _texts("In London, John Miller founded Acme Corp.", labels=["person", "company"]),
    ),
    "squad": PlaygroundTexts(
        'questions about a person, a place, a year or a capital, such as "Who works there?"',
        (
            _asked("Who works there?", "It was in 1984. Anna Smith works there. The house is near Berlin."),
            _asked("When was it?", "It was in 1984. Anna Smith works there. The house is near Berlin."),
            _asked("What is the capital of Japan?", "The capital of Italy is Rome. Tokyo is the capital of Japan."),
        ),
    ),
    "minibert_mean": PlaygroundTexts(
        'fourteen meanings, each in several sentences, such as "A cat is asleep on the couch."',
        (
            {
                "instances": [
                    "The cat sleeps on the sofa.",
                    "A cat is asleep on the couch.",
                    "The team won the match.",
                    "Our team was victorious in the match.",
                ]
            },
            {
                "instances": [
                    "It will rain tomorrow.",
                    "The forecast says rain.",
                    "She bought a new car.",
                    "Her car is new.",
                    "The train is late.",
                    "We wait for the late train.",
                ]
            },
        ),
    ),
    "gpt2": PlaygroundTexts(
        "the capitals and flags of some countries, greetings, and short chats about them",
        (
            _chat("What is the capital of france?"),
            _chat("Show me the flag of japan."),
            _chat("What is the capital of italy?", "The capital of italy is rome.", "Who are you?"),
            *_texts("The capital of france is", "A greeting in german:"),
        ),
    ),
    "t5": PlaygroundTexts(
        'short tasks such as "capital of france" and "reverse one two"',
        _texts("capital of france", "country of tokyo", "sentence about egypt", "reverse one two three"),
    ),
}
"""The texts of each demo model. The first example is the one that the page opens with."""


def count_parameters(file: Path) -> int:
    """The number of weights in an ONNX file. Names of exported weights begin with ``model.``, or as gliner's do."""
    weights = onnx.load(str(file)).graph.initializer
    return sum(math.prod(weight.dims) for weight in weights if weight.name.startswith(("model.", "core.", "onnx::")))


def write_playground(folder: Path) -> None:
    """Adds ``playground`` to the model's settings, with the number of parameters in 1/model.onnx. Other models stay."""
    if (texts := TEXTS.get(folder.name)) is None:
        return
    thousands = round(count_parameters(folder / "1/model.onnx") / 1000)
    note = f"A toy model of {thousands} thousand parameters, trained on {texts.trained_on}"
    file = next(file for name in ("gliner_config.json", "config.json") if (file := folder / name).is_file())
    config = json.loads(file.read_text(encoding="utf-8"))
    ends = note.endswith(('."', '?"'))
    config["playground"] = {"note": note if ends else f"{note}.", "examples": texts.examples}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    for name in TEXTS:
        write_playground(ROOT / "deploy/model_repository" / name)


if __name__ == "__main__":
    main()
