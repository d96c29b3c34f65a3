"""The checks of the built site, and its anchors and links of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_transformer.config.options import all_options
from hf_transformer.observability.metrics import Metrics
from scripts.docs_check import problems
from scripts.docs_names import entries, metrics, places, with_names

ADDRESS = "https://code.example/team/service"


def of_site(folder: Path, link: str) -> list[str]:
    """The problems of a site whose page in a folder has this HTML."""
    (folder / "guide").mkdir()
    (folder / "guide" / "page.html").write_text(f'<h2 id="here">Here</h2>{link}')
    (folder / "index.html").write_text('<h1 id="top">Home</h1><a href="#">up</a>')
    (folder / "picture.webp").touch()
    return list(problems(folder, [ADDRESS]))


@pytest.mark.parametrize(
    "link",
    [
        '<a href="#here">',
        '<a href="../index.html#top">',
        '<a href="..">',
        '<a href="/guide/page.html?q=x#here">',
        '<img src="../picture.webp">',
        '<a href="https://code.example/team/other">',
        '<a href="mailto:hf_transformer@code.example">',
        '<link rel="canonical" href="https://code.example/team/service/page.html">',
    ],
)
def test_links_that_lead_somewhere_are_no_problem(link: str, tmp_path: Path) -> None:
    assert of_site(tmp_path, link) == []


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ('<a href="#gone">', "leads to no anchor"),
        ('<a href="../index.html#here">', "leads to no anchor"),
        ('<a href="gone.html">', "leads to no file"),
        ('<a href="../gone/">', "leads to no file"),
        ('<img src="picture.webp">', "leads to no file"),
        ('<script src="../site.js">', "leads to no file"),
        (f'<a href="{ADDRESS}/blob/main/page.md">', "leaves for the project's own address"),
        (f'<img src="{ADDRESS}/raw/v1/picture.webp">', "leaves for the project's own address"),
        ('<img src="https://raw.host.example/me/hf_transformer/main/x.webp">', "leaves for the project's own address"),
        ('<a href="https://hf-transformer.pages.example/">', "leaves for the project's own address"),
    ],
)
def test_links_that_lead_nowhere_or_home_are_problems(link: str, fault: str, tmp_path: Path) -> None:
    (found,) = of_site(tmp_path, link)
    assert found.startswith("guide/page.html: ") and found.endswith(fault)


def test_every_flag_and_declared_metric_has_a_place() -> None:
    places_of = places()
    for option in all_options():
        assert {places_of[f"--{name}"] for name in (option.name, *option.aliases)} == {
            f"configuration.html#{option.name}"
        }
    declared = {line.split()[2] for line in Metrics().render().decode().splitlines() if line.startswith("# TYPE")}
    assert {name for name in declared if not name.endswith("_created")} <= metrics().keys()
    found = list(entries())
    assert {entry["location"] for entry in found} == set(places_of.values())
    assert all(entry["title"] and entry["text"] for entry in found)


@pytest.mark.parametrize(
    ("url", "before", "after"),
    [
        (
            "configuration.html",
            "<tr>\n<td><code>--workers</code></td>",
            '<tr id="workers">\n<td><a href="#workers"><code class="word">--workers</code></a></td>',
        ),
        (
            "deploy/index.html",
            "<code>--workers=2</code>",
            '<a href="../configuration.html#workers"><code class="word">--workers=2</code></a>',
        ),
        (
            "api.html",
            '<code>hf_transformer_queue_seconds_bucket{le="1"}</code>',
            '<a href="metrics.html#hf_transformer_queue_seconds">'
            '<code class="long word">hf_transformer_queue_seconds_bucket{le="1"}</code></a>',
        ),
        (
            "export.html",
            '<h2 id="flags">Flags</h2><tr>\n<td><code>--task</code></td><td><code>--http_port</code>',
            '<h2 id="flags">Flags</h2><tr id="task">\n<td><a href="#task"><code class="word">--task</code></a></td>'
            '<td><a href="configuration.html#http_port"><code class="word">--http_port</code></a>',
        ),
        (
            "first_model.html",
            "<code>--backend=python</code>",
            '<a href="export.html#backend"><code class="word">--backend=python</code></a>',
        ),
        ("clients.html", "<code>Client(url=NAME,key=WORD)</code>", "<code>Client(url=NAME,key=WORD)</code>"),
        ("api.html", "<code>--no_flag</code>", '<code class="word">--no_flag</code>'),
        ("api.html", "<code>make demo --workers</code>", "<code>make demo --workers</code>"),
        ("api.html", '<a href="x"><code>--workers</code></a>', '<a href="x"><code>--workers</code></a>'),
        ("api.html", "<h2><code>--workers</code></h2>", "<h2><code>--workers</code></h2>"),
    ],
    ids=[
        "its row",
        "a value",
        "a bucket",
        "a command's flag",
        "on a guide",
        "an expression",
        "no flag",
        "a command",
        "a link",
        "a heading",
    ],
)
def test_names_lead_to_their_row(url: str, before: str, after: str) -> None:
    assert with_names(before, url) == after
