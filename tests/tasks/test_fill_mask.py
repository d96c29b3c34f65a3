"""fill_mask, and models whose graph ends in the task's own reduction, with outputs worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.core.contract import fit_signature, role_from_numbered_name
from hf_transformer.errors import ConfigError, InvalidInput, PredictorError
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.options import LOGITS
from hf_transformer.tasks.reduced import ReducedClassification, ReducedEmbedding, ReducedFillMask, fit_reduced
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from hf_transformer.types.tokenization import Encoding, TaskTokenizer
from tests.support.triton_repository import DEMO_MODEL
from tests.tasks.task_settings import ENCODING, named, settings

MASK, SIZE = 3, 10_000


class Words:
    """A vocabulary that decodes a token to its id."""

    vocab_size, mask_id, mask_token, pad_token_id = SIZE, MASK, "[MASK]", 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "+".join(f"word{number}" for number in ids)


@pytest.fixture
def plain() -> FillMask:
    return FillMask(TaskSettings({"vocab_size": SIZE}, cast(TaskTokenizer, Words())))


@pytest.mark.parametrize("best", [(7,), (8,), (7, 8), (8, 7)], ids=str)
def test_the_best_tokens_of_all_masks_are_decoded_together(plain: FillMask, best: tuple[int, ...]) -> None:
    encoding = Encoding([1, *[MASK] * len(best), 2], [0] * (len(best) + 2))
    logits = np.zeros((len(encoding), SIZE + 5), np.float32)
    logits[:, SIZE:] = 9  # columns beyond the vocabulary
    for position, token in enumerate(best, start=1):
        logits[position, token] = 1
    answer = plain.decode("", encoding, {"logits": logits}, plain.options({}))
    assert answer == "+".join(f"word{token}" for token in best)


def test_a_mask_with_nan_alone_is_refused(plain: FillMask) -> None:
    with pytest.raises(PredictorError, match="not finite"):
        nothing = {"logits": np.full((2, SIZE), np.nan, np.float32)}
        plain.decode("", Encoding([1, MASK], [0, 0]), nothing, plain.options({}))


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
    """Three tokens for each mask, and a row for a mask of a longer text in the batch."""
    return {
        "topk_ids": np.array([*rows, [5, 6, 7]], np.int64),
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
def test_the_names_of_the_outputs_choose_the_reader(tokenizer: Tokenizer, task: Any, names: Any, reader: Any) -> None:
    fitted = fit_reduced(task(TaskSettings(named("a", "b", hidden_size=2), tokenizer)), names)
    assert type(fitted) is reader and fitted.name == task.name


@pytest.mark.parametrize(
    ("task", "names", "flag", "answers"),
    [
        *[(FillMask, TOP, flag, "best tokens") for flag in LOGITS],
        (SequenceClassification, ("probabilities",), "return_raw_logits", "probabilities"),
    ],
)
def test_a_flag_for_logits_needs_a_model_with_logits(
    tokenizer: Tokenizer, task: Any, names: Any, flag: str, answers: str
) -> None:
    settings = TaskSettings(named("a", "b"), tokenizer, {flag: True})
    assert type(fit_reduced(task(settings), ("logits",))) is task
    with pytest.raises(ConfigError, match=rf"^--{flag}: .*{answers} alone"):
        fit_reduced(task(settings), names)


def test_numbered_inputs_and_outputs_are_matched_by_name(fill_mask: ReducedFillMask) -> None:
    roles = ("input_ids", "attention_mask")
    inputs = [(f"{role}__{index}", role) for index, role in enumerate(roles)]
    outputs = [(f"{role}__{index}", role) for index, role in enumerate(TOP)]
    specs = [TensorSpec(f"{TOP[0]}__0", "INT64", (-1, 10)), TensorSpec(f"{TOP[1]}__1", "FP32", (-1, 10))]
    spec = ModelSpec("m", "1", tuple(TensorSpec(name, "INT64", (-1,)) for name, _ in inputs), tuple(specs), 8)
    binding = fit_signature(spec, fill_mask.outputs, task="fill_mask")
    assert [(output.name, output.role) for output in binding.outputs] == outputs
    assert [(tensor.name, tensor.role) for tensor in binding.inputs] == inputs
    assert binding.masked
    chosen = fit_signature(spec, fill_mask.outputs, input_names=roles, task="fill_mask")
    assert chosen.inputs == binding.inputs
    assert role_from_numbered_name("input_ids__0", roles) == "input_ids"
    for name in ("INPUT__0", "input_ids__x", "other__0", "input_ids"):
        assert role_from_numbered_name(name, roles) == name


def decode(task: ReducedFillMask, tokenizer: Tokenizer, text: str, values: Any, parameters: Any) -> Any:
    (encoding,) = tokenizer.encode([text])
    return task.decode("", encoding, values, task.options(parameters))


ONE, TWO = "the capital of france is [MASK].", "[MASK] is the capital of [MASK]."


def test_a_reduced_model_answers_one_mask(fill_mask: ReducedFillMask, tokenizer: Tokenizer) -> None:
    best = ids(tokenizer, "paris", "rome", "oslo")
    assert decode(fill_mask, tokenizer, ONE, outputs(best), {}) == "paris"
    assert decode(fill_mask, tokenizer, ONE, outputs(best), PIPELINE | {"top_k": 2}) == [
        {"score": 0.5, "token": best[0], "token_str": "paris", "sequence": "the capital of france is paris."},
        {"score": 0.25, "token": best[1], "token_str": "rome", "sequence": "the capital of france is rome."},
    ]
    with pytest.raises(InvalidInput, match=r"^parameters\.top_k: expected at most the 3 tokens per mask .*, got 4"):
        decode(fill_mask, tokenizer, ONE, outputs(best), PIPELINE | {"top_k": 4})
    with pytest.raises(PredictorError):
        decode(fill_mask, tokenizer, ONE, outputs(best, scores=[float("nan"), 0.1, 0.1]), {})


def test_a_reduced_model_answers_several_masks(fill_mask: ReducedFillMask, tokenizer: Tokenizer) -> None:
    rows = [ids(tokenizer, "paris", "rome", "oslo"), ids(tokenizer, "france", "italy", "norway")]
    assert decode(fill_mask, tokenizer, TWO, outputs(*rows), {}) == "paris france"
    answers = decode(fill_mask, tokenizer, TWO, outputs(*rows), PIPELINE)
    assert [[answer["token"] for answer in mask] for mask in answers] == rows, "three, although five are the default"
    assert answers[1][0]["sequence"] == "[CLS] [MASK] is the capital of france. [SEP]"


@pytest.mark.parametrize(
    "parameters", [*({name: True} for name in LOGITS), {**PIPELINE, "targets": ["paris"]}], ids=lambda p: [*p][-1]
)
def test_parameters_that_need_logits_are_refused(fill_mask: ReducedFillMask, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs the whole vocabulary's logits") as raised:
        fill_mask.options(parameters)
    assert raised.value.path == ("parameters", [*parameters][-1])


def classify(config: dict[str, Any], values: list[float], parameters: Any) -> Any:
    task = fit_reduced(SequenceClassification(settings(config)), ("probabilities",))
    return task.decode("text", ENCODING, {"probabilities": np.array(values, np.float32)}, task.options(parameters))


SINGLE = named("bad", "fine", "good")
MULTI = named("rude", "loud", problem_type="multi_label_classification")


def test_a_reduced_model_answers_with_its_probabilities() -> None:
    values = [0.25, 0.125, 0.625]
    assert classify(SINGLE, values, {}) == 2
    assert classify(SINGLE, values, PIPELINE | {"top_k": 2}) == [
        {"label": "good", "score": 0.625},
        {"label": "bad", "score": 0.25},
    ]
    assert classify(SINGLE, values, {"return_probabilities": True}) == {"0": 0.25, "1": 0.125, "2": 0.625}
    assert classify(SINGLE, values, PIPELINE | {"function_to_apply": "softmax"})[0]["score"] == 0.625
    assert classify(MULTI, [0.5, 0.75], PIPELINE | {"function_to_apply": "sigmoid", "top_k": None}) == [
        {"label": "loud", "score": 0.75},
        {"label": "rude", "score": 0.5},
    ]
    with pytest.raises(PredictorError):
        classify(SINGLE, [float("nan"), 0.5, 0.5], {})


@pytest.mark.parametrize(
    ("config", "function", "applied"),
    [(MULTI, "softmax", "sigmoid"), (SINGLE, "none", "softmax"), (SINGLE, "sigmoid", "softmax")],
)
def test_a_reduced_model_applies_its_own_function_alone(config: dict[str, Any], function: str, applied: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        classify(config, [0.25, 0.125, 0.625], PIPELINE | {"function_to_apply": function})
    assert (raised.value.path, raised.value.got) == (("parameters", "function_to_apply"), repr(function))
    assert raised.value.expected.startswith(repr(applied))


def test_a_reduced_model_has_no_logits() -> None:
    with pytest.raises(InvalidInput) as raised:
        classify(SINGLE, [0.25, 0.125, 0.625], {"return_raw_logits": True})
    assert raised.value.path == ("parameters", "return_raw_logits")


def embedding() -> Any:
    files = SentenceTransformers(pooling=("mean",), normalize=True)
    settings = TaskSettings({"hidden_size": 2}, cast(TaskTokenizer, None), sentence_transformers=files)
    return fit_reduced(TextEmbedding(settings), ("sentence_embedding", "embedding_norm"))


@pytest.mark.parametrize(
    ("parameters", "windows", "expected"),
    [
        ({}, [([0.6, 0.8], 5.0, 4)], [0.6, 0.8]),
        ({"normalize": False}, [([0.6, 0.8], 5.0, 4)], [3, 4]),
        ({"dimensions": 1, "normalize": True}, [([0.6, 0.8], 5.0, 4)], [1]),
        ({}, [([0.0, 0.0], 0.0, 4)], [0, 0]),
        ({"normalize": False}, [([0.6, 0.8], 5.0, 3), ([1.0, 0.0], 1.0, 1)], [(3 * 3 + 1) / 4, 4 * 3 / 4]),
        ({}, [([0.6, 0.8], 5.0, 3), ([1.0, 0.0], 1.0, 1)], [2.5 / np.hypot(2.5, 3), 3 / np.hypot(2.5, 3)]),
    ],
)
def test_windows_are_averaged_before_normalization(parameters: Any, windows: Any, expected: list[float]) -> None:
    """Each window has a vector, its norm and its number of tokens."""
    task = embedding()
    options, parts = task.options(parameters), []
    for vector, norm, tokens in windows:
        values = {"sentence_embedding": np.array(vector, np.float32), "embedding_norm": np.array([norm], np.float32)}
        parts.append(task.decode("text", Encoding([5] * tokens, [0] * tokens), values, options))
    assert task.answer("text", [parts], options) == pytest.approx(expected)
    (vector, norm) = task.outputs
    assert [axis.maximum for axis in (*vector.axes, *norm.axes)] == [2, 1]
