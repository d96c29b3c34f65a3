"""Clients of chats with their default settings, in front of a scripted model that writes as five families do.

A tool is called, its result returned, and the second answer read: streamed and whole, by both of OpenAI's APIs.
"""

from __future__ import annotations

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
    THOUGHT,
    TOOL,
    family_flags,
    has_reasoning,
)
from tests.support.service import Service


@pytest.fixture(scope="module")
def families(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Service]:
    """A service for each family."""
    folder = tmp_path_factory.mktemp("families")
    return {name: serve(MODEL, "grpc-v2", *family_flags(name, folder)) for name in NAMES}


@pytest.mark.parametrize(
    ("program", "ways", "shows_reasoning"),
    [
        ("openai_families", 4, True),
        ("langchain_families", 4, False),
        ("agents_families", 8, False),
        ("ai_sdk_families", 6, False),
    ],
)
def test_a_tool_is_called_and_its_result_answered(
    families: dict[str, Service], client: Run, program: str, ways: int, shows_reasoning: bool
) -> None:
    addresses = {name: f"127.0.0.1:{service.port}" for name, service in families.items()}
    fields: dict[str, Any] = {"families": addresses, "family_model": MODEL, "question": QUESTION, "tool": TOOL}
    results = client(program, service=families[NAMES[0]], **fields)
    assert len(results) == ways * len(NAMES)
    for way, (name, arguments, thought, text) in results.items():
        family = way.split()[0]
        assert ([name, arguments], text) == ([*CALL], AFTER), way
        if shows_reasoning or "compatible" in way:
            assert thought == (THOUGHT if has_reasoning(family) else None), way
