"""Requests that the HTTP APIs refuse before the model is asked: routes, encodings, bodies and CloudEvents."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from hf_transformer.observability.metrics import Metrics
from tests.api.generating import application, client_of, loaded, metric
from tests.integration.api.grpc_model import ScriptedModel, service_of
from tests.support.triton_repository import DEMO_MODEL

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT]}
PREDICT, INFER = "/v1/models/bert:predict", "/v2/models/bert/infer"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
LENGTH = "inference-header-content-length"


@dataclass
class Refusing:
    """A client of a service whose model must not be asked."""

    client: httpx.AsyncClient
    metrics: Metrics

    async def message(self, status: int, path: str, method: str = "POST", **sent: Any) -> str:
        """The message of a refusal with this status, in the form that all APIs but OpenAI's have."""
        response = await self.client.request(method, path, **sent)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert list(body) == ["error"]
        message: str = body["error"]
        assert TEXT not in message
        assert status != 405 or f"expected {response.headers['allow']}" in message
        return message


@pytest.fixture
async def service() -> AsyncIterator[Refusing]:
    model = ScriptedModel()
    model.task = loaded(f"--model_dir={DEMO_MODEL}").task
    metrics = Metrics()
    async with client_of(application(service_of(model, metrics))) as client:
        yield Refusing(client, metrics)
    assert model.contexts == []


ROUTES = [
    ("GET", "/v3", 404, "/v3"),
    ("POST", "/v1/models/bert", 405, "/v1/models/bert"),
    ("GET", "/v1/models/bert:predict", 405, "expected POST"),
    ("PUT", "/v1/models", 405, "/v1/models"),
    ("POST", "/v1/models/other:predict", 404, "'other'"),
    ("GET", "/v1/models/other", 404, "expected a served model (bert)"),
    ("GET", "/v1/models/bert:tokenize", 405, "expected POST"),
    ("GET", "/v1/models/bert:detokenize", 405, "expected POST"),
    ("POST", "/v1/models/other:tokenize", 404, "'other'"),
    ("POST", "/v1/models/other:detokenize", 404, "'other'"),
    ("GET", "/v1/models/other/info", 404, "expected a served model"),
    ("POST", "/info", 405, "expected GET, HEAD"),
    *(
        (method, f"/v2/models/{model}{route}", 404, f"expected {expected}")
        for model, expected in (("other", "a served model (bert)"), ("bert/versions/2", "version '1' of model 'bert'"))
        for method, route in (("POST", "/infer"), ("GET", ""), ("GET", "/ready"))
    ),
    ("GET", "/v2/other", 404, "/v2/other"),
    ("GET", INFER, 405, "expected POST"),
    ("POST", "/v2/models/bert", 405, "expected GET, HEAD"),
]
"""tests/integration/test_docs.py asks every route for another model."""


async def test_unknown_routes_and_models_are_404_and_wrong_methods_405(service: Refusing) -> None:
    for method, path, status, says in ROUTES:
        assert says in await service.message(status, path, method, json=BODY if method == "POST" else None), path
    assert metric(service.metrics, 'hf_transformer_requests_total{api="tokenize",model_name="",status="404"}') == 2


@pytest.mark.parametrize(("path", "body"), [(PREDICT, BODY), (INFER, {"inputs": [TENSOR]})], ids=["V1", "V2"])
async def test_unknown_encodings_are_415(service: Refusing, path: str, body: Any) -> None:
    assert "'br'" in await service.message(415, path, json=body, headers={"content-encoding": "br"})
    charset = {"content-type": "application/json; charset=utf-7"}
    assert "utf-7" in await service.message(415, path, json=body, headers=charset)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body: expected JSON in UTF-8"),
        (b'{"instances": ["\xff"]}', "body: expected JSON in UTF-8"),
        ([TEXT], "body: expected an object with ... got a list"),
        ({"texts": [TEXT]}, "body: ... the keys texts"),
        ({"instances": [TEXT], "inputs": [TEXT]}, "body: ... got both"),
        ({"instances": []}, "instances: expected at least one"),
        ({"instances": None}, "instances: expected a list"),
        ({**BODY, "parameters": [1]}, "parameters: expected an object"),
    ],
    ids=["nothing", "no UTF-8", "list", "keys", "both", "none", "null", "parameters"],
)
async def test_a_v1_body_without_instances_is_refused(service: Refusing, body: Any, says: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    start, *parts = says.split(" ... ")
    message = await service.message(400, PREDICT, content=content)
    assert message.startswith(start) and all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model_name": "other"}, 400, "model_name: expected 'bert', as in the path, got 'other'"),
        ({"model_version": "2"}, 400, "model_version: expected '1', as in the path, got '2'"),
        ({"parameters": {"parameters": "x" * 65537}}, 413, "parameters.parameters: expected at most 65536 characters"),
        ({"inputs": [{**TENSOR, "shape": [101], "data": ["a"] * 101}]}, 413, "expected at most 100 elements"),
    ],
    ids=["model", "version", "parameters", "elements"],
)
async def test_a_v2_body_for_another_model_or_over_a_limit_is_refused(
    service: Refusing, body: Any, status: int, says: str
) -> None:
    assert says in await service.message(status, INFER, json={"inputs": [TENSOR], **body})


@pytest.mark.parametrize("length", ["", "-1", "x", str(2**60)])
async def test_a_wrong_length_of_the_json_header_is_400(service: Refusing, length: str) -> None:
    message = await service.message(400, INFER, json={"inputs": [TENSOR]}, headers={LENGTH: length})
    assert "Inference-Header-Content-Length" in message


# CloudEvents

EVENT: dict[str, Any] = {"specversion": "1.0", "id": "7", "source": "test", "type": "my.request"}
STRUCTURED = "application/cloudevents+json"
BASE64 = b64encode(b"[]").decode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"specversion": None}, "specversion: expected 1.0, got nothing"),
        ({"specversion": "0.3"}, "specversion: expected 1.0, got '0.3'"),
        ({"id": ""}, "id: ... got an empty text"),
        ({"source": 1}, "source: ... got a number"),
        ({"type": ...}, "type: ... got nothing"),
        ({"data": ...}, "data: expected data or data_base64, got neither"),
        ({"data_base64": ""}, "data_base64: expected data or data_base64, got both"),
        ({"data": "a text"}, 'data: expected an object with "instances", got a string'),
        ({"data": {"instances": []}}, "instances: expected at least one"),
        ({"data": ..., "data_base64": {}}, "data_base64: expected JSON in base64 ... got an empty object"),
        ({"data": ..., "data_base64": "%%%%"}, "data_base64: expected JSON in base64 ... another string"),
        ({"data": ..., "data_base64": "ä"}, "data_base64: expected JSON in base64 ... another string"),
        ({"data": ..., "data_base64": "AAAA"}, "data_base64: expected JSON in UTF-8"),
        ({"data": ..., "data_base64": BASE64}, 'data_base64: expected an object with "instances"'),
    ],
    ids=[
        *("null", "old-version", "empty-id", "number", "no-type", "no-data", "two-data", "text", "no-instances"),
        *("object", "no-base64", "no-ascii", "no-json", "list"),
    ],
)
async def test_an_event_without_attributes_or_data_is_refused(
    service: Refusing, change: dict[str, Any], says: str
) -> None:
    event = {**EVENT, "data": BODY, **change}
    event = {name: value for name, value in event.items() if value is not ...}
    message = await service.message(400, PREDICT, json=event, headers={"content-type": STRUCTURED})
    start, *parts = says.split("...")
    assert message.startswith(start) and all(part.strip() in message for part in parts), message


async def test_batches_and_other_formats_of_events_are_refused(service: Refusing) -> None:
    event = [{**EVENT, "data": BODY}]
    for form in ("application/cloudevents-batch+json", "application/cloudevents+avro", "application/cloudevents"):
        message = await service.message(415, PREDICT, json=event, headers={"content-type": form})
        assert form in message and f"expected {STRUCTURED}" in message
    message = await service.message(400, PREDICT, json=event, headers={"content-type": STRUCTURED})
    assert "an object, got a list" in message
