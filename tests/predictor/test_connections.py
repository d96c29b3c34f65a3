"""Several models of one server: the connections that they share, and loading and unloading models."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import orjson
import pytest

from hf_transformer.errors import ConfigError, PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import Connections, failures, grpc_connections, open_predictor, open_transport
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, PredictorSettings, Transport
from hf_transformer.predictor.grpc_connections import MAX_ABANDONED
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types.tensors import Tensor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.grpc_server import serving as serving_grpc
from tests.support.polling import until

IDS = Tensor("input_ids", "INT64", np.array([[101, 102]]))
LOGITS = np.array([[0.25, 0.75]], "<f4")
OUTPUT = {"name": "logits", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]}
ANSWER = orjson.dumps({"outputs": [OUTPUT]})


def grpc_answer(final: bool = False) -> pb.ModelInferResponse:
    answer = pb.ModelInferResponse(raw_output_contents=[LOGITS.tobytes()])
    answer.outputs.add(name="logits", datatype="FP32", shape=[1, 2])
    answer.parameters["triton_final_response"].bool_param = final
    return answer


@dataclass
class Server:
    """A server whose model "slow" answers only once ``go`` is set. All other models answer at once.

    Attributes:
        peers: the client's end of the connection of each inference.
        waiting: the number of inferences of "slow" that have no answer yet.
        open: the number of open connections, over REST only.
        changes: requests to load and to unload: the method, the model, and the parameters.
        refusal: the answer to these requests: a status and a message; None for success.
    """

    go: asyncio.Event = field(default_factory=asyncio.Event)
    peers: list[Any] = field(default_factory=list)
    waiting: int = 0
    open: int = 0
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    refusal: tuple[Any, str] | None = None

    async def infer(self, model: str, peer: Any) -> None:
        self.peers.append(peer)
        if model == "slow":
            self.waiting += 1
            try:
                await self.go.wait()
            finally:
                self.waiting -= 1

    async def rest(self, connection: Connection) -> None:
        self.open += 1
        try:
            while True:
                await self._rest_request(connection)
        finally:
            self.open -= 1

    async def _rest_request(self, connection: Connection) -> None:
        headers, body = await connection.request()
        method, path, _ = headers[""].split(" ")
        _, _, kind, *rest, action = path.split("/")
        if kind == "repository":
            self.changes.append((f"{method} {action}", rest[-1], orjson.loads(body)["parameters"]))
            await self._answer_change(connection)
            return
        answering = asyncio.create_task(self.infer(rest[-1], connection.number))
        closed = asyncio.create_task(connection.reader.read(1))
        try:
            await asyncio.wait([answering, closed], return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                raise ConnectionError("the client has closed the connection")
        finally:
            answering.cancel()
            closed.cancel()
            await asyncio.gather(answering, closed, return_exceptions=True)
        await connection.answer("200 OK", ANSWER)

    async def _answer_change(self, connection: Connection) -> None:
        if self.refusal is None:
            await connection.answer("200 OK")
        else:
            status, message = self.refusal
            await connection.answer(status, orjson.dumps({"error": message}))

    async def model_infer(self, request: bytes, context: Any) -> bytes:
        await self.infer(pb.ModelInferRequest.FromString(request).model_name, context.peer())
        return grpc_answer().SerializeToString()

    async def load(self, request: bytes, context: Any) -> bytes:
        message = pb.RepositoryModelLoadRequest.FromString(request)
        return await self._grpc_change("load", message, context)

    async def unload(self, request: bytes, context: Any) -> bytes:
        message = pb.RepositoryModelUnloadRequest.FromString(request)
        return await self._grpc_change("unload", message, context)

    async def _grpc_change(self, action: str, message: Any, context: Any) -> bytes:
        parameters = {}
        for name, parameter in message.parameters.items():
            kind = parameter.WhichOneof("parameter_choice")
            parameters[name] = kind, getattr(parameter, kind)
        self.changes.append((action, message.model_name, parameters))
        if self.refusal is not None:
            await context.abort(*self.refusal)
        return b""


@asynccontextmanager
async def serving(protocol: str) -> AsyncIterator[tuple[Server, str]]:
    """A server, and its host:port."""
    server = Server()
    if protocol == "v2":
        async with scripted(server.rest) as host:
            yield server, host
    else:
        async with serving_grpc(
            ModelInfer=server.model_infer, RepositoryModelLoad=server.load, RepositoryModelUnload=server.unload
        ) as host:
            yield server, host


@pytest.fixture(params=["v2", "grpc-v2"], ids=["rest", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def settings(host: str, model: str = "fast", **more: Any) -> PredictorSettings:
    return PredictorSettings(model, host, **{"timeout": 30.0, **more})


async def infer(predictor: Predictor) -> list[float]:
    reply = await predictor.infer(ModelCall([IDS], ["logits"], {}))
    values: list[float] = reply.tensors["logits"].data.ravel().tolist()
    reply.release()
    return values


ANSWERED = [0.25, 0.75]


# Sharing


async def test_models_of_one_server_share_their_connections(protocol: str) -> None:
    connections = Connections()
    async with serving(protocol) as (server, host), AsyncExitStack() as stack:
        models = [
            settings(host, "a"),
            settings(host, "b", shared_memory_bytes=1, shared_memory_min_bytes=1, shared_memory_warns=False),
        ]
        for model in models:
            transport = await stack.enter_async_context(connections.transport(protocol, model))
            assert await infer(transport) == await infer(transport) == ANSWERED
        assert len(set(server.peers)) == 1 and len(server.peers) == 4


@pytest.mark.parametrize(
    "changed", [{"timeout": 31.0}, {"max_response_bytes": 2**20}, {"max_send_message_length": 2**20}], ids=str
)
async def test_other_settings_have_other_connections(protocol: str, changed: Mapping[str, Any]) -> None:
    connections = Connections()
    async with (
        serving(protocol) as (server, host),
        connections.transport(protocol, settings(host)) as one,
        connections.transport(protocol, settings(host, **changed)) as another,
    ):
        assert await infer(one) == await infer(another) == ANSWERED
        assert len(set(server.peers)) == 2


async def test_other_protocols_and_holders_have_other_connections(protocol: str) -> None:
    async with (
        serving(protocol) as (server, host),
        open_transport(protocol, settings(host)) as first,
        open_transport(protocol, settings(host)) as another,
        Connections().transport(protocol, settings(host)) as third,
    ):
        for transport in (first, another, third):
            assert await infer(transport) == ANSWERED
        assert len(set(server.peers)) == 3
    connections = Connections()
    rest, grpc = connections.transport("v2", settings(host)), connections.transport("grpc-v2", settings(host))
    assert rest.streams_json and not grpc.streams_json


async def test_predictors_share_the_connections_that_they_are_given(protocol: str) -> None:
    connections, metrics = Connections(), Metrics().of("m")
    async with (
        serving(protocol) as (server, host),
        open_predictor(protocol, settings(host, "a"), metrics, connections=connections) as first,
        open_predictor(protocol, settings(host, "b"), metrics, connections=connections, retries=1) as another,
        open_predictor(protocol, settings(host, "c"), metrics) as third,
    ):
        assert await infer(first) == await infer(another) == ANSWERED
        assert len(set(server.peers)) == 1
        assert await infer(third) == ANSWERED
        assert len(set(server.peers)) == 2


def test_connections_without_a_transport_are_forgotten(protocol: str) -> None:
    connections = Connections()
    one, another = (connections.transport(protocol, settings("triton", name)) for name in "ab")
    shared = weakref.ref(one._connections)  # type: ignore[attr-defined]
    del one
    gc.collect()
    assert shared() is another._connections  # type: ignore[attr-defined]
    del another
    gc.collect()
    assert shared() is None


def test_bad_settings_leave_no_connections(protocol: str) -> None:
    connections = Connections()
    for _ in range(2):
        with pytest.raises(ConfigError, match="no certificate in"):
            connections.transport(protocol, settings("triton", use_ssl=True, ca_file=__file__))


# Calls of several models


async def test_hung_calls_of_one_model_do_not_delay_another(protocol: str) -> None:
    connections = Connections()
    async with (
        serving(protocol) as (server, host),
        connections.transport(protocol, settings(host, "slow")) as slow,
        connections.transport(protocol, settings(host, "fast")) as fast,
    ):
        hung = [asyncio.create_task(infer(slow)) for _ in range(20)]
        await until(lambda: server.waiting == 20)
        for _ in range(3):
            assert await infer(fast) == ANSWERED
        assert server.waiting == 20
        server.go.set()
        assert await asyncio.gather(*hung) == [ANSWERED] * 20


async def test_closing_one_model_does_not_disturb_another(protocol: str) -> None:
    connections = Connections()
    async with serving(protocol) as (server, host):
        async with connections.transport(protocol, settings(host, "slow")) as staying:
            leaving = connections.transport(protocol, settings(host, "slow"))
            async with leaving:
                calls = [asyncio.create_task(infer(transport)) for transport in (staying, leaving)]
                await until(lambda: server.waiting == 2)
            with pytest.raises(PredictorUnavailable, match="are closed") as caught:
                await infer(leaving)
            assert caught.value.kind == failures.LOST
            with pytest.raises(PredictorUnavailable, match="are closed"):
                await leaving.model_ready()
            with pytest.raises(PredictorUnavailable, match="are closed"):
                await anext(leaving.stream(ModelCall([TEXT], ["logits"], {})))
            assert server.waiting == 2
            server.go.set()
            assert await asyncio.gather(*calls) == [ANSWERED] * 2, "the call of the closed model ends by itself"
            assert await infer(staying) == ANSWERED


TEXT = Tensor("text_input", "BYTES", np.array([b"hello"], object))


async def test_the_last_to_close_ends_all_calls(protocol: str) -> None:
    connections = Connections()
    async with serving(protocol) as (server, host):
        before = asyncio.all_tasks()
        async with connections.transport(protocol, settings(host, "slow")) as last:
            async with connections.transport(protocol, settings(host, "slow")) as first:
                calls = [asyncio.create_task(infer(transport)) for transport in (first, last)]
                await until(lambda: server.waiting == 2)
                abandoned = asyncio.create_task(infer(first))
                await until(lambda: server.waiting == 3)
                abandoned.cancel()
            await asyncio.wait([abandoned])
        for call in calls:
            with pytest.raises(PredictorUnavailable) as caught:
                await call
            assert caught.value.kind in (failures.LOST, failures.NO_ANSWER)
        await until(lambda: server.waiting == server.open == 0)
        left = {task for task in asyncio.all_tasks() - before if "hf_transformer/predictor" in str(task.get_stack())}
        assert not left


async def test_connections_open_again_for_a_later_model(protocol: str) -> None:
    connections = Connections()
    async with serving(protocol) as (server, host):
        transports = [connections.transport(protocol, settings(host, name)) for name in "ab"]
        for transport in transports * 2:
            async with transport:
                assert await infer(transport) == ANSWERED
        assert len(set(server.peers)) == 4
        # One opens while the other closes.
        one, another = transports
        await one.__aenter__()
        closing = asyncio.create_task(one.__aexit__(None, None, None))
        opening = asyncio.create_task(another.__aenter__())
        await asyncio.gather(closing, opening)
        assert await infer(another) == ANSWERED
        await another.__aexit__(None, None, None)
        await until(lambda: not server.open)


async def test_a_stream_outlives_a_channel_that_another_model_has_worn_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abandoned calls of one model move new calls to another channel, and the old one ends. Another model's stream goes
    on, since it has a connection of its own."""
    monkeypatch.setattr(grpc_connections, "RETIRED_SECONDS", 0.2)
    proceed = asyncio.Event()

    async def streams(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            pass
        for final in (False, True):
            response = pb.ModelStreamInferResponse(infer_response=grpc_answer(final))
            await context.write(response.SerializeToString())
            await (proceed.wait() if not final else asyncio.sleep(0))

    connections, server = Connections(), Server()
    async with serving_grpc(ModelInfer=server.model_infer, ModelStreamInfer=streams) as host:
        async with (
            connections.transport("grpc-v2", settings(host, "slow", timeout=0.1)) as slow,
            connections.transport("grpc-v2", settings(host, "fast", timeout=0.1)) as fast,
        ):
            responses: AsyncGenerator[Outputs, None] = fast.stream(ModelCall([IDS], ["logits"], {}))
            await anext(responses)
            calls = [asyncio.create_task(infer(slow)) for _ in range(MAX_ABANDONED + 1)]
            await until(lambda: server.waiting == len(calls))
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert await infer(fast) == ANSWERED
            assert len(set(server.peers)) == 2, "new calls use another connection"
            await until(lambda: not server.waiting)  # the old channel closes, and with it the abandoned calls
            proceed.set()
            assert [one["logits"].data.ravel().tolist() async for one in responses] == [ANSWERED]
            assert await infer(fast) == ANSWERED


# Loading and unloading

PARAMETERS = {"config": '{"backend":"onnxruntime"}', "file:1/model.onnx": "AAEC", "max": 2**40, "unload": True}
PARAMETERS_OVER_GRPC = {
    "config": ("string_param", '{"backend":"onnxruntime"}'),
    "file:1/model.onnx": ("bytes_param", b"\0\1\2"),
    "max": ("int64_param", 2**40),
    "unload": ("bool_param", True),
}


async def test_models_are_loaded_and_unloaded(protocol: str) -> None:
    sent: Any = PARAMETERS if protocol == "v2" else PARAMETERS_OVER_GRPC
    verb = "POST " if protocol == "v2" else ""
    async with serving(protocol) as (server, host), open_transport(protocol, settings(host)) as transport:
        await transport.load_model("other", PARAMETERS)
        await transport.load_model("other", {})
        await transport.unload_model("other", {"unload_dependents": True})
        await transport.unload_model("other", {})
    dependents: Any = True if protocol == "v2" else ("bool_param", True)
    assert server.changes == [
        (f"{verb}load", "other", sent),
        (f"{verb}load", "other", {}),
        (f"{verb}unload", "other", {"unload_dependents": dependents}),
        (f"{verb}unload", "other", {}),
    ]


CODE = grpc.StatusCode
EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
REFUSALS: dict[str, tuple[str, grpc.StatusCode, str, type[Exception]]] = {
    "not explicit": ("503 Unavailable", CODE.UNAVAILABLE, EXPLICIT, PredictorError),
    "no such model": ("400 Bad", CODE.INVALID_ARGUMENT, "failed to load 'x', no version is available", PredictorError),
    "not found": ("404 Not Found", CODE.NOT_FOUND, "no such model", PredictorError),
    "failed": ("500 Oops", CODE.INTERNAL, "the backend has failed", PredictorError),
    "no extension": ("501 No", CODE.UNIMPLEMENTED, "no such method", PredictorError),
    "denied": ("403 Forbidden", CODE.PERMISSION_DENIED, "who are you?", PredictorDenied),
    "busy": ("503 Unavailable", CODE.UNAVAILABLE, "Exceeds maximum queue size", PredictorUnavailable),
}


@pytest.mark.parametrize(("status", "code", "message", "expected"), REFUSALS.values(), ids=REFUSALS)
async def test_refusals_are_errors_with_the_servers_message(
    protocol: str, status: str, code: grpc.StatusCode, message: str, expected: type[Exception]
) -> None:
    async with serving(protocol) as (server, host), open_transport(protocol, settings(host)) as transport:
        server.refusal = (status if protocol == "v2" else code), message
        for change in (transport.load_model, transport.unload_model):
            with pytest.raises(expected) as caught:
                await change("x", {})
            assert type(caught.value) is expected and message in str(caught.value)


BAD: dict[str, tuple[str, Any, str]] = {
    "a list": ("a", [1], r"parameters\['a'\]: expected a string, a whole number, true or false, got a list"),
    "a fraction": ("a", 0.5, r"parameters\['a'\]: expected a string, .*, got a number"),
    "too large": ("a", 2**63, r"parameters\['a'\]: expected a value for protobuf; .*out of range"),
    "not base64": ("file:1/x", "%", r"parameters\['file:1/x'\]: expected base64; "),
}


@pytest.mark.parametrize(("name", "value", "message"), BAD.values(), ids=BAD)
async def test_parameters_without_a_form_in_protobuf_are_errors(name: str, value: Any, message: str) -> None:
    async with serving("grpc-v2") as (server, host), open_transport("grpc-v2", settings(host)) as transport:
        with pytest.raises(PredictorError, match=f"the request can't be written: {message}"):
            await transport.load_model("x", {name: value})
    assert not server.changes


async def test_parameters_without_a_form_in_json_are_errors() -> None:
    async with serving("v2") as (server, host), open_transport("v2", settings(host)) as transport:
        with pytest.raises(PredictorError, match="the request can't be written: parameters: expected values for JSON"):
            await transport.load_model("x", {"a": object()})
    assert not server.changes


async def test_a_slow_or_absent_server_is_reported(protocol: str) -> None:
    async def silent(connection: Connection) -> None:
        await connection.until_closed()

    changes: list[Callable[[Transport], Any]] = [
        lambda transport: transport.load_model("x", {}),
        lambda transport: transport.unload_model("x", {}),
    ]
    async with scripted(silent) as host:
        quick = replace(settings(host), timeout=0.1)
        for change in changes:
            async with open_transport(protocol, quick) as transport:
                with pytest.raises(PredictorTimeout, match=r"gave no answer in 0\.1 s"):
                    await change(transport)
    for change in changes:
        async with open_transport(protocol, settings(host)) as transport:
            with pytest.raises(PredictorUnavailable) as caught:
                await change(transport)
            assert caught.value.kind == failures.CONNECTION
