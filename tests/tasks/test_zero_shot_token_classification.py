"""Prompts, windows and decoding of zero_shot_token_classification, without a model."""

from __future__ import annotations

import json
import shutil
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.pipelines import fit_task
from hf_transformer.config.options import parse_config
from hf_transformer.core.batch import PaddingPolicy
from hf_transformer.core.contract import ContractError, InputSignature, OutputSignature, Signature
from hf_transformer.core.labelled_batch import LabelledBatchBuilder, LabelledShape
from hf_transformer.core.scheduler import INLINE_COST
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, LoadError, PredictorError, TooLarge
from hf_transformer.tasks.base import Axis, TaskSettings
from hf_transformer.tasks.entity_spans import BorderScores, Candidates, WidthScores, choose
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification, check_architecture
from hf_transformer.tokenizer.files import model_config
from hf_transformer.tokenizer.labelled import word_windows
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from hf_transformer.types.tokenization import LabelledEncoding, Tokenization
from tests.support.triton_repository import task_model_folder

LABELS = ["person", "city"]
LONG = "Anna Smith lives in Berlin and works for Siemens. " * 40


@pytest.fixture(scope="module", params=["gliner", "gliner_token"])
def task(request: pytest.FixtureRequest) -> ZeroShotTokenClassification:
    return made(task_model_folder(request.param))


def made(folder: Path, **flags: Any) -> ZeroShotTokenClassification:
    config = model_config(folder, required=True)
    tokenizer = load_tokenizer(folder, config)
    settings = TaskSettings(config, tokenizer, max_length=tokenizer.max_length, flags=flags)
    return ZeroShotTokenClassification(settings)


def encoded(task: ZeroShotTokenClassification, instance: Any, **parameters: Any) -> list[LabelledEncoding]:
    options = task.options(parameters)
    texts = task.texts(task.item(instance, ("instances", 0), options), options)
    [windows] = task.settings.vocabulary.encode_windows(texts, options.tokenization)
    assert all(isinstance(window, LabelledEncoding) for window in windows)
    return windows  # type: ignore[return-value]


def overlaps(one: tuple[int, int], other: tuple[int, int], nested: bool) -> bool:
    """As in the library: nested spans overlap only without ``nested``."""
    apart = one[0] > other[1] or other[0] > one[1]
    inside = (one[0] <= other[0] and one[1] >= other[1]) or (other[0] <= one[0] and other[1] >= one[1])
    return not (apart or (nested and inside))


def test_a_prompt_has_a_marker_before_each_label_and_words_are_numbered(task: ZeroShotTokenClassification) -> None:
    [window] = encoded(task, {"text": "Anna lives.", "labels": LABELS})
    tokens = [task.settings.vocabulary.id_to_token(number) for number in window.ids]
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert [token for token in tokens if token in ("<<ENT>>", "<<SEP>>")] == ["<<ENT>>", "<<ENT>>", "<<SEP>>"]
    assert [number for number in window.words_mask if number] == [1, 2, 3]
    assert window.words == [(0, 4), (5, 10), (10, 11)] and window.labels == 2
    assert window.words_mask.index(1) == tokens.index("<<SEP>>") + 1


@pytest.mark.parametrize("text", ["Zoe\u0308 in Berlin", "😀 אבג مرحبا 東京", "a\u200bb", "x@y.de +49-30 a_b-c"])
def test_words_are_characters_of_the_text(task: ZeroShotTokenClassification, text: str) -> None:
    [window] = encoded(task, {"text": text, "labels": LABELS})
    assert max(window.words_mask) == len(window.words)
    ends = [end for word in window.words for end in word]
    assert ends == sorted(ends) and ends[-1] <= len(text)
    assert {*range(1, len(window.words) + 1)} == {*window.words_mask} - {0}


def test_a_mark_that_the_tokenizer_removes_belongs_to_its_word(task: ZeroShotTokenClassification) -> None:
    [window] = encoded(task, {"text": "Zoe\u0308 in", "labels": LABELS})
    assert window.words == [(0, 4), (5, 7)]


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, False),
        ({"span_mode": "markerV1"}, True),
        ({"span_mode": "markerV2"}, True),
        ({"span_mode": "conv_max"}, False),
        ({"span_encoder_config": {"model_type": "rnn"}}, True),
    ],
)
def test_layers_that_read_padded_words(changes: dict[str, Any], reads: bool) -> None:
    folder = task_model_folder("gliner")
    config = model_config(folder, required=True)
    config["gliner"] |= changes
    tokenizer = load_tokenizer(folder, config)
    settings = TaskSettings(config, tokenizer, max_length=tokenizer.max_length)
    assert ZeroShotTokenClassification(settings).reads_word_padding is reads


def test_markers_that_a_client_writes_are_no_markers(task: ZeroShotTokenClassification) -> None:
    """In a text the splitter takes them apart; a label must not have them."""
    [window] = encoded(task, {"text": "<<ENT>> <<SEP>>", "labels": ["a"]})
    marker = task.settings.vocabulary.token_to_id("<<ENT>>") or -1
    assert window.ids.count(marker) == 1
    with pytest.raises(InvalidInput, match="without the tokens <<ENT>>"):
        encoded(task, {"text": "a", "labels": ["a <<ENT>> b"]})


def test_a_long_text_is_cut_or_refused_or_read_in_windows(task: ZeroShotTokenClassification) -> None:
    instance = {"text": LONG, "labels": LABELS}
    [cut] = encoded(task, instance, truncation=True)
    assert cut.truncated and len(cut.words) == 100
    windows = encoded(task, instance, stride=20)
    assert len(windows) > 1 and not any(window.truncated for window in windows)
    covered = {number for window in windows for number in range(window.first, window.first + len(window.words))}
    assert covered == {*range(len(LONG.split()) + 40)}
    assert [window.after for window in windows[:-1]] == [
        range(window.first, window.first + len(window.words)) for window in windows[1:]
    ]
    with pytest.raises(ContextLengthExceeded, match="labels that leave room"):
        encoded(task, {"text": "a", "labels": [f"label {number}" for number in range(200)]})


@pytest.mark.parametrize("most", [3, 50])
def test_windows_hold_at_most_the_room_and_always_proceed(most: int) -> None:
    draw = np.random.default_rng(5)
    for stride in (0, 1, 5, 99):
        sizes = draw.integers(1, 11, 200)
        windows = word_windows(sizes, 10, most, Tokenization(windows=True, stride=stride), around=3)
        assert windows[0].start == 0 and windows[-1].stop == 200
        assert all(sizes[window.start : window.stop].sum() <= 10 and len(window) <= most for window in windows)
        pairs = list(pairwise(windows))
        assert all(one.start < other.start <= one.stop < other.stop for one, other in pairs)


@pytest.mark.parametrize("nested", [False, True])
def test_spans_are_chosen_as_by_comparing_each_with_all_better_ones(nested: bool) -> None:
    draw = np.random.default_rng(7)
    for _ in range(50):
        spans = draw.permutation([(a, b) for a, b in combinations(range(12), 2)] + [(a, a) for a in range(12)])[:40]
        scores = draw.random(len(spans)).astype(np.float32)
        expected: list[int] = []
        for index in np.argsort(-scores, kind="stable").tolist():
            if not any(overlaps(tuple(spans[index]), tuple(spans[other]), nested) for other in expected):
                expected.append(index)
        assert choose(Candidates(spans[:, 0], spans[:, 1], scores), nested=nested) == expected


def test_a_batch_may_have_words_of_a_call_that_the_predictor_joins_with_it() -> None:
    """Triton's dynamic batcher joins calls of a token-level model whose inputs have the same shapes."""
    names = ("input_ids", "attention_mask")
    ids, mask = (InputSignature(name, name, "INT64") for name in names)
    extras = tuple(InputSignature(name, name, "INT64") for name in ("words_mask", "text_lengths"))
    axes = (Axis(name="words"), Axis(name="labels"), Axis(name="kinds", minimum=3, maximum=3))
    logits = OutputSignature("logits", "logits", "FP32", axes, (-1, -1, 3))
    signature = Signature((ids, mask), (logits,), 8, None, True, None, True, extras)
    builder = LabelledBatchBuilder(signature, PaddingPolicy(0, left=False), LabelledShape(1, False))
    texts = [
        LabelledEncoding([5] * size, [0] * size, words=[(0, 1)] * words, words_mask=[0, *range(1, size)], labels=2)
        for size, words in ((4, 3), (3, 2))
    ]
    packed = builder.pack(texts)
    scores = np.arange(2 * 5 * 3 * 3, dtype=np.float32).reshape(2, 5, 3, 3)
    rows = [row["logits"] for row in builder.unpack(texts, packed, {"logits": Tensor("logits", "FP32", scores)})]
    assert [row.shape for row in rows] == [(3, 2, 3), (2, 2, 3)]
    assert all((row == scores[number, : len(row), :2]).all() for number, row in enumerate(rows))
    short = Tensor("logits", "FP32", scores[:, :2])
    with pytest.raises(PredictorError, match="2 words and 3 labels, expected at least 3 and 2"):
        list(builder.unpack(texts, packed, {"logits": short}))


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_dynamic_batcher_and_an_encoder_above_the_words_exclude_each_other(tmp_path: Path, dynamic: bool) -> None:
    folder = shutil.copytree(task_model_folder("gliner_token"), tmp_path / "model")
    file = folder / "gliner_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"span_encoder_config": {"hidden_size": 8}}))
    inputs = ("input_ids", "attention_mask", "words_mask")
    spec = ModelSpec(
        "gliner",
        "1",
        (*(TensorSpec(name, "INT64", (-1,)) for name in inputs), TensorSpec("text_lengths", "INT64", (1,))),
        (TensorSpec("logits", "FP32", (-1, -1, 3)),),
        8,
        dynamic_batching=dynamic,
    )
    config, _ = parse_config([f"--model_dir={folder}", "--model_name=gliner", "--predictor_host=127.0.0.1:1"], {})
    if dynamic:
        with pytest.raises(ContractError, match="remove dynamic_batching"):
            fit_task(config, made(folder), spec)
    else:
        fit_task(config, made(folder), spec)


@pytest.mark.parametrize("words", [10, 2000])
def test_many_spans_are_chosen_in_a_thread(task: ZeroShotTokenClassification, words: int) -> None:
    """A usual text is decoded on the event loop; choosing among all spans of a long one would block it."""
    encoding = LabelledEncoding([1] * words, [0] * words, words=[(0, 1)] * words, labels=3)
    for nested in (False, True):
        options = task.options({"labels": "a,b,c", "threshold": 0, "flat_ner": not nested})
        assert (task.decode_cost(encoding, options) > INLINE_COST) == (words > 10)


def test_a_gliner_folder_is_read_with_or_without_a_config_of_the_encoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 5}')
    (tmp_path / "gliner_config.json").write_text('{"max_len": 7, "playground": {"note": "Small."}}')
    config = model_config(tmp_path, required=True)
    assert (config["architectures"], config["hidden_size"], config["gliner"]["max_len"]) == (["GLiNER"], 5, 7)
    assert config["playground"] == {"note": "Small."}
    (tmp_path / "gliner_config.json").write_text('{"encoder_config": {"hidden_size": 6}}')
    assert model_config(tmp_path, required=True)["hidden_size"] == 6


def test_a_token_level_span_has_the_lowest_score_of_its_parts() -> None:
    draw = np.random.default_rng(9)
    logits = draw.normal(0, 2, (9, 3, 3)).astype(np.float32)
    start, end, inside = np.moveaxis(1 / (1 + np.exp(-logits)), 2, 0)
    found = BorderScores(logits).candidates(0.3, 100)
    expected = {}
    for first in range(9):
        for last in range(first, 9):
            lowest = inside[first : last + 1].min(axis=0)
            valid = (lowest >= 0.3) & (start[first] > 0.3) & (end[last] > 0.3)
            if valid.any():
                scores = np.minimum(np.minimum(lowest, start[first]), end[last])
                expected[first, last] = scores[valid].max()
    spans = zip(found.firsts.tolist(), found.lasts.tolist(), strict=True)
    assert dict(zip(spans, found.scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-6)


def test_spans_do_not_leave_the_text() -> None:
    found = WidthScores(np.full((3, 2, 1), 5, np.float32)).candidates(0.5, 12)
    assert list(zip(found.firsts.tolist(), found.lasts.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 1),
        (1, 2),
        (2, 2),
    ]


@pytest.mark.parametrize(
    ("instance", "parameters", "error", "message"),
    [
        ("Anna", {}, InvalidInput, r"instances\[0\]: expected labels in the instance, in parameters or by --labels"),
        ({"text": "Anna", "labels": []}, {}, InvalidInput, "labels"),
        ({"text": "Anna", "labels": [" "]}, {}, InvalidInput, "a label, got an empty one"),
        ({"text": "Anna", "labels": ["x" * 201]}, {}, TooLarge, "at most 200 characters, got 201"),
        ({"text": "Anna", "labels": ["x"] * 251}, {}, TooLarge, "at most 250 labels, got 251"),
        ({"text": "Anna", "label": ["x"]}, {}, InvalidInput, r"instances\[0\]: expected a string or"),
        ("Anna", {"labels": "person", "threshold": 1.5}, InvalidInput, "threshold: expected .* from 0 to 1"),
        ("Anna", {"labels": "person", "stride": 3, "truncation": True}, InvalidInput, "stride: .* got both"),
    ],
)
def test_wrong_requests_are_refused(
    task: ZeroShotTokenClassification, instance: Any, parameters: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        encoded(task, instance, **parameters)


def test_labels_have_defaults_by_flag_and_each_counts_once() -> None:
    task = made(task_model_folder("gliner"), labels="person, city,person")
    assert task.info() == {"default_labels": ["person", "city"]}
    [window] = encoded(task, "Anna")
    assert window.labels == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels_encoder": "bge", "labels_decoder": "gpt2"}, "decoder"),
        ({"labels_decoder": "gpt2"}, "decoder"),
        ({"relations_layer": "dot"}, "relations"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type: expected whitespace, got 'spacy'"),
    ],
)
def test_folders_that_the_task_can_not_serve_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        check_architecture(settings)
