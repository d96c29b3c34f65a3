"""A chat: the box, Markdown, stop, retry, edit, tools, structured output, on a desktop, in the dark and on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import VIEWS, Open, Playground
from tests.integration.conftest import Serve
from tests.support import families

SCRIPTED = """
const fetched = window.fetch;
window.asked = [];
window.fetch = (url, options) => {
  if (!String(url).endsWith("/completions")) return fetched(url, options);
  asked.push(JSON.parse(options.body));
  let stream;
  const body = new ReadableStream({ start: (controller) => { stream = controller; } });
  const send = (data) => stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(data)}\\n\\n`));
  window.feed = (delta, logprobs) => send({ choices: [{ index: 0, delta, logprobs, finish_reason: null }] });
  window.fail = (message) => send({ error: { message } });
  window.finish = (reason) => {
    send({ choices: [{ index: 0, delta: {}, finish_reason: reason }] });
    send({ choices: [], usage: { prompt_tokens: 9, completion_tokens: 42 } });
    stream.close();
  };
  options.signal.addEventListener("abort", () => stream.error(options.signal.reason));
  return Promise.resolve(new Response(body));
};
"""
"""Chats are answered by the test, piece by piece; all else by the service."""
LONG = (
    """# Sorting

Python has **two** ways, *both* `stable` and ***fast***. See [the docs](https://docs.python.org/3/ "Sorting").
A new line, snake_case_name and 2 * 3 * 4, ~~wrong~~ \\*plain\\*.

1. First
   - nested **one**
     1. deep
2. Second

   ```python
   def f(x):
       return "*x*"
   ```

> A quote
> > in a quote

| name | count |
|:--|--:|
| `sort` | 1<br>2 |
| a \\| b | 2 |

---
<https://example.com/a_b> or https://example.com/x?y=1.
"""
    + "\n\nA further paragraph of a long answer, which makes the conversation longer than the window." * 12
)
TAGS = {
    "h3": ["Sorting"],
    "strong": ["two", "fast", "one"],
    "em": ["both", "fast"],
    "p code": ["stable"],
    "td code": ["sort"],
    "del": ["wrong"],
    "ol > li > ul > li > ol > li": ["deep"],
    "figure pre": ['def f(x):\n    return "*x*"'],
    "figcaption": ["pythonCopy"],
    "blockquote blockquote": ["in a quote"],
    "th": ["name", "count"],
    "td": ["sort", "12", "a | b", "2"],
    "td.right": ["12", "2"],
    "hr": [""],
    "a": ["the docs", "https://example.com/a_b", "https://example.com/x?y=1"],
}
HOSTILE = [
    "<img src=x onerror=alert(1)><script>alert(1)</script><iframe src=//x></iframe><svg onload=alert(1)>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c]( java\tscript:alert(1)) [d](vbscript:x) [e](//evil)",
    "![a](data:image/png;base64,AAAA) [b](data:text/html,<script>alert(1)</script>) <javascript:alert(1)>",
    '![a](https://x.example/a.png) [b](https://x.example/"onclick="alert(1)) [c](https://x.example "t" onclick=x)',
    "[a](mailto:a@b.example) [[b](javascript:x)](https://x.example) [c](https://x.example\njavascript:x)",
    "| a |\n|--|\n| <img src=x onerror=alert(1)> [b](javascript:x) |\n\n# <b onclick=x>\n\n- <i>x</i>\n> <u>y</u>",
    "```<script>\n<script>alert(1)</script>\n``` \n~~~ html\n<script>never closed",
]
HUGE = {
    "fence": "```python\n" + "x = 1\n" * 16_000,
    "text": "A line of an answer.\n\n" * 4_700,
    "quotes": ">" * 100_000,
    "lists": "- " * 50_000,
    "nested lists": "\n".join(" " * (2 * depth) + "- x" for depth in range(300)),
    "brackets": "[" * 50_000 + "](" * 25_000,
    "marks": "*a _b **c __d ~~e " * 5_500,
    "backticks": " ".join("`" * length for length in range(1, 440)),
    "table": "|a" * 20_000 + "\n" + "|-" * 20_000 + "\n" + "|b" * 10_000,
    "short rows": "|a" * 15_000 + "\n" + "|-" * 15_000 + "\n" + "|\n" * 20_000,
    "rule": "- " * 50_000 + "x",
}

ENDS = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const box = (id) => document.getElementById(id).getBoundingClientRect();
  const ends = ["result", "composer", "form"].map((id) => [id, box(id).bottom + scrollY]);
  done({ ...Object.fromEntries(ends), request: box("request").top + scrollY });
})))"""
"""The end of each part of a chat, and where the request begins, from the top of the page."""


@pytest.fixture
def chat(playground: Open) -> Callable[..., Playground]:
    """Opens a chat that the test answers."""

    def make(view: str = "desktop", fragment: str = "") -> Playground:
        page = playground("text_generation", view=view)
        page.page.add_init_script(SCRIPTED)
        return page.open(f"/playground{fragment}")

    return make


def send(page: Playground, text: str) -> None:
    page.field("Message").fill(text)
    page.field("Message").press("Enter")
    page.page.locator("#stop").wait_for()


def feed(page: Playground, *pieces: str, **delta: Any) -> None:
    """Adds to the answer, and waits until it is shown."""
    page.page.evaluate(
        "deltas => { deltas.forEach((delta) => feed(delta)); return new Promise((done) => setTimeout(() => "
        "requestAnimationFrame(() => requestAnimationFrame(done)))); }",
        [{"content": piece} for piece in pieces] or [delta],
    )


def finish(page: Playground, reason: str = "stop") -> str:
    page.page.evaluate("reason => finish(reason)", reason)
    return page.finished()


def answer(page: Playground, question: str, *pieces: str) -> str:
    send(page, question)
    feed(page, *pieces)
    return finish(page)


def asked(page: Playground) -> Any:
    """The messages of the last request."""
    return page.page.evaluate("asked.at(-1).messages")


def button(page: Playground, name: str) -> Any:
    return page.page.get_by_role("button", name=name, exact=True)


@pytest.mark.parametrize("view", VIEWS)
def test_the_conversation_scrolls_above_its_box(chat: Callable[..., Playground], view: str) -> None:
    page = chat(view)
    assert page.page.locator("#out").inner_text() == "Press Send to see what the model says."
    assert answer(page, "How do I sort?", LONG).startswith("Done")
    flow, box, height = page.page.locator("#flow"), page.field("Message"), VIEWS[view]["viewport"]["height"]
    assert flow.evaluate("flow => flow.scrollHeight > flow.clientHeight + 100")
    for place in (0, 10_000):
        flow.evaluate("(flow, place) => { flow.scrollTop = place; }", place)
        where, last = box.bounding_box(), flow.bounding_box()
        assert where and last
        assert last["y"] + last["height"] <= where["y"] and where["y"] + where["height"] <= height
        assert page.page.locator("#run").bounding_box()["y"] < height
    assert page.page.evaluate("document.documentElement.scrollWidth") == VIEWS[view]["viewport"]["width"]
    assert not page.page.get_by_label("Temperature", exact=True).is_visible()
    assert page.serious_findings() == [] and page.broken_words() == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1440, 900)])
def test_the_chat_ends_where_its_settings_end_or_the_window(
    chat: Callable[..., Playground], width: int, height: int
) -> None:
    page = chat()
    page.page.set_viewport_size({"width": width, "height": height})
    folds = page.page.locator("#fields .fold > summary:visible")
    assert folds.count() == 3
    for message in ("", "Short.", LONG):
        if message:
            answer(page, "How do I sort?", message)
        for fold in (None, *range(3)):  # all closed, then one more open
            if fold is not None:
                folds.nth(fold).click()
            ends = page.page.evaluate(ENDS)
            assert ends["request"] - 20 < ends["result"] <= height, "the request follows the chat without a gap"
            assert ends["result"] - 25 < ends["composer"] < ends["result"], "the box is at the end"
            assert ends["form"] <= ends["result"] + 1
            assert ends["form"] - 1 <= ends["result"] or message == LONG
        last = page.field("Frequency penalty")
        last.focus()
        assert 0 < last.bounding_box()["y"] < height, "the settings scroll"
        for fold in range(3):
            folds.nth(fold).click()


def test_enter_sends_and_other_enters_do_not(chat: Callable[..., Playground]) -> None:
    page = chat()
    box = page.field("Message")
    box.fill("Two")
    box.press("Shift+Enter")
    box.press_sequentially("lines")
    box.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    assert box.input_value() == "Two\nlines" and page.page.evaluate("asked") == []
    box.press("Enter")
    page.page.locator("#stop").wait_for()
    assert asked(page) == [{"role": "user", "content": "Two\nlines"}]
    assert box.input_value() == "" and page.out(".user .bubble") == ["Two\nlines"]
    feed(page, "Yes")
    box.fill("Next")
    box.press("Enter")  # not in the middle of an answer
    assert finish(page) == "DoneYes"
    assert box.input_value() == "Next" and page.page.evaluate("asked.length") == 1
    box.fill("  ")
    box.press("Enter")
    page.page.get_by_text("Write a message first.").wait_for()
    assert page.page.evaluate("asked.length") == 1


def test_markdown_becomes_elements(chat: Callable[..., Playground]) -> None:
    page = chat()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page, "How do I sort?", *(LONG[at : at + 7] for at in range(0, len(LONG), 7)))
    assert {tag: page.out(f".markdown {tag}") for tag in TAGS} == TAGS
    links = page.page.locator(".markdown a").evaluate_all("links => links.map(({ href, rel }) => [href, rel])")
    assert links[0] == ["https://docs.python.org/3/", "noopener noreferrer"]
    assert "<" not in page.out(".markdown")[0]
    page.page.locator("figure").get_by_role("button", name="Copy").click()
    button(page, "Copied").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == 'def f(x):\n    return "*x*"'
    page.page.locator(".foot").get_by_role("button", name="Copy").click()
    page.page.locator(".foot").get_by_role("button", name="Copied").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == LONG


def test_no_html_comes_from_the_model(chat: Callable[..., Playground]) -> None:
    page = chat()
    answer(page, HOSTILE[0], *(f"{text}\n\n" for text in HOSTILE))
    elements = "#out :is(img, script, iframe, svg, b, i, u, object, embed, form, input, style, link)"
    assert page.page.locator(elements).count() == 0
    attributes = page.page.locator(".markdown *").evaluate_all("all => all.flatMap((one) => one.getAttributeNames())")
    assert set(attributes) <= {
        "class",
        "tabindex",
        "role",
        "aria-label",
        "href",
        "target",
        "rel",
        "type",
        "dir",
        "scope",
        "start",
    }
    links = page.page.locator("#out a").evaluate_all("links => links.map(({ href }) => href)")
    assert {link.split("%")[0] for link in links} == {
        "https://x.example/a.png",
        "https://x.example/",
        "mailto:a@b.example",
    }
    text = page.out(".markdown")[0]
    assert HOSTILE[0] in text and "[a](javascript:alert(1))" in text and "<script>never closed" in text


def test_answers_of_100_kilobytes_are_shown(chat: Callable[..., Playground]) -> None:
    """Whatever they are of, in a time and a depth of elements that browsers bear."""
    page = chat()
    depth = (
        "all => Math.max(...all.map((one) => { let at = 0; for (; one; one = one.parentElement) at++; return at; }))"
    )
    for name, text in HUGE.items():
        step = len(text) // 5 + 1
        answer(page, name, *(text[at : at + step] for at in range(0, len(text), step)))
        letters = set("".join(text.split())) - set(">-[](*_~|`x")
        assert letters <= set(page.out(".bubble.assistant")[0]), name
        assert page.page.locator("#out *").evaluate_all(depth) < 70, name
        assert page.error() == "", name
        button(page, "New chat").click()


def test_what_is_written_stays_while_more_comes(chat: Callable[..., Playground]) -> None:
    """Nothing flickers: blocks that are whole, and a block of code that grows, are the same elements."""
    page = chat()
    send(page, "Go on.")
    feed(page, "First.\n\nSecond", ".\n\n```sh\nls")
    page.page.evaluate("window.kept = [...document.querySelectorAll('.markdown > *')]")
    feed(page, " -l\npw", "d")
    same = "[...document.querySelectorAll('.markdown > *')].map((one, at) => one === kept[at])"
    assert page.page.evaluate(same) == [True, True, True]
    assert page.out(".markdown pre") == ["ls -l\npwd"]
    finish(page)
    assert page.page.evaluate(same) == [True, True, True]


def test_an_answer_is_stopped_and_asked_for_again(chat: Callable[..., Playground]) -> None:
    page = chat()
    answer(page, "One?", "First")
    send(page, "Two?")
    feed(page, "Sec")
    button(page, "Stop").click()
    assert page.finished() == "Stopped."
    assert page.out(".bubble") == ["One?", "First", "Two?", "Sec"]
    page.field("Message").fill("A draft")
    button(page, "Retry").last.click()
    page.page.locator("#stop").wait_for()
    assert [message["content"] for message in asked(page)] == ["One?", "First", "Two?"]
    feed(page, "Second")
    assert finish(page, "length") == "Cut off at the limitSecond"
    assert page.out(".bubble") == ["One?", "First", "Two?", "Second"]
    assert page.field("Message").input_value() == "A draft"
    button(page, "Retry").first.click()
    page.page.locator("#stop").wait_for()
    assert page.out(".user .bubble") == ["One?"]
    button(page, "Stop").click()
    assert page.finished() == "Stopped."
    assert page.out(".bubble") == ["One?"]
    button(page, "Retry").click()
    page.page.locator("#stop").wait_for()
    assert [message["content"] for message in asked(page)] == ["One?"]


def test_a_message_is_edited(chat: Callable[..., Playground]) -> None:
    page = chat()
    answer(page, "One?", "First")
    answer(page, "Two?", "Second")
    button(page, "Edit").first.click()
    button(page, "Cancel").click()
    assert page.out(".bubble") == ["One?", "First", "Two?", "Second"]
    button(page, "Edit").last.click()
    page.field("Message, edited").fill("Three?")
    page.field("Message, edited").press("Enter")
    page.page.locator("#stop").wait_for()
    assert [one["content"] for one in asked(page)] == ["One?", "First", "Three?"]
    feed(page, "Third")
    finish(page)
    assert page.out(".bubble") == ["One?", "First", "Three?", "Third"]


def test_a_failure_keeps_the_conversation(chat: Callable[..., Playground]) -> None:
    page = chat()
    answer(page, "One?", "First")
    send(page, "Two?")
    feed(page, "Sec")
    page.page.evaluate("fail('The model broke.')")
    assert page.finished() == "" and page.error() == "The model broke."
    assert page.out(".bubble") == ["One?", "First", "Two?", "Sec"]
    send(page, "Three?")
    assert page.error() == "" and len(asked(page)) == 5
    page.page.evaluate("fail('Again.')")
    page.finished()
    assert page.out(".bubble")[-1] == "Three?"
    page.page.locator("#run").click()  # the message that has no answer is sent again
    page.page.locator("#stop").wait_for()
    assert len(asked(page)) == 5 and asked(page)[-1]["content"] == "Three?"


def test_tools_are_called_and_answered(chat: Callable[..., Playground]) -> None:
    page = chat()
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "time")]
    page.field("Tools").fill(json.dumps(tools))
    page.field("Choice of a tool").select_option("required")
    send(page, "How is it in Paris?")
    assert page.page.evaluate("[asked[0].tools, asked[0].tool_choice]") == [tools, "required"]
    for index, name, arguments in ((0, "weather", '{"city": "Paris", "id": 12345678901234567890}'), (1, "time", "{}")):
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        feed(page, tool_calls=[call])
        for letter in (arguments[:9], arguments[9:]):
            feed(page, tool_calls=[{"index": index, "function": {"arguments": letter}}])
    assert finish(page, "tool_calls") == "DoneCalls weather,Calls time"
    assert page.out("article p:has(> code)") == ["Calls weather", "Calls time"]
    assert page.out("article figure pre") == ['{\n  "city": "Paris",\n  "id": 12345678901234567890\n}', "{}"]
    assert page.serious_findings() == [] and page.broken_words() == []
    page.field("Answer of weather").fill('{"degrees":21.50}')
    page.field("Answer of time").fill("noon")
    button(page, "Send answer").click()
    page.page.locator("#stop").wait_for()
    said = asked(page)
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "tool"]
    assert said[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris", "id": 12345678901234567890}'
    assert [said[at]["tool_call_id"] for at in (2, 3)] == ["call_0", "call_1"]
    feed(page, "It is warm.")
    assert finish(page) == "DoneIt is warm."
    assert page.out(".tool .bubble") == ['{\n  "degrees": 21.50\n}', "noon"]
    assert not button(page, "Send answer").is_visible()


def test_the_service_takes_a_call_and_its_answer(playground: Open) -> None:
    page = playground("text_generation").open()
    page.field("Temperature").fill("0")
    page.field("Tools").fill("[{")
    assert page.run() == ""
    assert page.error().startswith("400 tools: ") and "400" in page.console.pop()
    schema = {"type": "object", "properties": {"city": {"enum": ["paris"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    page.field("Tools").fill(json.dumps(tools))
    page.field("Choice of a tool").select_option("required")
    page.run()
    assert page.error() == "" and page.out("article p:has(> code)") == ["Calls weather"]
    assert [json.loads(call) for call in page.out("article figure pre")] == [{"city": "paris"}]
    page.field("Choice of a tool").select_option("none")
    page.field("Answer of weather").fill("sunny")
    page.field("Answer of weather").press("Enter")
    page.page.locator(".message.assistant").nth(1).locator(".foot").wait_for()
    page.finished()
    assert page.error() == "" and page.out(".tool .bubble") == ["sunny"]


def test_structured_output_says_if_it_is_json(chat: Callable[..., Playground]) -> None:
    page = chat()
    page.field("JSON schema").fill("{}")
    answer(page, "One?", '{"a":[1,2.0,{}],"b":', '{"c":"x, {y}: \\" z"}}')
    assert page.out(".bubble pre") == [
        '{\n  "a": [\n    1,\n    2.0,\n    {}\n  ],\n  "b": {\n    "c": "x, {y}: \\" z"\n  }\n}'
    ]
    answer(page, "Two?", '{"a": [1,')
    answer(page, "Three?", "")
    assert page.out(".assistant .foot .hint") == ["Valid JSON", "Not valid JSON", "Not valid JSON"]
    assert page.out(".bubble")[-1] == "The model returned no text."
    page.field("JSON schema").fill("")
    assert answer(page, "Four?", "") == "DoneThe model returned no text."
    assert page.out(".assistant .foot .hint")[-1] == ""


def test_reasoning_is_folded(chat: Callable[..., Playground]) -> None:
    page = chat()
    send(page, "One?")
    feed(page, reasoning_content="Let me ")
    feed(page, reasoning_content="think.")
    feed(page, "Yes.")
    finish(page)
    answer(page, "Two?", "<think>Hm", "m.</think>\n\nNo.")
    assert page.out(".message > details p") == ["", "Let me think.", "", "Hmm."]
    assert page.out(".bubble") == ["One?", "Yes.", "Two?", "No."]
    assert page.page.locator(".message > details:not([hidden])").count() == 2
    assert not page.page.get_by_text("Hmm.", exact=True).is_visible()


@pytest.mark.parametrize("name", families.NAMES)
def test_reasoning_and_calls_of_a_family(page_of: Open, serve: Serve, tmp_path: Path, name: str) -> None:
    flags = (*families.family_flags(name, tmp_path), "--enable_playground")
    page = page_of(serve(families.MODEL, "grpc-v2", *flags)).open()
    page.field("Tools").fill(json.dumps([families.TOOL]))
    page.field("Message").fill(families.QUESTION)
    page.run()
    assert page.error() == "" and page.out("article p:has(> code)") == ["Calls get_weather"]
    assert [json.loads(call) for call in page.out("article figure pre")] == [families.CALL[1]]
    page.field("Answer of get_weather").fill("sunny")
    page.field("Answer of get_weather").press("Enter")
    page.page.locator(".message.assistant").nth(1).locator(".foot").wait_for()
    page.finished()
    assert page.error() == "" and page.out(".assistant .bubble")[-1] == families.AFTER
    thoughts = [families.THOUGHT, families.SECOND_THOUGHT] if families.has_reasoning(name) else ["", ""]
    assert page.out(".assistant > details p") == thoughts
    assert not page.page.get_by_text(families.THOUGHT, exact=True).is_visible(), "it is folded"


def test_a_link_holds_the_conversation(chat: Callable[..., Playground]) -> None:
    page = chat()
    answer(page, "One?", "**First**")
    page.field("System").fill("Be brief.")
    page.field("Message").fill("A draft")
    button(page, "Copy link").click()
    linked = chat(fragment=page.page.evaluate("location.hash"))
    assert linked.out(".bubble") == ["One?", "First"] and linked.out("strong") == ["First"]
    assert linked.field("System").input_value() == "Be brief."
    assert answer(linked, "Two?", "Second") == "DoneSecond"
    assert [one["content"] for one in asked(linked)] == ["Be brief.", "One?", "**First**", "Two?"]
    button(linked, "New chat").click()
    assert linked.page.locator("#out").inner_text() == "Press Send to see what the model says."
    damaged = chat(fragment="#" + "eyJtZXNzYWdlcyI6IFsxXX0=")  # {"messages": [1]}
    assert "damaged" in str(damaged.page.locator("#status").text_content())
    assert answer(damaged, "One?", "First") == "DoneFirst"


def test_tokens_are_coloured_and_markdown_is_back(chat: Callable[..., Playground]) -> None:
    page = chat()
    colours = page.page.get_by_role("switch", name="Colour tokens by probability")
    colours.check()
    send(page, "One?")
    for token, chance in (("**", -0.1), ("A", -9.0), ("**", -0.5)):
        told = {"token": token, "logprob": chance, "top_logprobs": [{"token": " x", "logprob": -0.0001}]}
        page.page.evaluate("([delta, told]) => feed(delta, { content: [told] })", [{"content": token}, told])
    finish(page)
    assert page.out(".answer .token") == ["**", "A", "**"]
    assert "Probability of a token" in page.out(".legend")[0]
    page.page.locator(".answer .token").nth(1).click()
    assert page.out(".likeliest li") == ["␣x>99.9 %"]
    assert page.serious_findings() == [] and page.broken_words() == []
    colours.uncheck()
    assert page.out(".bubble strong") == ["A"] and page.out(".token") == []
    colours.check()
    assert page.out(".answer .token") == ["**", "A", "**"]


def test_a_screen_reader_finds_its_way(chat: Callable[..., Playground]) -> None:
    page = chat()
    said = answer(page, "One?", "## Title\n\n- a *[link](https://x.example)*\n\n```sh\nls `x`\n```\n\nx<br>y")
    assert said == "DoneTitle\na link\nls `x`\nx\ny", "as it is shown, not as it is written"
    tree = page.page.get_by_role("main").aria_snapshot()
    parts = (
        *(
            'heading "Chat" [level=2]',
            'status: "Done',
            'log "Chat"',
            'article "You"',
            'button "Edit"',
            'article "Assistant"',
        ),
        *('heading "Title" [level=4]', "listitem:", 'link "link"', 'button "Retry"'),
        *('textbox "Message"', 'button "Send"', 'heading "Settings" [level=2]', 'radio "Chat" [checked]'),
    )
    places = [tree.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)
    page.page.get_by_text("Completion", exact=True).click()
    tree = page.page.get_by_role("main").aria_snapshot()
    assert 'heading "Result" [level=2]' in tree and 'log "Chat"' not in tree and 'button "Run"' in tree
    assert tree.index('button "Run"') < tree.index('heading "Result"')
    assert page.page.evaluate("document.activeElement.value") == "Completion"
