"""No request makes the service open an address: all sockets lead to the predictor, in its children too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.generation.test_verification import remote
from tests.integration.conftest import Serve
from tests.integration.test_docs import calls, examples
from tests.support.service import Service

AUDIT = """
import os, sys

def hook(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and arguments[1] is not None:
        line = f"{event} {arguments[1]}"
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        line = f"{event} {arguments[0]}"
    else:
        return
    with open(os.environ["AUDIT_FILE"], "a") as file:
        file.write(line + "\\n")

sys.addaudithook(hook)
"""
"""A sitecustomize.py, which every interpreter of the service and of its children runs first."""
MODELS = {"bert": (), "sentiment": (), "minibert_mean": (), "cross": (), "gpt2": ("--verify_structured_output=true",)}
HOSTILE = "http://127.0.0.1:1/hostile.json"


class Audited:
    """A service that records the addresses of its sockets."""

    def __init__(self, serve: Serve, folder: Path, model: str, protocol: str, *flags: str) -> None:
        self._file = folder / "audit"
        self._file.touch()
        (folder / "sitecustomize.py").write_text(AUDIT)
        environ = {"PYTHONPATH": str(folder), "AUDIT_FILE": str(self._file)}
        # uvloop and gRPC resolve and connect outside of Python.
        more = ("--event_loop=asyncio", "--enable_grpc=false", *flags)
        self.service = Service(*serve._flags(model, protocol, more), environ=environ)

    @property
    def opened(self) -> list[str]:
        return self._file.read_text().splitlines()


@pytest.fixture(params=MODELS)
def audited(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Iterator[Audited]:
    made = Audited(serve, tmp_path, request.param, "v2", *MODELS[request.param])
    with made.service as service:
        service.wait_until(f"/v1/models/{request.param}")
        yield made


def with_addresses(body: Any) -> Any:
    """The body with an address in place of each text."""
    if isinstance(body, dict):
        return {name: with_addresses(value) for name, value in body.items()}
    if isinstance(body, list):
        return [with_addresses(value) for value in body]
    return HOSTILE if isinstance(body, str) else body


def with_an_address(body: Any) -> Iterator[Any]:
    """The body with an address in place of one of its texts at a time, and in further fields."""
    if not isinstance(body, dict):
        return
    for name in body:
        yield {**body, name: with_addresses(body[name])}
    for name in ("url", "image_url", "file", "webhook", "callback", "$ref", "model", "parameters"):
        yield {**body, name: HOSTILE}


def test_no_request_opens_an_address(audited: Audited, triton: LocalTriton) -> None:
    service, port = audited.service, int(triton.http_address.rpartition(":")[2])
    assert f"socket.connect {('127.0.0.1', port)}" in audited.opened, "the audit sees sockets"
    document = service.client.get("/openapi.json").json()
    for method, path, operation in calls(document):
        for body in examples(operation):
            for changed in (body, *with_an_address(body)):
                headers = {"x-forwarded-for": "10.0.0.1", "x-forwarded-host": "hostile", "traceparent": HOSTILE}
                assert service.client.request(method, path, json=changed, headers=headers).status_code
    if "--verify_structured_output=true" in service.flags:
        for schema in remote(HOSTILE).values():
            wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            body = {"model": service.model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
            service.client.post("/openai/v1/chat/completions", json={**body, "response_format": wanted})
    others = {
        line for line in audited.opened if f"('127.0.0.1', {port}" not in line and "getaddrinfo 127.0.0.1" not in line
    }
    assert not others
