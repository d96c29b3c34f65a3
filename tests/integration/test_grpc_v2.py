"""The gRPC API of the service as users run it, in front of the real Triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from hf_transformer.commands.local_triton import poll
from hf_transformer.protocol.grpc import SERVICE
from tests.integration.conftest import Serve
from tests.integration.grpc_client import channel_to, fails, request, stub, values
from tests.integration.test_errors import LIMITS

FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."
TEXT = {"text": [FRANCE]}
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_the_answers_of_v1(serve: Serve, raw: bool) -> None:
    """tests/clients has them for every task, through clients of others."""
    service = serve("bert")
    with stub(service) as calls:
        for texts in ([FRANCE], [FRANCE, ITALY] * 9):
            response = calls.ModelInfer(request("bert", {"text": texts}, raw=raw, id="7"))
            assert values(response) == service.predict(texts)
            assert (response.model_name, response.model_version, response.id) == ("bert", "1", "7")
            assert bool(response.raw_output_contents) is raw
        parameters = {"output_format": "pipeline", "top_k": 2, "targets": ["paris", "rome"]}
        response = calls.ModelInfer(request("bert", {"text_input": [[FRANCE]]}, raw=raw, parameters=parameters))
        assert [json.loads(one) for one in values(response)] == service.predict([FRANCE], parameters)


def test_a_stream(serve: Serve) -> None:
    texts = [FRANCE, "no mask", ITALY] * 30
    requests = [request("bert", {"text": [text]}, id=str(number)) for number, text in enumerate(texts)]
    requests[0].parameters["triton_enable_empty_final_response"].bool_param = True
    with stub(serve("bert")) as calls:
        answers = list(calls.ModelStreamInfer(iter(requests)))
    assert [one.infer_response.id for one in answers] == [str(number) for number in range(90)]
    assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in answers)
    for text, one in zip(texts, answers, strict=True):
        if text == "no mask":
            assert "instances[0]: no [MASK]" in one.error_message
        else:
            assert (one.error_message, values(one.infer_response)) == ("", ["paris" if text == FRANCE else "rome"])


def test_over_a_limit(serve: Serve) -> None:
    """A message of a megabyte, which gzip makes small enough; one that would become 100 MB is not inflated."""
    service = serve("bert", "v2", *LIMITS)
    status = Path(f"/proc/{service.process.pid}/status")

    def most_memory() -> int:
        """The process's peak so far, in KiB."""
        return int(status.read_text().partition("VmHWM:")[2].split()[0])

    with stub(service) as calls:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with fails(EXHAUSTED, "larger than max"):
                calls.ModelInfer(request("bert", {"text": ["x" * 1_000_000]}), compression=compression)
            with fails(EXHAUSTED, "--max_instances"):
                calls.ModelInfer(request("bert", {"text": [FRANCE] * 4}), compression=compression)
            assert values(calls.ModelInfer(request("bert", TEXT), compression=compression)) == ["paris"]
    with channel_to(service) as channel:
        infer: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None)
        before = most_memory()
        with fails(EXHAUSTED, "larger than max"):
            infer(bytes(100 << 20), compression=grpc.Compression.Gzip, timeout=30)
        assert most_memory() - before < 50 << 10


def test_the_request_id_is_kept_and_the_request_counted(serve: Serve) -> None:
    service = serve("bert")
    counter = 'hf_transformer_requests_total{api="grpc",status="200"}'
    with stub(service) as calls:
        _, call = calls.ModelInfer.with_call(request("bert", TEXT), metadata=(("x-request-id", "caller-grpc"),))
        assert dict(call.trailing_metadata())["x-request-id"] == "caller-grpc"
        before = service.metric(counter)
        calls.ModelInfer(request("bert", TEXT, id="message-grpc"))
        assert service.metric(counter) == before + 1
    assert poll(lambda: "requestId: message-grpc, preprocess_ms" in service.log, 10.0)
    assert "requestId: caller-grpc, preprocess_ms" in service.log


def test_no_grpc(serve: Serve) -> None:
    with serve.own("bert", "v2", "--enable_grpc=false") as service:
        service.wait_until("/")
        assert "grpc" not in service.log
        assert "cygrpc" not in Path(f"/proc/{service.process.pid}/maps").read_text()
