"""Flags and the model's shapes in the wired service."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from hf_transformer.app.application import build_app
from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import PipelineBuilder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from tests.support.configuring import config
from tests.support.scripted_predictor import ScriptedPredictor
from tests.support.triton_repository import DEMO_MODEL

FLAGS = (f"--model_dir={DEMO_MODEL}", "--model_name=bert")


@pytest.mark.parametrize(("flag", "length"), [(8, 32), (32, 8), (8, -1)])
async def test_a_text_is_as_long_as_both_the_flag_and_the_model_allow(flag: int, length: int) -> None:
    loaded = load_model(options := config(*FLAGS, f"--max_model_len={flag}"))
    ids = TensorSpec("input_ids", "INT64", (length,))
    logits = TensorSpec("logits", "FP32", (length, loaded.tokenizer.vocab_size))
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(options, loaded, ScriptedPredictor(), Metrics().of("bert"), executor)
        pipeline = build(ModelSpec("bert", "1", (ids,), (logits,), 8))
    assert pipeline.tokenizer.max_length == 8


def test_a_wrong_playground_in_config_json_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"], "playground": ["Small."]}))
    load_model(config(f"--model_dir={tmp_path}"))
    assert [message.partition(":")[0] for message in caplog.messages] == ["config.json"]


async def test_one_request_is_admitted_under_any_limit_of_bytes_in_flight() -> None:
    app = build_app(config(*FLAGS, "--max_bytes_in_flight=1", "--enable_grpc=false"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", verify=False) as client:
        answer = await client.post("/v1/models/bert:predict", json={"instances": ["a [MASK]"]})
    assert answer.status_code == 503, "not 429: only the predictor is missing"
