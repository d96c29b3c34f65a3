"""Clients that others wrote list the models of a service, choose among them, load and unload them."""

from __future__ import annotations

import json
from pathlib import Path

from hf_transformer.commands.demo import default_model_repository, entry
from hf_transformer.commands.local_triton import LocalTriton
from tests.clients.conftest import Run
from tests.integration.conftest import Serve
from tests.support.service import Service

TASKS = ("fill_mask", "sequence_classification", "text_embedding", "text_generation")


def test_clients_list_and_choose_models(client: Run, serve: Serve, triton: LocalTriton, tmp_path: Path) -> None:
    entries = [entry(task, default_model_repository()) for task in TASKS]
    names = [each["model_name"] for each in entries]
    for name in names:
        serve.load(name)
    path = tmp_path / "models.json"
    path.write_text(json.dumps(entries))
    (keys := tmp_path / "control-keys").write_text("operator-key\n")
    control = ("--enable_model_control", f"--model_control_keys_file={keys}")
    flags = (f"--models={path}", f"--predictor_host={triton.http_address}", *control)
    texts = {"bert": "The capital of france is [MASK].", "sentiment": "The hotel was wonderful."}
    with Service(*flags) as service:
        service.wait_until("/v2/health/ready")
        task = {
            "texts": texts,
            "unload": "sentiment",
            "key": "operator-key",
            "embedder": "minibert_mean",
            "generator": "gpt2",
        }
        programs = ("http", "grpc", "openai", "kserve")
        results = {program: client("several_models", program, service=service, **task) for program in programs}
    for protocol in ("http", "grpc"):
        assert results[protocol]["names"] == names
        assert results[protocol]["answers"]["bert"] == "paris"
        assert results[protocol]["answers"].keys() == texts.keys()
        assert results[protocol]["ready"] == [False, True]
    assert results["openai"] == {"names": names, "models": ["minibert_mean", "gpt2"], "text": " paris."}
    assert results["kserve"]["answers"]["bert"] == "paris"
