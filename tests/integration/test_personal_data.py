"""Masked texts in each protocol, and Presidio's routes, over real sockets."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import convert

from hf_transformer.api.dialects.presidio import AnonymizeResponse, RecognizerResult
from hf_transformer.commands.child_process import poll
from tests.integration.conftest import Serve, goldens
from tests.integration.grpc_client import fails, request, stub
from tests.support.collector import collecting
from tests.support.service import Service

PERSON = "Anna Smith lives in Berlin."
CANARY = "Zyxomma Petiolatum, zyxomma@petiolatum.example"


def masked(service: Service, text: Any, pattern: str, **parameters: Any) -> Any:
    [answer] = service.predict([text], {"mask": pattern, **parameters})
    return answer


def post(service: Service, path: str, **body: Any) -> Any:
    return service.client.post(path, json=body)


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_a_masked_text_stands_beside_the_entities(serve: Serve, protocol: str) -> None:
    service = serve("ner", protocol)
    [entities] = service.predict([PERSON], {"output_format": "pipeline", "aggregation_strategy": "simple"})
    assert entities
    answer = masked(service, PERSON, "[{label}]")
    assert answer["entities"] == entities
    expected, end = "", 0
    for entity in entities:
        expected += PERSON[end : entity["start"]] + f"[{entity['entity_group']}]"
        end = entity["end"]
    assert answer["masked_text"] == expected + PERSON[end:]
    assert len(masked(service, PERSON, "*")["masked_text"]) == len(PERSON)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [PERSON]}
    v2 = post(service, f"/v2/models/{service.model}/infer", inputs=[tensor], parameters={"mask": "[{label}]"})
    assert json.loads(v2.json()["outputs"][0]["data"][0])["masked_text"] == answer["masked_text"]


def test_a_long_text_is_masked_to_its_end(serve: Serve) -> None:
    service = serve("ner", "v2")
    text = "They cook dinner together. " * 150 + PERSON
    answer = masked(service, text, "[{label}]")
    alone = masked(service, PERSON, "[{label}]")
    assert "Anna Smith" not in answer["masked_text"]
    assert answer["masked_text"].endswith(alone["masked_text"])
    spans = [(entity["start"], entity["end"]) for entity in answer["entities"]]
    assert spans == sorted(set(spans))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"mask": "{text}"}, "parameters.mask"),
        ({"mask": ""}, "parameters.mask"),
        ({"mask": 1}, "parameters.mask"),
        ({"mask": "{hash}"}, "parameters.mask"),
        ({"mask": "*", "aggregation_strategy": "none"}, "parameters.aggregation_strategy"),
        ({"mask": "*", "truncation": True}, "parameters.truncation"),
        ({"mask": "*", "output_format": "kserve"}, "parameters.mask"),
    ],
    ids=str,
)
def test_a_wrong_mask_is_refused(serve: Serve, parameters: dict[str, Any], field: str) -> None:
    service = serve("ner", "v2")
    body = {"instances": [PERSON], "parameters": parameters}
    response = post(service, f"/v1/models/{service.model}:predict", **body)
    assert response.status_code == 400 and field in response.text


def test_a_hash_has_the_key_of_the_file(serve: Serve, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    answer = masked(serve("ner", "v2", f"--mask_key_file={key}"), "Anna saw Anna.", "<{hash}>")["masked_text"]
    assert "Anna" not in answer and "<" in answer


def test_the_model_and_the_patterns_find_personal_data(serve: Serve, tmp_path: Path) -> None:
    names = tmp_path / "names.yaml"
    service = serve("ner", "v2", "--enable_pii_patterns")
    text = f"{PERSON} Mail anna@example.org"
    results = post(service, "/analyze", text=text, language="en").json()
    found = {(one.entity_type, text[one.start : one.end]) for one in convert(results, list[RecognizerResult])}
    assert {("PERSON", "Anna Smith"), ("LOCATION", "Berlin"), ("EMAIL_ADDRESS", "anna@example.org")} <= found
    assert [one["score"] for one in results] == sorted((one["score"] for one in results), reverse=True)
    anonymized = convert(post(service, "/anonymize", text=text, analyzer_results=results).json(), AnonymizeResponse)
    assert anonymized.text.startswith("<PERSON> lives in <LOCATION>. ") and anonymized.text.endswith(" <EMAIL_ADDRESS>")
    for item in anonymized.items:
        assert anonymized.text[item.start : item.end] == item.text
    both = post(service, "/analyze", text=[text, "Nothing."], language="en").json()
    assert [one["entity_type"] for one in both[0]] == [one["entity_type"] for one in results] and len(both) == 2
    only = post(service, "/analyze", text=text, language="en", entities=["PERSON"], allow_list=["Anna Smith"])
    assert {one["entity_type"] for one in only.json()} <= {"PERSON"}
    assert "Anna Smith" not in [text[one["start"] : one["end"]] for one in only.json()]
    explained = post(service, "/analyze", text=text, language="en", return_decision_process=True).json()
    assert all(one["analysis_explanation"]["recognizer"] for one in explained)
    names.write_text("PER: PERSON\n")
    renamed = serve("ner", "v2", f"--entity_names={names}")
    assert {one["entity_type"] for one in post(renamed, "/analyze", text=text, language="en").json()} == {"PERSON"}


def test_what_is_masked_is_not_masked_again(serve: Serve) -> None:
    """LiteLLM's proxy masks the answer of a chat server, which may repeat the masked chat."""
    service = serve("ner", "v2", "--enable_pii_patterns")
    text = PERSON
    for form in ("<PERSON>", "<PERSON_1>", "<LOCATION_12>"):
        results = post(service, "/analyze", text=f"{form} lives in Berlin.", language="en").json()
        assert [one["start"] for one in results] == [len(form) + len(" lives in ")]
    for _ in range(3):
        results = post(service, "/analyze", text=text, language="en").json()
        text = post(service, "/anonymize", text=text, analyzer_results=results).json()["text"]
        assert text == "<PERSON> lives in <LOCATION>."
    names = [one["entity_type"] for one in post(service, "/analyze", text="<Anna Smith> lives.", language="en").json()]
    assert "PERSON" in names


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"language": "en"}, "text"),
        ({"text": PERSON}, "language"),
        ({"text": PERSON, "language": "en", "entities": ["US_SSN"]}, "regular expressions"),
        ({"text": PERSON, "language": "en", "entities": ["CREDIT_CARD"]}, "--enable_pii_patterns"),
        ({"text": PERSON, "language": "en", "ad_hoc_recognizers": [{"patterns": []}]}, "ad_hoc_recognizers"),
        ({"text": PERSON, "language": "en", "allow_list": ["a"], "allow_list_match": "regex"}, "allow_list_match"),
        ({"text": PERSON, "language": "en", "context": ["name"]}, "context"),
    ],
    ids=["text", "language", "entity", "pattern", "ad hoc", "regex", "context"],
)
def test_what_needs_presidios_expressions_is_refused(serve: Serve, body: dict[str, Any], field: str) -> None:
    response = post(serve("ner", "v2"), "/analyze", **body)
    assert response.status_code == 400 and field in response.json()["error"], response.text


RESULT = {"start": 0, "end": 4, "entity_type": "PERSON", "score": 0.5}


@pytest.mark.parametrize(
    ("anonymizer", "text"),
    [
        ({"type": "replace", "new_value": "X"}, "X lives"),
        ({"type": "redact"}, " lives"),
        ({"type": "mask", "masking_char": "*", "chars_to_mask": 3, "from_end": True}, "A*** lives"),
        ({"type": "mask", "masking_char": "*", "chars_to_mask": 99, "from_end": False}, "**** lives"),
        ({"type": "keep"}, "Anna lives"),
    ],
    ids=["replace", "redact", "mask", "mask all", "keep"],
)
def test_operators_replace_results(serve: Serve, anonymizer: dict[str, Any], text: str) -> None:
    body = {"text": "Anna lives", "analyzer_results": [RESULT], "anonymizers": {"DEFAULT": anonymizer}}
    assert post(serve("ner", "v2"), "/anonymize", **body).json()["text"] == text


@pytest.mark.parametrize(
    "change",
    [
        {"analyzer_results": [{**RESULT, "end": 99}]},
        {"analyzer_results": [{**RESULT, "start": 5, "end": 4}]},
        {"analyzer_results": [{"start": 0, "end": 1}]},
        {"anonymizers": {"DEFAULT": {"type": "custom"}}},
        {"anonymizers": {"DEFAULT": {"type": "encrypt", "key": "k" * 16}}},
        {"anonymizers": {"DEFAULT": {"type": "mask"}}},
        {"anonymizers": {"DEFAULT": {"type": "hash", "salt": "short"}}},
    ],
    ids=["end", "order", "entity", "custom", "encrypt", "mask", "salt"],
)
def test_a_wrong_field_of_anonymize_is_422(serve: Serve, change: dict[str, Any]) -> None:
    body = {"text": "Anna lives", "analyzer_results": [RESULT], **change}
    response = post(serve("ner", "v2"), "/anonymize", **body)
    assert response.status_code == 422 and response.json().keys() == {"error"}, response.text


def test_items_are_those_of_presidio(serve: Serve) -> None:
    """Its engine, with overlapping, empty and neighbouring results, and results of equal scores."""
    service, cases = serve("ner", "v2"), goldens("presidio_anonymize")["cases"]
    for case in cases:
        assert post(service, "/anonymize", **case["asked"]).json() == case["answer"], case["asked"]
    assert sum(len(case["answer"]["items"]) > 1 for case in cases) > len(cases) / 2


def test_replacements_are_counted_before_they_are_made(serve: Serve) -> None:
    results = [{**RESULT, "start": 2 * index, "end": 2 * index + 1} for index in range(5000)]
    body = {"text": "ab" * 10_000, "analyzer_results": results}
    response = post(
        serve("ner", "v2"),
        "/anonymize",
        **body,
        anonymizers={"DEFAULT": {"type": "replace", "new_value": "x" * 10_000}},
    )
    assert response.status_code == 413 and "--max_total_length" in response.text


# A text of personal data


def hidden(model: str) -> list[tuple[str, dict[str, Any]]]:
    """Routes and bodies with the canary in each field, right and wrong ones."""
    result = {"start": 0, "end": 4, "entity_type": "PERSON", "score": 1.0}
    predict, infer, labels = f"/v1/models/{model}:predict", f"/v2/models/{model}/infer", {}
    bodies: list[tuple[str, dict[str, Any]]] = []
    if model == "gliner":
        labels = {"labels": ["person"]}
        bodies = [
            (predict, {"instances": [{"text": CANARY, "labels": [CANARY]}]}),
            (predict, {"instances": [{"text": CANARY, "labels": [f"{CANARY} <<ENT>>"]}]}),
            (predict, {"instances": [{"text": CANARY, "labels": [CANARY] * 251}]}),
            (predict, {"instances": [{"text": CANARY, "labels": {CANARY: CANARY}}]}),
            (predict, {"instances": [{CANARY: CANARY}], "parameters": labels}),
            (predict, {"instances": [CANARY], "parameters": {"labels": CANARY, "max_width": CANARY}}),
        ]
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [CANARY]}
    return [
        *bodies,
        (predict, {"instances": [CANARY], "parameters": {**labels, "mask": "[{label}]"}}),
        (predict, {"instances": [CANARY], "parameters": {**labels, "mask": CANARY + "{"}}),
        (predict, {"instances": [CANARY], "parameters": {**labels, "mask": [CANARY]}}),
        (infer, {"inputs": [text], "parameters": {**labels, "mask": "[{label}]"}}),
        (infer, {"inputs": [text], "parameters": {**labels, "mask": CANARY + "{"}}),
        ("/analyze", {"text": CANARY, "language": "en"}),
        ("/analyze", {"text": [CANARY, 1], "language": "en"}),
        ("/analyze", {"text": CANARY, "language": "en", "entities": [CANARY]}),
        ("/analyze", {"text": CANARY, "language": "en", "allow_list_match": CANARY}),
        ("/analyze", {"text": CANARY, "language": "en", "context": [CANARY]}),
        ("/analyze", {"text": CANARY, "language": CANARY, "correlation_id": CANARY}),
        ("/anonymize", {"text": CANARY, "analyzer_results": [result]}),
        ("/anonymize", {"text": CANARY, "analyzer_results": [{**result, "end": 10_000}]}),
        ("/anonymize", {"text": CANARY, "analyzer_results": [CANARY]}),
        ("/anonymize", {"text": CANARY, "analyzer_results": [result], "anonymizers": {"DEFAULT": {"type": CANARY}}}),
    ]


@pytest.mark.parametrize("model", ["ner", "gliner"])
def test_no_text_reaches_logs_traces_or_metrics(serve: Serve, model: str) -> None:
    flags = ["--enable_pii_patterns", "--log_level=debug", '--access_log_format=%(m)s %(U)s %(s)s "%(a)s"']
    flags += ["--labels=person"] if model == "gliner" else []
    labels: dict[str, Any] = {"labels": ["person"]} if model == "gliner" else {}
    with collecting() as collector:
        with serve.own(model, "v2", f"--otlp_endpoint={collector.url}", *flags) as service:
            service.wait_until(f"/v1/models/{model}")
            statuses = {post(service, path, **body).status_code for path, body in hidden(model)}
            with stub(service) as methods:
                for mask in ("[{label}]", CANARY + "{"):
                    message = request(model, {"text": [CANARY]}, parameters={**labels, "mask": mask})
                    answered = mask == "[{label}]"
                    with nullcontext() if answered else fails(grpc.StatusCode.INVALID_ARGUMENT, "mask"):
                        methods.ModelInfer(message)
            assert poll(lambda: sum(span.name.endswith("ModelInfer") for span in list(collector.spans)) == 2, 20.0)
            metrics, log = service.client.get("/metrics").text, service.log
        traces = b"".join(collector.bodies).decode("utf-8", "replace")
    assert {200, 400, 422} <= statuses <= {200, 400, 413, 422}
    assert "/analyze" in log and "presidio" in metrics and "/analyze" in traces and "ModelInfer" in traces
    seen = (log + metrics + traces).lower()
    assert "yxomma" not in seen and "etiolatum" not in seen


# Labels in the request


LABELLED = "Anna Smith lives in Berlin and works for Siemens."


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_entities_of_labels_in_the_request_are_masked(serve: Serve, protocol: str) -> None:
    service = serve("gliner", protocol)
    labels = {"labels": ["person", "place", "organization"]}
    [entities] = service.predict([LABELLED], labels)
    assert entities
    answer = masked(service, LABELLED, "<{label}>", **labels)
    assert answer["entities"] == entities
    expected, end = "", 0
    for entity in entities:
        expected += LABELLED[end : entity["start"]] + f"<{entity['label']}>"
        end = entity["end"]
    assert answer["masked_text"] == expected + LABELLED[end:]
    refused = service.post({"instances": [LABELLED], "parameters": {**labels, "mask": "*", "truncation": True}})
    assert (refused.status_code, "truncation" in refused.text) == (400, True)


def test_presidios_analyzer_takes_the_labels_of_the_flag(serve: Serve) -> None:
    service = serve("gliner", "v2", "--labels=person, place")
    [entities] = service.predict([LABELLED], {})
    results = post(service, "/analyze", text=LABELLED, language="en").json()
    assert {(one["start"], one["end"], one["entity_type"]) for one in results} == {
        (entity["start"], entity["end"], {"person": "PERSON", "place": "PLACE"}[entity["label"]]) for entity in entities
    }
    without = serve("gliner", "v2")
    refused = post(without, "/analyze", text=LABELLED, language="en")
    assert (refused.status_code, "--labels" in refused.text) == (400, True)
