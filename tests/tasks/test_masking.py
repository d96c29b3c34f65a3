"""Masks: patterns of clients, overlaps, and the text around entities."""

from __future__ import annotations

import random

import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tasks.masking import Mask, TextEntity, read_entities, resolve_overlaps

TEXT = "Anna met Bob; Anna left 🙂 Zoë\u0301\r\n\x00end"
NAMES = [("Anna", 0), ("Bob", 9), ("Anna", 14), ("Zoë\u0301", 26)]
ENTITIES = [TextEntity(start, start + len(name), "PER", 0.9) for name, start in NAMES]


@pytest.mark.parametrize(
    ("pattern", "masked"),
    [
        pytest.param("[{label}]", "[PER] met [PER]; [PER] left 🙂 [PER]\r\n\x00end", id="label"),
        pytest.param("{label}_{index}", "PER_1 met PER_2; PER_1 left 🙂 PER_3\r\n\x00end", id="index"),
        pytest.param("*", "**** met ***; **** left 🙂 ****\r\n\x00end", id="character"),
        pytest.param("🙈", "🙈🙈🙈🙈 met 🙈🙈🙈; 🙈🙈🙈🙈 left 🙂 🙈🙈🙈🙈\r\n\x00end", id="wide character"),
        pytest.param(
            "%s %(label)s", "%s %(label)s met %s %(label)s; %s %(label)s left 🙂 %s %(label)s\r\n\x00end", id="%"
        ),
    ],
)
def test_a_pattern_stands_for_each_entity_and_the_rest_is_unchanged(pattern: str, masked: str) -> None:
    assert Mask(pattern).apply(TEXT, ENTITIES) == masked


def test_a_hash_depends_on_the_text_and_the_key_alone() -> None:
    first, second = (Mask("{hash}", key).apply(TEXT, ENTITIES).split() for key in (b"k" * 16, b"l" * 16))
    assert first[0] == first[3] != first[2] and len(first[0]) == 32
    assert first[0] != second[0] and "Anna" not in "".join(first)


@pytest.mark.parametrize(
    "pattern",
    ["", "{", "}", "{0}", "{label!r}", "{label.__class__}", "{label:>9999999}", "{{label}}", "{text}", "{hash}"],
)
def test_only_the_named_placeholders_are_taken(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="mask"):
        Mask(pattern)


def test_a_long_pattern_is_too_large() -> None:
    Mask("x" * 100)
    with pytest.raises(TooLarge, match="at most 100 characters"):
        Mask("x" * 101)


def test_the_longest_replacement_is_known_before() -> None:
    for pattern in ("[{label}]", "{label}{label}{index}", "{hash}{hash}", "plain text"):
        mask = Mask(pattern, b"k" * 16)
        assert len(mask.apply("Anna", [TextEntity(0, 4, "PER", 1.0)])) <= mask.longest(3)


@pytest.mark.parametrize(
    ("entities", "kept"),
    [
        pytest.param([(0, 9, "A", 0.9), (2, 4, "B", 0.5)], [(0, 9, "A")], id="inside, lower"),
        pytest.param(
            [(0, 9, "A", 0.5), (2, 4, "B", 0.9)], [(0, 2, "A"), (2, 4, "B"), (4, 9, "A")], id="inside, higher"
        ),
        pytest.param([(0, 5, "A", 0.5), (3, 9, "B", 0.9)], [(0, 3, "A"), (3, 9, "B")], id="partly"),
        pytest.param([(0, 5, "A", 0.5), (0, 5, "B", 0.9)], [(0, 5, "B")], id="same"),
        pytest.param([(0, 5, "A", 0.5), (5, 9, "B", 0.9)], [(0, 5, "A"), (5, 9, "B")], id="adjacent"),
    ],
)
def test_overlaps_are_resolved_by_score(entities: list[tuple[int, int, str, float]], kept: list[object]) -> None:
    found = [TextEntity(*entity) for entity in entities]
    for order in (found, found[::-1]):
        assert [(one.start, one.end, one.label) for one in resolve_overlaps(order)] == kept


def test_each_character_has_the_label_of_its_best_entity() -> None:
    random.seed(0)
    for _ in range(300):
        found = []
        for rank in range(random.randrange(1, 12)):
            start = random.randrange(30)
            found.append(TextEntity(start, start + random.randrange(1, 10), random.choice("AB"), rank / 20))
        expected = ["" for _ in range(40)]
        for entity in sorted(found, key=lambda one: one.score):
            expected[entity.start : entity.end] = [entity.label] * (entity.end - entity.start)
        labels = ["" for _ in range(40)]
        end = 0
        for entity in resolve_overlaps(found):
            assert end <= entity.start < entity.end
            end = entity.end
            labels[entity.start : end] = [entity.label] * (end - entity.start)
        assert labels == expected


def test_entities_of_both_tasks_are_read() -> None:
    group = {"entity_group": "PER", "start": 0, "end": 4, "score": 0.5, "word": "anna"}
    label = {"label": "PER", "start": 0, "end": 99, "score": 0.5, "text": "Anna"}
    empty = {"label": "PER", "start": 4, "end": 4, "score": 0.5, "text": ""}
    assert read_entities([group, label, empty], "Anna") == [TextEntity(0, 4, "PER", 0.5)] * 2
