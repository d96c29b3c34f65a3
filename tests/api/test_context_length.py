"""A text that is too long, in the form that the clients of each API look for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.generating import ServedModel, served_model
from tests.api.generating import post as sent

LONG = "word " * 300
OPENAI = "/openai/v1"
SENTENCES = re.compile(
    r"This model's maximum context length is 256 tokens\. However, your (\w+) resulted in (\d+) tokens\. "
    r"Please reduce the length of the (\w+)\. \(context_length_exceeded\)$"
)
PROMPTS: dict[str, tuple[str, Mapping[str, Any], str, str]] = {
    "chat": (f"{OPENAI}/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages", "messages"),
    "completion": (f"{OPENAI}/completions", {"prompt": LONG}, "prompt", "prompt"),
    "one of several prompts": (f"{OPENAI}/completions", {"prompt": ["a", LONG]}, "prompt[1]", "prompt"),
    "token ids": (f"{OPENAI}/completions", {"prompt": [5] * 256}, "prompt", "prompt"),
    "more ids than the model's length": (f"{OPENAI}/completions", {"prompt": [[5] * 257]}, "prompt[0]", "prompt"),
    "echo": (f"{OPENAI}/completions", {"prompt": [5] * 256, "echo": True}, "prompt", "prompt"),
    "response": (f"{OPENAI}/responses", {"input": LONG}, "input", "input"),
    "response of items": (f"{OPENAI}/responses", {"input": [{"role": "user", "content": LONG}]}, "input", "input"),
    "render": ("/v1/completions/render", {"prompt": LONG}, "prompt", "prompt"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", PROMPTS)
async def test_openai_s_routes_answer_400_with_its_code(made: ServedModel, case: str, stream: bool) -> None:
    path, body, param, field = PROMPTS[case]
    status, answer = await sent(made, path, {**body, "stream": stream})
    error = answer["error"]
    assert (status, error["code"], error["type"]) == (400, "context_length_exceeded", "invalid_request_error")
    assert error["param"] == param and error["message"].startswith(f"{param}: expected a prompt of at most ")
    found = SENTENCES.search(error["message"])
    assert found and found[1] == found[3] == field and int(found[2]) >= 256
    assert "word word" not in error["message"]


async def test_too_many_characters_are_too_long_a_prompt_too(made: ServedModel) -> None:
    status, answer = await sent(made, f"{OPENAI}/completions", {"prompt": "a" * 10_001})
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert error["message"] == (
        "prompt: expected at most 10000 characters (--max_text_length), got 10001. This model's maximum context length "
        "is 256 tokens. Please reduce the length of the prompt. (context_length_exceeded)"
    )


async def test_other_limits_and_apis_keep_413() -> None:
    async with served_model() as made:
        status, answer = await sent(made, f"{OPENAI}/completions", {"prompt": ["a"] * 101})
        assert (status, answer["error"]["code"]) == (413, None)
        for path, body in (
            ("/v1/models/gpt2:predict", {"instances": [LONG]}),
            ("/v2/models/gpt2/generate", {"text_input": LONG}),
        ):
            status, answer = await sent(made, path, body)
            assert status == 413 and "expected a prompt of at most 255 tokens" in answer["error"]
            assert answer["error"].endswith("the model's 256 tokens include the new ones")
