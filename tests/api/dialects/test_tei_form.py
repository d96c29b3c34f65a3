"""Bodies, headers and errors of text-embeddings-inference, without a model."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import orjson
import pytest

from hf_transformer.api.dialects import tei, tei_form
from hf_transformer.errors import (
    CallersDeadline,
    EmptyList,
    InvalidInput,
    NotReady,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
    TooLarge,
    TooManyRequests,
    UnknownModel,
    UnsupportedEncoding,
)
from hf_transformer.types.request import Context
from tests.support.budgets import few


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidInput("inputs", "a text", "a number"), 422, "Validation"),
        (EmptyList("inputs", "a text"), 400, "Empty"),
        (InvalidInput("body", "JSON"), 400, "Validation"),
        (InvalidInput("model", "a model for rerank"), 424, "Backend"),
        (InvalidInput("representations", "one of dense"), 424, "Backend"),
        (InvalidInput("prompt_name", "one of query", "'none'"), 413, "Validation"),
        (InvalidInput(("instances", 1, "dimensions"), "at most 32", "64"), 413, "Validation"),
        (TooLarge(("inputs", 0), "at most 128 tokens", "more"), 413, "Validation"),
        (TooLarge("inputs", "at most 8 in a request", "9"), 413, "Validation"),
        (TooLarge("body", "at most 9 bytes", "more"), 413, "Validation"),
        (UnknownModel("model", "a served model"), 404, "Validation"),
        (UnsupportedEncoding("Content-Encoding"), 415, "Validation"),
        (TooManyRequests("full"), 429, "Overloaded"),
        (NotReady("not yet"), 503, "Unhealthy"),
        (PredictorUnavailable("down"), 503, "Unhealthy"),
        (PredictorError("failed"), 424, "Backend"),
        (PredictorDenied("no"), 424, "Backend"),
        (PredictorTimeout("slow"), 424, "Backend"),
        (CallersDeadline("late"), 504, "Backend"),
        (RequestError("a fault"), 500, "Backend"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_the_original_s_status_and_type(error: RequestError, status: int, kind: str) -> None:
    assert tei_form.status_of(error) == status
    assert orjson.loads(tei_form.render_error(error, status)) == {"error": str(error), "error_type": kind}


@pytest.mark.parametrize(("status", "kind"), [(401, "Validation"), (405, "Validation"), (408, "Validation")])
def test_an_error_of_the_server_has_the_type_of_its_status(status: int, kind: str) -> None:
    assert orjson.loads(tei_form.render_error(RequestError("no"), status))["error_type"] == kind


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("a", ([("a",)], True)),
        (["a"], ([("a",)], True)),
        (["a", "b"], ([("a", "b")], True)),
        ([["a"]], ([("a",)], False)),
        ([["a"], ["b", "c"]], ([("a",), ("b", "c")], False)),
    ],
)
def test_sequences_are_texts_pairs_or_lists_of_both(inputs: Any, expected: Any) -> None:
    assert tei_form.read_sequences(inputs, few(2)) == expected


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (None, "inputs: expected a text, a pair"),
        ([], "got an empty list"),
        (["a", "b", "c"], "inputs: expected at most 2 elements, got 3"),
        (["a", ["b"]], r"inputs\[1\]: expected a text, got a list"),
        ([["a"], "b"], r"inputs\[1\]: expected \[text\] or \[text, text\], got a string"),
        ([["a"], [1]], r"inputs\[1\]\[0\]: expected a text, got a number"),
        ([["a"], []], r"inputs\[1\]: expected \[text\] or \[text, text\], got an empty list"),
        ([["a"]] * 3, "inputs: expected at most 2 in a request"),
    ],
)
def test_other_sequences_are_refused(inputs: Any, says: str) -> None:
    with pytest.raises((InvalidInput, TooLarge), match=says):
        tei_form.read_sequences(tei.PREDICT.read({"inputs": inputs}).inputs, few(2))


def test_inputs_are_texts_and_token_ids() -> None:
    assert tei_form.read_inputs("a", few(2)) == ["a"]
    assert tei_form.read_inputs([1, 2, 3], few(2)) == [{"token_ids": [1, 2, 3]}]
    assert tei_form.read_inputs([[1], "a"], few(2)) == [{"token_ids": [1]}, "a"]
    with pytest.raises(TooLarge):
        tei_form.read_inputs(["a"] * 3, few(2))


def test_fields_become_the_task_s_parameters() -> None:
    context = Context("id", {})
    fields = {"inputs": "a", "truncate": True, "truncation_direction": "Left", "normalize": None, "More\n": 1}
    body = tei_form.read(tei.EMBED, fields, context)
    sent = {"truncation": True, "truncation_side": "left", "normalize": True}
    assert tei_form.read_options(tei.EMBED, body) == sent
    assert context.ignored == ["More_"], "a name is made valid in a header"
    right = tei.EMBED_ALL.read({"inputs": "a", "truncation_direction": "Right"})
    sent = {"truncation_side": "right"}
    assert tei_form.read_options(tei.EMBED_ALL, right) == sent, "also for a tokenizer that cuts the left side"
    for direction in ("up", ["left"], 1):
        with pytest.raises(InvalidInput, match="truncation_direction: expected left or right"):
            tei.EMBED.read({"inputs": "a", "truncation_direction": direction})


def test_paths_of_the_task_become_fields() -> None:
    name = tei.RERANK.client_names({}).then(tei.RERANK_NAMES)
    assert name(("parameters", "truncation")) == ("truncate",)
    assert name(("parameters", "return_documents")) == ("return_text",)
    assert name(("texts", 0, "texts", 3)) == ("texts", 3) and name(("texts", 1)) == ("texts", 1)


def test_spans_count_bytes() -> None:
    spans = [(0, 1), (1, 3), (3, 3), (2, 4)]
    for text in ("abcd", "aé😀d"):
        found = tei_form.byte_spans(text, spans)
        pieces = [text.encode()[start:stop].decode() for start, stop in found]
        assert pieces == [text[start:stop] for start, stop in spans]


def test_headers_are_whole_milliseconds() -> None:
    context = Context("id", {})
    context.arrived, context.tokenize, context.queue, context.predict = perf_counter() - 1, 0.0015, 0.002, 0.0121
    headers = {name.decode(): value.decode() for name, value in tei_form.compute_headers(7, 5, context)}
    assert 1000 <= int(headers.pop("x-total-time")) == int(headers.pop("x-compute-time"))
    assert headers == {
        "x-compute-type": "triton",
        "x-compute-characters": "7",
        "x-compute-tokens": "5",
        "x-tokenization-time": "1",
        "x-queue-time": "2",
        "x-inference-time": "10",
    }
