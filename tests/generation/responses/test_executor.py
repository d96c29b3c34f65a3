"""Our executor of response templates against transformers', with templates that use everything of the format."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.responses.template import compile_template
from tests.generation.responses.answers import Answer, read
from tests.goldens.response_texts import TOOLS

TEMPLATES: Final[dict[str, dict[str, Any]]] = {
    "json": {
        "start_anchor": "A:",
        "defaults": {"role": "assistant", "data": []},
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "data": {"open": "<j>", "close": "</j>", "content": "json", "repeats": True},
            "content": {},
        },
    },
    "numbers": {
        "start_anchor_pattern": "A\\s?:",
        "fields": {
            "n": {"open": ["<n>", "<n>>"], "close": ["</n>", "\n"], "content": "int", "repeats": True},
            "f": {"open_pattern": r"\s*<f>", "close_pattern": r"</f>|$", "content": "float"},
            "b": {"open": "<b>", "close": "</b>", "content": "bool"},
            "content": {"close_pattern": r"\s*<end>", "content_args": {"strip": False}},
        },
    },
    "lines": {
        "start_anchor": "A:",
        "fields": {
            "kv": {
                "open_pattern": r"<kv(?P<name>\w*)>",
                "close_pattern": r"</kv(?P<last>\d?)>",
                "content": "kv-lines",
                "content_args": {"kv_sep": ":", "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                "transform": {"k": "{name}", "v": "{content}", "fixed": [1, "x"]},
                "repeats": True,
            },
            "thinking": {"open": "<think>", "close": "</think>", "repeats": True, "join": "|"},
            "content": {"repeats": True, "join": "\n"},
        },
    },
    "tags": {
        "start_anchor": "A:",
        "fields": {
            "x": {
                "open": "<x>",
                "close": "</x>",
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<p (?P<key>\w+)>\s*(?P<value>.*?)\s*</p>", "merge_duplicates": True},
            },
            "content": {"open": "<c>", "close": "</c>"},
        },
    },
    "dialect": {
        "start_anchor": ["A:", "B:"],
        "fields": {
            "l": {
                "open": "<l>",
                "close": "</l>",
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [["<|", "|>"]], "allow_non_json": True},
            },
            "content": {"optional": False},
        },
    },
    "calls": {
        "start_anchor": "A:",
        "fields": {
            "p": {
                "open": "<p>",
                "close": "</p>",
                "content": "python-call-list",
                "transform_each": True,
                "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}},
            },
            "content": {},
        },
    },
    "overlapping": {
        "start_anchor": "A:",
        "fields": {
            "thinking": {"open_pattern": "<th|<think>(?= )|k>", "close_pattern": r"</think>(?:\s*</b>)?|</"},
            "content": {"close_pattern": r"(?<=x)t|\bé\b"},
        },
    },
}
PARTS: Final = [
    *'<think> </think> <j> </j> [1,"x"] <n> <n>> </n> 7 <f> </f> 1.5 <b> </b> true <end> text é <kv> <kvab>'.split(),
    *"</kv> </kv1> k:v <x> </x> </p> <c> </c> <l> </l> {k:<|s|>} <| |> <p> [f(a=1),g(b='x')] < </ th".split(),
    *(" ", "\n", "<p a>", "<p b>", " 8 ", '"', '{"a":1}', 'a:"b"', '[make(count="3")]', "[]"),
]
TEXTS: Final = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
PROGRAMS: Final = {name: compile_template(template, name) for name, template in TEMPLATES.items()}


def theirs(template: dict[str, Any], text: str, prompt: str) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
    """Message and regions of transformers' executor. Raises ValueError or KeyError."""
    from transformers.utils.chat_parsing import ResponseParser

    parser = ResponseParser(template, prefix=prompt, tools=[*TOOLS])
    events = [*parser.initial_events, *parser.feed(text)]
    message, last = parser.finalize()
    regions: list[list[Any]] = []
    for event in [*events, *last]:
        if event["type"] == "region_open":
            regions.append([event["field"], "", None])
        elif event["type"] == "region_chunk":
            regions[-1][1] += event["text"]
        else:
            regions[-1][2] = event["value"]
    return message, [(name, body, value) for name, body, value in regions]


def has_literal(answer: Answer) -> bool:
    """Whether a tag's value contains the end of its region."""
    return any(name == "x" and "</x>" in text for name, text, _ in answer.regions)


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("name", TEMPLATES)
@given(data=st.data())
def test_the_message_is_that_of_transformers_at_every_way_of_cutting(name: str, data: st.DataObject) -> None:
    prompt, text = "A:" + data.draw(TEXTS.filter(lambda text: len(text) < 20)), data.draw(TEXTS)
    whole = read(PROGRAMS[name], text, prompt)
    assert read(PROGRAMS[name], text, prompt, pieces=list(text)) == whole
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(PROGRAMS[name], text, prompt, pieces=pieces) == whole
    if has_literal(whole):
        return
    try:
        message, regions = theirs(TEMPLATES[name], text, prompt)
    except (ValueError, KeyError):
        return
    assert (whole.message, whole.regions) == (message, regions)


@pytest.mark.slow
def test_transformers_templates_of_its_own_server() -> None:
    """The templates in transformers' server, for families whose checkpoints have none."""
    template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
        },
    }
    text = (
        "Hm.\n</think>\n\nLet me see.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>\n<|endoftext|>"
    )
    prompt = "<|im_start|>user\n<think>?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    program = compile_template(template, "qwen3_5")
    whole = read(program, text, prompt)
    assert whole.message == theirs(template, text, prompt)[0]
    assert (whole.reasoning, whole.content) == ("Hm.", "Let me see.")
    assert whole.calls == [("weather", '{"city": "Paris", "days": 3}')]
    assert read(program, text, prompt, pieces=list(text)) == whole


def test_a_prompt_without_the_anchor_is_no_part_of_the_answer() -> None:
    answer = read(PROGRAMS["json"], "Hi", "<think> of a user")
    assert (answer.content, answer.reasoning) == ("Hi", "")


def test_the_last_anchor_counts() -> None:
    answer = read(PROGRAMS["dialect"], "Hi", "A:x B:<l>y A:")
    assert answer.regions == [("content", "Hi", "Hi")]
