"""Pooling and decoding with numbers that can be worked out by hand; the goldens are in tests/integration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import ConfigError, InvalidInput, PredictorError, TooLarge
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.pooling import POOLING, hidden_axis, pool, unit
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.sentence_transformers import POOLING_FLAGS
from hf_transformer.types import Encoding, TextInput, TokenIds

ROWS = np.array([[1, 8], [3, -2], [5, 0], [7, 2]], np.float32)
BERT = {"hidden_size": 2}


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


def task(files: SentenceTransformers | None = None, special_tokens: bool = True, **settings: Any) -> TextEmbedding:
    vocabulary: Any = Letters(special_tokens)
    return TextEmbedding(TaskSettings(BERT, vocabulary, sentence_transformers=files, **settings))


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


def test_several_modes_are_joined() -> None:
    assert pool(ROWS, ["cls", "max", "mean"]) == pytest.approx([1, 8, 7, 8, 4, 2])
    files = SentenceTransformers(pooling=("cls", "mean"))
    assert embed(task(files), [ROWS]) == pytest.approx([1, 8, 4, 2])
    assert embed(task(files), [ROWS], {"dimensions": 3}) == pytest.approx([1, 8, 4])


def test_the_modes_are_those_of_the_files() -> None:
    assert set(POOLING) == set(POOLING_FLAGS.values())


def test_half_precision_is_summed_in_float32() -> None:
    rows = np.full((4096, 2), 40, np.float16)
    assert pool(rows, ["mean"]) == pytest.approx([40, 40])


def test_unit() -> None:
    assert unit(np.array([3, -4], np.float32)) == pytest.approx([0.6, -0.8])
    assert unit(np.zeros(2, np.float32)) == pytest.approx([0, 0])
    assert unit(np.array([3, -4], np.float32)).dtype == np.float32


ORDERS = [
    (SentenceTransformers(), {}, [4, 2]),
    (SentenceTransformers(), {"dimensions": 1}, [4]),
    (SentenceTransformers(), {"normalize": True, "dimensions": 1}, [1]),
    (SentenceTransformers(normalize=True), {}, [4 / np.sqrt(20), 2 / np.sqrt(20)]),
    (SentenceTransformers(normalize=True), {"dimensions": 1}, [4 / np.sqrt(20)]),
    (SentenceTransformers(normalize=True), {"dimensions": 1, "normalize": True}, [1]),
    (SentenceTransformers(normalize=True), {"dimensions": 1, "normalize": False}, [4]),
    (SentenceTransformers(truncate_dim=1), {}, [4]),
    (SentenceTransformers(truncate_dim=1), {"dimensions": 2}, [4, 2]),
    (SentenceTransformers(truncate_dim=9), {}, [4, 2]),
    (None, {}, [4 / np.sqrt(20), 2 / np.sqrt(20)]),
    (None, {"dimensions": 1}, [1]),
    (None, {"normalize": False}, [4, 2]),
]


@pytest.mark.parametrize(("files", "parameters", "expected"), ORDERS)
def test_normalization_and_dimensions(files: Any, parameters: Any, expected: list[float]) -> None:
    assert embed(task(files), [ROWS], parameters) == pytest.approx(expected)


def test_more_dimensions_than_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"parameters\.dimensions: 3.*have 2"):
        embed(task(), [ROWS], {"dimensions": 3})


def test_pooled_vectors_are_taken_as_they_are() -> None:
    vector = np.array([3, 4], np.float32)
    files = SentenceTransformers(pooling=("cls", "max"))
    assert embed(task(files), [vector]) == pytest.approx([3, 4])
    assert embed(task(), [vector]) == pytest.approx([0.6, 0.8])


def test_windows_weigh_as_much_as_they_have_tokens() -> None:
    one = task(SentenceTransformers(), on_overflow="window")
    assert embed(one, [ROWS, ROWS[:1]]) == pytest.approx([(4 * 4 + 1) / 5, (2 * 4 + 8) / 5])
    assert embed(one, [ROWS[:3], ROWS[3:]]) == pytest.approx(embed(one, [ROWS]))


def test_a_prompt_that_is_not_pooled() -> None:
    files = SentenceTransformers(prompts={"q": "qq"}, include_prompt=False)
    rows = np.array([[9, 9], [9, 9], [9, 9], [1, 2], [3, 4]], np.float32)
    assert embed(task(files), [rows], {"prompt_name": "q"}) == pytest.approx([2, 3])  # 0 q q are left out
    assert embed(task(files), [rows], {"prompt": "pp"}) == pytest.approx([2, 3])
    assert embed(task(files, special_tokens=False), [rows], {"prompt": "ppp"}) == pytest.approx([2, 3])
    assert embed(task(files), [rows]) == pytest.approx(rows.mean(axis=0))
    assert embed(task(files), [rows], {"prompt": ""}) == pytest.approx(rows.mean(axis=0))


def test_a_prompt_that_is_not_pooled_stands_in_the_first_window() -> None:
    files = SentenceTransformers(include_prompt=False)
    one = task(files, on_overflow="window")
    first, second = np.array([[9, 9], [9, 9], [1, 2]], np.float32), np.array([[3, 4]], np.float32)
    expected = [(3 * 1 + 3) / 4, (3 * 2 + 4) / 4]
    assert embed(one, [first, second], {"prompt": "p"}) == pytest.approx(expected)


def test_a_prompt_that_leaves_no_room() -> None:
    one = task(SentenceTransformers(include_prompt=False), max_length=6)
    assert one.options({"prompt": "ppp"}).skips == (4,)
    with pytest.raises(InvalidInput, match=r"parameters\.prompt: leaves no room for text in the 6 tokens"):
        one.options({"prompt": "pppp"})


def test_a_text_that_melts_with_the_prompt() -> None:
    one = task(SentenceTransformers(include_prompt=False))
    assert embed(one, [ROWS], {"prompt": "ppppppp"}) == pytest.approx([7, 2])


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


def test_windows_are_asked_of_the_tokenizer() -> None:
    one = task(on_overflow="window", max_length=100)
    options = one.options({})
    assert (one.tokenization(options).windows, one.tokenization(options).stride) == (True, 25)
    assert one.tokenization(one.options({"stride": 3})).stride == 3
    assert one.overflow(options) == "window"
    options = one.options({"truncation": False})
    assert (one.tokenization(options).windows, one.overflow(options)) == (False, "error")
    assert task(on_overflow="window", stride=7).options({}).stride == 7


def test_answer_sizes() -> None:
    encoding = Encoding([1, 2, 3], [0] * 3)
    one = task(SentenceTransformers(pooling=("cls", "max")))
    assert [one.answer_size(encoding, one.options(given)) for given in ({}, {"dimensions": 3})] == [4, 3]
    vocabulary: Any = Letters()
    other = FeatureExtraction(TaskSettings(BERT, vocabulary))
    assert other.answer_size(encoding, other.options({})) == 6


def test_pooling_costs_as_much_as_there_are_tokens() -> None:
    one = task(SentenceTransformers(pooling=("cls", "max")))
    short, long = Encoding([1, 2, 3], [0] * 3), Encoding([1] * 90, [0] * 90)
    assert [one.decode_cost(encoding, one.options({"dimensions": 1})) for encoding in (short, long)] == [3, 90]
    assert one.decode_cost(short, one.options({})) == 4


@pytest.mark.parametrize("made", [TextEmbedding, FeatureExtraction])
@pytest.mark.parametrize("flag", ["return_probabilities", "return_raw_logits"])
def test_flags_without_a_meaning(made: Any, flag: str) -> None:
    vocabulary: Any = Letters()
    flags: dict[str, Any] = {flag: True}
    with pytest.raises(ConfigError, match=f"--{flag}: {made.name} has no such answers"):
        made(TaskSettings(BERT, vocabulary, **flags))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_no_numbers(value: float) -> None:
    rows = ROWS.copy()
    rows[2, 1] = value
    with pytest.raises(PredictorError, match="NaN or infinite"):
        embed(task(), [rows])
    vocabulary: Any = Letters()
    other = FeatureExtraction(TaskSettings(BERT, vocabulary))
    with pytest.raises(PredictorError, match="NaN or infinite"):
        other.decode("text", Encoding([1] * 4, [0] * 4), {"last_hidden_state": rows}, other.options({}))


def test_features_are_a_copy_in_float32() -> None:
    vocabulary: Any = Letters()
    one = FeatureExtraction(TaskSettings(BERT, vocabulary))
    rows = np.asfortranarray(ROWS.astype(np.float16))
    options = one.options({})
    part = one.decode("text", Encoding([1] * 4, [0] * 4), {"last_hidden_state": rows}, options)
    answer = one.answer("text", [[part]], options)
    assert answer.dtype == np.float32 and answer.flags.c_contiguous
    assert answer.tolist() == [ROWS.tolist()]


def test_the_finished_vector_is_required_of_a_model_with_more_modules() -> None:
    (role,) = task(SentenceTransformers(inside="Dense")).outputs
    assert [axis.name for axis in role.axes] == ["embedding after Dense"] and not role.other_axes
    (role,) = task().outputs
    assert [axis.name for axis in role.axes] == ["tokens", "hidden"] and len(role.other_axes[0]) == 1


@pytest.mark.parametrize(
    ("config", "size"), [({"hidden_size": 48}, 48), ({"dim": 32}, 32), ({"d_model": 8}, 8), ({"n_embd": 4}, 4)]
)
def test_the_size_of_a_tokens_vector_is_known(config: Any, size: int) -> None:
    axis = hidden_axis(config)
    assert (axis.minimum, axis.maximum) == (size, size)


def test_the_size_of_a_tokens_vector_is_not_known() -> None:
    axis = hidden_axis({"text_config": {"hidden_size": 3}})
    assert (axis.minimum, axis.maximum) == (1, None)


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


@pytest.mark.parametrize(
    ("given", "parameters", "kind", "says"),
    [
        ([], {}, InvalidInput, "input: expected a list of token ids, got an empty list"),
        ("a", {}, InvalidInput, "input: expected a list of token ids, got a string"),
        ([5, "a"], {}, InvalidInput, "input: token 1 is a string, expected a whole number"),
        ([5, True], {}, InvalidInput, "input: token 1 is a boolean, expected a whole number"),
        ([5, 128], {}, InvalidInput, "input: token 1 is 128, expected 0 to 127"),
        ([-1, 5], {}, InvalidInput, "input: token 0 is -1, expected 0 to 127"),
        ([5] * 7, {}, TooLarge, "input: 7 token ids, at most 6 are taken"),
        ([5], {"prompt": "p"}, InvalidInput, "parameters.prompt: can't be put in front of token ids"),
        ([5], {"prompt_name": "q"}, InvalidInput, "parameters.prompt_name: can't be put in front of token ids"),
    ],
    ids=str,
)
def test_wrong_token_ids(given: Any, parameters: Any, kind: type[Exception], says: str) -> None:
    one = task(SentenceTransformers(prompts={"q": "Q "}), max_length=6)
    with pytest.raises(kind) as raised:
        one.item({"token_ids": given}, "input", one.options(parameters))
    assert says in str(raised.value)
