"""Late chunking against the formula of the paper: the mean of a span's token vectors, from one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, Tokenization
from tests.support.triton_repository import DEMO_MODEL, task_model_folder

CHUNKS = ["Berlin is the capital of Germany.", "The city has museums!", "It's unaffordable, they say", "so."]
TEXT = "Berlin is the capital of Germany. The city has museums! It's unaffordable, they say so."
PLACES = [[0, 33], [34, 55], [56, 83], [84, 87]]
NAMES = ["minibert_mean", "ner_roberta"]
"""Models with a tokenizer that leaves spaces out, and one whose tokens begin with the space before them."""
DIMENSIONS = 3


@cache
def tokenizer_of(name: str, length: int) -> Tokenizer:
    folder = DEMO_MODEL if name == "demo" else task_model_folder(name)
    return load_tokenizer(folder, {}, max_model_len=length)


def make_task(
    tokenizer: Tokenizer, files: SentenceTransformers | None = None, *, hidden_size: int = DIMENSIONS, **more: Any
) -> TextEmbedding:
    settings = TaskSettings({"hidden_size": hidden_size}, tokenizer, sentence_transformers=files, **more)
    return TextEmbedding(settings)


def vector_of(number: int) -> Array:
    """A fixed vector for each token id."""
    return np.random.default_rng(number).normal(size=DIMENSIONS).astype(np.float32)


def embed(
    task: TextEmbedding, tokenizer: Tokenizer, instance: Any, parameters: Any = None, pooled: bool = False
) -> Any:
    """The answer to an instance by a model whose token vectors depend on their ids alone."""
    options = task.options(parameters or {})
    item = task.item(instance, ("instances", 0), options)
    [windows] = tokenizer.encode_windows(task.texts(item, options), task.tokenization(options))
    parts = []
    for window in windows:
        rows = np.stack([*map(vector_of, window.ids)])
        parts.append(task.decode(item, window, {"sentence_embedding": rows[0] if pooled else rows}, options))
    return task.answer(item, [parts], options)


def mean_of(tokenizer: Tokenizer, text: str) -> Array:
    """The mean of the vectors of a text's tokens without special tokens, normalized."""
    [[encoding]] = tokenizer.encode_windows([text], Tokenization(whole=True, special_tokens=False))
    mean = np.mean([*map(vector_of, encoding.ids)], axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def means(tokenizer: Tokenizer, chunks: Sequence[str], space: str) -> Array:
    return np.stack([mean_of(tokenizer, space * (index > 0) + chunk) for index, chunk in enumerate(chunks)])


@pytest.mark.parametrize("name", NAMES)
def test_the_vector_of_a_chunk_is_the_mean_of_its_tokens(name: str) -> None:
    tokenizer = tokenizer_of(name, 512)
    task, space = make_task(tokenizer), " " * (name == "ner_roberta")
    expected = means(tokenizer, CHUNKS, space)
    vectors = embed(task, tokenizer, {"chunks": CHUNKS})
    assert vectors.shape == (4, DIMENSIONS) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(embed(task, tokenizer, {"text": TEXT, "spans": PLACES}), expected, atol=1e-6)
    np.testing.assert_allclose(
        embed(task, tokenizer, {"chunks": [f"{chunk} " for chunk in CHUNKS]}), expected, atol=1e-6
    )
    # Spans may overlap, and need no order.
    vectors = embed(task, tokenizer, {"text": TEXT, "spans": [PLACES[1], PLACES[0], PLACES[1]]})
    np.testing.assert_allclose(vectors, expected[[1, 0, 1]], atol=1e-6)
    cut = embed(task, tokenizer, {"chunks": CHUNKS}, {"dimensions": 2})
    np.testing.assert_allclose(cut, expected[:, :2] / np.linalg.norm(expected[:, :2], axis=1, keepdims=True), atol=1e-6)
    named = embed(task, tokenizer, {"chunks": CHUNKS}, {"representations": "dense"})
    np.testing.assert_allclose(named["dense"], expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stride", [0, 1, 5, 9])
@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_count_each_token_once(name: str, stride: int, side: str) -> None:
    tokenizer = tokenizer_of(name, 14)
    task, chunks = make_task(tokenizer, on_overflow="window", max_length=14), CHUNKS * 3
    found = embed(task, tokenizer, {"chunks": chunks}, {"stride": stride, "truncation_side": side})
    np.testing.assert_allclose(found, means(tokenizer, chunks, " " * (name == "ner_roberta")), atol=1e-6)


def test_a_prompt_and_lower_case_move_the_spans() -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    chunks = ["İstanbul İzmir", "İs", "a Museum"]  # a dotted I has two characters in lower case
    files = SentenceTransformers(normalize=True, lower_case=True, include_prompt=False)
    found = embed(make_task(tokenizer, files), tokenizer, {"chunks": chunks}, {"prompt": "İ: "})
    np.testing.assert_allclose(found, means(tokenizer, [chunk.lower() for chunk in chunks], ""), atol=1e-6)


def test_a_span_that_is_cut_off_is_refused() -> None:
    tokenizer = tokenizer_of("minibert_mean", 14)
    task = make_task(tokenizer)
    with pytest.raises(InvalidInput, match=r"^instances\[0\]\.chunks\[2\]: expected a token in the part .*window"):
        embed(task, tokenizer, {"chunks": CHUNKS})
    with pytest.raises(InvalidInput, match=r"^instances\[0\]\.spans\[0\]: expected a token"):
        embed(task, tokenizer, {"text": TEXT, "spans": PLACES}, {"truncation_side": "left"})
    assert len(embed(task, tokenizer, {"chunks": CHUNKS[:2]})) == 2
    last = embed(task, tokenizer, {"text": TEXT, "spans": PLACES[3:]}, {"truncation_side": "left"})
    np.testing.assert_allclose(last, means(tokenizer, CHUNKS[3:], ""), atol=1e-6)


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        ({"chunks": "text"}, r"chunks: expected a list of strings, got a string"),
        ({"chunks": []}, r"chunks: expected a list of strings, got an empty list"),
        ({"chunks": ["a", ""]}, r"chunks\[1\]: expected a string, got an empty one"),
        ({"chunks": ["a", 3]}, r"chunks\[1\]: expected a string, got a"),
        ({"text": 3, "spans": [[0, 1]]}, r"text: expected a string"),
        ({"text": "abc", "spans": []}, r"spans: expected a list of \[start, end\]"),
        *(
            ({"text": "abc", "spans": [[0, 1], span]}, r"spans\[1\]: expected \[start, end\] with .* <= 3")
            for span in ([0, 4], [-1, 2], [1, 1], [2, 1], [0], [0, True], [0.0, 1], "ab", None)
        ),
        ({"chunks": ["a"], "text": "b"}, r"^instances\[0\]: expected a string or"),
    ],
)
def test_malformed_instances_are_refused(instance: Any, message: str) -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    with pytest.raises(InvalidInput, match=message):
        embed(make_task(tokenizer), tokenizer, instance)


@pytest.mark.parametrize(
    ("files", "pooled", "message"),
    [
        (SentenceTransformers(pooling=("cls",)), False, "mean pooling alone, got the pooling cls"),
        (SentenceTransformers(pooling=("mean", "max")), False, "got the pooling mean, max"),
        (SentenceTransformers(inside="Dense"), False, "got the module Dense"),
        (None, True, "a model whose output has a vector per text"),
    ],
)
def test_a_model_without_means_of_token_vectors_is_refused(files: Any, pooled: bool, message: str) -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    with pytest.raises(InvalidInput, match=message):
        embed(make_task(tokenizer, files), tokenizer, {"chunks": CHUNKS}, pooled=pooled)


def test_the_size_of_the_answer_counts_each_span() -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    task = make_task(tokenizer)
    options = task.options({})
    sizes = []
    for instance in ("a text", {"chunks": CHUNKS}, {"text": TEXT, "spans": PLACES * 10}):
        [[encoding]] = tokenizer.encode_windows(task.texts(task.item(instance, (), options), options), Tokenization())
        sizes.append(task.answer_size(encoding, options))
    assert sizes == [1, 3, 30]  # of 4 numbers each


def test_many_spans_of_a_long_text_are_bounded_work() -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    task = make_task(tokenizer)
    whole, options = [[0, len(TEXT)]] * 50, task.options({"dimensions": 1})
    [text] = task.texts(task.item({"text": TEXT, "spans": whole}, (), options), options)
    [[encoding]] = tokenizer.encode_windows([text], Tokenization())
    assert task.answer_size(encoding, options) == 38  # 50 vectors of all dimensions are in memory
    large = make_task(tokenizer, SentenceTransformers(pooling=("mean",)), hidden_size=40_000)
    assert large.decode_cost(encoding, options) > 20_000  # a thread's work
    [vector, *_] = embed(task, tokenizer, {"text": TEXT, "spans": whole})
    np.testing.assert_allclose(vector, mean_of(tokenizer, TEXT), atol=1e-6)
    with pytest.raises(TooLarge, match=r"spans: expected at most 4096 for a text, got 4097"):
        task.item({"text": TEXT, "spans": [[0, 1]] * 4097}, (), options)


def test_texts_with_spans_share_a_request_with_other_texts() -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    task = make_task(tokenizer)
    options = task.options({})
    instances = ["a text", {"chunks": CHUNKS}, {"token_ids": [1, 2, 3]}, {"text": "another"}]
    texts = [text for one in instances for text in task.texts(task.item(one, (), options), options)]
    encodings = tokenizer.encode_windows(texts, Tokenization())
    assert [type(window).__name__ for [window] in encodings] == ["Encoding", "SpannedEncoding", "Encoding", "Encoding"]
    assert encodings[0] == tokenizer.encode_windows(["a text"], Tokenization())[0]
    assert encodings[2] == [Encoding([1, 2, 3], [0, 0, 0])]


def test_token_ids_above_the_requests_maximum_are_refused() -> None:
    tokenizer = tokenizer_of("minibert_mean", 512)
    with pytest.raises(TooLarge, match="at most 3 token ids"):
        embed(make_task(tokenizer), tokenizer, {"token_ids": [1, 2, 3, 4]}, {"max_tokens": 3})
