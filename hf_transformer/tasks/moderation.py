"""Moderation with a text classifier: scores of its labels become OpenAI's categories.

    {"toxic": "harassment",
     "threat": {"category": ["violence", "harassment/threatening"], "threshold": 0.3},
     "neutral": null}

The file of --moderation_categories, JSON or YAML, has the categories of each label. A category's score is the highest
of its labels. Labels that the file leaves out have no category. Without a file each label is a category.

Source: https://platform.openai.com/docs/api-reference/moderations/object
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

from msgspec import Meta

from hf_transformer.types.fields import Body, NonEmpty, about

Category: TypeAlias = Literal[
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
]
CATEGORIES: Final[tuple[str, ...]] = get_args(Category)
"""OpenAI's categories. Clients expect all of them."""
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class LabelRule(Body, kw_only=True):
    """The categories of a label, and its threshold if it differs from --moderation_threshold."""

    category: Annotated[Category | NonEmpty[Category], about(expected=f"one or more of {', '.join(CATEGORIES)}")]
    threshold: Share | None = None


@dataclass(frozen=True, slots=True)
class Moderated:
    """The moderation of a text, by category; ``applied`` are the categories that the classifier knows."""

    flags: Mapping[str, bool]
    scores: Mapping[str, float]
    applied: frozenset[str]

    @property
    def flagged(self) -> bool:
        return any(self.flags.values())


@dataclass(frozen=True, slots=True)
class Moderation:
    """The categories and thresholds of a classifier's labels. ``categories`` None makes each label its own
    category.
    """

    threshold: float = 0.5
    categories: Mapping[str, Sequence[str]] | None = None
    thresholds: Mapping[str, float] | None = None

    def moderate(self, scores: Mapping[str, float]) -> Moderated:
        """The moderation of a text with these scores of labels."""
        flags, highest = dict.fromkeys(CATEGORIES, False), dict.fromkeys(CATEGORIES, 0.0)
        if self.categories is None:
            flags, highest = {}, {}
        applied = set()
        for label, score in scores.items():
            is_reached = score >= (self.thresholds or {}).get(label, self.threshold)
            for category in (label,) if self.categories is None else self.categories.get(label, ()):
                applied.add(category)
                flags[category] = flags.get(category, False) or is_reached
                highest[category] = max(highest.get(category, 0.0), score)
        return Moderated(flags, highest, frozenset(applied))
