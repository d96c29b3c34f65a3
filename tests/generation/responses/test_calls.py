"""A call is never lost in silence, and never changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_transformer.generation.responses.template import compile_template
from tests.generation.responses.answers import HERMES, PROGRAMS, cuttings, read


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


READ = [
    # what an earlier version lost or changed
    pytest.param(
        '{"name": "weather", "arguments": {"city": "a </tool_call> b"}}',
        {"city": "a </tool_call> b"},
        id="end in string",
    ),
    pytest.param('{"name": "weather", "parameters": {"city": "Paris"}}', {"city": "Paris"}, id="parameters"),
    pytest.param('{"name": "weather", "arguments": {"city": "Pa\nris"}}', {"city": "Pa\nris"}, id="line break"),
    pytest.param('{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', {"city": "Paris"}, id="json text"),
    # others of their kind
    pytest.param(
        '{"name": "weather", "arguments": {"city": "<tool_call>{</tool_call>"}}',
        {"city": "<tool_call>{</tool_call>"},
        id="call in string",
    ),
    pytest.param('{"name": "weather", "arguments": {"</tool_call>": 1}}', {"</tool_call>": 1}, id="end in key"),
    pytest.param(
        '{"name": "weather", "arguments": {"city": "\\"</tool_call>"}}', {"city": '"</tool_call>'}, id="quote"
    ),
    pytest.param('{"name": "weather", "arguments": {"city": "\\\\"}}', {"city": "\\"}, id="backslash at the end"),
    pytest.param('{"name": "weather", "arguments": {"city": "a\tb"}}', {"city": "a\tb"}, id="tab in string"),
    pytest.param('{"name": "weather", "arguments": {"city": "\\d+"}}', {"city": "\\d+"}, id="no escape"),
    pytest.param('{"name": "weather", "arguments": {"city": "it\\\'s"}}', {"city": "it's"}, id="escaped apostrophe"),
    pytest.param('{"name": "weather", "arguments": {"city": "\\u00e9\\u12"}}', {"city": "é\\u12"}, id="half an escape"),
    pytest.param('{"arguments": {"city": "Paris"}, "name": "weather"}', {"city": "Paris"}, id="arguments first"),
    pytest.param('{"arguments": {"days": "3"}, "name": "weather"}', {"days": 3}, id="arguments first, cast"),
    pytest.param('{"id": "c1", "name": "weather", "arguments": {}, "type": "function"}', {}, id="other members"),
    pytest.param('{"name": "weather", "arguments": {"city": "x"}', {"city": "x"}, id="last bracket missing"),
    pytest.param('{"name": "weather", "arguments": {"city": "x",},}', {"city": "x"}, id="commas before brackets"),
    pytest.param('{"name": "weather", "arguments": {"a": True, "b": None}}', {"a": True, "b": None}, id="constants"),
    pytest.param('{"name": "weather", "arguments": {"days": "7"}}', {"days": 7}, id="cast by the schema"),
    pytest.param('{"name": "weather", "arguments": {"city": "7"}}', {"city": "7"}, id="not cast by the schema"),
    pytest.param('{"name": "weather", "arguments": {"days": "soon"}}', {"days": "soon"}, id="no number"),
    pytest.param('{"name": "weather", "arguments": ""}', {}, id="empty arguments"),
    pytest.param('{"name": "weather", "arguments": null}', {}, id="null"),
    pytest.param('{"name": "weather"}', {}, id="no arguments"),
    pytest.param('[{"name": "weather", "arguments": {"city": "x"}}]', {"city": "x"}, id="list of one"),
]


@pytest.mark.parametrize(("body", "arguments"), READ)
def test_a_call_is_read(body: str, arguments: Any) -> None:
    whole = read(HERMES, call(body))
    assert [(name, json.loads(text)) for name, text in whole.calls] == [("weather", arguments)]
    assert (whole.complete, whole.content, whole.unreadable) == ([True], "", 0)
    for pieces in cuttings(call(body)):
        assert read(HERMES, call(body), pieces=pieces) == whole


KEPT = [
    pytest.param(call('{"name": "weathr", "arguments": {"city": "Paris"}}'), id="no tool of the request"),
    pytest.param(call('{"name": "weather", "input": {"city": "Paris"}}'), id="unknown member for arguments"),
    pytest.param(call('{"function": "weather", "arguments": {"city": "Paris"}}'), id="no name"),
    pytest.param(call('{"name": ["weather"], "arguments": {}}'), id="name is no string"),
    pytest.param(call('{"name": "weather", "arguments": ["Paris"]}'), id="arguments are a list"),
    pytest.param(call('{"name": "weather", "arguments": "Paris"}'), id="arguments are a text"),
    pytest.param(call('{"name": "weather", "arguments": 7}'), id="arguments are a number"),
    pytest.param(call("weather(Paris)"), id="no json"),
    pytest.param(call("'weather'"), id="apostrophes"),
    pytest.param(call(""), id="empty"),
    pytest.param('<tool_call>{"name": "weather", "argum', id="cut before the arguments"),
    pytest.param("<tool_call", id="cut in the delimiter"),
    pytest.param("a <tool_call> b </tool_call> c", id="mentioned in prose"),
    pytest.param("<tool_call><tool_call>", id="twice"),
]


@pytest.mark.parametrize("text", KEPT)
def test_a_call_that_can_not_be_read_is_content(text: str) -> None:
    whole = read(HERMES, text)
    assert (whole.content, whole.calls) == (text, [])
    for pieces in cuttings(text):
        assert read(HERMES, text, pieces=pieces) == whole


GOOD = call('{"name": "weather", "arguments": {"city": "Paris"}}')


@pytest.mark.parametrize("text", KEPT[:10])
def test_a_call_after_an_unreadable_one_is_read(text: str) -> None:
    answer = read(HERMES, f"{text}\n{GOOD}")
    assert answer.calls == [("weather", '{"city": "Paris"}')]
    assert (answer.content, answer.unreadable) == (text, 1)


def test_an_unclosed_string_hides_no_later_call() -> None:
    answer = read(HERMES, '<tool_call>{"name": "weather</tool_call>\n' + GOOD)
    assert answer.calls == [("weather", '{"city": "Paris"}')]
    assert answer.content == '<tool_call>{"name": "weather</tool_call>'


def test_an_error_within_arguments_leaves_the_call_incomplete_and_the_rest_visible() -> None:
    answer = read(HERMES, call('{"name": "weather", "arguments": {"city": "Paris", "days": x7}}') + " done")
    assert answer.calls == [("weather", '{"city": "Paris", "days": ')]
    assert (answer.complete, answer.unreadable) == ([False], 1)
    assert answer.content == "x7}}\n</tool_call> done"


def test_the_first_calls_of_a_list_stand_when_a_later_one_fails() -> None:
    text = '<|tool_call|>[{"name": "now", "arguments": {}}, {"name": "weathr", "arguments": {}}]'
    answer = read(PROGRAMS["granite3"], text)
    assert answer.calls == [("now", "{}")]
    assert answer.content == ', {"name": "weathr", "arguments": {}}]'


def test_numbers_stay_as_they_are_written() -> None:
    numbers = '{"a": 12345678901234567890123, "b": 0.1000000000000000055, "c": 1e400, "d": -0.0}'
    answer = read(HERMES, call(f'{{"name": "make", "arguments": {numbers}}}'))
    assert answer.calls == [("make", numbers)]


def test_lone_surrogates_stay_escaped() -> None:
    answer = read(HERMES, call('{"name": "make", "arguments": {"text": "\\ud800", "\\udc00": "x"}}'))
    assert answer.calls[0][1].encode() == b'{"text": "\\ud800", "\\udc00": "x"}'


def test_without_tools_calls_are_content() -> None:
    answer = read(HERMES, f"Hi.\n{GOOD}", tools={})
    assert (answer.content, answer.calls, answer.unreadable) == (f"Hi.\n{GOOD}", [], 0)


def test_a_model_that_forgets_to_end_its_reasoning_calls_all_the_same() -> None:
    answer = read(HERMES, f"<think>\nI need the weather.\n{GOOD}")
    assert (answer.reasoning, answer.calls) == ("I need the weather.", [("weather", '{"city": "Paris"}')])
    assert read(HERMES, "<think>\nUse <tool_call> tags.\n</think>\nHi").reasoning == "Use <tool_call> tags."


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('<tool_call>\n<function=weather>\n{"city": "Paris"}\n</function>\n</tool_call>', id="json"),
        pytest.param("<tool_call>\n<function=weather>\nParis\n</function>\n</tool_call>", id="text"),
    ],
)
def test_text_between_tags_does_not_become_a_call_without_arguments(text: str) -> None:
    answer = read(PROGRAMS["qwen3_coder"], text)
    assert (answer.content, answer.calls) == (text, [])


def test_indentation_and_brackets_of_values_stay() -> None:
    code = "  def f():\n\n    return '</div>'\n"
    text = f"<tool_call>\n<function=make>\n<parameter=text>\n{code}\n</parameter>\n</function>\n</tool_call>"
    assert json.loads(read(PROGRAMS["qwen3_coder"], text).calls[0][1]) == {"text": code}


def test_a_json_answer_stays_content() -> None:
    for text in ('{"city": "Paris", "days": 3}', '{"name": "Bob", "age": 7}', '[{"name": "x"}]', "[f(x)]"):
        for family in ("llama3_json", "llama4", "phi4_functools"):
            assert read(PROGRAMS[family], text).content == text


def test_a_transform_that_is_not_read_in_parts_calls_at_the_end_of_its_region() -> None:
    function = {"name": "{content.tool.name}", "arguments": "{content.with}"}
    template = {
        "start_anchor": "A:",
        "fields": {
            "tool_calls": {
                "open": "<c>",
                "close": "</c>",
                "content": "json",
                "repeats": True,
                "transform": {"function": function},
            },
            "content": {},
        },
    }
    program = compile_template(template, "nested")
    answer = read(program, '<c>{"tool": {"name": "weather"}, "with": {"city": "</c>"}}</c> <c>{}</c>')
    assert answer.calls == [("weather", '{"city": "</c>"}')]
    assert (answer.content, answer.unreadable) == ("<c>{}</c>", 1)
