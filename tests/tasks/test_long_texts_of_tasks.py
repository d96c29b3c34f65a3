"""Windows of classifiers and rerankers, and the parameters about long texts of all tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task
from hf_transformer.tasks.base import Task, TaskSettings
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import PLAIN, Tokenization
from tests.support.triton_repository import task_model_folder
from tests.tasks.task_settings import ENCODING, logits, named, settings

NLI = named("contradiction", "neutral", "entailment")
MULTI = named("a", "b", problem_type="multi_label_classification")
LENGTH = 16
DOCUMENT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
PIPELINE = {"output_format": "pipeline", "top_k": None}


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(task_model_folder("cross"), {}, max_model_len=LENGTH)


def predict(task: Task[Any, Any, Any], instance: Json, texts: Sequence[Sequence[Any]], parameters: Any) -> Any:
    """Answers an instance; the model returns these logits for each window of each text."""
    options = task.options(parameters)
    item = task.item(instance, ("instances", 0), options)
    parts = [[task.decode(item, ENCODING, logits(*row), options) for row in windows] for windows in texts]
    return task.answer(item, parts, options)


# Windows

WINDOW_PARAMETERS = [{"window_score": "max"}, {"window_score": "mean"}, {"stride": 3}, {"max_chunks_per_doc": 2}]


def reranker(**flags: Any) -> Rerank:
    return Rerank(settings(named("score"), **flags))


@pytest.mark.parametrize(("score", "expected"), [(None, [2.0, 1.5]), ("max", [2.0, 1.5]), ("mean", [1.5, 0.5])])
def test_a_reranker_scores_the_best_or_the_mean_window(score: str | None, expected: list[float]) -> None:
    task = reranker(on_overflow="window", max_length=LENGTH)
    parameters = {"raw_scores": True, "window_score": score}
    rows = [[(1.5,), (-0.5,), (0.5,)], [(2.0,), (1.0,)]]
    answer = predict(task, {"query": "q", "texts": ["a", "b"]}, rows, parameters)
    assert [(one["index"], one["score"]) for one in answer] == [(1, expected[0]), (0, expected[1])]
    answer = predict(task, {"query": "q", "texts": ["a", "b"]}, rows, {"window_score": score})
    assert answer[0]["score"] == pytest.approx(1 / (1 + math.exp(-expected[0])))


@pytest.mark.parametrize(
    ("config", "windows", "score", "scores"),
    [
        # The most certain window of exclusive labels; the highest score of each of the others
        (named("a", "b"), [(0, 1), (3, 0), (1, 1)], "max", {"a": 3, "b": 0}),
        (named("a", "b"), [(0, 1), (3, 0), (3, 2)], "mean", {"a": 2, "b": 1}),
        (MULTI, [(0, 1), (3, 0), (1, 1)], "max", {"a": 3, "b": 1}),
        (MULTI, [(0, 1), (3, 2)], "mean", {"a": 1.5, "b": 1.5}),
        (named("stars", problem_type="regression"), [(1,), (4,)], "max", {"stars": 4}),
    ],
)
def test_a_classifier_answers_for_the_best_or_the_mean_window(
    config: Any, windows: Any, score: str, scores: Mapping[str, float]
) -> None:
    task = SequenceClassification(settings(config, on_overflow="window", max_length=LENGTH))
    answer = predict(task, "text", [windows], {**PIPELINE, "function_to_apply": "none", "window_score": score})
    assert {one["label"]: one["score"] for one in answer} == scores
    raw = predict(task, "text", [windows], {"return_raw_logits": True, "window_score": score})
    assert [*raw.values()] == [*scores.values()]
    best = predict(task, "text", [windows], {"window_score": score})
    assert best == [*scores.values()].index(max(scores.values()))
    alone = predict(SequenceClassification(settings(config)), "text", [windows[:1]], PIPELINE)
    assert predict(task, "text", [windows[:1]], PIPELINE) == alone


@pytest.mark.parametrize(
    ("multi", "score", "rows"),
    [
        (True, "max", [(0, 2), (1, 2)]),  # entailment less contradiction: 2 and 1
        (False, "max", [(5, 4), (2, 3)]),  # the highest entailment
        (False, "mean", [(2.5, 3), (1.5, 2.5)]),
    ],
)
def test_labels_have_the_score_of_their_best_or_mean_window(multi: bool, score: str, rows: Any) -> None:
    task = ZeroShotClassification(settings(NLI, on_overflow="window", max_length=LENGTH))
    instance = {"sequence": "s", "candidate_labels": ["x", "y"]}
    windows = [[(0, 9, 2), (5, 9, 4)], [(1, 9, 2), (2, 9, 3)]]
    found = predict(task, instance, windows, {"multi_label": multi, "window_score": score})
    alone = predict(task, instance, [[(c, 9, e)] for c, e in rows], {"multi_label": multi})
    assert found == alone


@pytest.mark.parametrize("parameters", WINDOW_PARAMETERS, ids=str)
@pytest.mark.parametrize("kind", ["rerank", "sequence", "zero shot"])
def test_parameters_of_windows_need_windows(kind: str, parameters: Any) -> None:
    flags = {"on_overflow": "window", "max_length": LENGTH}
    make: dict[str, Any] = {
        "rerank": reranker,
        "sequence": lambda **more: SequenceClassification(settings(named("a", "b"), **more)),
        "zero shot": lambda **more: ZeroShotClassification(settings(NLI, **more)),
    }
    assert make[kind](**flags).options(parameters).tokenization.windows
    for task, more in ((make[kind](), {}), (make[kind](**flags), {"truncation": True})):
        with pytest.raises(InvalidInput, match=rf"^parameters\.{next(iter(parameters))}: expected no value without"):
            task.options({**parameters, **more})


def encodings(task: Task[Any, Any, Any], instance: Json, parameters: Any = None) -> list[list[str]]:
    """The tokens of all windows of all texts."""
    options = task.options(parameters or {})
    texts = task.texts(task.item(instance, ("instances", 0), options), options)
    windows = tokenizer().encode_windows(texts, task.tokenization(options))
    return [[" ".join(map(str, map(tokenizer().id_to_token, one.ids))) for one in text] for text in windows]


def test_windows_of_a_document_repeat_the_query_and_shorten_their_stride() -> None:
    task = reranker(on_overflow="window", max_length=LENGTH)
    [windows] = encodings(task, {"query": "the capital", "texts": ["city " * 30]}, {"stride": 2})
    assert len(windows) == 4
    assert set(windows[:3]) == {f"[CLS] the capital [SEP]{' city' * 11} [SEP]"}
    [first] = encodings(task, {"query": "the capital", "texts": ["city " * 30]}, {"stride": 2, "max_chunks_per_doc": 1})
    assert first == windows[:1]
    # Room for two tokens of the document: the stride of a quarter of the length would be as long.
    [windows] = encodings(task, {"query": "city " * 11, "texts": ["the capital of city"]})
    assert [window.split("[SEP]")[1].strip() for window in windows] == ["the capital", "capital of", "of city"]
    with pytest.raises(InvalidInput, match="first one leaves room for the second in 16 tokens"):
        encodings(task, {"query": "city " * 30, "texts": ["the capital"]})


def test_limits_of_query_and_document() -> None:
    instance = {"query": "the capital of the city", "texts": ["city " * 30, "the city"]}
    found = encodings(reranker(), instance, {"max_tokens_per_query": 2, "max_tokens_per_doc": 3})
    assert found == [["[CLS] the capital [SEP] city city city [SEP]"], ["[CLS] the capital [SEP] the city [SEP]"]]
    found = encodings(reranker(), instance, {"max_tokens_per_query": 2, "truncation_side": "left", "max_tokens": 7})
    assert found == [["[CLS] the city [SEP] city city [SEP]"], ["[CLS] the city [SEP] the city [SEP]"]]
    long = {"query": "the capital " * 5, "texts": ["city " * 30]}
    assert encodings(reranker(), long) == [[f"[CLS]{' the capital' * 3} [SEP]{' city' * 7} [SEP]"]]
    cut = encodings(reranker(), long, {"truncate_document": True})
    assert cut == [[f"[CLS]{' the capital' * 5} [SEP]{' city' * 3} [SEP]"]]


# Parameters of all tasks

MODELS: dict[str, tuple[str, Mapping[str, Json], Any]] = {
    "fill_mask": ("bert", {}, "text"),
    "sequence_classification": ("cross", named("a", "b"), "text"),
    "zero_shot_classification": ("cross", NLI, {"text": "text", "candidate_labels": ["a"]}),
    "rerank": ("cross", named("score"), {"query": "q", "texts": ["text"]}),
    "token_classification": ("cross", named("a", "b"), "text"),
    "question_answering": ("cross", {}, {"question": "q", "context": "text"}),
    "text_embedding": ("cross", {}, "text"),
    "feature_extraction": ("cross", {}, "text"),
}


def make(name: str, **flags: Any) -> Task[Any, Any, Any]:
    task: Any = find_task(name, {}, ALL_TASKS)
    return task(TaskSettings(dict(MODELS[name][1]), tokenizer(), max_length=LENGTH, **flags))  # type: ignore[no-any-return]


def replaced(instance: Json, text: str) -> Json:
    if isinstance(instance, str):
        return text
    return {
        name: text if value == "text" else [text] if value == ["text"] else value for name, value in instance.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_each_task_keeps_the_end_of_a_text_or_less_of_it(name: str) -> None:
    task, instance = make(name), MODELS[name][2]
    beginning, end = (f"{word} " + "city " * 30 + f"{word}" for word in ("the", "capital"))
    for side, first in (("left", False), ("right", True)):
        parameters = {"truncation_side": side, "truncation": True, "max_tokens": 12}
        for text, word in ((beginning, "the"), (end, "capital")):
            [[found]] = encodings(task, replaced(instance, text), parameters)
            tokens = found.split()
            assert len(tokens) == 12
            begins = tokens.index(word) < tokens.index("city")
            assert begins == first and tokens.count(word) == 1
    [[longest]] = encodings(task, replaced(instance, end), {"max_tokens": 10**9, "truncation": True})
    assert len(longest.split()) == LENGTH
    wrong: Sequence[tuple[Mapping[str, Json], str]] = (
        ({"truncation_side": "middle"}, r"^parameters\.truncation_side: expected one of left, right"),
        ({"max_tokens": 0}, r"^parameters\.max_tokens: expected 1 or more, got 0"),
        ({"max_tokens": "9"}, r"^parameters\.max_tokens: expected a whole number, got a string"),
    )
    for one, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            task.options(one)
    with pytest.raises(InvalidInput, match=r"a length of more than . tokens, the number of special tokens|fits into 1"):
        encodings(task, replaced(instance, end), {"max_tokens": 1})


@pytest.mark.parametrize("name", ["sequence_classification", "text_embedding", "feature_extraction", "fill_mask"])
def test_a_request_without_these_parameters_has_the_plain_options(name: str) -> None:
    task = make(name)
    assert task.tokenization(task.options({})) is PLAIN  # which the word cache encodes fastest
    assert make(name).options({"truncation_side": "left"}).tokenization == Tokenization(truncation_side="left")


@pytest.mark.parametrize("name", ["token_classification", "text_embedding", "rerank", "sequence_classification"])
def test_the_default_stride_fits_a_shorter_maximum(name: str) -> None:
    task = make(name, on_overflow="window")
    assert task.options({}).tokenization.stride == 4
    for most in (5, 8, 16, 100):
        options = task.options({"max_tokens": most}).tokenization
        assert (options.stride, options.max_length) == (min(most // 4, 4), most)
    [windows] = encodings(task, replaced(MODELS[name][2], "city " * 30), {"max_tokens": 6})
    assert len(windows) > 5 and {len(window.split()) for window in windows} <= {4, 5, 6}


def test_question_answering_takes_one_name_of_its_maximum() -> None:
    task = make("question_answering")
    assert task.options({"max_tokens": 100}).tokenization.max_length == LENGTH
    with pytest.raises(InvalidInput, match=r"^parameters\.max_seq_len: expected at most 16"):
        task.options({"max_seq_len": 100})
    with pytest.raises(InvalidInput, match=r"^parameters\.max_tokens: expected max_seq_len or max_tokens, got both"):
        task.options({"max_tokens": 9, "max_seq_len": 9})


def test_means_are_of_logits() -> None:
    task = SequenceClassification(settings(named("a", "b"), on_overflow="window", max_length=LENGTH))
    answer = predict(task, "t", [[(0, 1), (2, 0)]], {"return_probabilities": True, "window_score": "mean"})
    probabilities = np.exp([1.0, 0.5]) / np.exp([1.0, 0.5]).sum()
    assert [*answer.values()] == pytest.approx(probabilities, abs=1e-4)
