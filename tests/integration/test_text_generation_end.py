"""A stream that the grace period is too short for ends with an error, and not in the middle of an event."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from hf_transformer.commands.local_triton import LocalTriton, poll
from tests.integration.conftest import Serve
from tests.integration.generating import COMPLETIONS, start
from tests.service import Service, flags_for
from tests.triton_repository import task_model_folder

MODEL = "gpt2_tokens"
SLOW = "Slowly: The capital of france is"
LONG = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
"""The test model takes 20 ms for each token of such a prompt: four seconds."""


STREAMS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"model": MODEL, "prompt": SLOW, "stream": True, **LONG}, "data: "),
    (f"/v2/models/{MODEL}/generate_stream", {"text_input": SLOW, **LONG}, "data: "),
    (f"/v1/models/{MODEL}:predict", {"instances": [SLOW], "parameters": {"stream": True, **LONG}}, ""),
]
"""A path, a body, and what stands in front of a line's JSON."""


def test_the_end_of_the_service_is_told(serve: Serve, triton: LocalTriton) -> None:
    start(serve, MODEL)  # has Triton load it
    flags = flags_for(MODEL, task_model_folder(MODEL), triton.grpc_address, "grpc-v2", ["--grace_period_seconds=1.5"])
    with Service(*flags) as service, ExitStack() as stack:
        service.wait_until(f"/v1/models/{MODEL}")
        streams = []
        for path, body, mark in STREAMS:
            response = stack.enter_context(service.client.stream("POST", path, json=body))
            assert response.status_code == 200
            lines = (line for line in response.iter_lines() if line)
            streams.append((next(lines), lines, mark))
        service.begin_stop()
        for first, lines, mark in streams:
            *pieces, last = [first, *lines]
            assert len(pieces) > 5
            error = json.loads(last.removeprefix(mark))["error"]
            assert (error["message"] if isinstance(error, dict) else error) == "the service is shutting down"
        # Not with ``stop``, which would be a second signal.
        assert poll(lambda: service.process.exit_code is not None, 20.0)
        assert service.process.exit_code == 0
