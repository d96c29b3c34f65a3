"""Answers of all families, against transformers' executor and vLLM's parsers, at every way of cutting the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hf_transformer.generation.responses import families
from hf_transformer.generation.responses.events import CallDelta, Event, TextDelta
from hf_transformer.generation.responses.families import CALLS, REASONING, compose, detect, find_calls, find_reasoning
from hf_transformer.generation.responses.parser import ResponseParser
from hf_transformer.generation.responses.template import compile_template
from tests.generation.responses.answers import PROGRAMS, TYPES, Answer, cuttings, joined, read
from tests.goldens.response_texts import FAMILIES, cases

GOLDENS: Final = json.loads((Path(__file__).parents[2] / "goldens" / "responses.json").read_text(encoding="utf-8"))


def rows(column: str = "text") -> list[Any]:
    """The cases, with ``column`` those to which transformers or vLLM has an answer."""
    return [
        pytest.param(row, id=f"{row['family']}-{row['case'].replace(' ', '_')}")
        for row in GOLDENS["cases"]
        if "error" not in row[column]
    ]


ANY_TOOL: Final = {**TYPES, "delete_all": {}}

MORE_THAN_TRANSFORMERS: Final = {
    "delimiter in a string": {"deepseek_v32", "glm45"},  # it closes the region there, and calls with {}
    "unknown tool": {"deepseek_v32"},  # it has no attribute string="false"
}
"""Cases in which transformers' executor gives another message than ours; where it raises an error, none is stored."""
ALL: Final = set(FAMILIES) - {"command_r", "phi4_mini", "nemotron"}  # vLLM has no parser for these
OTHER_THAN_VLLM: Final = {
    # Content after a call is lost in vLLM, or is reasoning.
    "prose before and after": ALL - {"gpt_oss"},
    # Content before a call is lost, or the call is.
    "prose before": {"llama3_json", "llama4", "pythonic", "phi4_functools"},
    # vLLM calls what the request has no tool for, or drops it.
    "unknown tool": ALL,
    # vLLM ends the call within the string.
    "delimiter in a string": ALL
    - {"qwen3_coder", "nemotron3", "llama3_json", "llama4", "pythonic", "mistral", "deepseek_r1", "minimax_m2"},
    "brackets in a string": {"phi4_functools"},
    # vLLM makes whole arguments of the beginning, drops the call, or shows it as content.
    "cut in an argument": ALL - {"mistral_v11", "granite3", "gpt_oss", "kimi_k2", "command_a"},
    # vLLM calls a tool with the beginning of a name, or drops the text.
    "cut in the name": ALL
    - {"hermes", "qwen3", "smollm3", "granite4", "llama3_json", "llama4", "pythonic", "phi4_functools"},
    "cut in the reasoning": {"granite3"},  # vLLM needs the end of the reasoning
    "types": {"phi4_functools", "gemma4"},  # vLLM ends at the first bracket; numbers in lists become strings
    "nested": {"phi4_functools", "gemma4"},
    "no arguments": {"command_a"},  # vLLM gives no JSON
}
"""Cases in which vLLM's parsers give another message than ours; docs/chat_models.md has the reasons."""


def arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def seen(answer: Answer) -> tuple[Any, ...]:
    calls = [(name, arguments(text)) for name, text in answer.calls]
    return answer.reasoning.strip(), answer.content.strip(), calls


@pytest.mark.parametrize("row", rows())
def test_an_answer_is_the_same_at_every_way_of_cutting(row: dict[str, Any]) -> None:
    program, prompt, text = PROGRAMS[row["family"]], FAMILIES[row["family"]].prompt, row["text"]
    whole = read(program, text, prompt)
    for pieces in cuttings(text):
        assert read(program, text, prompt, pieces=pieces) == whole, pieces
        parser, events = ResponseParser(program, prompt, TYPES), list[Event]()
        for piece in pieces:
            role = parser.plain(piece)
            events += [TextDelta(role, piece)] if role else parser.push(piece)
        fast = joined([*events, *parser.flush()])
        for member in ("content", "reasoning", "calls", "complete"):
            assert getattr(fast, member) == getattr(whole, member), pieces


@pytest.mark.parametrize("row", rows("transformers"))
def test_a_message_is_that_of_transformers(row: dict[str, Any]) -> None:
    answer = read(PROGRAMS[row["family"]], row["text"], FAMILIES[row["family"]].prompt, tools=ANY_TOOL)
    differs = row["family"] in MORE_THAN_TRANSFORMERS.get(row["case"], ())
    assert (answer.message != row["transformers"]["message"]) == differs


@pytest.mark.parametrize("row", rows("vllm"))
def test_a_message_is_that_of_vllm(row: dict[str, Any]) -> None:
    expected = row["vllm"]["message"]
    answer = read(PROGRAMS[row["family"]], row["text"], FAMILIES[row["family"]].prompt)
    calls = [(call["name"], arguments(call["arguments"])) for call in expected["calls"]]
    theirs = (expected["reasoning"] or "").strip(), (expected["content"] or "").strip(), calls
    assert (seen(answer) != theirs) == (row["family"] in OTHER_THAN_VLLM.get(row["case"], ()))


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_are_written_while_they_come(name: str) -> None:
    family, value = FAMILIES[name], "abcdefghij " * 20 + "end"
    text = family.calls([("weather", {"city": value})])
    parser = ResponseParser(PROGRAMS[name], family.prompt, TYPES)
    written = ""
    for character in text[: text.index("end")]:
        written += "".join(event.arguments for event in parser.push(character) if isinstance(event, CallDelta))
    assert json.dumps({"city": value}).startswith(written)
    assert len(written) > 200
    rest = [*parser.push(text[text.index("end") :]), *parser.flush()]
    written += "".join(event.arguments for event in rest if isinstance(event, CallDelta))
    assert json.loads(written) == {"city": value}


def test_the_goldens_are_of_these_texts() -> None:
    expected = [(name, case, text) for name, family in FAMILIES.items() for case, text in cases(family)]
    assert [(row["family"], row["case"], row["text"]) for row in GOLDENS["cases"]] == expected
    assert min(sum(row["family"] == name for row in GOLDENS["cases"]) for name in FAMILIES) >= 12


@pytest.mark.parametrize("calls", [*CALLS, None])
@pytest.mark.parametrize("reasoning", [*REASONING, None])
def test_any_two_parts_make_a_template(calls: str | None, reasoning: str | None) -> None:
    program = compile_template(compose(calls, reasoning), "both")
    text = read(program, "Hello, 世界!\nHow are you? ").content
    assert text == "Hello, 世界!\nHow are you?"


@pytest.mark.parametrize(
    ("chat_template", "parts"),
    [
        pytest.param("{{ '<|im_start|>' }}<tool_call>...</tool_call>", ("hermes", None), id="hermes"),
        pytest.param("<tool_call>\n{</tool_call> <think>", ("hermes", "think"), id="qwen3"),
        pytest.param(
            "<tool_call><function=example></function></tool_call> </think>", ("qwen3_coder", "think"), id="coder"
        ),
        pytest.param("<tool_call>{{name}}<arg_key></tool_call><think>", ("glm45", "think"), id="glm"),
        pytest.param("<|start|>assistant<|channel|>final", ("gpt_oss", "gpt_oss"), id="harmony"),
        pytest.param("[TOOL_CALLS]name[ARGS]{} [THINK]", ("mistral_v11", "mistral"), id="mistral 11"),
        pytest.param("[TOOL_CALLS] [{}]", ("mistral", None), id="mistral 3"),
        pytest.param("<|start_of_role|>assistant<|tool_call|>", ("granite", None), id="granite 3"),
        pytest.param("<|start_of_role|>assistant <tool_call></tool_call>", ("hermes", None), id="granite 4"),
        pytest.param("<｜tool▁sep｜> ```json </think>", ("deepseek_v3", "think"), id="r1"),
        pytest.param("<｜tool▁sep｜> </think>", ("deepseek_v31", "think"), id="v3.1"),
        pytest.param("<｜DSML｜function_calls> <think>", ("deepseek_v32", "think"), id="v3.2"),
        pytest.param("<|python_tag|>", ("llama3_json", None), id="llama 3"),
        pytest.param("<|header_start|>assistant", ("pythonic", None), id="llama 4"),
        pytest.param("<|START_ACTION|> <|START_THINKING|>", ("command_a", "command_a"), id="command a"),
        pytest.param("<|turn>model <|tool_call> <|channel>", ("gemma4", "gemma4"), id="gemma 4"),
        pytest.param("<TOOLCALL>", ("nemotron", None), id="nemotron"),
        pytest.param("<minimax:tool_call> <think>", ("minimax_m2", "think"), id="minimax"),
        pytest.param("<|tool_calls_section_begin|> <think>", ("kimi_k2", "think"), id="kimi"),
        pytest.param("{% for m in messages %}{{ m.content }}{% endfor %}", (None, None), id="neither"),
    ],
)
def test_markers_choose_the_parts(chat_template: str, parts: tuple[str | None, str | None]) -> None:
    assert detect(chat_template) == parts


def test_vllms_names_are_names_of_parts() -> None:
    assert find_calls("hermes") == find_calls("qwen3_json") == find_calls("granite4") == "hermes"
    assert find_calls("openai") == "gpt_oss"
    assert find_calls("mistral", "[TOOL_CALLS]x[ARGS]") == "mistral_v11"
    assert find_calls("mistral", "[TOOL_CALLS] [") == find_calls("mistral") == "mistral"
    assert find_reasoning("deepseek_r1") == find_reasoning("qwen3") == "think"
    assert find_reasoning("openai_gptoss") == "gpt_oss"
    assert find_calls("no such parser") is None and find_reasoning("no such parser") is None
    for name in families.CALLS:
        assert find_calls(name) is not None
