"""Text generation against transformers' generate() (scripts/goldens/generate_text_generation.py)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve, message_of
from tests.integration.generating import (
    AT_ONCE,
    CHAT_COMPLETIONS,
    CHAT_TOKENS,
    CHATS,
    COMPLETIONS,
    GREEDY,
    TOKENS,
    cases_of,
    client_of,
    complete,
    events,
    executions,
    side_by_side,
)
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

KINDS = ["gpt2_logits", "gpt2_past", "t5_logits", "gpt2_tokens", "gpt2_tokens_unary", "gpt2_vllm", "gpt2_llmapi"]
ALONE = [
    ("gpt2_past", "v2"),
    ("gpt2_past_unplaced", "grpc-v2"),
    ("gpt2_tokens", "v2"),
    ("gpt2_tokens_unary", "grpc-v2"),
    ("gpt2_vllm", "v2"),
    ("gpt2_llmapi", "v2"),
    ("gpt2_llmapi_unary", "grpc-v2"),
]
RETOLD = ("gpt2_vllm", "gpt2_llmapi", "gpt2_llmapi_unary")
"""Models of text."""
PARIS = "The capital of france is"
three_kinds = pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_vllm", "gpt2_llmapi"])


def assert_golden(response: Any, case: Any, *, retold: bool) -> None:
    """``retold`` says that the service counts the tokens of a text that it was given: half a character is another."""
    (choice,) = response["choices"]
    assert choice["text"] == case["text"], case["id"]
    assert choice["finish_reason"] == case["finish"], case["id"]
    if retold and "�" in case["text"]:
        return
    assert response["usage"]["completion_tokens"] == len(case["ids"]), case["id"]
    assert response["usage"]["prompt_tokens"] == len(case["prompt_ids"]), case["id"]


async def ask_golden(client: httpx.AsyncClient, service: Service, case: Any, stream: bool) -> None:
    found = await complete(client, service, case["prompt"], max_tokens=TOKENS, stream=stream, **GREEDY)
    assert_golden(found, case, retold=service.model in RETOLD)


@pytest.mark.parametrize("model", KINDS)
async def test_greedy_texts_are_those_of_transformers_side_by_side(serve: Serve, model: str) -> None:
    """One half sixteen at a time, in turn streamed and not; the other half in one request of V1."""
    assert len(cases_of(model)) >= 50
    cases, cases_of_v1 = cases_of(model)[::2], cases_of(model)[1::2]
    service = serve(model, "grpc-v2")
    async with client_of(service, kept=AT_ONCE) as client:
        numbered = list(enumerate(cases))
        await side_by_side(lambda one: ask_golden(client, service, one[1], stream=bool(one[0] % 2)), numbered)
    found = service.predict([case["prompt"] for case in cases_of_v1], {"max_new_tokens": TOKENS})
    for (answer,), case in zip(found, cases_of_v1, strict=True):
        prompt = "" if model.startswith("t5") else case["prompt"]
        assert answer == {"generated_text": prompt + case["text"]}, case["id"]


@pytest.mark.parametrize(("model", "protocol"), [("gpt2_logits", "v2"), ("gpt2_past", "grpc-v2")])
async def test_log_probabilities_of_prompts_are_those_of_transformers(serve: Serve, model: str, protocol: str) -> None:
    """One half side by side, as texts and as token ids, without a new token and with one; the other in one request."""
    cases, together, service = cases_of(model)[::2], cases_of(model)[1::2], serve(model, protocol)

    async def ask(numbered: Any) -> None:
        number, case = numbered
        prompt = case["prompt_ids"] if number % 3 else case["prompt"]
        fields = {"echo": True, "logprobs": 1, "max_tokens": number % 2, "stream": not number % 5, **GREEDY}
        body = {"model": service.model, "prompt": prompt, **fields}
        if fields["stream"]:
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                choices = [chunk["choices"][0] async for chunk in events(response)]
        else:
            choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]["tokens"]]
        found = [value for part in parts for value in part["token_logprobs"]]
        assert_scored(found[: len(case["prompt_ids"])], case)
        assert len(found) == len(case["prompt_ids"]) + number % 2, case["id"]
        assert sum(len(part["top_logprobs"]) for part in parts) == len(found)

    async with client_of(service, kept=AT_ONCE) as client:
        await side_by_side(ask, list(enumerate(cases)))
        prompts = [case["prompt"] for case in together]
        body = {"model": service.model, "prompt": prompts, "prompt_logprobs": 0, **GREEDY}
        response = await client.post(COMPLETIONS, json={**body, "max_tokens": 1})
    assert response.status_code == 200, response.text
    for choice, case in zip(response.json()["choices"], together, strict=True):
        first, *others = choice["prompt_logprobs"]
        ids = case["prompt_ids"][1:]
        assert_scored([first, *(one[str(token)]["logprob"] for token, one in zip(ids, others, strict=True))], case)


def assert_scored(found: list[float | None], case: Any) -> None:
    assert found[0] is None
    assert found[1:] == pytest.approx(case["prompt_logprobs"], abs=1e-4), case["id"]


@pytest.mark.parametrize(("model", "protocol"), ALONE)
async def test_greedy_texts_are_the_same_alone_and_with_retries(serve: Serve, model: str, protocol: str) -> None:
    """Retries are for calls that answer once: models of both kinds give the same texts with them."""
    service = serve(model, protocol, "--predictor_request_retries=2")
    async with client_of(service, kept=1) as client:
        for case in cases_of(model)[::8]:
            for stream in (False, True):
                await ask_golden(client, service, case, stream)


def test_the_tutorial_model_gives_its_text_and_names_what_it_can_not_honour(serve: Serve) -> None:
    """It makes 24 tokens of the prompt and what is new, whatever is asked for; what it can't honour is named."""
    service = serve("gpt2_tutorial", "grpc-v2")
    tokenizer = Tokenizer.from_file(str(task_model_folder("gpt2_tutorial") / "tokenizer.json"))
    for case in cases_of("gpt2_tutorial"):
        # The model gives the prompt back without its special tokens.
        if len(case["prompt_ids"]) < 20:
            ids = case["ids"][: 24 - len(case["prompt_ids"])]
            ((found,),) = service.predict([case["prompt"]], {"max_new_tokens": 30, "return_full_text": False})
            assert found["generated_text"] == tokenizer.decode(ids), case["id"]
    body = {"model": "gpt2_tutorial", "prompt": "The", "max_tokens": 5, "temperature": 0.5, "seed": 3}
    response = service.client.post(COMPLETIONS, json=body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "temperature" in message or "seed" in message


def test_requests_of_tritons_tutorial_are_answered(serve: Serve) -> None:
    """Triton's Hugging Face tutorial, against the service instead of Triton; docs/text_generation.md has generate."""
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PARIS]}
    service = serve("gpt2_tutorial", "grpc-v2")
    inferred = service.client.post("/v2/models/gpt2_tutorial/infer", json={"inputs": [tensor]})
    assert inferred.status_code == 200
    (output,) = inferred.json()["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [1], [f"{PARIS} paris."])


def received(text: str) -> Any:
    """The inputs that the LLM API model got, of an answer to a prompt that begins with "Tell:"."""
    return json.loads(text)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("model", "protocol"), [("gpt2_llmapi", "grpc-v2"), ("gpt2_llmapi_unary", "v2")])
async def test_the_llm_api_model_gets_the_requests_parameters(
    serve: Serve, model: str, protocol: str, stream: bool
) -> None:
    service = serve(model, protocol)
    penalties = {"presence_penalty": 0.25, "frequency_penalty": 0.5}
    drawn = {"temperature": 0.5, "top_k": 3, "top_p": 0.75, "seed": 11, **penalties}
    async with client_of(service) as client:
        found = await complete(client, service, "Tell: it", max_tokens=100, stop=["zzz"], stream=stream, **drawn)
        told_by_openai = received(found["choices"][0]["text"])
        chat = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 77, **GREEDY}
        assert (await client.post(CHAT_COMPLETIONS, json=chat)).status_code == 200
    sampled = {f"sampling_param_{name}": [value] for name, value in drawn.items()}
    assert told_by_openai == {
        "text_input": ["Tell: it"],
        "streaming": [model == "gpt2_llmapi"],
        "sampling_param_max_tokens": [100],
        "sampling_param_exclude_input_from_output": [True],
        "return_finish_reason": [True],
        **sampled,
    }
    ((by_v1,),) = service.predict(["Tell: it"], {"max_new_tokens": 60, "return_full_text": False})
    assert received(by_v1["generated_text"])["sampling_param_max_tokens"] == [60]


@pytest.mark.parametrize("model", ["gpt2_llmapi", "gpt2_llmapi_unary"])
def test_what_the_llm_api_model_does_not_take_is_refused(serve: Serve, model: str) -> None:
    body = {"model": model, "prompt": "The", "max_tokens": 5, "min_p": 0.5}
    response = serve(model, "grpc-v2").client.post(COMPLETIONS, json=body)
    assert response.status_code == 400
    assert "min_p" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_llm_api_model_gives_as_many_tokens_as_are_asked_for(serve: Serve, stream: bool) -> None:
    """More than its own default of 32."""
    service = serve("gpt2_llmapi", "grpc-v2")
    async with client_of(service) as client:
        asked = {"max_tokens": 80, "temperature": 30.0, "seed": 3, "stream": stream}
        found = await complete(client, service, "The", **asked)
        long = found["choices"][0]["text"]
        short = (await complete(client, service, "The", **asked | {"max_tokens": 40}))["choices"][0]["text"]
    assert found["choices"][0]["finish_reason"] == "length"
    assert len(short) > 40 and long.startswith(short.rstrip("\N{REPLACEMENT CHARACTER}")) and len(long) > len(short)


@three_kinds
def test_chats_have_the_prompts_and_answers_of_transformers(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2", "--user_special_tokens=tokens")
    for chat in CHATS:
        asked = {name: chat[name] for name in ("messages", "tools") if name in chat}
        body = {"model": model, "max_tokens": CHAT_TOKENS, **asked, **GREEDY}
        response = service.client.post(CHAT_COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        message = choice["message"]
        assert message["role"] == "assistant"
        if "<tool_call>" in chat["text"]:
            (call,) = message["tool_calls"]
            assert call["function"] == {"name": "get_weather", "arguments": '{"city": "paris"}'}
            assert choice["finish_reason"] == "tool_calls"
        else:
            assert message["content"] == chat["text"]
            assert choice["finish_reason"] == chat["finish"]
        assert response.json()["usage"]["prompt_tokens"] == len(chat["prompt_ids"])


SAMPLED = {"max_tokens": 12, "temperature": 1.5, "top_p": 0.95, "top_k": 50}


async def texts(client: httpx.AsyncClient, service: Service, prompt: str, **fields: Any) -> list[str]:
    found = await complete(client, service, prompt, **{**SAMPLED, **fields})
    return [choice["text"] for choice in found["choices"]]


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_vllm", "gpt2_llmapi_unary", "t5_logits"])
async def test_a_seed_gives_the_same_text_again(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2")
    prompt = "reverse one" if model == "t5_logits" else "The"
    # The small T5 repeats its input nearly always: eight of its texts are the same by chance once in ten times.
    hot = {"n": 8, "temperature": 20.0}
    async with client_of(service) as client:
        first = await texts(client, service, prompt, seed=5, n=4)
        assert await texts(client, service, prompt, seed=5, n=4) == first
        assert len(set(first)) > 1, "the choices of a prompt have seeds of their own"
        assert await texts(client, service, prompt, seed=6, n=4) != first
        assert await texts(client, service, prompt, **hot) != await texts(client, service, prompt, **hot)
        # Neighbours in the batch change nothing.
        repeated, *unseeded = await asyncio.gather(
            texts(client, service, prompt, seed=5, n=4),
            *(texts(client, service, prompt, seed=number, n=2) for number in range(7, 15)),
        )
        assert repeated == first
        assert len({text for other in unseeded for text in other}) > 1
        if model == "gpt2_past":
            alone = [await texts(client, service, prompt, seed=5 + choice) for choice in range(4)]
            assert [text for (text,) in alone] == first


LIMIT = 240 * 1024
"""Of 240 tokens: one has two layers' keys and values, 64 FP32 each."""


async def test_caches_that_do_not_fit_at_the_same_time_wait_for_each_other(serve: Serve) -> None:
    service = serve("gpt2_past", "grpc-v2", f"--max_cache_bytes={LIMIT}")
    long = {"max_tokens": 150, "ignore_eos": True, **GREEDY}
    async with client_of(service) as client:
        alone = await complete(client, service, PARIS, **long)
        runs = [complete(client, service, PARIS, **long, stream=stream) for stream in (False, True)]
        for found in await asyncio.gather(*runs):
            assert found["choices"][0]["text"] == alone["choices"][0]["text"]
            assert found["usage"] == alone["usage"]
        usage = (await complete(client, service, PARIS, **long, n=4))["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 4 * 150)
        for stream in (False, True):
            body = {"model": "gpt2_past", "prompt": PARIS, "stream": stream, **long, "max_tokens": 240}
            response = await client.post(COMPLETIONS, json=body)
            assert response.status_code == 413, response.text
            needed = (7 + 239) * 1024  # the prompt, and all new tokens but the last one
            assert (
                f"at most {LIMIT} bytes of key-value cache (--max_cache_bytes), got {needed}"
                in response.json()["error"]["message"]
            )
            assert "retry-after" not in response.headers


def test_a_prompt_that_is_too_long_is_refused_and_not_shown(serve: Serve) -> None:
    body = {"model": "gpt2_past", "prompt": "word " * 300, "max_tokens": 5}
    response = serve("gpt2_past", "grpc-v2").client.post(COMPLETIONS, json=body)
    assert response.status_code in (400, 413)
    assert "word word" not in response.text


@three_kinds
def test_stop_strings_end_a_text_across_tokens(serve: Serve, model: str) -> None:
    """Across the borders of tokens, and not part of the text."""
    body = {"model": model, "prompt": PARIS, "max_tokens": TOKENS, **GREEDY}
    service = serve(model, "grpc-v2")
    for stop, text in ((["ari"], " p"), (["x", "is."], " par"), ([" paris"], ""), (["no such"], " paris.")):
        response = service.client.post(COMPLETIONS, json=body | {"stop": stop})
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens", "gpt2_tokens_unary", "gpt2_vllm"])
async def test_stop_tokens_end_a_text_and_are_no_part_of_it(serve: Serve, model: str) -> None:
    """They end a text that goes on past its own end as well, and are no part of it."""
    service = serve(model, "grpc-v2")
    ids = Tokenizer.from_file(str(task_model_folder(model) / "tokenizer.json")).encode(" paris.").ids
    async with client_of(service) as client:
        for how, stream in (({}, False), ({"ignore_eos": True}, True)):
            asked = {"max_tokens": TOKENS, "stream": stream, "stop_token_ids": [0, ids[-1]], **how, **GREEDY}
            found = await complete(client, service, PARIS, **asked)
            (choice,) = found["choices"]
            assert (choice["text"], choice["finish_reason"]) == (" paris", "stop")
            assert found["usage"]["completion_tokens"] == len(ids) - 1


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens_unary", "gpt2_vllm", "t5_logits"])
async def test_statistics_count_requests_texts_and_calls(serve: Serve, triton: LocalTriton, model: str) -> None:
    """As of any other model, and not the steps of a text."""
    service = serve(model, "grpc-v2")
    prompt = "reverse one" if model == "t5_logits" else PARIS

    def counts() -> tuple[int, int, int, int, int]:
        [found] = service.client.get(f"/v2/models/{model}/stats").json()["model_stats"]
        stats = found["inference_stats"]
        numbers = found["inference_count"], found["execution_count"], stats["success"]["count"], stats["fail"]["count"]
        return *numbers, executions(triton, model)

    before = counts()
    service.predict([prompt] * 3, {"max_new_tokens": 4, "num_return_sequences": 2, "do_sample": True})
    async with client_of(service) as client:
        await complete(client, service, prompt, max_tokens=4, stream=True, **GREEDY)
    wrong = service.client.post(f"/v2/models/{model}/generate", json={"text_input": prompt, "max_tokens": -1})
    assert wrong.status_code == 400
    texts, calls, answered, failed, of_triton = [new - old for new, old in zip(counts(), before, strict=True)]
    assert (texts, answered, failed) == (7, 2, 1)
    if model in ("gpt2_past", "t5_logits"):  # a call is a step, which several texts share
        assert calls == of_triton >= 4
    else:
        assert calls == 7


async def test_a_structured_cloudevent_is_not_streamed(serve: Serve) -> None:
    parameters: dict[str, Any] = {"max_new_tokens": 2, "return_full_text": False}
    data = {"instances": [PARIS], "parameters": parameters}
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": data}
    service, form = serve("gpt2_past", "grpc-v2"), {"content-type": "application/cloudevents+json"}
    answer = service.post(event, headers=form)
    assert answer.json()["data"] == service.post(data).json()
    parameters["stream"] = True
    assert message_of(service.post(event, headers=form)).startswith("parameters.stream: expected false")
