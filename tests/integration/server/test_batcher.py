"""Workers and their batcher as processes: deaths under load, departing clients, counts, traces, and the end of all."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.cases import EMBEDDING
from benchmarks.cores import device
from hf_transformer.commands.child_process import poll
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.faults.environment import batcher_of, kill, workers_of
from tests.integration.grpc_client import fails, request, stub
from tests.integration.server.processes import MODEL_FOLDER, SECONDS, exit_code_of, signal_to
from tests.support.collector import collecting, proxying
from tests.support.raw_http import connected, post
from tests.support.service import Service, flags_for

pytestmark = pytest.mark.slow

PATH = "/v1/models/bert:predict"
SINGLE = [[f"text number {number}"] for number in range(40)]
LOST = "the process that forms the batches has ended and is restarted"
WAITING, RUNNING = "hf_transformer_waiting_texts", "hf_transformer_running_texts"


class Stub:
    """A scripted predictor: its address, and the orders that it takes."""

    def __init__(self, port: int, orders: Any) -> None:
        self.port = port
        self._orders = orders

    def order(self, name: str) -> tuple[int, int]:
        """Gives an order. Returns the batches and rows since the last one."""
        self._orders.send(name)
        batches, rows = self._orders.recv()
        return batches, rows

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Answers nothing during the context."""
        self.order("hold")
        try:
            yield
        finally:
            self.order("release")


@pytest.fixture(scope="module")
def predictor() -> Iterator[Stub]:
    with device((20.0, 0.01)) as (port, orders):
        yield Stub(port, orders)


@contextmanager
def serving(
    port: int, *flags: str, workers: int = 2, task: str = "sequence_classification", grpc: bool = False
) -> Iterator[Service]:
    raw = ("--return_raw_logits",) if task == "sequence_classification" else ()
    more = (f"--task={task}", *raw, f"--workers={workers}", f"--enable_grpc={grpc}", *flags)
    with Service(*flags_for("bert", MODEL_FOLDER, f"127.0.0.1:{port}", "v2", more), forked=False) as service:
        yield service.wait_until("/v2/health/ready")


@pytest.fixture(scope="module")
def running(predictor: Stub) -> Iterator[Callable[[], Service]]:
    """Returns a service that sends a batch at a time, the one of the test before if that has not ended it."""
    with ExitStack() as services:
        last: list[Service] = []

        def run() -> Service:
            if not last or last[-1].process.exit_code is not None:
                last.append(services.enter_context(serving(predictor.port, "--max_batches_in_flight=1", grpc=True)))
            return last[-1]

        yield run


def answers_of(service: Service) -> list[Any]:
    return [service.predict(texts) for texts in SINGLE]


def waits_for(service: Service, name: str, value: float) -> bool:
    """Whether all workers come to show this value: the batcher shares its metrics every second."""
    return poll(lambda: all(service.metric(name) == value for _ in range(6)), SECONDS)


class Load:
    """Clients that ask all the time, some over gRPC. ``wrong`` has answers of status 200 that are not ``expected``."""

    def __init__(self, service: Service, expected: list[Any], clients: int = 8, callers: int = 0) -> None:
        self.statuses: list[Any] = []
        self.errors: set[str] = set()
        self.wrong: list[Any] = []
        self._expected = expected
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(service,)) for _ in range(clients)]
        self._threads += [threading.Thread(target=self._call, args=(service,)) for _ in range(callers)]

    def _ask(self, service: Service) -> None:
        with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=60.0) as client:
            while not self._ended.is_set():
                for texts, right in zip(SINGLE, self._expected, strict=True):
                    try:
                        answer = client.post(PATH, json={"instances": texts})
                    except httpx.TransportError:  # its worker was killed
                        self.statuses.append("broken")
                        continue
                    self._count(answer.status_code, answer.json(), {"predictions": right})

    def _call(self, service: Service) -> None:
        with stub(service) as calls:
            while not self._ended.is_set():
                for texts, right in zip(SINGLE, self._expected, strict=True):
                    try:
                        answer = calls.ModelInfer(request("bert", {"text": texts}), timeout=60.0)
                    except grpc.RpcError as error:
                        self._count(error.code().name, {"error": error.details()}, None)
                        continue
                    tensor = answer.outputs[0]
                    found = [json.loads(one) for one in tensor.contents.bytes_contents]
                    self._count(200, found, right)

    def _count(self, status: Any, answer: Any, right: Any) -> None:
        self.statuses.append(status)
        if status != 200:
            self.errors.add(answer["error"])
        elif answer != right:
            self.wrong.append(answer)

    def goes_on(self, number: int = 100) -> bool:
        """Waits for so many answers more, the last of which is right."""
        seen = len(self.statuses)
        return poll(lambda: 200 in self.statuses[seen + number :], SECONDS)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        assert self.goes_on(50)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)


def test_answers_and_counts_of_two_workers_are_those_of_one_process(predictor: Stub) -> None:
    found = []
    for workers in (1, 2):
        predictor.order("count")
        with serving(predictor.port, workers=workers) as service, ThreadPoolExecutor(8) as clients:
            found.append([*clients.map(service.predict, SINGLE)])
            if workers == 1:
                assert not psutil.Process(service.process.pid).children(), "no further process"
            else:
                assert len(workers_of(service)) == 2 and batcher_of(service)
            batches, rows = predictor.order("count")
            assert rows == 40 and batches < 40
            assert waits_for(service, "hf_transformer_batch_instances_sum", rows)
            assert waits_for(service, "hf_transformer_batch_instances_count", batches)
            assert service.metric("hf_transformer_queue_seconds_count") == 40
            assert (service.metric(WAITING), service.metric(RUNNING)) == (0, 0)
            assert service.metric("hf_transformer_predictor_circuit_open") == 0
            [stats] = service.client.get("/v2/models/bert/stats").json()["model_stats"]
            assert (stats["inference_count"], stats["execution_count"]) == (rows, batches)
            signal_to(service, signal.SIGTERM)
            assert exit_code_of(service) == 0
    assert found[0] == found[1]
    assert len({str(answer) for answer in found[0]}) > 1


def test_a_batcher_that_is_killed_or_hangs_under_load_is_replaced(predictor: Stub) -> None:
    with serving(predictor.port, "--predictor_request_timeout_seconds=3", grpc=True) as service:
        expected = answers_of(service)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            assert_replaced(service, number, expected)
        signal_to(service, signal.SIGTERM)
        assert exit_code_of(service) == 0


def assert_replaced(service: Service, number: signal.Signals, expected: list[Any]) -> None:
    """Sends a signal to the batcher: another one takes its place, and meanwhile answers are right, or say why not."""
    with Load(service, expected, callers=2) as load:
        batcher = batcher_of(service)
        os.kill(batcher, number)
        if number == signal.SIGSTOP:
            assert poll(lambda: 504 in load.statuses, SECONDS)
            os.kill(batcher, signal.SIGKILL)  # as the supervisor does after HUNG_SECONDS
        assert poll(lambda: 503 in load.statuses or "UNAVAILABLE" in load.statuses, SECONDS), number
        assert poll(lambda: not any(readiness(service)), SECONDS), f"without a batcher, after {number!r}"
        assert service.client.get("/v2/health/live").status_code == 200
        assert poll(lambda: all(readiness(service)), SECONDS), number
        assert load.goes_on(), number
    assert not load.wrong, number
    assert set(load.statuses) <= {200, 503, 504, "UNAVAILABLE", "DEADLINE_EXCEEDED"}, number
    assert LOST in load.errors, number
    assert all(LOST in error or "no answer from the predictor in 3 s" in error for error in load.errors), number
    assert answers_of(service) == expected, number
    assert batcher_of(service) != batcher, number


def readiness(service: Service) -> list[bool]:
    """Whether the service is ready, over HTTP and over gRPC."""
    answer = service.client.get("/v2/health/ready")
    if answer.status_code == 503:
        assert "the process that forms the batches of all --workers is being started" in answer.text
    with stub(service) as calls:
        return [answer.status_code == 200, calls.ServerReady(pb.ServerReadyRequest()).ready]


def test_a_worker_that_is_killed_leaves_no_texts_at_the_batcher(running: Callable[[], Service]) -> None:
    service = running()
    expected = answers_of(service)
    with Load(service, expected) as load:
        kill(workers_of(service)[0])
        assert poll(lambda: len(workers_of(service)) == 2, SECONDS)
        assert load.goes_on()
    assert not load.wrong and set(load.statuses) <= {200, "broken"}
    assert waits_for(service, WAITING, 0) and waits_for(service, RUNNING, 0)
    assert answers_of(service) == expected


def test_the_texts_of_departed_clients_leave_the_batchers_queue(
    predictor: Stub, running: Callable[[], Service]
) -> None:
    service = running()
    body, message = {"instances": SINGLE[0]}, request("bert", {"text": SINGLE[1]})
    with ThreadPoolExecutor(1) as thread, stub(service) as calls, ExitStack() as clients:
        with predictor.hold():
            first = thread.submit(service.predict, SINGLE[0])
            assert waits_for(service, RUNNING, 1)
            for _ in range(5):
                client = clients.enter_context(connected(service))
                client.sendall(post(json.dumps(body).encode(), target=PATH))
            call = calls.ModelInfer.future(message)
            late = calls.ModelInfer.future(message, timeout=0.5)
            assert waits_for(service, WAITING, 6)
            assert late.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            clients.close()
            call.cancel()
            assert waits_for(service, WAITING, 0)
        assert len(first.result()) == 1
    assert predictor.order("count")[1] == 0, "no row after the first"
    assert len(service.predict(SINGLE[0])) == 1


def test_requests_in_flight_at_a_signal_are_answered(predictor: Stub, running: Callable[[], Service]) -> None:
    service = running()
    with ThreadPoolExecutor(12) as clients, predictor.hold():
        answers = [clients.submit(service.post, {"instances": texts}) for texts in SINGLE[:12]]
        assert poll(lambda: service.metric(WAITING) + service.metric(RUNNING) == 12, SECONDS)
        signal_to(service, signal.SIGTERM)
        assert poll(lambda: service.log.count("Shutting down") == 2, SECONDS)
        predictor.order("release")
        assert [answer.result().status_code for answer in answers] == [200] * 12
    assert exit_code_of(service) == 0


def test_a_predictor_that_ends_is_503_over_http_and_grpc() -> None:
    with ExitStack() as running:
        port, _ = running.enter_context(device((1.0, 0.01)))
        with serving(port, "--predictor_request_retries=0", grpc=True) as service:
            assert service.predict(SINGLE[0])
            running.close()
            answer = service.post({"instances": SINGLE[0]})
            assert answer.status_code == 503 and "retry-after" in answer.headers
            assert "predictor" in answer.json()["error"]
            with stub(service) as calls, fails(grpc.StatusCode.UNAVAILABLE, "predictor"):
                calls.ModelInfer(request("bert", {"text": SINGLE[0]}))


def test_each_batch_is_in_the_traces_of_its_requests(predictor: Stub) -> None:
    """A batch carries the traceparent of one request, and the other requests of the batch link to it."""
    with collecting() as collector, proxying(f"127.0.0.1:{predictor.port}") as proxy:
        port = int(proxy.address.rpartition(":")[2])
        with serving(port, f"--otlp_endpoint={collector.url}", "--max_batches_in_flight=1") as service:
            traces = [f"{number + 1:032x}" for number in range(24)]

            def send(trace: str) -> int:
                headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
                return service.post({"instances": SINGLE[int(trace, 16)]}, headers=headers).status_code

            with ThreadPoolExecutor(12) as clients:
                assert [*clients.map(send, traces)] == [200] * 24
            spans = [collector.trace(trace, 5)["predict"] for trace in traces]
            own = {f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01": span for span in spans}
            sent = {one for one in proxy.traceparents if one[3:35] in traces}
            assert sent <= own.keys() and len(sent) < 24, "some share a batch"
            for traceparent, span in own.items():
                links = {f"00-{link.trace_id.hex()}-{link.span_id.hex()}-01" for link in span.links}
                assert links <= sent and len(links) == (traceparent not in sent)
                assert span.kind == Span.SPAN_KIND_CLIENT


def test_large_answers_pass_the_border_unchanged(tmp_path: Path) -> None:
    """Vectors of 512 tokens, 32 texts a request: 25 MB of outputs for each batch."""
    text = " ".join(["word"] * 200 + [f"w{number}" for number in range(200)])
    body = [f"{number} {text}" for number in range(32)]
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(MODEL_FOLDER / name, tmp_path / name)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"hidden_size": EMBEDDING.width, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with device((1.0, 0.0), EMBEDDING) as (port, _):
        found = []
        for workers in (1, 2):
            limits = "--max_answer_values=10000000", "--max_batch_output_bytes=33554432", "--max_model_len=512"
            flags = f"--model_dir={tmp_path}", *limits
            with serving(port, *flags, workers=workers, task="feature_extraction") as service:
                answers = [service.post({"instances": body}) for _ in range(2)]
                assert [answer.status_code for answer in answers] == [200] * 2
                assert len({answer.content for answer in answers}) == 1
                shape = [len(one[0]) for one in answers[0].json()["predictions"]]
                assert len(shape) == 32 and set(shape) == {512}
                found.append(answers[0].content)
        assert found[0] == found[1]
        assert re.match(rb'\{"predictions":\[\[\[', found[0])
