"""Reasoning and calls of families in the Responses API: items, events in OpenAI's order, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.generating import ServedModel, answer_of, served_model
from tests.api.test_openai_responses import QUESTION, streamed
from tests.api.test_response_templates import EFFORTS, with_template
from tests.goldens.response_texts import FAMILIES

PATH = "/openai/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA}
ARGUMENTS = {"city": 'a </tool_call> "b" \u00fc'}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


async def whole(made: ServedModel, **fields: Any) -> Any:
    return await answer_of(made, PATH, {"model": "gpt2", "input": QUESTION, **fields})


def plain(items: list[Any]) -> list[Any]:
    """Items without what differs from answer to answer."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


async def test_the_events_of_reasoning_a_message_and_a_call() -> None:
    text = "<think>\nHm, so.\n</think>\n\nLet me see.\n" + FAMILIES["hermes"].calls([("weather", ARGUMENTS)])
    async with served_model(text=text) as made:
        with_template(made)
        events = await streamed(made, tools=[TOOL])
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert [kind for index, kind in enumerate(kinds) if kind != kinds[index - 1]] == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
            "completed",
        ]
        response = events[-1]["response"]
        reasoning, message, call = plain(response["output"])
        assert reasoning == {
            **{"type": "reasoning", "summary": [], "status": "completed"},
            "content": [{"type": "reasoning_text", "text": "Hm, so."}],
        }
        assert message["content"][0]["text"] == "Let me see." and call["name"] == "weather"
        assert kinds.count("function_call_arguments.delta") > 3, "arguments come as they are written"
        assert [event["output_index"] for event in events if event["type"].endswith("item.done")] == [0, 1, 2]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        answer = await whole(made, tools=[TOOL])
        assert plain(answer["output"]) == plain(response["output"]) and answer["usage"] == response["usage"]
        hidden = await whole(made, tools=[TOOL], include_reasoning=False)
        assert plain(hidden["output"]) == [message, call]
        assert hidden["usage"] == answer["usage"]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.parts[0] is not None])
async def test_calls_of_every_family(name: str) -> None:
    family = FAMILIES[name]
    thought = "" if family.reasoning is None else family.reasoning("Hm.")
    arguments = {"city": "Z\u00fcrich"}
    async with served_model(text=thought + family.calls([("weather", arguments)])) as made:
        with_template(made, str(family.parts[0]), family.parts[1])
        answers = (await whole(made, tools=[TOOL])), (await streamed(made, tools=[TOOL]))[-1]["response"]
        for output in [answer["output"] for answer in answers]:
            *before, call = output
            assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
            assert call["arguments"] == '{"city": "Z\u00fcrich"}'
            assert [item["type"] for item in before] == (["reasoning"] if thought else [])


async def test_log_probabilities_are_those_of_the_message() -> None:
    async with served_model(text="<think>Hm, so.</think>Yes, it is.") as made:
        with_template(made)
        include = ["message.output_text.logprobs"]
        parts = [
            (await whole(made, include=include))["output"][1]["content"][0],
            (await streamed(made, include=include))[-1]["response"]["output"][1]["content"][0],
        ]
        assert ["".join(token["token"] for token in part["logprobs"]) for part in parts] == ["Yes, it is."] * 2


async def test_reasoning_that_is_cut_is_an_incomplete_item() -> None:
    async with served_model(text="<think>Hm, so.</think>Yes.") as made:
        with_template(made)
        answer = await whole(made, max_output_tokens=10)
        assert (answer["status"], [item["status"] for item in answer["output"]]) == ("incomplete", ["incomplete"])
        assert answer["output"][0]["type"] == "reasoning"


@pytest.mark.parametrize(
    ("items", "reasoning"),
    [
        ([REASONING, {"role": "assistant", "content": "Yes."}], "Hm."),
        ([REASONING, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}], "Hm."),
        ([REASONING, REASONING, {"role": "assistant", "content": "Yes."}], "Hm.\nHm."),
        ([{"type": "reasoning", "summary": [], "id": "rs_1"}, {"role": "assistant", "content": "Yes."}], ""),
        ([{**REASONING, "content": None}, {"role": "assistant", "content": "Yes."}], ""),
        ([REASONING, {"role": "user", "content": "And?"}], ""),
        ([{"type": "item_reference", "id": "rs_1"}, {"role": "assistant", "content": "Yes."}], ""),
    ],
)
async def test_reasoning_goes_back_into_the_template(items: list[Any], reasoning: str) -> None:
    async with served_model(template=EFFORTS) as made:
        await whole(made, input=[{"role": "user", "content": "Where?"}, *items, {"role": "user", "content": "So?"}])
        assert made.generator.asked[-1][0].text.removeprefix("Where?").strip() == reasoning


async def test_an_invalid_part_of_reasoning_is_named() -> None:
    async with served_model() as made:
        items = [{**REASONING, "content": [{"type": "reasoning_text"}]}, {"role": "user", "content": "a"}]
        answer = await answer_of(made, PATH, {"model": "gpt2", "input": items}, 400)
        assert answer["error"]["param"].startswith("input[0].content")


async def test_items_have_the_order_of_the_text() -> None:
    call = FAMILIES["hermes"].calls([("weather", {"city": "Paris"})])
    text = f"{call} Then:\n{call}<think>Hm.</think>Done."
    wanted = ["function_call", "message", "function_call", "reasoning", "message"]
    async with served_model(text=text) as made:
        with_template(made)
        response = (await streamed(made, tools=[TOOL]))[-1]["response"]
        answer = await whole(made, tools=[TOOL])
        scored = await whole(made, tools=[TOOL], include=["message.output_text.logprobs"])
    assert [item["type"] for item in answer["output"]] == wanted
    assert plain(answer["output"]) == plain(response["output"])
    texts = [item["content"][0] for item in scored["output"] if item["type"] == "message"]
    assert ["".join(token["token"] for token in text["logprobs"]).strip() for text in texts] == ["Then:", "Done."]


async def test_a_call_that_the_model_does_not_complete_is_an_incomplete_item() -> None:
    async with served_model(text='<tool_call>{"name": "weather", "arguments": {"city": "Par') as made:
        with_template(made)
        response = (await streamed(made, tools=[TOOL]))[-1]["response"]
        answer = await whole(made, tools=[TOOL])
    for [call] in (response["output"], answer["output"]):
        assert call["type"] == "function_call" and call["status"] == "incomplete"
        assert call["arguments"] == '{"city": "Par'
