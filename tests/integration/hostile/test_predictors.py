"""Predictors that want to harm the service: what they say costs bounded memory and time, and others are served."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.hostile.conftest import MEGABYTE
from tests.integration.hostile.hostile_predictor import HostilePredictor, Inference, behind
from tests.support.polling import SECONDS
from tests.support.raw_http import TEXT
from tests.support.service import Service

PROMPT = 3.0
"""Seconds in which a liveness probe is answered while the predictor does its worst, without waits for a core."""
BODY = {"instances": [TEXT]}


@pytest.fixture(scope="module")
def shared() -> Iterator[HostilePredictor]:
    with HostilePredictor() as made:
        yield made


@pytest.fixture
def predictor(shared: HostilePredictor) -> HostilePredictor:
    shared.infer = Inference.zeros
    return shared


@pytest.fixture(scope="module")
def plain(shared: HostilePredictor) -> Iterator[Service]:
    with behind(shared) as service:
        yield service


@pytest.fixture(scope="module")
def limited(shared: HostilePredictor) -> Iterator[Service]:
    limits = ("--predictor_request_timeout_seconds=3", f"--max_predictor_response_bytes={64 * MEGABYTE}")
    with behind(shared, *limits, "--predictor_retries=0") as service:
        yield service


@pytest.fixture(scope="module")
def writer() -> Iterator[tuple[HostilePredictor, Service]]:
    """A predictor whose model writes what a test says, and the service in front of it."""
    with HostilePredictor(lambda send: None) as predictor, behind(predictor, "--task=text_generation") as service:
        yield predictor, service


@pytest.fixture(scope="module")
def peaks() -> dict[int, int]:
    """The peak memory of each service before its first test. Memory that a test leaves counts for the next one."""
    return {}


def without_core(thread: int) -> float:
    """Seconds that a thread has been ready to run while others had all cores: the second field of schedstat, in ns."""
    return int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9


def longest_wait(service: Service, work: Callable[[], httpx.Response]) -> tuple[httpx.Response, float]:
    """An answer, and the longest time that a probe took while it was waited for.

    What the event loop and the client wait for a core does not count, since other processes may have them.
    """
    waits, over = [0.0], threading.Event()

    def probe() -> None:
        threads = (service.process.pid, threading.get_native_id())
        with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=60.0) as client:
            while not over.is_set():
                begun, lost = time.monotonic(), sum(map(without_core, threads))
                assert client.get("/v2/health/live").status_code == 200
                waits.append(time.monotonic() - begun - (sum(map(without_core, threads)) - lost))
                time.sleep(0.01)

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        answer = work()
    finally:
        over.set()
        probing.join()
    return answer, max(waits)


@pytest.mark.parametrize("texts", [1, 6], ids=["copied", "viewed"])
def test_after_a_cut_region_large_outputs_travel_inline(predictor: HostilePredictor, texts: int) -> None:
    """A read behind the end of the file would be a SIGBUS. The next large output travels inline, as before a region."""

    def cut(inference: Inference) -> None:
        os.truncate(Path("/dev/shm") / inference.place["shared_memory_region"], 0)
        inference.placed()

    with behind(predictor, "--predictor_shared_memory_min_bytes=1024") as service:
        assert poll(lambda: "large outputs travel through shared memory" in service.log, 20.0), service.log
        predictor.infer = cut
        answer = service.post({"instances": [f"[MASK]{' the' * 40}"] * texts})
        assert (answer.status_code, "got a truncated file" in answer.text) == (502, True), answer.text
        assert service.process.exit_code is None
        predictor.infer = Inference.zeros
        assert len(service.predict([TEXT])) == 1
        assert poll(lambda: "was cut by another process; it is replaced" in service.log, 20.0), service.log


JSON = {
    "lists": (b'{"outputs":[', b"[],", 16 * MEGABYTE, b"[]]}"),
    "values": (b'{"outputs":[0', b",0", 24 * MEGABYTE, b"]}"),
    "keys": (b'{"error":[{', b'"a":1,', 8 * MEGABYTE, b'"a":1}]}'),
}
"""Bodies: the begin, what is repeated how often, and the end. Tests make them, since each worker imports this."""


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
@pytest.mark.parametrize("parts", JSON.values(), ids=JSON)
def test_json_that_becomes_gigabytes_is_refused(
    predictor: HostilePredictor,
    plain: Service,
    peaks: dict[int, int],
    parts: tuple[bytes, bytes, int, bytes],
    status: str,
) -> None:
    begin, repeated, times, end = parts
    body = begin + repeated * times + end
    before = peaks.setdefault(plain.port, plain.peak_bytes)
    predictor.infer = partial(Inference.answer, status=status, body=body)
    answer, waited = longest_wait(plain, lambda: plain.post(BODY))
    assert answer.status_code == 502
    assert plain.peak_bytes - before < 4 * len(body), "the body, and some copies of it"
    assert waited < PROMPT
    predictor.infer = Inference.zeros
    assert len(plain.predict([TEXT])) == 1


FORGED = "2026-01-01T00:00:00.000 INFO root: nothing has happened"
MESSAGE = f"oops\r\n{FORGED}\n\x1b[2J\x85\u2028\u202e{FORGED}"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def test_messages_forge_no_lines(predictor: HostilePredictor) -> None:
    dead = "counts as dead after 1 calls"
    with behind(predictor, "--predictor_circuit_failures=1", "--predictor_retries=0") as service:
        for body in (json.dumps({"error": MESSAGE}).encode(), MESSAGE.encode()):
            count = service.log.count(dead)
            predictor.infer = partial(Inference.answer, status="503 No", body=body)
            answer = service.post(BODY)
            said = answer.json()["error"]
            assert answer.status_code == 503
            assert "oops\\x0d\\x0a2026" in said and "\\x1b[2J\\x85\\u2028\\u202e2026" in said
            assert poll(partial(lambda count: service.log.count(dead) > count, count), 20.0)
            predictor.infer = Inference.zeros
            assert poll(lambda: service.post(BODY).status_code == 200, 20.0)
        assert FORBIDDEN.search(service.log) is None
        assert not [line for line in service.log.splitlines() if line.startswith(FORGED)]


def endless(head: bytes, piece: bytes) -> Callable[[Inference], None]:
    def send(inference: Inference) -> None:
        inference.send(head)
        while True:
            inference.send(piece)

    return send


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "a body until the end": (HEAD + b"\r\n", b"x" * 2**16),
    "chunks": (CHUNKED, b"10000\r\n" + b"x" * 2**16 + b"\r\n"),
    "chunks of a byte": (CHUNKED, b"1\r\nx\r\n" * 10_000),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
    "head": (HEAD, b"X-Header: a\r\n" * 5_000),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X-Header: a\r\n" * 5_000),
}


@pytest.mark.parametrize(("head", "piece"), FLOODS.values(), ids=FLOODS)
def test_answers_without_end_are_broken_off(
    predictor: HostilePredictor, limited: Service, peaks: dict[int, int], head: bytes, piece: bytes
) -> None:
    before, begun = peaks.setdefault(limited.port, limited.peak_bytes), time.monotonic()
    predictor.infer = endless(head, piece)
    answer, waited = longest_wait(limited, lambda: limited.post(BODY))
    assert answer.status_code in (502, 504)
    assert time.monotonic() - begun < 15.0
    assert waited < PROMPT
    assert limited.peak_bytes - before < 256 * MEGABYTE, "the largest answer, doubled while it grows, and some room"
    predictor.infer = Inference.zeros
    assert len(limited.predict([TEXT])) == 1


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"model_name": "bert", "text_output": text}).encode() + b"\n\n"


ENDLESS = {
    "a line": b"x" * 65536,
    "lines": b"data: x\n" * 8192,
    "text": event("x" * 1000) * 64,
    "empty texts": event("") * 1024,
    "large texts": event("x" * 3 * MEGABYTE),
}
"""Repeated without end by a model that is to write five tokens."""


@pytest.mark.parametrize("name", [*ENDLESS])
def test_a_text_without_end_is_refused_and_its_call_ends(
    writer: tuple[HostilePredictor, Service], peaks: dict[int, int], name: str
) -> None:
    ended, (predictor, service) = threading.Semaphore(0), writer
    errors = 'hf_transformer_predictor_errors_total{kind="error"}'

    def stream(send: Callable[[bytes], object]) -> None:
        try:
            send(b"data: ")
            for _ in range(2**30 // len(ENDLESS[name])):
                send(ENDLESS[name])
        except OSError:
            ended.release()

    def ask() -> httpx.Response:
        return service.post({"instances": [TEXT], "parameters": {"max_new_tokens": 5}})

    before, failed = peaks.setdefault(service.port, service.peak_bytes), service.metric(errors, 0.0)
    predictor.stream = stream
    answer, wait = longest_wait(service, ask)
    assert answer.status_code == 502, answer.text
    assert ended.acquire(timeout=SECONDS)
    assert wait < PROMPT
    assert service.peak_bytes - before < 48 * MEGABYTE
    assert service.metric(errors) > failed
