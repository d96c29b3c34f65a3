"""Pooling and decoding with numbers worked out by hand; the goldens are in tests/integration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, PredictorError, TooLarge
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.options import MAX_PROMPT_LENGTH
from hf_transformer.tasks.pooling import POOLING, hidden_axis, pool
from hf_transformer.tasks.text_embedding import Scale, TextEmbedding
from hf_transformer.tokenizer.sentence_transformers import POOLING_FLAGS
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds
from tests.tasks.task_settings import settings

ROWS = np.array([[1, 8], [3, -2], [5, 0], [7, 2]], np.float32)
BERT = {"hidden_size": 2}
FOUR = Encoding([1] * 4, [0] * 4)


class Letters:
    """A tokenizer with a token per letter, and the special tokens 0 before and 1 after them."""

    vocab_size = 128
    mask_id = mask_token = pad_token_id = unk_id = cls_id = None
    marks_subwords = False
    user_tokens = "none"

    def __init__(self, special_tokens: bool = True) -> None:
        self.special_tokens = special_tokens

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        ids = [list(map(ord, text)) for text in texts if isinstance(text, str)]
        framed = [[0, *letters, 1] for letters in ids] if self.special_tokens else ids
        return [Encoding(tokens, [0] * len(tokens)) for tokens in framed]


def make_task(files: SentenceTransformers | None = None, special_tokens: bool = True, **more: Any) -> TextEmbedding:
    vocabulary: Any = Letters(special_tokens)
    return TextEmbedding(TaskSettings(BERT, vocabulary, sentence_transformers=files, **more))


@pytest.fixture
def features() -> FeatureExtraction:
    return FeatureExtraction(settings(BERT))


def embed(task: TextEmbedding, windows: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[float]:
    """The embedding of a text from its windows' output."""
    options = task.options(parameters or {})
    parts = []
    for output in windows:
        encoding = Encoding([5] * (len(output) if output.ndim == 2 else 4), [0] * 4)
        parts.append(task.decode("text", encoding, {"sentence_embedding": output}, options))
    answer = task.answer("text", [parts], options)
    assert answer.dtype == np.float32
    return list(answer)


@pytest.mark.parametrize(
    ("mode", "whole", "after_one"),
    [
        ("cls", [1, 8], [3, -2]),
        ("max", [7, 8], [7, 2]),
        ("mean", [4, 2], [5, 0]),
        ("mean_sqrt_len_tokens", [8, 4], [15 / np.sqrt(3), 0]),
        ("weightedmean", [(1 + 6 + 15 + 28) / 10, (8 - 4 + 8) / 10], [(6 + 15 + 28) / 9, (-4 + 8) / 9]),
        ("lasttoken", [7, 2], [7, 2]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=["fp16", "fp32", "fp64"])
def test_each_mode_pools_in_float32(mode: str, whole: list[float], after_one: list[float], dtype: Any) -> None:
    rows = ROWS.astype(dtype)
    vector = pool(rows, [mode])
    assert vector.dtype == np.float32 and not np.shares_memory(vector, rows)
    assert vector == pytest.approx(whole)
    assert pool(rows, [mode], skip=1) == pytest.approx(after_one)


def test_every_flag_of_sentence_transformers_has_a_mode_and_sums_do_not_overflow() -> None:
    assert set(POOLING) == set(POOLING_FLAGS.values())
    assert pool(np.full((4096, 2), 40, np.float16), ["mean"]) == pytest.approx([40, 40])


NORM = np.sqrt(20)
TWO = SentenceTransformers(pooling=("cls", "mean"))
VECTOR = np.array([3, 4], np.float32)
OURS, UNIT, CUT = SentenceTransformers(), SentenceTransformers(normalize=True), SentenceTransformers(truncate_dim=1)


@pytest.mark.parametrize(
    ("files", "output", "parameters", "expected"),
    [
        (OURS, ROWS, {}, [4, 2]),
        (OURS, ROWS, {"dimensions": 1}, [4]),
        (OURS, ROWS, {"normalize": True, "dimensions": 1}, [1]),
        (UNIT, ROWS, {}, [4 / NORM, 2 / NORM]),
        (UNIT, ROWS, {"dimensions": 1}, [4 / NORM]),
        (UNIT, ROWS, {"dimensions": 1, "normalize": True}, [1]),
        (UNIT, ROWS, {"dimensions": 1, "normalize": False}, [4]),
        (UNIT, ROWS, {"dimensions": 1, "normalize": Scale.DENSE}, [1]),
        (CUT, ROWS, {"normalize": Scale.DENSE}, [1]),
        (OURS, ROWS, {"normalize": Scale.DENSE}, [4 / NORM, 2 / NORM]),
        (CUT, ROWS, {}, [4]),
        (CUT, ROWS, {"dimensions": 2}, [4, 2]),
        (SentenceTransformers(truncate_dim=9), ROWS, {}, [4, 2]),
        (None, ROWS, {}, [4 / NORM, 2 / NORM]),
        (None, ROWS, {"dimensions": 1}, [1]),
        (None, ROWS, {"normalize": False}, [4, 2]),
        (TWO, ROWS, {}, [1, 8, 4, 2]),
        (TWO, ROWS, {"dimensions": 3}, [1, 8, 4]),
        (SentenceTransformers(pooling=("cls", "max", "mean")), ROWS, {}, [1, 8, 7, 8, 4, 2]),
        (UNIT, np.zeros(2, np.float32), {}, [0, 0]),
        (TWO, VECTOR, {}, [3, 4]),  # a pooled vector stays unchanged
        (None, VECTOR, {}, [0.6, 0.8]),
    ],
)
def test_normalization_and_the_cut_follow_the_files_and_the_request(
    files: Any, output: Any, parameters: Any, expected: list[float]
) -> None:
    assert embed(make_task(files), [output], parameters) == pytest.approx(expected)


@pytest.mark.parametrize(("files", "output", "size"), [(OURS, ROWS, 2), (TWO, ROWS, 4), (None, VECTOR, 2)])
def test_more_dimensions_than_the_model_has_are_refused(files: Any, output: Any, size: int) -> None:
    with pytest.raises(InvalidInput, match=rf"^parameters\.dimensions: expected at most {size}, .*, got 9$"):
        embed(make_task(files), [output], {"dimensions": 9})


def test_windows_are_weighted_by_their_tokens() -> None:
    task = make_task(SentenceTransformers(include_prompt=False), on_overflow="window")
    assert embed(task, [ROWS, ROWS[:1]]) == pytest.approx([(4 * 4 + 1) / 5, (2 * 4 + 8) / 5])
    assert embed(task, [ROWS[:3], ROWS[3:]]) == pytest.approx(embed(task, [ROWS]))
    # Only the first window has the prompt, which is not pooled.
    first, second = np.array([[9, 9], [9, 9], [1, 2]], np.float32), np.array([[3, 4]], np.float32)
    assert embed(task, [first, second], {"prompt": "p"}) == pytest.approx([(3 * 1 + 3) / 4, (3 * 2 + 4) / 4])


@pytest.mark.parametrize(
    ("flags", "parameters", "expected"),
    [
        ({"on_overflow": "window"}, {}, (True, 25, "window")),
        ({"on_overflow": "window"}, {"stride": 3}, (True, 3, "window")),
        ({"on_overflow": "window", "stride": 7}, {}, (True, 7, "window")),
        ({"on_overflow": "window"}, {"truncation": False}, (False, 0, "error")),
        ({}, {}, (False, 0, "truncate")),
    ],
)
def test_windows_and_their_stride_follow_the_flags_and_the_request(flags: Any, parameters: Any, expected: Any) -> None:
    task = make_task(max_length=100, **flags)
    options = task.options(parameters)
    tokenization = task.tokenization(options)
    assert (tokenization.windows, tokenization.stride, task.overflow(options)) == expected


def test_windows_run_from_the_beginning_which_has_the_prompt() -> None:
    for overflow, side in (("window", "right"), ("truncate", "left")):
        task = make_task(max_length=100, on_overflow=overflow)
        assert task.tokenization(task.options({"truncation_side": "left"})).truncation_side == side


@pytest.mark.parametrize(
    ("parameters", "special_tokens", "left_out"),
    [
        ({"prompt_name": "q"}, True, 3),  # 0 q q
        ({"prompt": "pp"}, True, 3),
        ({"prompt": "ppp"}, False, 3),
        ({}, True, 0),
        ({"prompt": ""}, True, 0),
        # One token always remains: the text may merge with the prompt.
        ({"prompt": "ppppppp"}, True, 4),
    ],
)
def test_include_prompt_false_leaves_its_tokens_out(parameters: Any, special_tokens: bool, left_out: int) -> None:
    task = make_task(SentenceTransformers(prompts={"q": "qq"}, include_prompt=False), special_tokens)
    rows = np.array([[9, 9], [9, 9], [9, 9], [1, 2], [3, 4]], np.float32)
    assert embed(task, [rows], parameters) == pytest.approx(rows[left_out:].mean(axis=0))


def test_a_prompt_leaves_room_for_a_text() -> None:
    short = make_task(SentenceTransformers(include_prompt=False), max_length=6)
    assert short.options({"prompt": "ppp"}).skips == (4,)
    with pytest.raises(InvalidInput, match=r"^parameters\.prompt: expected at most 4 tokens, .* model's 6, got 5$"):
        short.options({"prompt": "pppp"})


@pytest.mark.parametrize(
    ("files", "parameters", "expected"),
    [
        (None, {}, "Ab"),
        (None, {"prompt": "X: "}, "X: Ab"),
        (SentenceTransformers(prompts={"q": "Q "}), {}, "Ab"),
        (SentenceTransformers(prompts={"q": "Q "}), {"prompt_name": "q"}, "Q Ab"),
        (SentenceTransformers(prompts={"q": "Q "}, default_prompt_name="q"), {}, "Q Ab"),
        (SentenceTransformers(prompts={"q": "Q "}, default_prompt_name="q"), {"prompt": ""}, "Ab"),
        (SentenceTransformers(prompts={"q": "Q "}, lower_case=True), {"prompt_name": "q"}, "q ab"),
    ],
)
def test_the_text_has_the_prompt_in_front(files: Any, parameters: Any, expected: str) -> None:
    task = make_task(files)
    options = task.options(parameters)
    assert task.texts(task.item({"text": "Ab"}, ("instances", 0), options), options) == (expected,)


def test_sizes_count_components_and_costs_count_tokens_too(features: FeatureExtraction) -> None:
    task = make_task(SentenceTransformers(pooling=("cls", "max")))
    short, long = Encoding([1, 2, 3], [0] * 3), Encoding([1] * 90, [0] * 90)
    assert [task.answer_size(short, task.options(parameters)) for parameters in ({}, {"dimensions": 3})] == [1, 1]
    assert features.answer_size(short, features.options({})) == 6
    assert [task.decode_cost(encoding, task.options({"dimensions": 1})) for encoding in (short, long)] == [3, 90]
    assert task.decode_cost(short, task.options({})) == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused(value: float, features: FeatureExtraction) -> None:
    rows = ROWS.copy()
    rows[2, 1] = value
    with pytest.raises(PredictorError, match="NaN or infinite"):
        embed(make_task(), [rows])
    with pytest.raises(PredictorError, match="NaN or infinite"):
        features.decode("text", FOUR, {"last_hidden_state": rows}, features.options({}))


def test_features_are_a_copy_in_float32(features: FeatureExtraction) -> None:
    rows, options = np.asfortranarray(ROWS.astype(np.float16)), features.options({})
    answer = features.answer("text", [[features.decode("text", FOUR, {"last_hidden_state": rows}, options)]], options)
    assert answer.dtype == np.float32 and answer.flags.c_contiguous
    assert answer.tolist() == [ROWS.tolist()]


def test_the_axes_of_outputs_follow_the_files_and_config_json() -> None:
    (role,) = make_task(SentenceTransformers(inside="Dense")).outputs
    assert [axis.name for axis in role.axes] == ["embedding after Dense"] and not role.other_axes
    (role,) = make_task().outputs
    assert [axis.name for axis in role.axes] == ["tokens", "hidden"] and len(role.other_axes[0]) == 1
    for name in ("hidden_size", "dim", "d_model", "n_embd"):
        assert (hidden_axis({name: 48}).minimum, hidden_axis({name: 48}).maximum) == (48, 48)
    assert (hidden_axis({"text_config": {"hidden_size": 3}}).minimum, hidden_axis({}).maximum) == (1, None)


def test_token_ids_are_the_whole_text() -> None:
    """A default prompt is neither put in front of them nor left out of the pooling."""
    files = SentenceTransformers(prompts={"q": "qq"}, default_prompt_name="q", include_prompt=False)
    task = make_task(files, max_length=6)
    options = task.options({})
    item = task.item({"token_ids": [0, 5, 1]}, ("input",), options)
    assert item == TokenIds((0, 5, 1)) and task.texts(item, options) == (item,)
    part = task.decode(item, Encoding([0, 5, 1], [0] * 3), {"sentence_embedding": ROWS[:3]}, options)
    assert task.answer(item, [[part]], options) == pytest.approx([3, 2])
    assert task.item({"token_ids": [127]}, ("input",), task.options({"prompt": ""})) == TokenIds((127,))


@pytest.mark.parametrize(
    ("ids", "parameters", "path", "got"),
    [
        ([], {}, ("input",), "an empty list"),
        ("a", {}, ("input",), "a string"),
        ([5, "a"], {}, ("input",), "a string at index 1"),
        ([5, True], {}, ("input",), "a boolean at index 1"),
        ([5, 128], {}, ("input",), "128 at index 1"),
        ([-1, 5], {}, ("input",), "-1 at index 0"),
        ([5], {"prompt": "p"}, ("parameters", "prompt"), ""),
        ([5], {"prompt_name": "q"}, ("parameters", "prompt_name"), ""),
    ],
)
def test_wrong_token_ids_and_prompts_in_front_of_them_are_refused(
    ids: Any, parameters: Any, path: tuple[str, ...], got: str
) -> None:
    task = make_task(SentenceTransformers(prompts={"q": "Q "}), max_length=6)
    with pytest.raises(InvalidInput) as raised:
        task.item({"token_ids": ids}, ("input",), task.options(parameters))
    assert (raised.value.path, raised.value.got) == (path, got)


def test_token_ids_are_not_truncated() -> None:
    task = make_task(max_length=6)
    with pytest.raises(TooLarge, match=r"^input: expected at most 6 token ids, the model's length, got 7; "):
        task.item({"token_ids": [5] * 7}, ("input",), task.options({}))


def test_a_prompt_may_have_as_many_characters_as_the_limit() -> None:
    longest = "p" * MAX_PROMPT_LENGTH
    assert make_task().options({"prompt": longest}).prompt == longest
    with pytest.raises(TooLarge, match=rf"^parameters\.prompt: .*got {MAX_PROMPT_LENGTH + 1}"):
        make_task().options({"prompt": longest + "p"})


def test_token_embeddings_are_what_pooling_reads_in_all_windows() -> None:
    task = make_task()
    options = task.options({"representations": ["token_embeddings", "dense"]})
    windows = [task.decode("text", FOUR, {"sentence_embedding": rows}, options) for rows in (ROWS, -ROWS)]
    answer = task.answer("text", [windows], options)
    assert list(answer) == ["token_embeddings", "dense"]
    assert answer["token_embeddings"].tolist() == [*ROWS.tolist(), *(-ROWS).tolist()]
    assert task.answer_size(FOUR, options) == (2 + 4 * 2 + 2) // 4


@pytest.mark.parametrize(
    ("parameters", "output", "says"),
    [
        ({}, ROWS[0], "representations: expected dense, since the model's output has a vector per text"),
        ({"dimensions": 1}, ROWS, "dimensions: expected no value for token_embeddings alone"),
        ({"precision": "binary"}, ROWS, "precision: expected no value for token_embeddings alone"),
    ],
)
def test_token_embeddings_need_them_in_the_output(parameters: Any, output: Any, says: str) -> None:
    task = make_task()
    with pytest.raises(InvalidInput, match=says):
        options = task.options({"representations": "token_embeddings", **parameters})
        task.answer("text", [[task.decode("text", FOUR, {"sentence_embedding": output}, options)]], options)
