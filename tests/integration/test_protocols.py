"""V1 and the open inference protocol over HTTP and gRPC, on real sockets, and what clients send beside them."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
import sys
import time
import zlib
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve, message_of, refused
from tests.integration.grpc_client import channel_to, fails, request, stub, values
from tests.integration.test_errors import LIMITS
from tests.integration.v2_rest import LENGTH, OUTPUT, post, read, texts_tensor
from tests.support.polling import SECONDS
from tests.support.service import Service
from tests.support.triton_repository import held, task_model_folder

FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."
BODY = json.dumps({"instances": [FRANCE]}).encode()
FORMS: list[tuple[Any, dict[str, str]]] = [
    ({"inputs": [FRANCE]}, {}),
    ({"instances": FRANCE}, {}),
    ({"inputs": FRANCE}, {}),
    ({"instances": [{"text": FRANCE}]}, {}),
    ({"instances": [FRANCE], "parameters": None}, {}),
    ({"instances": [FRANCE], "signature_name": "serving_default"}, {}),
    (BODY, {}),
    (BODY, {"content-type": "application/x-www-form-urlencoded"}),
    (BODY, {"content-type": "nonsense"}),
    (BODY.decode().encode("utf-16"), {"content-type": "application/json; charset=utf-16"}),
    (gzip.compress(BODY), {"content-encoding": "gzip"}),
    (zlib.compress(BODY), {"content-encoding": "deflate"}),
]


def test_every_form_of_a_v1_request_has_the_same_answer(serve: Serve) -> None:
    service = serve("bert")
    for body, headers in FORMS:
        response = service.post(body, headers=headers)
        assert (response.status_code, response.text) == (200, '{"predictions":["paris"]}')
    chunks = (BODY[start : start + 5] for start in range(0, len(BODY), 5))
    assert service.client.post("/v1/models/bert:predict", content=chunks).json() == {"predictions": ["paris"]}


def test_the_latency_line_is_kserves_and_shows_no_text(serve: Serve) -> None:
    service = serve("bert")
    headers = {"x-request-id": "line-1"}
    answered = service.post({"instances": ["The capital of sesame is [MASK]."]}, headers=headers)
    assert answered.headers["x-request-id"] == "line-1"
    line = re.compile(
        r"^\d{4}-\d\d-\d\dT[\d:.]+ INFO hf_transformer.latency: requestId: line-1, preprocess_ms: [\d.]+, "
        r"explain_ms: 0, predict_ms: [\d.]+, postprocess_ms: [\d.]+\n",
        re.MULTILINE,
    )
    assert poll(lambda: line.search(service.log) is not None, SECONDS)  # it waits a tenth of a second for others
    failed = service.post({"instances": ["a sesame without one"]}, headers={"x-request-id": "line-2"})
    assert (failed.status_code, failed.headers["x-request-id"]) == (400, "line-2")
    assert "sesame" not in service.log


def test_texts_are_logged_only_when_asked_for(serve: Serve) -> None:
    service = serve("bert", "v2", "--enable_log_requests", "--max_log_len=14", "--enable_latency_logging=false")
    service.post(BODY, headers={"x-request-id": "shown"})
    assert poll(lambda: "requestId: shown, instances: ['The capital of']" in service.log, SECONDS)
    assert "france" not in service.log
    assert "preprocess_ms" not in service.log


def test_who_has_an_answer_finds_it_in_the_metrics(serve: Serve) -> None:
    """Answers are counted after they were sent, but before their client can ask; with KServe's histograms."""
    service = serve("bert")
    service.predict([FRANCE])  # from then on the counter of requests is shown
    names = [f'request_{one}_seconds_count{{model_name="bert"}}' for one in ("preprocess", "predict", "postprocess")]
    names.append('hf_transformer_requests_total{api="v1",model_name="bert",status="200"}')
    predictions, metrics = (http.client.HTTPConnection(HOST, service.port, timeout=60) for _ in range(2))

    def counts() -> list[float]:
        metrics.request("GET", "/metrics")
        answer = metrics.getresponse()
        assert answer.headers["content-type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
        assert 'request_explain_seconds_count{model_name="bert"} 0.0' in lines
        shown = dict(line.rpartition(" ")[::2] for line in lines)
        return [float(shown[name]) for name in names]

    try:
        before = counts()
        for number in range(1, 51):
            body = json.dumps({"instances": [FRANCE] * (number % 3 + 1)})  # each counts once, of however many texts
            predictions.request("POST", "/v1/models/bert:predict", body, {"content-type": "application/json"})
            answer = predictions.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, {"predictions": ["paris"] * (number % 3 + 1)})
            assert counts() == [count + number for count in before]
    finally:
        predictions.close()
        metrics.close()


PAIRS = [("It rains today.", "Rain falls."), ("They cook dinner together.", "Überall 日本."), ("Yes.", "No.")]
TEXTS = ["They cook dinner together.", "It rains.", "Überall 日本 in Berlin, and much more than that."]
CASES: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("bert", [FRANCE, ITALY], {"text": [FRANCE, ITALY]}, None),
    (
        "paraphrase",
        [{"text": one, "text_pair": two} for one, two in PAIRS],
        {"text": [one for one, _ in PAIRS], "text_pair": [[two] for _, two in PAIRS]},
        None,
    ),
    ("ner", TEXTS, {"input-0": TEXTS}, -100),
    ("minibert_mean", TEXTS, {"text": TEXTS}, None),
    ("minibert_cls", TEXTS, {"text": TEXTS}, [0.0] * 48),
]
"""A model, V1's instances, V2's inputs, which are columns of them, and what the rows of shorter texts end with."""


def as_tensor(predictions: list[Any], filling: Any) -> list[Any]:
    """V1's predictions as V2 gives them: a row for each text, all of one length, floats as FP32."""
    if filling is not None:
        longest = max(len(rows) for (rows,) in predictions)
        predictions = [[[*rows, *[filling] * (longest - len(rows))]] for (rows,) in predictions]
    values = np.array(predictions)
    return values.astype(np.float32).tolist() if values.dtype.kind == "f" else predictions


@pytest.mark.parametrize(("model", "instances", "inputs", "filling"), CASES, ids=[case[0] for case in CASES])
def test_v2_has_the_answers_of_v1(serve: Serve, model: str, instances: Any, inputs: Any, filling: Any) -> None:
    """tests/clients has every task, and tests/tasks/test_tensors.py every form of the inputs."""
    service = serve(model, "v2", *(("--task=feature_extraction",) if model == "minibert_cls" else ()))
    golden = as_tensor(service.predict(instances), filling)
    metadata = service.client.get(f"/v2/models/{model}").json()
    for raw_in, raw_out in ((False, True), (True, False)):
        parameters = {"binary_data_output": raw_out}
        header, outputs = read(post(service, inputs, raw_in, id="17", parameters=parameters))
        assert outputs == {OUTPUT: golden}
        (entry,) = header.pop("outputs")
        assert ("data" in entry, "parameters" in entry) == (not raw_out, raw_out)
        assert header == {"model_name": model, "model_version": "1", "id": "17"}
        assert_as_promised(entry, metadata["outputs"])


@pytest.mark.parametrize("form", ["return_probabilities", "return_raw_logits"])
@pytest.mark.parametrize("model", ["ner", "bert"])
def test_numbers_have_kserves_shapes(serve: Serve, model: str, form: str) -> None:
    """[instances, tokens], and [instances, masks, vocabulary]; null behind the last one of a shorter text."""
    texts = TEXTS if model == "ner" else [FRANCE, f"{ITALY} {FRANCE}"]
    service = serve(model)
    predictions = service.predict(texts, {form: True})
    most = max(map(len, predictions))
    missing = None if model == "ner" else [None] * len(predictions[0][0])
    golden = [[*prediction, *[missing] * (most - len(prediction))] for prediction in predictions]
    assert any(len(prediction) < most for prediction in predictions)
    header, outputs = read(post(service, {"text": texts}, parameters={form: True}))
    answered = [
        [json.loads(f"[{','.join(row)}]" if isinstance(row, list) else row) for row in prediction]
        for prediction in outputs[OUTPUT]
    ]
    assert answered == golden
    assert header["outputs"][0]["datatype"] == "BYTES"
    started = serve(model, "v2", f"--{form}")
    assert_as_promised(header["outputs"][0], started.client.get(f"/v2/models/{model}").json()["outputs"])


def assert_as_promised(entry: Any, outputs: Any) -> None:
    """An output has the datatype that the metadata say, and the shape where that is no -1."""
    (promised,) = [one for one in outputs if one["name"] == entry["name"]]
    assert entry["datatype"] == promised["datatype"]
    assert len(entry["shape"]) == len(promised["shape"])
    assert all(size in (-1, found) for size, found in zip(promised["shape"], entry["shape"], strict=True))


def test_named_outputs_are_sent_in_the_form_asked_for(serve: Serve) -> None:
    """An output that is asked for is switched on; each may say for itself how it is sent."""
    service = serve("ner")
    body = {"instances": TEXTS, "parameters": {"return_offsets_mapping": True}}
    golden = service.post(body).json()["outputs"][0]
    offsets = np.array(golden["data"]).reshape(golden["shape"]).tolist()
    both = [{"name": "offset_mapping", "parameters": {"binary_data": True}}, {"name": OUTPUT}]
    header, outputs = read(post(service, {"text": TEXTS}, outputs=both))
    assert list(outputs) == ["offset_mapping", OUTPUT]
    assert outputs["offset_mapping"] == offsets
    assert ["data" in one for one in header["outputs"]] == [False, True]
    for one in header["outputs"]:
        assert_as_promised(one, service.client.get("/v2/models/ner").json()["outputs"])
    _, alone = read(post(service, {"text": TEXTS}, outputs=both[:1], parameters={"binary_data_output": False}))
    assert alone == {"offset_mapping": offsets}
    _, all_of_them = read(post(service, {"text": TEXTS}, parameters={"return_offsets_mapping": True}))
    assert all_of_them == {OUTPUT: outputs[OUTPUT], "offset_mapping": offsets}


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_routes_of_a_model_describe_it(serve: Serve, version: str) -> None:
    service = serve("bert")
    path = f"/v2/models/bert{version}"
    assert service.client.get(f"{path}/ready").json() == {"name": "bert", "ready": True}
    assert service.client.get(path).json() == {
        "name": "bert",
        "versions": ["1"],
        "platform": "hf_transformer",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [-1]}],
    }
    assert service.client.get(f"{path}/config").json() == {
        "name": "bert",
        "platform": "hf_transformer",
        "backend": "hf_transformer",
        "max_batch_size": 2048,
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1], "optional": False}],
        "output": [{"name": OUTPUT, "data_type": "TYPE_STRING", "dims": []}],
        "model_transaction_policy": {"decoupled": False},
    }
    header, outputs = read(post(service, {"text": [FRANCE]}, path=f"{path}/infer"))
    assert outputs == {OUTPUT: ["paris"]}
    assert "id" not in header


def test_routes_of_the_server_list_models_and_extensions(serve: Serve) -> None:
    client = serve("bert").client
    about = client.get("/v2").json()
    assert about == client.get("/v2/").json()
    extensions = ["binary_tensor_data", "model_configuration", "statistics"]
    assert (about["name"], about["extensions"]) == ("hf_transformer", extensions)
    assert about["version"][0].isdigit()
    for path, answer in (
        ("/", {"status": "alive"}),
        ("/v1/models", {"models": ["bert"], **client.get("/openai/v1/models").json()}),
        ("/v2/models/bert/ready", {"name": "bert", "ready": True}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models", {"models": ["bert"]}),
    ):
        assert client.get(path).json() == answer


def test_v2_bodies_may_be_compressed_or_in_another_charset(serve: Serve) -> None:
    service = serve("bert")
    entry, elements = texts_tensor("text", [FRANCE], raw=True)
    header = json.dumps({"inputs": [entry]}).encode()
    binary = {LENGTH: str(len(header)), "content-encoding": "gzip", "content-type": "application/json; charset=utf-16"}
    plain = json.dumps({"inputs": [texts_tensor("text", [FRANCE], raw=False)[0]]})
    requests = [
        (gzip.compress(header + elements), binary),  # the charset means nothing where not all of the body is text
        (plain.encode("utf-16"), {"content-type": "application/json; charset=utf-16"}),
        (plain.encode("utf-8-sig"), {"content-type": "text/plain"}),
        (plain.encode(), {LENGTH: str(len(plain))}),
    ]
    for body, headers in requests:
        response = service.client.post("/v2/models/bert/infer", content=body, headers=headers)
        assert read(response)[1] == {OUTPUT: ["paris"]}


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_grpc_has_the_answers_of_v1(serve: Serve, raw: bool) -> None:
    """tests/clients has them for every task, through foreign clients."""
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


def test_the_id_of_a_grpc_request_is_kept_and_the_request_counted(serve: Serve) -> None:
    service, counter = serve("bert"), 'hf_transformer_requests_total{api="grpc",status="200"}'
    asked = {"text": [FRANCE]}
    with stub(service) as calls:
        _, call = calls.ModelInfer.with_call(request("bert", asked), metadata=(("x-request-id", "caller-grpc"),))
        assert dict(call.trailing_metadata())["x-request-id"] == "caller-grpc"
        before = service.metric(counter)
        calls.ModelInfer(request("bert", asked, id="message-grpc"))
        assert service.metric(counter) == before + 1
    assert poll(lambda: "requestId: message-grpc, preprocess_ms" in service.log, SECONDS)
    assert "requestId: caller-grpc, preprocess_ms" in service.log


def test_messages_over_a_limit_are_refused_and_not_inflated(serve: Serve) -> None:
    """A message of a megabyte, which gzip makes small enough; one that would become 100 MB is not inflated."""
    service = serve("bert", "v2", *LIMITS, "--enable_grpc_compression=true")
    status = Path(f"/proc/{service.process.pid}/status")

    def most_memory() -> int:
        """The process's peak so far, in KiB."""
        return int(status.read_text().partition("VmHWM:")[2].split()[0])

    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    with channel_to(service) as channel, stub(service) as calls:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with fails(exhausted, "larger than max"):
                calls.ModelInfer(request("bert", {"text": ["x" * 1_000_000]}), compression=compression)
            with fails(exhausted, "--max_instances"):
                calls.ModelInfer(request("bert", {"text": [FRANCE] * 4}), compression=compression)
            assert values(calls.ModelInfer(request("bert", {"text": [FRANCE]}), compression=compression)) == ["paris"]
        infer: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None)
        before = most_memory()
        with fails(exhausted, "larger than max"):
            infer(bytes(100 << 20), compression=grpc.Compression.Gzip, timeout=30)
        assert most_memory() - before < 50 << 10


def test_without_grpc_its_library_is_not_loaded(serve: Serve) -> None:
    with serve.own("bert", "v2", "--enable_grpc=false", forked=False) as service:
        service.wait_until("/")
        assert "grpc" not in service.log
        assert "cygrpc" not in Path(f"/proc/{service.process.pid}/maps").read_text()


SCHEDULING = {"priority": 1, "sequence_id": 7, "sequence_start": True, "sequence_end": False}
OURS = {**SCHEDULING, "timeout": 30_000_000}


def test_parameters_of_tritons_clients_change_nothing(serve: Serve) -> None:
    service = serve("bert")
    assert service.predict([FRANCE], {**OURS, "binary_data_output": True}) == ["paris"]
    _, outputs = read(post(service, {"text": [FRANCE]}, parameters={**OURS, "sequence_id": "a"}))
    assert outputs == {"output-0": ["paris"]}
    message = request("bert", {"text": [FRANCE]}, parameters=OURS)
    message.parameters["priority"].uint64_param = 3
    with stub(service) as calls:
        assert values(calls.ModelInfer(message)) == ["paris"]
        [streamed] = calls.ModelStreamInfer(iter([message]))
        assert values(streamed.infer_response) == ["paris"]


def test_their_timeout_is_a_deadline(serve: Serve) -> None:
    """In microseconds; fault_slow takes longer."""
    service, parameters = serve("fault_slow"), {"timeout": 50_000}
    late = "the caller's deadline"
    for answer in (
        service.post({"instances": [FRANCE], "parameters": parameters}),
        post(service, {"text": [FRANCE]}, parameters=parameters),
    ):
        assert late in message_of(answer, 504)
    with stub(service) as calls, fails(grpc.StatusCode.DEADLINE_EXCEEDED, late):
        calls.ModelInfer(request("fault_slow", {"text": [FRANCE]}, parameters=parameters))
    for wrong in (-1, 0.5, "soon", True):
        refused(service, [FRANCE], {"timeout": wrong}, "parameters.timeout: expected a whole number of microseconds")


def test_a_cloudevent_is_answered_as_one(serve: Serve) -> None:
    service = serve("bert")
    event = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "test", "ce-type": "my.request"}
    answer = service.post({"instances": [FRANCE]}, headers=event)
    assert answer.json() == {"predictions": ["paris"]}
    own = {name: value for name, value in answer.headers.items() if name.startswith("ce-")}
    assert own.pop("ce-id") not in ("", "7")
    assert datetime.fromisoformat(own.pop("ce-time")).tzinfo is not None
    assert own == {
        "ce-specversion": "1.0",
        "ce-source": "io.kserve.inference.bert",
        "ce-type": "io.kserve.inference.response",
    }
    del event["ce-id"]
    plain = service.post({"instances": [FRANCE]}, headers=event)
    assert not [name for name in plain.headers if name.startswith("ce-")]


EVENT: dict[str, Any] = {"specversion": "1.0", "id": "7", "source": "test", "type": "my.request"}
STRUCTURED = "application/cloudevents+json"


@pytest.mark.parametrize(
    "content_type", [STRUCTURED, "Application/CloudEvents+JSON; charset=utf-8"], ids=["usual", "charset"]
)
@pytest.mark.parametrize(
    "data", [{"data": {"instances": [FRANCE]}}, {"data_base64": b64encode(BODY).decode()}], ids=["data", "data_base64"]
)
def test_a_cloudevent_in_structured_mode_is_answered_as_one(
    serve: Serve, data: dict[str, Any], content_type: str
) -> None:
    service = serve("bert")
    answer = service.post({**EVENT, "subject": "9", **data}, headers={"content-type": content_type})
    assert (answer.status_code, answer.headers["content-type"]) == (200, STRUCTURED)
    assert not [name for name in answer.headers if name.startswith("ce-")]
    own = answer.json()
    assert own.pop("id") not in ("", "7")
    assert datetime.fromisoformat(own.pop("time")).tzinfo is not None
    assert own == {
        "specversion": "1.0",
        "source": "io.kserve.inference.bert",
        "type": "io.kserve.inference.response",
        "data": {"predictions": ["paris"]},
    }


def test_a_strategy_for_entities_asks_for_the_pipeline_format(serve: Serve) -> None:
    """As AGGREGATION_STRATEGY alone does in KServe's runtime guide."""
    text = "Anna Smith lives in Berlin."
    service = serve("ner", "v2", f"--model_dir=file://{task_model_folder('ner')}", "--aggregation_strategy=simple")
    [found] = service.predict([text])
    assert found == service.predict([text], {"output_format": "pipeline", "aggregation_strategy": "simple"})[0]
    assert found[0].keys() >= {"entity_group", "word", "start", "end"}
    assert poll(lambda: "pipeline format, since --aggregation_strategy=simple" in service.log, SECONDS)
    kept = serve("ner", "v2", "--aggregation_strategy=simple", "--output_format=kserve")
    assert isinstance(kept.predict([text])[0][0][0], int)


def statistics_of(service: Service) -> Any:
    """Over HTTP; over gRPC they are the same."""
    [statistics] = service.client.get("/v2/models/bert/versions/1/stats").json()["model_stats"]
    assert service.client.get("/v2/models/stats").json() == {"model_stats": [statistics]}
    with stub(service) as calls:
        [message] = calls.ModelStatistics(pb.ModelStatisticsRequest(name="bert")).model_stats
        [same] = calls.ModelStatistics(pb.ModelStatisticsRequest()).model_stats
    assert same == message
    for name in ("name", "version", "last_inference", "inference_count", "execution_count"):
        assert getattr(message, name) == statistics[name]
    for field, value in message.inference_stats.ListFields():
        assert statistics["inference_stats"][field.name] == {"count": value.count, "ns": value.ns}
    return statistics


def test_statistics_count_answers_and_failures_alike_over_http_and_grpc(serve: Serve) -> None:
    service = serve("bert")
    service.predict([FRANCE])
    refused(service, ["no mask"], {}, "at least one [MASK]")
    before = statistics_of(service)
    assert (before["name"], before["version"]) == ("bert", "1")
    began = time.time_ns() // 1_000_000
    assert began - 60_000 < before["last_inference"] <= began
    service.predict([FRANCE] * 3)
    assert post(service, {"text": [FRANCE]}).status_code == 200
    sent = time.monotonic_ns()
    refused(service, ["no mask"], {}, "at least one [MASK]")
    failing = time.monotonic_ns() - sent
    after = statistics_of(service)
    assert after["inference_count"] - before["inference_count"] == 4
    assert after["execution_count"] - before["execution_count"] == 2
    old, new = before["inference_stats"], after["inference_stats"]
    assert new["fail"]["count"] - old["fail"]["count"] == 1
    assert 0 < new["fail"]["ns"] - old["fail"]["ns"] < failing
    assert began <= after["last_inference"] <= time.time_ns() // 1_000_000
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    for name in ("success", *parts):
        assert new[name]["count"] - old[name]["count"] == 2
        # The time to tokenize is a sum in steps: it would tell which words others have sent.
        assert new[name]["ns"] > old[name]["ns"] or name == "compute_input"
    assert new["compute_input"]["ns"] % 250_000 == 0
    assert abs(new["success"]["ns"] - sum(new[name]["ns"] for name in parts)) < 10


def test_statistics_are_zero_before_the_first_inference_and_none_without_a_predictor(serve: Serve) -> None:
    with serve.own("bert") as service:
        service.wait_until("/v1/models/bert")
        [found] = service.client.get("/v2/models/stats").json()["model_stats"]
        assert found["last_inference"] == found["inference_count"] == 0
    lost = serve("nowhere", ready=False)
    assert lost.client.get("/v2/models/stats").json() == {"model_stats": []}
    assert lost.client.get("/v2/models/nowhere/stats").status_code == 503
    with stub(lost) as calls:
        assert not calls.ModelStatistics(pb.ModelStatisticsRequest()).model_stats


def test_the_repository_index_lists_the_model_and_refuses_wrong_bodies(serve: Serve) -> None:
    service = serve("bert")
    ready = {"name": "bert", "version": "1", "state": "READY", "reason": ""}
    for body in (b"", b"{}", b'{"ready": true}'):
        assert service.client.post("/v2/repository/index", content=body).json() == [ready]
    for body in (b"[]", b'{"ready": 1}', b"{"):
        assert service.client.post("/v2/repository/index", content=body).status_code == 400
    with stub(service) as calls:
        [entry] = calls.RepositoryIndex(pb.RepositoryIndexRequest()).models
        assert (entry.name, entry.version, entry.state) == ("bert", "1", "READY")


@pytest.mark.parametrize("model", ["bert", "paraphrase", "squad"])
def test_a_generic_client_can_make_a_request_of_the_configuration_alone(serve: Serve, model: str) -> None:
    """As perf_analyzer does: a text for each input, of the shape [batch, *dims], and every output by name."""
    service = serve(model)
    config = service.client.get(f"/v2/models/{model}/config").json()
    metadata = service.client.get(f"/v2/models/{model}").json()
    assert config["max_batch_size"] > 2
    assert [[-1, *tensor["dims"]] for tensor in config["input"]] == [tensor["shape"] for tensor in metadata["inputs"]]
    assert all(tensor["dims"] == [1] for tensor in config["input"])
    texts = {tensor["name"]: [[FRANCE], [FRANCE]] for tensor in config["input"]}
    _, outputs = read(post(service, texts, outputs=[{"name": tensor["name"]} for tensor in config["output"]]))
    assert [len(tensor) for tensor in outputs.values()] == [2]
    assert "text_pair" not in texts


def test_sigterm_finishes_what_is_in_flight(serve: Serve, repository: Path) -> None:
    """A request over HTTP and one over gRPC; the last answers of all are in the log, too."""
    with serve.own("fault_slow", "grpc-v2") as service:
        service.wait_until("/v1/models/fault_slow")
        with stub(service) as calls, ThreadPoolExecutor(1) as others:
            headers = {"x-request-id": "the-last"}
            with held(repository):
                waiting = others.submit(service.post, {"instances": [FRANCE]}, "fault_slow", headers=headers)
                call = calls.ModelInfer.future(request("fault_slow", {"text": [FRANCE]}))
                assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 2, SECONDS)
                service.begin_stop()
            assert service.process.wait(SECONDS) and service.process.exit_code == 0
            assert waiting.result(60).json() == {"predictions": ["paris"]}
            assert values(call.result(timeout=60)) == ["paris"]
        assert "requestId: the-last, preprocess_ms: " in service.log
        assert "Traceback" not in service.log


def test_a_start_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "no PEM"
    broken.write_text("no PEM")
    for flags, code, says in (
        (["--model_dir=/no/such/folder"], 1, "/no/such/folder"),
        ([f"--ssl_certfile={broken}", f"--ssl_keyfile={broken}"], 2, "--ssl_certfile"),
    ):
        command = [sys.executable, "-W", "error", "-m", "hf_transformer", "--predictor_host=x", *flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == code
        assert says in result.stderr and result.stderr.count("\n") == 1
