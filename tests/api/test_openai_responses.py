"""OpenAI's responses, whole and as a stream, over a scripted model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_transformer.errors import InvalidInput, PredictorError, RequestError, TooManyRequests
from tests.api.generating import Exchange, ServedModel, answer_of, openai_error, served_model

PATH, CHATS = "/openai/v1/responses", "/openai/v1/chat/completions"
QUESTION = "What is the capital of france?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA}
ASKED = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
MESSAGE = {"type": "message", "role": "assistant", "status": "completed"}
FUNCTION_CALL = {"type": "function_call", "name": "weather", "arguments": '{"city": "Paris"}', "status": "completed"}


async def respond(made: ServedModel, **fields: Any) -> Any:
    return await answer_of(made, PATH, {"model": "gpt2", "input": QUESTION, **fields}, x_request_id="7")


async def refused(made: ServedModel, status: int = 400, **fields: Any) -> tuple[str, str | None]:
    return await openai_error(made, PATH, {"model": "gpt2", "input": QUESTION, **fields}, status)


async def streamed(made: ServedModel, **fields: Any) -> list[Any]:
    """The events of a stream. Asserts their names and numbers."""
    body = {"model": "gpt2", "input": QUESTION, "stream": True, **fields}
    async with Exchange(made.app, PATH, body, x_request_id="7") as exchange:
        status, headers = await exchange.head()
        content = (await exchange.rest()).decode()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    events = []
    for number, block in enumerate(content.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}" and events[-1].pop("sequence_number") == number
    return events


def asked(made: ServedModel) -> str:
    """The prompt of the last request."""
    text: str = made.generator.asked[-1][0].text
    return text


def without_ids(items: list[Any]) -> list[Any]:
    """Copies of items without the ids, whose prefixes it asserts."""
    for item in items:
        assert item["id"].startswith("msg_" if item["type"] == "message" else "fc_")
        assert item["type"] == "message" or item["call_id"].startswith("call_")
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def message_item(text: str, status: str = "completed", logprobs: Any = ()) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}
    return {**MESSAGE, "status": status, "content": [part]}


async def test_a_response_repeats_the_request_and_counts_as_a_chat() -> None:
    async with served_model(text="Paris.") as made:
        answer = await respond(made)
        messages = [{"role": "user", "content": QUESTION}]
        usage = (await answer_of(made, CHATS, {"model": "gpt2", "messages": messages}))["usage"]
        assert len({sent.text for sent, _ in made.generator.asked}) == 1, "the prompt is that of a chat"
        assert answer.pop("usage") == {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        assert isinstance(answer.pop("created_at"), int)
        assert without_ids(answer.pop("output")) == [message_item("Paris.")]
        none = "error incomplete_details instructions max_output_tokens previous_response_id prompt_cache_key user"
        assert answer == {
            **dict.fromkeys(none.split()),
            **{"id": "resp_7", "object": "response", "model": "gpt2", "status": "completed", "background": False},
            **{"metadata": {}, "parallel_tool_calls": True, "reasoning": {}, "service_tier": "default"},
            **{"store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto"},
            **{"tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled"},
        }
        request = {
            **{"instructions": "Be brief.", "max_output_tokens": 30, "temperature": 0.5, "top_p": 0.5, "user": "me"},
            **{"metadata": {"a": "b"}, "parallel_tool_calls": False, "tool_choice": "none", "tools": [TOOL]},
            **{"text": {"verbosity": "medium", "format": None}, "reasoning": {"effort": "none"}, "top_logprobs": 1},
        }
        answer = await respond(made, **request, store=None, safety_identifier="me", priority=0, background=False)
        request |= {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "tools": [{**TOOL, "strict": False}]}
        assert {name: answer[name] for name in request} == request
        [*_, (_, sampling)] = made.generator.asked
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (30, 0.5, 0.5)


async def test_a_stream_adds_up_to_the_response() -> None:
    async with served_model(text="Paris is large.") as made:
        created, running, added, part, *deltas, text, whole, item, completed = await streamed(made, temperature=0)
        about = created["response"]
        assert created == {"type": "response.created", "response": about}
        assert running == {"type": "response.in_progress", "response": about}
        assert (about["id"], about["status"], about["output"], about["usage"]) == ("resp_7", "in_progress", [], None)
        location = {"item_id": item["item"]["id"], "output_index": 0, "content_index": 0}
        begun = {**MESSAGE, "id": location["item_id"], "status": "in_progress", "content": []}
        assert added == {"type": "response.output_item.added", "output_index": 0, "item": begun}
        assert part == {"type": "response.content_part.added", **location, "part": message_item("")["content"][0]}
        assert len(deltas) > 2
        for event in deltas:
            delta = event.pop("delta")
            assert delta and event == {"type": "response.output_text.delta", **location, "logprobs": []}
            event["delta"] = delta
        assert "".join(event["delta"] for event in deltas) == "Paris is large."
        assert text == {"type": "response.output_text.done", **location, "text": "Paris is large.", "logprobs": []}
        assert whole == {
            "type": "response.content_part.done",
            **location,
            "part": message_item("Paris is large.")["content"][0],
        }
        assert item["type"] == "response.output_item.done" and without_ids([item["item"]]) == [
            message_item("Paris is large.")
        ]
        answer = await respond(made, temperature=0)
        changes = {"output": [item["item"]], "created_at": about["created_at"]}
        assert completed == {"type": "response.completed", "response": {**answer, **changes}}


async def test_calls_are_items_of_their_own() -> None:
    async with served_model(text=f"Let me see.\n{CALL}\n{CALL}") as made:
        answer = await respond(made, tools=[TOOL])
        output = answer["output"]
        assert without_ids(output) == [message_item("Let me see."), FUNCTION_CALL, FUNCTION_CALL]
        assert len({item["id"] for item in output}) == 3 and output[1]["call_id"] != output[2]["call_id"]
        assert answer["status"] == "completed"
        assert '{"type": "function", "function": {"name": "weather", "description": "The weather.", "par' in asked(made)
        events = await streamed(made, tools=[{**dict(reversed(TOOL.items())), "strict": None}])
        assert asked(made) == made.generator.asked[-2][0].text, "in the order of chats"
        assert without_ids(events[-1]["response"]["output"]) == without_ids(output)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        for index, item in enumerate(done[1:], 1):
            location = {"item_id": item["id"], "output_index": index}
            first, *pieces, done, last = [event for event in events if event.get("output_index") == index]
            begun = {**item, "arguments": "", "status": "in_progress"}
            assert first == {"type": "response.output_item.added", "output_index": index, "item": begun}
            assert len(pieces) > 1 and "".join(piece.pop("delta") for piece in pieces) == '{"city": "Paris"}'
            assert all(piece == {"type": "response.function_call_arguments.delta", **location} for piece in pieces)
            assert done == {
                **{"type": "response.function_call_arguments.done", **location},
                **{"name": "weather", "arguments": '{"city": "Paris"}'},
            }
            assert last == {"type": "response.output_item.done", "output_index": index, "item": item}
        answer = await respond(made, tools=[TOOL], parallel_tool_calls=False)
        assert without_ids(answer["output"]) == [message_item("Let me see."), FUNCTION_CALL]
    async with served_model(text=CALL) as made:
        assert without_ids((await respond(made, tools=[TOOL]))["output"]) == [FUNCTION_CALL], "no empty message"
        for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
            assert without_ids((await respond(made, **fields))["output"]) == [message_item(CALL)]
    async with served_model(text=f"{CALL} Well.") as made:
        output = (await streamed(made, tools=[TOOL]))[-1]["response"]["output"]
        assert without_ids(output) == [FUNCTION_CALL, message_item("Well.")]


async def test_a_response_at_its_limit_is_incomplete() -> None:
    async with served_model(text="Paris is large.") as made:
        answer = await respond(made, max_output_tokens=2)
        assert (answer["status"], answer["usage"]["output_tokens"]) == ("incomplete", 2)
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in answer["output"]] == ["incomplete"]
        last = (await streamed(made, max_output_tokens=2))[-1]
        assert last["type"] == "response.incomplete"
        assert {**last["response"], **{name: answer[name] for name in ("output", "created_at")}} == answer
    async with served_model(text="") as made:
        assert without_ids((await respond(made))["output"]) == [message_item("")]
        assert without_ids((await streamed(made))[-1]["response"]["output"]) == [message_item("")]


@pytest.mark.parametrize("text", ["Paré.", f"Paré. {CALL}"], ids=["text", "call"])
async def test_logprobs(text: str) -> None:
    async with served_model(text=text) as made:
        [message, *_] = (await respond(made, tools=[TOOL], **LOGPROBS))["output"]
        tokens = message["content"][0]["logprobs"]
        assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == "Paré."
        assert {token["logprob"] for token in tokens} == {-0.5}
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)
        events = await streamed(made, tools=[TOOL], **LOGPROBS)
        shown = [token for event in events if event["type"].endswith("text.delta") for token in event["logprobs"]]
        assert shown and shown == tokens[: len(shown)]
        done = [event["logprobs"] for event in events if event["type"] == "response.output_text.done"]
        assert done == [tokens] == [events[-1]["response"]["output"][0]["content"][0]["logprobs"]]
        [message, *_] = (await respond(made, tools=[TOOL], include=LOGPROBS["include"]))["output"]
        assert [token["top_logprobs"] for token in message["content"][0]["logprobs"]] == [[]] * len(tokens)
        [message, *_] = (await respond(made, tools=[TOOL], top_logprobs=2))["output"]
        assert message["content"][0]["logprobs"] == tokens, "also without include"


SEEN = "{% for m in messages %}[{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}]{% endfor %}"
CALLS = '{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}'


@pytest.mark.parametrize(
    ("items", "rendered"),
    [
        ("Hi", "[user: Hi]"),
        ([{"role": "user", "content": "Hi", "type": None}], "[user: Hi]"),
        ([{"type": "message", "role": "developer", "content": "Hi"}], "[system: Hi]"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            "[user: a\nb]",
        ),
        # As the answers of this service, which clients send back.
        ([{**message_item("x"), "id": "msg_1"}, {"role": "user", "content": "y"}], "[assistant: x][user: y]"),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final_answer"}],
            "[assistant: No.]",
        ),
        ([ASKED, RESULT], f"[assistant: [{CALLS}]][tool: sunny]"),
        (
            [{**MESSAGE, "content": "x"}, {**ASKED, "id": "fc_1", "status": "completed"}, ASKED, RESULT],
            f"[assistant: x[{CALLS}, {CALLS}]][tool: sunny]",
        ),
        ([{**RESULT, "output": [{"type": "input_text", "text": "sunny"}]}], "[tool: sunny]"),
        (
            [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}, {**MESSAGE, "content": "x"}],
            "[assistant: x]",
        ),
    ],
    ids="string null developer parts answer refusal call joined output reasoning".split(),
)
async def test_items_become_messages(items: Any, rendered: str) -> None:
    async with served_model(template=f"{SEEN}{{{{ tools }}}}") as made:
        await respond(made, input=items)
        assert asked(made) == f"{rendered}None"
        await respond(made, input=items, instructions="Be brief.", include=["reasoning.encrypted_content"])
        assert asked(made) == f"[system: Be brief.]{rendered}None"


IMAGE = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]
REMOTE = {"properties": {"a": {"$ref": "http://x"}}}
DEEP = json.dumps({"a": json.loads("[" * 70 + "]" * 70)})
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ["Hi"]}, "input[0]: expected an object, got a string"),
    ({"input": [{"content": "x"}]}, "input[0].role: expected one of user, assistant, system, developer, got nothing"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role: expected one of user"),
    ({"input": [{"role": "user"}]}, "input[0].content: expected a string or a list of parts, got nothing"),
    (
        {"input": [{"role": "user", "content": "x", "name": "y"}]},
        "input[0].name: expected one of type, id, status, role",
    ),
    ({"input": [{"role": "user", "content": IMAGE}]}, "input[0].content[1].type: expected one of input_text"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]: expected a part"),
    ({"input": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "input[0].content[0].type: expected one"),
    ({"input": [{"type": ["message"]}]}, "input[0]: expected one of the types message, function_call"),
    (
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        "input[0]: expected one of the types message, function_call, function_call_output, reasoning, got "
        "'item_reference'; the service stores nothing; send the item itself",
    ),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]: expected one of the types message"),
    (
        {"input": [{"role": "user", "content": "x"}, ASKED, {**ASKED, "arguments": "{"}], "instructions": "x"},
        "input[2].arguments: expected an object as JSON text, got invalid JSON",
    ),
    ({"input": [{**RESULT, "output": None}]}, "input[0].output: expected a string or a list of parts, got nothing"),
    ({"input": [{**RESULT, "output": IMAGE}]}, "input[0].output[1].type: expected one"),
    ({"max_output_tokens": 2, "min_tokens": 3}, "min_tokens: "),
    (
        {"tools": [{**TOOL, "parameters": REMOTE}], "tool_choice": "required"},
        "tools[0].parameters.$ref: expected a ref",
    ),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex: expected a string"),
    (
        {"tools": [{"type": "web_search"}]},
        "tools[0].type: expected function, got 'web_search'; the service has no built-in",
    ),
    ({"tools": [TOOL, "x"]}, "tools[1]: expected"),
    ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools[0].function: expected one of type, name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name: expected one of weather"),
    ({"tool_choice": "required"}, "tool_choice: expected no choice without tools"),
    ({"stream_options": {"include_usage": True}}, "stream_options: expected no options without a stream"),
    ({"model": "bert"}, "model: expected a served model (gpt2), got 'bert'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
async def test_errors_name_the_fields_of_this_api(fields: dict[str, Any], message: str) -> None:
    async with served_model() as made:
        found, param = await refused(made, 404 if "model" in fields else 400, **fields)
        assert found.startswith(message), found
        assert param == message.partition(":")[0]


async def test_limits_and_models_without_support_are_errors() -> None:
    async with served_model() as made:
        assert (await refused(made, 413, tools=[TOOL] * 129))[0] == "tools: expected at most 128 tools, got 129"
        assert (await refused(made, 413, top_logprobs=21))[1] == "top_logprobs"
        items = [{"role": "user", "content": "x"}, {**ASKED, "arguments": DEEP}]
        assert (await refused(made, 413, input=items))[1] == "input[1].arguments"
    async with served_model(template="{{ raise_exception('roles must alternate') }}") as made:
        message, param = await refused(made)
        assert param == "input" and message.endswith("roles must alternate")
    async with served_model(supported_fields=["temperature"]) as made:
        assert (await refused(made, include=LOGPROBS["include"]))[1] == "include"
        assert (await refused(made, top_logprobs=2))[1] == "top_logprobs"
    async with served_model(chats=False) as made:
        assert (await refused(made))[1] == "model"


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (PredictorError("the predictor failed"), "server_error", None),
        (TooManyRequests("no room"), "rate_limit_exceeded", None),
        (InvalidInput(("parameters", "top_k"), "another number"), "invalid_prompt", "top_k"),
        (InvalidInput("messages", "a shorter chat"), "invalid_prompt", "input"),
    ],
    ids=["predictor", "room", "field", "input"],
)
async def test_an_error_in_a_stream_is_a_failed_response(error: RequestError, code: str, param: str | None) -> None:
    async with served_model(text="Paris is large.", fails=error, after=2) as made:
        *events, last = await streamed(made)
        response = last["response"]
        assert (last["type"], response["status"], response["usage"]) == ("response.failed", "failed", None)
        [item] = response["output"]
        text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
        assert text and without_ids([item]) == [message_item(text, "incomplete")]
        about = response["error"]
        assert (about["code"], about["param"]) == (code, param)
        assert str(error).rpartition(": ")[2] in about["message"]
    async with served_model(text="Paris is large.", fails=error) as made:
        assert (await refused(made, error.status, stream=True))[1] == param, "before the first event"


FORMAT = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
CALLS = '[{"name": "weather", "arguments": {"city": "a"}}, {"name": "weather", "arguments": {"city": "b"}}]'


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"text": {"format": FORMAT}}, "json_schema"),
        ({"text": {"format": {"type": "json_object"}}}, "json_object"),
        ({"structured_outputs": {"regex": "a"}}, "regex"),
        ({"tools": [{**TOOL, "strict": True}]}, "tool"),
        ({"tools": [TOOL], "text": {"format": FORMAT}}, "tool"),
    ],
    ids="schema object regex strict tools_with_schema".split(),
)
async def test_a_text_is_constrained_as_in_chats(fields: dict[str, Any], kind: str) -> None:
    async with served_model(text="{}") as made:
        answer = await respond(made, **fields)
        constraint = made.generator.asked[-1][1].constraint
        assert constraint is not None and constraint.kind == kind
        assert constraint.kind != "json_schema" or constraint.schema == SCHEMA
        assert answer["text"]["format"] == fields.get("text", {}).get("format", {"type": "text"})
        assert [tool["strict"] for tool in answer["tools"]] == [tool.get("strict", False) for tool in answer["tools"]]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}], ids=["required", "named"])
async def test_forced_calls_stream_as_they_are_written(choice: Any) -> None:
    text = CALLS if choice == "required" else '{"city": "a"}'
    async with served_model(text=text) as made:
        answer = await respond(made, tools=[TOOL], tool_choice=choice)
        output, count = answer["output"], 2 if choice == "required" else 1
        expected = [{**FUNCTION_CALL, "arguments": json.dumps({"city": city})} for city in "ab"[:count]]
        assert without_ids(output) == expected and answer["tool_choice"] == choice
        events = await streamed(made, tools=[TOOL], tool_choice=choice)
        assert without_ids(events[-1]["response"]["output"]) == expected
        for index in range(count):
            deltas = [one["delta"] for one in events if "delta" in one and one["output_index"] == index]
            assert len(deltas) > 2 and "".join(deltas) == expected[index]["arguments"]
        cut = await respond(made, tools=[TOOL], tool_choice=choice, max_output_tokens=2)
        assert cut["status"] == "incomplete" and {item["status"] for item in cut["output"]} == {"incomplete"}
