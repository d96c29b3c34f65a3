"""Untrusted templates and texts: invalid templates, patterns that backtrack, time that is linear in the text."""

from __future__ import annotations

import logging
from itertools import pairwise
from time import thread_time
from typing import Any, Final

import pytest

from hf_transformer.generation.responses.contents import tool_types
from hf_transformer.generation.responses.delimiters import LAST_WINDOWS, MAX_DELIMITER, SEARCH_SECONDS
from hf_transformer.generation.responses.parser import ResponseParser
from hf_transformer.generation.responses.template import MAX_TIMEOUTS, TemplateError, compile_template
from tests.generation.responses.answers import HERMES, PROGRAMS, TYPES, joined, read


def template(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "A:", "fields": {"content": {}, **fields}}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param([], "expected an object, got a list", id="no object"),
        pytest.param({"version": 2}, "version: expected 1, got 2", id="version"),
        pytest.param({**template(), "x": 1}, "x: expected one of version", id="unknown key"),
        pytest.param({"fields": {"content": {}}}, "expected start_anchor", id="no anchor"),
        pytest.param({"start_anchor": "A", "fields": {}}, "fields: expected an object with 1 to", id="no fields"),
        pytest.param(template(a={}), "at most one field without open", id="two implicit fields"),
        pytest.param(template(a={"open": "x", "open_pattern": "y"}), "expected open or open_pattern", id="both"),
        pytest.param(template(a={"open": ""}), "fields.a.open: expected a string", id="empty"),
        pytest.param(template(a={"open": []}), "fields.a.open: expected a string", id="empty list"),
        pytest.param(template(a={"open_pattern": "("}), "fields.a.open_pattern: expected a reg", id="pattern"),
        pytest.param(template(a={"open": "x", "content": "yaml"}), "fields.a.content: expected one of", id="content"),
        pytest.param(template(a={"open": "x", "colour": 1}), "fields.a.colour: expected one of", id="field key"),
        pytest.param(template(a={"open": "x", "join": ","}), "fields.a.join", id="join without repeats"),
        pytest.param(template(a={"open": "x", "transform_each": True}), "transform_each", id="no transform"),
        pytest.param(template(a={"open_pattern": "(?P<n>x)"}), "a transform that uses the groups n", id="group"),
        pytest.param(template(a={"open": "x", "transform": "a {content}"}), "fields.a.transform", id="placeholder"),
        pytest.param(template(a={"open": "x", "content": "xml-inline"}), "tag_pattern: expected a pattern", id="tags"),
        pytest.param(template(a={"open": "x" * 5000}), "at most 4000 characters", id="long"),
    ],
)
def test_an_invalid_template_names_the_field(value: Any, problem: str) -> None:
    with pytest.raises(TemplateError) as error:
        compile_template(value, "test")
    assert problem in str(error.value)


def test_a_pattern_that_backtracks_costs_its_model_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    program = compile_template(template(thinking={"open_pattern": "(a+)+b", "close": "x"}), "slow")
    began = thread_time()
    with caplog.at_level(logging.ERROR):
        for _ in range(2 * MAX_TIMEOUTS):
            answer = read(program, "Ha" + "a" * 500 + "!", pieces=["Ha", "a" * 500, "!"])
            assert answer.content == "Ha" + "a" * 500 + "!"
    assert thread_time() - began < 100 * MAX_TIMEOUTS * SEARCH_SECONDS
    assert not program.health.is_good
    assert len(caplog.records) == 1 and "slow" in caplog.text
    assert read(HERMES, "<think>x</think>y").reasoning == "x", "other models are not affected"


@pytest.mark.parametrize("anchor", [{"start_anchor": ["A:", "BBB:"]}, {"start_anchor_pattern": "A:|B+:"}], ids=str)
def test_the_last_anchor_of_a_long_prompt_is_found(anchor: dict[str, Any]) -> None:
    program = compile_template({**anchor, "fields": {"content": {}}}, "long")
    for after in (0, 1, *(window + shift for window in (*LAST_WINDOWS[:-1], 300_000) for shift in (-3, -1, 0, 1))):
        assert program.after_anchor("A:BBB:" + "x" * after) == "x" * after, after
        assert program.after_anchor("BBB:" + "y" * 100_000 + "A:" + "x" * after) == "x" * after, after
    assert program.after_anchor("x" * 300_000) == ""


def test_a_start_anchor_that_backtracks_costs_its_model_a_bounded_time() -> None:
    program = compile_template({"start_anchor_pattern": "(a+)+b", "fields": {"content": {}}}, "slow")
    began = thread_time()
    for _ in range(2 * MAX_TIMEOUTS):
        parser = ResponseParser(program, "a" * 500_000)
        assert joined(parser.push("Ha")).content == "Ha"
    assert thread_time() - began < 10 * MAX_TIMEOUTS * SEARCH_SECONDS
    assert not program.health.is_good


def test_a_delimiter_that_never_ends_does_not_hold_the_text() -> None:
    program = compile_template(template(thinking={"open_pattern": "<t[^>]*>", "close": "</t>"}), "open")
    parser = ResponseParser(program)
    shown = joined(parser.push("<t" + "x" * 5000)).content
    assert len(shown) >= 5002 - MAX_DELIMITER - 256


def seconds(text: str, size: int, family: str = "qwen3") -> float:
    best = 9.0
    for _ in range(3):
        parser = ResponseParser(PROGRAMS[family], tools=TYPES)
        began = thread_time()
        for start in range(0, len(text), size):
            parser.push(text[start : start + size])
        parser.flush()
        best = min(best, thread_time() - began)
    return best


CALL: Final = '<tool_call>{"name": "make", "arguments": {"text": "'
HOSTILE: Final = {
    "prose": ("word " * 4, "qwen3"),
    "white space": (" \n" * 10, "qwen3"),
    "beginnings of a delimiter": ("<tool_cal ", "qwen3"),
    "unreadable calls": ("<tool_call>{'", "qwen3"),
    "calls in an unclosed string": ('<tool_call>{"</tool_call>', "qwen3"),
    "alternating quotes": ('<tool_call>{"k":1,":1,', "qwen3"),
    "nested lists": ("[" * 20, "qwen3"),
    "one long string": (CALL + "x" * 100, "qwen3"),
    "arguments before the name": ('<tool_call>{"arguments": {"a": ["' + "x" * 40, "qwen3"),
    "unclosed tags": ("<tool_call>\n<function=weather>\n<parameter=city>\n", "qwen3_coder"),
    "harmony": ("<|start|>assistant<|channel|>", "gpt_oss"),
    "calls of Python": ("[weather(city='", "pythonic"),
    "objects": ('{"name": {"name": ', "llama3_json"),
}
SLOW: Final = ("objects", "unreadable calls")
"""Texts that take 20 to 70 µs per character, since each one begins an object or a call."""


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(4, id="pieces"), pytest.param(10**9, id="whole")])
@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear_in_the_text(name: str, size: int) -> None:
    unit, family = HOSTILE[name]
    longest = 16_000 if name in SLOW else 32_000
    times = [seconds(unit * (length // len(unit)), size, family) for length in (longest // 8, longest)]
    assert times[1] < 8 * 3 * max(times[0], 0.002), times


@pytest.mark.slow
def test_a_long_argument_costs_the_same_at_its_end() -> None:
    pieces = ["word "] * 30_000
    parser = ResponseParser(HERMES, tools=TYPES)
    parser.push(CALL)
    marks = []
    for index, piece in enumerate(pieces):
        if index % 10_000 == 0:
            marks.append(thread_time())
        parser.push(piece)
    marks.append(thread_time())
    first, *_, last = [b - a for a, b in pairwise(marks)]
    assert last < 3 * first


def test_memory_of_a_parser_does_not_grow_with_a_streamed_text() -> None:
    parser = ResponseParser(HERMES, tools=TYPES)
    for opening in ("<think>", "</think>", CALL):
        parser.push(opening)
        for _ in range(1000):
            parser.push("some words more ")
        held = [value for value in vars(parser).values() if isinstance(value, str | list)]
        assert sum(map(len, held)) < 3000


def test_a_type_that_a_schema_repeats_is_tried_once() -> None:
    schema = {"type": ["object", "string"] * 1000, "anyOf": [{"type": "array"}, {"type": "object"}] * 1000}
    types = tool_types([{"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}])
    assert types == {"f": {"a": ("object", "string", "array")}}


NAMED: Final = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TAGS: Final = {"tag_pattern": "(?P<key>k*)(?P<value>.*?)(?=b)"}


@pytest.mark.parametrize("size", [1, 100], ids=["characters", "whole"])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param("thinking", {"open_pattern": "(?=a)", "close_pattern": "(?=a)"}, id="text"),
        pytest.param("tool_calls", {"open_pattern": r"(?P<name>\w*)", "transform": NAMED}, id="name"),
        pytest.param("tool_calls", {"open_pattern": r"(?=(?P<name>\w+))", "transform": NAMED}, id="look ahead"),
        pytest.param(
            "tool_calls",
            {"open_pattern": "<(?P<name>a)>", "transform": NAMED, "content": "xml-inline", "content_args": TAGS},
            id="tags",
        ),
    ],
)
def test_delimiters_that_match_nothing_end_and_hide_nothing(name: str, field: dict[str, Any], size: int) -> None:
    call = {"close": "}", "content": "json", "repeats": True}
    program = compile_template(template(**{name: {**(call if name == "tool_calls" else {}), **field}}), "none")
    text = "Say abc <a>bbb} a{}"
    parser = ResponseParser(program, tools={"a": {}})
    events = [event for start in range(0, len(text), size) for event in parser.push(text[start : start + size])]
    answer = joined([*events, *parser.flush()])
    shown = answer.content + "".join(arguments for _, arguments in answer.calls)
    assert "Say abc" in shown and "bbb" in shown


def test_an_error_within_a_call_shows_the_same_at_every_cut() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "a"\n</think>\n<tool_call>x'
    whole, cut = read(HERMES, text), read(HERMES, text, pieces=list(text))
    assert whole == cut
    assert whole.content == "<tool_call>x"
