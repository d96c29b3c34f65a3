"""Answers of the generative APIs have the declared types, which /openapi.json shows."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from msgspec import convert

from hf_transformer.api.generate import GenerateResponse
from hf_transformer.api.openai.answers import (
    RESPONSE_EVENTS,
    ChatChunk,
    ChatResponse,
    CompletionChunk,
    CompletionResponse,
    ResponsesAnswer,
)
from hf_transformer.api.rendered import RenderedRequest
from hf_transformer.errors import PredictorError
from tests.api.generating import PROMPT, ServedModel, answer_of, served_model
from tests.api.test_openai_responses import CALL, LOGPROBS, TOOL, streamed
from tests.api.test_response_templates import with_template

FUNCTION = {name: value for name, value in TOOL.items() if name != "type"}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
MESSAGES = [{"role": "user", "content": PROMPT}]
USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EVENTS = {name: kind for kind in RESPONSE_EVENTS for name in get_args(get_type_hints(kind)["type"])}
"""The types of events by name."""


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2, "echo": True, "n": 2}, {"logprobs": 0}], ids=str)
async def test_completions(made: ServedModel, fields: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, **fields}
    convert(await answer_of(made, "/openai/v1/completions", {**body, "prompt_logprobs": 1}), CompletionResponse)
    for options in ({"stream": True}, USAGE):
        *chunks, done = await answer_of(made, "/openai/v1/completions", {**body, **options})
        assert done == "[DONE]" and len(convert(chunks, list[CompletionChunk])) > 1


@pytest.mark.parametrize("fields", [{}, TOOLS, {"logprobs": True, "top_logprobs": 1}], ids=["text", "call", "logprobs"])
async def test_chats(fields: dict[str, Any]) -> None:
    async with served_model(text=f"Well. {CALL}") as made:
        body = {"messages": MESSAGES, **fields}
        whole = await answer_of(made, "/openai/v1/chat/completions", {**body, "prompt_logprobs": 1})
        assert len(convert(whole, ChatResponse).choices) == 1
        for options in ({"stream": True}, USAGE):
            *chunks, _ = await answer_of(made, "/openai/v1/chat/completions", {**body, **options})
            assert len(convert(chunks, list[ChatChunk])) > 1


async def test_responses_and_their_events() -> None:
    seen = set()
    async with served_model(text=f"Well. {CALL}") as made:
        for fields in ({}, {"max_output_tokens": 2}, LOGPROBS, {"tools": [TOOL], "metadata": {"a": "b"}}):
            convert(await answer_of(made, "/openai/v1/responses", {"input": PROMPT, **fields}), ResponsesAnswer)
            for number, event in enumerate(await streamed(made, **fields)):
                convert({**event, "sequence_number": number}, EVENTS[event["type"]])
                seen.add(event["type"])
    async with served_model(text="<think>Hm.</think>Yes.") as made:
        with_template(made)
        convert(await answer_of(made, "/openai/v1/responses", {"input": PROMPT}), ResponsesAnswer)
        for number, event in enumerate(await streamed(made)):
            convert({**event, "sequence_number": number}, EVENTS[event["type"]])
            seen.add(event["type"])
        body = {"messages": MESSAGES, "stream_options": {"include_usage": True}, "stream": True}
        assert convert((await answer_of(made, "/openai/v1/chat/completions", body))[:-1], list[ChatChunk])
        convert(await answer_of(made, "/openai/v1/chat/completions", {"messages": MESSAGES}), ChatResponse)
    async with served_model(text="Well. Yes.", fails=PredictorError("it broke"), after=2) as made:
        last = (await streamed(made))[-1]
        convert({**last, "sequence_number": 0}, EVENTS[last["type"]])
        seen.add(last["type"])
    assert seen == set(EVENTS), "each event is sent"


async def test_generate_and_render(made: ServedModel) -> None:
    extra = dict.fromkeys(("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"), True)
    for fields in ({}, {"id": "7", **extra}, {"n": 2, "temperature": 0.5, **extra}):
        body = {"text_input": PROMPT, **fields}
        convert(await answer_of(made, "/v2/models/gpt2/generate", body), GenerateResponse)
        events = await answer_of(made, "/v2/models/gpt2/generate_stream", body)
        assert len(convert(events, list[GenerateResponse])) > 1
    options = {"return_token_offsets": True, "stream": True, "stream_options": {"include_usage": True}}
    body = {"prompt": [PROMPT, "a"], **options}
    assert len(convert(await answer_of(made, "/v1/completions/render", body), list[RenderedRequest])) == 2
    chat = await answer_of(made, "/v1/chat/completions/render", {"messages": MESSAGES, **options})
    assert convert(chat, RenderedRequest).stream
