"""Anthropic's messages, whole and as a stream, over a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError, TooManyRequests
from tests.api.anthropic.asking import (
    CALL,
    COUNT,
    PATH,
    QUESTION,
    TOOL,
    asked,
    body_of,
    joined,
    message,
    refused,
    streamed,
    with_template,
    without_ids,
)
from tests.api.generating import ServedModel, answer_of, application, client_of, served_model

THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "hf_transformer"}
USE = {"type": "tool_use", "name": "weather", "input": {"city": "Paris"}}
ANSWER = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}"


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


async def test_a_message_and_its_count() -> None:
    async with served_model(text="Paris.") as made:
        answer = await message(made)
        tokens = answer["usage"]["input_tokens"]
        assert answer == {
            **{"id": "msg_7", "type": "message", "role": "assistant", "model": "gpt2", "content": [text("Paris.")]},
            **{"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                **{"input_tokens": tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
                "output_tokens": len(made.tokenizer.encode(["Paris."])[0].ids),
                "output_tokens_details": {"thinking_tokens": 0},
            },
        }
        chat = {"model": "gpt2", "messages": [QUESTION]}
        usage = (await answer_of(made, "/openai/v1/chat/completions", chat))["usage"]
        assert usage["prompt_tokens"] == tokens and len({sent.text for sent, _ in made.generator.asked}) == 1
        assert made.requests("anthropic", 200) == 1
        assert await answer_of(made, COUNT, chat) == {"input_tokens": tokens}


async def test_a_stream_adds_up_to_the_message() -> None:
    async with served_model(text=ANSWER) as made:
        with_template(made)
        whole, events = await message(made, tools=[TOOL]), await streamed(made, tools=[TOOL])
        assert without_ids(whole)["content"] == [THINKING, text("Let me see."), USE]
        assert whole["content"][2]["id"].startswith("toolu_")
        assert whole["stop_reason"] == "tool_use"
        assert without_ids(joined(events)) == without_ids(whole)
        usage = whole["usage"]
        assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
        kinds = [event["type"] for event in events]
        assert kinds[:3] == ["message_start", "content_block_start", "ping"] and kinds.count("ping") == 1
        changes = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
        assert changes.count("thinking_delta") > 1 and changes.count("text_delta") > 1
        assert changes.count("input_json_delta") > 2 and changes.count("signature_delta") == 1


async def test_text_after_a_call_and_several_calls_are_blocks_of_their_own() -> None:
    async with served_model(text=f"One.\n{CALL}\nTwo.\n{CALL}{CALL}") as made:
        with_template(made)
        whole = without_ids(await message(made, tools=[TOOL]))
        assert whole["content"] == [text("One."), USE, text("Two."), USE, USE]
        assert without_ids(joined(await streamed(made, tools=[TOOL]))) == whole
        single = {"type": "auto", "disable_parallel_tool_use": True}
        answer = await message(made, tools=[TOOL], tool_choice=single)
        assert [block["type"] for block in answer["content"]].count("tool_use") == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_empty_message_has_an_empty_text(stream: bool) -> None:
    """Clients read the first block."""
    async with served_model(text="") as made:
        answer = joined(await streamed(made)) if stream else await message(made)
        assert (answer["content"], answer["stop_reason"]) == ([text("")], "end_turn")
        answer = joined(await streamed(made, max_tokens=0)) if stream else await message(made, max_tokens=0)
        assert (answer["content"], answer["stop_reason"]) == ([text("")], "max_tokens")


async def test_a_call_that_is_cut_off_has_its_complete_members() -> None:
    pieces = '<tool_call>{"name": "weather", "arguments": {"city": "Paris", "days": [1, 2'
    async with served_model(text=f"{pieces}, 3]}}}}</tool_call>") as made:
        with_template(made)
        tokens = len(made.tokenizer.encode([pieces])[0].ids)
        answer = await message(made, tools=[TOOL], max_tokens=tokens)
        assert answer["stop_reason"] == "max_tokens"
        assert answer["content"][0]["input"] == {"city": "Paris", "days": [1]}


REASONS: list[tuple[str, dict[str, Any], tuple[str, str | None], str]] = [
    ("One. Two.", {"stop_sequences": ["x", " Two"]}, ("stop_sequence", " Two"), "One."),
    ("One. Two.", {"stop_sequences": ["never"]}, ("end_turn", None), "One. Two."),
    ("One. Two.", {"max_tokens": 1}, ("max_tokens", None), "O"),
    ("One. " * 200, {"max_tokens": 10_000}, ("model_context_window_exceeded", None), "One. "),
]


@pytest.mark.parametrize(("said", "fields", "reason", "begin"), REASONS, ids=[str(one[2][0]) for one in REASONS])
async def test_the_reason_of_the_end(said: str, fields: Any, reason: Any, begin: str) -> None:
    async with served_model(text=said) as made:
        for answer in (await message(made, **fields), joined(await streamed(made, **fields))):
            assert (answer["stop_reason"], answer["stop_sequence"]) == reason
            assert answer["content"][0]["text"].startswith(begin)


async def test_a_complete_call_goes_before_a_stop_sequence_and_a_cut_one_after() -> None:
    async with served_model(text=f"{CALL}\nSTOP") as made:
        with_template(made)
        for stops, reason in ((["STOP"], ("tool_use", None)), (["Par"], ("stop_sequence", "Par"))):
            answer = await message(made, tools=[TOOL], stop_sequences=stops)
            assert (answer["stop_reason"], answer["stop_sequence"]) == reason
            assert answer["content"][0]["type"] == "tool_use"


@pytest.mark.parametrize("name", ["any", "tool"])
async def test_a_forced_call(name: str) -> None:
    arguments = '{"city": "Paris"}'
    said = arguments if name == "tool" else f'[{{"name": "weather", "arguments": {arguments}}}]'
    async with served_model(text=said) as made:
        with_template(made, reasoning=None)
        choice = {"type": name, **({"name": "weather"} if name == "tool" else {})}
        whole = without_ids(await message(made, tools=[TOOL], tool_choice=choice))
        assert (whole["content"], whole["stop_reason"]) == ([USE], "tool_use")
        assert without_ids(joined(await streamed(made, tools=[TOOL], tool_choice=choice))) == whole


async def test_reasoning_can_be_left_out() -> None:
    async with served_model(text=ANSWER) as made:
        with_template(made)
        omitted = {"type": "adaptive", "display": "omitted"}
        whole = await message(made, thinking=omitted)
        assert whole["content"][0] == {**THINKING, "thinking": ""}
        assert joined(await streamed(made, thinking=omitted)) == whole


async def test_a_silent_stream_has_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.anthropic.messages.PING_SECONDS", 0.0)
    async with served_model(text=ANSWER) as made:
        with_template(made)
        events = await streamed(made, thinking={"type": "adaptive", "display": "omitted"})
        assert [event["type"] for event in events].count("ping") > 2
        assert joined(events)["content"][0]["thinking"] == ""


async def test_a_long_message_with_reasoning_is_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_model(text=ANSWER) as made:
        with_template(made)
        whole = without_ids(await message(made, tools=[TOOL]))
        monkeypatch.setattr("hf_transformer.api.chat_completions.INLINE_REASONING", 0)
        assert without_ids(await message(made, tools=[TOOL])) == whole


# Errors

FAILURES: list[tuple[RequestError, int, str]] = [
    (PredictorError("it broke"), 502, "api_error"),
    (PredictorUnavailable("it is away"), 503, "overloaded_error"),
    (TooManyRequests("too many"), 429, "rate_limit_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), FAILURES, ids=[one[2] for one in FAILURES])
async def test_an_error_before_and_within_a_stream(error: RequestError, status: int, kind: str) -> None:
    expected = {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": "7"}
    async with served_model(text="One. Two.", fails=error) as made:
        assert await message(made, status) == await message(made, status, stream=True) == expected
    async with served_model(text="One. Two.", fails=error, after=2) as made:
        [start, *_, last] = await streamed(made)
        assert (start["type"], last) == ("message_start", expected)


async def test_errors_have_anthropics_form(made: ServedModel) -> None:
    assert "gpt2" in await refused(made, 404, model="other")
    assert (await message(made, 404, model="other"))["error"]["type"] == "not_found_error"
    long = await refused(made, messages=[{"role": "user", "content": "a " * 300}])
    assert long.startswith("prompt is too long: ") and "tokens > 256 maximum" in long
    assert (await answer_of(made, PATH, b"{", 400))["error"]["type"] == "invalid_request_error"
    large = await answer_of(made, PATH, b" " * 2**21, 413)
    assert large["error"]["type"] == "request_too_large" and large["request_id"]
    async with client_of(made.app) as client:
        wrong = await client.get(PATH)
        assert wrong.status_code == 405 and wrong.headers["request-id"] == wrong.json()["request_id"]
        unknown = await client.post("/v1/messages/batches", json={})
        assert unknown.status_code == 404 and unknown.json()["error"]["type"] == "not_found_error"


async def test_a_model_without_chats_says_so() -> None:
    async with served_model(chats=False) as made:
        assert "--chat_template" in await refused(made)
        assert "--chat_template" in (await answer_of(made, COUNT, body_of(max_tokens=None), 400))["error"]["message"]


async def test_the_key_may_be_in_either_header(made: ServedModel, keys: ApiKeys) -> None:
    async with client_of(application(made.service, GatewaySettings(keys=keys))) as client:
        for headers in ({"x-api-key": "alpha-key"}, {"authorization": "Bearer beta-key"}):
            answer = await client.post(f"{PATH}?beta=true", json=body_of(), headers=headers)
            assert answer.status_code == 200
        refusal = await client.post(PATH, json=body_of(), headers={"x-api-key": "other"})
        assert refusal.status_code == 401 and refusal.json()["error"]["type"] == "authentication_error"


async def test_headers_of_versions_and_betas_have_no_effect(made: ServedModel) -> None:
    answer = await answer_of(made, PATH, body_of(), anthropic_version="1999-01-01", anthropic_beta="no-such-beta,other")
    assert answer["type"] == "message"


async def test_the_prompt_is_continued_after_a_last_message_of_the_assistant() -> None:
    async with served_model(text=" is it.") as made:
        with_template(made)
        answer = await message(made, messages=[QUESTION, {"role": "assistant", "content": "Paris"}])
        assert answer["content"] == [text(" is it.")] and asked(made).endswith("\nParis")
