"""The playground of a service with several models: the overview, the chooser, links to a model, models that are not
ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.browser.conftest import MODELS, VIEWS, Open, Playground
from tests.integration.conftest import Serve
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

LATE = "bert_masked"
"""A model that only one test loads into Triton."""
ABSENT = "absent"
"""A model that Triton never has."""


def entry(task: str, model: str, **more: Any) -> dict[str, Any]:
    return {"model_name": model, "model_dir": str(task_model_folder(model)), "task": task, **more}


ENTRIES = [
    entry("fill_mask", "bert", aliases=["capitals"]),
    entry("sequence_classification", "sentiment"),
    entry("text_generation", "gpt2"),
    entry("text_generation", "gpt2_vllm", predictor_protocol="grpc-v2", adapters=["shouting"]),
    entry("feature_extraction", "minibert_mean"),
    entry("fill_mask", LATE),
    {**entry("fill_mask", "bert"), "model_name": ABSENT},
]
OPTIONS = [
    "bert · fill mask",
    "sentiment · sequence classification",
    "gpt2 · text generation",
    "gpt2_vllm · text generation",
    "shouting · text generation · adapter of gpt2_vllm",
    "minibert_mean · feature extraction",
    f"{LATE} · fill mask · not ready",
    f"{ABSENT} · fill mask · not ready",
]

BERT = "/playground?model=bert"
CARDS = ["bert", "sentiment", "gpt2", "gpt2_vllm", "minibert_mean", LATE, ABSENT]

Start = Callable[..., Service]


@pytest.fixture(scope="module")
def start(triton: LocalTriton, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a service of these entries of --models, and with these flags, ended with the module."""
    running: list[Service] = []

    def make(entries: list[dict[str, Any]], *more: str) -> Service:
        served = [entry for entry in entries if entry["model_name"] not in (LATE, ABSENT)]
        for served_entry in served:
            serve.load(served_entry.get("predictor_model", served_entry["model_name"]))
        file = tmp_path_factory.mktemp("models") / "models.json"
        over_grpc = {"predictor_host": triton.grpc_address}
        file.write_text(json.dumps([entry | (over_grpc if "predictor_protocol" in entry else {}) for entry in entries]))
        flags = (f"--models={file}", f"--predictor_host={triton.http_address}", "--enable_playground")
        service = Service(*flags, *more)
        running.append(service)
        for served_entry in served:
            service.wait_until(f"/v1/models/{served_entry['model_name']}")
        return service

    yield make
    for service in running:
        service.__exit__(None, None, None)


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start(ENTRIES)


@pytest.fixture
def page(page_of: Open, service: Service) -> Playground:
    return page_of(service)


def wait_for_widget(page: Playground, model: str) -> None:
    page.page.locator("h1").get_by_text(model, exact=True).wait_for()


def choose(page: Playground, model: str) -> None:
    """Chooses a model, and waits until its widget is shown."""
    page.field("Model").select_option(model)
    wait_for_widget(page, model)


def show_all(page: Playground) -> None:
    """Goes to the overview."""
    page.page.goto(f"{page.service.url}/playground")
    page.page.locator(".models").wait_for()


def card(page: Playground, model: str) -> Any:
    """The card of a model."""
    return page.page.locator(".models > li", has=page.page.get_by_role("heading", name=model, exact=True))


def query(page: Playground) -> str:
    return str(page.page.evaluate("location.search"))


def test_all_models_are_cards(page: Playground) -> None:
    show_all(page)
    assert page.page.title() == "Playground"
    assert page.page.locator(".models h2").all_inner_texts() == CARDS
    assert page.page.locator("main").is_hidden() and page.page.locator("#chooser").is_hidden()
    text = card(page, "sentiment").inner_text()
    assert "sequence classification" in text and "Sorts texts into classes" in text and "not ready" not in text
    assert "not ready" in card(page, ABSENT).inner_text()
    assert card(page, "gpt2_vllm").locator(".adapters").inner_text() == "shouting"


def test_a_card_leads_to_its_widget_and_back(page: Playground) -> None:
    show_all(page)
    page.page.get_by_role("link", name="sentiment").click()
    page.page.locator("#run").wait_for()
    assert query(page) == "?model=sentiment"
    assert page.page.evaluate("document.activeElement.id") == "title"
    assert page.run() == "POSITIVE, 97.3 %"
    page.page.get_by_role("link", name="All models").click()
    page.page.locator(".models").wait_for()
    assert query(page) == ""
    page.page.get_by_role("link", name="shouting").click()
    wait_for_widget(page, "shouting")
    page.page.go_back()
    page.page.locator(".models").wait_for()
    assert page.page.locator("main").is_hidden()
    page.page.go_back()
    wait_for_widget(page, "sentiment")
    assert page.page.locator(".models").is_hidden()


def test_typing_finds_a_model(page: Playground) -> None:
    show_all(page)
    find = page.field("Find a model")
    for typed, names in (
        ("generation", ["gpt2", "gpt2_vllm"]),
        ("Mask bert", ["bert", LATE]),  # the absent model has the task, and no such name
        ("capitals", ["bert"]),
        ("shout", ["gpt2_vllm"]),
        ("nothing", []),
        ("", CARDS),
    ):
        find.fill(typed)
        assert page.page.locator(".models h2:visible").all_inner_texts() == names
    assert page.page.locator(".find [role=status]").inner_text() == ""
    find.fill("sequence")
    assert page.page.locator(".find [role=status]").inner_text() == "1 of 7 models"
    find.press("Enter")
    wait_for_widget(page, "sentiment")


EVERY_TASK = {task: entry(task, model) for task, model in MODELS.items()}
EVERY_TASK["feature_extraction"] |= {"model_name": "minibert_tokens", "predictor_model": "minibert_mean"}


@pytest.fixture(scope="module")
def every_task(start: Start) -> Service:
    """A service of a model for each task, as of the demo with --task=all."""
    return start(list(EVERY_TASK.values()))


@pytest.fixture(scope="module")
def short_texts(start: Start) -> Service:
    """A service of a model for each task that refuses every example."""
    return start(list(EVERY_TASK.values()), "--max_text_length=9")


@pytest.mark.parametrize("view", VIEWS)
def test_the_overview_of_every_task_is_for_everybody(
    page_of: Open, every_task: Service, view: str, request: pytest.FixtureRequest
) -> None:
    page = page_of(every_task, view)
    show_all(page)
    page.page.wait_for_load_state("networkidle")
    drawn = page.page.evaluate("[...document.querySelectorAll('.picture use')].map((use) => use.getBBox().width)")
    assert len(drawn) == len(MODELS) and min(drawn) > 50, "every picture is there"
    for _ in range(3):  # the key, the field, the first card
        page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.textContent") == "bert"
    assert page.page.evaluate("document.documentElement.scrollWidth") == VIEWS[view]["viewport"]["width"]
    if folder := request.config.getoption("--pictures"):
        page.picture(Path(folder) / f"playground-overview-{view}.webp")
    assert page.serious_findings() == [] and page.broken_words() == []


def test_the_chooser_lists_models_with_tasks_and_readiness(page: Playground) -> None:
    page.open(BERT)
    assert page.page.locator("#model option").all_text_contents() == OPTIONS
    assert page.field("Model").input_value() == "bert"


def test_the_chosen_model_answers(page: Playground) -> None:
    page.open(BERT)
    assert page.run() == "paris, 99.8 %"
    choose(page, "sentiment")
    assert query(page) == "?model=sentiment"
    assert page.page.title() == "sentiment · sequence classification"
    assert page.out("li") == [] and page.page.locator("#times").inner_text() == ""
    assert page.run() == "POSITIVE, 97.3 %"
    assert "/v1/models/sentiment:predict" in page.code("curl")
    choose(page, "gpt2")
    page.field("Temperature").fill("0")
    assert page.page.locator("#run").inner_text() == "Send"
    assert page.run() == "DoneThe capital of france is paris."
    choose(page, "bert")
    assert page.page.locator("#run").inner_text() == "Run"
    assert page.page.locator(".field").count() == 3
    assert page.run() == "paris, 99.8 %"


def test_a_reload_keeps_the_model(page: Playground) -> None:
    page.open(BERT)
    choose(page, "sentiment")
    page.page.reload()
    page.page.locator("#run").wait_for()
    assert page.field("Model").input_value() == "sentiment"
    assert page.run() == "POSITIVE, 97.3 %"


def test_back_shows_the_model_before_with_its_input(page: Playground) -> None:
    page.open(BERT)
    page.field("Text").fill("The capital of italy is [MASK].")
    choose(page, "sentiment")
    page.page.go_back()
    wait_for_widget(page, "bert")
    assert page.field("Model").input_value() == "bert"
    assert page.run().startswith("rome")


def test_a_link_holds_the_model_and_the_input(page: Playground, page_of: Open) -> None:
    page.open("/playground?model=sentiment")
    page.field("Text").fill("The hotel was awful.")
    page.page.get_by_role("button", name="Copy link").click()
    link = page.page.url.removeprefix(page.service.url)
    assert link.startswith("/playground?model=sentiment#")
    other = page_of(page.service).open(link)
    assert other.field("Model").input_value() == "sentiment"
    assert other.field("Text").input_value() == "The hotel was awful."
    assert other.run().startswith("NEGATIVE")


def test_a_link_of_a_single_model_is_valid(page: Playground, playground: Open) -> None:
    """To the first model; and the link to one of several is valid where there is no choice."""
    single = playground("fill_mask").open("/playground?model=sentiment")
    assert single.page.locator("#chooser").is_hidden()
    single.field("Text").fill("The capital of italy is [MASK].")
    single.page.get_by_role("button", name="Copy link").click()
    fragment = single.page.evaluate("location.hash")
    page.open(f"/playground{fragment}")
    assert page.field("Model").input_value() == "bert"
    assert page.run().startswith("rome")


def test_an_alias_leads_to_its_model(page: Playground) -> None:
    page.open("/playground?model=capitals")
    assert page.field("Model").input_value() == "bert"


def test_an_unknown_model_is_named(page: Playground) -> None:
    page.page.goto(f"{page.service.url}/playground?model=nosuch")
    page.page.get_by_text("There is no model nosuch.").wait_for()
    assert page.page.locator("main").is_hidden() and page.page.locator("#chooser").is_hidden()
    page.page.wait_for_timeout(6000)  # the overview has looked again
    assert page.page.get_by_text("There is no model nosuch.").is_visible()
    page.page.get_by_role("link", name="sentiment", exact=True).click()
    assert page.run() == "POSITIVE, 97.3 %"


def test_one_model_with_an_alias_has_no_chooser(start: Start, page_of: Open) -> None:
    page = page_of(start(ENTRIES[:1])).open("/playground?model=nosuch")
    assert page.page.locator("#chooser").is_hidden()
    assert page.run() == "paris, 99.8 %"
    page.page.get_by_role("button", name="Copy link").click()
    assert "#" in page.page.url


def test_an_adapter_is_chosen_like_a_model(page: Playground) -> None:
    page.open("/playground?model=shouting")
    assert page.field("Model").input_value() == "shouting"
    assert page.page.title() == "shouting · text generation"
    assert '"model": "shouting"' in page.code("curl")
    answer = page.run()
    assert "PARIS" in answer, page.error()


def test_a_generation_ends_when_another_model_is_chosen(page: Playground) -> None:
    page.open("/playground?model=gpt2_vllm")
    page.page.get_by_text("Completion", exact=True).click()
    page.field("Prompt").fill("Slowly: The capital of france is")  # the model takes its time for this
    page.field("New tokens at most").fill("200")
    page.page.get_by_text("More sampling").click()
    page.field("Go on after its end").check()
    page.page.locator("#run").click()
    page.page.locator("#out .answer:not(:empty)").wait_for()
    choose(page, "bert")
    assert page.page.locator("#stop").is_hidden()
    assert page.run() == "paris, 99.8 %"
    assert page.page.locator("#out .answer").count() == 0
    page.page.wait_for_timeout(500)
    assert page.page.locator("#status").inner_text() == "paris, 99.8 %"


def test_a_model_that_is_not_ready_says_why(page: Playground) -> None:
    page.open(BERT)
    choose(page, ABSENT)
    about = page.page.locator("#about")
    about.get_by_text("is not ready").wait_for()
    assert ABSENT in about.inner_text()
    assert page.page.locator("main").is_hidden() and page.page.locator("#link").is_hidden()
    assert page.serious_findings() == [] and page.broken_words() == []
    choose(page, "sentiment")
    assert page.run() == "POSITIVE, 97.3 %"


def test_a_model_is_tried_again_until_it_is_ready(
    page: Playground, page_of: Open, serve: Serve, service: Service
) -> None:
    second, overview = page_of(service).open(BERT), page_of(service)
    show_all(overview)
    assert overview.page.locator("#about").inner_text() == "7 models2 not ready"
    overview.field("Find a model").fill("bert")
    card(overview, LATE).get_by_role("link").focus()
    assert "not ready" in card(overview, LATE).inner_text()
    page.page.goto(f"{service.url}/playground?model={LATE}")
    page.page.get_by_text("is not ready").wait_for()
    serve.load(LATE)
    page.page.locator("#run").wait_for()
    assert page.run().startswith("paris")
    second.page.locator("#model option", has_text=LATE).filter(has_not_text="not ready").wait_for(state="attached")
    assert second.page.locator("h1").inner_text() == "bert"
    card(overview, LATE).filter(has_not_text="not ready").wait_for()
    assert overview.page.evaluate("document.activeElement.textContent") == LATE, "the focus stays"
    assert overview.field("Find a model").input_value() == "bert"
    assert overview.page.locator("#about").inner_text() == "7 models1 not ready"


@pytest.mark.parametrize("view", VIEWS)
def test_the_chooser_is_for_everybody(page_of: Open, service: Service, view: str) -> None:
    page = page_of(service, view).open(BERT)
    chooser = page.field("Model")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.id") == "all"
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.id") == "model"
    page.page.keyboard.press("s")
    page.page.keyboard.press("Enter")
    wait_for_widget(page, "sentiment")
    assert page.page.evaluate("document.activeElement.id") == "model"
    assert chooser.input_value() == "sentiment"
    page.page.locator("#token-list li").first.wait_for()
    assert page.page.evaluate("document.documentElement.scrollWidth") == VIEWS[view]["viewport"]["width"]
    assert page.serious_findings() == [] and page.broken_words() == []


@pytest.mark.parametrize("task", [task for task in MODELS if task != "fill_mask"])
def test_every_widget_shows_an_error(page_of: Open, short_texts: Service, task: str) -> None:
    page = page_of(short_texts).open(f"/playground?model={EVERY_TASK[task]['model_name']}")
    assert page.run() == ""
    status = "400" if task in ("text_generation", "text2text_generation") else "413"  # OpenAI's status of a long text
    assert page.error().startswith(f"{status} ") and "at most 9" in page.error()
    assert page.out(":is(li, mark, td, .token)") == []
    page.page.wait_for_load_state("networkidle")  # the tokens are refused too, perhaps later
    assert page.console and all("413" in line or status in line for line in page.console)  # the browser's own notes
    page.console.clear()
