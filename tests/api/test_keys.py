"""API keys over HTTP and gRPC: the key file, protected routes and methods, refusals, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from hf_transformer.api.auth import CONTROL_KEYS, CONTROL_PATH, ApiKeys
from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.app.application import gateway_settings
from hf_transformer.credentials import MAX_FILE_BYTES, read_key_pair
from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.api.generating import ServedModel, application, client_of, loaded
from tests.integration.api.grpc_model import (
    SECONDS,
    ScriptedModel,
    failure,
    request,
    service_of,
    serving,
    status_of,
    text_of,
)
from tests.support.configuring import config, parse
from tests.support.triton_repository import DEMO_MODEL

INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
KEY = {"Authorization": "Bearer alpha-key"}
REFUSED = 'hf_transformer_requests_total{api="keys",model_name="",status="401"}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "expected a key in each line, got none"),
        (b"# only a comment\n", "got none"),
        (b"good\nwith space\n", "line 2"),
        ("schlüssel\n".encode(), "line 1"),
        (b"a" * 1025, "line 1"),
        (b"\xff\xfe", "UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "can't be read: expected at most 4194304 bytes"),
        (None, "can't be read: No such file"),
    ],
    ids=["nothing", "comment", "space", "umlaut", "long", "no text", "large", "no file"],
)
def test_key_files_without_valid_keys_are_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^--api_keys_file={path}: .*{says}") as caught:
        ApiKeys(str(path))
    assert "with space" not in str(caught.value)


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_file_without_an_end_has_no_keys(tmp_path: Path, kind: str) -> None:
    """The service reads the file again when it changes, and would wait for ever."""
    path = tmp_path / "keys"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=f"^--api_keys_file={path}: can't be read: expected a regular file"):
        ApiKeys(str(path))
    with pytest.raises(ConfigError, match="expected a regular file"):
        read_key_pair(str(path), str(path))


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        (b"authorization", b"Bearer alpha-key", True),
        (b"authorization", b"bearer  beta-key ", True),
        (b"x-api-key", b"alpha-key", True),
        (b"api-key", b"beta-key", True),
        (b"authorization", b"alpha-key", False),
        (b"authorization", b"Basic alpha-key", False),
        (b"authorization", b"Bearer alpha-ke", False),
        (b"authorization", b"Bearer alpha-keyy", False),
        (b"authorization", b"Bearer ", False),
        (b"x-api-key", b"# a comment", False),
        (b"x-api-key", b"", False),
        (b"x-key", b"alpha-key", False),
    ],
)
def test_keys_are_accepted_in_three_headers(keys: ApiKeys, name: bytes, value: bytes, accepted: bool) -> None:
    assert keys.accept([(b"host", b"x"), (name, value)]) is accepted


def test_keys_are_reloaded_and_kept_while_the_file_is_invalid(
    file: Path, keys: ApiKeys, caplog: pytest.LogCaptureFixture
) -> None:
    def accepts(key: bytes) -> bool:
        return keys.accept([(b"x-api-key", key)])

    def write(text: str) -> None:
        new = file.with_name("new")
        new.write_text(text)
        os.replace(new, file)

    assert not keys.file.renew()
    write("gamma-key\n")
    assert accepts(b"alpha-key")  # not reloaded yet
    assert keys.file.renew()
    assert accepts(b"gamma-key") and not accepts(b"alpha-key")
    for broken in ("", "two words\n", None):
        file.unlink() if broken is None else write(broken)
        for _ in range(2):
            assert not keys.file.renew()
        assert accepts(b"gamma-key")
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3, "one for each file"
    assert "two words" not in caplog.text and "gamma-key" not in caplog.text
    write("delta-key\n")
    assert keys.file.renew()
    assert accepts(b"delta-key")


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_no_key_reaches_the_model(keys: ApiKeys, name: str) -> None:
    model = ScriptedModel()
    model.task = loaded(f"--model_dir={DEMO_MODEL}").task
    async with client_of(application(service_of(model, Metrics()), GatewaySettings(keys=keys))) as client:
        key = "Bearer alpha-key" if name == "authorization" else "alpha-key"
        # Other values of these headers may be keys of another service: they are not forwarded either.
        others = {"authorization": "Bearer other", "x-api-key": "other", "api-key": "other"}
        headers = others | {name: key, "traceparent": "00-1-2-01"}
        assert (await client.post("/v2/models/bert/infer", json=INFER, headers=headers)).status_code == 200
    [context] = model.contexts
    assert context.headers == {"traceparent": "00-1-2-01", "x-request-id": context.request_id}


# Routes

PROTECTED = """
POST /v1/models/gpt2:predict
POST /v1/models/gpt2:tokenize
POST /v2/models/gpt2/infer
POST /openai/v1/embeddings
POST /openai/v1/rerank
POST /openai/v1/moderations
GET /openai/v1/models
GET /v1/models
GET /v2/models/gpt2
GET /v2/models/gpt2/stats
GET /v2/models/stats
POST /v2/repository/index
GET /v2
GET /openapi.json
GET /info
GET /v1/models/gpt2/info
GET /docs
GET /no/such/path
POST /metrics
"""
PUBLIC = [
    "/",
    "/metrics",
    "/health",
    "/openai/health",
    "/v1/models/gpt2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/gpt2/ready",
]


@pytest.fixture
async def client(made: ServedModel, file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a ready service with keys and with a page for browsers."""
    flags = (f"--api_keys_file={file}", "--enable_docs_url=true")
    settings = gateway_settings(config(*flags), ApiKeys(str(file)), None)
    await made.model.require_ready()
    async with client_of(application(made.service, settings, *flags)) as client:
        yield client


async def test_protected_routes_need_a_key(client: httpx.AsyncClient, made: ServedModel) -> None:
    routes = [line.split() for line in PROTECTED.strip().splitlines()]
    for method, path in routes:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            refused = await client.request(method, path, json={}, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["x-request-id"]
            error = refused.json()["error"]
            message = error["message"] if path.startswith("/openai/") else error
            assert "--api_keys_file" in message and "wrong" not in message
        for headers in (KEY, {"api-key": "beta-key"}, {"x-api-key": "beta-key"}):
            assert (await client.request(method, path, json={}, headers=headers)).status_code != 401
    assert made.metric(REFUSED) == 3 * len(routes)


async def test_public_routes_need_no_key(client: httpx.AsyncClient) -> None:
    for path in PUBLIC:
        for url, headers in ((path, {}), (path, {"Authorization": "Bearer wrong"}), (f"{path}?a=b", {})):
            assert (await client.get(url, headers=headers)).status_code == 200
        assert (await client.post(path)).status_code == 401
        assert path == "/" or (await client.get(f"{path}/")).status_code == 401


async def test_the_document_declares_keys_for_protected_operations(
    client: httpx.AsyncClient, made: ServedModel
) -> None:
    """Tries each operation of the document without and with a key. Without keys, the document declares none."""
    document = (await client.get("/openapi.json", headers=KEY)).json()
    assert document["security"] == [{"Bearer": []}, {"XApiKey": []}, {"ApiKey": []}]
    assert set(document["components"]["securitySchemes"]) == {"Bearer", "XApiKey", "ApiKey"}
    operations = [
        (method, path.format(version="1"), operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]
    for method, url, operation in operations:
        refused = await client.request(method, url)
        assert (refused.status_code == 401) == ("security" not in operation) == ("401" in operation["responses"])
        assert (await client.request(method, url, headers=KEY)).status_code != 401
        if refused.status_code == 401:
            response = document["components"]["responses"][operation["responses"]["401"]["$ref"].rpartition("/")[2]]
            schema = response["content"]["application/json"]["schema"]
            forms = {one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])}  # APIs may share a path
            error = refused.json()
            form = "TeiError" if "error_type" in error else "Error"
            if form == "Error" and not isinstance(error.get("error"), str):
                form = "OpenAIError" if "error" in error else "MessageError"
                form = "AnthropicError" if error.get("type") == "error" else form
            assert f"{form}Answer" in forms <= document["components"]["schemas"].keys()
            assert len(forms) == 1 or url in ("/rerank", "/tokenize")
    async with client_of(made.app) as without_keys:
        plain = (await without_keys.get("/openapi.json")).json()
    assert plain["security"] == [] and "securitySchemes" not in plain["components"]


async def test_grpc_methods_need_a_key_that_is_not_forwarded(file: Path) -> None:
    model = ScriptedModel()
    async with serving(model, keys=ApiKeys(str(file))) as server, asyncio.timeout(SECONDS):
        for metadata in ((), (("authorization", "Bearer wrong"),), (("x-api-key", ""),)):
            error = await failure(server.infer(request("a"), metadata=metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "--api_keys_file" in str(error.details())
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for stream in (server.stream, server.channel.stream_stream(reflection, bytes, bytes)):
            call: Any = stream(iter([request("a") if stream is server.stream else b""]))
            assert (await status_of(anext(aiter(call))))[0] is grpc.StatusCode.UNAUTHENTICATED
        for method in ("ServerMetadata", "ModelMetadata", "ModelConfig"):
            assert (await status_of(server.raw(f"/{SERVICE}/{method}")))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (await status_of(server.raw(f"/{SERVICE}/NoSuchMethod")))[0] is grpc.StatusCode.UNIMPLEMENTED
        assert server.metric(REFUSED) == 8 and not model.contexts

        key = (("authorization", "Bearer beta-key"), ("traceparent", "00-1-2-01"))
        assert text_of(await server.infer(request("a"), metadata=key)) == "a"
        call = server.stream(iter([request("a"), request("b")]), metadata=(("api-key", "alpha-key"),))
        assert [text_of(answer.infer_response) async for answer in call] == ["a", "b"]
        assert [set(context.headers) for context in model.contexts] == [
            {"traceparent", "x-request-id"},
            {"x-request-id"},
            {"x-request-id"},
        ]


async def test_grpc_probes_need_no_key(file: Path) -> None:
    async with serving(keys=ApiKeys(str(file))) as server:
        assert (await server.ask("ServerLive")).live
        assert (await server.ask("ServerReady")).ready
        assert (await server.ask("ModelReady", name="bert")).ready
        assert await server.raw("/grpc.health.v1.Health/Check") == b"\x08\x01"  # SERVING
        watch: Any = server.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"")
        assert await watch.read() == b"\x08\x01"
        watch.cancel()


@pytest.fixture
def control_keys(tmp_path: Path) -> ApiKeys:
    path = tmp_path / "control-keys"
    path.write_text("operator-key\n")
    return ApiKeys(str(path), CONTROL_KEYS)


def bert() -> ScriptedModel:
    model = ScriptedModel()
    model.task = loaded(f"--model_dir={DEMO_MODEL}").task
    return model


class Control:
    """Records the changes of models."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, dict[str, Any]]] = []

    async def load(self, name: str) -> None:
        self.changes.append((name, {}))

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.changes.append((name, dict(parameters)))


CONTROL = [f"/v2/repository/models/bert/{action}" for action in ("load", "unload")]
OPERATOR = {"x-api-key": "operator-key"}
HOSTILE: dict[str, Any] = {"config": "{}", "file:1/model.py": "cHJpbnQoKQ==", "x": True, "unload_dependents ": True}
"""Parameters with which a client would decide the code that Triton runs, and others."""


@pytest.mark.parametrize("has_keys", [True, False], ids=["with API keys", "without API keys"])
async def test_model_control_needs_a_key_of_its_own(keys: ApiKeys, control_keys: ApiKeys, has_keys: bool) -> None:
    control = Control()
    service = replace(service_of(bert(), Metrics()), control=control)
    settings = GatewaySettings(keys=keys if has_keys else None, control_keys=control_keys)
    async with client_of(application(service, settings)) as client:
        for path in (*CONTROL, CONTROL[0].replace("bert", "b%65rt"), f"{CONTROL_PATH}nobody/load"):
            for headers in ({}, KEY, {"x-api-key": "alpha-key"}, {"x-api-key": ""}):
                refused = await client.post(path, headers=headers)
                assert refused.status_code == 401 and "--model_control_keys_file" in refused.json()["error"]
        assert not control.changes
        for path in CONTROL:
            assert (await client.post(path, headers=OPERATOR)).status_code == 200
        assert control.changes == [("bert", {}), ("bert", {})]
        # The key of model control is no API key.
        status = (await client.post("/v2/repository/index", headers=OPERATOR)).status_code
        assert status == (401 if has_keys else 200)


async def test_model_control_takes_no_parameters_of_clients(control_keys: ApiKeys) -> None:
    control = Control()
    service = replace(service_of(bert(), Metrics()), control=control)
    async with client_of(application(service, GatewaySettings(control_keys=control_keys))) as client:
        for path in CONTROL:
            for name, value in HOSTILE.items():
                body = {"parameters": {name: value}}
                refused = await client.post(path, headers=OPERATOR, json=body)
                assert refused.status_code == 400
                assert refused.json()["error"].startswith(f"parameters.{name}: expected no parameter")
                assert "Triton's model repository" in refused.json()["error"]
        refused = await client.post(CONTROL[0], headers=OPERATOR, json={"parameters": {"unload_dependents": True}})
        assert refused.status_code == 400
        refused = await client.post(CONTROL[1], headers=OPERATOR, json={"parameters": {"unload_dependents": "yes"}})
        assert refused.json() == {"error": "parameters.unload_dependents: expected true or false, got a string"}
        assert not control.changes
        unload = {"parameters": {"unload_dependents": False}}
        assert (await client.post(CONTROL[1], headers=OPERATOR, json=unload)).status_code == 200
    assert control.changes == [("bert", {"unload_dependents": False})]


@pytest.mark.parametrize("has_keys", [True, False], ids=["with API keys", "without API keys"])
async def test_model_control_over_grpc_is_the_same(keys: ApiKeys, control_keys: ApiKeys, has_keys: bool) -> None:
    control = Control()
    service = replace(service_of(bert(), Metrics()), control=control)
    operator = (("authorization", "Bearer operator-key"),)
    async with (
        serving(service, keys=keys if has_keys else None, control_keys=control_keys) as server,
        asyncio.timeout(SECONDS),
    ):
        for action in ("Load", "Unload"):
            asked = getattr(pb, f"RepositoryModel{action}Request")(model_name="bert")
            method = server.channel.unary_unary(f"/{SERVICE}/RepositoryModel{action}", None, None)
            for metadata in ((), (("authorization", "Bearer alpha-key"),)):
                error = await failure(method(asked.SerializeToString(), metadata=metadata))
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "--model_control_keys_file" in str(error.details())
            for name in HOSTILE:
                hostile = type(asked)(model_name="bert")
                hostile.parameters[name].bytes_param = b"print()"
                error = await failure(method(hostile.SerializeToString(), metadata=operator))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert str(error.details()).startswith(f"parameters.{name}: expected no parameter")
            assert not control.changes
            if action == "Unload":
                asked.parameters["unload_dependents"].bool_param = False
            await method(asked.SerializeToString(), metadata=operator)
            assert control.changes.pop() == ("bert", {"unload_dependents": False} if action == "Unload" else {})


def test_model_control_without_keys_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"^--enable_model_control requires --model_control_keys_file"):
        config("--enable_model_control")
    assert parse("--model_control_keys_file=x")[1] == [
        "--model_control_keys_file is ignored: --enable_model_control is not given"
    ]
