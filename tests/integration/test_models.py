"""The forms that a predictor's model can take, and what is said of those that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import MODEL_FOLDER, Serve

TEXTS = ["The capital of france is [MASK].", "[MASK] is the capital of italy.", "The capital of japan is [MASK]."]
ANSWERS = ["paris", "rome", "tokyo"]


@pytest.mark.parametrize(
    "model",
    [
        "bert",
        "bert_masked",
        "bert_int32",
        "bert_unbatched",
        "bert_batch0",
        "bert_fixed",
        "bert_fp16",
        "bert_two_outputs",
        "bert_optional_mask",
    ],
)
def test_every_form_of_model_answers(serve: Serve, model: str) -> None:
    """Over gRPC to Triton; the tests of fill_mask ask over REST, too."""
    assert serve(model, "grpc-v2").predict(TEXTS * 5) == ANSWERS * 5


@pytest.mark.parametrize("model", ["bert_masked", "bert_fixed"])
def test_a_tokenizer_that_pads_left_gives_the_same_answers(serve: Serve, model: str, tmp_path: Path) -> None:
    """Padding on the left would shift the positions of a BERT: behind a mask it goes to the right all the same."""
    shutil.copytree(MODEL_FOLDER, tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    texts = [*TEXTS, "It is said, and often, that the capital of spain is [MASK]."]
    parameters = {"output_format": "pipeline", "top_k": 1}
    expected = [serve(model).predict([text], parameters)[0][0] for text in texts]
    found = serve(model, "v2", f"--model_dir={tmp_path}").predict(texts, parameters)
    assert [one[0]["token_str"] for one in found] == [*ANSWERS, "madrid"]
    assert [one[0]["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)


def test_positional_names_of_the_pytorch_backend(serve: Serve) -> None:
    service = serve("bert_torchscript", "v2", "--tensor_input_names=input_ids,attention_mask")
    assert service.predict(TEXTS) == ANSWERS


@pytest.mark.parametrize("names", ["input_ids", "input_ids,attention_mask"])
def test_an_optional_mask_may_be_named_or_not(serve: Serve, names: str) -> None:
    service = serve("bert_optional_mask", "v2", f"--tensor_input_names={names}")
    assert service.predict(TEXTS) == ANSWERS


@pytest.mark.parametrize(
    ("model", "flags", "says"),
    [
        ("bert_masked", ["--tensor_input_names=input_ids"], "requires the input"),
        ("bert", ["--tensor_output_names=scores"], "the model has logits"),
        ("bert_wrong_rank", [], "is it exported for another task"),
    ],
)
def test_a_misfit_is_reported_once_and_keeps_the_service_unready(
    serve: Serve, model: str, flags: list[str], says: str
) -> None:
    """tests/core/test_contract.py and the doctor's mismatches have all that can be said."""
    service = serve(model, "v2", *flags, "--log_level=debug", ready=False)
    assert poll(lambda: "does not fit" in service.client.get(f"/v1/models/{model}").text, 10.0)
    assert poll(lambda: service.log.count("is still not ready") >= 3, 10.0)
    refused = service.post({"instances": TEXTS})
    assert refused.status_code == 503
    assert says in refused.json()["error"]
    assert service.log.count("WARNING hf_transformer.core.model: not ready") == 1
    assert service.client.get("/").status_code == 200
