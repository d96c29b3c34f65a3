"""The service with the newest of what it needs, and nothing else: what ``pip install .`` gives."""

from __future__ import annotations

import os
from collections.abc import Callable

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from hf_transformer.commands.local_triton import LocalTriton
from tests.clients.conftest import ROOT
from tests.integration.conftest import MODEL_FOLDER, load
from tests.integration.grpc_client import channel_to
from tests.support.service import Service, flags_for

__all__ = ["load"]

PYTHON = os.path.join(os.environ.get("HF_TRANSFORMER_PLAIN_ENVIRONMENT") or ROOT / ".venv-plain", "bin", "python")
HEALTH = "/grpc.health.v1.Health"


def test_it_starts_and_answers(triton: LocalTriton, load: Callable[[str], None], protocol: str) -> None:
    load("bert")
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    with Service(*flags_for("bert", MODEL_FOLDER, address, protocol), python=PYTHON) as service:
        service.wait_until("/v1/models/bert")
        assert service.predict(["The capital of france is [MASK]."]) == ["paris"]
        with channel_to(service) as channel:
            check = channel.unary_unary(
                f"{HEALTH}/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
            )
            assert check(HealthCheckRequest(service="bert"), timeout=30).status == HealthCheckResponse.SERVING
            # The tests' own package may not know it.
            assert b"bert" in channel.unary_unary(f"{HEALTH}/List", None, None)(b"", timeout=30)
