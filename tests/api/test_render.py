"""vLLM's render routes and a service without a predictor, against the answers of vLLM's own render server.

scripts/goldens/vllm_render.py has asked vLLM. Its answers and the service's have the same tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.service import Models, Service
from hf_transformer.app.models import DeclaredModel, ModelFactory
from hf_transformer.core.limits import Admission
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import Connections
from scripts.goldens.vllm_render import PLAIN, make_framed
from tests.api.generating import OPTIONS, ServedModel, answer_of, application, client_of, loaded, openai_error
from tests.support.budgets import limits
from tests.support.triton_repository import DEMO_MODELS

CHAT, COMPLETIONS = "/v1/chat/completions/render", "/v1/completions/render"
USER = {"role": "user", "content": "What is the capital of france?"}
GOLDENS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "goldens" / "vllm_render.json").read_text(encoding="utf-8")
)["cases"]
OWN_STATUS = {"unknown id": 400}
"""Statuses of the service that differ from vLLM's, whose render server leaves unknown ids to the model's server."""
DEFAULTS: dict[str, Any] = {
    **{"n": 1, "top_k": 0, "max_tokens": 16, "skip_clone": True, "stop": [], "stop_token_ids": [], "bad_words": []},
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p"), 0.0),
    **dict.fromkeys(("repetition_penalty", "temperature", "top_p"), 1.0),
}
OF_TEMPERATURE = ("top_k", "top_p", "min_p")
"""Fields that vLLM resets for temperature 0, which the model's server does too."""
DERIVED = ("skip_reading_prefix_cache", "extra_args")
OF_TOOL_PARSER = ("skip_special_tokens", "structured_outputs")
"""Fields that vLLM's tool parser sets, which the service does not have."""


@asynccontextmanager
async def without_predictor(*folders: Path, flags: tuple[str, ...] = ()) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service for the models in these folders, named like them."""
    metrics, executor = Metrics(), ThreadPoolExecutor(1)
    factory = ModelFactory(metrics, executor, Connections())
    models = []
    for folder in folders:
        own = ("--predictor_protocol=none", f"--model_name={folder.name}", f"--model_dir={folder}", *flags)
        models.append(factory.make(DeclaredModel(OPTIONS(*own)), loaded(*own)).model)
        assert await models[-1].check_predictor() == ""
    service = Service(Models(models), Admission(100, 2**20, metrics), metrics, 2**20, limits(), OpenStreams())
    try:
        async with client_of(application(service)) as client:
            yield client
    finally:
        executor.shutdown()


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_framed(tmp_path_factory.mktemp("models") / "framed")


@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: case["name"])
@pytest.mark.parametrize("number", [0, 1], ids=["gpt2", "framed"])
async def test_the_answers_are_those_of_vllm(case: dict[str, Any], number: int, framed: Path) -> None:
    body = case["body"] | ({"model": ("gpt2", "framed")[number]} if "model" in case["body"] else {})
    async with without_predictor((PLAIN, framed)[number]) as client:
        response = await client.post(case["path"], json=body)
    status, wanted = case["answers"][number]
    assert response.status_code == OWN_STATUS.get(case["name"], status), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    elif case["path"].endswith("/render"):
        found = response.json()
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, list) else [(found, wanted)]
        for ours, theirs in pairs:
            assert comparable(ours, case["body"]) == comparable(theirs, case["body"])
    else:
        assert response.json() == wanted


def comparable(answer: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """An answer without defaults, random ids and what only vLLM's other features set."""
    omitted = (
        *(OF_TEMPERATURE if body.get("temperature") == 0 else ()),
        *(OF_TOOL_PARSER if body.get("tools") else ()),
        *DERIVED,
    )
    sampling = {
        name: value
        for name, value in answer["sampling_params"].items()
        if name not in omitted and DEFAULTS.get(name, omitted) != value
    }
    if form := sampling.get("structured_outputs"):
        sampling["structured_outputs"] = {name: value for name, value in form.items() if value and name[0] != "_"}
    answer = {**answer, "sampling_params": sampling}
    prefix, mark, number = re.split("([-_])", answer["request_id"] + "-", maxsplit=1)
    if body.get("request_id", "none") not in answer["request_id"]:
        answer["request_id"] = prefix, mark, number.partition("-")[2]
    if answer["stream_options"]:
        answer["stream_options"] = {name: value for name, value in answer["stream_options"].items() if value}
    del answer["parse_context"]  # for vLLM's derender routes
    if answer["model"] is not None:
        answer["model"] = body.get("model")  # each server has a model of its own
    return answer


@pytest.mark.parametrize("more", [{}, {"truncate_prompt_tokens": 1}, {"return_token_offsets": True}], ids=str)
@pytest.mark.parametrize("ids", [[1, "a"], [1, None], [1, 1.5], [1, [2]], [1, {}], [-1], [2**40], [2**64 - 1]], ids=str)
async def test_lists_with_anything_but_token_ids_are_refused(ids: list[Any], more: dict[str, Any]) -> None:
    async with without_predictor(PLAIN) as client:
        for prompt in (ids, [ids], [[1, 2], ids]):
            response = await client.post(COMPLETIONS, json={"prompt": prompt, **more})
            assert response.status_code == 400 and "prompt" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions/render", "/v1/chat/completions/render"])
async def test_a_deep_value_that_is_repeated_is_refused(path: str) -> None:
    deep = b"[" * 300 + b"]" * 300
    async with without_predictor(PLAIN) as client:
        for field in (b"kv_transfer_params", b"logit_bias", b"structured_outputs"):
            body = b'{"prompt":"a","messages":[{"role":"user","content":"a"}],"%b":{"a":%b}}' % (field, deep)
            response = await client.post(path, content=body)
            assert response.status_code == 413 and "nested at most 200 deep" in response.json()["error"]["message"]


async def test_a_router_sends_what_its_clients_send() -> None:
    """llm-d's token-producer leaves out false and empty fields, and reads token_ids and features."""
    async with without_predictor(PLAIN) as client:
        chat = {"model": "gpt2", "messages": [USER, {"role": "assistant", "content": ""}]}
        answer = (await client.post(CHAT, json=chat)).json()
        [prompt] = (await client.post(COMPLETIONS, json={"model": "gpt2", "prompt": "hello"})).json()
        assert answer["features"] is None and answer["model"] == "gpt2"
        tokens = (await client.post("/tokenize", json={"prompt": "hello"})).json()["tokens"]
        assert prompt["token_ids"] == tokens and set(map(type, answer["token_ids"])) == {int}
        response = await client.post(CHAT, json={"messages": [USER], "ttl_seconds": 5, "audio": None})
        assert (response.status_code, response.headers["x-ignored-parameters"]) == (200, "ttl_seconds")
        hub = await client.post(COMPLETIONS, json={"prompt": "a", "model": "openai-community/gpt2"})
        assert hub.json()[0]["model"] == "openai-community/gpt2", "vLLM's names are those of the hub"
        other = await client.post(COMPLETIONS, json={"prompt": "a", "model": "openai-community/other"})
        assert other.status_code == 404 and "'openai-community/other'" in other.text
        named = await client.post(COMPLETIONS, json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
        assert named.json()[0]["request_id"] == "cmpl-mine"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (COMPLETIONS, {"prompt": [1, -1]}, "prompt[0]"),
        (CHAT, {"messages": [USER], "tools": [{}]}, "tools[0].type"),
        (CHAT, {"messages": [USER], "max_completion_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"continue_final_message": True}}, None),
    ],
)
async def test_invalid_fields(path: str, body: dict[str, Any], param: str | None) -> None:
    async with without_predictor(PLAIN) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param


async def test_fields_of_a_body_are_not_repeated_without_bound() -> None:
    async with without_predictor(PLAIN) as client:
        body = {"prompt": ["a"] * 50, "kv_transfer_params": {"a": "x" * 30_000}}
        response = await client.post(COMPLETIONS, json=body)
        assert response.status_code == 413 and "for all prompts" in response.json()["error"]["message"]
        assert (await client.post(COMPLETIONS, json={**body, "prompt": ["a"] * 5})).status_code == 200


async def test_a_model_with_a_predictor_renders_the_prompt_that_it_gets(made: ServedModel) -> None:
    messages = [{"role": "system", "content": "Be short."}, USER]
    rendered = await answer_of(made, CHAT, {"messages": messages})
    await answer_of(made, "/openai/v1/chat/completions", {"model": "gpt2", "messages": messages})
    assert rendered["token_ids"] == list(made.generator.asked[-1][0].ids)
    [rendered] = await answer_of(made, COMPLETIONS, {"prompt": "The capital"})
    await answer_of(made, "/openai/v1/completions", {"model": "gpt2", "prompt": "The capital"})
    assert rendered["token_ids"] == list(made.generator.asked[-1][0].ids)
    assert made.requests("vllm", 200) == 2


async def test_chats_need_a_template_and_prompts_a_model_that_generates(tmp_path: Path) -> None:
    folder = make_framed(tmp_path / "plain")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    async with without_predictor(folder, DEMO_MODELS / "bert") as client:
        response = await client.post(CHAT, json={"messages": [USER]})
        assert response.status_code == 400 and "a model with a chat template" in response.text
        for path, body in ((CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "a"})):
            response = await client.post(path, json={"model": "bert", **body})
            assert response.status_code == 400 and "'bert' for fill_mask" in response.text
        tokens = await client.post("/tokenize", json={"model": "bert", "prompt": "a fine day"})
        assert tokens.json()["count"] == 7, "its tokenizer is served"


PREDICTING = [
    ("/v1/models/bert:predict", {"instances": ["a [MASK]"]}),
    ("/v2/models/bert/infer", {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a [MASK]"]}]}),
    ("/v1/models/gpt2:predict", {"instances": ["a"]}),
    ("/v2/models/gpt2/infer", {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}),
    ("/v2/models/gpt2/generate", {"text_input": "a"}),
    ("/v2/models/gpt2/generate_stream", {"text_input": "a"}),
    ("/openai/v1/completions", {"model": "gpt2", "prompt": "a", "temperature": 0.5}),
    ("/openai/v1/completions", {"model": "gpt2", "prompt": "a", "stream": True}),
    ("/openai/v1/chat/completions", {"model": "gpt2", "messages": [USER]}),
    ("/openai/v1/responses", {"model": "gpt2", "input": "a"}),
    ("/openai/v1/embeddings", {"model": "minibert_mean", "input": "a"}),
    ("/embed", {"inputs": "a"}),
    ("/v1/models/cross:predict", {"instances": [{"query": "a", "texts": ["b"]}]}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
]


@pytest.mark.parametrize(("path", "body"), PREDICTING)
async def test_all_that_needs_a_predictor_names_the_flag(path: str, body: Any) -> None:
    folders = [DEMO_MODELS / name for name in ("bert", "gpt2", "minibert_mean")]
    flags = ("--task=rerank",) if "cross" in path or "rerank" in path else ()
    if flags:
        folders = [DEMO_MODELS / "cross"]
    async with without_predictor(*folders, flags=flags) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 501, response.text
    assert "--predictor_protocol=none" in response.text and "retry-after" not in response.headers


async def test_what_the_service_says_of_a_model_without_a_predictor() -> None:
    async with without_predictor(PLAIN) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await client.get("/v2/models/gpt2")).json() == {
            **{"name": "gpt2", "platform": "hf_transformer", "inputs": [], "outputs": []}
        }
        about = (await client.get("/v1/models/gpt2/info")).json()
        assert (about["protocols"], about["examples"]) == ({}, [])
        assert about["generation"] == {"chat": True, "tools": True, "max_new_tokens": None, "full_text": True}
        assert (await client.get("/v2/models/stats")).json()["model_stats"][0]["inference_count"] == 0
        document = (await client.get("/openapi.json")).json()
        posts = {path for path, item in document["paths"].items() if "post" in item and path != "/"}
        assert posts == {
            *{"/v1/models/gpt2:tokenize", "/v1/models/gpt2:detokenize", "/tokenize", "/detokenize", "/decode"},
            *{CHAT, COMPLETIONS, "/v1/messages/render", "/v1/responses/render", "/v1/messages/count_tokens"},
            *{"/v1/chat/completions/derender", "/v1/completions/derender", "/v2/repository/index", "/anonymize"},
        }
        assert "hf_transformer_model_ready" in (await client.get("/metrics")).text


async def test_tokens_of_a_chat_take_the_fields_of_its_template(made: ServedModel) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    chat = {"messages": [USER], "tools": tools}
    tokens = (await answer_of(made, "/tokenize", chat))["tokens"]
    assert tokens == (await answer_of(made, CHAT, chat))["token_ids"]
    assert len(tokens) > len((await answer_of(made, "/tokenize", {"messages": [USER]}))["tokens"])
    message, _ = await openai_error(made, "/tokenize", {"messages": [USER], "continue_final_message": True}, 400)
    assert message == 'continue_final_message: expected false, got true; or send "add_generation_prompt": false'
