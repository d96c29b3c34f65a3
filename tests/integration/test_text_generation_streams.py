"""Streams that end early: by their client, a deadline, the service's end. Triton's metrics tell what it generates."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST
from tests.integration.conftest import Serve
from tests.integration.generating import (
    COMPLETIONS,
    GREEDY,
    client_of,
    complete,
    executions,
    generations,
    side_by_side,
)
from tests.support import raw_http
from tests.support.service import Service

SLOW = "Slowly: The capital of {} is"
"""Such a prompt takes the test models 20 ms a token."""
FRANCE = SLOW.format("france")
COUNTRIES = (
    "france germany italy spain japan china brazil canada norway sweden finland greece ireland peru cuba".split()
)
LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, **GREEDY}
TOKENS: dict[str, Any] = {**LONG, "max_tokens": 200}
"""Four seconds of a slow prompt."""
STREAMS = int(os.environ.get("HF_TRANSFORMER_CUT_STREAMS", "60"))
"""So many are cut for each of two models; scripts/test_faults has a thousand cut in all."""
FEW = 10
"""Descriptors more or less are no leak of so many streams."""
SECONDS = 20.0


def nothing_runs(triton: LocalTriton, model: str) -> bool:
    """Whether it becomes so."""
    return poll(lambda: generations(triton, model)["running"] == 0, SECONDS)


def cancelled(triton: LocalTriton, model: str) -> int:
    """The number of cancelled generations, after all of them have ended."""
    assert nothing_runs(triton, model)
    return generations(triton, model)["cancelled"]


def in_flight(service: Service) -> float:
    return service.metric("hf_transformer_requests_in_flight")


async def cut_short(service: Service, prompt: str, source: random.Random) -> str:
    """The text of a stream up to a random moment, when its client leaves: by FIN or RST, often before the first event.

    A connection of our own: that of a library may stay open for a while when its request is cancelled.
    """
    body = json.dumps({"model": service.model, "prompt": prompt, "stream": True, **LONG}).encode()
    reader, writer = await asyncio.open_connection(HOST, service.port)
    text = ""
    try:
        writer.write(raw_http.post(body, target=COMPLETIONS))
        if source.random() < 0.3:
            await asyncio.sleep(source.uniform(0.0, 0.05))
            return text
        for _ in range(source.randint(1, 10)):
            while not (line := await reader.readline()).startswith(b"data: {"):
                assert line, "the stream ended by itself"
            text += json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
        return text
    finally:
        if source.random() < 0.5:
            writer.transport.abort()
        writer.close()


@pytest.mark.parametrize("model", ["gpt2_past", "gpt2_tokens"])
async def test_streams_cut_at_random_moments_leave_nothing_running(
    serve: Serve, triton: LocalTriton, model: str
) -> None:
    service = serve(model, "grpc-v2")
    source = random.Random(11)
    prompts = [SLOW.format(country) for country in COUNTRIES]
    descriptors = Path(f"/proc/{service.process.pid}/fd")
    async with client_of(service) as client:
        answers = await side_by_side(lambda prompt: complete(client, service, prompt, **LONG), prompts)
        whole = {prompt: answer["choices"][0]["text"] for prompt, answer in zip(prompts, answers, strict=True)}
        assert len(set(whole.values())) == len(prompts)
        before = len(os.listdir(descriptors))

        async def cut(prompt: str) -> None:
            assert whole[prompt].startswith(await cut_short(service, prompt, source))

        async def uncut(prompt: str) -> None:
            counts = await complete(client, service, prompt, **LONG, stream=True)
            assert counts["choices"][0]["text"] == whole[prompt]

        chosen = source.choices(prompts, k=STREAMS)
        await asyncio.gather(side_by_side(cut, chosen, 40), *(uncut(prompt) for prompt in prompts[:8]))
    assert poll(lambda: in_flight(service) == 0, SECONDS)
    if model == "gpt2_tokens":
        assert nothing_runs(triton, model)
        counts = generations(triton, model)
        assert counts["started"] == counts["finished"] + counts["cancelled"]
        assert counts["cancelled"], "on a busy machine most may end before they are cut"
    else:
        count = executions(triton, model)
        await asyncio.sleep(0.1)
        assert executions(triton, model) == count
    assert poll(lambda: len(os.listdir(descriptors)) < before + FEW, SECONDS)
    async with client_of(service) as client:
        again = await complete(client, service, prompts[0], **LONG)
    assert again["choices"][0]["text"] == whole[prompts[0]]


class Running:
    """A stream of which one event has come. Closing it is leaving."""

    def __init__(self, service: Service, **fields: Any) -> None:
        body = {"model": service.model, "prompt": FRANCE, "stream": True, **LONG, **fields}
        request = service.client.build_request("POST", COMPLETIONS, json=body)
        self.response = service.client.send(request, stream=True)
        assert self.response.status_code == 200
        self._lines = (line for line in self.response.iter_lines() if line)
        self.first = self._event(next(self._lines))

    def rest(self) -> list[Any]:
        """All other events; the end is None."""
        return [self._event(line) for line in self._lines]

    def close(self) -> None:
        self.response.close()

    def _event(self, line: str) -> Any:
        assert line.startswith("data: ")
        data = line.removeprefix("data: ")
        return None if data == "[DONE]" else json.loads(data)


@pytest.mark.parametrize(("model", "protocol", "n"), [("gpt2_tokens", "v2", 1), ("gpt2_vllm", "grpc-v2", 3)])
def test_a_client_that_leaves_ends_the_generation(
    serve: Serve, triton: LocalTriton, model: str, protocol: str, n: int
) -> None:
    service = serve(model, protocol)
    before = cancelled(triton, model)
    stream = Running(service, n=n, **TOKENS)
    assert poll(lambda: generations(triton, model)["running"] == n, SECONDS)  # one event has come, of one of them
    assert in_flight(service) == 1
    stream.close()
    assert cancelled(triton, model) == before + n
    assert poll(lambda: in_flight(service) == 0, SECONDS)


@pytest.mark.parametrize("model", ["gpt2_tokens", "gpt2_vllm", "gpt2_tokens_unary"])
def test_a_client_that_leaves_before_its_whole_answer_ends_the_generation(
    serve: Serve, triton: LocalTriton, model: str
) -> None:
    """Also of a model that answers once: its call is cancelled a second later. A stop string ends it early as well."""
    service = serve(model, "grpc-v2")
    before = cancelled(triton, model)
    body = {"model": model, "prompt": FRANCE, **TOKENS}
    with raw_http.connected(service) as connection:
        connection.sendall(raw_http.post(json.dumps(body).encode(), target=COMPLETIONS))
        assert poll(lambda: generations(triton, model)["running"] == 1, SECONDS)
    assert cancelled(triton, model) == before + 1
    if model != "gpt2_tokens_unary":
        response = service.client.post(COMPLETIONS, json=body | {"stop": ["."]})
        assert response.json()["choices"][0]["text"] == " paris"
        assert nothing_runs(triton, model)


def test_a_deadline_ends_stream_and_generation_and_a_stream_takes_a_place(serve: Serve, triton: LocalTriton) -> None:
    flags = ("--predictor_request_timeout_seconds=2", "--max_concurrent_requests=1")
    limited = serve("gpt2_tokens", "grpc-v2", *flags)
    body = {"model": "gpt2_tokens", "prompt": "The", "max_tokens": 1}
    stream = Running(limited, **TOKENS)
    assert limited.client.post(COMPLETIONS, json=body).status_code == 429
    *_, last = stream.rest()
    assert "error" in last
    assert nothing_runs(triton, "gpt2_tokens")
    stream = Running(limited)
    stream.close()
    assert poll(lambda: limited.client.post(COMPLETIONS, json=body).status_code == 200, SECONDS)


def ended_with_0(service: Service) -> bool:
    """Waits for the end; ``stop`` would be a second signal."""
    return poll(lambda: service.process.exit_code is not None, SECONDS) and service.process.exit_code == 0


def test_a_drain_lets_streams_finish(serve: Serve) -> None:
    model = "gpt2_past"
    body = {"model": model, "prompt": FRANCE, **LONG, "max_tokens": 40}
    whole = serve(model, "grpc-v2").client.post(COMPLETIONS, json=body).json()
    with serve.own(model, "grpc-v2") as service:
        service.wait_until(f"/v1/models/{model}")
        stream = Running(service, max_tokens=40)
        service.begin_stop()
        *events, done = stream.rest()
        assert done is None
        pieces = [event["choices"][0] for event in (stream.first, *events)]
        assert "".join(piece["text"] for piece in pieces) == whole["choices"][0]["text"]
        assert pieces[-1]["finish_reason"] == "length"
        assert ended_with_0(service)


STREAMED: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"model": "gpt2_tokens", "prompt": FRANCE, "stream": True, **TOKENS}, "data: "),
    ("/v2/models/gpt2_tokens/generate_stream", {"text_input": FRANCE, **TOKENS}, "data: "),
    ("/v1/models/gpt2_tokens:predict", {"instances": [FRANCE], "parameters": {"stream": True, **TOKENS}}, ""),
]
"""A path, a body, and what stands in front of a line's JSON."""


def test_a_stream_over_the_grace_period_ends_with_an_error_event(serve: Serve) -> None:
    """The last event is an error, and no event ends in its middle."""
    with serve.own("gpt2_tokens", "grpc-v2", "--grace_period_seconds=1.5") as service, ExitStack() as stack:
        service.wait_until("/v1/models/gpt2_tokens")
        streams = []
        for path, body, mark in STREAMED:
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
        assert ended_with_0(service)
