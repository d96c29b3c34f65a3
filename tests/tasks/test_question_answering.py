"""question_answering with synthetic logits."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.core.contract import ContractError, fit_signature
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tasks.question_answering import QuestionAnswering, SpanMapper, best_spans, probabilities
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import Array, ModelSpec, TensorSpec
from hf_transformer.types.tokenization import Encoding
from tests.support.triton_repository import task_model_folder

FOLDER = task_model_folder("squad")
CONFIG = json.loads((FOLDER / "config.json").read_text())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(FOLDER, CONFIG)


@pytest.fixture(scope="module", params=["right", "left"])
def padded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tokenizer with padding on either side, which is the side of the context too."""
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copy(FOLDER / "tokenizer.json", folder)
    settings = json.loads((FOLDER / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": request.param}))
    return load_tokenizer(folder, CONFIG)


def task_of(tokenizer: Tokenizer, **settings: Any) -> QuestionAnswering:
    return QuestionAnswering(TaskSettings(CONFIG, tokenizer, max_length=tokenizer.max_length, **settings))


def ask(
    tokenizer: Tokenizer, question: str, context: str, likely: list[tuple[str, str, float]], **parameters: Any
) -> Any:
    """Answers from logits of 0, except those of ``likely``: the texts of a first and a last token, and their logit."""
    task = task_of(tokenizer)
    options = task.options(parameters)
    item = task.item({"question": question, "context": context}, ("instances", 0), options)
    [windows] = tokenizer.encode_windows(task.texts(item, options), task.tokenization(options))
    parts = []
    for window in windows:
        start, end = np.zeros((2, len(window)), np.float32)
        for first, last, logit in likely:
            start[np.array(window.ids) == tokenizer.token_to_id(first)] = logit
            end[np.array(window.ids) == tokenizer.token_to_id(last)] = logit
        parts.append(task.decode(item, window, {"start_logits": start, "end_logits": end}, options))
    return task.answer(item, [parts], options)


def every_span(starts: Array, ends: Array, count: int, longest: int) -> list[tuple[float, int, int]]:
    """Reference for best_spans: a search over all pairs of tokens."""
    spans = [
        (float(starts[first] * ends[last]), first, last)
        for first in range(len(starts))
        for last in range(first, min(first + longest, len(starts)))
    ]
    return sorted((span for span in spans if span[0] > 0), reverse=True)[:count]


@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_best_spans_are_the_best_of_all_pairs(tokens: int, count: int, longest: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    starts, ends = random.random((2, tokens), np.float32) * (random.random((2, tokens)) > 0.3)
    starts, ends = starts.astype(np.float32), ends.astype(np.float32)
    first, last, scores = best_spans(starts, ends, count, longest)
    expected = every_span(starts, ends, count, longest)
    assert scores.tolist() == [span[0] for span in expected]
    assert all(0 <= b - a < longest for a, b in zip(first, last, strict=True))
    assert (starts[first] * ends[last]).tolist() == scores.tolist()
    assert len({*zip(first.tolist(), last.tolist(), strict=True)}) == len(expected)


def window(word_ids: list[int | None] | None) -> Encoding:
    """The encoding of [CLS] who [SEP] new york city [SEP], with two tokens for "york"."""
    offsets = [(0, 0), (0, 3), (0, 0), (0, 3), (4, 6), (6, 8), (9, 13), (0, 0)]
    return Encoding([0] * 8, [0] * 8, offsets=offsets, word_ids=word_ids)


WORDS = [None, 0, None, 0, 1, 1, 2, None]
QUESTION_AT_1 = [None, 1, None, 0, 1, 1, 2, None]


@pytest.mark.parametrize(
    ("words", "begin", "whole_words", "tokens", "span"),
    [
        (WORDS, 3, True, (3, 4), (0, 8)),
        (WORDS, 3, True, (5, 6), (4, 13)),
        (WORDS, 3, True, (5, 5), (4, 8)),
        (WORDS, 3, False, (3, 4), (0, 6)),
        (WORDS, 3, False, (5, 6), (6, 13)),
        (WORDS, 3, False, (5, 5), (6, 8)),
        (None, 3, True, (3, 4), (0, 6)),
        (WORDS, 5, True, (5, 6), (6, 13)),  # the window splits the word
        # Tokens outside of the context.
        (QUESTION_AT_1, 3, True, (1, 6), (4, 13)),
        (QUESTION_AT_1, 3, False, (1, 6), None),
        ([None, 9, *WORDS[2:]], 3, True, (1, 6), None),
        ([None, 2, *WORDS[2:]], 3, True, (1, 3), None),
        (QUESTION_AT_1, 3, True, (0, 6), None),
    ],
)
def test_spans_are_aligned_to_words(words: Any, begin: int, whole_words: bool, tokens: Any, span: Any) -> None:
    assert SpanMapper(window(words), slice(begin, 7), whole_words=whole_words).span(*tokens) == span


def test_answers_come_from_the_context_not_the_question(padded: Tokenizer) -> None:
    likely = [("where", "where", 20.0), ("berlin", "berlin", 10.0)]
    answer = ask(padded, "Where is it?", "It is in BERLIN.", likely)
    assert (answer["answer"], answer["start"], answer["end"]) == ("BERLIN", 9, 15)
    assert answer["score"] == pytest.approx(1, abs=2e-3)


def test_scores_of_the_same_text_add_up_over_windows(padded: Tokenizer) -> None:
    context = "In Berlin. " + "many cities " * 20 + "near BERLIN. " + "many cities " * 20 + "in berlin."
    parameters = {"max_seq_len": 40, "doc_stride": 0, "top_k": 3}
    answers = ask(padded, "Where?", context, [("berlin", "berlin", 12.0)], **parameters)
    assert len(answers) == 3
    assert (answers[0]["answer"], answers[0]["start"]) == ("Berlin", 3)
    assert answers[0]["score"] == pytest.approx(3, abs=2e-2)


def test_the_score_of_no_answer_is_the_lowest_of_all_windows(padded: Tokenizer) -> None:
    likely = [("[CLS]", "[CLS]", 9.0), ("berlin", "berlin", 9.0)]
    parameters = {"max_seq_len": 24, "doc_stride": 0, "handle_impossible_answer": True, "top_k": 2}
    none = {"start": 0, "end": 0, "answer": ""}
    answers = ask(padded, "Where?", "many cities " * 20, likely, **parameters)
    assert answers[0] == none | {"score": pytest.approx(1, abs=1e-2)}
    answers = ask(padded, "Where?", "many cities " * 20 + "in berlin", likely, **parameters)
    assert [answer["answer"] for answer in answers] == ["berlin", ""]
    assert answers[1]["score"] == pytest.approx(0.25, abs=1e-2)


def test_a_question_without_room_for_the_stride_is_refused(padded: Tokenizer) -> None:
    """The tokenizers library would panic."""
    question = "what is it " * 10
    assert ask(padded, question, "It is in Berlin.", [], max_seq_len=48, doc_stride=16)["answer"]
    with pytest.raises(InvalidInput, match=r"a stride of less than .* in 48 tokens, got 16"):
        ask(padded, question, "many cities " * 20, [], max_seq_len=48, doc_stride=16)
    with pytest.raises(InvalidInput, match=r"leaves room for the (first|second) in 48 tokens"):
        ask(padded, question * 2, "many cities " * 20, [], max_seq_len=48, doc_stride=16)


def test_a_context_without_tokens_has_an_empty_answer(tokenizer: Tokenizer) -> None:
    none = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
    assert ask(tokenizer, "Where?", " \n", []) == none
    assert ask(tokenizer, "Where?", " \n", [], align_to_words=False, top_k=3) == none
    assert ask(tokenizer, "Where?", " \n", [], handle_impossible_answer=True)["score"] == 1.0


def test_probabilities_cover_the_allowed_tokens_alone() -> None:
    logits = np.array([np.nan, 0, np.log(3), np.inf, 0], np.float32)
    rows = probabilities(logits, logits.astype(np.float64), [slice(1, 3), slice(4, 5)])
    assert rows.tolist() == [pytest.approx([0, 0.2, 0.6, 0, 0.2])] * 2
    assert probabilities(logits, logits, [slice(0, 0)]).tolist() == [[0.0] * 5] * 2
    for row, value in itertools.product((0, 1), (np.nan, np.inf)):
        rows = np.zeros((2, 4), np.float32)
        rows[row, 2] = value
        with pytest.raises(PredictorError):
            probabilities(rows[0], rows[1], [slice(1, 4)])


def test_the_default_stride_and_the_size_of_answers(tokenizer: Tokenizer) -> None:
    task = task_of(tokenizer)
    options = task.options({})
    item = task.item({"question": "Where?", "context": "many cities " * 40}, ("instances", 0), options)
    shorter = tokenizer.with_max_length(32)
    [windows] = shorter.encode_windows(task.texts(item, options), task.tokenization(options))
    assert {len(window) for window in windows[:-1]} == {32}
    assert windows[0].ids[-17:-1] == windows[1].ids[4:20]
    [encoding] = tokenizer.encode(["many cities " * 70])
    assert len(encoding) == 128
    for parameters, answers in (({}, 1), ({"top_k": 50}, 50), ({"top_k": 10**9, "max_answer_len": 10**9}, 128**2)):
        options = task.options(parameters)
        assert task.answer_size(encoding, options) == 4 * answers
        assert task.decode_cost(encoding, options) == 128 + 10 * answers


def test_outputs_are_matched_by_name(tokenizer: Tokenizer) -> None:
    def fit(*outputs: str, flags: tuple[str, ...] = ()) -> dict[str, str]:
        """Maps roles to outputs."""
        inputs = (TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,)))
        spec = ModelSpec("squad", "1", inputs, tuple(TensorSpec(name, "FP32", (-1,)) for name in outputs), 8)
        roles = task_of(tokenizer).outputs
        signature = fit_signature(spec, roles, output_names=flags, task="question_answering")
        return {output.role: output.name for output in signature.outputs}

    for start, end in (("start_logits", "end_logits"), ("start", "end"), ("output_0", "output_1"), ("a", "b")):
        flags = ("a", "b") if start == "a" else ()
        assert fit(end, start, flags=flags) == {"start_logits": start, "end_logits": end}
    with pytest.raises(ContractError, match="reads start_logits and end_logits, each an output of its own"):
        fit("logits")
    with pytest.raises(ContractError, match="each an output of its own"):
        fit("a", "b", flags=("a", "a"))
