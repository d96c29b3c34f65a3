"""Token models: what is read of their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.types import Sampling
from hf_transformer.types import Tensor
from tests.generation.scripted_models import ScriptedModel, ids, model, steps
from tests.generation.test_token_model import GREEDY, NEEDED, OUTPUTS, PROMPT, REAL, SCORED, generator


@pytest.mark.parametrize(
    ("responses", "expected", "finish"),
    [
        ([ids(5, length=1), ids(6, length=1), ids(2, length=1)], [[5], [6]], "stop"),
        ([ids(5), ids(6)], [[5], [6]], "stop"),
        ([ids(1), ids(3), ids(4), ids(5), ids(6)], [[1], [3], [4], [5], [6]], "length"),
        ([ids(1, 3, 4, 5, 6, 7)], [[1, 3, 4, 5, 6]], "length"),
        ([ids(1, 3, 0, 0, length=2), ids(2, 0, 0, length=1)], [[1, 3]], "stop"),
        ([ids(5, 2, 6)], [[5]], "stop"),
        ([{}, ids(length=0), ids(5, length=1), {}], [[5]], "stop"),
        ([], [], "stop"),
    ],
    ids=["eos", "an end without eos", "the most", "more than that", "padding", "behind eos", "empty ones", "none"],
)
async def test_a_stream(responses: list[Any], expected: list[list[int]], finish: str) -> None:
    found = await steps(generator(model(REAL, OUTPUTS), ScriptedModel(*responses)), PROMPT, GREEDY)
    assert [list(step.ids) for step in found] == [*expected, []]
    assert [step.finish for step in found] == [None] * len(expected) + [finish]


async def test_a_stream_that_goes_on_behind_its_end_is_left() -> None:
    predictor = ScriptedModel(ids(5), ids(2), ids(6), ids(7))
    found = await steps(generator(model(REAL, OUTPUTS), predictor), PROMPT, GREEDY)
    assert [list(step.ids) for step in found] == [[5], []]
    assert predictor.left == 1


async def test_leaving_early_leaves_the_stream() -> None:
    predictor = ScriptedModel(ids(5), ids(6), ids(7))
    assert len(await steps(generator(model(REAL, OUTPUTS), predictor), PROMPT, GREEDY, most=1)) == 1
    assert predictor.left == 2


async def test_ignored_ends_are_in_the_text() -> None:
    predictor = ScriptedModel(ids(5), ids(2), ids(6))
    found = await steps(generator(model(REAL, OUTPUTS), predictor), PROMPT, Sampling(max_tokens=5, ignore_eos=True))
    assert [token for step in found for token in step.ids] == [5, 2, 6]


@pytest.mark.parametrize(
    ("response", "expected", "finish"),
    [
        (ids(7, 8, 9, 5, 6, 2, 0, 0, length=6), [5, 6], "stop"),
        (ids(7, 8, 9, 5, 6, length=5), [5, 6], "stop"),
        (ids(7, 8, 9, 1, 3, 4, 5, 6), [1, 3, 4, 5, 6], "length"),
        (ids(5, 6), [5, 6], "stop"),
        (ids(7, 8, 9, 2), [], "stop"),
    ],
    ids=["prompt, eos, padding", "no eos", "the most", "no prompt", "nothing"],
)
@pytest.mark.parametrize("flat", [False, True], ids=["with axes", "flat"])
async def test_one_response(response: Any, expected: list[int], finish: str, flat: bool) -> None:
    if flat:
        response = {name: Tensor(name, one.datatype, one.data.ravel()) for name, one in response.items()}
    predictor = ScriptedModel(response)
    [step] = await steps(generator(model(NEEDED, OUTPUTS, decoupled=False), predictor), PROMPT, GREEDY)
    assert predictor.released == 1
    assert (list(step.ids), step.finish) == (expected, finish)


async def test_the_first_beam_is_read() -> None:
    beams = {"output_ids": Tensor("output_ids", "INT32", np.array([[[5, 6], [8, 9]]], np.int32))}
    [step] = await steps(generator(model(NEEDED, OUTPUTS, decoupled=False), ScriptedModel(beams)), PROMPT, GREEDY)
    assert step.ids == [5, 6]


SCORING = Sampling(max_tokens=5, logprobs=0)


async def test_log_probabilities() -> None:
    predictor = ScriptedModel(ids(5, scores=[-0.5]), ids(6, 3, scores=[-0.25, -1.0]), ids(2, scores=[-2.0]))
    found = await steps(generator(model(REAL, SCORED), predictor), PROMPT, SCORING)
    assert [[(score.id, score.logprob) for score in step.scores] for step in found] == [
        [(5, -0.5)],
        [(6, -0.25), (3, -1.0)],
        [],
    ]
    assert "logprobs" in generator(model(REAL, SCORED), predictor).honours
    assert "logprobs" not in generator(model(REAL, OUTPUTS), predictor).honours


async def test_log_probabilities_of_what_was_held_back() -> None:
    rows = [ids(5, scores=[-1.0]), ids(5, 6, scores=[-1.0, -2.0]), ids(5, 6, 7, scores=[-1.0, -2.0, -3.0])]
    found = await steps(generator(model(REAL, SCORED), ScriptedModel(*rows)), PROMPT, SCORING)
    assert [(score.id, score.logprob) for step in found for score in step.scores] == [(5, -1.0), (6, -2.0), (7, -3.0)]


async def test_too_few_log_probabilities() -> None:
    with pytest.raises(PredictorError, match="2 new output_ids, but fewer output_log_probs"):
        await steps(generator(model(REAL, SCORED), ScriptedModel(ids(5, 6, scores=[-1.0]))), PROMPT, SCORING)


async def test_alternatives_are_refused() -> None:
    sampling = Sampling(max_tokens=5, logprobs=3, names={"logprobs": "top_logprobs"})
    with pytest.raises(InvalidInput, match=r"^top_logprobs: 3 of the likeliest"):
        await steps(generator(model(REAL, SCORED), ScriptedModel()), PROMPT, sampling)


async def test_ids_that_are_none() -> None:
    text = Tensor("sequence_length", "BYTES", np.array([b"3"], np.object_))
    for wrong, message in (
        ({"output_ids": Tensor("output_ids", "FP32", np.array([0.5], np.float32))}, "output_ids is FP32"),
        ({**ids(5, 6), "sequence_length": text}, "sequence_length is BYTES"),
    ):
        with pytest.raises(PredictorError, match=f"{message}, expected whole numbers"):
            await steps(generator(model(REAL, OUTPUTS), ScriptedModel(wrong)), PROMPT, GREEDY)


async def test_a_response_without_ids_in_json() -> None:
    none = {name: Tensor(name, "BYTES", np.empty(0, np.object_)) for name in ("output_ids", "output_log_probs")}
    scored = Sampling(max_tokens=5, greedy=True, logprobs=0)
    found = await steps(
        generator(model(REAL, SCORED), ScriptedModel(none, ids(5, scores=[-0.5]), none)), PROMPT, scored
    )
    assert [list(step.ids) for step in found if step.ids] == [[5]]
    assert found[-1].finish == "stop"
