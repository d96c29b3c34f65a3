"""The loads of overload.py, and the limits that they are measured under."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.stress.ground import Model
from benchmarks.stress.open_loop import Outcome, Request, request_of
from benchmarks.stress.texts import Texts

DISTINCT: Final = 64
UNLIMITED: Final = 10**9
MOST_REQUESTS: Final = 64
SECONDS_OF_TOKENS: Final = 0.4
"""The budget of tokens is what the model does in this time."""
NO_LIMITS: Final = "no limits"
CLASSIFIER: Final = "BertForSequenceClassification"
STUCK: Final = Model("stuck", CLASSIFIER, 700_000.0)
"""Takes longer for one short text than refusing others is measured."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load: requests as (instances, tokens of each), which take turns."""

    name: str
    model: Model
    shapes: tuple[tuple[int, int], ...]

    @property
    def tokens_per_second(self) -> float:
        return 1e6 / self.model.microseconds

    def kind(self, instances: int) -> str:
        return f"{instances} instance{'s' if instances > 1 else ''}"

    def instances(self, outcomes: Mapping[str, Outcome]) -> int:
        """In the answers that came in time."""
        return sum(count * outcomes[kind].in_time for count, _ in self.shapes if (kind := self.kind(count)) in outcomes)


CASES: Final = (
    Case("short texts (9 tokens)", Model("short", CLASSIFIER, 900.0), ((1, 9),)),
    Case("long texts (120 tokens)", Model("long", CLASSIFIER, 70.0), ((1, 120),)),
    Case("1 and 64 instances (9 tokens each)", Model("mixed", CLASSIFIER, 25.0), ((1, 9), (64, 9))),
)


def limits_of(case: Case) -> dict[str, tuple[str, ...]]:
    """The forms of the service that are compared, by name."""
    tokens = int(case.tokens_per_second * SECONDS_OF_TOKENS)
    return {
        f"--max_concurrent_requests={MOST_REQUESTS}": (
            f"--max_concurrent_requests={MOST_REQUESTS}",
            f"--max_queued_tokens={UNLIMITED}",
        ),
        f"--max_queued_tokens={tokens}": (f"--max_concurrent_requests={UNLIMITED}", f"--max_queued_tokens={tokens}"),
        NO_LIMITS: (f"--max_concurrent_requests={UNLIMITED}", f"--max_queued_tokens={UNLIMITED}"),
    }


def requests_of(case: Case, texts: Texts) -> list[Request]:
    """DISTINCT requests; one is never twice the same."""
    made = []
    for number in range(DISTINCT):
        instances, tokens = case.shapes[number % len(case.shapes)]
        chosen = [texts.make(tokens) for _ in range(instances)]
        answer = json.dumps({"predictions": [texts.label(text) for text in chosen]}, separators=(",", ":"))
        body = json.dumps({"instances": chosen}).encode()
        made.append(request_of(case.kind(instances), f"/v1/models/{case.model.name}:predict", body, answer.encode()))
    return made
