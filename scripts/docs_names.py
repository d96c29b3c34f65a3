"""Names of flags and metrics on the site: an anchor and an entry of the search for each, and links from everywhere.

Works on the HTML of a page, since Markdown has no anchor for a row of a table. A flag is the service's, but on the
pages about another command that has a flag of this name it is that command's.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FLAGS, METRICS = "configuration.html", "metrics.html"
COMMANDS: Final = {"export.html": "export", "first_model.html": "export", "bench.html": "bench"}
"""The pages about another command, with the page in docs/ whose section "Flags" lists its flags."""
SECTION: Final = '<h2 id="flags"'
ROW: Final = re.compile(r"<tr>(\s*<td[^>]*><code>(?:--)?(\w+)</code>)")
CELL: Final = re.compile(r"<td>((?:(?!</td>).)*)", re.DOTALL)
PROSE: Final = 80
"""Characters from which a cell has sentences, and keeps some width beside names that can't break."""
SKIPPED: Final = re.compile(r"(<(?:a|pre|h[1-6])\b.*?</(?:a|pre|h[1-6])>)", re.DOTALL)
"""Links, blocks of code and headings, which stay as they are."""
CODE: Final = re.compile(r"<code>([^<]+)</code>")
NAME: Final = re.compile(
    r"--(?P<flag>[a-z0-9_]+)(?:=\S*)?|(?P<metric>[a-z_]+?)(?:_bucket|_sum|_count)?(?:\{.*\})?", re.DOTALL
)
WHOLE: Final = re.compile(r"[\w./:{}-]+|\w+=\w+|--\w+=\S*|\w+\{\S*\}|\S{1,20}")
"""Names, paths, settings and short words, which stay whole. Longer expressions may break."""
WEIGHT: Final = 5.0
"""That of a metric in the search. Its words are also those of pages, (docs_site.py)."""
LONGEST: Final = 40
"""Characters of a name that fits the line of a phone."""


@cache
def metrics() -> dict[str, str]:
    """The text of each metric in docs/metrics.md."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))


@cache
def places() -> dict[str, str]:
    """The page and anchor of each flag, with its leading hyphens, and of each metric."""
    from hf_transformer.config.options import all_options

    found = {name: f"{METRICS}#{name}" for name in metrics()}
    for option in all_options():
        found |= {f"--{name}": f"{FLAGS}#{option.name}" for name in (option.name, *option.aliases)}
    return found


@cache
def places_of_command(page: str) -> dict[str, str]:
    """The page and anchor of each flag, with its leading hyphens, of the command that a page in docs/ is about."""
    section = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").partition("\n## Flags\n")[2]
    rows = re.findall(r"^\| `--(\w+)`", section.partition("\n## ")[0], re.MULTILINE)
    return {f"--{name}": f"{page}.html#{name}" for name in rows}


def entries() -> Iterator[dict[str, Any]]:
    """An entry of the search for each flag and metric, which leads to its row."""
    from hf_transformer.config.options import all_options

    for option in all_options():
        yield {"location": f"{FLAGS}#{option.name}", "title": option.flag, "text": html.escape(option.help)}
    for name, text in metrics().items():
        yield {"location": f"{METRICS}#{name}", "title": name, "text": html.escape(text), "boost": WEIGHT}


def with_names(text: str, url: str) -> str:
    """The page's HTML with anchors and links. ``url`` is the page's path on the site."""
    if url in (FLAGS, METRICS):
        text = with_anchors(text)
    elif url in COMMANDS:
        before, heading, section = text.partition(SECTION)
        text = before + heading + with_anchors(section)
    known = places() | (places_of_command(COMMANDS[url]) if url in COMMANDS else {})

    def linked(match: re.Match[str]) -> str:
        code = match[1]
        name = NAME.fullmatch(code)
        if not WHOLE.fullmatch(html.unescape(code)):
            return match[0]
        marked = f'<code class="{"word" if len(code) <= LONGEST else "long word"}">{code}</code>'
        place = name and known.get(f"--{name['flag']}" if name["flag"] else name["metric"])
        if not place:
            return marked
        path, _, anchor = place.partition("#")
        page = "" if path == url else posixpath.relpath(path, posixpath.dirname(url) or ".")
        return f'<a href="{page}#{anchor}">{marked}</a>'

    def cell(match: re.Match[str]) -> str:
        is_prose = len(html.unescape(re.sub("<[^>]+>", "", match[1]))) >= PROSE
        return f'<td class="prose">{match[1]}' if is_prose else match[0]

    parts = SKIPPED.split(CELL.sub(cell, text))
    return "".join(CODE.sub(linked, part) if number % 2 == 0 else part for number, part in enumerate(parts))


def with_anchors(text: str) -> str:
    """Gives the first row that begins with a name this name as its id."""
    seen: set[str] = set()

    def anchored(match: re.Match[str]) -> str:
        if match[2] in seen:
            return match[0]
        seen.add(match[2])
        return f'<tr id="{match[2]}">{match[1]}'

    return ROW.sub(anchored, text)
