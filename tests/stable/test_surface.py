"""The surface of this version against the lists of the last release (docs/stability.md, docs/upgrading.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hf_transformer import __version__
from scripts.stable_surface import (
    KINDS,
    PROMISES,
    ROOT,
    STABLE,
    Difference,
    Facts,
    differences,
    new_names,
    read_lists,
    releases,
    shown,
    surface,
    write_lists,
)

NOT_CHANGES: dict[str, str] = json.loads((STABLE / "not_changes.json").read_text())
"""Differences of /openapi.json or of lists alone, by patterns, with the reason why users need not read of them. The
next release empties the file."""


@pytest.fixture(scope="module")
def current() -> dict[str, Facts]:
    return surface(ROOT)


@pytest.fixture(scope="module")
def found(current: dict[str, Facts]) -> list[Difference]:
    return list(differences(read_lists(STABLE / releases()[-1]), current))


def section(page: str) -> str:
    """The part of a page about the version that is not released yet; empty without one."""
    text = (ROOT / page).read_text("utf-8")
    match = re.search(r"^## \[?Unreleased\]?\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match[1] if match else ""


def named(text: str) -> set[str]:
    """All words between backticks."""
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.split(r"[\s=,]+", code)}


def short(name: str) -> str:
    """The end of a fact's name, by which a page names it: a flag, a label, a key, the kind of an object."""
    if match := re.search(r"\[\"([^\"]+)\"\]$|(?:env|containers|parameters)\[([\w-]+)\](?:\.value)?$", name):
        return match[1] or match[2]
    if match := re.search(r" (\w+)/[\w-]+$", name):
        return match[1]
    last = name.rpartition(" ")[2]
    return last.rpartition(".")[2] if re.search(r"\w\.\w", last) and not last.endswith(".yaml") else last


def must_be_named(difference: Difference, before: Mapping[str, Facts]) -> bool:
    """Whether a difference can matter to someone who changes nothing: all but new things with a name of their own."""
    kind, name, old, _ = difference
    if old is not None:
        return True
    if kind == "metrics":
        return " label " in name
    if kind == "routes":
        return re.search(r": \d+$", name) is not None
    objects = {known for known in before["manifests"] if re.search(r"/[\w-]*$", known)}
    return kind == "manifests" and any(name.startswith(f"{known} ") for known in objects)


@pytest.mark.slow
def test_the_page_about_upgrading_names_each_difference_from_the_last_release(found: list[Difference]) -> None:
    before, known = read_lists(STABLE / releases()[-1]), named(section("docs/upgrading.md"))
    missing = []
    for difference in found:
        line = shown(*difference[1:])
        if any(re.fullmatch(pattern, line) for pattern in NOT_CHANGES):
            continue
        if must_be_named(difference, before) and short(difference[1]) not in known:
            missing.append(line)
    assert not missing


@pytest.mark.slow
def test_each_exception_is_a_difference(found: list[Difference]) -> None:
    lines = [shown(*difference[1:]) for difference in found]
    assert [pattern for pattern in NOT_CHANGES if not any(re.fullmatch(pattern, line) for line in lines)] == []


@pytest.mark.slow
def test_the_page_has_the_new_names(found: list[Difference]) -> None:
    assert not found or new_names(found) in section("docs/upgrading.md"), "run scripts/surface --new-names"


@pytest.mark.slow
def test_what_is_gone_was_deprecated_a_minor_before(found: list[Difference]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if numbers(releases()[-1]) >= (1, 0):  # versions before made no promise
        assert list(undeprecated(found, changelog, __version__)) == []


def undeprecated(found: list[Difference], changelog: str, version: str) -> Iterator[str]:
    """Facts that are gone without an entry under Deprecated in an earlier minor version."""
    known: set[str] = set()
    for name, text in re.findall(r"^## \[(\d[^]]*)\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S):
        if numbers(name) < numbers(version):
            for part in re.findall(r"^### Deprecated\n(.*?)(?=^### |\Z)", text, re.M | re.S):
                known |= named(part)
    for kind, name, old, new in found:
        line = shown(name, old, new)
        decided = any(re.fullmatch(pattern, line) for pattern in NOT_CHANGES)
        if kind in PROMISES and new is None and not decided and short(name) not in known:
            yield line


def numbers(version: str) -> tuple[int, int]:
    """Major and minor."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


CHANGELOG = """\
## [Unreleased]

### Deprecated

- `--late`

## [1.2.0] - 2027-01-01

### Deprecated

- `--same`

### Changed

- `--changed`

## [1.1.0] - 2026-12-01

### Deprecated

- `--early` and `hf_transformer_early_total`: use `--better`.
"""


@pytest.mark.parametrize("name, deprecated", [("early", True), ("same", False), ("late", False), ("changed", False)])
def test_a_removal_needs_an_entry_a_minor_before(name: str, deprecated: bool) -> None:
    found: list[Difference] = [("flags", f"serve --{name}", "default 1", None)]
    assert list(undeprecated(found, CHANGELOG, "1.2.0.dev0")) == (
        [] if deprecated else [f"- serve --{name} = default 1"]
    )


def test_a_removal_from_manifests_needs_none() -> None:
    found: list[Difference] = [("manifests", "kserve InferenceService/old", "", None)]
    assert list(undeprecated(found, CHANGELOG, "1.2.0")) == []


def lists(**facts: list[str]) -> dict[str, Facts]:
    """Lists with these facts, each ``NAME`` or ``NAME = VALUE``."""
    found: dict[str, Facts] = {kind: {} for kind in KINDS}
    for kind, lines in facts.items():
        found[kind] = {name: value for name, _, value in (line.partition(" = ") for line in lines)}
    return found


def test_a_new_thing_is_one_difference_with_all_its_parts() -> None:
    before = lists(routes=["GET /a"], fields=["GET /a 200.x"], metrics=["m = gauge"])
    after = lists(
        routes=["GET /a", "POST /b", "POST /b: 400"],
        fields=["GET /a 200.x", "GET /a 200.y", "GET /a 200.y: string", "POST /b body.z = required"],
        metrics=["m = gauge", "m label model_name"],
    )
    lines = [shown(*difference[1:]) for difference in differences(before, after)]
    assert lines == ["+ POST /b", "+ GET /a 200.y", "+ m label model_name"]
    gone = [shown(*difference[1:]) for difference in differences(after, before)]
    assert gone == ["- POST /b", "- GET /a 200.y", "- m label model_name"]


def test_another_value_is_a_difference() -> None:
    before, after = lists(flags=["serve --a = default 1"]), lists(flags=["serve --a = default 2"])
    assert [shown(*one[1:]) for one in differences(before, after)] == ["~ serve --a: default 1 -> default 2"]


def test_lists_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = lists(
        fields=["POST /a body.x = optional", 'POST /a body.x: "b"', "POST /a body.x: null", "POST /a body.y: string"],
        flags=["serve --a = default 1", "serve --a: x", "serve --a: y"],
    )
    write_lists(made, tmp_path)
    assert read_lists(tmp_path) == made
    assert (tmp_path / "flags.txt").read_text() == "serve --a = default 1 :: x | y\n"
