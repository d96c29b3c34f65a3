"""Text generation against transformers' generate() (tests/goldens/generate_text_generation.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.integration.conftest import Serve
from tests.integration.generating import (
    AT_ONCE,
    CASES,
    CHAT_COMPLETIONS,
    CHAT_TOKENS,
    CHATS,
    GREEDY,
    TOKENS,
    cases_of,
    client_of,
    complete,
    side_by_side,
    start,
)
from tests.service import Service
from tests.triton_repository import task_model_folder

KINDS = ["gpt2_logits", "gpt2_past", "t5_logits", "gpt2_tokens", "gpt2_tokens_unary", "gpt2_vllm"]
FORMS = [*((model, protocol) for model in KINDS for protocol in ("v2", "grpc-v2")), ("gpt2_past_unplaced", "grpc-v2")]


def assert_golden(found: Any, case: Any, *, retold: bool) -> None:
    """``retold`` says that the service counts the tokens of a text that it was given: half a character is another."""
    (choice,) = found["choices"]
    assert choice["text"] == case["text"], case["id"]
    assert choice["finish_reason"] == case["finish"], case["id"]
    if retold and "�" in case["text"]:
        return
    assert found["usage"]["completion_tokens"] == len(case["ids"]), case["id"]
    assert found["usage"]["prompt_tokens"] == len(case["prompt_ids"]), case["id"]


def test_enough_goldens() -> None:
    assert all(len(cases) >= 50 for cases in CASES.values())


async def ask_golden(client: httpx.AsyncClient, service: Service, case: Any, stream: bool) -> None:
    found = await complete(client, service, case["prompt"], max_tokens=TOKENS, stream=stream, **GREEDY)
    assert_golden(found, case, retold=service.model == "gpt2_vllm")


@pytest.mark.parametrize("model", KINDS)
async def test_greedy_texts_sixteen_at_a_time(serve: Serve, model: str) -> None:
    """Each of them both streamed and not, where the model gives ids or logits."""
    service = start(serve, model)
    cases = [(case, stream) for stream in (False, True)[model == "gpt2_vllm" :] for case in cases_of(model)]
    async with client_of(service, kept=AT_ONCE) as client:
        await side_by_side(lambda one: ask_golden(client, service, *one), cases)


@pytest.mark.parametrize(("model", "protocol"), FORMS)
async def test_greedy_texts_alone(serve: Serve, model: str, protocol: str) -> None:
    """Some of them, in turn streamed and not."""
    service = start(serve, model, protocol)
    cases = cases_of(model)[::8]
    async with client_of(service, kept=1) as client:
        for number, case in enumerate(cases):
            await ask_golden(client, service, case, stream=bool(number % 2))


@pytest.mark.parametrize(("model", "protocol"), FORMS[::2])
def test_greedy_texts_in_one_request(serve: Serve, model: str, protocol: str) -> None:
    cases = cases_of(model)
    found = start(serve, model, protocol).predict([case["prompt"] for case in cases], {"max_new_tokens": TOKENS})
    for (answer,), case in zip(found, cases, strict=True):
        prompt = "" if model.startswith("t5") else case["prompt"]
        assert answer == {"generated_text": prompt + case["text"]}, case["id"]


@pytest.mark.parametrize(("model", "protocol"), [("gpt2_tokens_unary", "v2"), ("gpt2_logits", "grpc-v2")])
async def test_greedy_texts_with_retries(serve: Serve, model: str, protocol: str) -> None:
    """These are timed by what needs a task, for calls that answer once and are worth being stopped."""
    service = start(serve, model, protocol, "--predictor_request_retries=2")
    case = cases_of(model)[0]
    ((found,),) = service.predict([case["prompt"]], {"max_new_tokens": TOKENS, "return_full_text": False})
    assert found["generated_text"] == case["text"]
    async with client_of(service) as client:
        for stream in (False, True):
            await ask_golden(client, service, case, stream)


def test_the_text_of_the_tutorial_model(serve: Serve) -> None:
    """It makes 24 tokens of the prompt and what is new, whatever is asked for."""
    service = start(serve, "gpt2_tutorial", "v2")
    tokenizer = Tokenizer.from_file(str(task_model_folder("gpt2_tutorial") / "tokenizer.json"))
    for case in cases_of("gpt2_tutorial"):
        # The model gives the prompt back without its special tokens.
        if len(case["prompt_ids"]) < 20:
            ids = case["ids"][: 24 - len(case["prompt_ids"])]
            ((found,),) = service.predict([case["prompt"]], {"max_new_tokens": 30, "return_full_text": False})
            assert found["generated_text"] == tokenizer.decode(ids), case["id"]


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_vllm"])
def test_chats(serve: Serve, model: str) -> None:
    service = start(serve, model)
    for chat in CHATS:
        asked = {name: chat[name] for name in ("messages", "tools") if name in chat}
        body = {"model": model, "max_tokens": CHAT_TOKENS, **asked, **GREEDY}
        response = service.client.post(CHAT_COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        message = choice["message"]
        if "<tool_call>" in chat["text"]:
            (call,) = message["tool_calls"]
            assert call["function"] == {"name": "get_weather", "arguments": '{"city": "paris"}'}
            assert choice["finish_reason"] == "tool_calls"
        else:
            assert message["content"] == chat["text"]
            assert choice["finish_reason"] == chat["finish"]
        assert response.json()["usage"]["prompt_tokens"] == len(chat["prompt_ids"])


SAMPLED = {"max_tokens": 12, "temperature": 1.5, "top_p": 0.95, "top_k": 50}


def texts(service: Service, prompt: str, **fields: Any) -> list[str]:
    response = service.client.post(
        "/openai/v1/completions", json={"model": service.model, "prompt": prompt, **SAMPLED, **fields}
    )
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_vllm", "t5_logits"])
async def test_a_seed_gives_the_same_text_again(serve: Serve, model: str) -> None:
    service = start(serve, model)
    prompt = "reverse one" if model == "t5_logits" else "The"
    first = texts(service, prompt, seed=5, n=4)
    assert texts(service, prompt, seed=5, n=4) == first
    assert len(set(first)) > 1, "the choices of a prompt have seeds of their own"
    assert texts(service, prompt, seed=6, n=4) != first
    # The small T5 repeats its input nearly always: eight of its texts are the same by chance once in ten times.
    hot = {"n": 8, "temperature": 20.0}
    assert texts(service, prompt, **hot) != texts(service, prompt, **hot)
    async with client_of(service) as client:
        # Whoever else is in the batch changes nothing.
        found, *others = await asyncio.gather(
            complete(client, service, prompt, **SAMPLED, seed=5, n=4),
            *(complete(client, service, prompt, **SAMPLED, seed=number, n=2) for number in range(7, 15)),
        )
    assert [choice["text"] for choice in found["choices"]] == first
    assert len({choice["text"] for answer in others for choice in answer["choices"]}) > 1


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_vllm"])
def test_stop_strings(serve: Serve, model: str) -> None:
    """Across the borders of tokens, and not part of the text."""
    body = {"model": model, "prompt": "The capital of france is", "max_tokens": TOKENS, **GREEDY}
    service = start(serve, model)
    for stop, text in ((["ari"], " p"), (["x", "is."], " par"), ([" paris"], ""), (["no such"], " paris.")):
        response = service.client.post("/openai/v1/completions", json=body | {"stop": stop})
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_tokens_unary", "gpt2_vllm"])
async def test_stop_tokens(serve: Serve, model: str) -> None:
    """They end a text that goes on past its own end as well, and are no part of it."""
    prompt, service = "The capital of france is", start(serve, model)
    ids = Tokenizer.from_file(str(task_model_folder(model) / "tokenizer.json")).encode(" paris.").ids
    async with client_of(service) as client:
        for how, stream in (({}, False), ({"ignore_eos": True}, True)):
            asked = {"max_tokens": TOKENS, "stream": stream, "stop_token_ids": [0, ids[-1]], **how, **GREEDY}
            found = await complete(client, service, prompt, **asked)
            (choice,) = found["choices"]
            assert (choice["text"], choice["finish_reason"]) == (" paris", "stop")
            assert found["usage"]["completion_tokens"] == len(ids) - 1


def test_what_a_model_cannot_honour_is_named(serve: Serve) -> None:
    body = {"model": "gpt2_tutorial", "prompt": "The", "max_tokens": 5, "temperature": 0.5, "seed": 3}
    response = start(serve, "gpt2_tutorial").client.post("/openai/v1/completions", json=body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "temperature" in message or "seed" in message


def test_a_prompt_that_is_too_long(serve: Serve) -> None:
    service = start(serve, "gpt2_past")
    body = {"model": "gpt2_past", "prompt": "word " * 300, "max_tokens": 5}
    response = service.client.post("/openai/v1/completions", json=body)
    assert response.status_code in (400, 413)
    assert "word word" not in response.text
