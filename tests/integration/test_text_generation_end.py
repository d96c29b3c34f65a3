"""A stream that the grace period is too short for ends with an error, and not in the middle of an event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.integration.conftest import Serve
from tests.integration.generating import COMPLETIONS, start
from tests.service import Service, flags_for
from tests.triton_repository import task_model_folder

MODEL = "gpt2_tokens"
SLOW = "Slowly: The capital of france is"
LONG = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
"""The test model takes 20 ms for each token of such a prompt: four seconds."""


@pytest.mark.parametrize(
    ("path", "body", "mark"),
    [
        (COMPLETIONS, {"model": MODEL, "prompt": SLOW, "stream": True, **LONG}, "data: "),
        (f"/v2/models/{MODEL}/generate_stream", {"text_input": SLOW, **LONG}, "data: "),
        (f"/v1/models/{MODEL}:predict", {"instances": [SLOW], "parameters": {"stream": True, **LONG}}, ""),
    ],
    ids=["openai", "generate", "v1"],
)
def test_the_end_of_the_service_is_told(
    serve: Serve, triton: LocalTriton, path: str, body: dict[str, Any], mark: str
) -> None:
    start(serve, MODEL)  # has Triton load it
    flags = flags_for(MODEL, task_model_folder(MODEL), triton.grpc_address, "grpc-v2", ["--grace_period_seconds=1.5"])
    with Service(*flags) as service:
        service.wait_until(f"/v1/models/{MODEL}")
        with service.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            lines = (line for line in response.iter_lines() if line)
            first = next(lines)
            service.begin_stop()
            *pieces, last = [first, *lines]
        assert len(pieces) > 5
        error = json.loads(last.removeprefix(mark))["error"]
        assert (error["message"] if isinstance(error, dict) else error) == "the service is shutting down"
        # Not with ``stop``, which would be a second signal.
        assert poll(lambda: service.process.exit_code is not None, 20.0)
        assert service.process.exit_code == 0
