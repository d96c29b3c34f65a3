"""What clients of the OpenAI API send without asking for anything, and histories as their objects send them back."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.api.openai.embeddings import FIELDS, parse
from hf_transformer.api.openai.unused import EVERYWHERE
from hf_transformer.errors import InvalidInput
from tests.api.generating import PROMPT, Bench, bench, post

CHAT, COMPLETIONS = "/openai/v1/chat/completions", "/openai/v1/completions"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of france?"}]
LABELS = {
    **{"user": "me", "safety_identifier": "abc", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    **{"store": False, "service_tier": "auto"},
    "metadata": {"team": "search"},
}
OF_CHATS = {"modalities": ["text"], "verbosity": "medium"}
MANY = {str(number): "x" for number in range(17)}

pytestmark = pytest.mark.asyncio


def names(value: object) -> str:
    return "-".join(value) if isinstance(value, dict) else ""


async def ask(made: Bench, path: str, **fields: Any) -> tuple[int, Any]:
    own = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
    return await post(made, path, {"model": "gpt2", **own, **fields})


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_what_asks_for_nothing_is_taken(path: str) -> None:
    empty: dict[str, Any] = {
        "metadata": {},
        "service_tier": "default",
        "logit_bias": {},
        "stop_token_ids": [],
        "prediction": None,
    }
    async with bench(honours=()) as made:
        for fields in ({}, LABELS, empty, OF_CHATS if path == CHAT else {}):
            status, found = await ask(made, path, **fields)
            assert status == 200, found
        first, *others = [sampling for _, sampling in made.generator.asked]
        assert all(one == first for one in others)


async def test_streams_are_not_obscured() -> None:
    async with bench() as made:
        options = {"include_usage": True, "include_obfuscation": False}
        status, found = await ask(made, CHAT, stream=True, stream_options=options)
        assert status == 200 and found[-2]["usage"]
        status, found = await ask(made, CHAT, stream=True, stream_options={"include_obfuscation": True})
        assert status == 400 and found["error"]["param"] == "stream_options.include_obfuscation"


async def test_top_logprobs_of_nothing_need_no_logprobs() -> None:
    async with bench(honours=()) as made:
        status, found = await ask(made, CHAT, logprobs=False, top_logprobs=0)
        assert status == 200, found


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"store": True}, "store: nothing is stored here, expected false, got true"),
    ({"store": "no"}, "store: nothing is stored here, expected false, got a string"),
    ({"service_tier": "flex"}, "service_tier: there is one here, expected auto or default, got 'flex'"),
    ({"service_tier": 1}, "service_tier: there is one here, expected auto or default, got a number"),
    ({"user": 7}, "user: expected a string, got a number"),
    ({"safety_identifier": 7}, "safety_identifier: expected a string, got a number"),
    ({"prompt_cache_retention": 24}, "prompt_cache_retention: expected a string, got a number"),
    ({"prompt_cache_key": ["k"]}, "prompt_cache_key: expected a string, got a list"),
    ({"metadata": "x"}, "metadata: expected an object of strings, got a string"),
    ({"metadata": {"a": 1}}, "metadata: the key 'a' has a number, expected a string"),
    ({"metadata": {"a" * 65: "x"}}, "metadata: a key has 65 characters, at most 64 are taken"),
    ({"metadata": {"a": "x" * 513}}, "metadata: the key 'a' has 513 characters, at most 512 are taken"),
    ({"metadata": MANY}, "metadata: 17 keys, at most 16 are taken"),
]


@pytest.mark.parametrize(("fields", "says"), WRONG, ids=names)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_what_asks_for_something_is_refused(path: str, fields: dict[str, Any], says: str) -> None:
    async with bench() as made:
        status, found = await ask(made, path, **fields)
        assert (status, found["error"]["message"], found["error"]["param"]) == (400, says, next(iter(fields)))
        assert made.generator.asked == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"modalities": ["text", "audio"]}, 'modalities: the model writes text alone, expected ["text"], got a list'),
        ({"modalities": "text"}, 'modalities: the model writes text alone, expected ["text"], got a string'),
        ({"verbosity": "low"}, "verbosity: it can't be asked for here, expected medium, got 'low'"),
        ({"reasoning_effort": "low"}, "reasoning_effort: it can't be asked for here; a chat template that knows it"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction: unknown, expected some of"),
    ],
    ids=names,
)
async def test_what_chats_alone_could_ask_for(fields: dict[str, Any], says: str) -> None:
    async with bench() as made:
        status, found = await ask(made, CHAT, **fields)
        assert status == 400 and found["error"]["message"].startswith(says)
        status, found = await ask(made, COMPLETIONS, **fields)
        assert status == 400 and ": unknown, expected" in found["error"]["message"]


async def test_embeddings_take_the_same() -> None:
    assert set(EVERYWHERE) == LABELS.keys() and FIELDS[-1] != "verbosity"
    assert parse({"input": "a", **LABELS}, 9) == parse({"input": "a"}, 9)
    for fields, says in WRONG:
        with pytest.raises(InvalidInput) as raised:
            parse({"input": "a", **fields}, 9)
        assert str(raised.value) == says


NOTHING = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))


@pytest.mark.parametrize(
    "more",
    [NOTHING, {**NOTHING, "annotations": []}, {**NOTHING, "tool_calls": []}, {"refusal": ""}],
    ids=["nulls", "no annotations", "no calls", "no refusal"],
)
async def test_an_answer_is_taken_back_into_the_history(more: dict[str, Any]) -> None:
    """As ``message.model_dump()`` of the openai package has it."""
    async with bench() as made:
        for extra in ({}, more):
            history = [*MESSAGES, {"role": "assistant", "content": "Paris.", **extra}, *MESSAGES]
            status, found = await ask(made, CHAT, messages=history)
            assert status == 200, found
        (plain, _), (full, _) = made.generator.asked
        assert plain.text == full.text


async def test_no_calls_are_none_for_the_template() -> None:
    template = "{{ 'tool_calls' in messages[0] }} {{ 'annotations' in messages[0] }}"
    async with bench(template=template) as made:
        for role in ("assistant", "user"):
            message: dict[str, Any] = {"role": role, "content": "x", "tool_calls": [], "annotations": []}
            assert (await ask(made, CHAT, messages=[message]))[0] == 200
            assert made.generator.asked[-1][0].text == "False False"


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=["missing", "null", "empty"])
async def test_a_refusal_is_what_the_assistant_has_said(content: dict[str, Any]) -> None:
    async with bench(template="{{ messages[0].content }}{{ 'refusal' in messages[0] }}") as made:
        status, found = await ask(made, CHAT, messages=[{"role": "assistant", "refusal": "I can't.", **content}])
        assert status == 200, found
        assert made.generator.asked[0][0].text == "I can't.False"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "assistant", "content": "x", "refusal": "y"}, "refusal: beside a content, expected one of the two"),
        ({"role": "assistant", "refusal": 7}, "refusal: expected a string, got a number"),
        ({"role": "user", "refusal": "y"}, "refusal: only a message of the assistant has one"),
        (
            {"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}]},
            "annotations: they can't be told to the model, expected an empty list, got a list",
        ),
        ({"role": "assistant", "content": "x", "annotations": {}}, "annotations: they can't be told to the model"),
        ({"role": "assistant", "content": "x", "audio": {"id": "1"}}, "audio: not understood here"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "function_call: not understood here"),
        ({"role": "user", "content": "x", "tool_calls": ""}, "tool_calls: expected a list, got a string"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "tool_calls: only a message of the assistant has them"),
    ],
    ids=["both", "refusal", "of the user", "annotations", "object", "audio", "function_call", "calls", "user's calls"],
)
async def test_what_a_history_can_not_have(message: dict[str, Any], says: str) -> None:
    async with bench() as made:
        status, found = await ask(made, CHAT, messages=[message])
        assert status == 400 and found["error"]["message"].startswith(f"messages[0].{says}")
