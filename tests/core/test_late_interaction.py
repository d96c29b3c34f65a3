"""A model for late interaction in the whole pipeline: queries and documents in one batch, fixed lengths, contracts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import PipelineBuilder, fit_task
from hf_transformer.core.contract import ContractError
from hf_transformer.core.pipeline import PredictivePipeline
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Context, Query
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from tests.support.configuring import config
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor
from tests.support.triton_repository import task_model_folder

SIZE = 80
OPTIONS = config("--model_name=colbert", f"--model_dir={task_model_folder('colbert')}", "--predictor_host=none")
MASKED = ("input_ids", "attention_mask")


def spec(length: int = -1, inputs: tuple[str, ...] = MASKED, size: int = SIZE) -> ModelSpec:
    tensors = tuple(TensorSpec(name, "INT64", (length,)) for name in inputs)
    return ModelSpec("colbert", "1", tensors, (TensorSpec("token_vectors", "FP32", (length, size)),), 8)


class Ones(ScriptedPredictor):
    """Answers with vectors of ones."""

    async def respond(self, call: RecordedCall) -> Mapping[str, Any]:
        shape = (*call.ids.shape, SIZE)
        return {"token_vectors": Tensor("token_vectors", "FP32", np.ones(shape, np.float32))}


async def vectors(model: ModelSpec, text: str, **parameters: str) -> tuple[RecordedCall, Any]:
    """The call for a text, and its answer."""
    predictor, loaded = Ones(), load_model(OPTIONS)
    with ThreadPoolExecutor(1) as executor:
        pipeline = PipelineBuilder(OPTIONS, loaded, predictor, Metrics().of("colbert"), executor)(model)
        assert isinstance(pipeline, PredictivePipeline)
        answers = await pipeline(Query([text], parameters), Context("", {}))
    [call] = predictor.calls
    return call, answers.predictions[0]


@pytest.mark.parametrize(("length", "width"), [(-1, 32), (20, 20)])
async def test_a_query_has_a_vector_for_each_mask_token(length: int, width: int) -> None:
    call, answer = await vectors(spec(length), "the cat", input_type="query")
    assert answer.shape == (width, SIZE) and call.ids.shape == (1, width)
    [attended] = call["attention_mask"].sum(axis=1)
    mask = load_model(OPTIONS).tokenizer.mask_id
    assert call.ids[0, attended:].tolist() == [mask] * (width - attended) and mask not in call.ids[0, :attended]


@pytest.mark.parametrize(("length", "width"), [(-1, 48), (20, 20)])
async def test_a_long_document_fits_with_its_marker(length: int, width: int) -> None:
    call, answer = await vectors(spec(length), "cat, " * 60)
    assert call.ids.shape == (1, width) and call["attention_mask"].all()
    comma = load_model(OPTIONS).tokenizer.token_to_id(",")
    assert len(answer) == width - call.ids.tolist()[0].count(comma) < width


def test_models_that_do_not_fit_are_refused() -> None:
    task: Any = load_model(OPTIONS).task
    with pytest.raises(ContractError, match="mask tokens that its attention must not see"):
        fit_task(OPTIONS, task, spec(inputs=("input_ids",)))
    with pytest.raises(ContractError, match="export the model with its projection"):
        fit_task(OPTIONS, task, spec(size=16))
