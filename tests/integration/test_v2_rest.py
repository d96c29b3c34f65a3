"""The open inference protocol over HTTP on real sockets: the answers of V1, as tensors in JSON and raw."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.v2_rest import LENGTH, OUTPUT, post, read, texts_tensor
from tests.service import Service
from tests.triton_repository import task_model_folder

FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."


def floats(value: Any) -> Any:
    return np.array(value, np.float32).tolist()


def padded(prediction: Any, filling: Any, length: int) -> list[Any]:
    rows: list[Any] = prediction[0]
    return [[*rows, *[filling] * (length - len(rows))]]


def folder_flag(model: str) -> tuple[str, ...]:
    return () if model == "bert" else (f"--model_dir={task_model_folder(model)}",)


@dataclass(frozen=True)
class Case:
    """The same request through V1 and V2. ``rows`` are instances; the inputs are columns of them."""

    model: str
    instances: list[Any]
    inputs: dict[str, Any]
    datatype: str
    task: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def service(self, serve: Serve) -> Service:
        return serve(self.model, "v2", *folder_flag(self.model), *((f"--task={self.task}",) if self.task else ()))

    def expected(self, predictions: list[Any]) -> list[Any]:
        """What output-0 holds of V1's predictions."""
        if self.datatype == "BYTES":
            return predictions
        if isinstance(predictions[0], list) and isinstance(predictions[0][0], list):
            longest = max(len(one[0]) for one in predictions)
            filling = -100 if self.datatype == "INT64" else [0.0] * len(predictions[0][0][0])
            predictions = [padded(one, filling, longest) for one in predictions]
        return predictions if self.datatype == "INT64" else floats(predictions)


PAIRS = [("It rains today.", "Rain falls."), ("They cook dinner together.", "Überall 日本."), ("Yes.", "No.")]
QUESTIONS = [("Who cooks?", "Anna cooks dinner in Berlin."), ("Where is it?", "It is in Berlin, says Anna.")]
TEXTS = ["They cook dinner together.", "It rains.", "Überall 日本 in Berlin, and much more than that."]
LABELS = ["food", "rain"]
CASES = {
    "fill_mask": Case("bert", [FRANCE, ITALY], {"text": [FRANCE, ITALY]}, "BYTES"),
    "fill_mask, pipeline": Case(
        "bert", [FRANCE], {"text_input": [[FRANCE]]}, "BYTES", "", {"output_format": "pipeline", "top_k": 3}
    ),
    "sequence_classification": Case(
        "paraphrase",
        [{"text": one, "text_pair": two} for one, two in PAIRS],
        {"text": [one for one, _ in PAIRS], "text_pair": [[two] for _, two in PAIRS]},
        "INT64",
    ),
    "sequence_classification, probabilities": Case(
        "paraphrase",
        [{"text": one, "text_pair": "It rains."} for one in TEXTS],
        {"text": TEXTS, "text_pair": ["It rains."]},
        "BYTES",
        "",
        {"return_probabilities": True},
    ),
    "token_classification": Case("ner", TEXTS, {"input-0": TEXTS}, "INT64"),
    "question_answering": Case(
        "squad",
        [{"question": one, "context": two} for one, two in QUESTIONS],
        {"context": [two for _, two in QUESTIONS], "question": [one for one, _ in QUESTIONS]},
        "BYTES",
        "question_answering",
        {"top_k": 2},
    ),
    "rerank": Case(
        "cross",
        [{"query": one, "texts": TEXTS} for one in ("Who cooks?", "rain")],
        {"query": ["Who cooks?", "rain"], "texts": TEXTS},
        "BYTES",
        "rerank",
    ),
    "zero_shot_classification": Case(
        "nli",
        [{"text": one, "candidate_labels": LABELS} for one in TEXTS],
        {"text": TEXTS, "candidate_labels": [LABELS]},
        "BYTES",
        "zero-shot-classification",
        {"multi_label": True},
    ),
    "text_embedding": Case("minibert_mean", TEXTS, {"text": TEXTS}, "FP32"),
    "feature_extraction": Case("minibert_cls", TEXTS, {"text": TEXTS}, "FP32", "feature_extraction"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_answers_of_v1(serve: Serve, case: Case) -> None:
    service = case.service(serve)
    golden = case.expected(service.predict(case.instances, case.parameters))
    metadata = service.client.get(f"/v2/models/{case.model}").json()
    for raw_in in (False, True):
        for raw_out in (False, True):
            parameters = {**case.parameters, "binary_data_output": raw_out}
            header, outputs = read(post(service, case.inputs, raw_in, id="17", parameters=parameters))
            assert list(outputs) == [OUTPUT]
            found = outputs[OUTPUT]
            if case.datatype == "BYTES" and not isinstance(golden[0], str):
                found = [json.loads(one) for one in found]
            assert found == golden
            (entry,) = header.pop("outputs")
            assert ("data" in entry, "parameters" in entry) == (not raw_out, raw_out)
            assert header == {"model_name": case.model, "model_version": "1", "id": "17"}
            if not case.parameters:
                assert_as_promised(entry, metadata["outputs"])


ALONE = {name: case for name, case in CASES.items() if all(isinstance(one, str) for one in case.instances)}


@pytest.mark.parametrize("case", [*ALONE.values(), Case("paraphrase", TEXTS, {}, "INT64")], ids=[*ALONE, "labels"])
def test_one_text_alone(serve: Serve, case: Case) -> None:
    """What most requests are goes a way of its own through the pipeline."""
    service = case.service(serve)
    for text in case.instances:
        golden = case.expected(service.predict([text], case.parameters))
        _, outputs = read(post(service, {"text": [text]}, parameters=case.parameters))
        found = outputs[OUTPUT]
        assert ([json.loads(one) for one in found] if case.parameters else found) == golden


@pytest.mark.parametrize("form", ["return_probabilities", "return_raw_logits"])
@pytest.mark.parametrize("model", ["ner", "bert"])
def test_numbers_have_kserves_shapes(serve: Serve, model: str, form: str) -> None:
    """[instances, tokens], and [instances, masks, vocabulary]; null behind the last one of a shorter text."""
    texts = TEXTS if model == "ner" else [FRANCE, f"{ITALY} {FRANCE}"]
    service = Case(model, texts, {}, "BYTES").service(serve)
    predictions = service.predict(texts, {form: True})
    most = max(map(len, predictions))
    missing = None if model == "ner" else [None] * len(predictions[0][0])
    golden = [[*one, *[missing] * (most - len(one))] for one in predictions]
    assert any(len(one) < most for one in predictions)
    header, outputs = read(post(service, {"text": texts}, parameters={form: True}))
    found = [
        [json.loads(f"[{','.join(row)}]" if isinstance(row, list) else row) for row in one] for one in outputs[OUTPUT]
    ]
    assert found == golden
    assert header["outputs"][0]["datatype"] == "BYTES"
    started = serve(model, "v2", *folder_flag(model), f"--{form}")
    assert_as_promised(header["outputs"][0], started.client.get(f"/v2/models/{model}").json()["outputs"])


def assert_as_promised(entry: Any, outputs: Any) -> None:
    """An output has the datatype that the metadata say, and the shape where that is no -1."""
    (promised,) = [one for one in outputs if one["name"] == entry["name"]]
    assert entry["datatype"] == promised["datatype"]
    assert len(entry["shape"]) == len(promised["shape"])
    assert all(size in (-1, found) for size, found in zip(promised["shape"], entry["shape"], strict=True))


def test_outputs_by_name(serve: Serve) -> None:
    """An output that is asked for is switched on; each may say for itself how it is sent."""
    service = CASES["token_classification"].service(serve)
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
def test_routes_of_a_model(serve: Serve, version: str) -> None:
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
        "max_batch_size": 1024,
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1], "optional": False}],
        "output": [{"name": OUTPUT, "data_type": "TYPE_STRING", "dims": []}],
        "model_transaction_policy": {"decoupled": False},
    }
    header, outputs = read(post(service, {"text": [FRANCE]}, path=f"{path}/infer"))
    assert outputs == {OUTPUT: ["paris"]}
    assert "id" not in header


def test_routes_of_the_server(serve: Serve) -> None:
    client = serve("bert").client
    about = client.get("/v2").json()
    assert (about["name"], about["extensions"]) == (
        "hf_transformer",
        ["binary_tensor_data", "model_configuration", "statistics"],
    )
    assert about["version"][0].isdigit()
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models").json() == {"models": ["bert"]}


def test_charsets_and_compression(serve: Serve) -> None:
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


def test_requests_are_counted(serve: Serve) -> None:
    service = serve("bert")
    read(post(service, {"text": [FRANCE]}))
    name = 'hf_transformer_requests_total{api="v2",status="200"}'
    before = service.metric(name)
    read(post(service, {"text": [FRANCE]}))
    assert service.metric(name) == before + 1
