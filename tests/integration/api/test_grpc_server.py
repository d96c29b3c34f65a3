"""What a gRPC server in this process says of itself and its model: metadata, readiness, health, reflection, TLS."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hf_transformer import __version__
from hf_transformer.api.grpc.server import STREAMS, GrpcSettings
from hf_transformer.app.application import grpc_server
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.commands.serve import grpc_port_reserved
from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.configuring import config
from tests.integration.api.grpc_model import (
    Client,
    ScriptedModel,
    Server,
    channel_to,
    connected,
    request,
    service_of,
    serving,
    text_of,
)

TLS = Path(__file__).parents[2] / "predictor" / "tls"
"""A certificate for localhost that only tests trust."""
HEALTH = "/grpc.health.v1.Health"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def check(client: Client, service: str) -> Any:
    call: Any = client.channel.unary_unary(
        f"{HEALTH}/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return call(health_pb2.HealthCheckRequest(service=service))


def watch(client: Client, service: str) -> Any:
    call: Any = client.channel.unary_stream(
        f"{HEALTH}/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return call(health_pb2.HealthCheckRequest(service=service))


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_what_the_server_is() -> None:
    async with serving(ScriptedModel()) as server, connected(server) as client:
        assert (await client.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)).live
        about = await client.ask("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
        assert (about.name, about.version, list(about.extensions)) == (
            "hf_transformer",
            __version__,
            ["binary_tensor_data", "model_configuration", "statistics"],
        )
        asked = pb.SystemSharedMemoryStatusRequest()
        status = client.ask("SystemSharedMemoryStatus", asked, pb.SystemSharedMemoryStatusResponse)
        assert (await code_of(status))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_what_the_model_is() -> None:
    async with serving(ScriptedModel()) as server, connected(server) as client:
        for version in ("", "1"):
            asked = pb.ModelMetadataRequest(name="bert", version=version)
            about = await client.ask("ModelMetadata", asked, pb.ModelMetadataResponse)
            assert (about.name, list(about.versions), about.platform) == ("bert", ["1"], "hf_transformer")
            assert [(one.name, one.datatype, list(one.shape)) for one in about.inputs] == [("text", "BYTES", [-1, 1])]
            question = pb.ModelConfigRequest(name="bert", version=version)
            config = (await client.ask("ModelConfig", question, pb.ModelConfigResponse)).config
            assert (config.name, config.max_batch_size, config.backend) == ("bert", 1024, "hf_transformer")
            for [one] in (config.input, config.output):
                assert (one.name, one.data_type, list(one.dims)) == ("text", pb.TYPE_STRING, [1])


@pytest.mark.parametrize(
    ("method", "kind", "response"),
    [
        ("ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse),
        ("ModelConfig", pb.ModelConfigRequest, pb.ModelConfigResponse),
    ],
)
async def test_models_that_are_not_served(method: str, kind: Any, response: Any) -> None:
    async with serving(ScriptedModel()) as server, connected(server) as client:
        for asked in (kind(name="other"), kind(name="bert", version="9")):
            code, _ = await code_of(client.ask(method, asked, response))
            assert code is grpc.StatusCode.NOT_FOUND
        broken: Any = client.channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        assert (await code_of(broken(b"\xff")))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_model_that_is_not_served_is_not_ready() -> None:
    """As Triton answers; another answer than false is for a message that can't be read."""
    async with serving(ScriptedModel()) as server, connected(server) as client:
        for asked in (pb.ModelReadyRequest(name="other"), pb.ModelReadyRequest(name="bert", version="9")):
            assert not (await client.ask("ModelReady", asked, pb.ModelReadyResponse)).ready
        broken: Any = client.channel.unary_unary(f"/{SERVICE}/ModelReady", None, None)
        assert (await code_of(broken(b"\xff")))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_readiness_is_the_models_at_each_call() -> None:
    model = ScriptedModel()
    async with serving(model) as server, connected(server) as client:

        async def ready() -> list[bool]:
            asked = pb.ModelReadyRequest(name="bert")
            versioned = pb.ModelReadyRequest(name="bert", version="1")
            return [
                (await client.ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)).ready,
                (await client.ask("ModelReady", asked, pb.ModelReadyResponse)).ready,
                (await client.ask("ModelReady", versioned, pb.ModelReadyResponse)).ready,
                *[(await check(client, name)).status == SERVING for name in ("", SERVICE, "bert")],
            ]

        assert await ready() == [True] * 6
        model.reason = "no predictor"
        assert await ready() == [False] * 6
        assert await code_of(client.infer(request("a"))) == (grpc.StatusCode.UNAVAILABLE, "no predictor")
        asked = pb.ModelMetadataRequest(name="bert")
        assert (await code_of(client.ask("ModelMetadata", asked, pb.ModelMetadataResponse)))[0] is (
            grpc.StatusCode.UNAVAILABLE
        )
        assert (await client.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)).live
        model.reason = ""
        assert await ready() == [True] * 6


async def test_health_of_a_name_that_is_none() -> None:
    async with serving(ScriptedModel()) as server, connected(server) as client:
        code, message = await code_of(check(client, "other"))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'other'" in message and "bert" in message
        watching = watch(client, "other")
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()


async def test_a_watch_tells_each_change_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.about.WATCH_SECONDS", 0.01)
    model = ScriptedModel()
    async with serving(model) as server, connected(server) as client:
        watching = watch(client, "bert")
        async with asyncio.timeout(20):
            assert (await watching.read()).status == SERVING
            model.reason = "no predictor"
            assert (await watching.read()).status == NOT_SERVING
            model.reason = ""
            assert (await watching.read()).status == SERVING
            ending = asyncio.create_task(server.end())
            assert (await watching.read()).status == NOT_SERVING
            assert await watching.read() is grpc.aio.EOF  # type: ignore[attr-defined]
            await ending


async def test_reflection_describes_every_service_and_the_methods_that_are_answered() -> None:
    async with serving(ScriptedModel()) as server:
        assert await asyncio.to_thread(_reflected, server) == {
            "services": ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE],
            "methods": [
                "ServerLive",
                "ServerReady",
                "ModelReady",
                "ServerMetadata",
                "ModelMetadata",
                "ModelInfer",
                "ModelStreamInfer",
                "ModelConfig",
                "ModelStatistics",
                "RepositoryIndex",
            ],
            "health": ["Check", "Watch"],
        }


def _reflected(server: Server) -> dict[str, list[str]]:
    with grpc.insecure_channel(server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        found = [pool.FindServiceByName(name) for name in (SERVICE, "grpc.health.v1.Health")]
        names = [[method.name for method in one.methods] for one in found]
        assert found[0].methods_by_name["ModelInfer"].input_type.fields_by_name["raw_input_contents"].number == 7
        return {"services": sorted(database.get_services()), "methods": names[0], "health": names[1]}


async def test_reflection_that_stays_open_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.calls.PATIENCE", 0.1)
    settings = GrpcSettings("", 0, grace=3600)
    async with serving(ScriptedModel(), settings) as server, connected(server) as client, asyncio.timeout(20):
        method: Any = client.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        stream = method()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert SERVICE in [one.name for one in (await stream.read()).list_services_response.service]
        await server.end()
        assert (await code_of(stream.read()))[0] is grpc.StatusCode.UNAVAILABLE


async def test_the_flags_reach_the_server() -> None:
    port = free_ports(1)[0]
    limits = ("--grpc_max_receive_message_length=2000", "--grpc_max_send_message_length=1000")
    given = config(f"--host={HOST}", f"--grpc_port={port}", *limits)
    service = service_of(ScriptedModel(), Metrics("bert"))
    server = grpc_server(given, service)
    assert server is not None
    async with server, channel_to(f"{HOST}:{port}") as channel:
        client = Client(channel)
        assert text_of(await client.infer(request("a" * 500))) == "a" * 500
        for length, says in ((1500, "--grpc_max_send_message_length allows 1000"), (2500, "larger than max")):
            code, message = await code_of(client.infer(request("a" * length)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert says in message
    with pytest.raises(ConfigError):
        grpc_server(replace(given, ssl_certfile="/nowhere", ssl_keyfile="/nowhere"), service)
    assert grpc_server(replace(given, enable_grpc=False), service) is None


async def test_tls_and_nothing_beside_it() -> None:
    settings = GrpcSettings("", 0, certificate=(str(TLS / "localhost.pem"), str(TLS / "localhost.key")))
    async with serving(ScriptedModel(), settings) as server:
        credentials = grpc.ssl_channel_credentials((TLS / "localhost.pem").read_bytes())
        address = f"localhost:{server.settings.port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            assert text_of(await Client(channel).infer(request("a"))) == "a"
        async with connected(server) as client:
            assert (await code_of(client.infer(request("a"))))[0] is grpc.StatusCode.UNAVAILABLE


async def test_workers_share_a_port_and_others_do_not() -> None:
    first, second = ScriptedModel(), ScriptedModel()
    async with asyncio.timeout(20), serving(first) as server, serving(second, port=server.settings.port):
        while not (first.contexts and second.contexts):  # the kernel hands out connections at random
            async with connected(server) as client:
                assert text_of(await client.infer(request("a"))) == "a"
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--grpc_port={port}: can't listen on {HOST}"):
            async with serving(first, port=port):
                pass


async def test_connections_have_a_limit_handshakes_included() -> None:
    """A listener of gRPC's own knows no answer for them: what is too many is closed."""
    async with serving(ScriptedModel(), GrpcSettings(HOST, 0, connections=2)) as server:
        silent = [await asyncio.open_connection(HOST, server.settings.port) for _ in range(2)]
        for reader, _ in silent:
            assert await reader.read(1)  # the settings that HTTP/2 begins with
        async with asyncio.timeout(20):
            third, writer = await asyncio.open_connection(HOST, server.settings.port)
            assert await third.read() == b""
        for _, one in (*silent, (third, writer)):
            one.close()


async def test_a_handshake_that_does_not_end_is_broken_off() -> None:
    async with serving(ScriptedModel(), GrpcSettings(HOST, 0, handshake=0.2)) as server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(HOST, server.settings.port)
        assert b"handshake timeout" in await reader.read(-1)
        writer.close()


async def test_more_calls_at_once_than_a_connection_may_have_are_all_answered() -> None:
    async with serving(ScriptedModel(), concurrent=10_000) as server, connected(server) as client, asyncio.timeout(60):
        for count in (4 * STREAMS, 8 * STREAMS):  # on a new connection, and on one that has been used
            calls = [client.infer(request(str(number))) for number in range(count)]
            assert [text_of(answer) for answer in await asyncio.gather(*calls)] == list(map(str, range(count)))


async def test_a_connection_without_calls_is_closed_and_opened_again() -> None:
    async with serving(ScriptedModel(), GrpcSettings(HOST, 0, idle=0.2)) as server, connected(server) as client:
        assert text_of(await client.infer(request("a"))) == "a"
        async with asyncio.timeout(20):
            await client.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert text_of(await client.infer(request("b"))) == "b"


async def test_calls_that_cross_with_the_end_are_answered_or_unavailable() -> None:
    ended: list[grpc.StatusCode] = []
    begun = asyncio.Semaphore(0)

    async def ask(server: Server) -> None:
        async with connected(server) as client:
            while True:
                try:
                    await client.infer(request("a"))
                except grpc.aio.AioRpcError as error:
                    ended.append(error.code())
                    return
                begun.release()

    async with serving(ScriptedModel()) as server:
        asking = [asyncio.create_task(ask(server)) for _ in range(32)]
        for _ in range(200):
            await begun.acquire()
        await server.end()
        await asyncio.gather(*asking)
    assert set(ended) == {grpc.StatusCode.UNAVAILABLE}


async def test_clients_that_go_on_asking_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.server.REFUSING", 0.3)
    seen: set[grpc.StatusCode] = set()

    async def ask(server: Server) -> None:
        async with connected(server) as client:
            while True:
                try:
                    await client.infer(request("a"))
                except grpc.aio.AioRpcError as error:
                    seen.add(error.code())

    async with serving(ScriptedModel()) as server:
        asking = [asyncio.create_task(ask(server)) for _ in range(4)]
        async with asyncio.timeout(20):
            await server.end()
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert grpc.StatusCode.UNAVAILABLE in seen
    assert seen <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_a_second_service_does_not_get_the_port_of_the_first() -> None:
    """The kernel would give it half of the connections."""
    with grpc_port_reserved(config(f"--host={HOST}", "--grpc_port=0")) as port:
        taken = grpc_port_reserved(config(f"--host={HOST}", f"--grpc_port={port}"))
        with pytest.raises(ConfigError, match=f"--grpc_port={port}: can't listen on {HOST}"), taken:
            pass
