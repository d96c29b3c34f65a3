"""OpenAI's chat completions, whole and as a stream, over a scripted model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hf_transformer.api.document.build import EVERYTHING, build
from hf_transformer.tasks.base import GenerationSettings
from tests.api.generating import (
    Exchange,
    ServedModel,
    answer_of,
    openai_error,
    served_model,
    template_of,
    tokenizer_of,
)

PATH = "/openai/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "What is the capital of france?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def chat(made: ServedModel, **fields: Any) -> Any:
    return await answer_of(made, PATH, {"model": "gpt2", "messages": MESSAGES, **fields}, x_request_id="7")


async def refused(made: ServedModel, status: int = 400, **fields: Any) -> tuple[str, str | None]:
    return await openai_error(made, PATH, {"model": "gpt2", "messages": MESSAGES, **fields}, status)


def asked(made: ServedModel) -> str:
    """The prompt of the last request."""
    text: str = made.generator.asked[-1][0].text
    return text


def logprobs_of(chunks: list[Any]) -> list[Any]:
    """The logprobs of the first choice in all chunks with any."""
    return [one for chunk in chunks if (one := chunk["choices"][0]["logprobs"])]


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    return [one["delta"] for chunk in chunks for one in chunk["choices"] if one["index"] == index]


async def test_the_response_has_the_form_of_kserve_s_example() -> None:
    async with served_model(text="Paris.") as made:
        answer = await chat(made)
        created, used = answer.pop("created"), answer.pop("usage")
        assert isinstance(created, int)
        [(sent, sampling)] = made.generator.asked
        assert sent.text == template_of(tokenizer_of()).render(MESSAGES) and not sent.special_tokens
        assert sampling.max_tokens == 256 - len(sent.ids)
        prompt, new = len(sent.ids), len(made.tokenizer.encode(["Paris."])[0].ids)
        assert used == {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        message = {"content": "Paris.", "role": "assistant", "refusal": None}
        assert answer == {
            "id": "chatcmpl-7",
            "object": "chat.completion",
            "model": "gpt2",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        }


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    async with served_model(text="Paris is large.") as made:
        *chunks, last, done = await chat(made, stream=True, stream_options={"include_usage": True})
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        first, *middle, end = deltas(chunks)
        assert first == {"role": "assistant", "content": ""} and end == {}
        assert "".join(one["content"] for one in middle) == "Paris is large."
        reasons = [one["finish_reason"] for chunk in chunks for one in chunk["choices"]]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
        assert last["choices"] == [] and last["usage"] == (await chat(made))["usage"]
        assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)


@pytest.mark.parametrize("continuous", [False, None, True])
async def test_usage_is_in_the_last_chunk_or_in_all(continuous: bool | None) -> None:
    async with served_model(text="Paris is large.") as made:
        options = {"include_usage": True, "continuous_usage_stats": continuous}
        *chunks, last, done = await chat(made, stream=True, stream_options=options)
        assert done == "[DONE]" and last["choices"] == []
        usage = (await chat(made))["usage"]
        assert last["usage"] == usage
        if not continuous:
            assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
            return
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts) and len(set(counts)) > 2
        assert chunks[-1]["usage"] == usage
        for one in (chunk["usage"] for chunk in chunks):
            assert one["prompt_tokens"] == usage["prompt_tokens"]
            assert one["total_tokens"] == one["prompt_tokens"] + one["completion_tokens"]


async def test_each_choice_begins_with_a_role() -> None:
    async with served_model(text="Paris.") as made:
        *chunks, _ = await chat(made, n=3, stream=True)
        for index in range(3):
            first, *rest = deltas(chunks, index)
            assert first["role"] == "assistant"
            assert "".join(one.get("content", "") for one in rest) == "Paris."


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "--max_new_tokens"])
async def test_new_tokens_are_limited(name: str) -> None:
    flag = name.startswith("--")
    async with served_model(
        text="Paris is large.", settings=GenerationSettings(max_new_tokens=2 if flag else None)
    ) as made:
        found = await chat(made, **({} if flag else {name: 2}))
        assert found["choices"][0]["finish_reason"] == "length" and found["usage"]["completion_tokens"] == 2


@either_way
async def test_logprobs(stream: bool) -> None:
    async with served_model(text="Paré.") as made:
        for top, fields in ((2, {"top_logprobs": 2}), (0, {})):
            answer = await chat(made, logprobs=True, stream=stream, **fields)
            chunks = answer[:-1] if stream else [answer]
            tokens = [
                token for chunk in chunks for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            ]
            assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == "Paré."
            assert {token["logprob"] for token in tokens} == {-0.5}
            assert all(token["refusal"] is None for token in logprobs_of(chunks))
            assert all(len(token["top_logprobs"]) == top for token in tokens)
            assert not top or all(token["top_logprobs"][0]["bytes"] == token["bytes"] for token in tokens)


async def test_prompt_logprobs_stand_beside_the_choices(made: ServedModel) -> None:
    """As in vLLM, where the choices of a completion have them."""
    answer = await chat(made, prompt_logprobs=0, n=2)
    first, *others = answer["prompt_logprobs"]
    ids = made.generator.asked[0][0].ids
    assert first is None and [list(one) for one in others] == [[str(token)] for token in ids[1:]]
    assert all(one[key]["logprob"] == -1.5 and one[key]["rank"] == 3 for one in others for key in one)
    assert all("prompt_logprobs" not in one and one["logprobs"] is None for one in answer["choices"])
    message, param = await refused(made, prompt_logprobs=0, stream=True)
    assert param == "prompt_logprobs" and "expected no value with a stream" in message


MARK = {"cache_control": {"type": "ephemeral"}}
NOTHING = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        ({"content": [{"type": "text", "text": "What"}, {"type": "text", "text": "?"}]}, "user: What\n?"),
        ({"role": "developer", "content": "Be brief."}, "system: Be brief."),
        ({"content": "Hi", "name": "Anna"}, "user Anna: Hi"),
        # As message.model_dump() of the openai package has an answer.
        ({"role": "assistant", "content": "x", **NOTHING}, "assistant: x"),
        ({"role": "assistant", "content": "x", **NOTHING, "annotations": [], "tool_calls": []}, "assistant: x"),
        ({"role": "assistant", "refusal": "I can't."}, "assistant: I can't."),
        ({"role": "assistant", "refusal": "I can't.", "content": ""}, "assistant: I can't."),
        ({"role": "assistant", "content": "x", "refusal": ""}, "assistant: x"),
        ({"content": "x", "tool_calls": [], "annotations": []}, "user: x"),
        ({"content": [{"type": "text", "text": "x", **MARK}], **MARK}, "user: x"),
    ],
    ids="parts developer name nulls empty_lists refusal refused no_refusal no_calls cache_control".split(),
)
async def test_messages_are_rendered_from_all_their_forms(message: dict[str, Any], rendered: str) -> None:
    seen = "{{ m.role }}{{ ' ' + m.name if m.name else '' }}: {{ m.content }}"
    unseen = "{{ '!' if 'tool_calls' in m or 'annotations' in m or 'refusal' in m else '' }}"
    async with served_model(template=f"{{% set m = messages[0] %}}{seen}{unseen}") as made:
        await chat(made, messages=[{"role": "user", **message}])
        assert asked(made) == rendered


async def test_tools_are_rendered_and_calls_are_parsed() -> None:
    async with served_model(text=f"Let me see.\n{CALL}") as made:
        [choice] = (await chat(made, tools=[{**one, **MARK} for one in TOOLS]))["choices"]
        assert "cache_control" not in asked(made)
        assert '"name": "weather"' in asked(made)
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Let me see."
        [call] = choice["message"]["tool_calls"]
        assert call.keys() == {"id", "type", "function"} and call["type"] == "function"
        assert call["id"].startswith("call_") and call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


async def test_a_stream_has_calls_as_they_are_written() -> None:
    async with served_model(text=f"{CALL}\n{CALL}") as made:
        *chunks, _ = await chat(made, tools=TOOLS, tool_choice="auto", stream=True)
        calls = [call for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
        assert len(calls) > 4 and len({call["id"] for call in calls if "id" in call}) == 2
        for index in (0, 1):
            arguments = [call["function"]["arguments"] for call in calls if call["index"] == index]
            assert json.loads("".join(arguments)) == {"city": "Paris"}
        assert "".join(delta.get("content", "") for delta in deltas(chunks)).strip() == ""
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@either_way
async def test_parallel_tool_calls_false_returns_one_call(stream: bool) -> None:
    async with served_model(text=f"{CALL}{CALL}") as made:
        answer = await chat(made, tools=TOOLS, parallel_tool_calls=False, stream=stream)
        if stream:
            calls = [call for delta in deltas(answer[:-1]) for call in delta.get("tool_calls", ())]
        else:
            calls = answer["choices"][0]["message"]["tool_calls"]
        assert len([call for call in calls if "id" in call]) == 1


def history(arguments: Any, calls: int = 1) -> list[Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    return [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call] * calls}, answer]


async def test_tool_calls_in_messages_are_parsed_within_the_limits() -> None:
    where = "messages[1].tool_calls[0].function.arguments"
    async with served_model() as made:
        await chat(made, messages=history('{"city": "Paris"}'), tools=TOOLS)
        assert '{"name": "weather", "arguments": {"city": "Paris"}}' in asked(made) and "sunny" in asked(made)
        for text in ('["x', '["' + "x" * 70_000):
            for arguments, got in ((text, "invalid JSON"), (f'{text}"]', "a list")):
                message, param = await refused(made, messages=history(arguments))
                assert param == where and message == f"{where}: expected an object as JSON text, got {got}"
        # They are JSON in a string, which the limits of the body don't count: a list of two bytes becomes one of 56.
        for calls in (1, 20):
            text = '{"a": [' + ",".join(["[]"] * (60_000 // calls)) + "]}"
            message, param = await refused(made, 413, messages=history(text, calls))
            assert param is None and message.startswith("body: ") and "lists, objects and keys" in message
        assert (await refused(made, 413, tools=TOOLS * 129))[0] == "tools: expected at most 128 tools, got 129"
    async with served_model(text=CALL) as made:  # without tools a call is text
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            said = (await chat(made, **fields))["choices"][0]["message"]
            assert said["content"] == CALL and "tool_calls" not in said
            assert "weather" not in asked(made)


async def test_the_template_gets_variables_and_its_limits_are_errors() -> None:
    async with served_model(template="{{ messages[0].content }}{% if shout %}!{% endif %}") as made:
        await chat(made, chat_template_kwargs={"shout": True})
        assert asked(made) == f"{MESSAGES[0]['content']}!"
        for name in ("messages", "self"):
            message, param = await refused(made, chat_template_kwargs={name: []})
            assert param == f"chat_template_kwargs.{name}" and "the request itself sets it" in message
        message, param = await refused(made, tools=TOOLS)
        assert param == "tools" and "the chat template of 'gpt2' does not support them" in message
    async with served_model(chats=False) as made:
        message, param = await refused(made)
        assert param == "model" and "expected a model with a chat template, got 'gpt2'" in message
        assert "--chat_template" in message
    async with served_model(template="{{ raise_exception('roles must alternate') }}") as made:
        assert "roles must alternate" in (await refused(made))[0], "a client's mistake"


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": ["Hi"]}, "messages[0]: expected an object, got a string"),
    ({"messages": [{"content": "x"}]}, "messages[0].role: expected one of system"),
    ({"top_logprobs": 3}, "top_logprobs: expected 0 without logprobs, got 3"),
    ({"tool_choice": "auto"}, "tool_choice: expected no choice without tools"),
    ({"tools": [{"type": "x"}]}, "tools[0].type: expected function, got 'x'"),
    (tool(name=""), "tools[0].function.name: expected a string that is not empty"),
]
IN_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({}, "content: expected a string or a list of parts, got nothing"),
    ({"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "content[0].type: expected text"),
    ({"content": ["x"]}, 'content[0]: expected a part {"type": "text", "text": string}, got a string'),
    ({"content": [{"type": "text"}]}, "content[0].text: expected a string, got nothing"),
    ({"content": 7}, "content: expected a string or a list of parts, got a number"),
    ({"role": "assistant", "content": "x", "refusal": "y"}, "refusal: expected a content or a refusal, got both"),
    ({"refusal": "y"}, "refusal: expected no such field, got a string; only the assistant"),
    ({"content": "x", "cache_control": 5}, 'cache_control: expected {"type": "ephemeral"}, got a number'),
    ({"content": "x", "cache_control": {"type": "x"}}, "cache_control.type: expected ephemeral, got 'x'"),
    ({"content": "x", "tool_calls": ""}, "tool_calls: expected [], got ''; only the assistant"),
    ({"content": "x", "tool_calls": [{}]}, "tool_calls: expected [], got a list; only the assistant"),
    ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function: expected an object, got nothing"),
]
FIELDS += [({"messages": [{"role": "user", **one}]}, f"messages[0].{says}") for one, says in IN_MESSAGES]


async def test_errors_name_the_field(made: ServedModel) -> None:
    for fields, says in FIELDS:
        message, param = await refused(made, **fields)
        assert message.startswith(says) and param == says.partition(":")[0], (fields, message)
    assert made.generator.asked == []


async def test_values_without_effect_are_accepted() -> None:
    async with served_model(supported_fields=()) as made:
        for fields in (
            {"modalities": ["text"], "verbosity": "medium", "response_format": {"type": "text"}, "prediction": None},
            {"user": "me", "store": True, "service_tier": "auto", "metadata": {"a": "b"}, "stop_token_ids": []},
            {"safety_identifier": "abc", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "store": False},
            {"use_beam_search": False, "length_penalty": 1, "early_stopping": False, "priority": 0},
            {"skip_special_tokens": True, "spaces_between_special_tokens": True, "add_special_tokens": False},
            {"add_generation_prompt": True, "continue_final_message": False, "echo": False},
            {"reasoning_effort": "none", "include_stop_str_in_output": False, "length_penalty": 1.0},
            {"logprobs": False, "top_logprobs": 0, "logit_bias": {}, "chat_template_kwargs": {}, "tools": []},
        ):
            await chat(made, **fields)
        await chat(made, stream=True, stream_options={"include_obfuscation": False})


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [({"temperature": 0.5}, 400, "temperature"), ({"max_completion_tokens": 9}, 413, "max_completion_tokens")],
    ids=["unsupported", "too long"],
)
async def test_a_chat_that_the_model_can_t_answer_is_refused_before_its_template_is_rendered(
    fields: dict[str, Any], status: int, param: str
) -> None:
    settings, template = GenerationSettings(max_new_tokens=8), "{{ raise_exception('rendered') }}"
    async with served_model(template=template, supported_fields=[], settings=settings) as made:
        assert (await refused(made))[0].endswith("rendered")
        assert (await refused(made, status, **fields))[1] == param


SCHEMAS = build(EVERYTHING)["components"]["schemas"]
FULL: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}}],
            **MARK,
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": null}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object", "default": None}},
            **MARK,
        }
    ],
    "stream": True,
    "stream_options": {},
    "response_format": {"type": "text"},
    "chat_template_kwargs": {"style": "brief"},
}
WHOLE = "{{ messages | tojson }}{{ tools | tojson }}{{ style }}{{ vendor is defined }}"


def nulls(value: Any, schema: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths in ``value`` of all fields that its schema allows and it does not have, unknown ones included.

    It skips JSON schemas and arguments, whose nulls are the client's.
    """
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[1]]
    for member in schema.get("anyOf", ()):
        yield from nulls(value, member, where)
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from nulls(member, schema.get("items", {}), (*where, index))
    if not isinstance(value, dict) or "object" not in (schema.get("type") or ()) or where[-1:] == ("parameters",):
        return
    properties = schema.get("properties", {})
    unknown = ["vendor"] if schema.get("additionalProperties", True) else []
    yield from ((*where, name) for name in (*properties, *unknown) if name not in value)
    for name, member in value.items():
        yield from nulls(member, properties.get(name, {}), (*where, name))


PATHS = list(nulls({"model": "gpt2", **FULL}, SCHEMAS["ChatRequest"]))


def test_the_paths_of_nulls_cover_all_fields() -> None:
    paths = {".".join(map(str, path)) for path in PATHS}
    assert {
        "tools.0.function.strict",
        "tools.0.vendor",
        "tools.0.function.vendor",
        "messages.1.tool_calls.0.function.vendor",
        "messages.0.refusal",
        "stream_options.include_usage",
        "chat_template_kwargs.vendor",
        "top_logprobs",
    } <= paths


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
async def test_a_null_field_does_not_change_the_prompt(path: tuple[Any, ...]) -> None:
    async with served_model(template=WHOLE) as made:
        await chat(made, **FULL)
        before = asked(made)
        fields: Any = copy.deepcopy(FULL)
        within = fields
        for name in path[:-1]:
            within = within[name]
        within[path[-1]] = None
        await chat(made, **fields)
        assert asked(made) == before
        assert before.count("null") == 2, "the nulls of the schema and of the arguments stay"


async def test_strict_false_is_not_rendered() -> None:
    async with served_model(template=WHOLE) as made:
        for tool in TOOLS[0]["function"], {**TOOLS[0]["function"], "strict": False}:  # type: ignore[dict-item]
            await chat(made, tools=[{"type": "function", "function": tool}])
        assert made.generator.asked[-1][0].text == made.generator.asked[-2][0].text


async def test_nesting_is_limited() -> None:
    def deep(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"items": value}
        return value

    async with served_model(template="{{ (tools | tojson(indent=4) ~ messages | tojson) | length }}") as made:
        for levels, status in ((60, 200), (150, 413)):  # over 200, the body itself is refused
            tool = {"type": "function", "function": {"name": "f", "parameters": deep(levels)}}
            for where, fields in (
                ("tools", {"tools": [tool]}),
                ("chat_template_kwargs", {"chat_template_kwargs": deep(levels)}),
                ("messages[1].tool_calls[0].function.arguments", {"messages": history(json.dumps(deep(levels)))}),
                ("messages", {"messages": history(deep(levels))}),
            ):
                if status == 200:
                    await chat(made, **fields)
                else:
                    message, param = await refused(made, status, **fields)
                    assert param == where and "at most 64" in message


CALLED = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
HELD: list[tuple[dict[str, Any], list[str]]] = [
    ({"parsed": None}, []),
    ({"parsed": {"city": "Paris"}}, ["messages.parsed"]),
    ({"reasoning_details": [{"type": "reasoning.text", "text": "SECRET"}]}, ["messages.reasoning_details"]),
    ({"provider_specific_fields": {"x": "SECRET"}}, ["messages.provider_specific_fields"]),
    ({"thinking_blocks": [{"thinking": "SECRET"}]}, ["messages.thinking_blocks"]),
    ({"audio": {"id": "audio_1"}, "images": []}, ["messages.audio", "messages.images"]),
    ({"annotations": [{"type": "url_citation"}]}, ["messages.annotations"]),
    ({"annotations": [], "function_call": None, "refusal": None}, []),
    ({"content": [{"type": "thinking", "thinking": "SECRET"}, {"type": "text", "text": "Paris."}]},
     ["messages.content.thinking"]),
    ({"content": [{"type": "refusal", "refusal": "Paris."}]}, []),
    ({"tool_calls": [{**CALLED, "index": 0, "extra_content": {"x": "SECRET"}}]},
     ["messages.tool_calls.index", "messages.tool_calls.extra_content"]),
    ({"tool_calls": [{**CALLED, "function": {"name": "weather", "arguments": "{}", "parsed_arguments": "SECRET"}}]},
     ["tool_calls.function.parsed_arguments"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "noted"), HELD, ids=lambda value: ",".join(value))
async def test_fields_that_an_assistant_s_message_may_hold_are_noted(fields: dict[str, Any], noted: list[str]) -> None:
    async with served_model() as made:
        plain: dict[str, Any] = {"role": "assistant", "content": "Paris."}
        if "tool_calls" in fields:
            plain["tool_calls"] = [CALLED]
        await chat(made, messages=[*MESSAGES, plain, *MESSAGES])
        expected = asked(made)
        async with Exchange(made.app, PATH, {"messages": [*MESSAGES, plain | fields, *MESSAGES]}) as exchange:
            status, headers = await exchange.head()
        assert status == 200 and headers.get("x-ignored-parameters", "") == ", ".join(noted)
        assert asked(made) == expected and "SECRET" not in expected


@pytest.mark.parametrize(
    "thoughts",
    [{"reasoning_content": "x"}, {"reasoning": "x"}, {"reasoning_details": []}, {"thinking_blocks": [{}]}],
    ids=lambda fields: ",".join(fields),
)
async def test_a_message_of_thoughts_alone_has_an_empty_content(thoughts: dict[str, Any]) -> None:
    """A server answers so when max_tokens ends the thoughts."""
    unknown = f"messages[0].{next(iter(thoughts))}"
    async with served_model(template="{{ messages[0].content is string }} {{ messages[0].content | length }}") as made:
        for content in (None, [{"type": "thinking", "thinking": "x"}]):
            await chat(made, messages=[{"role": "assistant", "content": content, **thoughts}])
            assert asked(made) == "True 0"
        assert (await refused(made, messages=[{"role": "user", **thoughts}]))[1] in ("messages[0].content", unknown)
    for message in ({"role": "assistant"}, {"role": "assistant", "content": None, "parsed": None}):
        async with served_model() as made:
            assert (await refused(made, messages=[message]))[1] == "messages[0].content"


async def test_errors_count_the_parts_of_thoughts() -> None:
    async with served_model() as made:
        parts = [{"type": "thinking", "thinking": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]
        assert (await refused(made, messages=[{"role": "assistant", "content": parts}]))[
            1
        ] == "messages[0].content[1].type"
        thought_and_refusal = {"role": "assistant", "content": parts[:1], "refusal": "No."}
        await chat(made, messages=[thought_and_refusal])
        assert "No." in asked(made)


@pytest.mark.parametrize("role", ["user", "system", "tool"])
async def test_other_messages_have_known_fields_alone(role: str) -> None:
    async with served_model() as made:
        message = {"role": role, "content": "x", "tool_call_id": "1"}
        for field in ("parsed", "thinking_blocks"):
            assert (await refused(made, messages=[{**message, field: 1}]))[1] == f"messages[0].{field}"
        assert (await refused(made, messages=[{**message, "annotations": [1]}]))[1] == "messages[0].annotations"
        thought = [{"type": "thinking", "thinking": "x"}]
        assert (await refused(made, messages=[{**message, "content": thought}]))[1] == "messages[0].content[0].type"
        old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
        text, param = await refused(made, messages=[old])
        assert param == "messages[0].function_call" and text.endswith("; calls are in tool_calls")
