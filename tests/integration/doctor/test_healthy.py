"""A pair that fits: the doctor has nothing to say, and the service nothing to warn of."""

from __future__ import annotations

import json

import pytest

from hf_transformer.commands.doctor import command as doctor
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve
from tests.integration.doctor.conftest import Diagnose
from tests.service import flags_for
from tests.triton_repository import task_model_folder

MODELS = (
    ("bert_masked", ()),
    ("bert_int32", ()),
    ("sentiment", ()),
    ("ner_roberta", ()),
    ("squad", ()),
    ("minibert_mean", ()),
    ("cross", ("--task=rerank",)),
    ("nli", ("--task=zero_shot_classification",)),
    ("gpt2_logits", ()),
    ("gpt2_tokens", ()),
    ("t5_logits", ()),
)


@pytest.mark.parametrize(("model", "flags"), MODELS, ids=[name for name, _ in MODELS])
def test_nothing_is_wrong(diagnose: Diagnose, protocol: str, model: str, flags: tuple[str, ...]) -> None:
    assert diagnose(model, *flags, protocol=protocol) == {}


def test_the_command(
    triton: LocalTriton, diagnose: Diagnose, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose("bert_masked") == {}
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    flags = flags_for("bert_masked", task_model_folder("bert_masked"), address, protocol)
    assert doctor.run(flags, {}) == 0
    table = capsys.readouterr().out
    assert f"predictor {address} over {protocol}" in table
    for said in (
        "triton 2.",
        "9 tokens -> logits [9, 1024]",
        "36864 bytes came through /dev/shm",
        '-> "paris"; tokenize',
    ):
        assert said in " ".join(table.split())
    assert table.endswith("24 ok, 1 skipped; exit code 0\n")
    assert doctor.run([*flags, "--json"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["exit_code"]) == ("bert_masked", 0)
    found = {one["name"]: one for one in document["results"]}
    assert found["highest token id"]["found"] == "id 1023 is answered"
    assert found["longest text"]["found"] == "128 tokens are answered"
    assert all(one["change"] == "" and one["seconds"] >= 0 for one in document["results"])


def test_no_shared_memory_is_used_where_it_is_off(
    triton: LocalTriton, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose("bert_masked", "--predictor_shared_memory=off") == {}


def test_the_service_warns_at_its_start_once(serve: Serve) -> None:
    service = serve("bert_batch0", "v2", "--predictor_check_seconds=1")
    warnings = [line for line in service.log.splitlines() if "hf_transformer.commands.doctor" in line]
    assert len(warnings) == 2
    assert "model 'bert_batch0': batch size: max_batch_size is 0" in warnings[0]
    assert "attention mask: without attention_mask" in warnings[1]


def test_the_service_has_nothing_to_warn_of(serve: Serve) -> None:
    assert "hf_transformer.commands.doctor" not in serve("bert_masked").log
