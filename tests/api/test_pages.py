"""The pages for a browser, /docs and /playground: they load nothing from elsewhere, and are off by default."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import httpx
import pytest

from hf_transformer.api import pages
from hf_transformer.api.pages import DOCS, PLAYGROUND, Page
from hf_transformer.app.application import build_app
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.server.asgi import AsgiApplication
from tests.configuring import config
from tests.triton_repository import DEMO_MODEL

FLAGS = {DOCS: "--enable_docs_url=true", PLAYGROUND: "--enable_playground=true"}
ADDRESS = re.compile(r'(?:src|href)="([^"]*)"')
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
GENERATION = ("text_generation", "text2text_generation")

both = pytest.mark.parametrize("page", FLAGS, ids=lambda page: page.path)


@cache
def build(*flags: str) -> AsgiApplication:
    return build_app(config(f"--model_dir={DEMO_MODEL}", "--model_name=m", *flags))


async def get(app: AsgiApplication, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.slow
def test_nothing_is_loaded_for_pages_that_are_off() -> None:
    program = (
        "import sys; from hf_transformer.app.application import build_app; from tests.configuring import config\n"
        f"build_app(config('--model_dir={DEMO_MODEL}', '--model_name=m'))\n"
        "assert 'hf_transformer.api.info' in sys.modules and 'hf_transformer.api.pages' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@both
async def test_a_page_is_served_if_it_is_wanted_and_loads_nothing_from_elsewhere(page: Page) -> None:
    app, without = build(FLAGS[page]), build(*(flag for other, flag in FLAGS.items() if other != page))
    shown = await get(app, page.path)
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    addresses = [f"/{address}" for address in ADDRESS.findall(shown.text) if address != "data:,"]
    assert len(addresses) > 2
    known = dict(page.files)
    assert set(addresses) <= known.keys()
    for path, file in known.items():
        assert (await get(without, path)).status_code == 404
        response = await get(app, path)
        assert response.status_code == 200, path
        ending = Path(file.name.removesuffix(".gz")).suffix
        assert response.headers["content-type"].startswith(pages.TYPES[ending])
        assert response.headers["content-security-policy"] == page.policy
        if file.suffix != ".gz":
            assert not re.findall(r"(?<!xmlns=\")https?://(?!www\.w3\.org/2000/svg)", response.text), path


def test_the_playground_has_a_widget_for_every_task_and_no_script_or_style_in_its_page() -> None:
    assert "unsafe" not in PLAYGROUND.policy and "data:" not in PLAYGROUND.policy
    page = (PLAYGROUND.folder / "index.html").read_text()
    assert not re.findall(r"<style|<script[^>]*>[^<]|\sstyle=|\son\w+=", page)
    files = {path.name for path in PLAYGROUND.folder.glob("*.js")}
    assert {f"{'generation' if task.name in GENERATION else task.name}.js" for task, _ in ALL_TASKS} <= files
    for path in PLAYGROUND.folder.glob("*.js"):
        assert set(re.findall(r'from "\./(.*)"', path.read_text())) <= files


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("identity", False), ("gzip;q=0, *", False), ("", False)],
)
@pytest.mark.parametrize("path", ["/docs/swagger-ui.css", "/playground/style.css"])
async def test_files_are_compressed_for_whom_takes_it(path: str, accepted: str, compressed: bool) -> None:
    response = await get(build(*FLAGS.values()), path, accept_encoding=accepted)
    assert response.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert response.headers["vary"] == "Accept-Encoding"
    assert "color" in response.text


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    app = build(*FLAGS.values())
    first = await get(app, "/playground/app.js")
    again = await get(app, "/playground/app.js", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    other = await get(app, "/playground/lib.js", if_none_match=first.headers["etag"])
    assert other.status_code == 200


async def test_the_root_leads_browsers_to_the_playground_if_there_is_one() -> None:
    app = build(*FLAGS.values())
    led = await get(app, "/", accept=BROWSER)
    assert (led.status_code, led.headers["location"], led.headers["vary"]) == (307, "playground", "Accept")
    for answer in (await get(build(), "/", accept=BROWSER), *[await get(app, "/", accept=one) for one in ("*/*", "")]):
        assert answer.json() == {"status": "alive"}
    assert (await get(app, "/", accept="*/*")).headers["vary"] == "Accept"


async def test_the_playground_needs_no_key_and_the_model_does(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key\n")
    app = build(*FLAGS.values(), f"--api_keys_file={file}")
    for path, _ in PLAYGROUND.files:
        assert (await get(app, path)).status_code == 200
    for path in ("/v1/models/m/info", "/info", "/docs"):
        assert (await get(app, path)).status_code == 401
