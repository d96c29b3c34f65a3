"""Pooling and decoding with numbers that can be worked out by hand; the goldens are in tests/integration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, PredictorError, TooLarge
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.pooling import POOLING, hidden_axis, pool
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.sentence_transformers import POOLING_FLAGS
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds

ROWS = np.array([[1, 8], [3, -2], [5, 0], [7, 2]], np.float32)
BERT = {"hidden_size": 2}
FOUR = Encoding([1] * 4, [0] * 4)


class Letters:
    """A tokenizer with a token per letter, between 0 and 1 where special tokens are added."""

    vocab_size = 128
    mask_id = mask_token = pad_token_id = unk_id = cls_id = None
    marks_subwords = False

    def __init__(self, special_tokens: bool = True) -> None:
        self.special_tokens = special_tokens

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        ids = [list(map(ord, text)) for text in texts if isinstance(text, str)]
        framed = [[0, *one, 1] for one in ids] if self.special_tokens else ids
        return [Encoding(one, [0] * len(one)) for one in framed]


LETTERS: Any = Letters()


def task(files: SentenceTransformers | None = None, special_tokens: bool = True, **settings: Any) -> TextEmbedding:
    vocabulary: Any = Letters(special_tokens)
    return TextEmbedding(TaskSettings(BERT, vocabulary, sentence_transformers=files, **settings))


def features() -> FeatureExtraction:
    return FeatureExtraction(TaskSettings(BERT, LETTERS))


def embed(one: TextEmbedding, windows: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[float]:
    """The embedding of a text from its windows' output."""
    options = one.options(parameters or {})
    parts = []
    for output in windows:
        encoding = Encoding([5] * (len(output) if output.ndim == 2 else 4), [0] * 4)
        parts.append(one.decode("text", encoding, {"sentence_embedding": output}, options))
    answer = one.answer("text", [parts], options)
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
def test_pooling(mode: str, whole: list[float], after_one: list[float], dtype: Any) -> None:
    rows = ROWS.astype(dtype)
    found = pool(rows, [mode])
    assert found.dtype == np.float32 and not np.shares_memory(found, rows)
    assert found == pytest.approx(whole)
    assert pool(rows, [mode], skip=1) == pytest.approx(after_one)
    assert pool(np.full((4096, 2), 40, np.float16), ["mean"]) == pytest.approx([40, 40]), "summed in float32"
    assert set(POOLING) == set(POOLING_FLAGS.values())


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
        (TWO, VECTOR, {}, [3, 4]),  # a pooled vector is taken as it is
        (None, VECTOR, {}, [0.6, 0.8]),
    ],
)
def test_normalization_and_dimensions(files: Any, output: Any, parameters: Any, expected: list[float]) -> None:
    assert embed(task(files), [output], parameters) == pytest.approx(expected)
    with pytest.raises(InvalidInput, match=r"parameters\.dimensions: 9.*have"):
        embed(task(files), [output], {"dimensions": 9})


def test_windows_weigh_as_much_as_they_have_tokens() -> None:
    one = task(SentenceTransformers(include_prompt=False), on_overflow="window")
    assert embed(one, [ROWS, ROWS[:1]]) == pytest.approx([(4 * 4 + 1) / 5, (2 * 4 + 8) / 5])
    assert embed(one, [ROWS[:3], ROWS[3:]]) == pytest.approx(embed(one, [ROWS]))
    # A prompt that is not pooled stands in the first one.
    first, second = np.array([[9, 9], [9, 9], [1, 2]], np.float32), np.array([[3, 4]], np.float32)
    assert embed(one, [first, second], {"prompt": "p"}) == pytest.approx([(3 * 1 + 3) / 4, (3 * 2 + 4) / 4])
    for settings, parameters, asked in (
        ({"on_overflow": "window"}, {}, (True, 25, "window")),
        ({"on_overflow": "window"}, {"stride": 3}, (True, 3, "window")),
        ({"on_overflow": "window", "stride": 7}, {}, (True, 7, "window")),
        ({"on_overflow": "window"}, {"truncation": False}, (False, 0, "error")),
        ({}, {}, (False, 0, "truncate")),
    ):
        one = task(max_length=100, **cast(Any, settings))
        options = one.options(cast(Any, parameters))
        how = one.tokenization(options)
        assert (how.windows, how.stride, one.overflow(options)) == asked


@pytest.mark.parametrize(
    ("parameters", "special_tokens", "left_out"),
    [
        ({"prompt_name": "q"}, True, 3),  # 0 q q
        ({"prompt": "pp"}, True, 3),
        ({"prompt": "ppp"}, False, 3),
        ({}, True, 0),
        ({"prompt": ""}, True, 0),
        # One token is always left: the text may melt with the prompt.
        ({"prompt": "ppppppp"}, True, 4),
    ],
)
def test_a_prompt_that_is_not_pooled(parameters: Any, special_tokens: bool, left_out: int) -> None:
    one = task(SentenceTransformers(prompts={"q": "qq"}, include_prompt=False), special_tokens)
    rows = np.array([[9, 9], [9, 9], [9, 9], [1, 2], [3, 4]], np.float32)
    assert embed(one, [rows], parameters) == pytest.approx(rows[left_out:].mean(axis=0))
    short = task(SentenceTransformers(include_prompt=False), max_length=6)
    assert short.options({"prompt": "ppp"}).skips == (4,)
    with pytest.raises(InvalidInput, match=r"parameters\.prompt: leaves no room for text in the 6 tokens"):
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
def test_what_is_tokenized(files: Any, parameters: Any, expected: str) -> None:
    one = task(files)
    options = one.options(parameters)
    assert one.texts(one.item({"text": "Ab"}, "instances[0]", options), options) == (expected,)


def test_answer_sizes_and_costs() -> None:
    one = task(SentenceTransformers(pooling=("cls", "max")))
    short, long = Encoding([1, 2, 3], [0] * 3), Encoding([1] * 90, [0] * 90)
    assert [one.answer_size(short, one.options(given)) for given in ({}, {"dimensions": 3})] == [1, 1]
    assert features().answer_size(short, features().options({})) == 6
    # All tokens are pooled.
    assert [one.decode_cost(encoding, one.options({"dimensions": 1})) for encoding in (short, long)] == [3, 90]
    assert one.decode_cost(short, one.options({})) == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_no_numbers(value: float) -> None:
    rows = ROWS.copy()
    rows[2, 1] = value
    with pytest.raises(PredictorError, match="NaN or infinite"):
        embed(task(), [rows])
    with pytest.raises(PredictorError, match="NaN or infinite"):
        features().decode("text", FOUR, {"last_hidden_state": rows}, features().options({}))


def test_features_are_a_copy_in_float32() -> None:
    one, rows = features(), np.asfortranarray(ROWS.astype(np.float16))
    options = one.options({})
    answer = one.answer("text", [[one.decode("text", FOUR, {"last_hidden_state": rows}, options)]], options)
    assert answer.dtype == np.float32 and answer.flags.c_contiguous
    assert answer.tolist() == [ROWS.tolist()]


def test_the_axes_of_outputs() -> None:
    (role,) = task(SentenceTransformers(inside="Dense")).outputs
    assert [axis.name for axis in role.axes] == ["embedding after Dense"] and not role.other_axes
    (role,) = task().outputs
    assert [axis.name for axis in role.axes] == ["tokens", "hidden"] and len(role.other_axes[0]) == 1
    for name in ("hidden_size", "dim", "d_model", "n_embd"):
        assert (hidden_axis({name: 48}).minimum, hidden_axis({name: 48}).maximum) == (48, 48)
    assert (hidden_axis({"text_config": {"hidden_size": 3}}).minimum, hidden_axis({}).maximum) == (1, None)


def test_token_ids_are_the_whole_text() -> None:
    """A default prompt is neither put in front of them nor left out of what is pooled."""
    files = SentenceTransformers(prompts={"q": "qq"}, default_prompt_name="q", include_prompt=False)
    one = task(files, max_length=6)
    options = one.options({})
    item = one.item({"token_ids": [0, 5, 1]}, "input", options)
    assert item == TokenIds((0, 5, 1)) and one.texts(item, options) == (item,)
    part = one.decode(item, Encoding([0, 5, 1], [0] * 3), {"sentence_embedding": ROWS[:3]}, options)
    assert one.answer(item, [[part]], options) == pytest.approx([3, 2])
    assert one.item({"token_ids": [127]}, "input", one.options({"prompt": ""})) == TokenIds((127,))
    one = task(SentenceTransformers(prompts={"q": "Q "}), max_length=6)
    for given, parameters, kind, says in (
        ([], {}, InvalidInput, "input: expected a list of token ids, got an empty list"),
        ("a", {}, InvalidInput, "input: expected a list of token ids, got a string"),
        ([5, "a"], {}, InvalidInput, "input: token 1 is a string, expected a whole number"),
        ([5, True], {}, InvalidInput, "input: token 1 is a boolean, expected a whole number"),
        ([5, 128], {}, InvalidInput, "input: token 1 is 128, expected 0 to 127"),
        ([-1, 5], {}, InvalidInput, "input: token 0 is -1, expected 0 to 127"),
        ([5] * 7, {}, TooLarge, "input: 7 token ids, at most 6 are taken"),
        ([5], {"prompt": "p"}, InvalidInput, "parameters.prompt: can't be put in front of token ids"),
        ([5], {"prompt_name": "q"}, InvalidInput, "parameters.prompt_name: can't be put in front of token ids"),
    ):
        with pytest.raises(kind, match=f"^{re.escape(says)}"):
            one.item({"token_ids": given}, "input", one.options(cast(Any, parameters)))
