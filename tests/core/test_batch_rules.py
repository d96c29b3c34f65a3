"""The rules of batches by config.json; tests/models/test_batch_rules.py compares them with the models themselves."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.core.batch import EncodingBatchBuilder, PaddingPolicy
from hf_transformer.core.batch_rules import BatchRules, batch_rules
from hf_transformer.core.contract import fit_signature
from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from hf_transformer.types.tokenization import Encoding

BART = {"model_type": "bart", "architectures": ["BartForSequenceClassification"], "eos_token_id": 2, "pad_token_id": 1}
XLM = {"model_type": "xlm", "architectures": ["XLMForSequenceClassification"]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"model_type": "bert", "pad_token_id": 0}, BatchRules(pad_id=0), id="bert"),
        pytest.param({}, BatchRules(), id="nothing"),
        pytest.param({"pad_token_id": -1}, BatchRules(), id="a padding id that is none"),
        pytest.param({"model_type": "xlnet", "pad_token_id": 5}, BatchRules(pad_id=5, left=True), id="xlnet"),
        pytest.param(BART, BatchRules(pad_id=1, counted_id=2), id="bart"),
        pytest.param({**BART, "eos_token_id": None}, BatchRules(pad_id=1), id="bart without an end"),
        pytest.param({**BART, "architectures": ["BartForQuestionAnswering"]}, BatchRules(pad_id=1), id="bart by token"),
        pytest.param(
            {"architectures": ["T5ForSequenceClassification"]}, BatchRules(counted_id=7), id="the tokenizer's"
        ),
        pytest.param({"model_type": "convbert"}, BatchRules(equal_lengths=True), id="convolutions"),
        pytest.param({"model_type": "big_bird"}, BatchRules(equal_lengths=True), id="blocks of attention"),
        pytest.param({"model_type": "big_bird", "attention_type": "original_full"}, BatchRules(), id="full attention"),
        pytest.param(XLM, BatchRules(), id="xlm reads the first"),
        pytest.param({**XLM, "summary_type": "last"}, BatchRules(equal_lengths=True), id="xlm that reads the last"),
        pytest.param(
            {"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]},
            BatchRules(equal_lengths=True),
            id="a decoder without a padding id",
        ),
        pytest.param(
            {"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"], "pad_token_id": 3},
            BatchRules(pad_id=3),
            id="a decoder with one",
        ),
        pytest.param({"architectures": "BartForSequenceClassification"}, BatchRules(), id="no list"),
    ],
)
def test_an_architecture_has_its_rules(config: dict[str, Any], expected: BatchRules) -> None:
    assert batch_rules(config, 7) == expected


def builder(**options: Any) -> EncodingBatchBuilder:
    inputs = [TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask")]
    spec = ModelSpec("m", "1", tuple(inputs), (TensorSpec("logits", "FP32", (3,)),), 8)
    signature = fit_signature(spec, [OutputRole("logits", (Axis(name="labels"),))], task="sequence_classification")
    return EncodingBatchBuilder(signature, PaddingPolicy(9, left=False, **options))


def test_texts_with_different_counts_never_share_a_batch() -> None:
    texts = [Encoding(ids, [0] * len(ids)) for ids in ([1, 5, 2], [1, 2, 2], [1, 5, 5, 2], [1, 2, 5, 2])]
    groups = [builder(counted_id=2).bucket(text)[0] for text in texts]
    assert groups == ["1", "2", "1", "2"]
    assert {builder().bucket(text)[0] for text in texts} == {""}


def test_equal_lengths_allow_no_padding() -> None:
    text = Encoding([1, 2], [0, 0])
    assert builder().limits(text).padding
    assert not builder(equal_lengths=True).limits(text).padding
