"""The table of --moderation_categories, and what it makes of a classifier's scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hf_transformer.app.label_files import read_moderation
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks.moderation import CATEGORIES, Moderation

LABELS: Final = ("toxic", "threat", "insult", "neutral", "NO")
TABLE: Final = {
    "toxic": "harassment",
    "insult": ["harassment", "hate"],
    "threat": {"category": "violence", "threshold": 0.2},
    "neutral": None,
}


def read(folder: Path, text: str, threshold: float = 0.5) -> Moderation:
    (folder / "table").write_text(text)
    return read_moderation(str(folder / "table"), threshold, LABELS)


def test_without_a_file_each_label_is_a_category() -> None:
    moderated = read_moderation(None, 0.7, LABELS).moderate({"toxic": 0.7, "NO": 0.69})
    assert (moderated.flags, moderated.scores) == ({"toxic": True, "NO": False}, {"toxic": 0.7, "NO": 0.69})
    assert moderated.flagged and moderated.applied == {"toxic", "NO"}


@pytest.mark.parametrize(
    ("scores", "flagged", "highest"),
    [
        pytest.param({"toxic": 0.4, "insult": 0.45, "threat": 0.1, "neutral": 0.9}, set(),
                     {"harassment": 0.45, "hate": 0.45, "violence": 0.1}, id="below"),
        pytest.param({"toxic": 0.5, "insult": 0.1, "threat": 0.19, "neutral": 0.9}, {"harassment"},
                     {"harassment": 0.5, "hate": 0.1, "violence": 0.19}, id="one of two labels"),
        pytest.param({"toxic": 0.1, "insult": 0.9, "threat": 0.2, "neutral": 0.0}, {"harassment", "hate", "violence"},
                     {"harassment": 0.9, "hate": 0.9, "violence": 0.2}, id="own threshold"),
    ],
)  # fmt: skip
def test_a_category_has_the_highest_score_of_its_labels(
    tmp_path: Path, scores: dict[str, float], flagged: set[str], highest: dict[str, float]
) -> None:
    moderated = read(tmp_path, json.dumps(TABLE)).moderate(scores)
    assert tuple(moderated.flags) == tuple(moderated.scores) == CATEGORIES
    assert {name for name, value in moderated.flags.items() if value} == flagged
    assert {name: value for name, value in moderated.scores.items() if value} == highest
    assert moderated.applied == {"harassment", "hate", "violence"} and moderated.flagged == bool(flagged)


def test_yaml_is_read_as_json_is(tmp_path: Path) -> None:
    text = "toxic: harassment\ninsult: [harassment, hate]\nthreat: {category: violence, threshold: 0.2}\nneutral:\n"
    assert read(tmp_path, text, 0.3) == read(tmp_path, json.dumps(TABLE), 0.3)
    assert read(tmp_path, '"NO": hate').categories == {"NO": ["hate"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("toxc: hate", "expected labels of the model, got 'toxc'; did you mean toxic?", id="label"),
        pytest.param("NO: hate", "expected quotes around the label False", id="no label in YAML"),
        pytest.param("toxic: hateful", "toxic.category: expected one or more of harassment", id="category"),
        pytest.param("toxic: [hate, 3]", "toxic.category", id="category in a list"),
        pytest.param("toxic: []", "toxic.category", id="empty list"),
        pytest.param("toxic: {category: hate, threshold: 2}", "toxic.threshold: expected", id="threshold"),
        pytest.param("toxic: {category: hate, treshold: 1}", "toxic.treshold: expected one of", id="unknown"),
        pytest.param("toxic: {threshold: 0.5}", "toxic.category", id="no category"),
        pytest.param("toxic: hate\ntoxic: violence", "expected each label once", id="twice"),
        pytest.param("[toxic: hate", "expected JSON or YAML, got a fault in line", id="no YAML"),
        pytest.param("- toxic", "expected a table", id="list"),
        pytest.param("", "expected a table", id="empty"),
        pytest.param("neutral:", "expected a category for at least one label", id="no harm"),
        pytest.param("toxic: !!python/object/apply:os.system [ls]", "expected JSON or YAML", id="tag"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith("--moderation_categories=") and message in str(caught.value)


@pytest.mark.parametrize("size", [pytest.param(None, id="missing"), pytest.param(2**20 + 1, id="large")])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, size: Any) -> None:
    path = tmp_path / "table"
    if size:
        path.write_text("#" * size)
    with pytest.raises(LoadError, match=r"is missing|expected at most"):
        read_moderation(str(path), 0.5, LABELS)
