"""The page around the widgets: link, key, programs, keyboard, weight, and pages elsewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hf_transformer.tasks.playground import read_playground
from hf_transformer.tokenizer.files import model_config
from tests.browser.conftest import MODELS, Open
from tests.integration.conftest import ROOT
from tests.support.triton_repository import task_model_folder

MOST_BYTES = 100_000
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; "
PROGRAMS = {
    "fill_mask": {"curl": "paris", "requests": "paris", "tritonclient": "paris"},
    "zero_shot_classification": {"tritonclient": "sport"},
    "question_answering": {"tritonclient": "Anna Smith"},
    "rerank": {"tritonclient": "score", "openai": "relevance_score"},
    "text_embedding": {"openai": "[48, 48, 48, 48]", "tritonclient": "0."},
    "text_generation": {"curl": "[DONE]", "requests": "[DONE]", "openai": "The capital of france is paris."},
    "text2text_generation": {"tritonclient": "paris"},
}
"""Task, tab, and a part of what the program prints."""


def test_a_browser_is_led_to_the_page(playground: Open) -> None:
    page = playground("fill_mask").open("/")
    assert page.page.url == f"{page.service.url}/playground"
    assert page.page.title() == "bert · fill mask"


@pytest.mark.parametrize("task", MODELS)
def test_the_page_is_light_keeps_to_itself_and_has_examples_that_work(playground: Open, task: str) -> None:
    page = playground(task)
    loaded: dict[str, int] = {}
    policies: set[str] = set()

    def note(response: object) -> None:
        url = response.url  # type: ignore[attr-defined]
        if "/playground" in url:
            loaded[url] = len(response.body())  # type: ignore[attr-defined]
            policies.add(response.headers["content-security-policy"])  # type: ignore[attr-defined]
        assert url.startswith(page.service.url)

    page.page.on("response", note)
    page.open()
    page.page.wait_for_load_state("networkidle")
    assert len(loaded) >= 7
    label = page.page.locator("#run").inner_text()
    assert page.page.locator("#out").inner_text() == f"Press {label} to see what the model says."
    assert sum(loaded.values()) < MOST_BYTES
    assert len(policies) == 1 and policies.pop().startswith(POLICY)
    told, examples = read_playground(model_config(task_model_folder(MODELS[task]), required=True))
    assert page.page.locator("#note").inner_text() == told
    options = page.page.locator("#examples option").all_inner_texts()
    assert len(options) == len(examples) == len(set(options))
    for number in range(len(options)):
        page.page.locator("#examples").select_option(str(number))
        page.run()
        assert page.error() == ""
        page.page.locator("#body[aria-busy=false]").wait_for()
        assert page.page.locator("#response-status").inner_text().startswith("200")
    assert page.page.locator("#exchanges button").count() == len(options)


def test_a_link_holds_the_input(playground: Open) -> None:
    page = playground("zero_shot_classification").open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.field("Text").fill("Zoë 👩‍👩‍👧 sings.")
    page.field("Labels").fill("music")
    page.page.get_by_role("button", name="Copy link").click()
    page.page.get_by_role("button", name="Copied").wait_for()
    link = page.page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{page.service.url}/playground#")
    linked = playground("zero_shot_classification").open(link.removeprefix(page.service.url))
    assert linked.field("Text").input_value() == "Zoë 👩‍👩‍👧 sings."
    assert linked.page.locator(".chips li").count() == 4
    linked = playground("zero_shot_classification").open("/playground#%%%")
    assert "damaged" in str(linked.page.locator("#status").text_content())


def test_a_key_is_asked_for_and_goes_nowhere_else(playground: Open, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key-of-this-test\n")
    page = playground("fill_mask", f"--api_keys_file={file}")
    page.page.goto(f"{page.service.url}/")
    page.field("API key").wait_for()
    assert "API key" in page.page.locator("#about").inner_text()
    page.field("API key").fill("wrong")
    page.page.get_by_role("button", name="Use").click()
    page.page.locator("#access[open]").wait_for()
    page.field("API key").fill("a-key-of-this-test")
    page.page.get_by_role("button", name="Use").click()
    page.page.locator("#run").wait_for()
    assert page.run() == "paris, 99.8 %"
    for tab in ("curl", "requests", "tritonclient"):
        assert "API_KEY" in page.code(tab) and "a-key" not in page.code(tab)
    page.page.get_by_role("button", name="Copy link").click()
    assert "a-key" not in page.page.url
    assert "a-key" not in page.page.content(), "the exchanges have no key"
    page.page.reload()
    page.page.locator("#run").wait_for()
    assert page.run() == "paris, 99.8 %"
    assert all("401" in line for line in page.console)
    page.console.clear()


def test_a_model_that_is_not_ready_is_waited_for(playground: Open) -> None:
    page = playground("fill_mask", "--predictor_host=127.0.0.1:9")
    page.page.goto(f"{page.service.url}/playground")
    page.page.get_by_text("is not ready").wait_for()
    assert page.page.locator("main").is_hidden()
    page.console.clear()  # the browser's notes of 503


@pytest.mark.parametrize("task", PROGRAMS)
def test_the_programs_run(playground: Open, tmp_path: Path, task: str) -> None:
    page = playground(task).open()
    if task.endswith("generation"):
        page.field("Temperature").fill("0")
    for tab, printed in PROGRAMS[task].items():
        code = page.code(tab)
        if tab == "curl":
            command = ["bash", "-c", code]
        else:
            (tmp_path / "program.py").write_text(code)
            command = [sys.executable, str(tmp_path / "program.py")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{tab}: {done.stderr}"
        assert printed in done.stdout, tab


def test_a_text_with_quotes_is_copied_whole(playground: Open) -> None:
    page = playground("sequence_classification").open()
    text = "It's a \"good\" hotel,\nisn't it? $HOME `id` \\n"
    page.field("Text").fill(text)
    assert json.loads(shlex.split(page.code("curl"))[-1])["instances"] == [text]
    body = re.search(r"body = (.*?)\nanswer", page.code("requests"), re.DOTALL)
    assert body is not None
    assert eval(body[1]) == {"instances": [text], "parameters": {"output_format": "pipeline", "top_k": None}}


def test_all_of_it_works_by_the_keyboard(playground: Open) -> None:
    page = playground("token_classification").open()
    keyboard = page.page.keyboard
    order = []
    for _ in range(8):
        keyboard.press("Tab")
        order.append(page.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert order[:2] == ["link", "SUMMARY"]
    assert order.index("run") < order.index("tab-0") if "tab-0" in order else "run" in order
    page.field("Text").focus()
    keyboard.press("Control+Enter")
    assert page.finished() == "2 entities"
    page.page.locator("#tab-0").focus()
    keyboard.press("ArrowRight")
    assert page.page.locator("#tab-1").get_attribute("aria-selected") == "true"
    assert page.page.evaluate("document.activeElement.id") == "tab-1"
    assert "import requests" in str(page.page.locator("#code").text_content())


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The origin of a server of the files in ``tmp_path``. A real one: browsers look at a page's address, too."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_elsewhere_reaches_the_api(playground: Open, elsewhere: str, tmp_path: Path) -> None:
    """The page in docs/playground.md."""
    example = re.search(r"```html\n(.*?)```", (ROOT / "docs" / "playground.md").read_text(), re.DOTALL)
    assert example is not None
    page = playground("fill_mask", f"--cors_allow_origin={elsewhere}")
    html = example[1].replace("https://models.example.com", page.service.url)
    assert html != example[1]
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "favicon.ico").touch()
    page.page.goto(f"{elsewhere}/page.html")
    page.page.get_by_text("paris", exact=True).wait_for()
