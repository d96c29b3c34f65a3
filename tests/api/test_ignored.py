"""V2 ignores unknown parameters, as KServe and Triton do, and names them in a header. Other APIs refuse them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.generating import PROMPT, ServedModel

INFER = "/v2/models/gpt2/infer"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
BACKEND = {**TENSOR, "name": "text_input"}
HEADER = "x-ignored-parameters"


async def infer(made: ServedModel, body: Any, path: str = INFER) -> httpx.Response:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(made.app), base_url="http://service", verify=False
    ) as client:
        return await client.post(path, json=body)


ASKED: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"parameters": {"max_tokens": 30, "timeout": 10**9}, "id": "1", "outputs": None}, None),
    ({"parameters": {"top_kk": 3, "num_beams": None}, "paramters": {}}, "paramters, top_kk, num_beams"),
    ({"parameters": {"parameters": json.dumps({"max_tokens": 30, "top_q": 1})}}, "top_q"),
    ({"inputs": [{**TENSOR, "kind": 1, "parameters": {"content": "x"}}]}, "kind, content"),
    ({"outputs": [{"name": "output-0", "kind": 1, "parameters": {"raw": True}}]}, "kind, raw"),
    ({"parameters": {f"{number:\u00e9>50}": 1 for number in range(12)}}, "_" * 40),
    ({"parameters": {str(number): 1 for number in range(100, 999)}}, ", ".join(map(str, range(100, 110)))),
]


@pytest.mark.parametrize(("more", "names"), ASKED, ids=[str(names)[:30] for _, names in ASKED])
async def test_v2_names_ignored_parameters_in_a_header(
    made: ServedModel, more: dict[str, Any], names: str | None
) -> None:
    found = await infer(made, {"inputs": [TENSOR], **more})
    assert found.status_code == 200, found.text
    assert found.json()["outputs"][0]["data"] == [f"{PROMPT} paris."]
    assert found.headers.get(HEADER) == names


async def test_backend_requests_ignore_unknown_parameters_only(made: ServedModel) -> None:
    outputs = [{"name": "text_output"}]
    answer = await infer(made, {"inputs": [BACKEND], "outputs": outputs, "parameters": {"top_q": 1, "max_tokens": 30}})
    assert (answer.status_code, answer.headers[HEADER]) == (200, "top_q")
    for name, value in (("best_of", 2), ("lora_name", "x"), ("image", "x"), ("prompt_logprobs", 1)):
        answer = await infer(made, {"inputs": [BACKEND], "outputs": outputs, "parameters": {name: value}})
        assert (answer.status_code, name in answer.json()["error"]) == (400, True), name


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (INFER, {"inputs": [TENSOR], "parameters": {"top_k": "3", "top_kk": 1}}, "parameters.top_k: expected"),
    (INFER, {"inputs": [TENSOR], "parameters": {"timeout": -1}}, "parameters.timeout: expected"),
    (INFER, {"inputs": [TENSOR, {**TENSOR, "name": "other"}]}, "'other'"),
    (INFER, {"inputs": [TENSOR], "outputs": [{"name": "logits"}]}, "outputs: expected names of output-0, got 'logits'"),
    (INFER, {"inputs": [{**TENSOR, "parameters": {"shared_memory_region": "a"}}]}, "'shared_memory_region'"),
    (
        INFER,
        {"inputs": [TENSOR], "outputs": [{"name": "output-0", "parameters": {"classification": 2}}]},
        "'classification'",
    ),
    (
        "/v1/models/gpt2:predict",
        {"instances": [PROMPT], "parameters": {"top_kk": 1}},
        "parameters.top_kk: expected one of",
    ),
    ("/v2/models/gpt2/generate", {"text_input": PROMPT, "top_kk": 1}, "top_kk: expected one of"),
    (
        "/v2/models/gpt2/generate",
        {"text_input": PROMPT, "parameters": {"top_kk": 1}},
        "parameters.top_kk: expected one of",
    ),
]


@pytest.mark.parametrize(("path", "body", "says"), WRONG, ids=[says[:30] for _, _, says in WRONG])
async def test_invalid_parameters_are_refused_in_every_api(made: ServedModel, path: str, body: Any, says: str) -> None:
    found = await infer(made, body, path)
    assert found.status_code == 400
    assert says in found.json()["error"]
    assert found.headers.get(HEADER) == ("top_kk" if path == INFER and "top_kk" in str(body) else None)
