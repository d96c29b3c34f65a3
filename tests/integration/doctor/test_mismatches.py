"""Each planted mismatch is found, named, and told how to mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_transformer.commands.doctor import inference
from tests.integration.doctor.conftest import Diagnose
from tests.triton_repository import DEMO_MODEL as DEMO

Plant = Callable[..., None]
FolderWith = Callable[..., Path]

BATCHING = "dynamic_batching { }"


def fault(name: str) -> str:
    return f'parameters {{ key: "fault" value {{ string_value: "{name}" }} }}'


PLANTED = {
    "doctor_floats": {"data_type: TYPE_INT64": "data_type: TYPE_FP32"},
    "doctor_poor": {"max_batch_size: 8": "max_batch_size: 2", BATCHING: fault("ignores_mask")},
    "doctor_small": {BATCHING: f"{BATCHING}\n{fault('small_batches')}"},
    "doctor_constant": {
        "max_batch_size: 8": "max_batch_size: 1",
        "count: 1": "count: 2",
        BATCHING: fault("constant"),
    },
    "doctor_free": {"dims: [ -1, 1024 ]": "dims: [ -1, -1 ]"},
}
"""What is changed in the demo's config.pbtxt."""

CASES = """
bert_masked --tensor_input_names=input_ids,mask
  contract: --tensor_input_names has 'mask', which the tokenizer can't make
    -> name any of input_ids, attention_mask, token_type_ids

bert_torchscript
  contract: INPUT__0, INPUT__1 have no telling names ... --tensor_input_names=input_ids,attention_mask

doctor_floats
  contract: Its input 'input_ids' is FP32 ... -> export it as INT64 or INT32

bert_wrong_vocab
  contract: 524 along vocabulary, but config.json says vocab_size 1024
    -> Serve it with its own tokenizer and config.json

bert_masked --task=question_answering
  contract: question_answering reads

sentiment {"id2label":{"0":"NEGATIVE","1":"POSITIVE"}}
  contract: 3 along labels, but config.json names 2 labels (id2label)

bert --pad_to_multiple_of=16
  contract: the model gets no attention_mask, so it would read the padding
    -> expected 1, or a model that gets one

bert_masked --pad_to_multiple_of=16

gpt2_logits --generation_interface=text
  contract: ->

gpt2_tutorial --do_sample=true
  contract: --do_sample=true with --top_k=50: this model is a text model without
    ... -> set --do_sample=false, or --top_k=0

bert_fixed
  batch size: max_batch_size is 4, which is small
  text length: always takes 32 tokens, where its files allow 128 ... --max_model_len=32

bert_fixed --max_model_len=32
  batch size: small

bert
  attention mask: add that to input in config.pbtxt

bert_optional_mask --tensor_input_names=input_ids
  attention mask: -> add attention_mask to --tensor_input_names

bert_batch0
  batch size: max_batch_size is 0 and the dims have a batch axis ... max_batch_size: 32
  attention mask: share a batch

bert_unbatched
  batch size: takes one text at a time

sentiment {} tokenizer_of=bert
  vocabulary: 1024 tokens, more than config.json's vocab_size 900
  highest token id: takes token ids up to 899

sentiment {"vocab_size":1024} tokenizer_of=bert
  highest token id: the model takes token ids up to 899, the tokenizer's go up to 1023 -> ... --model_dir

sentiment {"pad_token_id":3}
  padding token: pads with id 0, config.json's pad_token_id is 3

sentiment {"max_position_embeddings":512} --max_model_len=512
  longest text: answers texts of up to 128 tokens, tokenizer and config.json allow 512 ... --max_model_len=128

bert_masked --max_predictor_response_bytes=300000
  longest text: 524288 bytes, and 300000 are taken

gpt2_logits {"n_positions":512,"n_ctx":512,"max_position_embeddings":512} --max_model_len=512
  longest text: continues prompts of up to 256 tokens ... --max_model_len=257

t5_logits {} tokenizer_of=gpt2_logits
  vocabulary: 768 tokens, more than config.json's vocab_size 324
  inference: -> ... the tokenizer and the config.json that it was exported from

doctor_free {"architectures":["BertForTokenClassification"],"id2label":{"0":"A","1":"B"}}
  inference: 1024 along labels, but config.json names 2 labels ... config.json that it was exported from

fault_nan
  attention mask: share a batch
  inference: not finite numbers (NaN

fault_raises
  attention mask: share a batch
  inference: deliberate failure

doctor_poor
  batch size: which is small
  dynamic batching: -> add "dynamic_batching { }" to config.pbtxt
  shared batch: the answer to a text changes by ... attention_mask hides the padding

doctor_poor --pad_to_multiple_of=64
  batch size: which is small
  dynamic batching: off
  shared batch: attention_mask hides the padding

doctor_small
  shared batch: the model answers up to 2 texts in a batch, and 8 would be sent
    ... set "max_batch_size: 2" in config.pbtxt

doctor_constant --max_batches_in_flight=1
  batch size: max_batch_size is 1
  instances: has 2 instances, and --max_batches_in_flight=1 ... --max_batches_in_flight=3
  other text: have the same outputs

bert_masked --predictor_shared_memory_bytes=1099511627776
  shared memory: --predictor_shared_memory_bytes asks for 1048576 MiB

bert_masked --predictor_shared_memory=off

bert_masked --model_naem=x
  flags: did you mean --model_name?
"""
"""A model, perhaps what is changed in its config.json and whose tokenizer it gets, and flags. Then each check that is
not well, with parts of what it says."""


def assert_says(found: dict[str, str], expected: str) -> None:
    rows = [row.split(": ", 1) for row in expected.replace("\n    ", " ").split("\n  ")[1:]]
    assert list(found) == [name.strip() for name, _ in rows]
    for name, text in rows:
        for part in text.split(" ... "):
            assert part in found[name.strip()]


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"), ids=lambda case: case.partition("\n")[0])
def test_a_mismatch(diagnose: Diagnose, plant: Plant, folder_with: FolderWith, case: str) -> None:
    model, *words = case.partition("\n")[0].split()
    flags = [word for word in words if word.startswith("--")]
    changes = [json.loads(word) for word in words if word.startswith("{")]
    tokenizer = [word.partition("=")[2] for word in words if word.startswith("tokenizer_of=")]
    folder = None
    if model in PLANTED:
        plant(model, PLANTED[model])
        folder = DEMO
    if changes:
        folder = folder_with("bert" if model in PLANTED else model, changes[0], *tokenizer)
    assert_says(diagnose(model, *flags, folder=folder), case)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("doctor_unloaded", "in the predictor's repository, but not loaded ... --load-model=doctor_unloaded"),
        ("nobody", "no model 'nobody'; it has bert, bert_batch0, ... --model_name"),
    ],
)
def test_a_model_that_is_not_there(diagnose: Diagnose, plant: Plant, protocol: str, model: str, says: str) -> None:
    plant("doctor_unloaded", {}, load=False)
    assert_says(diagnose(model, folder=DEMO, protocol=protocol), f"\n  model: {says}")


def test_no_tokenizer(diagnose: Diagnose, tmp_path: Path) -> None:
    assert_says(diagnose("bert_masked", folder=tmp_path), "\n  model files: no tokenizer files")


def test_memory_that_the_predictor_does_not_see(
    diagnose: Diagnose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "FOLDER", tmp_path)
    assert_says(diagnose("bert_masked"), "\n  shared memory: can't use our ... --predictor_shared_memory=off")
