"""Checks the built site: links and pictures lead to files and anchors of it, and none to the project's own address.

A link that should lead into the site, but was given an address, leads out of every other copy of it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ROOT: Final = Path(__file__).resolve().parent.parent
OWN: Final = re.compile(r"https?://[^/]+/(?:[^?#]*/)?hf[-_]transformer(?:[/?#.]|$)|https?://hf[-_]transformer\.")
"""An address with the project's name, whoever hosts it."""


class Page(HTMLParser):
    """The anchors of a page, and where its links and pictures lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        # <link rel="canonical"> has the site's address on purpose.
        if tag != "link" or values.get("rel") not in ("canonical", "prev", "next"):
            self.links += [values[name] for name in ("href", "src") if name in values]


def own_addresses() -> list[str]:
    """The addresses in [project.urls]."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project.get("urls", {}).values())


def problems(site: Path, addresses: Sequence[str]) -> Iterator[str]:
    """A line for each link of the site that leads nowhere, or to one of the addresses."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            if fault := fault_of(link, path, pages, site, addresses):
                yield f"{path.relative_to(site)}: {link} {fault}"


def fault_of(link: str, path: Path, pages: dict[Path, Page], site: Path, addresses: Sequence[str]) -> str | None:
    """The fault of a link of the page; None for a good link."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        own = OWN.match(link) or any(link.startswith(address.rstrip("/")) for address in addresses)
        return "leaves for the project's own address" if own else None
    place = unquote(parts.path)
    target = (site / place.lstrip("/") if place.startswith("/") else path.parent / place).resolve() if place else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "leads to no file"
    # The theme's link to the top has no anchor.
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "leads to no anchor"
    return None
