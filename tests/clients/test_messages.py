"""Anthropic's clients for Python and TypeScript with their defaults, on a model that writes as five families do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Run
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

FUNCTION = TOOL["function"]
ANTHROPIC_TOOL = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}


class Expected:
    """The messages of a family."""

    def __init__(self, name: str) -> None:
        reasons = has_reasoning(name)
        self.thoughts = [THOUGHT, SECOND_THOUGHT] if reasons else [None, None]
        first, second = ([["thinking", text]] if reasons else [] for text in (THOUGHT, SECOND_THOUGHT))
        self.called = {"blocks": [*first, ["tool_use", *CALL]], "stop": "tool_use"}
        self.answered = {"blocks": [*second, ["text", AFTER]], "stop": "end_turn"}
        self.text = {"blocks": [*second, ["text", TEXT]], "stop": "end_turn"}


def without_count(message: dict[str, Any]) -> dict[str, Any]:
    assert message["input"] > 0
    return {name: value for name, value in message.items() if name != "input"}


@pytest.mark.parametrize("name", NAMES)
def test_the_anthropic_package(serve: Serve, client: Run, tmp_path: Path, name: str) -> None:
    service, expected = serve(MODEL, "grpc-v2", *family_flags(name, tmp_path)), Expected(name)
    results = client("anthropic_package", service=service, question=QUESTION, tool=ANTHROPIC_TOOL)
    for way in ("whole", "stream"):
        assert [without_count(one) for one in results[way]] == [expected.called, expected.answered]
    assert [without_count(one) for one in results["awaited"]] == [expected.called] * 2
    assert without_count(results["text"]) == without_count(results["beta"]) == expected.text
    assert without_count(results["loop"]) == expected.answered
    assert results["count"] == results["whole"][0]["input"] == results["stream"][0]["input"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    blocks = block * len(expected.called["blocks"])
    assert results["events"] == ["message_start", *blocks, "message_delta", "message_stop"]
    assert results["id"]
    other, searched, long, counted = results["errors"]
    assert other[:3] == ["NotFoundError", 404, "not_found_error"]
    assert searched[:3] == ["BadRequestError", 400, "invalid_request_error"]
    assert "tools[0].type: expected custom" in searched[3] and "the service runs no tools" in searched[3]
    assert long[:3] == searched[:3] and long[3].startswith("prompt is too long: ")
    assert counted[:3] == searched[:3] and counted[3].startswith("messages[0].role: ")


@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_for_typescript_and_the_ai_sdk(serve: Serve, client: Run, tmp_path: Path, name: str) -> None:
    service, expected = serve(MODEL, "grpc-v2", *family_flags(name, tmp_path)), Expected(name)
    results = client("ai_sdk_anthropic", service=service, question=QUESTION, tool=ANTHROPIC_TOOL)
    for way in ("whole", "stream"):
        assert [without_count(one) for one in results[way]] == [expected.called, expected.answered]
    assert without_count(results["text"]) == expected.text
    assert results["count"] == results["whole"][0]["input"]
    assert results["errors"] == [["NotFoundError", 404, "not_found_error"]]
    library = results["ai_sdk"]
    assert library["called"] == [list(CALL)] and library["reasoning"] == expected.thoughts
    assert library["texts"] == [AFTER, AFTER] and library["finish"] == ["stop", "stop"]
