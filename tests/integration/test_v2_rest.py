"""The open inference protocol over HTTP on real sockets: the answers of V1, as tensors in JSON and raw."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.v2_rest import LENGTH, OUTPUT, post, read, texts_tensor

FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."


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
def test_the_answers_of_v1(serve: Serve, model: str, instances: Any, inputs: Any, filling: Any) -> None:
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
    golden = [[*one, *[missing] * (most - len(one))] for one in predictions]
    assert any(len(one) < most for one in predictions)
    header, outputs = read(post(service, {"text": texts}, parameters={form: True}))
    found = [
        [json.loads(f"[{','.join(row)}]" if isinstance(row, list) else row) for row in one] for one in outputs[OUTPUT]
    ]
    assert found == golden
    assert header["outputs"][0]["datatype"] == "BYTES"
    started = serve(model, "v2", f"--{form}")
    assert_as_promised(header["outputs"][0], started.client.get(f"/v2/models/{model}").json()["outputs"])


def assert_as_promised(entry: Any, outputs: Any) -> None:
    """An output has the datatype that the metadata say, and the shape where that is no -1."""
    (promised,) = [one for one in outputs if one["name"] == entry["name"]]
    assert entry["datatype"] == promised["datatype"]
    assert len(entry["shape"]) == len(promised["shape"])
    assert all(size in (-1, found) for size, found in zip(promised["shape"], entry["shape"], strict=True))


def test_outputs_by_name(serve: Serve) -> None:
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
