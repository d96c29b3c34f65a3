"""Writes tests/goldens/presidio_anonymize.json: the answers of presidio-anonymizer to random results of an analyzer.

    pip install presidio-anonymizer==2.2.366      # in an environment of its own
    python -m scripts.goldens.presidio_anonymize

The results overlap, touch, contain each other, are empty, or have equal scores.
"""

# Types are checked in an environment without presidio-anonymizer.
# mypy: ignore-errors

from __future__ import annotations

import json
import random
from importlib.metadata import version
from pathlib import Path
from typing import Final

from presidio_anonymizer import AnonymizerEngine
from presidio_anonymizer.entities import OperatorConfig, RecognizerResult

FILE: Final = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "presidio_anonymize.json"
CASES: Final = 200
TEXTS: Final = (
    "Anna Smith met Anna Smith and Peter  Miller in Berlin, Anna.",
    "Anna Smith lives in Köln 😀.",
    "a b \nc d  \n e f",
    "ab cd  ef gh",
    "x",
)
ANONYMIZERS: Final = (
    {},
    {"DEFAULT": {"type": "replace", "new_value": "X"}},
    {"PERSON": {"type": "redact"}},
    {"DEFAULT": {"type": "mask", "masking_char": "*", "chars_to_mask": 3, "from_end": True}},
    {"PERSON": {"type": "keep"}, "LOCATION": {"type": "replace", "new_value": ""}},
    {"LOCATION": {"type": "mask", "masking_char": "#", "chars_to_mask": 2, "from_end": False}},
)
ENTITIES: Final = ("PERSON", "LOCATION", "ORGANIZATION")


def main() -> None:
    draw, engine = random.Random(7), AnonymizerEngine()
    cases = []
    for _ in range(CASES):
        text, anonymizers, results = draw.choice(TEXTS), draw.choice(ANONYMIZERS), []
        for _ in range(draw.randint(0, 6)):
            start = draw.randint(0, len(text))
            end = min(len(text), start + draw.choice((0, 1, 1, 2, 3, 4, 5, 8, 12)))
            score = draw.choice((0.1, 0.5, 0.85, 0.9, 1.0))
            results.append({"entity_type": draw.choice(ENTITIES), "start": start, "end": end, "score": score})
        operators = {
            name: OperatorConfig(one["type"], {key: value for key, value in one.items() if key != "type"})
            for name, one in anonymizers.items()
        }
        answer = engine.anonymize(text, [RecognizerResult(**result) for result in results], operators)
        asked = {"text": text, "analyzer_results": results, "anonymizers": anonymizers}
        cases.append({"asked": asked, "answer": json.loads(answer.to_json())})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    about = {"presidio-anonymizer": version("presidio-anonymizer")}
    FILE.write_text(f'{{"about": {json.dumps(about)},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
