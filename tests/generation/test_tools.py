"""Texts of known forms, whole and in chunks: forced calls, and the reasoning before them."""

from __future__ import annotations

from functools import cache
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.responses.events import CallDelta, TextDelta
from hf_transformer.generation.responses.families import CALLS, compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import compile_template
from hf_transformer.generation.tools import ForcedCallParser, FormReader
from tests.generation.scripted import chunks

ARGUMENTS = '{"city": "Zürich </think> <tool_call>", "days": [1, {"a": "}\\""}]}'
CALLS_TEXT = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "now", "arguments": {{}}}}]'
HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
PREFILLED = "<|im_start|>assistant\n<think>\n"
NONE = "<|im_start|>assistant\n"
OFF = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
Read = tuple[str, str, list[tuple[str, str]]]


@cache
def responses(calls: str = "hermes", reasoning: str | None = "think") -> ModelResponses:
    return ModelResponses(compile_template(compose(calls, reasoning), "test"), {})


def read(parts: list[str], forced: str | None, prompt: str = NONE, family: str = "hermes") -> Read:
    """Reasoning, content and calls of a text in parts."""
    reader = FormReader(responses(family, CALLS[family].reasoning or "think").prefix(prompt), forced)
    texts, calls = {"reasoning": "", "content": ""}, list[tuple[str, str]]()
    for event in [*(event for part in parts for event in reader.push(part)), *reader.flush()]:
        if isinstance(event, TextDelta):
            texts[event.role] += event.text
        elif isinstance(event, CallDelta):
            if event.name is not None:
                assert event.index == len(calls)
                calls.append((event.name, ""))
            calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.arguments)
    assert reader.has_calls == bool(calls)
    return texts["reasoning"], texts["content"], calls


BOTH = [("weather", ARGUMENTS), ("now", "{}")]
CASES: list[Any] = [
    ("<think>\nHm.\n</think>\n\n" + CALLS_TEXT, "", NONE, "hermes", ("Hm.", "", BOTH)),
    ("<think></think>" + ARGUMENTS, "weather", NONE, "hermes", ("", "", BOTH[:1])),
    ("Hm.\n</think>\n\n" + CALLS_TEXT, "", PREFILLED, "hermes", ("Hm.", "", BOTH)),
    (CALLS_TEXT, "", OFF, "hermes", ("", "", BOTH)),
    (CALLS_TEXT, "", NONE, "hermes", ("", "", BOTH)),
    ("<think>Hm.</think><think>Again.</think>" + ARGUMENTS, None, NONE, "hermes", ("Hm.Again.", ARGUMENTS, [])),
    ('"<think> and </think>"', None, NONE, "hermes", ("", '"<think> and </think>"', [])),
    ("<think>Hm", None, NONE, "hermes", ("Hm", "", [])),
    (HARMONY + ARGUMENTS, None, "<|end|><|start|>assistant", "gpt_oss", ("Hm.", ARGUMENTS, [])),
    ("<|channel|>final<|message|>7", None, "<|end|><|start|>assistant", "gpt_oss", ("", "7", [])),
    ("[THINK]Hm.[/THINK]" + CALLS_TEXT, "", "[/INST]", "mistral_v11", ("Hm.", "", BOTH)),
    (" <thin", None, NONE, "hermes", ("", " <thin", [])),
    ("no call", "", NONE, "hermes", ("", "no call", [])),
]


@pytest.mark.parametrize(("text", "forced", "prompt", "family", "expected"), CASES, ids=range(len(CASES)))
@given(cuts=st.lists(st.integers(0, 500), max_size=20))
def test_reasoning_comes_before_the_form_and_the_form_stays_as_it_is(
    text: str, forced: str | None, prompt: str, family: str, expected: Read, cuts: list[int]
) -> None:
    assert read(chunks(text, cuts), forced, prompt, family) == expected
    assert read(list(text), forced, prompt, family) == expected


@pytest.mark.parametrize("name", [name for name, part in CALLS.items() if part.strict is not None])
def test_the_form_of_a_strict_call_is_that_which_the_template_reads(name: str) -> None:
    assert responses(name, CALLS[name].reasoning or None).strict_form == CALLS[name].strict


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "pythonic"])
def test_a_family_without_json_has_no_form_of_strict_calls(name: str) -> None:
    assert responses(name).strict_form is None


@pytest.mark.parametrize("text", [" " * 20_000 + "x", "[" + " " * 20_000 + "x", '[{"name": "' + "a" * 20_000])
def test_long_texts_that_are_no_call_are_read_in_linear_time(text: str) -> None:
    parser = ForcedCallParser("")
    assert parser.push(text) == []
    assert parser.flush() == text


def test_white_space_after_a_call_is_read_in_linear_time() -> None:
    parser, rest = ForcedCallParser(""), " " * 20_000 + "x"
    deltas = parser.push('[{"name": "a", "arguments": {}' + rest)
    assert [(delta.name, delta.arguments) for delta in deltas] == [("a", ""), (None, "{}")]
    assert parser.flush() == rest


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "<think>", "<think", "a </think", "\\n", "{", "<think>a</think>"])
@pytest.mark.parametrize("prompt", [NONE, PREFILLED], ids=["possible", "open"])
def test_time_is_linear_in_the_text(unit: str, prompt: str) -> None:
    def seconds(count: int) -> float:
        reader = FormReader(responses().prefix(prompt), "")
        began = thread_time()
        for _ in range(count):
            reader.push(unit)
        reader.flush()
        return thread_time() - began

    seconds(1000)
    assert seconds(24_000) < 8 * 3 * max(seconds(3_000), 0.002)


def test_a_prefix_takes_only_text_that_belongs_to_it() -> None:
    prefix = responses().prefix(NONE)
    assert [
        prefix.takes(text) for text in ("\n", "{", "<", "{", "think>", "a", "</", "think>7", "think>", "\n", "7")
    ] == [*(False, False, True, False, True, True, True, False, True, False, False)]
    assert prefix.is_between and not prefix.is_over
