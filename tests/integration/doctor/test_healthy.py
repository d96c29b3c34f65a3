"""A pair that fits: the doctor has nothing to say, and the service nothing to warn of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from hf_transformer.commands.doctor import command
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve
from tests.integration.doctor.conftest import Diagnose, results_of
from tests.service import flags_for
from tests.triton_repository import task_model_folder


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        ("bert_masked", "v2"),
        ("bert_int32", "v2"),
        ("sentiment", "v2"),
        ("ner_roberta", "v2"),
        ("squad", "grpc-v2"),
        ("minibert_mean", "v2"),
        ("cross --task=rerank", "v2"),
        ("nli --task=zero_shot_classification", "v2"),
        ("gpt2_logits", "grpc-v2"),
        ("gpt2_tokens", "grpc-v2"),
        ("t5_logits", "v2"),
    ],
)
def test_nothing_is_wrong(diagnose: Diagnose, model: str, protocol: str) -> None:
    assert diagnose(*model.split(), protocol=protocol) == {}


def test_the_command(
    triton: LocalTriton, diagnose: Diagnose, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose("bert_masked") == {}
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    flags = flags_for("bert_masked", task_model_folder("bert_masked"), address, protocol)
    assert command.run(flags, {}) == 0
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
    assert command.run([*flags, "--json"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["exit_code"]) == ("bert_masked", 0)
    found = {one["name"]: one for one in document["results"]}
    assert found["highest token id"]["found"] == "id 1023 is answered"
    assert found["longest text"]["found"] == "128 tokens are answered"
    assert all(one["change"] == "" and one["seconds"] >= 0 for one in document["results"])


def test_warnings_count_with_strict_only(triton: LocalTriton, diagnose: Diagnose) -> None:
    """tests/doctor/test_command.py has what is printed."""
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
    [found] = [one.found for one in results if one.name == "shared batch"]
    assert f"in a batch with {rows - 1} longer ones" in found  # of 27 tokens


def test_the_service_warns_at_its_start_once_where_there_is_need(serve: Serve) -> None:
    service = serve("bert_batch0", "v2", "--predictor_check_seconds=1")
    warnings = [line for line in service.log.splitlines() if "hf_transformer.commands.doctor" in line]
    assert len(warnings) == 2
    assert "model 'bert_batch0': batch size: max_batch_size is 0" in warnings[0]
    assert "attention mask: without attention_mask" in warnings[1]
    assert "hf_transformer.commands.doctor" not in serve("bert_masked").log
