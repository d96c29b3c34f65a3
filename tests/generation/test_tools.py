"""Tool calls in generated text, whole and in chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.tools import ForcedCallParser, ToolCall, ToolCallParser
from tests.generation.scripted import chunks

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
WEATHER = ToolCall("weather", '{"city": "Zürich"}')
BROKEN = '<tool_call>{"name": "weather", "arguments"</tool_call>'


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Content and calls of a whole text."""
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
def test_calls_and_content_of_whole_texts(text: str, content: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == (content, calls)


parts = st.sampled_from([ONE, BROKEN, "<tool_call>", "</tool_call>", "<tool", " ", "\n", "text", "<", '{"name": "f"}'])


@given(parts=st.lists(parts, max_size=12), cuts=st.lists(st.integers(0, 500), max_size=20))
def test_a_stream_has_the_calls_and_content_of_the_whole_text(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    parser = ToolCallParser()
    results = [*map(parser.push, chunks(text, cuts)), parser.flush()]
    content, calls = "".join(content for content, _ in results), [call for _, calls in results for call in calls]
    assert (content, calls) == parse_tool_calls(text)


def test_only_prefixes_of_calls_are_held_back() -> None:
    parser = ToolCallParser()
    assert parser.push("one <tool") == ("one", [])
    assert parser.push("box> two") == (" <toolbox> two", [])
    assert parser.push("<tool_call>") == ("", [])
    assert parser.push('{"name": "now"}</tool_') == ("", [])
    assert parser.push("call>") == ("", [ToolCall("now", "{}")])


@pytest.mark.parametrize("text", [" " * 20_000 + "x", "[" + " " * 20_000 + "x", '[{"name": "' + "a" * 20_000])
def test_long_texts_that_are_no_call_are_read_in_linear_time(text: str) -> None:
    parser = ForcedCallParser("")
    assert parser.push(text) == ("", [])
    assert parser.flush() == (text, [])


def test_white_space_after_a_call_is_read_in_linear_time() -> None:
    parser, rest = ForcedCallParser(""), " " * 20_000 + "x"
    _, pieces = parser.push('[{"name": "a", "arguments": {}' + rest)
    assert [(piece.name, piece.arguments) for piece in pieces] == [("a", ""), (None, "{}")]
    assert parser.flush() == (rest, [])
