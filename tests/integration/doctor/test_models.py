"""The doctor finds nothing in a model that fits, and names each planted mismatch with its remedy."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.doctor import command, inference
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve
from tests.integration.doctor.conftest import Diagnose, results_of
from tests.support.polling import SECONDS
from tests.support.service import flags_for
from tests.support.triton_26 import DISALLOWED, VERSION
from tests.support.triton_repository import DEMO_MODEL as DEMO
from tests.support.triton_repository import task_model_folder

Plant = Callable[..., None]
FolderWith = Callable[..., Path]


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., Path]:
    """Copies a model's folder with other values in config.json, and optionally another model's tokenizer."""

    def copied(model: str, changes: Mapping[str, Any], tokenizer_of: str | None = None) -> Path:
        source = task_model_folder(model)
        settings = json.loads((source / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**settings, **changes}))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(task_model_folder(tokenizer_of or model) / name, tmp_path / name)
        return tmp_path

    return copied


def test_one_of_three_models_is_broken(
    triton: LocalTriton,
    load: Callable[[str], None],
    folder_with: FolderWith,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("bert_masked", "sentiment", "gpt2_logits"):
        load(name)
    wrong = folder_with("sentiment", {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}})
    file = tmp_path / "models.json"
    entries = [
        {"model_name": "first", "predictor_model": "bert_masked", "model_dir": str(DEMO)},
        {"model_name": "sentiment", "model_dir": str(wrong)},
        {"model_name": "gpt2_logits", "model_dir": str(task_model_folder("gpt2_logits"))},
    ]
    file.write_text(json.dumps(entries))
    flags = [f"--models={file}", f"--predictor_host={triton.http_address}"]
    assert command.run([*flags, "--json"], {}) == 2
    result = json.loads(capsys.readouterr().out)
    codes = {one["model"]: one["exit_code"] for one in result["models"]}
    assert codes == {"first": 0, "sentiment": 2, "gpt2_logits": 0}
    assert command.run(flags, {}) == 2
    table = capsys.readouterr().out.partition("\nmodel ")[2].partition("\nmodel  ")[2]
    rows = [line.split()[:3] for line in table.splitlines() if line.split()[:1] in ([name] for name in codes)]
    assert [row[1] for row in rows] == ["fill_mask", "sequence_classification", "text_generation"]
    assert rows[1][2] == "failed" and "failed" not in (rows[0][2], rows[2][2])
    file.write_text(json.dumps([entries[0], entries[2]]))
    assert command.run(flags, {}) == 0


@pytest.fixture(scope="session")
def plant(triton: LocalTriton, repository: Path) -> Callable[..., None]:
    """Puts a copy of a model with a changed config.pbtxt into Triton's repository and loads it."""

    def make(name: str, changes: Mapping[str, str], *, load: bool = True) -> None:
        if (repository / name).exists():
            return
        shutil.copytree(repository / "bert_masked", repository / name, symlinks=True)
        config = repository / name / "config.pbtxt"
        text = config.read_text()
        for old, new in {'name: "bert_masked"': f'name: "{name}"', **changes}.items():
            assert old in text
            text = text.replace(old, new)
        config.write_text(text)
        if load:
            url = f"http://{triton.http_address}/v2/repository/models/{name}/load"
            httpx.post(url, timeout=60.0, trust_env=False, verify=False).raise_for_status()

    return make


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        *((name, "v2") for name in ("bert_masked", "bert_int32", "sentiment", "ner_roberta", "minibert_mean")),
        *((name, "grpc-v2") for name in ("squad", "gpt2_logits", "gpt2_tokens")),
        ("cross --task=rerank", "v2"),
        ("nli --task=zero_shot_classification", "v2"),
        ("t5_logits", "v2"),
        *((name, "v2") for name in ("splade", "m3", "colbert", "gliner", "gliner_bi")),
        ("gliner_token", "grpc-v2"),
        ("gliner_bi_token", "grpc-v2"),
    ],
)
def test_a_model_that_fits_has_no_warnings(diagnose: Diagnose, model: str, protocol: str) -> None:
    assert diagnose(*model.split(), protocol=protocol) == {}


def test_an_embedding_model_of_vllm_has_no_warnings(diagnose: Diagnose) -> None:
    assert diagnose("minibert_vllm", folder=task_model_folder("minibert_mean"), protocol="grpc-v2") == {}


def test_the_command_prints_a_table_or_json(
    triton: LocalTriton,
    diagnose: Diagnose,
    protocol: str,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    """A Triton of 2026 adds one warning, which changes no exit code."""
    newer = pytestconfig.getoption("--triton") != "24.10"
    assert diagnose("bert_masked") == {}
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    flags = flags_for("bert_masked", task_model_folder("bert_masked"), address, protocol)
    assert command.run(flags, {}) == 0
    table = capsys.readouterr().out
    assert f"predictor {address} over {protocol}" in table
    inferred, shared = "9 tokens -> logits [9, 1024]", DISALLOWED if newer else "36864 bytes arrived through /dev/shm"
    for text in ("triton 2.", inferred, shared, '-> "paris"; tokenize'):
        assert text in " ".join(table.split())
    assert table.endswith(f"{'24 ok, 1 warning' if newer else '25 ok'}, 2 skipped; exit code 0\n")
    assert command.run([*flags, "--json"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["exit_code"]) == ("bert_masked", 0)
    texts = {result["name"]: result["found"] for result in document["results"]}
    assert texts["highest token id"] == "the model takes id 1023"
    assert texts["longest text"] == "the model answers a text of 128 tokens"
    assert [result["name"] for result in document["results"] if result["change"]] == ["shared memory"] * newer
    assert all(result["seconds"] >= 0 for result in document["results"])


@pytest.mark.only_triton_26
async def test_a_refusal_of_shared_memory_names_tritons_flag(
    triton: LocalTriton, load: Callable[[str], None], protocol: str
) -> None:
    await asyncio.to_thread(load, "bert_masked")
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    results = await results_of(flags_for("bert_masked", DEMO, address, protocol))
    [finding] = [result for result in results if result.name == "shared memory"]
    assert finding.status == "warning"
    assert "refuses shared memory of clients" in finding.found and DISALLOWED in finding.found
    assert finding.change.startswith("start Triton with --allow-client-shm=true") and "emptyDir" not in finding.change
    [server] = [result for result in results if VERSION in result.found]
    assert server.status == "ok"


def test_warnings_count_with_strict_only(triton: LocalTriton, diagnose: Diagnose) -> None:
    assert list(diagnose("bert")) == ["attention mask"]
    flags = flags_for("bert", task_model_folder("bert"), triton.http_address, "v2")
    assert [command.run([*flags, *strict], {}) for strict in ((), ("--strict",), ("--strict", "--json"))] == [0, 1, 1]


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        ("--max_batch_tokens=160", 5),
        ("--max_batch_output_bytes=500000", 4),
        ("--max_predictor_response_bytes=700000 --predictor_shared_memory=off", 6),
    ],
)
async def test_a_full_batch_is_as_large_as_the_service_makes_it(
    triton: LocalTriton, load: Callable[[str], None], flags: str, rows: int
) -> None:
    await asyncio.to_thread(load, "bert_masked")
    folder = task_model_folder("bert_masked")
    results = await results_of(flags_for("bert_masked", folder, triton.http_address, "v2", flags.split()))
    [text] = [result.found for result in results if result.name == "shared batch"]
    assert f"in a batch with {rows - 1} longer texts" in text  # of 27 tokens


def test_the_service_logs_each_warning_once_at_its_start(serve: Serve) -> None:
    service = serve("bert_batch0", "v2", "--predictor_check_seconds=1")

    def warnings() -> list[str]:
        return [line for line in service.log.splitlines() if "hf_transformer.commands.doctor" in line]

    assert poll(lambda: len(warnings()) >= 2, SECONDS)  # another thread writes them
    batch_size, mask = warnings()
    assert "model 'bert_batch0': batch size: max_batch_size is 0" in batch_size
    assert "attention mask: without attention_mask" in mask
    assert "hf_transformer.commands.doctor" not in serve("bert_masked").log


BATCHING = "dynamic_batching { }"


def fault(name: str) -> str:
    return f'parameters {{ key: "fault" value {{ string_value: "{name}" }} }}'


PLANTED = {
    "doctor_floats": {"data_type: TYPE_INT64": "data_type: TYPE_FP32"},
    "doctor_poor": {"max_batch_size: 8": "max_batch_size: 2", BATCHING: fault("ignores_mask")},
    "doctor_small": {"max_batch_size: 8": "max_batch_size: 12", BATCHING: f"{BATCHING}\n{fault('small_batches')}"},
    "doctor_constant": {"max_batch_size: 8": "max_batch_size: 1", "count: 1": "count: 2", BATCHING: fault("constant")},
    "doctor_free": {"dims: [ -1, 1024 ]": "dims: [ -1, -1 ]"},
}
"""Changes of the demo's config.pbtxt, by the name of the planted model."""

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
  text length: always takes 32 tokens, but its files allow 128 ... --max_model_len=32

bert_fixed --max_model_len=32
  batch size: small

bert
  attention mask: list it under input in config.pbtxt

bert_optional_mask --tensor_input_names=input_ids
  attention mask: -> add attention_mask to --tensor_input_names

bert_batch0
  batch size: max_batch_size is 0 and dims has a batch axis ... max_batch_size: 32
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
  longest text: 524288 bytes, the limit is 300000

gpt2_logits {"n_positions":512,"n_ctx":512,"max_position_embeddings":512} --max_model_len=512
  longest text: continues prompts of up to 256 tokens ... --max_model_len=257

gpt2_logits {"vocab_size":324} tokenizer_of=t5_logits
  vocabulary: the model's logits have 768 tokens, config.json's vocab_size is 324, the tokenizer has 324

t5_logits {} tokenizer_of=gpt2_logits
  vocabulary: 768 tokens, more than config.json's vocab_size 324
  inference: -> ... the tokenizer and config.json of its export

doctor_free {"architectures":["BertForTokenClassification"],"id2label":{"0":"A","1":"B"}}
  inference: 1024 along labels, but config.json names 2 labels ... config.json of its export

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
  shared batch: the model answers up to 2 texts in a batch, the service would send 12
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
"""In each case a model, optional changes of its config.json, another model's tokenizer, and flags; then each check that
warns or fails, with parts of its text."""


def assert_troubles(texts: dict[str, str], expected: str) -> None:
    rows = [row.split(": ", 1) for row in expected.replace("\n    ", " ").split("\n  ")[1:]]
    assert list(texts) == [name.strip() for name, _ in rows]
    for name, text in rows:
        for part in text.split(" ... "):
            assert part in texts[name.strip()]


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"), ids=lambda case: case.partition("\n")[0])
def test_a_mismatch_has_a_finding_and_a_remedy(
    diagnose: Diagnose, plant: Plant, folder_with: FolderWith, case: str
) -> None:
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
    assert_troubles(diagnose(model, *flags, folder=folder), case)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("doctor_unloaded", "in the predictor's repository, but not loaded ... --load-model=doctor_unloaded"),
        ("nobody", "no model 'nobody'; it has bert, bert_batch0, ... --model_name"),
    ],
)
def test_a_missing_model_has_a_remedy(diagnose: Diagnose, plant: Plant, protocol: str, model: str, says: str) -> None:
    plant("doctor_unloaded", {}, load=False)
    assert_troubles(diagnose(model, folder=DEMO, protocol=protocol), f"\n  model: {says}")


def test_a_folder_without_tokenizer_fails_model_files(diagnose: Diagnose, tmp_path: Path) -> None:
    assert_troubles(diagnose("bert_masked", folder=tmp_path), "\n  model files: no tokenizer files")


@pytest.mark.only_triton_24
def test_memory_that_the_predictor_does_not_see_is_a_warning(
    diagnose: Diagnose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "FOLDER", tmp_path)
    assert_troubles(diagnose("bert_masked"), "\n  shared memory: can't use our ... --predictor_shared_memory=off")


@pytest.mark.parametrize(
    ("model", "flags", "status", "text"),
    [
        ("gpt2_random", (), "ok", "the model holds a text to a JSON schema"),
        ("gpt2_vllm", (), "ok", "the model holds a text to a JSON schema"),
        ("gpt2_vllm", ("--structured_output_form=guided_decoding",), "warning", "the model ignores a schema"),
        ("gpt2_vllm", ("--structured_output_form=none",), "skipped", "--structured_output_form=none"),
        ("gpt2_tutorial", (), "skipped", "it has no inputs guided_decoding_guide_type and guided_decoding_guide"),
        ("bert", (), "skipped", "the task generates no text"),
    ],
)
def test_a_schema_is_tried(
    triton: LocalTriton, load: Callable[[str], None], model: str, flags: tuple[str, ...], status: str, text: str
) -> None:
    load(model)
    made = flags_for(model, task_model_folder(model), triton.grpc_address, "grpc-v2", flags)
    [finding] = [one for one in asyncio.run(results_of(made)) if one.name == "structured output"]
    assert finding.status == status and text in finding.found, finding
