"""The response template of a model: flags, the checkpoint's own, the families' table."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from hf_transformer.app.response_template import load_response_template, load_responses
from hf_transformer.config.options import Config, parse_config
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.responses.template import Program
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.responses.answers import joined
from tests.generation.tokenizers import load

OWN: Final = {
    "start_anchor": "A:",
    "fields": {"thinking": {"open": "<hm>", "close": "</hm>"}, "content": {}},
}
HERMES: Final = "<|im_start|> <tool_call> </tool_call>"


def config(*flags: str) -> Config:
    return parse_config(["--model_name=a", "--predictor_host=localhost:1", *flags], {})[0]


def chosen(folder: Path, chat_template: str, *flags: str, own: Any = None) -> Program | None:
    settings = {} if own is None else {"response_template": own}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_response_template(config(*flags), folder, chat_template)


@pytest.mark.parametrize(
    ("chat_template", "flags", "own", "name"),
    [
        pytest.param(HERMES, [], None, "hermes", id="markers"),
        pytest.param(HERMES + "<think>", [], None, "hermes and think", id="both markers"),
        pytest.param("{{ messages }}", [], None, "hermes", id="no markers"),
        pytest.param("[TOOL_CALLS] [ARGS] [THINK]", [], None, "mistral_v11 and mistral", id="mistral"),
        pytest.param(HERMES, ["--response_template=qwen3_coder"], OWN, "qwen3_coder", id="name"),
        pytest.param(HERMES, ["--response_template=think"], None, "hermes and think", id="name of reasoning"),
        pytest.param(HERMES, ["--response_template=gpt_oss"], None, "gpt_oss and gpt_oss", id="name of both"),
        pytest.param(HERMES, ["--tool-call-parser=llama3_json"], None, "llama3_json", id="vllm, calls"),
        pytest.param(HERMES, ["--tool-call-parser", "qwen3_xml"], OWN, "qwen3_coder", id="vllm before own"),
        pytest.param(HERMES, ["--reasoning-parser=deepseek_r1"], None, "hermes and think", id="vllm, reasoning"),
        pytest.param(
            "<think> <tool_call><function=", ["--enable-auto-tool-choice", "--tool-call-parser=hermes"], None,
            "hermes and think", id="vllm, the other part by markers",
        ),
    ],
)  # fmt: skip
def test_the_template_of_a_model(tmp_path: Path, chat_template: str, flags: list[str], own: Any, name: str) -> None:
    program = chosen(tmp_path, chat_template, *flags, own=own)
    assert program is not None
    assert program.name == name


@pytest.mark.parametrize("flags", [[], ["--tool-call-parser=hf"], ["--reasoning-parser=hf"]], ids=str)
def test_the_checkpoints_own_template(tmp_path: Path, flags: list[str]) -> None:
    program = chosen(tmp_path, HERMES, *flags, own=OWN)
    assert program is not None
    assert [field.name for field in program.fields] == ["thinking", "content"]


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "tokenizer_config.json"])
def test_a_file(tmp_path: Path, wrapped: bool) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"response_template": OWN} if wrapped else OWN))
    program = chosen(tmp_path, HERMES, f"--response_template={path}")
    assert program is not None
    assert program.name == str(path)


def test_none(tmp_path: Path) -> None:
    assert chosen(tmp_path, HERMES, "--response_template=none", own=OWN) is None


def test_an_invalid_own_template_gives_way_to_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program = chosen(tmp_path, HERMES, own={**OWN, "version": 9})
    assert program is not None
    assert program.name == "hermes"
    assert "version: expected 1, got 9" in caplog.text
    citations = {**OWN, "fields": {**OWN["fields"], "citations": {"open": "<c>"}}}  # type: ignore[dict-item]
    program = chosen(tmp_path, HERMES, own=citations)
    assert program is not None
    assert program.name == "hermes"


def test_text_outside_of_all_regions_is_content(tmp_path: Path) -> None:
    program = chosen(
        tmp_path, HERMES, own={"start_anchor": "A", "fields": {"thinking": {"open": "<t>", "close": "</t>"}}}
    )
    assert program is not None
    assert program.implicit is not None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        pytest.param(["--response_template=hermess"], "expected auto, none, a file with JSON, or one of", id="name"),
        pytest.param(["--response_template=/no/such.json"], "expected auto, none, a file with JSON", id="file"),
        pytest.param(["--tool_call_parser=hermess"], "expected vLLM's name of a parser, or one of", id="calls"),
        pytest.param(["--reasoning_parser=r1"], "expected vLLM's name of a parser, or one of think", id="reasoning"),
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, flags: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        chosen(tmp_path, HERMES, *flags)
    assert flags[0] in str(error.value)
    assert problem.split(" of ")[0] in str(error.value)


def test_a_missing_or_invalid_template_that_a_flag_asks_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is missing"):
        chosen(tmp_path, HERMES, "--tool_call_parser=hf")
    (path := tmp_path / "bad.json").write_text(json.dumps({"fields": {"content": {"colour": 1}}, "start_anchor": "A"}))
    with pytest.raises(LoadError, match="colour: expected one of"):
        chosen(tmp_path, HERMES, f"--response_template={path}")


def test_delimiters_that_are_special_tokens_are_shown() -> None:
    tokenizer = load(Path("deploy/model_repository/gpt2"))
    assert isinstance(tokenizer, Tokenizer)
    responses = load_responses(config(), Path("deploy/model_repository/gpt2"), HERMES, tokenizer)
    assert responses is not None
    special = tokenizer.skipped_tokens()
    program = load_response_template(config("--response_template=gpt_oss"), Path("deploy/model_repository/gpt2"), "")
    assert program is not None
    ids = {"<|call|>": 7, "<|im_end|>": 8, "<|channel|>": 9, "<|endoftext|>": 10}
    assert program.shown_tokens(ids) == {7, 9}
    assert responses.shown_tokens == frozenset() or responses.shown_tokens <= set(special.values())


def test_calls_are_content_without_automatic_choice() -> None:
    tokenizer = load(Path("deploy/model_repository/gpt2"))
    tools = [{"type": "function", "function": {"name": "now"}}]
    text = '<tool_call>{"name": "now"}</tool_call>'
    for flags, calls in (([], [("now", "{}")]), (["--enable_auto_tool_choice=false"], [])):
        responses = load_responses(config(*flags), Path("deploy/model_repository/gpt2"), HERMES, tokenizer)
        assert responses is not None
        assert (responses.reads(tools), responses.reads([])) == (bool(calls), False)
        parser = responses.parser("", tools)
        answer = joined([*parser.push(text), *parser.flush()])
        assert (answer.calls, parser.has_calls) == (calls, bool(calls))
        assert answer.content == ("" if calls else text)
