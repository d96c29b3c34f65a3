"""The forms that a predictor's model can take, and what is said of those that do not fit."""

from __future__ import annotations

import pytest

from hf_transformer.local_triton.child_process import poll
from tests.integration.conftest import Serve

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
def test_every_form_of_model_answers(serve: Serve, protocol: str, model: str) -> None:
    assert serve(model, protocol).predict(TEXTS * 5) == ANSWERS * 5


def test_positional_names_of_the_pytorch_backend(serve: Serve, protocol: str) -> None:
    service = serve("bert_torchscript", protocol, "--tensor_input_names=input_ids,attention_mask")
    assert service.predict(TEXTS) == ANSWERS


@pytest.mark.parametrize("names", ["input_ids", "input_ids,attention_mask"])
def test_an_optional_mask_may_be_named_or_not(serve: Serve, protocol: str, names: str) -> None:
    service = serve("bert_optional_mask", protocol, f"--tensor_input_names={names}")
    assert service.predict(TEXTS) == ANSWERS


@pytest.mark.parametrize(
    ("model", "flags", "says"),
    [
        pytest.param(
            "bert", ["--tensor_input_names=input_ids,attention_mask"], "has 'attention_mask', but", id="no input"
        ),
        pytest.param(
            "bert", ["--return_token_type_ids", "--tensor_input_names=input_ids"], "token_type_ids", id="types"
        ),
        pytest.param("bert_masked", ["--tensor_input_names=input_ids"], "requires the input", id="input left out"),
        pytest.param("bert_torchscript", [], "--tensor_input_names=input_ids", id="positional"),
        pytest.param("bert", ["--tensor_output_names=scores"], "the model has logits", id="no output"),
        pytest.param("bert_wrong_rank", [], "is it exported for another task", id="rank"),
        pytest.param("bert_wrong_vocab", [], "along vocabulary", id="vocabulary"),
    ],
)
def test_a_misfit_is_reported_once_and_keeps_the_service_unready(
    serve: Serve, protocol: str, model: str, flags: list[str], says: str
) -> None:
    service = serve(model, protocol, *flags, ready=False)
    assert poll(lambda: "does not fit" in service.client.get(f"/v1/models/{model}").text, 10.0)
    refused = service.post({"instances": TEXTS})
    assert refused.status_code == 503
    assert says in refused.json()["error"]
    assert service.log.count("does not fit") == 1
    assert service.client.get("/").status_code == 200
