"""Chats of a scripted model behind the real Triton, in the forms of five families, which the chat template chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Serve
from tests.support.families import (
    AFTER,
    CALL,
    MODEL,
    NAMES,
    QUESTION,
    SECOND_THOUGHT,
    TEXT,
    THOUGHT,
    TOOL,
    family_flags,
    has_reasoning,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_its_result_and_the_answer(serve: Serve, tmp_path: Path, name: str) -> None:
    service = serve(MODEL, "grpc-v2", *family_flags(name, tmp_path))
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "tools": [TOOL]}

    def message(**fields: Any) -> Any:
        answer = service.client.post("/openai/v1/chat/completions", json={**asked, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    def thought(text: str) -> str | None:
        return text if has_reasoning(name) else None

    called = message()
    [call] = called["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == CALL
    assert called.get("reasoning") == thought(THOUGHT)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    answered = message(messages=[*asked["messages"], called, result])
    assert (answered["content"], answered.get("reasoning")) == (AFTER, thought(SECOND_THOUGHT))
    assert message(tools=[])["content"] == TEXT
