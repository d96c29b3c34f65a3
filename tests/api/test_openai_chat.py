"""OpenAI's chat completions, whole and as a stream, over a scripted model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.tasks.base import GenerationSettings
from tests.api.generating import Bench, Exchange, application, bench, post, template_of, tokenizer_of

pytestmark = pytest.mark.asyncio

PATH = "/openai/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "What is the capital of france?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Counting(ThreadPoolExecutor):
    """Threads that count what they are given."""

    submitted = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        self.submitted += 1
        return super().submit(*args, **options)


async def chat(made: Bench, **fields: Any) -> Any:
    status, found = await post(made, PATH, {"model": "gpt2", "messages": MESSAGES, **fields}, x_request_id="7")
    assert status == 200, found
    return found


async def refused(made: Bench, status: int = 400, **fields: Any) -> tuple[str, str | None]:
    found_status, found = await post(made, PATH, {"model": "gpt2", "messages": MESSAGES, **fields})
    assert found_status == status, found
    return found["error"]["message"], found["error"]["param"]


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    return [one["delta"] for chunk in chunks for one in chunk["choices"] if one["index"] == index]


async def test_the_shape_is_that_of_kserve_s_example() -> None:
    async with bench(text="Paris.") as made:
        found = await chat(made)
        created, used = found.pop("created"), found.pop("usage")
        assert isinstance(created, int)
        assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]
        message = {"content": "Paris.", "tool_calls": None, "role": "assistant", "function_call": None}
        assert found == {
            "id": "chatcmpl-7",
            "object": "chat.completion",
            "model": "gpt2",
            "system_fingerprint": None,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        }


async def test_the_prompt_is_the_rendered_chat_and_nothing_is_added() -> None:
    async with bench() as made:
        await chat(made)
        [(prompt, sampling)] = made.generator.asked
        rendered = template_of(tokenizer_of()).render(MESSAGES)
        assert prompt.text == rendered and not prompt.special_tokens
        assert sampling.max_tokens == 256 - len(prompt.ids)


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    async with bench(text="Paris is large.") as made:
        *chunks, last, done = await chat(made, stream=True, stream_options={"include_usage": True})
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        first, *middle, end = deltas(chunks)
        assert first == {"role": "assistant", "content": ""} and end == {}
        assert "".join(one["content"] for one in middle) == "Paris is large."
        reasons = [one["finish_reason"] for chunk in chunks for one in chunk["choices"]]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
        assert last["choices"] == [] and last["usage"] == (await chat(made))["usage"]


async def test_all_choices_have_a_role_of_their_own() -> None:
    async with bench(text="Paris.") as made:
        *chunks, _ = await chat(made, n=3, stream=True)
        for index in range(3):
            first, *rest = deltas(chunks, index)
            assert first["role"] == "assistant"
            assert "".join(one.get("content", "") for one in rest) == "Paris."
        whole = await chat(made, n=3)
        assert [one["message"]["content"] for one in whole["choices"]] == ["Paris."] * 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit(name: str) -> None:
    async with bench(text="Paris is large.") as made:
        found = await chat(made, **{name: 2})
        assert found["choices"][0]["finish_reason"] == "length" and found["usage"]["completion_tokens"] == 2


async def test_the_service_s_limit_holds_where_nothing_is_said() -> None:
    async with bench(text="Paris is large.", settings=GenerationSettings(max_new_tokens=2)) as made:
        assert (await chat(made))["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_logprobs(stream: bool) -> None:
    async with bench(text="Paré.") as made:
        found = await chat(made, logprobs=True, top_logprobs=2, stream=stream)
        chunks = found[:-1] if stream else [found]
        told = [one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert bytes(byte for one in told for byte in one["bytes"]).decode() == "Paré."
        assert {one["logprob"] for one in told} == {-0.5}
        assert all(len(one["top_logprobs"]) == 2 for one in told)
        assert all(one["top_logprobs"][0]["bytes"] == one["bytes"] for one in told)


async def test_logprobs_of_the_chosen_tokens_alone() -> None:
    async with bench(text="Paris.") as made:
        found = await chat(made, logprobs=True)
        assert all(one["top_logprobs"] == [] for one in found["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Anna"},
        {"role": "assistant", "content": "Hello", "refusal": None, "tool_calls": None},
    ],
    ids=["parts", "developer", "name", "nulls"],
)
async def test_forms_of_messages(message: dict[str, Any]) -> None:
    async with bench() as made:
        await chat(made, messages=[message, *MESSAGES])
        text = made.generator.asked[0][0].text
        content = message["content"]
        assert (content if isinstance(content, str) else "What is\nthis?") in text
        assert ("<|im_start|>system\nBe brief." in text) is (message["role"] == "developer")


async def test_tools_are_rendered_and_calls_come_back() -> None:
    async with bench(text=f"Let me see.\n{CALL}") as made:
        found = await chat(made, tools=TOOLS)
        assert '"name": "weather"' in made.generator.asked[0][0].text
        [choice] = found["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me see."
        [call] = choice["message"]["tool_calls"]
        assert call["type"] == "function" and call["id"].startswith("call_")
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


async def test_calls_in_a_stream_come_whole() -> None:
    async with bench(text=f"{CALL}\n{CALL}") as made:
        *chunks, _ = await chat(made, tools=TOOLS, tool_choice="auto", stream=True)
        calls = [call for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
        assert [call["index"] for call in calls] == [0, 1]
        assert len({call["id"] for call in calls}) == 2
        assert all(json.loads(call["function"]["arguments"]) == {"city": "Paris"} for call in calls)
        assert "".join(delta.get("content", "") for delta in deltas(chunks)).strip() == ""
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_one_call_is_given_where_several_are_not_wanted(stream: bool) -> None:
    async with bench(text=f"{CALL}{CALL}") as made:
        found = await chat(made, tools=TOOLS, parallel_tool_calls=False, stream=stream)
        if stream:
            calls = [call for delta in deltas(found[:-1]) for call in delta.get("tool_calls", ())]
        else:
            calls = found["choices"][0]["message"]["tool_calls"]
        assert len(calls) == 1


async def test_without_tools_a_call_is_text() -> None:
    async with bench(text=CALL) as made:
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            message = (await chat(made, **fields))["choices"][0]["message"]
            assert message["content"] == CALL and message["tool_calls"] is None
            assert "weather" not in made.generator.asked[-1][0].text


async def test_a_conversation_with_calls_is_rendered() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    async with bench() as made:
        await chat(made, messages=history, tools=TOOLS)
        text = made.generator.asked[0][0].text
        assert '{"name": "weather", "arguments": {"city": "Paris"}}' in text and "sunny" in text


@pytest.mark.parametrize("calls", [1, 20], ids=["one call", "many calls"])
async def test_arguments_of_calls_are_bounded_as_a_body_is(calls: int) -> None:
    """They are JSON in a string, which nobody has counted: a list of two bytes becomes one of 56."""
    text = '{"a": [' + ",".join(["[]"] * (60_000 // calls)) + "]}"
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": text}}
    history = [*MESSAGES, {"role": "assistant", "tool_calls": [call] * calls}]
    async with bench() as made:
        message, _ = await refused(made, 413, messages=history)
        assert message.startswith("body: ") and "lists, objects and keys, at most" in message


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
async def test_arguments_have_to_be_an_object(long: bool) -> None:
    text = '["' + "x" * (70_000 if long else 1)
    where = "messages[1].tool_calls[0].function.arguments"
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": text}}
    async with bench() as made:
        for arguments, got in ((text, "got a text that is not JSON"), (f'{text}"]', "got a list")):
            call["function"] = {"name": "weather", "arguments": arguments}
            history = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
            message, param = await refused(made, messages=history)
            assert param == where and message == f"{where}: expected an object as JSON text, {got}"


async def test_a_long_chat_is_rendered_by_the_service_s_own_threads() -> None:
    template = "{{ messages[0].content }}"  # and not the name, so that the prompt is short
    async with bench(text="Paris.", template=template) as made:
        with Counting(1) as executor:
            app = application(replace(made.service, executor=executor))
            for name, in_threads in (("Anna", 0), ("x" * 30_000, 1)):
                body = {"model": "gpt2", "messages": [{"role": "user", "content": "Hi", "name": name}]}
                async with Exchange(app, PATH, body) as exchange:
                    assert (await exchange.head())[0] == 200
                    await exchange.rest()
                assert executor.submitted == in_threads


async def test_the_template_gets_more_variables() -> None:
    async with bench(template="{{ messages[0].content }}{% if shout %}!{% endif %}") as made:
        await chat(made, chat_template_kwargs={"shout": True})
        assert made.generator.asked[0][0].text == MESSAGES[0]["content"] + "!"
        message, _ = await refused(made, chat_template_kwargs={"messages": []})
        assert message.startswith("chat_template_kwargs.messages: is given by the request itself")
        message, _ = await refused(made, chat_template_kwargs={"self": 1})
        assert message.startswith("chat_template_kwargs.self: is given")
        message, param = await refused(made, tools=TOOLS)
        assert message.startswith("tools: the chat template of 'gpt2' does not know tools") and param == "tools"


async def test_a_model_without_a_template_says_what_to_do() -> None:
    async with bench(chats=False) as made:
        message, param = await refused(made)
        assert message.startswith("model: 'gpt2' has no chat template") and "--chat_template" in message
        assert param == "model"


async def test_a_template_that_refuses_is_a_clients_mistake() -> None:
    async with bench(template="{{ raise_exception('roles must alternate') }}") as made:
        message, _ = await refused(made)
        assert "roles must alternate" in message


STRICT = {"type": "function", "function": {"name": "weather", "strict": True}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("fields", "says", "param"),
    [
        ({"messages": []}, "messages: expected a list of messages, got an empty list", "messages"),
        ({"messages": None}, "messages: expected a list of messages, got nothing", "messages"),
        ({"messages": ["Hi"]}, "messages[0]: expected an object, got a string", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected a string or", "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role: expected one of system", "messages[0].role"),
        ({"messages": [{"role": "me", "content": "x"}]}, "messages[0].role: expected one of", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0]: expected a part",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "audio": {}}]},
            "messages[0].audio: not understood here",
            "messages[0].audio",
        ),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens: means the same as", "max_tokens"),
        ({"top_logprobs": 3}, 'top_logprobs: needs "logprobs": true', "top_logprobs"),
        ({"logprobs": 3}, "logprobs: expected true or false, got a number", "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format: the model gives text", "response_format"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice: the model can't be made", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice: the model can't", "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice: there are no tools", "tool_choice"),
        ({"tools": [{"type": "x"}]}, "tools[0]: expected", "tools[0]"),
        ({"tools": [STRICT]}, "tools[0].function.strict: the model can't be held", "tools[0].function.strict"),
        ({"functions": []}, "functions: unknown, expected some of", "functions"),
        ({"prompt": "x"}, "prompt: unknown", "prompt"),
        ({"best_of": 1}, "best_of: unknown", "best_of"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], says: str, param: str) -> None:
    async with bench() as made:
        message, found = await refused(made, **fields)
        assert message.startswith(says) and found == param
        assert made.generator.asked == []


async def test_response_format_text_is_what_is_given_anyway() -> None:
    async with bench(text="Paris.") as made:
        assert (await chat(made, response_format={"type": "text"}))["choices"][0]["message"]["content"] == "Paris."


async def test_a_chat_that_is_too_long_is_named() -> None:
    async with bench() as made:
        message, _ = await refused(made, 413, messages=[{"role": "user", "content": "word " * 300}])
        assert message.startswith("messages: the prompt has ")
