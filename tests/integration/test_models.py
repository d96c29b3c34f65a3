"""The forms that a predictor's model can take, and what is said of those that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import MODEL_FOLDER, Serve, refused
from tests.service import START_SECONDS

TEXTS = ["The capital of france is [MASK].", "[MASK] is the capital of italy.", "The capital of japan is [MASK]."]
ANSWERS = ["paris", "rome", "tokyo"]
FORMS = [
    ("bert", ""),
    ("bert_masked", ""),
    ("bert_int32", ""),
    ("bert_unbatched", ""),
    ("bert_batch0", ""),
    ("bert_fixed", ""),
    ("bert_fp16", ""),
    ("bert_two_outputs", ""),
    ("bert_optional_mask", ""),
    ("bert_optional_mask", "input_ids"),
    ("bert_optional_mask", "input_ids,attention_mask"),
    ("bert_torchscript", "input_ids,attention_mask"),  # positional names of Triton's PyTorch backend
]


@pytest.mark.parametrize(("model", "names"), FORMS)
def test_every_form_of_model_answers(serve: Serve, model: str, names: str) -> None:
    """Over gRPC to Triton; the tests of fill_mask ask over REST, too."""
    service = serve(model, "grpc-v2", *([f"--tensor_input_names={names}"] if names else []))
    assert service.predict(TEXTS * 5) == ANSWERS * 5


@pytest.mark.parametrize("model", ["bert_masked", "bert_fixed"])
def test_a_tokenizer_that_pads_left_gives_the_same_answers(serve: Serve, model: str, tmp_path: Path) -> None:
    """Padding on the left would shift the positions of a BERT: behind a mask it goes to the right all the same."""
    shutil.copytree(MODEL_FOLDER, tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    texts = [*TEXTS, "It is said, and often, that the capital of spain is [MASK]."]
    parameters = {"output_format": "pipeline", "top_k": 1}
    expected = [serve(model, "grpc-v2").predict([text], parameters)[0][0] for text in texts]
    found = serve(model, "v2", f"--model_dir={tmp_path}").predict(texts, parameters)
    assert [one[0]["token_str"] for one in found] == [*ANSWERS, "madrid"]
    assert [one[0]["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "task", "says"),
    [
        ("bert_wrong_rank", "fill_mask", "is it exported for another task"),
        ("minibert_pooled", "feature_extraction", "reads [tokens, hidden]"),
    ],
)
def test_a_misfit_is_reported_once_and_keeps_the_service_unready(
    serve: Serve, model: str, task: str, says: str
) -> None:
    """tests/core/test_contract.py and the doctor's mismatches have all that can be said."""
    service = serve(model, "v2", f"--task={task}", "--log_level=debug", ready=False)
    assert poll(lambda: "does not fit" in service.client.get(f"/v1/models/{model}").text, START_SECONDS)
    refused(service, TEXTS, {}, says, 503)
    assert service.client.get(f"/v1/models/{model}").status_code == 503
    assert poll(lambda: service.log.count("is still not ready") >= 3, START_SECONDS)
    assert service.log.count("WARNING hf_transformer.core.model: not ready") == 1
    assert service.client.get("/").status_code == 200
