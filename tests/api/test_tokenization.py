"""Requests and responses of the tokenize and detokenize routes; tests/integration has the routes themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.api.tokenize import PreparedText, check_ids, read_lists, read_tokenize
from hf_transformer.api.v1_tokenize import render
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Query
from hf_transformer.types.tokenization import TokenIds, Tokenization

FOLDER = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"
WHOLE = Tokenization(detail=True, whole=True)
PROMPTS = {"query": "Query: ", "none": ""}
TURKISH = "\u0130n \u0130stanbul \u0130 \u0130\u0130 Paris"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(FOLDER, {})


def read(
    tokenizer: Tokenizer, *instances: Any, files: SentenceTransformers | None = None, **given: Any
) -> tuple[list[PreparedText], Tokenization]:
    task = (TextEmbedding if files else FillMask)(TaskSettings({}, tokenizer, sentence_transformers=files))
    return read_tokenize(Query(instances, given), task)


def rendered(tokenizer: Tokenizer, texts: Sequence[PreparedText]) -> Any:
    encodings = [one for [one] in tokenizer.encode_windows([text.prepared for text in texts], WHOLE)]
    return json.loads(render(texts, encodings, tokenizer.max_length))["predictions"]


@pytest.mark.parametrize(
    ("instance", "parameters", "says"),
    [
        (["a", "b"], {}, r"instances\[1\]: .*a pair of texts is an object, not a list"),
        ({"text": 1}, {}, r"instances\[1\]\.text: expected a string, got a number"),
        ("a", {"add_special_tokens": 1}, r"parameters\.add_special_tokens: expected true or false, got a number"),
        ("a", {"return_tokens": "no"}, r"parameters\.return_tokens: expected true or false, got a string"),
        ("a", {"prompt": "a"}, r"parameters\.prompt: expected one of add_special_tokens"),
    ],
)
def test_invalid_tokenize_requests_name_the_field(
    tokenizer: Tokenizer, instance: Any, parameters: Any, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        read(tokenizer, "a", instance, **parameters)


@pytest.mark.parametrize(
    ("instance", "says"),
    [
        ({"ids": [2]}, r"instances\[3\]: .* the keys ids"),
        ([2, 3, -1], r"instances\[3\]: expected token ids from 0 to \d+, got -1 at index 2"),
        ([2, 10**30], r"instances\[3\]: expected token ids from 0 to \d+, got 10+ at index 1"),
        ([True], r"instances\[3\]: .*got a boolean at index 0"),
        ([2, 3.0], r"instances\[3\]: .*got a number at index 1"),
    ],
)
def test_invalid_ids_are_named(tokenizer: Tokenizer, instance: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        texts = read_lists(Query([[2], {"token_ids": [tokenizer.vocab_size - 1]}, [], instance], {}))
        check_ids(texts, "instances", tokenizer)


def test_unused_ids_of_a_vocabulary_are_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some vocabularies have gaps."""
    monkeypatch.setattr(tokenizer, "id_to_token", {2: "[CLS]", 4: "[MASK]"}.get)
    with pytest.raises(InvalidInput, match=r"^instances\[0\]\[2\]: expected the id of a token, got 3$"):
        check_ids([TokenIds((2, 4, 3))], "instances", tokenizer)


@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize("text", ["Paris is the capital", TURKISH, ""])
@pytest.mark.parametrize("prompt", ["Query: ", "\u0130\u0130 ", ""])
def test_offsets_are_in_the_client_s_text(tokenizer: Tokenizer, text: str, prompt: str, lower_case: bool) -> None:
    """A prompt's tokens have the offset (0, 0); others have the offsets of the text without the prompt."""
    files = SentenceTransformers(prompts={"query": prompt}, default_prompt_name="query", lower_case=lower_case)
    texts, _ = read(tokenizer, text, files=files)
    whole = prompt + text
    assert texts[0].prepared == (whole.lower() if lower_case else whole)
    [with_prompt], [plain] = rendered(tokenizer, texts), rendered(tokenizer, [PreparedText(text, text)])
    front = with_prompt["count"] - plain["count"]
    assert with_prompt["ids"][1 + front :] == plain["ids"][1:]
    assert with_prompt["offsets"][1 + front :] == plain["offsets"][1:]
    assert with_prompt["offsets"][: 1 + front] == [[0, 0]] * (1 + front)


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("text", ["a b \u0130 c d", "a b c d"])
def test_truncated_text_is_in_the_client_s_text(tokenizer: Tokenizer, text: str, name: str) -> None:
    texts, _ = read(tokenizer, text, files=SentenceTransformers(prompts=PROMPTS, lower_case=True), prompt_name=name)
    front = len(tokenizer.encode([PROMPTS[name].lower()])[0]) - 2
    [found] = rendered(tokenizer.with_max_length(2 + front + 2), texts)
    assert (found["kept"], found["truncated_text"]) == (4 + front, [[4, len(text)]])
