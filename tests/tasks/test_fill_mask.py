"""Best tokens as text, and models whose graph ends in the task's own reduction, with outputs worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.core.contract import fit_signature, role_from_numbered_name
from hf_transformer.errors import ConfigError, InvalidInput, PredictorError
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings, TaskTokenizer
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.reduced import ReducedClassification, ReducedEmbedding, ReducedFillMask, fit_reduced
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from hf_transformer.types.tokenization import Encoding
from tests.support.triton_repository import DEMO_MODEL
from tests.tasks.task_settings import ENCODING, named, settings

MASK, SIZE = 3, 10_000


class Words:
    """A vocabulary that writes a token as its number."""

    vocab_size, mask_id, mask_token, pad_token_id = SIZE, MASK, "[MASK]", 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "+".join(f"word{number}" for number in ids)


def predicted(task: FillMask, *best: int) -> object:
    """The answer for a text with masks that these tokens belong to."""
    encoding = Encoding([1, *[MASK] * len(best), 2], [0] * (len(best) + 2))
    logits = np.zeros((len(encoding), SIZE + 5), np.float32)
    logits[:, SIZE:] = 9  # columns of no tokens
    for position, token in enumerate(best, start=1):
        logits[position, token] = 1
    return task.decode("", encoding, {"logits": logits}, task.options({}))


def made() -> FillMask:
    return FillMask(TaskSettings({"vocab_size": SIZE}, cast(TaskTokenizer, Words())))


@pytest.mark.parametrize("best", [(7,), (8,), (7, 8), (8, 7)], ids=str)
def test_the_best_tokens_of_all_masks_are_decoded_together(best: tuple[int, ...]) -> None:
    assert predicted(made(), *best) == "+".join(f"word{token}" for token in best)


def test_a_mask_without_a_best_token() -> None:
    task, nothing = made(), {"logits": np.full((2, SIZE), np.nan, np.float32)}
    with pytest.raises(PredictorError, match="not finite"):
        task.decode("", Encoding([1, MASK], [0, 0]), nothing, task.options({}))


# Models whose graph ends in the task's own reduction

TOP = ("topk_ids", "topk_scores")
PIPELINE = {"output_format": "pipeline"}
SCORES = [0.5, 0.25, 0.125]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    files = find_model_files(None, str(DEMO_MODEL))
    return load_tokenizer(files.tokenizer_folder, files.config)


@pytest.fixture
def fill_mask(tokenizer: Tokenizer) -> ReducedFillMask:
    return cast(ReducedFillMask, fit_reduced(FillMask(TaskSettings({}, tokenizer)), TOP))


def ids(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    return [cast(int, tokenizer.token_to_id(token)) for token in tokens]


def outputs(*rows: list[int], scores: list[float] | None = None) -> dict[str, Any]:
    """Three tokens for each mask, and the row of a mask that belongs to a longer text of the batch."""
    other = [[5, 6, 7]]
    return {
        "topk_ids": np.array([*rows, *other], np.int64),
        "topk_scores": np.array([scores or SCORES] * (len(rows) + 1), np.float32),
    }


@pytest.mark.parametrize(
    ("task", "names", "reader"),
    [
        (FillMask, TOP, ReducedFillMask),
        (FillMask, ("topk_ids__0", "topk_scores__1"), ReducedFillMask),
        (FillMask, ("topk_ids",), FillMask),
        (FillMask, ("logits",), FillMask),
        (FillMask, ("logits", *TOP), FillMask),
        (SequenceClassification, ("probabilities",), ReducedClassification),
        (SequenceClassification, ("probabilities__0",), ReducedClassification),
        (SequenceClassification, ("logits", "probabilities"), SequenceClassification),
        (TokenClassification, ("probabilities",), TokenClassification),
        (TextEmbedding, ("sentence_embedding", "embedding_norm"), ReducedEmbedding),
        (TextEmbedding, ("sentence_embedding",), TextEmbedding),
        (TextEmbedding, ("last_hidden_state",), TextEmbedding),
    ],
)
def test_the_names_of_the_outputs_tell(tokenizer: Tokenizer, task: Any, names: tuple[str, ...], reader: Any) -> None:
    found = fit_reduced(task(TaskSettings(named("a", "b", hidden_size=2), tokenizer)), names)
    assert type(found) is reader and found.name == task.name
    for flag, says in (("return_probabilities", "its best tokens"), ("return_raw_logits", r"\w+.*")):
        if reader is ReducedFillMask or (reader is ReducedClassification and flag == "return_raw_logits"):
            settings = replace(TaskSettings(named("a", "b"), tokenizer), **cast(Any, {flag: True}))
            assert fit_reduced(task(settings), ("logits",)).name == task.name
            with pytest.raises(ConfigError, match=f"--{flag}: the model gives {says} alone"):
                fit_reduced(task(settings), names)


def test_numbered_outputs_are_bound(fill_mask: ReducedFillMask) -> None:
    spec = ModelSpec(
        "m",
        "1",
        tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids__0", "attention_mask__1")),
        (TensorSpec("topk_ids__0", "INT64", (-1, 10)), TensorSpec("topk_scores__1", "FP32", (-1, 10))),
        8,
        False,
    )
    binding = fit_signature(spec, fill_mask.outputs, task="fill_mask")
    assert [(one.name, one.role) for one in binding.outputs] == [("topk_ids__0", TOP[0]), ("topk_scores__1", TOP[1])]
    assert [(one.name, one.role) for one in binding.inputs] == [
        ("input_ids__0", "input_ids"),
        ("attention_mask__1", "attention_mask"),
    ]
    assert binding.masked
    chosen = fit_signature(spec, fill_mask.outputs, input_names=("input_ids", "attention_mask"), task="fill_mask")
    assert chosen.inputs == binding.inputs
    assert [role_from_numbered_name(name, ("input_ids",)) for name in ("input_ids__0", "input_ids")] == [
        "input_ids"
    ] * 2
    for other in ("INPUT__0", "input_ids__x", "other__0"):
        assert role_from_numbered_name(other, ("input_ids",)) == other


def decode(task: ReducedFillMask, tokenizer: Tokenizer, text: str, found: Any, parameters: Any) -> Any:
    (encoding,) = tokenizer.encode([text])
    return task.decode("", encoding, found, task.options(parameters))


ONE, TWO = "the capital of france is [MASK].", "[MASK] is the capital of [MASK]."


def test_one_mask(fill_mask: ReducedFillMask, tokenizer: Tokenizer) -> None:
    best = ids(tokenizer, "paris", "rome", "oslo")
    assert decode(fill_mask, tokenizer, ONE, outputs(best), {}) == "paris"
    assert decode(fill_mask, tokenizer, ONE, outputs(best), PIPELINE | {"top_k": 2}) == [
        {"score": 0.5, "token": best[0], "token_str": "paris", "sequence": "the capital of france is paris."},
        {"score": 0.25, "token": best[1], "token_str": "rome", "sequence": "the capital of france is rome."},
    ]
    with pytest.raises(InvalidInput, match=r"parameters\.top_k: 4, and the model gives 3 tokens per mask"):
        decode(fill_mask, tokenizer, ONE, outputs(best), PIPELINE | {"top_k": 4})
    with pytest.raises(PredictorError):
        decode(fill_mask, tokenizer, ONE, outputs(best, scores=[float("nan"), 0.1, 0.1]), {})
    rows = [best, ids(tokenizer, "france", "italy", "norway")]
    assert decode(fill_mask, tokenizer, TWO, outputs(*rows), {}) == "paris france"
    found = decode(fill_mask, tokenizer, TWO, outputs(*rows), PIPELINE)
    assert [[one["token"] for one in mask] for mask in found] == rows, "three, where five are usual"
    assert found[1][0]["sequence"] == "[CLS] [MASK] is the capital of france. [SEP]"
    for given in ({"return_probabilities": True}, {"return_raw_logits": True}, {**PIPELINE, "targets": ["paris"]}):
        name = list(given)[-1]
        with pytest.raises(InvalidInput, match=f"parameters.{name}: needs the whole vocabulary's logits"):
            fill_mask.options(given)


def classify(config: dict[str, Any], values: list[float], parameters: Any) -> Any:
    task = fit_reduced(SequenceClassification(settings(config)), ("probabilities",))
    found = {"probabilities": np.array(values, np.float32)}
    return task.decode("text", ENCODING, found, task.options(parameters))


def test_classification() -> None:
    config, values = named("bad", "fine", "good"), [0.25, 0.125, 0.625]
    assert classify(config, values, {}) == 2
    assert classify(config, values, PIPELINE | {"top_k": 2}) == [
        {"label": "good", "score": 0.625},
        {"label": "bad", "score": 0.25},
    ]
    assert classify(config, values, {"return_probabilities": True}) == {"0": 0.25, "1": 0.125, "2": 0.625}
    assert classify(config, values, PIPELINE | {"function_to_apply": "softmax"})[0]["score"] == 0.625
    with pytest.raises(PredictorError):
        classify(config, [float("nan"), 0.5, 0.5], {})
    multi = named("rude", "loud", problem_type="multi_label_classification")
    assert classify(multi, [0.5, 0.75], PIPELINE | {"function_to_apply": "sigmoid", "top_k": None}) == [
        {"label": "loud", "score": 0.75},
        {"label": "rude", "score": 0.5},
    ]
    for labels, parameters, says in (
        (
            multi,
            PIPELINE | {"function_to_apply": "softmax"},
            r"function_to_apply: 'softmax' needs the logits, .* of si",
        ),
        (config, {"return_raw_logits": True}, "parameters.return_raw_logits"),
        (config, PIPELINE | {"function_to_apply": "none"}, "parameters.function_to_apply: 'none' needs the logits"),
        (config, PIPELINE | {"function_to_apply": "sigmoid"}, "parameters.function_to_apply: 'sigmoid' needs"),
    ):
        with pytest.raises(InvalidInput, match=says):
            classify(labels, values, parameters)


def embedding() -> Any:
    files = SentenceTransformers(pooling=("mean",), normalize=True)
    settings = TaskSettings({"hidden_size": 2}, cast(TaskTokenizer, None), sentence_transformers=files)
    return fit_reduced(TextEmbedding(settings), ("sentence_embedding", "embedding_norm"))


@pytest.mark.parametrize(
    ("parameters", "windows", "expected"),
    [
        ({}, [([0.6, 0.8], 5.0, 4)], [0.6, 0.8]),
        ({"normalize": False}, [([0.6, 0.8], 5.0, 4)], [3, 4]),  # as it was before
        ({"dimensions": 1, "normalize": True}, [([0.6, 0.8], 5.0, 4)], [1]),
        ({}, [([0.0, 0.0], 0.0, 4)], [0, 0]),
        ({"normalize": False}, [([0.6, 0.8], 5.0, 3), ([1.0, 0.0], 1.0, 1)], [(3 * 3 + 1) / 4, 4 * 3 / 4]),
        ({}, [([0.6, 0.8], 5.0, 3), ([1.0, 0.0], 1.0, 1)], [2.5 / np.hypot(2.5, 3), 3 / np.hypot(2.5, 3)]),
    ],
)
def test_windows_are_averaged_before_they_are_normalized(parameters: Any, windows: Any, expected: list[float]) -> None:
    """``windows`` have a vector, its norm and its tokens each."""
    task = embedding()
    options, parts = task.options(parameters), []
    for vector, norm, tokens in windows:
        found = {"sentence_embedding": np.array(vector, np.float32), "embedding_norm": np.array([norm], np.float32)}
        parts.append(task.decode("text", Encoding([5] * tokens, [0] * tokens), found, options))
    assert task.answer("text", [parts], options) == pytest.approx(expected)
    (vector, norm) = task.outputs
    assert [axis.maximum for axis in (*vector.axes, *norm.axes)] == [2, 1]
