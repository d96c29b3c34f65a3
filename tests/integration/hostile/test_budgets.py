"""Fields that multiply: each route has a body whose product is refused before memory is taken for it.

docs/limits.md has the table of the multiplications. A new POST route needs a row here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.api.document.table import served
from tests.integration.conftest import Serve
from tests.integration.hostile.conftest import MEGABYTE

FLAGS = (
    *("--max_window_tokens=20000", "--max_answer_values=100000", "--max_bytes_in_flight=16777216"),
    *("--predictor_shared_memory=off", "--enable_token_inputs"),
)
"""Limits that small bodies exceed."""
CHAT = "--chat_template={% for message in messages %}{{ message.content }}{% endfor %}"
MAX_GROWTH_BYTES = 48 * MEGABYTE
"""Memory for a body, its parsed form and its copies: the products below would take hundreds of megabytes."""

LONG, TEXTS = "q" * 40_000, ["a"] * 2049
RESULTS = [{"start": index, "end": index + 1, "entity_type": str(index), "score": 1} for index in range(4000)]
LONG_VALUE = {"DEFAULT": {"type": "replace", "new_value": LONG}}
LABELS, LONG_LABELS = [f"a{number}" for number in range(40)], [f"{number:0>200}" for number in range(250)]
EVERYTHING = {"labels": LABELS, "threshold": 0, "flat_ner": False, "multi_label": True, "max_width": 100}
EMBEDDING, RERANK, CLASSES, GENERATION = "minibert_mean", "cross", "sentiment", "gpt2_logits"
COPIES, LENGTH, SEQUENCES = "--max_total_length", "--max_text_length", "--max_sequences"
VALUES, WINDOWS, BYTES = "--max_answer_values", "--max_window_tokens", "--max_bytes_in_flight"
RANKED = {"query": "a", "documents": [{"t": "x" * 40_000}], "rank_fields": ["t"] * 8000}
MASKS = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["[MASK] " * 40]}],
    "parameters": {"return_probabilities": True},
}
QUESTION = {"question": "a " * 100, "context": "a " * 2000}
ONE_TOKEN = {"index": 0, "token_ids": [5]}
DERENDERED = [{"index": 0, "token_ids": [5] * 250}] * 450
ASKED = {"messages": [{"role": "user", "content": "a"}]}
GENERATE = {"text_input": LONG, "parameters": {"n": 128}}


@dataclass(frozen=True, slots=True)
class Row:
    """A body, the model that gets it, the status, and the flag or field that the message names."""

    model: str
    body: Any
    says: str
    status: int = 413


ROWS: Mapping[str, Sequence[Row]] = {
    "/v1/models/{model}:predict": (
        Row(RERANK, {"instances": [{"query": LONG, "texts": ["a"] * 2048}]}, COPIES),
        Row(RERANK, {"instances": [{"query": "a", "texts": ["b"] * 100_000}]}, SEQUENCES),
        Row("nli", {"instances": TEXTS, "parameters": {"candidate_labels": [*"abc"]}}, "--max_instances"),
        Row("nli", {"instances": ["a"] * 1000, "parameters": {"candidate_labels": [*"abc"]}}, SEQUENCES),
        Row("nli", {"instances": [LONG] * 2, "parameters": {"candidate_labels": [*map(str, range(1000))]}}, COPIES),
        Row("squad", {"instances": [QUESTION], "parameters": {"doc_stride": 24, "max_seq_len": 128}}, WINDOWS),
        Row("ner", {"instances": ["a " * 2000], "parameters": {"stride": 125}}, WINDOWS),
        Row("ner", {"instances": ["a " * 4000], "parameters": {"stride": 125}}, SEQUENCES),
        Row("gliner", {"instances": ["a " * 8000], "parameters": {"labels": LABELS, "stride": 20}}, WINDOWS),
        Row("gliner", {"instances": [{"text": "a", "labels": LABELS}] * 2049}, "--max_instances"),
        Row("gliner", {"instances": ["a"] * 200, "parameters": {"labels": LONG_LABELS}}, COPIES),
        Row("gliner", {"instances": ["a " * 100] * 40, "parameters": EVERYTHING}, VALUES),
        Row("gliner_token", {"instances": ["a " * 100] * 40, "parameters": EVERYTHING}, VALUES),
        Row("gliner", {"instances": ["a " * 100] * 40, "parameters": {**EVERYTHING, "mask": "x" * 100}}, VALUES),
        Row(EMBEDDING, {"instances": ["a"], "ignored": ["b"] * 300_000}, BYTES),
        Row(EMBEDDING, {"instances": [{"chunks": ["a"] * 4096}] * 40}, VALUES),
        Row("bert", {"instances": ["[MASK] " * 100] * 9, "parameters": {"return_probabilities": True}}, VALUES),
        Row(GENERATION, {"instances": ["a"] * 20, "parameters": {"num_return_sequences": 128}}, SEQUENCES),
        Row(GENERATION, {"instances": [LONG], "parameters": {"num_return_sequences": 128}}, COPIES),
    ),
    "/v1/models/{model}:tokenize": (Row("bert", {"instances": ["a " * 20_000]}, VALUES),),
    "/v1/models/{model}:detokenize": (Row("bert", {"instances": [[1] * 110_000]}, VALUES),),
    "/v2/models/{model}/infer": (
        Row("bert", MASKS, BYTES),
        Row("bert", {**MASKS, "ignored": "a" * 7_000_000 + "\U0001f600"}, BYTES),
    ),
    "/v2/models/{model}/versions/{version}/infer": (Row("bert", MASKS, BYTES),),
    "/v2/models/{model}/generate": (Row(GENERATION, GENERATE, COPIES),),
    "/v2/models/{model}/generate_stream": (Row(GENERATION, GENERATE, COPIES),),
    "/v2/models/{model}/versions/{version}/generate": (Row(GENERATION, GENERATE, COPIES),),
    "/v2/models/{model}/versions/{version}/generate_stream": (Row(GENERATION, GENERATE, COPIES),),
    "/openai/v1/completions": (
        Row(GENERATION, {"prompt": LONG, "n": 128, "echo": True, "max_tokens": 0}, COPIES),
        Row(GENERATION, {"prompt": ["a"] * 20, "n": 128}, SEQUENCES),
        Row(GENERATION, {"prompt": "a " * 100, "n": 100, "prompt_logprobs": 20}, VALUES),
    ),
    "/openai/v1/chat/completions": (
        Row(GENERATION, {"messages": [{"role": "user", "content": LONG}], "n": 128}, COPIES),
    ),
    "/openai/v1/responses": (Row(GENERATION, {"input": "a" * 250_001}, LENGTH, 400),),
    **dict.fromkeys(
        ("/openai/v1/embeddings", "/embeddings", "/v1/embeddings", "/infinity/embeddings"),
        (
            Row(EMBEDDING, {"input": TEXTS}, SEQUENCES),
            Row(EMBEDDING, {"input": ["a"] * 4096, "late_chunking": True}, SEQUENCES),
        ),
    ),
    **dict.fromkeys(
        ("/openai/v1/rerank", "/rerank", "/v1/rerank", "/infinity/rerank"),
        (
            Row(RERANK, RANKED, "rank_fields", 400),
            Row(RERANK, {"query": LONG, "documents": ["a"] * 2048}, COPIES),
        ),
    ),
    "/analyze": (
        Row("ner", {"text": TEXTS, "language": "en"}, SEQUENCES),
        Row("ner", {"text": "a " * 20_000, "language": "en"}, WINDOWS),
        Row("ner", {"text": "1-" * 125_001, "language": "en"}, LENGTH, 400),
    ),
    "/anonymize": (Row("ner", {"text": "a" * 5000, "analyzer_results": RESULTS, "anonymizers": LONG_VALUE}, COPIES),),
    "/openai/v1/moderations": (Row(CLASSES, {"input": TEXTS}, SEQUENCES),),
    **dict.fromkeys(("/embed", "/embed_all", "/embed_sparse"), (Row(EMBEDDING, {"inputs": TEXTS}, SEQUENCES),)),
    "/similarity": (Row(EMBEDDING, {"inputs": {"source_sentence": "a", "sentences": TEXTS}}, SEQUENCES),),
    "/predict": (Row(CLASSES, {"inputs": [["a"]] * 2049}, SEQUENCES),),
    **dict.fromkeys(("/", "/invocations"), (Row(EMBEDDING, {"inputs": TEXTS}, SEQUENCES),)),
    "/vertex": (
        Row("nli", {"instances": [{"inputs": "a", "parameters": {"candidate_labels": [*"abcd"]}}] * 600}, SEQUENCES),
        Row(RERANK, {"instances": [{"inputs": [["a", "b"]] * 500}] * 25}, "--max_"),
        Row(EMBEDDING, {"instances": [{"inputs": ["a"] * 500}] * 25}, "--max_"),
        Row(RERANK, {"instances": [{"query": LONG, "texts": ["a"] * 60}] * 25}, "--max_total_length"),
    ),
    "/tokenize": (
        Row("bert", {"inputs": ["a " * 20_000]}, VALUES),
        Row(GENERATION, {"prompt": "a " * 60_000}, VALUES),
    ),
    "/decode": (Row("bert", {"ids": [[1] * 110_000]}, VALUES),),
    "/v1/embed": (Row(EMBEDDING, {"texts": TEXTS, "input_type": "search_query"}, SEQUENCES),),
    "/v2/embed": (Row(EMBEDDING, {"texts": TEXTS, "input_type": "search_query"}, SEQUENCES),),
    "/v2/rerank": (Row(RERANK, {"query": LONG, "documents": ["a"] * 2048}, COPIES),),
    "/v1/multi-vector": (Row("colbert", {"input": TEXTS}, SEQUENCES),),
    "/v1/contextualizedembeddings": (Row(EMBEDDING, {"inputs": [["a"] * 2000] * 100}, VALUES),),
    **dict.fromkeys(("/score", "/v1/score"), (Row(RERANK, {"text_1": LONG, "text_2": ["a"] * 2048}, COPIES),)),
    **dict.fromkeys(("/classify", "/v1/classify"), (Row(CLASSES, {"input": TEXTS}, SEQUENCES),)),
    **dict.fromkeys(("/pooling", "/v1/pooling"), (Row(EMBEDDING, {"input": TEXTS}, SEQUENCES),)),
    "/detokenize": (Row("bert", {"tokens": [1] * 110_000}, VALUES),),
    "/generative_scoring": (
        Row(GENERATION, {"query": "a " * 20_000, "items": ["b"] * 200, "label_token_ids": [1]}, COPIES),
        Row(GENERATION, {"query": "a", "items": ["b"] * 600, "label_token_ids": [*range(200)]}, VALUES),
    ),
    "/v1/completions/render": (
        Row(GENERATION, {"prompt": ["a"] * 2000, "stop": ["x" * 20_000]}, "--max_request_bytes"),
    ),
    "/v1/chat/completions/render": (
        Row(GENERATION, {"messages": [{"role": "user", "content": "a" * 250_001}]}, LENGTH, 400),
    ),
    **dict.fromkeys(
        ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/render"),
        (Row(GENERATION, {"max_tokens": 1, "messages": [{"role": "user", "content": "a" * 250_001}]}, LENGTH, 400),),
    ),
    "/v1/responses/render": (Row(GENERATION, {"input": "a" * 250_001}, LENGTH, 400),),
    "/v1/chat/completions/derender": (
        Row(GENERATION, {"generate_response": {"choices": DERENDERED}, "chat_request": ASKED}, VALUES),
        Row(GENERATION, {"generate_response": {"choices": [ONE_TOKEN] * 3000}}, "--max_instances"),
    ),
    "/v1/completions/derender": (
        Row(GENERATION, {"generate_responses": [{"choices": DERENDERED}]}, VALUES),
        Row(GENERATION, {"generate_responses": [{"choices": [ONE_TOKEN] * 20}] * 110}, "--max_instances"),
    ),
    "/v1/ranking": (Row(RERANK, {"query": {"text": LONG}, "passages": [{"text": "a"}] * 2048}, COPIES),),
}
NOTHING_TO_MULTIPLY = {"/v2/repository/index", "/v2/repository/models/{model}/load"} | {
    "/v2/repository/models/{model}/unload"
}
CASES = [(path, row) for path, rows in ROWS.items() for row in rows]


def test_every_route_has_a_row() -> None:
    paths = {one.path for one in served("/openai") if one.method == "post"}
    assert paths == ROWS.keys() | NOTHING_TO_MULTIPLY


@pytest.mark.parametrize(("path", "row"), CASES, ids=[f"{path}-{row.model}-{row.says}" for path, row in CASES])
def test_a_product_is_refused_before_it_is_made(serve: Serve, path: str, row: Row) -> None:
    flags = (*FLAGS, CHAT) if row.model == GENERATION else FLAGS
    service = serve(row.model, "v2", *flags)
    url = path.format(model=row.model, version="1")
    assert service.client.get("/v1/models").status_code == 200
    Path(f"/proc/{service.process.pid}/clear_refs").write_text("5")  # the peak begins anew
    before = service.peak_bytes
    response = service.client.post(url, json=row.body)
    assert (response.status_code, row.says in response.text) == (row.status, True), response.text[:500]
    assert service.peak_bytes - before < MAX_GROWTH_BYTES


WINDOWED = {"instances": [QUESTION], "parameters": {"doc_stride": 24, "max_seq_len": 128}}


def test_windows_of_many_requests_are_admitted_before_they_are_cut(serve: Serve) -> None:
    """Each request has 250,000 tokens in 4,500 bytes; together they would have ten million."""
    service = serve("squad", "v2", "--max_queued_tokens=100000", "--predictor_shared_memory=off")
    assert service.post({"instances": [{"question": "Who?", "context": "Anna works there."}]}).status_code == 200
    before = service.peak_bytes
    with ThreadPoolExecutor(40) as pool:
        statuses = [one.status_code for one in pool.map(lambda _: service.post(WINDOWED), range(40))]
    assert set(statuses) <= {200, 429} and statuses.count(429) > 20
    assert service.peak_bytes - before < 200 * MEGABYTE
    assert service.metric("hf_transformer_tokens_in_flight") == 0
