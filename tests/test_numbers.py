"""Measured numbers in pages: each has a source, and each source has a version.

A number is measured if it has a unit of UNIT. A limit, a setting or what follows from a form is not measured: it stands
in MiB or whole seconds, or its block has the comment <!-- not measured -->. CONTRIBUTING.md, "Numbers in pages", has
the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOT_READ = {
    "docs/configuration.md": "generated from declarations: defaults and limits",
    "docs/fields.md": "generated",
    "docs/parameters.md": "generated",
    "docs/upgrading.md": "changes of older versions, each in the section of its version",
}
PAGES = sorted(
    path
    for pattern in (
        "README.md",
        "SECURITY.md",
        "docs/*.md",
        "docs/compare/*.md",
        "docs/guides/*.md",
        "deploy/*.md",
        "deploy/chart/*.md",
    )
    for path in ROOT.glob(pattern)
    if str(path.relative_to(ROOT)) not in NOT_READ
)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
UNIT = re.compile(
    r"(?<![\w.-])\d[\d,.]* ?(?:ms|µs|kB|KB|MB|GB)\b(?! HBM)"  # times, decimal sizes; not the name of a device
    r"|(?<![\w.-])\d[\d,.]* ?(?:percent\b|%)"
    r"|(?<![\w.-])\d+\.\d+ (?:s|seconds)\b"
    r"|(?<![\w.-])\d[\d,.]* times (?:as|the|sooner|faster|longer)\b"
    r"|(?<![\w.-])\d[\d,.]* (?:[a-z]+ )?(?:per|a) second\b"
)
RESULT = re.compile(r"benchmarks/results/(\w+\.md)")
VERSION = re.compile(r"\b(?:hf-transformer|versions?)\s+\d+\.\d+\.\d+")
COMMAND = re.compile(
    r"`[^`]*(?:python -m |python |make |scripts/|benchmarks\.)[^`]+`"
    r"|\(\S*benchmarks/README\.md"  # whose figures scripts/figures writes, as those of the pages that link to it
)
MEASURED = re.compile(r"\b[Mm]easured\s+once,\s+with\s+versions?\s+\d+\.\d+\.\d+")
NOT_MEASURED = "<!-- not measured -->"
ROW = re.compile(r"\s*\|")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Paragraphs, items of lists and rows of tables, each with the texts that may hold its source.

    These are the block, the paragraphs around its table, and the paragraphs of its section or of the page's beginning
    that say "Measured".
    """
    sections = re.split(r"^#+ .*\n", re.sub(r"<img[^>]*>", "", FENCE.sub("", text)), flags=re.MULTILINE)
    for section in sections:
        parts = [part for part in re.split(r"\n\s*\n", section) if part.strip()]
        shared = [part for start in {*sections[:2], section} for part in re.split(r"\n\s*\n", start)]
        general = "\n\n".join(part for part in shared if re.match(r"\s*Measured\b", part))
        for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
            if ROW.match(part):
                yield from ((row, f"{row}\n{before}\n{after}\n{general}") for row in part.splitlines())
            else:
                for item in re.split(r"^(?=\s*(?:[-*]|\d+\.) )", part, flags=re.MULTILINE):
                    yield item, f"{item}\n{general}"


def fault(block: str, sources: str) -> str | None:
    """What a block with a measured number lacks; None if it lacks nothing."""
    found = UNIT.search(re.sub(r"`[^`]*`", "", block))
    if found is None or NOT_MEASURED in block or MEASURED.search(sources):
        return None
    if any(VERSION.search((RESULTS / name).read_text(encoding="utf-8")) for name in RESULT.findall(sources)):
        return None
    if COMMAND.search(sources) is None:
        return f"{found[0]!r} has neither a command nor a page of results"
    return None if VERSION.search(sources) else f"{found[0]!r} has no version"


def faults(text: str) -> list[tuple[str, str]]:
    """What is missing on a page, each with the beginning of its block."""
    found = [(fault(block, sources), " ".join(block.split())[:160]) for block, sources in blocks(text)]
    return [(reason, block) for reason, block in found if reason]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_measured_numbers_have_a_command_or_a_page_and_a_version(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_pages_of_results_name_the_version(page: Path) -> None:
    assert VERSION.search(page.read_text(encoding="utf-8"))


SPEED = "benchmarks/results/speed.md"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It takes 3 ms.", "neither"),
        ("- It takes 76 MB.\n- Measured with `make bench` and version 1.0.0.", "neither"),
        ("| memory | 76 MB |", "neither"),
        ("It takes 0.31 s (`make bench`).", "no version"),
        ("It answers 500 texts per second, 20 % more (version 1.0.0).", "neither"),
        ("# A\n\nMeasured once, with version 1.0.0.\n\n## B\n\nIt takes 3 ms.\n\n## C\n\nIt takes 4 ms.", ""),
        ("# A\n\n## B\n\nMeasured once, with version 1.0.0.\n\n## C\n\nIt takes 4 ms.", "neither"),
        (f"It takes 3 ms ([speed]({SPEED})).", ""),
        ("It takes 3 ms (`make bench`, version 1.0.0).", ""),
        (f"The table has the memory.\n\n| memory | 76 MB |\n\nFrom [speed]({SPEED}).", ""),
        ("A search takes at most 10 ms. <!-- not measured -->", ""),
        ("Texts of at most 16 MiB, for 30 seconds, on a H100 80GB HBM3. `sleep 3 ms`\n\n```sh\n3 ms\n```", ""),
    ],
)
def test_the_rule(text: str, reason: str) -> None:
    found = faults(text)
    assert [reason in one for one, _ in found] == ([True] if reason else []), found
