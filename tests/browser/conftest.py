"""Chromium in front of the service in front of the real Triton."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.integration.conftest import ROOT, Serve, repository, serve, triton
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

__all__ = ["repository", "serve", "triton"]

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
MISSING = "there is no Chromium: apt-get install chromium, or set CHROMIUM to the path of one"
AXE = ROOT / ".venv-browser" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
MODELS = {
    "fill_mask": "bert",
    "sequence_classification": "sentiment",
    "zero_shot_classification": "nli",
    "zero_shot_token_classification": "gliner",
    "rerank": "cross",
    "token_classification": "ner",
    "question_answering": "squad",
    "text_embedding": "minibert_mean",
    "feature_extraction": "minibert_mean",
    "text_generation": "gpt2",
    "text2text_generation": "t5",
}
SECONDS = 15.0
BROKEN_WORDS = r"""() => {
  const broken = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (element.closest('pre, code, textarea, select, script, style') || element.clientWidth === 1) continue;
    for (const word of texts.currentNode.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map(rectangle => Math.round(rectangle.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="a folder to write a picture of every widget into")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path is not None, MISSING
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@dataclass
class Playground:
    """A page with the playground of one service. ``console`` has all that the browser complains about."""

    page: Page
    context: BrowserContext
    service: Service
    console: list[str] = field(default_factory=list)

    def open(self, address: str = "/playground") -> Playground:
        """Goes there, and waits until the model was found."""
        self.page.goto(f"{self.service.url}{address}")
        self.page.locator("#run").wait_for()
        return self

    def run(self) -> str:
        """Presses Run and waits for the end; what the status says then."""
        self.page.locator("#run").click()
        return self.finished()

    def finished(self) -> str:
        """Waits for the end of a run; what the status says then."""
        self.page.locator("#stop").wait_for(state="hidden")
        status = self.page.locator("#status").text_content()
        assert status is not None and "Running" not in status
        return str(status)

    def out(self, selector: str) -> list[str]:
        """The texts of all elements of the result that a selector names."""
        return list(self.page.locator(f"#out {selector}").all_text_contents())

    def error(self) -> str:
        return str(self.page.locator("#error").inner_text())

    def field(self, label: str) -> Any:
        """The control with this label. Unfolds the part of the form that it is in."""
        control = self.page.get_by_label(label, exact=True)
        fold = self.page.locator("#fields .fold:not([open])", has=control)
        if fold.count():
            fold.locator("summary").click()
        return control

    def code(self, tab: str) -> str:
        """The request as a program."""
        self.page.get_by_role("tab", name=tab).click()
        return str(self.page.locator("#code").text_content())

    def broken_words(self) -> list[str]:
        """The words besides code that stand on two lines."""
        return list(self.page.evaluate(BROKEN_WORDS))

    def serious_findings(self) -> list[str]:
        """Findings of axe-core that keep people out."""
        session = self.context.new_cdp_session(self.page)
        session.send("Runtime.evaluate", {"expression": AXE.read_text()})  # a script tag is against the page's policy
        found = self.page.evaluate("axe.run()")["violations"]
        return [
            f"{one['id']}: {[node['html'] for node in one['nodes']]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def picture(self, path: Path) -> None:
        """Writes the page as WebP, of a widget down to its request: what follows is long."""
        width, height, last = self.page.evaluate(
            "[innerWidth, document.documentElement.scrollHeight, "
            "document.querySelector('#request').getBoundingClientRect().bottom + scrollY]"
        )
        if self.page.locator("#request").is_visible():
            height = last + 20
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"format": "webp", "quality": 75, "captureBeyondViewport": True, "clip": clip}
        answer = self.context.new_cdp_session(self.page).send("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(answer["data"]))


Open = Callable[..., Playground]


@pytest.fixture
def page_of(browser: Browser) -> Iterator[Open]:
    """Makes a page for a service; at the end of the test no page may have put anything on the console."""
    opened: list[Playground] = []

    def make(service: Service, view: str = "desktop") -> Playground:
        context = browser.new_context(**VIEWS[view], reduced_motion="reduce")
        context.set_default_timeout(SECONDS * 1000)
        made = Playground(context.new_page(), context, service)
        made.page.on("console", lambda message: made.console.append(message.text))
        made.page.on("pageerror", lambda error: made.console.append(str(error)))
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.context.close()
    assert [line for one in opened for line in one.console] == []


@pytest.fixture
def playground(page_of: Open, serve: Serve) -> Open:
    """Opens the playground of a task."""

    def make(task: str, *flags: str, view: str = "desktop", model: str = "", protocol: str = "v2") -> Playground:
        model = model or MODELS[task]
        folder = f"--model_dir={task_model_folder(model)}"
        service = serve(model, protocol, folder, f"--task={task}", "--enable_playground", *flags, ready=False)
        return page_of(service, view)

    return make
