"""What OpenAI's completions tell of tokens, whole and as a stream, over a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.api.openai.completions import CompletionForm
from hf_transformer.api.openai.generation import Continuation
from hf_transformer.generation.types import TokenText
from tests.api.generating import PROMPT, Bench, bench, post

pytestmark = pytest.mark.asyncio


async def complete(made: Bench, **fields: Any) -> Any:
    status, found = await post(made, "/openai/v1/completions", {"model": "gpt2", "prompt": PROMPT, **fields})
    assert status == 200, found
    return found


async def told_of(made: Bench, **fields: Any) -> tuple[str, dict[str, list[Any]]]:
    """The text of the only choice, and what is told of all its tokens."""
    found = await complete(made, **fields)
    text, told = "", dict[str, list[Any]](tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for chunk in found[:-1] if fields["stream"] else [found]:
        text += chunk["choices"][0]["text"]
        for name, values in chunk["choices"][0]["logprobs"].items():
            told[name] += values
    return text, told


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_logprobs(stream: bool) -> None:
    async with bench() as made:
        text, told = await told_of(made, logprobs=2, stream=stream)
        tokens = told["tokens"]
        assert "".join(tokens) == text == " paris." and len(tokens) > 1
        assert told["token_logprobs"] == [-0.5] * len(tokens)
        assert told["text_offset"] == [len("".join(tokens[:number])) for number in range(len(tokens))]
        assert all(
            top[token] == -0.5 and len(top) == 2 for token, top in zip(tokens, told["top_logprobs"], strict=True)
        )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_parts_of_a_character_are_told_in_bytes_and_stand_where_it_does(stream: bool) -> None:
    async with bench(text="🇴.") as made:
        text, told = await told_of(made, logprobs=1, stream=stream)
        assert text == "🇴."
        assert told["tokens"] == [r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x87", r"bytes:\xb4", "."]
        assert told["top_logprobs"] == [{token: -0.5} for token in told["tokens"]]
        assert told["text_offset"] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_no_token_stands_behind_the_text(stream: bool) -> None:
    async with bench(text=" 🇴. It") as made:
        text, told = await told_of(made, logprobs=1, stream=stream, stop=". ", max_tokens=50)
        assert text == " 🇴"
        assert told["text_offset"] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"\xe2\x80", r"bytes:\xe2\x80"),
        (b" \xe2\x80", r"bytes: \xe2\x80"),
        (b"\n'\xe2", r"bytes:\n'\xe2"),
        ("\ufffd".encode(), "\ufffd"),
    ],
)
async def test_the_likeliest_that_are_no_characters_are_told_in_bytes(raw: bytes, name: str) -> None:
    other = TokenText("\ufffd", b"\xf0", -0.1)
    chosen = TokenText(raw.decode(errors="replace"), raw, -0.5, (other,))
    found: Any = CompletionForm(1).choice(0, Continuation("\ufffd", [chosen], "length"))
    assert found["logprobs"]["tokens"] == [name]
    assert found["logprobs"]["top_logprobs"] == [{r"bytes:\xf0": -0.1, name: -0.5}]


async def test_the_chosen_token_is_told_beside_likelier_ones() -> None:
    """OpenAI: "there may be up to logprobs+1 elements in the response"; of two that look alike the likelier counts."""
    other, same = TokenText("x", b"x", -0.1), TokenText("y", b"y", -0.2)
    chosen = TokenText("z", b"z", -0.5, (other, same, TokenText("y", b"y", -0.3)))
    whole = Continuation("z", [chosen, TokenText("x", b"x", -0.1, (other,))], "stop")
    found: Any = CompletionForm(3).choice(0, whole)
    assert found["logprobs"]["top_logprobs"] == [{"x": -0.1, "y": -0.2, "z": -0.5}, {"x": -0.1}]


async def test_logprobs_of_the_chosen_tokens_alone() -> None:
    async with bench() as made:
        found = await complete(made, logprobs=0)
        assert found["choices"][0]["logprobs"]["top_logprobs"] is None
        assert set(found["choices"][0]["logprobs"]["token_logprobs"]) == {-0.5}
