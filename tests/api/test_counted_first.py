"""Lists that are too long whatever is in them: they are counted before their elements are looked at one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.generating import PROMPT, bench, post

PREDICT, GENERATE = "/v1/models/gpt2:predict", "/v2/models/gpt2/generate"
COMPLETIONS = "/openai/v1/completions"
MOST_TEXTS, MOST_IDS = 100, 256
"""What the service under test takes, and its model."""


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (COMPLETIONS, {"model": "gpt2", "prompt": PROMPT, "stop": [1] * 17}, "stop: 17 strings, at most 16 are taken"),
        (GENERATE, {"text_input": "a", "stop_words": [1] * 17}, "stop_words: 17 strings, at most 16 are taken"),
        (COMPLETIONS, {"model": "gpt2", "prompt": [[5] * 256 + ["a"]]}, "prompt[0]: the prompt has 257 tokens, and"),
        (COMPLETIONS, {"model": "gpt2", "prompt": [None] * 101}, "prompt: 101 in a request, at most 100 are taken"),
        (PREDICT, {"instances": [None] * 101}, "instances: 101 in a request, at most 100 are taken"),
        (PREDICT, {"instances": ["a"] * 9}, "instances: 9 in a request, at most 8 are taken (--max_instances)"),
    ],
)
async def test_what_is_too_much_is_not_looked_at(path: str, body: dict[str, Any], message: str) -> None:
    async with bench() as made:
        status, said = await post(made, path, body)
        assert status == 413, said
        found = said["error"]["message"] if "openai" in path else said["error"]
        assert found.startswith(message), found


async def test_so_many_are_taken() -> None:
    async with bench() as made:
        ids = [5] * (MOST_IDS - 1)
        for prompt in (ids, [ids]):
            status, said = await post(made, COMPLETIONS, {"model": "gpt2", "prompt": prompt})
            assert status == 200, said
        status, said = await post(made, COMPLETIONS, {"model": "gpt2", "prompt": [*ids, 5]})
        assert (status, said["error"]["message"]) == (
            413,
            "prompt: the prompt has 256 tokens, and the model takes 256, which leaves none for new ones",
        )
        status, said = await post(made, PREDICT, {"instances": [None] * MOST_TEXTS})
        assert (status, said["error"]) == (400, 'instances[0]: expected a string or {"text": string}, got null')
        assert (await post(made, PREDICT, {"instances": ["a"] * 8}))[0] == 200
