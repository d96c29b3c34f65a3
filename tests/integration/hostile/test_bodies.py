"""JSON bodies of hostile clients. tests/protocol/test_json_text.py has bodies that are not JSON."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.hostile.conftest import MEGABYTE
from tests.integration.hostile.hostile_predictor import HostilePredictor, behind
from tests.support.raw_http import ANSWER, BODY, PREDICT, TEXT
from tests.support.service import Service

INFER = "/v2/models/bert/infer"
LONGEST_ERROR = 4096
"""Bytes of an answer that says what is wrong: it does not give back megabytes of what it got."""


def with_keys(**more: Any) -> bytes:
    """A good body with further keys."""
    return json.dumps({"instances": [TEXT], **more}).encode()


def top_k(value: str) -> bytes:
    return b'{"instances": ["a"], "parameters": {"output_format": "pipeline", "top_k": %b}}' % value.encode()


def v2(data: str, **changes: Any) -> bytes:
    tensor = json.dumps({"name": "text", "datatype": "BYTES", "shape": [1], **changes})
    return f'{{"inputs": [{tensor[:-1]}, "data": {data}}}]}}'.encode()


BAD = {
    "parameters 190 deep": (PREDICT, top_k("[" * 190 + "]" * 190), 400, "parameters.top_k: expected a whole number"),
    "parameters 500 deep": (
        PREDICT,
        top_k("[" * 500 + "]" * 500),
        413,
        "body: expected lists and objects nested at most 200 deep",
    ),
    "2**70 as a parameter": (PREDICT, top_k(str(2**70)), 400, "parameters.top_k: expected a whole number"),
    "minus 2**63 as a parameter": (PREDICT, top_k(str(-(2**63))), 400, "parameters.top_k"),
    "a key of 60 kB": (PREDICT, json.dumps({"x" * 60_000: 1}).encode(), 400, "the keys x"),
    "an instance's key of 60 kB": (PREDICT, with_keys(instances=[{"x" * 60_000: 1}]), 400, "instances[0]"),
    "a parameter's name of 60 kB": (PREDICT, with_keys(parameters={"x" * 60_000: 1}), 400, "parameters.x"),
    "a parameter of 60 kB": (PREDICT, with_keys(parameters={"output_format": "x" * 60_000}), 400, "output_format"),
    "1,000 parameters": (
        PREDICT,
        with_keys(parameters={f"p{number}": 1 for number in range(1000)}),
        400,
        "parameters.p0",
    ),
    "V2 a datatype of 60 kB": (INFER, v2('["a"]', datatype="x" * 60_000), 400, "datatype"),
}


def test_broken_bodies_get_their_documented_status_and_a_short_error(service: Service) -> None:
    for name, (path, body, status, says) in BAD.items():
        response = service.client.post(path, content=body)
        assert response.status_code == status, (name, response.text[:500])
        assert list(response.json()) == ["error"]
        assert says in response.json()["error"], name
        assert len(response.content) < LONGEST_ERROR


ODD = {
    "\0": r"\u0000",
    "\ufffd": r"\ufffd",
    "\ufeff": r"\ufeff",
    "\u202e": r"\u202e",
    "\U0001f600": r"\ud83d\ude00",
    "\uffff": r"\uffff",
}
"""NUL, a replacement character, a byte order mark, a switch of direction, a pair of surrogates, and no character."""


def test_unusual_characters_are_text_like_any_other(service: Service) -> None:
    """They are in a text like any other; escaped and as UTF-8 they are the same."""
    for text, as_json in ODD.items():
        escaped = f'{{"instances": ["{as_json} {TEXT}"]}}'.encode()
        answer = service.client.post(PREDICT, content=escaped)
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"] == service.predict([f"{text} {TEXT}"])


def test_the_last_of_duplicate_keys_counts(service: Service) -> None:
    """As in most parsers of JSON (RFC 8259, 4)."""
    other = '"instances": ["[MASK] is the capital of italy."]'
    body = f'{{{other}, "instances": [{json.dumps(TEXT)}]}}'.encode()
    assert service.client.post(PREDICT, content=body).content == ANSWER


@pytest.mark.parametrize("unit", ["the hotel was dirty ", "a ", "."])
def test_a_text_of_a_million_characters_needs_little_memory(unit: str) -> None:
    """Only the beginning that the model takes is encoded. Whole, one took 80 to 430 MB."""
    body = json.dumps({"instances": ["[MASK] " + (unit * 1_000_000)[:999_993]]}).encode()
    flags = ["--max_text_length=1000000", "--max_total_length=100000000", "--max_queued_tokens=100000000"]
    flags.append("--predictor_shared_memory=off")  # its 64 MiB come with the first answer, at some moment
    with HostilePredictor() as predictor, behind(predictor, *flags) as service, ThreadPoolExecutor(10) as pool:
        # The first answer, and the first text in a thread, take memory of their own.
        warm = json.dumps({"instances": ["[MASK] " + (unit * 70_000)[:70_000]]}).encode()
        assert {service.post(one).status_code for one in (BODY, warm)} == {200}
        before = service.peak_bytes
        for at_once in (1, 10):
            assert {one.status_code for one in pool.map(service.post, [body] * at_once)} == {200}
            assert service.peak_bytes - before < 12 * MEGABYTE * at_once
