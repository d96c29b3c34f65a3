"""Fields that look alike are read as what they are, whatever was asked before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.generating import PROMPT, bench, post

COMPLETIONS, CHAT = "completions", "chat/completions"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "given"),
    [
        (COMPLETIONS, [{"n": 1}, {"n": True}, {"n": 1.0}]),
        (COMPLETIONS, [{"max_tokens": 3}, {"max_tokens": 3.0}, {"max_tokens": "3"}]),
        (COMPLETIONS, [{"top_k": 1}, {"top_k": 1.0}, {"top_k": True}]),
        (COMPLETIONS, [{"echo": True}, {"echo": 1}, {"prompt": "a", "echo": True}]),
        (COMPLETIONS, [{"stop": "a"}, {"stop": ["a"]}, {"stop": ["a", None]}, {"stop": [["a"]]}]),
        (COMPLETIONS, [{"logit_bias": {"5": 1}}, {"logit_bias": {"5": True}}, {"logit_bias": {"5": None}}]),
        (COMPLETIONS, [{"user": "a"}, {"user": 1}, {}]),
        (CHAT, [{"logprobs": True}, {"logprobs": 1}, {"logprobs": None}]),
        (CHAT, [{"tools": []}, {"tools": 1}, {"tool_choice": "auto"}, {"chat_template_kwargs": 1}, {"messages": []}]),
        (CHAT, [{"max_tokens": 2}, {"max_completion_tokens": 2}, {"max_tokens": 2, "max_completion_tokens": 2}]),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value[0])),
)
async def test_no_answer_depends_on_the_requests_before(path: str, given: list[dict[str, Any]]) -> None:
    asked: dict[str, Any] = {"model": "gpt2", "prompt": PROMPT}
    if path == CHAT:
        asked = {"model": "gpt2", "messages": [{"role": "user", "content": PROMPT}]}

    async def answer(made: Any, more: dict[str, Any]) -> Any:
        status, found = await post(made, f"/openai/v1/{path}", {**asked, **more})
        return status, found.get("choices"), found.get("usage"), found.get("error")

    alone = []
    for more in given:
        async with bench() as made:
            alone.append(await answer(made, more))
    async with bench() as made:
        for _ in range(2):
            assert [await answer(made, more) for more in given] == alone
            assert [await answer(made, more) for more in reversed(given)] == alone[::-1]
    assert len({str(one) for one in alone}) > 1
