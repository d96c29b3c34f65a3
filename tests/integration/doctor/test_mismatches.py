"""Each planted mismatch is found, named, and told how to mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_transformer.commands.doctor import shared_memory
from tests.integration.doctor.conftest import Diagnose
from tests.triton_repository import DEMO_MODEL as DEMO
from tests.triton_repository import task_model_folder

Plant = Callable[..., None]
FolderWith = Callable[..., Path]


def test_a_wrong_input_name(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", "--tensor_input_names=input_ids,mask")
    assert list(found) == ["contract"]
    assert found["contract"].found == "--tensor_input_names has 'mask', which the tokenizer can't make"
    assert found["contract"].change == "name any of input_ids, attention_mask, token_type_ids"


def test_a_wrong_output_name(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", "--tensor_output_names=scores")
    assert "has 'scores', but the model has logits" in found["contract"].found
    assert found["contract"].change == "change the flag"


def test_names_that_say_nothing(diagnose: Diagnose) -> None:
    found = diagnose("bert_torchscript")
    assert "INPUT__0, INPUT__1 have no telling names" in found["contract"].found
    assert "--tensor_input_names=input_ids,attention_mask" in found["contract"].change


def test_a_wrong_rank(diagnose: Diagnose) -> None:
    found = diagnose("bert_wrong_rank")
    assert "has the dims [1024], fill_mask reads [batch" in found["contract"].found.replace("[tokens", "[batch")
    assert "--task" in found["contract"].change


def test_input_ids_of_a_wrong_datatype(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_floats", {"data_type: TYPE_INT64": "data_type: TYPE_FP32"})
    found = diagnose("doctor_floats", folder=DEMO)
    assert "Its input 'input_ids' is FP32" in found["contract"].found
    assert found["contract"].change == "export it as INT64 or INT32"


def test_a_decoupled_model(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_decoupled", {"input [": "model_transaction_policy { decoupled: true }\ninput ["})
    found = diagnose("doctor_decoupled", folder=DEMO)
    assert "decoupled" in found["contract"].found
    assert "model_transaction_policy { decoupled: false }" in found["contract"].change


def test_logits_of_another_vocabulary(diagnose: Diagnose) -> None:
    found = diagnose("bert_wrong_vocab")
    assert "524 along vocabulary, but config.json says vocab_size 1024" in found["contract"].found
    assert found["contract"].change == "Serve it with its own tokenizer and config.json"


def test_an_embedding_of_another_vocabulary(diagnose: Diagnose, folder_with: FolderWith) -> None:
    found = diagnose("sentiment", folder=folder_with("sentiment", {"vocab_size": 1024}, tokenizer_of="bert"))
    assert list(found) == ["highest token id"]
    assert found["highest token id"].status == "failed"
    assert found["highest token id"].found == "the model takes token ids up to 899, the tokenizer's go up to 1023"
    assert "--model_dir" in found["highest token id"].change


def test_tokenizer_and_config_of_different_models(diagnose: Diagnose, folder_with: FolderWith) -> None:
    found = diagnose("sentiment", folder=folder_with("sentiment", {}, tokenizer_of="bert"))
    assert list(found) == ["vocabulary", "highest token id"]
    assert "1024 tokens, more than config.json's vocab_size 900" in found["vocabulary"].found


def test_another_padding_token(diagnose: Diagnose, folder_with: FolderWith) -> None:
    found = diagnose("sentiment", folder=folder_with("sentiment", {"pad_token_id": 3}))
    assert list(found) == ["padding token"]
    assert "pads with id 0, config.json's pad_token_id is 3" in found["padding token"].found


def test_a_short_position_table(diagnose: Diagnose, folder_with: FolderWith) -> None:
    folder = folder_with("sentiment", {"max_position_embeddings": 512})
    found = diagnose("sentiment", "--max_model_len=512", folder=folder)
    assert list(found) == ["longest text"]
    assert "answers texts of up to 128 tokens, tokenizer and config.json allow 512" in found["longest text"].found
    assert "--max_model_len=128" in found["longest text"].change


def test_a_model_of_fixed_length(diagnose: Diagnose) -> None:
    found = diagnose("bert_fixed")
    assert list(found) == ["batch size", "text length"]
    assert "max_batch_size is 4, which is small" in found["batch size"].found
    assert "always takes 32 tokens, where its files allow 128" in found["text length"].found
    assert "--max_model_len=32" in found["text length"].change
    assert list(diagnose("bert_fixed", "--max_model_len=32")) == ["batch size"]


def test_a_missing_attention_mask(diagnose: Diagnose) -> None:
    found = diagnose("bert")
    assert list(found) == ["attention mask"]
    assert "add that to input in config.pbtxt" in found["attention mask"].change


def test_an_attention_mask_that_is_not_sent(diagnose: Diagnose) -> None:
    found = diagnose("bert_optional_mask", "--tensor_input_names=input_ids")
    assert list(found) == ["attention mask"]
    assert found["attention mask"].change == "add attention_mask to --tensor_input_names"


def test_batch_size_0_with_a_batch_axis(diagnose: Diagnose) -> None:
    found = diagnose("bert_batch0")
    assert list(found) == ["batch size", "attention mask"]
    assert "max_batch_size is 0 and the dims have a batch axis" in found["batch size"].found
    assert "max_batch_size: 32" in found["batch size"].change


def test_batch_size_0_without_a_batch_axis(diagnose: Diagnose) -> None:
    found = diagnose("bert_unbatched")
    assert list(found) == ["batch size"]
    assert "takes one text at a time" in found["batch size"].found


def test_a_wrong_number_of_labels(diagnose: Diagnose, folder_with: FolderWith) -> None:
    labels = {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}
    found = diagnose("sentiment", folder=folder_with("sentiment", labels))
    assert "3 along labels, but config.json names 2 labels (id2label)" in found["contract"].found


def test_a_wrong_number_of_labels_that_only_an_answer_shows(
    diagnose: Diagnose, plant: Plant, folder_with: FolderWith
) -> None:
    plant("doctor_free", {"dims: [ -1, 1024 ]": "dims: [ -1, -1 ]"})
    labels = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "A", "1": "B"}}
    found = diagnose("doctor_free", folder=folder_with("bert", labels))
    assert list(found) == ["inference"]
    assert "1024 along labels, but config.json names 2 labels" in found["inference"].found
    assert "config.json that it was exported from" in found["inference"].change


POOR = {
    "max_batch_size: 8": "max_batch_size: 2",
    "dynamic_batching { }": 'parameters { key: "fault" value { string_value: "ignores_mask" } }',
}


def test_dynamic_batching_that_is_off(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_poor", POOR)
    found = diagnose("doctor_poor", folder=DEMO)
    assert list(found) == ["batch size", "dynamic batching", "shared batch"]
    assert found["dynamic batching"].change == 'add "dynamic_batching { }" to config.pbtxt'


def test_answers_that_depend_on_their_neighbours(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_poor", POOR)
    found = diagnose("doctor_poor", folder=DEMO)["shared batch"]
    assert "the answer to a text changes by" in found.found
    assert "attention_mask hides the padding" in found.change


@pytest.mark.parametrize("multiple", [16, 64])
def test_the_same_where_every_text_is_padded(diagnose: Diagnose, plant: Plant, multiple: int) -> None:
    plant("doctor_poor", POOR)
    found = diagnose("doctor_poor", f"--pad_to_multiple_of={multiple}", folder=DEMO)
    assert "attention_mask hides the padding" in found["shared batch"].change


def test_padding_that_the_model_would_read(diagnose: Diagnose) -> None:
    assert diagnose("bert_masked", "--pad_to_multiple_of=16") == {}
    found = diagnose("bert", "--pad_to_multiple_of=16")["contract"]
    assert found.found.endswith("the model gets no attention_mask, so it would read the padding")
    assert found.change.startswith("expected 1, or a model that gets one")


def test_a_model_that_takes_fewer_texts_than_it_says(diagnose: Diagnose, plant: Plant) -> None:
    fault = 'dynamic_batching { }\nparameters { key: "fault" value { string_value: "small_batches" } }'
    plant("doctor_small", {"dynamic_batching { }": fault})
    found = diagnose("doctor_small", folder=DEMO)
    assert list(found) == ["shared batch"]
    assert found["shared batch"].found.startswith("the model answers up to 2 texts in a batch, and 8 would be sent")
    assert 'set "max_batch_size: 2" in config.pbtxt' in found["shared batch"].change


CONSTANT = {
    "max_batch_size: 8": "max_batch_size: 1",
    "count: 1": "count: 2",
    "dynamic_batching { }": 'parameters { key: "fault" value { string_value: "constant" } }',
}


def test_constant_outputs(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_constant", CONSTANT)
    found = diagnose("doctor_constant", folder=DEMO)
    assert list(found) == ["batch size", "other text"]
    assert "have the same outputs" in found["other text"].found
    assert "max_batch_size is 1" in found["batch size"].found


def test_instances_that_stay_idle(diagnose: Diagnose, plant: Plant) -> None:
    plant("doctor_constant", CONSTANT)
    found = diagnose("doctor_constant", "--max_batches_in_flight=1", folder=DEMO)
    assert "has 2 instances, and --max_batches_in_flight=1" in found["instances"].found
    assert "--max_batches_in_flight=3" in found["instances"].change


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("fault_nan", "not finite numbers (NaN"),
        ("fault_raises", "deliberate failure"),
        ("fault_wrong_dtype", "'logits' as FP64, its configuration says FP32"),
        ("fault_wrong_shape", "with the shape [1, 8, 1024], expected [1, 9, -1]"),
    ],
)
def test_a_model_that_fails(diagnose: Diagnose, model: str, says: str) -> None:
    found = diagnose(model)
    assert list(found) == ["attention mask", "inference"]
    assert says in found["inference"].found


def test_another_task(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", "--task=question_answering")
    assert "question_answering reads" in found["contract"].found


def test_a_model_that_is_not_loaded(diagnose: Diagnose, plant: Plant, protocol: str) -> None:
    plant("doctor_unloaded", {}, load=False)
    found = diagnose("doctor_unloaded", folder=DEMO, protocol=protocol)
    assert list(found) == ["model"]
    assert found["model"].found == "'doctor_unloaded' is in the predictor's repository, but not loaded"
    assert "--load-model=doctor_unloaded" in found["model"].change


def test_a_model_that_does_not_exist(diagnose: Diagnose, protocol: str) -> None:
    found = diagnose("nobody", folder=DEMO, protocol=protocol)
    assert list(found) == ["model"]
    assert "no model 'nobody'; it has bert, bert_batch0," in found["model"].found
    assert "--model_name" in found["model"].change


def test_no_tokenizer(diagnose: Diagnose, tmp_path: Path) -> None:
    found = diagnose("bert_masked", folder=tmp_path)
    assert list(found) == ["model files"]
    assert "no tokenizer files" in found["model files"].found


def test_an_unknown_flag(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", "--model_naem=x")
    assert list(found) == ["flags"]
    assert "did you mean --model_name?" in found["flags"].found


def test_outputs_that_are_too_large(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", "--max_predictor_response_bytes=300000")
    assert list(found) == ["longest text"], "batches are made so small that their outputs are taken"
    assert "524288 bytes, and 300000 are taken" in found["longest text"].found


def test_memory_that_the_predictor_does_not_see(
    diagnose: Diagnose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    found = diagnose("bert_masked")
    assert list(found) == ["shared memory"]
    assert "can't use our" in found["shared memory"].found
    assert "--predictor_shared_memory=off" in found["shared memory"].change


def test_less_shared_memory_than_is_asked_for(diagnose: Diagnose) -> None:
    found = diagnose("bert_masked", f"--predictor_shared_memory_bytes={2**40}")
    assert list(found) == ["shared memory"]
    assert "--predictor_shared_memory_bytes asks for 1048576 MiB" in found["shared memory"].found


def test_another_kind_of_generative_model(diagnose: Diagnose) -> None:
    found = diagnose("gpt2_logits", "--generation_interface=text")
    assert list(found) == ["contract"]
    assert found["contract"].status == "failed"


def test_an_input_that_can_t_say_that_there_is_nothing(diagnose: Diagnose, plant: Plant) -> None:
    words = 'name: "stop_words_list"\n    data_type: TYPE_{}\n    dims: [ 2, -1 ]\n    optional: {}'
    plant("doctor_unsigned", {words.format("INT32", "true"): words.format("UINT32", "false")}, of="gpt2_tokens")
    found = diagnose("doctor_unsigned", folder=task_model_folder("gpt2_tokens"))
    assert found["contract"].found == (
        "Its input 'stop_words_list' is UINT32, which can't hold -1, the mark of no words"
    )
    assert found["contract"].change == "export it as INT32"


def test_a_generative_model_with_a_short_position_table(diagnose: Diagnose, folder_with: FolderWith) -> None:
    folder = folder_with("gpt2_logits", {"n_positions": 512, "n_ctx": 512, "max_position_embeddings": 512})
    found = diagnose("gpt2_logits", "--max_model_len=512", folder=folder)
    assert list(found) == ["longest text"]
    assert "continues prompts of up to 256 tokens" in found["longest text"].found
    assert "--max_model_len=257" in found["longest text"].change


def test_a_generative_model_with_another_tokenizer(diagnose: Diagnose, folder_with: FolderWith) -> None:
    found = diagnose("t5_logits", folder=folder_with("t5_logits", {}, tokenizer_of="gpt2_logits"))
    assert "768 tokens, more than config.json's vocab_size 324" in found["vocabulary"].found
    assert found["inference"].status == "failed"
    assert "the tokenizer and the config.json that it was exported from" in found["inference"].change


def test_a_default_of_sampling_that_the_model_can_t_be_told(diagnose: Diagnose) -> None:
    found = diagnose("gpt2_tutorial", "--do_sample=true")
    assert list(found) == ["contract"]
    assert found["contract"].found.startswith("--do_sample=true with --top_k=50: this model is a text model without")
    assert found["contract"].change == "set --do_sample=false, or --top_k=0"
