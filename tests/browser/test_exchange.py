"""Responses as they came, the last requests, and links to the service's pages."""

from __future__ import annotations

import json

from hf_transformer import RELEASE
from tests.browser.conftest import Open, Playground


def body(page: Playground) -> str:
    """The response's body as the page shows it, once it is complete."""
    page.page.locator("#body[aria-busy=false]").wait_for()
    return str(page.page.locator("#body").text_content())


def headers(page: Playground) -> dict[str, str]:
    names, values = (page.page.locator(f"#headers {tag}").all_text_contents() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_the_response_is_shown_as_it_came(playground: Open) -> None:
    page = playground("token_classification").open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert page.page.locator("#body").is_hidden() and page.page.locator("#history").is_hidden()
    with page.page.expect_response("**:predict") as sent:
        page.run()
    raw = sent.value.text()
    shown = body(page)
    assert json.loads(shown) == json.loads(raw)
    assert shown.count("\n") > 10
    assert page.page.locator("#response-status").inner_text().startswith("200 · ")
    page.page.get_by_text("Headers", exact=True).click()
    told = headers(page)
    assert told["content-type"] == "application/json" and "predict;dur=" in told["server-timing"]
    assert told["x-request-id"] == sent.value.headers["x-request-id"]
    page.page.get_by_text("What was sent").click()
    assert page.page.locator("#sent").inner_text().startswith("POST /v1/models/ner:predict\n\n{")
    page.page.locator("#copy-body").click()
    page.page.get_by_role("button", name="Copied").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == raw


def test_numbers_and_texts_stay_as_they_came(playground: Open) -> None:
    page = playground("fill_mask").open()
    raw = r'{"a":[1.0,1e-7,12345678901234567890],"b":"[ x,  y ] \" {","c":[],"d":{},"e":[[true,null],["p","q"]]}'
    shown = page.page.evaluate("async (raw) => (await import('./playground/lib.js')).pretty(raw)", raw)
    assert shown.splitlines()[1:3] == ['  "a": [1.0, 1e-7, 12345678901234567890],', r'  "b": "[ x,  y ] \" {",']
    assert json.loads(shown) == json.loads(raw)


def test_a_large_body_is_cut_off_with_a_note(playground: Open) -> None:
    page = playground("feature_extraction").open()
    page.field("Text").fill("cat " * 120)
    page.run()
    assert 20_000 < len(body(page)) < 25_000
    note = page.page.locator("#body-note").inner_text()
    assert note.startswith("… and ") and note.endswith(" characters, which are not shown.")


def test_the_events_of_a_stream_are_shown(playground: Open) -> None:
    page = playground("text_generation").open()
    page.field("Temperature").fill("0")
    page.run()
    lines = [line for line in body(page).splitlines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = (choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert "".join(said) == "The capital of france is paris."
    page.page.get_by_text("Completion", exact=True).click()
    page.field("Prompt").fill("Hello world.")
    page.page.get_by_text("More sampling").click()
    page.field("Go on after its end").check()
    page.field("New tokens at most").fill("250")  # so that it is still running when it is stopped
    page.page.locator("#run").click()
    page.page.locator("#body:not(:empty)").wait_for()
    page.page.locator("#stop").click()
    page.page.get_by_text("was not read to its end").wait_for()


def test_a_refusal_is_a_response(playground: Open) -> None:
    page = playground("fill_mask").open()
    page.field("Text").fill("No gap.")
    page.run()
    assert "expected at least one [MASK]" in json.loads(body(page))["error"]
    assert page.page.locator("#response-status .failed").inner_text() == "400"
    assert page.page.locator("#exchanges .failed").inner_text() == "400"
    page.console.clear()  # the browser's note of 400


def test_the_last_requests_are_shown_again(playground: Open) -> None:
    page = playground("fill_mask").open()
    for number in range(22):
        page.field("Text").fill(f"The capital of {('italy', 'japan')[number % 2]} is [MASK]. {number}")
        page.run()
    rows = page.page.locator("#exchanges button")
    assert rows.count() == 20
    assert "japan is [MASK]. 21" in rows.first.inner_text() and "italy is [MASK]. 2" in rows.last.inner_text()
    assert page.page.locator("#use").is_hidden(), "the latest one's input is in the form"
    rows.last.click()
    assert rows.last.evaluate("(row) => row === document.activeElement")
    assert "rome" in body(page) and "tokyo" not in body(page)
    assert rows.last.get_attribute("aria-pressed") == "true"
    assert page.field("Text").input_value().endswith("21")
    page.page.get_by_role("button", name="Use this input").click()
    assert page.field("Text").input_value() == "The capital of italy is [MASK]. 2"
    assert page.run().startswith("rome")
    assert page.page.evaluate("sessionStorage.length + localStorage.length") == 0


def test_links_lead_to_the_pages_of_the_service(playground: Open) -> None:
    page = playground("fill_mask").open()
    assert page.page.get_by_role("link", name="API").is_hidden()
    with_docs = playground("fill_mask", "--enable_docs_url").open()
    assert f"hf_transformer {RELEASE}" in with_docs.page.locator("footer").inner_text()
    with_docs.page.get_by_role("link", name="API").click()
    with_docs.page.wait_for_url("**/docs")
    health = page.page.get_by_role("link", name="Health").evaluate("(link) => link.href")
    assert page.page.request.get(health).json() == {"ready": True}
