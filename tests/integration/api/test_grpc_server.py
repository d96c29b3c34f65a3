"""A gRPC server in this process: metadata, health, reflection, connections and shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hf_transformer import __version__
from hf_transformer.api.grpc.server import MAX_CONCURRENT_STREAMS
from hf_transformer.app.application import grpc_server
from hf_transformer.commands.loopback import HOST, reserved_port
from hf_transformer.commands.serve import grpc_port_reserved, listen
from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.api.bare_grpc import bare_call
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    SECONDS,
    Client,
    Gate,
    ScriptedModel,
    channel_to,
    connected,
    count,
    long_answer,
    read,
    request,
    service_of,
    serving,
    status_of,
    text_of,
)
from tests.predictor.fault_server import CERTIFICATE, KEY
from tests.support.configuring import config
from tests.support.polling import until

TLS = Path(__file__).parents[2] / "predictor" / "tls"
"""A self-signed certificate for localhost."""
HEALTH = health_pb2.HealthCheckResponse
StatusCode = grpc.StatusCode


async def test_the_metadata_of_the_server_and_its_model() -> None:
    async with serving() as server:
        assert (await server.ask("ServerLive")).live
        metadata = await server.ask("ServerMetadata")
        extensions = ["binary_tensor_data", "model_configuration", "statistics"]
        assert (metadata.name, metadata.version, list(metadata.extensions)) == (
            "hf_transformer",
            __version__,
            extensions,
        )
        assert (await status_of(server.ask("SystemSharedMemoryStatus")))[0] is StatusCode.UNIMPLEMENTED
        for version in ("", "1"):
            metadata = await server.ask("ModelMetadata", name="bert", version=version)
            assert (metadata.name, list(metadata.versions), metadata.platform) == ("bert", ["1"], "hf_transformer")
            [tensor] = metadata.inputs
            assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("text", "BYTES", [-1, 1])
            settings = (await server.ask("ModelConfig", name="bert", version=version)).config
            assert (settings.name, settings.max_batch_size, settings.backend) == (
                "bert",
                90,
                "hf_transformer",
            )
            for [tensor] in (settings.input, settings.output):
                assert (tensor.name, tensor.data_type, list(tensor.dims)) == ("text", pb.TYPE_STRING, [1])


async def test_an_unknown_model_is_not_ready_and_not_found() -> None:
    """ModelReady answers false, as in Triton, but refuses a malformed message."""
    async with serving() as server:
        for fields in ({"name": "other"}, {"name": "bert", "version": "9"}):
            assert not (await server.ask("ModelReady", **fields)).ready
            for method in ("ModelMetadata", "ModelConfig"):
                assert (await status_of(server.ask(method, **fields)))[0] is StatusCode.NOT_FOUND
        for method in ("ModelReady", "ModelMetadata", "ModelConfig"):
            assert (await status_of(server.raw(f"/{SERVICE}/{method}", b"\xff")))[0] is StatusCode.INVALID_ARGUMENT
        code, message = await status_of(server.status("other"))
        assert code is StatusCode.NOT_FOUND and "'other'" in message and "bert" in message
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service="other"))
        assert (await watch.read()).status == HEALTH.SERVICE_UNKNOWN
        watch.cancel()


async def test_readiness_is_the_models_at_each_call() -> None:
    async with serving(model := ScriptedModel()) as server:

        async def ready() -> set[bool]:
            versions = [(await server.ask("ModelReady", name="bert", version=version)).ready for version in ("", "1")]
            health = [await server.status(name) == HEALTH.SERVING for name in ("", SERVICE, "bert")]
            return {(await server.ask("ServerReady")).ready, *versions, *health}

        assert await ready() == {True}
        model.reason = "no predictor"
        assert await ready() == {False}
        assert await status_of(server.infer(request("a"))) == (StatusCode.UNAVAILABLE, "no predictor")
        assert (await status_of(server.ask("ModelMetadata", name="bert")))[0] is StatusCode.UNAVAILABLE
        assert (await server.ask("ServerLive")).live
        model.reason = ""
        assert await ready() == {True}


class CheckedModel(ScriptedModel):
    """Counts its readiness checks."""

    checks = 0

    async def require_ready(self) -> None:
        self.checks += 1
        await super().require_ready()


async def test_a_watch_has_each_change_and_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.introspection.WATCH_SECONDS", 0.01)
    async with serving(model := CheckedModel()) as server:
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service="bert"))
        for reason, status in (("", HEALTH.SERVING), ("no predictor", HEALTH.NOT_SERVING), ("", HEALTH.SERVING)):
            model.reason = reason
            assert (await read(watch)).status == status
            last = model.checks + 3
            await until(lambda: model.checks >= last)  # noqa: B023 - called in this iteration only
        ending = asyncio.create_task(server.end())
        assert (await read(watch)).status == HEALTH.NOT_SERVING
        assert await read(watch) is grpc.aio.EOF  # type: ignore[attr-defined]
        await ending


async def test_reflection_describes_every_service_and_the_served_methods() -> None:
    def reflected(port: int) -> list[list[str]]:
        with grpc.insecure_channel(f"{HOST}:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            v2, health = (pool.FindServiceByName(name) for name in (SERVICE, "grpc.health.v1.Health"))
            assert v2.methods_by_name["ModelInfer"].input_type.fields_by_name["raw_input_contents"].number == 7
            methods = [[method.name for method in service.methods] for service in (v2, health)]
            return [sorted(database.get_services()), *methods]

    async with serving() as server:
        services, methods, health = await asyncio.to_thread(reflected, server.port)
    assert services == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE]
    metadata = "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata".split()
    inference = "ModelInfer ModelStreamInfer ModelConfig ModelStatistics RepositoryIndex".split()
    inference += ["RepositoryModelLoad", "RepositoryModelUnload"]
    assert methods == [*metadata, *inference] and health == ["Check", "Watch"]


async def test_flags_configure_the_server() -> None:
    limits = ("--grpc_max_receive_message_length=2000", "--grpc_max_send_message_length=1000")
    service = service_of(ScriptedModel(), Metrics())
    with reserved_port() as port:
        settings = config(f"--host={HOST}", f"--grpc_port={port}", *limits)
        server = grpc_server(settings, service)
        assert server is not None
        async with server, channel_to(port) as channel:
            client = Client(channel)
            assert text_of(await client.infer(request("a" * 500))) == "a" * 500
            for length, expected in (
                (1500, "at most 1000 bytes (--grpc_max_send_message_length)"),
                (2500, "larger than max"),
            ):
                code, message = await status_of(client.infer(request("a" * length)))
                assert code is StatusCode.RESOURCE_EXHAUSTED
                assert expected in message
    with pytest.raises(ConfigError):
        grpc_server(replace(settings, ssl_certfile="/nowhere", ssl_keyfile="/nowhere"), service)
    assert grpc_server(replace(settings, enable_grpc=False), service) is None


async def test_a_server_with_tls_refuses_plain_text() -> None:
    pem = TLS / "localhost.pem"
    async with serving(certificate=(str(pem), str(TLS / "localhost.key"))) as server:
        credentials = grpc.ssl_channel_credentials(pem.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            assert text_of(await Client(channel).infer(request("a"))) == "a"
        assert (await status_of(server.infer(request("a"))))[0] is StatusCode.UNAVAILABLE


async def test_workers_share_a_port_but_not_with_other_programs() -> None:
    first, second = ScriptedModel(), ScriptedModel()
    async with asyncio.timeout(SECONDS), serving(first) as server, serving(second, port=server.port):
        while not (first.contexts and second.contexts):  # the kernel distributes connections at random
            async with connected(server) as client:
                assert text_of(await client.infer(request("a"))) == "a"
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--grpc_port={port}: can't listen on {HOST}"):
            async with serving(port=port):
                pass


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_the_log_says_how_to_reach_each_port(caplog: pytest.LogCaptureFixture, secured: bool) -> None:
    files = (f"--ssl_certfile={CERTIFICATE}", f"--ssl_keyfile={KEY}") if secured else ()
    settings = config(f"--host={HOST}", "--http_port=0", "--grpc_port=0", *files)
    with caplog.at_level("INFO"), listen(settings) as listening, grpc_port_reserved(settings) as port:
        ending, http_port = "s" * secured, listening.getsockname()[1]
    assert [record.getMessage() for record in caplog.records] == [
        f"listening on http{ending}://{HOST}:{http_port}",
        f"listening on grpc{ending}://{HOST}:{port}",
    ]


def test_a_second_service_can_not_have_the_port_of_the_first() -> None:
    """The kernel would give it half of the connections."""
    with grpc_port_reserved(config(f"--host={HOST}", "--grpc_port=0")) as port:
        taken = grpc_port_reserved(config(f"--host={HOST}", f"--grpc_port={port}"))
        with pytest.raises(ConfigError, match=f"--grpc_port={port}: can't listen on {HOST}"), taken:
            pass


@asynccontextmanager
async def silent(port: int) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that sends nothing."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(HOST, port)
        yield reader
        writer.close()


async def test_connections_have_a_limit_handshakes_included() -> None:
    async with serving(connections=2) as server, silent(server.port) as first, silent(server.port) as second:
        for reader in (first, second):
            assert await reader.read(1)  # the SETTINGS frame
        async with silent(server.port) as third:
            assert await third.read() == b""


async def test_a_slow_handshake_times_out() -> None:
    async with serving(handshake=0.2) as server, silent(server.port) as reader:
        assert b"handshake timeout" in await reader.read(-1)


async def test_more_calls_than_a_connection_allows_are_all_answered() -> None:
    async with serving(concurrent=10_000) as server, asyncio.timeout(3 * SECONDS):
        for number in (4 * MAX_CONCURRENT_STREAMS, 8 * MAX_CONCURRENT_STREAMS):  # new connection, reused connection
            texts = list(map(str, range(number)))
            answers = await asyncio.gather(*[server.infer(request(text)) for text in texts])
            assert [text_of(answer) for answer in answers] == texts


async def test_an_idle_connection_is_closed_and_opened_again() -> None:
    async with serving(idle=0.2) as server, asyncio.timeout(SECONDS):
        assert text_of(await server.infer(request("a"))) == "a"
        await server.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert text_of(await server.infer(request("b"))) == "b"


async def test_shutdown_waits_for_calls_in_flight() -> None:
    async with serving(gate := Gate()) as server:
        call, stream = server.infer(request("a")), server.stream()
        await stream.write(request("b", id="1"))
        await server.until(IN_FLIGHT, 2)
        ending = asyncio.create_task(server.end())
        await asyncio.sleep(0)  # the shutdown has started
        gate.open.set()
        assert text_of(await call) == "a"
        answer = await read(stream)
        assert (answer.infer_response.id, text_of(answer.infer_response)) == ("1", "b")
        assert await status_of(read(stream)) == (StatusCode.UNAVAILABLE, "the service is shutting down")
        await ending
        assert (await status_of(server.infer(request("c"))))[0] is StatusCode.UNAVAILABLE


async def test_shutdown_ends_calls_after_the_grace() -> None:
    async with serving(gate := Gate(), grace=0.1) as server:
        call = server.infer(request("a"))
        await server.until(IN_FLIGHT, 1)
        await server.end()
        assert (await status_of(call))[0] is StatusCode.UNAVAILABLE
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "reflection"])
async def test_shutdown_does_not_wait_for_clients_that_do_not_read_or_send(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.calls.CLOSING_WRITE_SECONDS", 0.1)
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(SECONDS), serving(long_answer, grace=3600) as server:
        if method == "reflection":
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
            stream = reflection.ServerReflectionInfo()
            await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert SERVICE in [service.name for service in (await stream.read()).list_services_response.service]
            await server.end()
            assert (await status_of(stream.read()))[0] is StatusCode.UNAVAILABLE
        else:
            async with bare_call(server.port, method, request("a")) as reader:
                await reader.readuntil(b"a" * 10_000)
                await server.end()
    assert not caplog.records


@pytest.mark.parametrize("endless", [False, True], ids=["until an error", "endless"])
async def test_calls_during_shutdown_are_answered_or_unavailable(
    endless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with endless calls do not delay the shutdown."""
    if endless:
        monkeypatch.setattr("hf_transformer.api.grpc.server.MAX_REFUSING_SECONDS", 0.3)
    codes: set[grpc.StatusCode] = set()
    answered = asyncio.Semaphore(0)

    async def ask() -> None:
        async with connected(server) as client:
            while True:
                try:
                    await client.infer(request("a"))
                    answered.release()
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())
                    if not endless:
                        return

    async with serving() as server, asyncio.timeout(SECONDS):
        tasks = [asyncio.create_task(ask()) for _ in range(4 if endless else 32)]
        for _ in range(200):
            await answered.acquire()
        await server.end()
        if endless:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert StatusCode.UNAVAILABLE in codes
    assert codes <= {StatusCode.UNAVAILABLE, *([StatusCode.CANCELLED] if endless else [])}
