"""Tokenize and detokenize over HTTP, against AutoTokenizer, and against what the predict route does with the ids."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
import transformers

from tests.goldens.hard_texts import HARD_TEXTS
from tests.integration.conftest import MODEL_FOLDER, Serve, message_of
from tests.integration.test_errors import LIMITS
from tests.support.service import Service

TEXTS = list(HARD_TEXTS.values())
LENGTH = 128
"""Tokens that the demo model takes."""
LONG = "The cat sleeps on the sofa. " * 60


@pytest.fixture(scope="module")
def auto() -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(MODEL_FOLDER), local_files_only=True)


@pytest.fixture
def mini(serve: Serve) -> Service:
    return serve("minibert_mean")


def ask(service: Service, verb: str, instances: Any, **parameters: Any) -> httpx.Response:
    body = {"instances": instances, "parameters": parameters}
    return service.client.post(f"/v1/models/{service.model}:{verb}", json=body)


def answers(service: Service, verb: str, instances: Any, **parameters: Any) -> Any:
    response = ask(service, verb, instances, **parameters)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()["predictions"]


def test_tokens_and_texts_are_those_of_auto_tokenizer(serve: Serve, auto: Any) -> None:
    service = serve("bert")
    tokenized = answers(service, "tokenize", TEXTS)
    assert len(tokenized) == len(TEXTS)
    for text, tokens in zip(TEXTS, tokenized, strict=True):
        wanted = auto(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        assert tokens["ids"] == wanted["input_ids"]
        assert tokens["tokens"] == auto.convert_ids_to_tokens(wanted["input_ids"])
        assert tokens["offsets"] == [list(pair) for pair in wanted["offset_mapping"]]
        assert tokens["special_tokens_mask"] == wanted["special_tokens_mask"]
        assert tokens["type_ids"] == wanted["token_type_ids"]
        assert (tokens["count"], tokens["max_length"]) == (len(tokens["ids"]), LENGTH)
        assert tokens["kept"] == len(auto(text, truncation=True, max_length=LENGTH)["input_ids"])
        assert tokens["truncated"] == tokens["count"] - tokens["kept"]
        assert "sequence_ids" not in tokens
    cut = [result["truncated_text"] for result in tokenized]
    assert [None] in cut and any(span != [None] for span in cut)
    for skip in (False, True):
        texts = answers(service, "detokenize", [result["ids"] for result in tokenized], skip_special_tokens=skip)
        assert texts == [auto.decode(result["ids"], skip_special_tokens=skip) for result in tokenized]


def test_pairs_are_tokenized_as_by_auto_tokenizer(serve: Serve, auto: Any) -> None:
    service = serve("bert")
    pair = {"text": "Anna lives in Berlin.", "text_pair": LONG}
    [tokens, plain] = answers(service, "tokenize", [pair, {"text": "Anna"}])
    wanted = auto(pair["text"], pair["text_pair"], return_offsets_mapping=True, verbose=False)
    assert (tokens["ids"], tokens["type_ids"]) == (wanted["input_ids"], wanted["token_type_ids"])
    assert (tokens["sequence_ids"], tokens["kept"]) == (wanted.sequence_ids(0), LENGTH)
    first, second = tokens["truncated_text"]
    assert first is None
    short = auto(*pair.values(), truncation=True, max_length=LENGTH, return_offsets_mapping=True)
    last = short["offset_mapping"][-2][1]
    assert LONG[last : second[0]].strip() == "" and second[1] == len(LONG.rstrip())
    assert plain["ids"] == auto("Anna")["input_ids"]
    response = service.client.post("/v1/models/bert:tokenize", json={"inputs": "Anna"})
    assert response.json() == {"predictions": [plain]}


def test_ids_have_the_embedding_of_their_text(mini: Service) -> None:
    texts = [text for text in TEXTS if text != HARD_TEXTS["very_long"]]
    for parameters in ({}, {"prompt_name": "query"}):
        tokenized = answers(mini, "tokenize", texts, **parameters)
        fits = [index for index, one in enumerate(tokenized) if not one["truncated"]]
        assert len(fits) > 30
        vectors = mini.predict([texts[index] for index in fits], parameters)
        again = mini.predict([{"token_ids": tokenized[index]["ids"]} for index in fits])
        assert np.abs(np.array(vectors) - np.array(again)).max() <= 1e-5


def test_the_text_before_the_cut_has_the_embedding_of_the_whole(mini: Service) -> None:
    """The text up to there has the embedding of the whole."""
    [tokens] = answers(mini, "tokenize", LONG)
    [[start, end]] = tokens["truncated_text"]
    assert (tokens["kept"], end) == (tokens["max_length"], len(LONG.rstrip()))
    [short] = answers(mini, "tokenize", LONG[:start])
    assert (short["count"], short["truncated"]) == (tokens["kept"], 0)
    whole, part = np.array(mini.predict([LONG, LONG[:start]]))
    assert np.abs(whole - part).max() <= 1e-5


BAD: list[tuple[str, Any, str]] = [
    ("tokenize", b"{", "expected JSON in UTF-8"),
    ("tokenize", {"instances": ["a", 7]}, "instances[1]: expected a string"),
    (
        "tokenize",
        {"instances": ["a"], "parameters": {"truncation": True}},
        "parameters.truncation: expected one of add_special_tokens",
    ),
    ("detokenize", {"instances": ["a"]}, "instances[0]: expected a list of token ids"),
    ("detokenize", {"instances": [[2], [3, 10**6]]}, "instances[1]: expected token ids from 0 to"),
    (
        "detokenize",
        {"instances": [[2]], "parameters": {"skip": True}},
        "parameters.skip: expected one of skip_special_tokens",
    ),
]
TOO_MUCH: list[tuple[str, Any, str]] = [
    ("tokenize", ["a"] * 4, "instances: expected at most 3 in a request (--max_instances), got 4"),
    ("tokenize", ["a", "a" * 101], "instances[1]: expected at most 100 characters (--max_text_length), got 101"),
    ("tokenize", ["a " * 50] * 3, "instances: expected at most 142 tokens in a request"),
    ("detokenize", [[2]] * 4, "--max_instances"),
    ("detokenize", [[2] * 101], "--max_text_length"),
]


def test_wrong_requests_are_400_and_those_over_a_limit_413(serve: Serve) -> None:
    client = serve("bert").client
    for verb, body, says in BAD:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert says in message_of(client.post(f"/v1/models/bert:{verb}", content=content))
    limited = serve("bert", "v2", *LIMITS)
    for verb, instances, says in TOO_MUCH:
        assert says in message_of(ask(limited, verb, instances), 413)
    assert limited.metric('hf_transformer_requests_total{api="tokenize",status="413"}') >= 3
    counts = answers(limited, "tokenize", ["a " * 50] * 3, return_tokens=False)
    assert limited.metric('hf_transformer_requests_total{api="tokenize",status="200"}') >= 1
    assert [(one["count"], one["kept"], one["truncated_text"]) for one in counts] == [(52, 32, [[60, 99]])] * 3
