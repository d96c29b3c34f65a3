"""The real process without a predictor: it starts and is ready with no Triton, for one model and for several."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.grpc_client import request, stub
from tests.support.service import Service
from tests.support.triton_repository import DEMO_MODELS

RENDER = "/v1/completions/render"


def test_several_models_over_http_and_grpc(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(
        "".join(f"- {{model_name: {name}, model_dir: {DEMO_MODELS / name}}}\n" for name in ("gpt2", "bert"))
    )
    with Service("--predictor_protocol=none", f"--models={models}", "--strict_flags") as service:
        service.wait_until("/v2/health/ready")
        answer = service.client.post(RENDER, json={"model": "gpt2", "prompt": "The capital of france is"})
        [rendered] = answer.json()
        tokens = service.client.post("/v1/models/gpt2:tokenize", json={"instances": ["The capital of france is"]})
        assert rendered["token_ids"] == tokens.json()["predictions"][0]["ids"]
        assert service.client.post("/tokenize", json={"model": "bert", "prompt": "[MASK]"}).json()["count"] == 3
        assert service.client.post("/v1/models/bert:predict", json={"instances": ["a [MASK]"]}).status_code == 501
        chat = {"model": "gpt2", "messages": [{"role": "user", "content": "Where?"}]}
        rendered = service.client.post("/v1/chat/completions/render", json=chat).json()
        counted = service.client.post("/v1/messages/count_tokens", json=chat).json()
        assert counted == {"input_tokens": len(rendered["token_ids"])}
        refusal = service.client.post("/v1/messages", json={**chat, "max_tokens": 5})
        assert (refusal.status_code, refusal.json()["error"]["type"]) == (501, "api_error")
        with stub(service) as methods:
            assert methods.ModelReady(pb.ModelReadyRequest(name="bert")).ready
            assert not methods.ModelMetadata(pb.ModelMetadataRequest(name="bert")).inputs
            with pytest.raises(grpc.RpcError) as refused:
                methods.ModelInfer(request("bert", {"text": ["a [MASK]"]}))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "--predictor_protocol=none" in str(refused.value.details())
        assert "Traceback" not in service.log


def test_workers_are_ready_with_their_tokenizers() -> None:
    flags = ("--predictor_protocol=none", "--model_name=gpt2", f"--model_dir={DEMO_MODELS / 'gpt2'}", "--workers=2")
    with Service(*flags, "--enable_grpc=false") as service:
        service.wait_until("/v2/health/ready")
        assert service.client.post(RENDER, json={"prompt": "a"}).status_code == 200
        assert service.stop() == 0  # until then another thread may have lines to write
        assert "serves 'gpt2' (text_generation)" in service.log and "without a predictor" in service.log
