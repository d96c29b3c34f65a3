"""Requests to every route that needs a model, and the states of a predictor that does not have it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.protobuf import json_format

from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.grpc_client import request, stub
from tests.support.service import Service

MODELS = {
    "bert": "fill_mask",
    "minibert_mean": "text_embedding",
    "cross": "rerank",
    "sentiment": "sequence_classification",
    "ner": "token_classification",
    "gpt2": "text_generation",
}
"""The models of these tests, with their tasks."""
V1_INSTANCES: Mapping[str, Any] = {
    "bert": "The capital of france is [MASK].",
    "minibert_mean": "The cat sleeps on the sofa.",
    "cross": {"query": "Who cooks?", "texts": ["They cook dinner."]},
    "sentiment": "The hotel was wonderful.",
    "ner": "Anna lives in Berlin.",
    "gpt2": "The capital of france is",
}
CHAT = [{"role": "user", "content": "Hi"}]
QUERY: Mapping[str, Any] = {"query": "Who cooks?", "documents": ["They cook dinner.", "It rains."]}


@dataclass(frozen=True)
class Route:
    """A request. ``asks`` is whether it reaches the predictor, else it needs the model's description alone."""

    path: str
    body: Any = None
    model: str = ""
    asks: bool = True

    def send(self, service: Service) -> Any:
        """The response. Only the body's ``model`` names the model; some routes have none."""
        if self.body is None:
            return service.client.get(self.path)
        return service.client.post(self.path, json=self.body)


def _named(model: str, *paths: str, asks: bool = True, **body: Any) -> Iterator[Route]:
    for path in paths:
        yield Route(path, {"model": model, **body}, model, asks)


def _generation(model: str) -> Iterator[Route]:
    for path in (f"/v2/models/{model}/generate", f"/v2/models/{model}/generate_stream"):
        yield Route(path, {"text_input": "Hi", "parameters": {"max_tokens": 2}}, model)
    instances = {"instances": ["Hi"], "parameters": {"stream": True, "max_new_tokens": 2}}
    yield Route(f"/v1/models/{model}:predict", instances, model)
    prefix = "/openai/v1"
    for stream in (False, True):
        yield from _named(model, f"{prefix}/completions", prompt="Hi", max_tokens=2, stream=stream)
        yield from _named(model, f"{prefix}/chat/completions", messages=CHAT, max_tokens=2, stream=stream)
        yield from _named(model, f"{prefix}/responses", input="Hi", max_output_tokens=2, store=False, stream=stream)
        yield from _named(model, "/v1/messages", messages=CHAT, max_tokens=2, stream=stream)
    yield from _named(model, "/generative_scoring", query="Is it good?", items=[" yes"], label_token_ids=[5, 6])


def _embedding(model: str) -> Iterator[Route]:
    yield from _named(
        model, "/openai/v1/embeddings", "/embeddings", "/v1/embeddings", "/infinity/embeddings", input="x"
    )
    yield from _named(model, "/embed", "/embed_all", "/embed_sparse", inputs="x")
    yield from _named(model, "/similarity", inputs={"source_sentence": "x", "sentences": ["y"]})
    yield from _named(model, "/v1/embed", "/v2/embed", texts=["x"], input_type="search_query")
    yield from _named(model, "/v1/multi-vector", input=["x"])
    yield from _named(model, "/v1/contextualizedembeddings", inputs=[["x", "y"]], input_type="document")
    yield from _named(model, "/pooling", "/v1/pooling", input="x")
    yield from _named(model, "/v1/embeddings?model=" + model, input="x")


def _reranking(model: str) -> Iterator[Route]:
    yield from _named(model, "/openai/v1/rerank", "/rerank", "/v1/rerank", "/v2/rerank", "/infinity/rerank", **QUERY)
    yield from _named(model, "/rerank", query="Who cooks?", texts=["They cook dinner."])
    yield from _named(model, "/v1/ranking", query={"text": "Who cooks?"}, passages=[{"text": "They cook dinner."}])
    yield from _named(model, "/score", "/v1/score", text_1="Who cooks?", text_2="They cook dinner.")


def routes() -> list[Route]:
    """All POST routes that need a model, and the GET routes that describe one or say that it is ready."""
    cold_routes = [*_generation("gpt2"), *_embedding("minibert_mean"), *_reranking("cross")]
    cold_routes += _named("sentiment", "/predict", "/", "/invocations", inputs="The hotel was wonderful.")
    cold_routes += _named("sentiment", "/vertex", instances=[{"inputs": "The hotel was wonderful."}])
    cold_routes += _named("sentiment", "/openai/v1/moderations", input="The hotel was wonderful.")
    cold_routes += _named("ner", "/analyze", text="Anna lives in Berlin.", language="en")
    cold_routes += _named("sentiment", "/classify", "/v1/classify", input="The hotel was wonderful.")
    cold_routes += _named("minibert_mean", "/tokenize", asks=False, inputs="x")
    cold_routes += _named("gpt2", "/tokenize", asks=False, prompt="x")
    cold_routes += _named("gpt2", "/v1/completions/render", asks=False, prompt="x")
    cold_routes += _named("gpt2", "/v1/chat/completions/render", asks=False, messages=CHAT)
    cold_routes += _named("gpt2", "/v1/messages/render", asks=False, messages=CHAT, max_tokens=2)
    cold_routes += _named("gpt2", "/v1/messages/count_tokens", asks=False, messages=CHAT)
    cold_routes += _named("gpt2", "/v1/responses/render", asks=False, input="Hi")
    ids = {"choices": [{"index": 0, "token_ids": [5, 6]}]}
    cold_routes += _named("gpt2", "/v1/completions/derender", asks=False, generate_responses=[ids])
    asked = {"messages": CHAT}
    cold_routes += _named(
        "gpt2", "/v1/chat/completions/derender", asks=False, generate_response=ids, chat_request=asked
    )
    cold_routes += _named("minibert_mean", "/decode", asks=False, ids=[5, 6])
    cold_routes += _named("minibert_mean", "/detokenize", asks=False, tokens=[5, 6])
    for model, instance in V1_INSTANCES.items():
        v1, v2 = f"/v1/models/{model}", f"/v2/models/{model}"
        cold_routes.append(Route(f"{v1}:predict", {"instances": [instance]}, model))
        cold_routes.append(Route(f"{v1}:tokenize", {"instances": ["x"]}, model, asks=False))
        cold_routes.append(Route(f"{v1}:detokenize", {"instances": [[5, 6]]}, model, asks=False))
        cold_routes += [Route(path, None, model, asks=False) for path in (f"{v1}/info", f"/info?model={model}")]
        for base in (v2, f"{v2}/versions/1"):
            cold_routes += [
                Route(f"{base}{end}", None, model, asks=False) for end in ("", "/config", "/stats", "/ready")
            ]
        cold_routes.append(Route(v1, None, model, asks=False))
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["The capital of france is [MASK]."]}
    cold_routes += [Route(f"/v2/models/bert{end}/infer", {"inputs": [text]}, "bert") for end in ("", "/versions/1")]
    for path in ("/generate", "/generate_stream"):
        cold_routes.append(Route(f"/v2/models/gpt2/versions/1{path}", {"text_input": "Hi"}, "gpt2"))
    return [
        *cold_routes,
        *[Route(path, asks=False) for path in ("/health", "/ping", "/openai/health", "/v2/health/ready")],
    ]


def grpc_answers(service: Service) -> dict[str, grpc.StatusCode]:
    """The status of each gRPC method that needs the model ``bert``. ModelStreamInfer has its error in a message."""
    text = request("bert", {"text": ["The capital of france is [MASK]."]})
    statuses = {}
    with stub(service) as calls:
        methods: dict[str, Callable[[], Any]] = {
            "ModelInfer": partial(calls.ModelInfer, text),
            "ModelStreamInfer": lambda: next(calls.ModelStreamInfer(iter([text]))),
            "ModelMetadata": partial(calls.ModelMetadata, pb.ModelMetadataRequest(name="bert")),
            "ModelConfig": partial(calls.ModelConfig, pb.ModelConfigRequest(name="bert")),
            "ModelStatistics": partial(calls.ModelStatistics, pb.ModelStatisticsRequest(name="bert")),
        }
        for name, call in methods.items():
            try:
                answer = json_format.MessageToDict(call())
                failed = "error_message" in str(answer) or "errorMessage" in answer
                statuses[name] = grpc.StatusCode.UNAVAILABLE if failed else grpc.StatusCode.OK
            except grpc.RpcError as error:
                failure: Any = error
                statuses[name] = failure.code()
                assert failure.code() is not grpc.StatusCode.UNAVAILABLE or dict(failure.trailing_metadata()).get(
                    "retry-after"
                ), name
        ready = calls.ModelReady(pb.ModelReadyRequest(name="bert")).ready
        assert calls.ServerReady(pb.ServerReadyRequest()).ready <= ready
        statuses["ModelReady"] = grpc.StatusCode.OK if ready else grpc.StatusCode.UNAVAILABLE
    return statuses


# Predictors without the model


class Answering(BaseHTTPRequestHandler):
    """Gives every request one status, as the proxy or the ingress before a predictor does."""

    protocol_version = "HTTP/1.1"
    status = 503

    def do_GET(self) -> None:
        body = b"<html>no route</html>"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the tests' output clean."""


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a server that answers every request with a status."""
    server = ThreadingHTTPServer((HOST, 0), type("Status", (Answering,), {"status": status}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that accepts connections, and says nothing."""
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.create_server((HOST, 0), backlog=1000)))
        yield f"{HOST}:{server.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a reserved port without a listener."""
    with closing(socket.socket()) as bound:
        bound.bind((HOST, 0))
        yield f"{HOST}:{bound.getsockname()[1]}"
