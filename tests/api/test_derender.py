"""vLLM's derender routes, against the answers of vLLM's own render server.

scripts/goldens/vllm_derender.py has asked vLLM. Without parsers its answers and the service's are the same, parts of
streams and their states included. Messages are the same but for white space around content and reasoning; a stream may
be cut in other places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson
import pytest
from msgspec import convert
from tokenizers import Tokenizer

from hf_transformer.api.dialects import derender_types as types
from scripts.goldens.vllm_derender import CHAT, COMPLETIONS, make_pieces, make_thinking
from scripts.goldens.vllm_render import PLAIN
from tests.api.generating import ServedModel, answer_of
from tests.api.test_render import without_predictor
from tests.support.triton_repository import DEMO_MODELS

GOLDENS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "goldens" / "vllm_derender.json").read_text(encoding="utf-8")
)["cases"]
PLAIN_MODELS = ("gpt2", "pieces")
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {"thinking": make_thinking(folder / "thinking"), "pieces": make_pieces(folder / "pieces")}
    return {**made, "gpt2": PLAIN}


def flags(model: str) -> tuple[str, ...]:
    return ("--response_template=none",) if model in PLAIN_MODELS else ()


def named(case: Mapping[str, Any]) -> str:
    return f"{case['model']}: {case['name']}"


@pytest.mark.parametrize("case", [case for case in GOLDENS if "chunks" not in case], ids=named)
async def test_whole_answers_are_those_of_vllm(case: dict[str, Any], folders: dict[str, Path]) -> None:
    async with without_predictor(folders[case["model"]], flags=flags(case["model"])) as client:
        response = await client.post(case["path"], json=case["body"])
    [status], [wanted] = case["statuses"], case["answers"]
    assert response.status_code == status, response.text
    if status != 200:
        assert response.json()["error"]["message"]
    else:
        assert comparable(response.json()) == comparable(wanted)
        kind = types.DerenderedChatAnswer if case["path"] == CHAT else types.DerenderedCompletionAnswer
        assert convert(response.json(), kind)


@pytest.mark.parametrize("case", [case for case in GOLDENS if "chunks" in case], ids=named)
async def test_streams_are_those_of_vllm(case: dict[str, Any], folders: dict[str, Path]) -> None:
    async with without_predictor(folders[case["model"]], flags=flags(case["model"])) as client:
        answers = await streamed(client, case["path"], case["body"], case["chunks"], case["statuses"])
    if case["statuses"][-1] != 200:
        assert answers[-1]["error"]["message"]
    elif case["model"] in PLAIN_MODELS:
        for answer, wanted in zip(answers, case["answers"], strict=True):
            assert comparable(answer) == comparable(wanted)
            convert(answer, types.DerenderedChatPart if case["path"] == CHAT else types.DerenderedCompletionPart)
    else:
        assert joined(answers) == joined(case["answers"])
        assert all(convert(answer, types.DerenderedChatPart) for answer in answers)
        for answer, wanted in zip(answers, case["answers"], strict=True):
            assert state_of(answer) == state_of(wanted)


async def streamed(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    chunks: Sequence[Mapping[str, Any]],
    statuses: Sequence[int],
) -> list[Any]:
    """The answers to the parts of a stream. An error ends it."""
    answers: list[Any] = []
    state = None
    for chunk, status in zip(chunks, statuses, strict=False):
        sent = {**body, "stream": True, "generate_chunk": chunk, "stream_state": state}
        response = await client.post(path, json=sent)
        assert response.status_code == status, response.text
        answers.append(response.json())
        state = answers[-1].get("stream_state")
    return answers


def comparable(value: Any) -> Any:
    """An answer without nulls, times and random ids, and with one name of the reasoning."""
    if isinstance(value, dict):
        kept = {name: comparable(member) for name, member in value.items() if member is not None}
        for name in ("created", "reasoning_content", "output_token_ids", "output_chunk_lens"):
            kept.pop(name, None)
        if "reasoning" in kept or "tool_calls" in kept:  # a message that was read
            kept = {name: member.strip() if isinstance(member, str) else member for name, member in kept.items()}
            kept = {name: member for name, member in kept.items() if member != ""}
        if str(kept.get("id", "")).startswith(("call_", "chatcmpl-tool-")):
            kept["id"] = "call"
        return kept
    return [comparable(member) for member in value] if isinstance(value, list) else value


def joined(answers: Sequence[Any]) -> dict[str, Any]:
    """The message, log probabilities and end of a stream."""
    texts, calls = {"content": "", "reasoning": ""}, list[dict[str, str]]()
    finish, usage, ranked = list[Any](), list[Any](), list[Any]()
    for answer in answers:
        chunk = answer["chunk"]
        usage.append(chunk.get("usage"))
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in texts:
                texts[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                if call.get("id"):
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"].get("arguments") or ""
            finish.append(choice.get("finish_reason"))
            ranked += (choice.get("logprobs") or {}).get("content", ())
    read = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]
    message = {name: text.strip() for name, text in texts.items()}
    return {**message, "calls": read, "finish": finish, "usage": usage, "logprobs": comparable(ranked)}


def state_of(answer: Any) -> Any:
    """The parts of a state that do not depend on when a call is certain."""
    state = answer["stream_state"]
    names = ("prev_tokens", "prefix_offset", "read_offset", "role_sent", "logprob_context_token_ids")
    return {name: state[name] for name in names}


# Beyond vLLM's answers


THOUGHT, CALL = (
    "<think>\nwhy\n</think>\n\n",
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>',
)
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "now")]
CHAT_REQUEST = {"messages": [USER], "tools": TOOLS}


def ids_of(folder: Path, text: str) -> list[int]:
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def chunks_of(ids: Sequence[int], size: int) -> list[Any]:
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    chunks: list[Any] = [{"request_id": "r", "choices": [{"index": 0, "token_ids": part}]} for part in parts]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    return chunks


def generated(ids: Sequence[float], **more: Any) -> dict[str, Any]:
    return {"generate_response": {"request_id": "r", "choices": [{"index": 0, "token_ids": list(ids), **more}]}}


async def message_of(client: httpx.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


@pytest.mark.parametrize("size", [1, 2, 7, 41])
@pytest.mark.parametrize(
    "text",
    [
        THOUGHT + "one\n\n" + CALL + "\n" + CALL,
        THOUGHT + "a long answer — " * 12 + "東京",
        CALL + '\n<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
        THOUGHT
        + '<tool_call>\n{"name": "weather", "arguments": {"city": "</tool_call>", "note": "'
        + "x " * 30
        + '"}}',
        "<think>" * 3 + "a</think>",
    ],
    ids=["calls", "long", "no tool", "a delimiter in a string", "delimiters"],
)
async def test_a_stream_is_the_whole_answer_however_it_is_cut(text: str, size: int, folders: dict[str, Path]) -> None:
    folder = folders["thinking"]
    ids, asked = ids_of(folder, text), {"chat_request": CHAT_REQUEST, "prompt_token_ids": [1, 2]}
    async with without_predictor(folder) as client:
        whole = (await client.post(CHAT, json={**generated(ids), **asked})).json()["choices"][0]
        chunks = chunks_of(ids, size)
        answers = await streamed(client, CHAT, asked, chunks, [200] * len(chunks))
    texts: dict[str, str] = {"content": "", "reasoning": ""}
    calls: list[dict[str, str]] = []
    for answer in answers:
        [choice] = answer["chunk"]["choices"]
        for name in texts:
            texts[name] += choice["delta"].get(name, "")
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    message = whole["message"]
    assert texts == {"content": message["content"] or "", "reasoning": message.get("reasoning", "")}
    assert calls == [call["function"] for call in message.get("tool_calls", ())]
    assert answers[-1]["chunk"]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert len(answers[-1]["stream_state"]["last_tool_call_ids"]) == len(calls)


@pytest.mark.parametrize("model", PLAIN_MODELS)
@pytest.mark.parametrize("seed", range(4))
async def test_any_ids_give_the_same_text_in_parts_and_at_once(model: str, seed: int, folders: dict[str, Path]) -> None:
    source = Random(seed)
    ids = [source.randrange(3, 300) for _ in range(120)]
    async with without_predictor(folders[model], flags=flags(model)) as client:
        whole = await message_of(client, {**generated(ids), "prompt_token_ids": [5, 6]})
        for size in (1, 5, 60):
            chunks = chunks_of(ids, size)
            answers = await streamed(client, CHAT, {"prompt_token_ids": [5, 6]}, chunks, [200] * len(chunks))
            deltas = [answer["chunk"]["choices"][0]["delta"].get("content", "") for answer in answers]
            assert "".join(deltas) == whole["content"]
            assert all(len(answer["stream_state"]["prev_tokens"]) < 50 for answer in answers)


async def test_the_prompt_may_begin_the_reasoning(folders: dict[str, Path]) -> None:
    folder = folders["thinking"]
    ids = ids_of(folder, "why</think>\n\nso")
    chat = {"messages": [USER]}
    opened = ids_of(folder, "<|im_start|>assistant\n<think>\n")
    closed = ids_of(folder, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    async with without_predictor(folder) as client:
        asked = {**generated(ids), "chat_request": chat}
        read = await message_of(client, {**asked, "prompt_token_ids": opened})
        assert (read["reasoning"], read["reasoning_content"], read["content"]) == ("why", "why", "so")
        answer = {**generated(ids)["generate_response"], "prompt_token_ids": opened}
        assert (await message_of(client, {**asked, "generate_response": answer}))["reasoning"] == "why"
        assert "reasoning" not in await message_of(client, {**asked, "prompt_token_ids": closed})
        [chunk] = chunks_of(ids, 99)
        one = {"stream": True, "generate_chunk": chunk, "prompt_token_ids": opened, "chat_request": chat}
        delta = (await client.post(CHAT, json=one)).json()["chunk"]["choices"][0]["delta"]
        assert (delta["reasoning"], delta["content"]) == ("why", "so")


async def test_without_the_prompts_tokens_the_chat_is_rendered(tmp_path: Path) -> None:
    folder = make_thinking(tmp_path / "opened")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] += "{{- '<think>\\n' }}"
    path.write_text(json.dumps(settings))
    ids = ids_of(folder, "why</think>\n\nso")
    async with without_predictor(folder) as client:
        read = await message_of(client, {**generated(ids), "chat_request": {"messages": [USER]}})
        assert (read["reasoning"], read["content"]) == ("why", "so")
        broken = {**generated(ids), "chat_request": {"messages": [{"role": "user"}]}}
        response = await client.post(CHAT, json=broken)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "chat_request.messages[0].content")


@pytest.mark.parametrize(
    ("choice", "text", "calls", "content"),
    [
        ({"type": "function", "function": {"name": "now"}}, '{"a": [1, "}"]}', [("now", '{"a": [1, "}"]}')], None),
        ({"type": "function", "function": {"name": "now"}}, "it is 7 o'clock", [], "it is 7 o'clock"),
        ("required", '[{"name": "now", "arguments": {"a": 1}}]', [("now", '{"a": 1}')], None),
        ("required", CALL, [("weather", '{"city": "Zürich 🙂"}')], None),
        ("none", CALL, [], CALL),
    ],
    ids=["named", "named without a call", "required", "in the template's form", "none"],
)
@pytest.mark.parametrize("thought", ["", THOUGHT], ids=["", "reasoning"])
async def test_forced_calls_are_json_or_as_the_template_writes_them(
    choice: Any, text: str, calls: list[tuple[str, str]], content: str | None, thought: str, folders: dict[str, Path]
) -> None:
    folder = folders["thinking"]
    asked = {"chat_request": {**CHAT_REQUEST, "tool_choice": choice}, "prompt_token_ids": [1, 2]}
    async with without_predictor(folder) as client:
        message = await message_of(client, {**generated(ids_of(folder, thought + text)), **asked})
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert (found, message["content"], message.get("reasoning", "")) == (calls, content, "why" if thought else "")


async def test_calls_that_can_not_be_read_are_counted_once(folders: dict[str, Path]) -> None:
    folder = folders["thinking"]
    ids = ids_of(folder, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call> and so on')
    asked = {"chat_request": CHAT_REQUEST, "prompt_token_ids": [1, 2]}
    async with without_predictor(folder) as client:
        message = await message_of(client, {**generated(ids), **asked})
        assert '"other"' in message["content"]
        chunks = chunks_of(ids, 2)
        await streamed(client, CHAT, asked, chunks, [200] * len(chunks))
        metrics = (await client.get("/metrics")).text
    assert 'unreadable_calls_total{model_name="thinking"} 2' in metrics


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (generated([1, 2**70]), None),
        (generated([1, True]), "generate_response.choices[0].token_ids[1]"),
        (generated([1, 1.0]), "generate_response.choices[0].token_ids[1]"),
        (generated([1], logprobs=[]), "generate_response.choices[0].logprobs"),
        (generated([1], logprobs={"content": [{}]}), "generate_response.choices[0].logprobs.content[0].token_id"),
        (
            generated([1], logprobs={"content": [{"token_id": 1, "logprob": 0, "top_logprobs": [1] * 22}]}),
            "generate_response.choices[0].logprobs.content[0].top_logprobs",
        ),
        (
            generated([1], logprobs={"content": [{"token_id": 1, "logprob": 0}] * 257}),
            "generate_response.choices[0].logprobs.content",
        ),
        ({"generate_response": {"choices": [1]}}, "generate_response.choices[0]"),
        ({"generate_response": {"choices": {}}}, "generate_response.choices"),
        ({**generated([1]), "stream": True}, "stream"),
        ({**generated([1]), "prompt_token_ids": [-1]}, "prompt_token_ids[0]"),
        ({**generated([1]), "chat_request": {}}, "chat_request.messages"),
        ({**generated([1]), "chat_request": {"messages": [USER], "stop": ["x"] * 17}}, "chat_request.stop"),
        ({**generated([1]), "chat_request": {"messages": [USER], "stop": [1]}}, "chat_request.stop[0]"),
        ({**generated([1]), "chat_request": {"messages": [USER], "tools": [{}]}}, "chat_request.tools[0].type"),
        ({**generated([1]), "chat_request": {"messages": [USER], "tool_choice": "any"}}, "chat_request.tool_choice"),
        (
            {**generated([1]), "chat_request": {**CHAT_REQUEST, "tool_choice": {"type": "x"}}},
            "chat_request.tool_choice.type",
        ),
    ],
    ids=str,
)
async def test_invalid_bodies(body: Any, param: str | None, folders: dict[str, Path]) -> None:
    async with without_predictor(folders["thinking"], flags=("--enable_auto_tool_choice=true",)) as client:
        response = await client.post(CHAT, content=orjson.dumps(body) if param else json.dumps(body))
    assert response.status_code in (400, 413), response.text
    assert param is None or response.json()["error"]["param"] == param


STATE = {"prev_tokens": [" a"], "prefix_offset": 0, "read_offset": 1}


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ({}, 200),
        ({**STATE, "prefix_offset": 2**40, "read_offset": 0}, 200),
        ({**STATE, "prev_tokens": ["", "\ud83d", "no token"] * 300, "read_offset": 5}, 400),
        ({**STATE, "prev_tokens": ["", "Ģ", "no token"] * 300, "read_offset": 5}, 200),
        ({**STATE, "prev_tokens": ["ð"] * 1024}, 200),
        ({**STATE, "prev_tokens": ["a"] * 1025}, 413),
        ({**STATE, "prev_tokens": [1]}, 400),
        ({**STATE, "read_offset": -1}, 400),
        ({"output_token_ids": [1, 2], "output_chunk_lens": [1]}, 400),
        ({"output_token_ids": [1, 2], "output_chunk_lens": [2, 0]}, 400),
        ({"output_token_ids": [5000] * 2, "output_chunk_lens": [2]}, 200),
        ({"output_token_ids": [3] * 300, "output_chunk_lens": [300]}, 400),
        ({"logprob_context_token_ids": [1] * 5}, 413),
        ({"logprob_context_token_ids": [5000, 2**40], "logprob_text_offset": 2**40}, 200),
        ({"last_tool_call_ids": ["a"] * 9, "tools_streamed": True}, 200),
        ({"other": 1}, 400),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_state_of_the_clients_own_making(state: Any, status: int, folders: dict[str, Path]) -> None:
    chunk = {
        "choices": [{"index": 0, "token_ids": [300, 301], "logprobs": {"content": [{"token_id": 7, "logprob": 0}]}}]
    }
    body = {"stream": True, "generate_chunk": chunk, "stream_state": state}
    asked = {"chat_request": CHAT_REQUEST, "prompt_token_ids": [1, 2]}
    async with without_predictor(folders["thinking"]) as client:
        for path, more in ((CHAT, asked), (COMPLETIONS, {})):
            response = await client.post(path, content=json.dumps({**body, **more}))
            if path == COMPLETIONS and len(state.get("output_token_ids", ())) > 256:
                continue  # texts are not read again
            assert response.status_code == status, response.text


async def test_a_model_with_a_predictor_derenders_its_own_answers(made: ServedModel) -> None:
    [rendered] = await answer_of(made, "/v1/completions/render", {"prompt": "the capital of france is paris"})
    answers = {"generate_responses": [generated(rendered["token_ids"])["generate_response"]], "model": "gpt2"}
    texts = await answer_of(made, COMPLETIONS, answers)
    assert texts["choices"][0]["text"] == "the capital of france is paris"
    assert texts["usage"]["completion_tokens"] == len(rendered["token_ids"])
    body = {**generated(rendered["token_ids"]), "chat_request": {"messages": [USER]}}
    message = (await answer_of(made, CHAT, body))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "the capital of france is paris"}


async def test_other_models_do_not_derender() -> None:
    async with without_predictor(DEMO_MODELS / "bert") as client:
        response = await client.post(CHAT, json=generated([1]))
    assert response.status_code == 400 and "'bert' for fill_mask" in response.text


async def test_a_body_without_the_fields_of_a_route_names_them() -> None:
    async with without_predictor(PLAIN) as client:
        message = (await client.post(CHAT, json={})).json()["error"]["message"]
    assert "generate_response (vllm) or generate_chunk, stream (vllm)" in message
