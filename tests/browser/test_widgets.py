"""Every task's widget: the right answer, on a desktop, in the dark and on a phone, for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import MODELS, VIEWS, Open, Playground

SAYS = {
    "fill_mask": "paris, 99.8 %",
    "sequence_classification": "POSITIVE, 97.3 %",
    "zero_shot_classification": "sport, 94.7 %",
    "rerank": "Best of 3 documents: Paris is the capital of France.",
    "token_classification": "2 entities",
    "question_answering": "Anna Smith, 99.5 %",
    "text_embedding": "4 vectors of 48 numbers; 3 and 4 are the most alike, 0.97",
    "feature_extraction": "9 tokens, 48 numbers each",
    "text_generation": "DoneThe capital of france is paris.",
    "text2text_generation": "Doneparis",
}
"""What the status says after a run of the example."""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("task", MODELS)
def test_the_example_is_answered(playground: Open, request: pytest.FixtureRequest, task: str, view: str) -> None:
    page = playground(task, view=view).open()
    if task.endswith("generation"):
        page.field("Temperature").fill("0")
    assert page.run() == SAYS[task]
    assert page.error() == ""
    page.page.locator("#token-list li").first.wait_for()
    width = page.page.evaluate("document.documentElement.scrollWidth")
    assert width == VIEWS[view]["viewport"]["width"]
    if folder := request.config.getoption("--pictures"):
        page.picture(Path(folder) / f"playground-{task}-{view}.webp")
    assert page.serious_findings() == []


def test_a_click_puts_a_word_into_the_mask(playground: Open) -> None:
    page = playground("fill_mask").open()
    text = page.field("Text")
    text.fill("The capital of italy is ")
    text.press("End")
    page.page.get_by_role("button", name="Insert [MASK]").click()
    page.page.keyboard.type(".")
    page.field("Candidates").fill("3")
    assert page.run().startswith("rome")
    assert len(page.out("li")) == 3
    page.page.get_by_role("button", name="Put rome into the text").click()
    assert text.input_value() == "The capital of italy is rome."


def test_only_some_words_may_fill_the_mask(playground: Open) -> None:
    page = playground("fill_mask").open()
    page.field("Only these words").fill("rome, oslo")
    page.run()
    assert sorted(page.out(".pick")) == ["oslo", "rome"]


def test_pairs_are_classified(playground: Open) -> None:
    page = playground("sequence_classification", model="nli").open()
    page.field("Text").fill("The team won the match.")
    page.field("Second text").fill("This example is sport.")
    assert page.run().startswith("entailment")
    assert sorted(page.out("li > span:first-child")) == ["contradiction", "entailment", "neutral"]


def test_labels_are_chips(playground: Open) -> None:
    page = playground("zero_shot_classification").open()
    labels = page.field("Labels")
    labels.press("Backspace")
    labels.press_sequentially("music,")
    labels.press_sequentially("health")
    labels.press("Enter")
    page.page.get_by_role("button", name="Remove politics").click()
    page.page.get_by_role("switch", name="Several labels may fit").check()
    page.run()
    assert sorted(page.out("li > span:first-child")) == ["health", "music", "sport"]
    assert "multi_label" in page.code("curl")


def test_documents_are_added_and_sorted(playground: Open) -> None:
    page = playground("rerank").open()
    page.page.get_by_role("button", name="Add document").click()
    page.page.keyboard.type("In France, Paris is the capital.")
    page.page.get_by_role("button", name="Remove document 1").click()
    page.run()
    assert len(page.out("li")) == 3
    assert page.out(".ranking small")[0].startswith("↑ was ")


def test_entities_are_marked_by_code_points(playground: Open) -> None:
    page = playground("token_classification").open()
    page.field("Text").fill("👩‍👩‍👧👩‍👩‍👧 Anna Smith lives in Berlin.")
    page.run()
    people = [mark for mark in page.out("mark") if "PER" in mark]
    assert any(mark.startswith("Anna Smith") for mark in people), people
    page.field("Aggregation strategy").select_option("none")
    page.run()
    assert any("B-PER" in mark for mark in page.out("mark"))


def test_another_answer_is_marked(playground: Open) -> None:
    page = playground("question_answering").open()
    page.run()
    assert page.out("mark") == ["Anna Smith1.00"]
    page.page.locator("#out .pick").nth(1).click()
    assert page.out("mark")[0].startswith("1984. Anna Smith")


def test_a_prompt_goes_in_front_of_every_text(playground: Open) -> None:
    page = playground("text_embedding").open()
    page.field("Prompt").select_option("query")
    page.run()
    page.page.get_by_text("13 of 128 tokens").first.wait_for()
    assert page.out("tbody tr") != []
    assert '"prompt_name": "query"' in page.code("curl")


def test_another_token_is_compared(playground: Open) -> None:
    page = playground("feature_extraction").open()
    page.run()
    chosen = page.page.locator("#out [aria-selected=true]")
    assert chosen.inner_text().split() == ["sleeps", "1.00"]
    chosen.focus()
    page.page.keyboard.press("ArrowLeft")
    assert chosen.inner_text().split() == ["cat", "1.00"]
    assert "“cat”" in page.out(".hint")[0]


def test_what_is_cut_off_is_shown(playground: Open) -> None:
    page = playground("sequence_classification").open()
    page.field("Text").fill("The hotel was wonderful. " * 40 + "The end.")
    page.page.locator(".warning").wait_for()
    assert "tokens cut off" in page.page.locator(".warning").inner_text()
    assert page.page.locator(".tokens .cut").count() > 50


def test_an_error_is_shown_as_the_service_says_it(playground: Open) -> None:
    page = playground("fill_mask").open()
    page.field("Text").fill("No mask.")
    assert page.run() == ""
    assert page.error() == "400 instances[0]: expected at least one [MASK] in the text, got none"
    assert len(page.console) == 1 and "400" in page.console.pop()  # the browser's own note
    page.field("Text").fill("The capital of france is [MASK].")
    assert page.run() == SAYS["fill_mask"]
    assert page.error() == ""


def flow_of(page: Playground) -> str:
    return str(page.page.locator("#out .answer").last.text_content())


def test_a_chat_goes_on(playground: Open) -> None:
    page = playground("text_generation").open()
    page.field("Temperature").fill("0")
    page.run()
    page.field("Message").fill("What is the capital of italy?")
    page.run()
    assert page.out(".bubble") == [
        "What is the capital of france?",
        "The capital of france is paris.",
        "What is the capital of italy?",
        "The capital of italy is rome.",
    ]
    figures = page.page.locator("#out .figures").inner_text()
    assert "Tokens per second" in figures and "First token after" in figures
    page.page.locator("#out .token").first.click()
    assert page.out("h3")[0].startswith("Likeliest in the place of")
    assert len(page.out(".likeliest li")) == 5
    page.page.get_by_role("button", name="New chat").click()
    assert page.out(".bubble") == []


def test_a_chat_with_a_schema(playground: Open) -> None:
    page = playground("text_generation").open()
    page.field("Temperature").fill("0")
    page.field("JSON schema").fill(
        '{"type": "object", "properties": {"city": {"enum": ["rome"]}}, "required": ["city"]'
    )
    page.run()
    expected = (
        "400 structured_outputs.json: expected an object, or its JSON text, got invalid JSON; unexpected end of data"
    )
    assert page.error() == f"{expected}: line 1 column 84 (char 83)" and "400" in page.console.pop()
    page.field("JSON schema").fill('{"enum": ["rome"]}')
    page.run()
    assert page.error() == "" and page.out(".bubble")[-1] == '"rome"'
    page = playground("text_generation", model="gpt2_tutorial").open()
    assert page.page.get_by_label("JSON schema").count() == 0


def test_a_completion_is_streamed_and_stopped(playground: Open) -> None:
    # This model takes its time for a prompt that begins so.
    page = playground("text_generation", model="gpt2_tokens", protocol="grpc-v2").open()
    page.page.get_by_text("Completion", exact=True).click()
    page.field("Prompt").fill("Slowly: The capital of france is")
    page.field("New tokens at most").fill("200")
    page.page.get_by_text("More sampling").click()
    page.field("Go on after its end").check()
    page.page.locator("#run").click()
    page.page.locator("#out .answer:not(:empty)").wait_for()
    assert page.page.locator("#stop").is_visible()
    page.page.get_by_role("button", name="Stop").click()
    assert page.finished() == "Stopped."
    text = flow_of(page)
    page.page.wait_for_timeout(500)
    assert flow_of(page) == text != ""


def test_sliders_are_those_that_the_model_can_honour(playground: Open) -> None:
    page = playground("text_generation", model="gpt2_tutorial").open()
    assert page.page.locator("input[type=range]").count() == 0
    page = playground("text_generation").open()
    names = page.page.locator(".field:has(input[type=range]) label").all_text_contents()
    assert names[:3] == ["Temperature", "Top p", "Top k (0: all)"]
    assert len(names) == 7


@pytest.mark.parametrize("task", [task for task in MODELS if task != "fill_mask"])
def test_every_widget_shows_an_error(playground: Open, task: str) -> None:
    page = playground(task, "--max_text_length=9").open()
    assert page.run() == ""
    assert page.error().startswith("413 ") and "at most 9" in page.error()
    assert page.out(":is(li, mark, td, .token)") == []
    page.page.wait_for_load_state("networkidle")  # the tokens are refused too, perhaps later
    assert page.console and all("413" in line for line in page.console)  # the browser's own notes
    page.console.clear()
