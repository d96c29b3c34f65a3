"""Calls of tools in what a model writes, whole and in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.tools import ToolCall, ToolCallParser

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
WEATHER = ToolCall("weather", '{"city": "Zürich"}')
BROKEN = '<tool_call>{"name": "weather", "arguments"</tool_call>'


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """A whole text's content and its calls."""
    parser = ToolCallParser()
    content, calls = parser.push(text)
    rest, more = parser.flush()
    return content + rest, calls + more


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        (" Hello \n", " Hello \n", []),
        ("\n", "\n", []),
        (ONE, "", [WEATHER]),
        (f"\n{ONE}\n{ONE}\n", "", [WEATHER, WEATHER]),
        (f"Let me see.\n\n{ONE}\n", "Let me see.", [WEATHER]),
        (f"a {ONE} b\n", "a b", [WEATHER]),
        ('<tool_call>{"name": "now"}</tool_call>', "", [ToolCall("now", "{}")]),
        ('<tool_call>{"name": "now", "arguments": {}}', "", [ToolCall("now", "{}")]),
        (BROKEN, BROKEN, []),
        (f"{BROKEN}\n{ONE}", BROKEN, [WEATHER]),
        ("<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
        ('<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
        ('<tool_call>{"name": "x", "arguments": "y"}</tool_call>',) * 2 + ([],),
        ("<tool_call>" + "[" * 100_000,) * 2 + ([],),
        ('<tool_call>{"name": "x", "arguments": {"y": "\\ud83d"}}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "x", "arguments": {"y": NaN}}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "x", "arguments": {"y": 1e999}}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "x", "arguments": {"y": "\\ud83d\\ude00"}}', "", [ToolCall("x", '{"y": "😀"}')]),
        ("a < b <tool <tool_cal", "a < b <tool <tool_cal", []),
        ("</tool_call>", "</tool_call>", []),
    ],
)
def test_whole_texts(text: str, content: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == (content, calls)


parts = st.sampled_from([ONE, BROKEN, "<tool_call>", "</tool_call>", "<tool", " ", "\n", "text", "<", '{"name": "f"}'])


@given(parts=st.lists(parts, max_size=12), cuts=st.lists(st.integers(0, 500), max_size=20))
def test_pieces_say_what_the_whole_does(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parser, content, calls = ToolCallParser(), "", []
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        more, found = parser.push(text[start:end])
        content += more
        calls += found
    more, found = parser.flush()
    assert (content + more, calls + found) == parse_tool_calls(text)


def test_what_can_not_be_a_call_is_not_held_back() -> None:
    parser = ToolCallParser()
    assert parser.push("one <tool") == ("one", [])
    assert parser.push("box> two") == (" <toolbox> two", [])
    assert parser.push("<tool_call>") == ("", [])
    assert parser.push('{"name": "now"}</tool_') == ("", [])
    assert parser.push("call>") == ("", [ToolCall("now", "{}")])
