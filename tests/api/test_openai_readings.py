"""Fields that clients send again and again are read once, by exactly what they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from hf_transformer.api.base import Service
from hf_transformer.api.openai import chat as openai_chat
from hf_transformer.api.openai import completions as openai_completions
from hf_transformer.api.openai.generation import Fields
from hf_transformer.api.openai.readings import LONGEST, MOST, SHORT, Readings
from hf_transformer.errors import InvalidInput
from tests.api.generating import PROMPT, bench, post

COMPLETIONS, CHAT = "completions", "chat/completions"


class Reader:
    """Notes what it was given; refuses a field of its own."""

    def __init__(self) -> None:
        self.read: list[Fields] = []

    def __call__(self, fields: Fields) -> Fields:
        self.read.append(fields)
        if "wrong" in fields:
            raise InvalidInput("wrong: not taken")
        return dict(fields)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def readings(reader: Reader) -> Readings[Fields]:
    return Readings(reader, ("prompt", "user"))


def test_the_same_fields_are_read_once_whatever_stands_apart(reader: Reader, readings: Readings[Fields]) -> None:
    first = readings({"temperature": 0.5, "prompt": "a"})
    assert readings({"prompt": "b", "temperature": 0.5, "user": "me"}) is first
    assert reader.read == [{"temperature": 0.5}]


@pytest.mark.parametrize("other", [1.0, True, "1", [1]], ids=["float", "boolean", "string", "list"])
def test_values_that_only_look_alike_are_others(reader: Reader, readings: Readings[Fields], other: object) -> None:
    readings({"n": 1})
    found = readings({"n": other})
    assert type(found["n"]) is type(other)
    assert len(reader.read) == 2


def test_what_is_refused_is_refused_again(reader: Reader, readings: Readings[Fields]) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="wrong: not taken"):
            readings({"wrong": 1})
    assert len(reader.read) == 2


def test_long_fields_are_not_kept(reader: Reader, readings: Readings[Fields]) -> None:
    for _ in range(2):
        assert readings({"stop": "x" * LONGEST}) == {"stop": "x" * LONGEST}
    assert len(reader.read) == 2


@pytest.mark.parametrize(
    "large",
    [
        [0] * 100_000,
        [["a"] * 100_000],
        {"a": [0] * 100_000},
        {str(n): n for n in range(100_000)},
        "x" * 1_000_000,
        {"x" * 1_000_000: 1},
        [[[]] * 500] * 500,
    ],
    ids=["list", "nested list", "list in an object", "object", "string", "name", "lists"],
)
def test_large_fields_are_not_written_to_be_compared(reader: Reader, readings: Readings[Fields], large: object) -> None:
    tracemalloc.start()
    try:
        readings({"stop": large})
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    assert reader.read == [{"stop": large}]


@pytest.mark.parametrize(
    "field",
    [["a"] * 125, "x" * 500, {str(n): n for n in range(10, 72)}, [[]] * 165],
    ids=["list", "string", "object", "lists"],
)
def test_what_is_just_short_enough_is_kept(reader: Reader, readings: Readings[Fields], field: object) -> None:
    assert LONGEST - 20 <= len(orjson.dumps({"stop": field})) <= LONGEST
    assert readings({"stop": field}) is readings({"stop": field})
    assert len(reader.read) == 1


@pytest.mark.parametrize("length", [LONGEST - 20, LONGEST + 20], ids=["kept", "too long to be kept"])
def test_fields_of_a_short_body_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch, reader: Reader, readings: Readings[Fields], length: int
) -> None:
    looked: list[object] = []

    def look(fields: object) -> bool:
        looked.append(fields)
        return False

    monkeypatch.setattr("hf_transformer.api.openai.readings._is_long", look)
    for _ in range(2):
        readings({"stop": "x" * length}, SHORT)
    assert len(reader.read) == (1 if length < LONGEST else 2) and not looked
    readings({"stop": "x" * length}, SHORT + 1)
    assert len(looked) == 1


def test_what_json_can_read_but_not_write_is_read(reader: Reader, readings: Readings[Fields]) -> None:
    deep = orjson.loads("[" * 300 + "]" * 300)
    assert readings({"stop": deep})["stop"] is deep


def test_no_more_than_so_many_are_kept(reader: Reader, readings: Readings[Fields]) -> None:
    for number in range(MOST + 1):
        readings({"n": number})
    readings({"n": MOST})
    assert len(reader.read) == MOST + 1
    readings({"n": 0})
    assert len(reader.read) == MOST + 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("made", "names"),
    [
        (openai_completions.readings, ["prompt", "user"]),
        (openai_chat.readings, ["messages", "tools", "tool_choice", "chat_template_kwargs", "user"]),
    ],
    ids=[COMPLETIONS, CHAT],
)
async def test_what_clients_write_is_not_kept(made: Callable[[Service], Readings[Any]], names: list[str]) -> None:
    async with bench() as served:
        read = made(served.service)
        first = read({"model": "gpt2", "max_tokens": 2})
        for name in names:
            assert read({"model": "gpt2", "max_tokens": 2, name: "a secret"}) is first
        assert read({"model": "gpt2", "max_tokens": 3}) is not first


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
