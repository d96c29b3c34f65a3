"""The site of the documentation in Chromium: what its search finds, and how names look on a phone."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.conftest import AXE, SECONDS, VIEWS
from tests.integration.conftest import ROOT

BROKEN = """() => [...document.querySelectorAll('.md-content code.word')].filter(code => {
  const range = document.createRange();
  range.selectNodeContents(code);
  return new Set([...range.getClientRects()].map(rectangle => Math.round(rectangle.top))).size > 1;
}).map(code => code.textContent)"""
"""The names that stand on two lines."""
WIDE = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')].filter(
  box => box.scrollWidth > box.clientWidth).map(box => box.innerText)"""
"""The tables that are wider than the column of text."""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A file server without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address and the folder of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    made = browser.new_context(**VIEWS[getattr(request, "param", "desktop")], reduced_motion="reduce")
    made.set_default_timeout(SECONDS * 1000)
    yield made
    made.close()


def found(page: Page, query: str) -> list[str]:
    """The pages that the search lists first, by their path, each once."""
    page.locator(".md-search__input").fill(query)
    page.locator(".md-search__input").press("End")  # the search listens to keys
    page.locator(".md-search-result__meta", has_text="document").wait_for()
    links = page.locator(".md-search-result__item > a").evaluate_all("links => links.map(link => link.pathname)")
    return list(dict.fromkeys(link.lstrip("/") for link in links))[:3]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("429", "operations.html"),
        ("503", "operations.html"),
        ("embedding", "tasks.html"),
        ("reranker", "tasks.html"),
        ("helm", "deploy/index.html"),
        ("docker", "deploy/index.html"),
        ("queue time", "metrics.html"),
        ("shared memory", "operations.html"),
        ("kserve", "coming_from_kserve.html"),
        ("chat", "chat_models.html"),
        ("max_queued_tokens", "configuration.html"),
        ("--pad_to_multiple_of", "configuration.html"),
    ],
)
def test_the_search_finds_the_page_for_a_word(
    context: BrowserContext, site: tuple[str, Path], query: str, wanted: str
) -> None:
    page = context.new_page()
    page.goto(f"{site[0]}/index.html")
    assert wanted in found(page, query)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("install", "install.html"),
        ("pip", "install.html"),
        ("bug", "report_a_bug.html"),
        ("supported versions", "stability.html"),
        ("input_ids", "token_ids.html"),
        ("authentication", "authentication.html"),
        ("upgrade", "upgrading.html"),
        ("compare text-embeddings-inference", "compare/text_embeddings_inference.html"),
        ("vllm", "compare/vllm.html"),
        ("mlserver", "compare/mlserver.html"),
        ("litellm", "guides/gateways.html"),
        ("milvus", "guides/vector_databases.html"),
    ],
)
def test_the_search_finds_the_page_that_a_newcomer_looks_for_first_or_second(
    context: BrowserContext, site: tuple[str, Path], query: str, wanted: str
) -> None:
    page = context.new_page()
    page.goto(f"{site[0]}/index.html")
    assert wanted in found(page, query)[:2]


@pytest.mark.parametrize("context", ["phone"], indirect=True)
def test_names_stay_whole_and_no_page_is_wider_than_a_phone_nor_table_than_its_column(
    context: BrowserContext, site: tuple[str, Path]
) -> None:
    page = context.new_page()
    page.route("**/search/search_index.json", lambda route: route.abort())  # each page would read a megabyte
    names = tables = 0
    for path in sorted(set(site[1].rglob("*.html")) - set(site[1].glob("decisions/0*"))):
        page.set_viewport_size(VIEWS["phone"]["viewport"])
        page.goto(f"{site[0]}/{path.relative_to(site[1])}")
        names += page.locator(".md-content code.word").count()
        assert page.evaluate(BROKEN) == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        page.set_viewport_size(VIEWS["desktop"]["viewport"])
        tables += page.locator(".md-typeset__scrollwrap").count()
        assert page.evaluate(BROKEN) == [] and page.evaluate(WIDE) == [], path
    assert names > 1000 and tables > 200


@pytest.mark.parametrize(
    "anchor", ["configuration.html#max_queued_tokens", "metrics.html#hf_transformer_refused_requests_total"]
)
def test_a_name_has_an_address(context: BrowserContext, site: tuple[str, Path], anchor: str) -> None:
    page = context.new_page()
    page.goto(f"{site[0]}/{anchor}")
    name = anchor.partition("#")[2]
    assert name in page.locator("tr:target").inner_text().split("\t")[0]
    page.goto(f"{site[0]}/operations.html")
    page.locator(f'.md-content a[href="{anchor}"]').first.click()
    page.wait_for_url(f"**/{anchor}")


@pytest.mark.parametrize("context", ["desktop", "phone", "dark"], indirect=True)
def test_the_home_page_keeps_nobody_out(context: BrowserContext, site: tuple[str, Path]) -> None:
    page = context.new_page()
    page.goto(f"{site[0]}/index.html")
    page.add_script_tag(path=AXE)
    violations = page.evaluate("axe.run('.md-content')")["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []
    assert page.locator(".md-content img").evaluate_all("all => all.every(one => one.naturalWidth > 0)")
