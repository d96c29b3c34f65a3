"""Chats of a model with a response template: reasoning and calls, whole and streamed, over the HTTP application."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import compile_template
from hf_transformer.types.tokenization import Tokenization
from tests.api.generating import Exchange, ServedModel, answer_of, openai_error, served_model

MESSAGES = [{"role": "user", "content": "Where?"}]
PATH = "/openai/v1/chat/completions"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}}},
    }
]
CALL = '<tool_call>{"name": "weather", "parameters": {"city": "a </tool_call> b", "days": "3"}}</tool_call>'
ARGUMENTS = '{"city": "a </tool_call> b", "days": 3}'


def with_template(made: ServedModel, calls: str = "hermes", reasoning: str | None = "think") -> None:
    program = compile_template(compose(calls, reasoning), "test")
    made.model.responses = ModelResponses(program, made.tokenizer.skipped_tokens())


async def message(made: ServedModel, stream: bool, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message of an answer, joined if it is streamed, and its finish reason."""
    answer = await answer_of(made, PATH, {"model": "gpt2", "messages": MESSAGES, "stream": stream, **fields})
    if not stream:
        [choice] = answer["choices"]
        return choice["message"], choice["finish_reason"]
    joined: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": []}
    finish = ""
    for chunk in answer[:-1]:
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    [call] = value
                    if "id" in call:
                        joined["tool_calls"].append(call)
                    else:
                        joined["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
                elif name != "role":
                    joined[name] += value
            finish = choice["finish_reason"] or finish
    return joined, finish


either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@either_way
async def test_reasoning_and_a_call(stream: bool) -> None:
    async with served_model(text=f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}") as made:
        with_template(made)
        answer, finish = await message(made, stream, tools=TOOLS)
        assert (answer["content"], finish) == ("Let me see.", "tool_calls")
        assert answer["reasoning"] == answer["reasoning_content"] == "Hm."
        [call] = answer["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", ARGUMENTS)


@either_way
async def test_reasoning_without_tools(stream: bool) -> None:
    async with served_model(text=f"<think>Hm.</think>Hi. {CALL}") as made:
        with_template(made)
        answer, finish = await message(made, stream)
        assert (answer["reasoning"], answer["content"], finish) == ("Hm.", f"Hi. {CALL}", "stop")
        assert not answer.get("tool_calls")


@either_way
async def test_a_call_that_can_not_be_read_is_content_and_counted(stream: bool) -> None:
    text = '<tool_call>{"name": "wether", "arguments": {}}</tool_call>'
    async with served_model(text=text) as made:
        with_template(made)
        answer, finish = await message(made, stream, tools=TOOLS)
        assert (answer["content"], finish) == (text, "stop")
        assert 'hf_transformer_unreadable_calls_total{model_name="gpt2"} 1' in made.metrics.render().decode()


@either_way
async def test_several_calls_and_one(stream: bool) -> None:
    async with served_model(text=f"{CALL}\n{CALL}") as made:
        with_template(made)
        answer, _ = await message(made, stream, tools=TOOLS)
        assert len(answer["tool_calls"]) == 2
        answer, finish = await message(made, stream, tools=TOOLS, parallel_tool_calls=False)
        assert [json.loads(call["function"]["arguments"]) for call in answer["tool_calls"]] == [json.loads(ARGUMENTS)]
        assert finish == "tool_calls"


@either_way
async def test_an_answer_without_reasoning_and_tools_stays_as_it_is(stream: bool) -> None:
    async with served_model(text=" <think> x\n") as made:
        with_template(made, reasoning=None)
        answer, _ = await message(made, stream)
        assert answer["content"] == " <think> x\n"


THOUGHT = "Hm, {} </tool_call>"
STRICT = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


async def usage(made: ServedModel, stream: bool, **fields: Any) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    body = {"model": "gpt2", "messages": MESSAGES, "stream": stream, **options, **fields}
    answer = await answer_of(made, PATH, body)
    found: dict[str, Any] = (answer[-2] if stream else answer)["usage"]
    return found


@either_way
async def test_the_usage_has_the_tokens_of_the_reasoning(stream: bool) -> None:
    thought = "Paris is a city, and so on. " * 8
    async with served_model(text=f"<think>{thought}</think>Hi.") as made:
        with_template(made)
        details = (await usage(made, stream))["completion_tokens_details"]
        text = thought.strip()
        expected = len(made.tokenizer.encode_windows([text], Tokenization(whole=True, special_tokens=False))[0][0].ids)
        assert details == {"reasoning_tokens": expected} and expected > 40


@either_way
async def test_an_answer_without_reasoning_counts_none(stream: bool) -> None:
    async with served_model(text="Hi.") as made:
        assert "completion_tokens_details" not in await usage(made, stream)
        with_template(made)
        assert (await usage(made, stream))["completion_tokens_details"] == {"reasoning_tokens": 0}


@either_way
async def test_reasoning_that_is_not_asked_for_is_counted_and_not_shown(stream: bool) -> None:
    async with served_model(text="<think>Hm.</think>Hi.") as made:
        with_template(made)
        answer = await answer_of(
            made,
            PATH,
            {"model": "gpt2", "messages": MESSAGES, "include_reasoning": False, "logprobs": True, "stream": stream},
        )
        assert "Hm" not in json.dumps(answer)
        choices = [choice for chunk in answer[:-1] for choice in chunk["choices"]] if stream else answer["choices"]
        assert all(choice["logprobs"] is None for choice in choices)
        answered, finish = await message(made, stream, include_reasoning=False)
        assert (answered["content"], finish) == ("Hi.", "stop")
        assert (await usage(made, stream, include_reasoning=False))["completion_tokens_details"]["reasoning_tokens"] > 0


@either_way
@pytest.mark.parametrize(
    ("fields", "content", "reasoning"),
    [
        ({"max_tokens": 8}, None, "Hm"),
        ({"stop": "{}"}, None, "Hm,"),
        ({"stop": "Hi"}, None, THOUGHT),
    ],
    ids=["max_tokens", "stop in the reasoning", "stop after it"],
)  # fmt: skip
async def test_limits_within_the_reasoning(stream: bool, fields: Any, content: str | None, reasoning: str) -> None:
    async with served_model(text=f"<think>{THOUGHT}</think>Hi.") as made:
        with_template(made)
        answer, finish = await message(made, stream, **fields)
        assert answer["content"] == ("" if stream else content)
        assert answer["reasoning"].startswith(reasoning) and finish == ("length" if "max_tokens" in fields else "stop")


@either_way
@pytest.mark.parametrize(
    ("form", "written", "calls"),
    [
        ({"tool_choice": "required"}, f'[{{"name": "weather", "arguments": {ARGUMENTS}}}]', [("weather", ARGUMENTS)]),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, ARGUMENTS, [("weather", ARGUMENTS)]),
        ({"tools": None, "response_format": FORMAT}, ARGUMENTS, []),
        ({"tools": None, "structured_outputs": {"regex": ".*"}}, "a <think> </think>", []),
        ({"tools": STRICT}, CALL, [("weather", ARGUMENTS)]),
    ],
    ids=["required", "named", "format", "expression", "strict"],
)  # fmt: skip
async def test_a_text_of_a_known_form_comes_after_the_reasoning(
    stream: bool, form: Any, written: str, calls: list[Any]
) -> None:
    async with served_model(text=f"<think>{THOUGHT}</think>\n\n{written}", reasons_first=True) as made:
        with_template(made)
        answer, finish = await message(made, stream, **{"tools": TOOLS, **form})
        assert answer["reasoning"] == THOUGHT
        found = [(call["function"]["name"], call["function"]["arguments"]) for call in answer.get("tool_calls") or ()]
        assert found == calls and (calls or answer["content"] == written)
        is_named = isinstance(form.get("tool_choice"), dict)
        assert finish == ("tool_calls" if calls and not is_named else "stop")
        sampling = made.generator.asked[-1][1]
        assert sampling.reasoning is not None and sampling.reasoning().state == "possible"


@either_way
async def test_a_model_that_holds_the_form_from_the_first_token_writes_no_reasoning(stream: bool) -> None:
    async with served_model(text='{"a": "<think>b</think>"}') as made:
        with_template(made)
        answer, _ = await message(made, stream, response_format=FORMAT)
        assert answer["content"] == '{"a": "<think>b</think>"}' and not answer.get("reasoning")
        assert made.generator.asked[-1][1].reasoning is None


EFFORTS = (
    "{{ messages[0].content }} {{ reasoning_effort if reasoning_effort is defined }} "
    "{{ enable_thinking if enable_thinking is defined }} {{ messages[1].reasoning_content if messages[1] }}"
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "Where?"),
        ({"reasoning_effort": "high"}, "Where? high True"),
        ({"reasoning_effort": "none"}, "Where? none False"),
        ({"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": False}}, "Where? max False"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "Where?  False"),
    ],
)
async def test_the_effort_is_a_variable_of_the_template(fields: Any, expected: str) -> None:
    async with served_model(template=EFFORTS) as made:
        await message(made, False, **fields)
        assert made.generator.asked[-1][0].text.strip() == expected
        effort = {"reasoning": {"effort": fields.pop("reasoning_effort")}} if "reasoning_effort" in fields else {}
        body = {"model": "gpt2", "input": "Where?", **effort, **fields}
        await answer_of(made, "/openai/v1/responses", body)
        assert made.generator.asked[-1][0].text.strip() == expected


async def test_an_effort_that_the_template_does_not_read_is_named() -> None:
    async with served_model() as made:
        body = {"model": "gpt2", "messages": MESSAGES, "reasoning_effort": "low"}
        async with Exchange(made.app, PATH, body) as exchange:
            _, headers = await exchange.head()
            await exchange.rest()
        assert headers["x-ignored-parameters"] == "reasoning_effort"


@pytest.mark.parametrize("path", [PATH, "/openai/v1/responses"])
async def test_an_unknown_effort_is_refused(path: str) -> None:
    async with served_model() as made:
        is_chat = path == PATH
        chat: dict[str, Any] = {"messages": MESSAGES, "reasoning_effort": "much"}
        body = chat if is_chat else {"input": "a", "reasoning": {"effort": 3}}
        found, param = await openai_error(made, path, {"model": "gpt2", **body}, 400)
        assert "none, minimal, low, medium, high, xhigh" in found and param == (
            "reasoning_effort" if is_chat else "reasoning.effort"
        )


@pytest.mark.parametrize("calls", ["none", "hermes"])
async def test_without_a_parser_of_calls_they_are_content(calls: str) -> None:
    async with served_model(text=CALL) as made:
        program = compile_template(compose("hermes", None), "test")
        made.model.responses = None if calls == "none" else ModelResponses(program, {}, reads_calls=False)
        answer, finish = await message(made, False, tools=TOOLS)
        assert (answer["content"], finish) == (CALL, "stop")


@pytest.mark.parametrize("properties", ["x", ["days"], 5, True, {"days": 5}], ids=str)
@either_way
async def test_a_schema_of_another_form_says_nothing_of_types(properties: Any, stream: bool) -> None:
    schema = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    async with served_model(text=CALL) as made:
        with_template(made)
        got, finish = await message(made, stream, tools=[tool])
    assert [call["function"]["name"] for call in got["tool_calls"]] == ["weather"]
    assert json.loads(got["tool_calls"][0]["function"]["arguments"])["days"] == "3"
    assert finish == "tool_calls"
