"""Token models (TensorRT-LLM's interface): inputs of a call, and its responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.tokens import TokenGenerator
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from tests.generation.scripted_models import ScriptedLLM, ids, model, settings, spec, steps, tensor

PROMPT = Prompt("", (7, 8, 9))
OUTPUTS = (spec("output_ids", "INT32", -1, -1), spec("sequence_length", "INT32", -1))
SCORED = (*OUTPUTS, spec("output_log_probs", "FP32", -1, -1))
NEEDED = (spec("input_ids", "INT32", -1), spec("input_lengths"), spec("request_output_len"))
FLOATS = ("temperature", "runtime_top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
REAL = (
    *NEEDED,
    *(spec(name, "INT32", optional=True) for name in ("end_id", "pad_id", "beam_width", "runtime_top_k", "min_length")),
    *(spec(name, "FP32", optional=True) for name in FLOATS),
    spec("random_seed", "UINT64", optional=True),
    *(spec(name, "BOOL", optional=True) for name in ("streaming", "exclude_input_in_output", "return_log_probs")),
    spec("stop_words_list", "INT32", 2, -1, optional=True),
    spec("draft_input_ids", "INT32", -1, optional=True),
)
"""Inputs of tensorrtllm_backend."""

GREEDY = Sampling(max_tokens=5, greedy=True)
SEVERAL = frozenset({2, 5, 4})


def generator(spec: ModelSpec, predictor: ScriptedLLM, **more: Any) -> TokenGenerator:
    return TokenGenerator(spec, predictor, settings(**more))


async def ask(
    spec: ModelSpec, *responses: Any, sampling: Sampling = GREEDY, most: int | None = None, **more: Any
) -> tuple[list[Step], ScriptedLLM]:
    """Steps of one text, or the first ``most``, and the predictor."""
    predictor = ScriptedLLM(*responses)
    return await steps(generator(spec, predictor, **more), PROMPT, sampling, most), predictor


async def sent(spec: ModelSpec, sampling: Sampling = GREEDY, **more: Any) -> dict[str, Any]:
    """Values of the inputs of a call with one response."""
    return (await ask(spec, ids(2), sampling=sampling, **more))[1].calls[-1].sent


def ids_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.ids]


# Inputs


async def test_tensorrtllm_backend_gets_one_input_per_parameter() -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, top_k=3, top_p=0.25, repetition_penalty=1.5, min_tokens=2, seed=11, logprobs=0
    )
    response = ids(5, 2, length=2, scores=[-0.5, -0.25])
    _, predictor = await ask(model(REAL, SCORED), response, sampling=sampling)
    numbers = {"input_lengths": 3, "request_output_len": 5, "end_id": 2, "pad_id": 0, "min_length": 2}
    drawn = {"temperature": 0.5, "runtime_top_k": 3, "runtime_top_p": 0.25, "repetition_penalty": 1.5}
    flags = dict.fromkeys(("streaming", "exclude_input_in_output", "return_log_probs"), True)
    values = {**numbers, **drawn, **flags, "random_seed": 11}
    assert predictor.calls[-1].sent == {"input_ids": [[7, 8, 9]], **{name: [[value]] for name, value in values.items()}}
    for one in predictor.calls[-1].given.inputs:
        assert one.data.dtype.name == {"BOOL": "bool", "FP32": "float32"}.get(one.datatype, one.datatype.lower())
    assert predictor.calls[-1].given.outputs == ["output_ids", "sequence_length", "output_log_probs"]
    assert predictor.calls[-1].given.headers == {"x-request-id": "r"}


async def test_greedy_is_a_top_k_of_1_or_a_top_p_of_0() -> None:
    for without, top_k, top_p in (("", [[1]], 1.0), ("runtime_top_k", None, 0.0)):
        found = await sent(model([one for one in REAL if one.name != without], OUTPUTS))
        assert (found.get("runtime_top_k"), found["runtime_top_p"]) == (top_k, [[top_p]])
        assert (found["temperature"], found["random_seed"]) == ([[1.0]], [[0]])


ALWAYS = {"max_tokens", "stop_token_ids"}


@pytest.mark.parametrize(
    ("more", "outputs", "ends", "honoured"),
    [
        ((), OUTPUTS, {2}, ALWAYS),
        ((spec("top_k"),), OUTPUTS, {2}, {*ALWAYS, "top_k", "greedy"}),
        ((spec("top_p", "FP32"),), OUTPUTS, {2}, {*ALWAYS, "top_p", "greedy"}),
        ((spec("temperature", "FP32"),), OUTPUTS, {2}, {*ALWAYS, "temperature"}),
        # The model suppresses its end_id, and no other token.
        ((spec("min_length"),), OUTPUTS, {2}, {*ALWAYS, "min_tokens"}),
        ((spec("min_length"),), OUTPUTS, {2, 5}, ALWAYS),
        ((spec("return_log_probs", "BOOL"),), OUTPUTS, {2}, ALWAYS),
        ((spec("return_log_probs", "BOOL"),), SCORED, {2}, {*ALWAYS, "logprobs"}),
        ((spec("end_id", "UINT32"),), OUTPUTS, {2}, ALWAYS),
        ((spec("end_id"),), OUTPUTS, {2}, {*ALWAYS, "ignore_eos"}),
    ],
)
async def test_the_models_inputs_decide_the_supported_fields(
    more: Any, outputs: Any, ends: set[int], honoured: set[str]
) -> None:
    found = model([*NEEDED, *more], outputs)
    assert generator(found, ScriptedLLM(), eos_ids=frozenset(ends)).supported_fields == honoured


@pytest.mark.parametrize(("datatype", "bits"), [("UINT64", 63), ("INT64", 63), ("INT32", 31), ("UINT32", 31)])
async def test_any_seed_and_top_k_fit_their_inputs(datatype: str, bits: int) -> None:
    seeded = model([*NEEDED, spec("seed", datatype), spec("top_k", datatype)], OUTPUTS)
    for seed in (5, 2**63 - 1, 2**63 + 5, 2**31 + 5, -1):
        values = await sent(seeded, Sampling(max_tokens=1, seed=seed, top_k=2**80))
        assert (values["seed"], values["top_k"]) == ([[seed % 2**bits]], [[2**31 - 1]])
    without = [(await sent(seeded, Sampling(max_tokens=1)))["seed"] for _ in range(2)]
    assert without[0] != without[1], "each request without a seed gets a new one"


async def test_required_inputs_get_neutral_values() -> None:
    required = [TensorSpec(one.name, one.datatype, one.shape) for one in REAL if one.name != "draft_input_ids"]
    found = await sent(model(required, OUTPUTS))
    assert (found["repetition_penalty"], found["presence_penalty"], found["min_length"]) == ([[1.0]], [[0.0]], [[0]])
    assert (found["beam_width"], found["return_log_probs"]) == ([[1]], [[False]])
    assert found["stop_words_list"] == [[[0], [-1]]]


@pytest.mark.parametrize(
    ("shape", "scalar", "batch", "expected", "length"),
    [
        ((-1,), (1,), 4, [[7, 8, 9]], [[3]]),
        ((-1, -1), (-1, 1), 0, [[7, 8, 9]], [[3]]),
        ((-1, -1), (-1,), 0, [[7, 8, 9]], [3]),
        ((1, -1), (1, 1), None, [[7, 8, 9]], [[3]]),
        ((-1,), (), 0, [7, 8, 9], 3),
    ],
    ids=["Triton's batch axis", "its own", "its own, and lengths without one", "from the metadata", "none"],
)
async def test_inputs_have_the_models_shapes(
    shape: tuple[int, ...], scalar: tuple[int, ...], batch: int | None, expected: Any, length: Any
) -> None:
    inputs = [TensorSpec(one.name, "INT64", shape if one.name == "input_ids" else scalar) for one in NEEDED]
    found = await sent(model(inputs, OUTPUTS, batch=batch))
    assert (found["input_ids"], found["input_lengths"]) == (expected, length)


@pytest.mark.parametrize(
    ("ends", "sampling", "end", "words"),
    [
        (frozenset({2}), GREEDY, 2, None),
        (SEVERAL, GREEDY, 5, [[2, 4], [1, 2]]),
        (SEVERAL, replace(GREEDY, ignore_eos=True), -1, None),
        (frozenset({2}), replace(GREEDY, stop_token_ids=(7, 9)), 2, [[7, 9], [1, 2]]),
        (SEVERAL, replace(GREEDY, stop_token_ids=(7, 9)), 5, [[2, 4, 7, 9], [1, 2, 3, 4]]),
        (SEVERAL, replace(GREEDY, stop_token_ids=(7, 9), ignore_eos=True), -1, [[7, 9], [1, 2]]),
        # The model suppresses its own end token.
        (frozenset({2}), replace(GREEDY, stop_token_ids=(2,), min_tokens=3), 2, None),
    ],
)
async def test_end_tokens_are_sent_as_end_id_and_stop_words(
    ends: frozenset[int], sampling: Sampling, end: int, words: Any
) -> None:
    inputs = await sent(model(REAL, OUTPUTS), sampling, eos_ids=ends)
    assert (inputs["end_id"], inputs.get("stop_words_list")) == ([[end]], None if words is None else [words])


@pytest.mark.parametrize("words", [(), (2, 2)], ids=["no stop words", "too few"])
async def test_stop_tokens_end_a_text_of_a_model_without_stop_words(words: tuple[int, ...]) -> None:
    more = [spec("stop_words_list", "INT32", *words, optional=True)] if words else []
    how = Sampling(max_tokens=9, stop_token_ids=(7, 11, 12), ignore_eos=True)
    found, predictor = await ask(model([*NEEDED, *more], OUTPUTS), ids(5), ids(6), ids(7), ids(8), sampling=how)
    assert ids_of(found) == [5, 6] and found[-1].finish == "stop"
    assert "stop_words_list" not in predictor.calls[-1].sent


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(max_tokens=9, min_tokens=3, stop_token_ids=(7,)), "^parameters.stop_token_ids: expected no"),
        (Sampling(max_tokens=9, min_tokens=3, stop_token_ids=(2,), ignore_eos=True), "can't suppress stop tokens"),
        (Sampling(max_tokens=5, logprobs=3, names={"logprobs": "top_logprobs"}), "parameters.top_logprobs: expected 0"),
    ],
)
async def test_unsupported_combinations_are_refused(sampling: Sampling, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await sent(model(REAL, SCORED), sampling)


async def test_an_encoder_decoder_gets_its_decoder_start_ids() -> None:
    more = [spec("decoder_input_ids", "INT32", -1), spec("decoder_input_lengths")]
    found = model([*NEEDED, *more], OUTPUTS, decoupled=False)
    [step], predictor = await ask(found, ids(0, 5, 6), decoder_start_ids=(0,))
    sent = predictor.calls[-1].sent
    assert (sent["decoder_input_ids"], sent["decoder_input_lengths"]) == ([[0]], [[1]])
    assert step.ids == [5, 6]


async def test_a_trial_requests_one_token() -> None:
    predictor = ScriptedLLM(ids(5))
    await generator(model(REAL, OUTPUTS), predictor).trial(PROMPT)
    assert predictor.calls[-1].sent["request_output_len"] == [[1]]


WORDS = "stop_words_list"
NO_END: dict[str, Any] = {"eos_ids": frozenset()}


@pytest.mark.parametrize(
    ("more", "settings_", "message"),
    [
        (spec("image", "BYTES"), {}, "It requires the input 'image', which this service can't fill"),
        (spec("decoder_input_ids", "INT32", -1), {}, "'decoder_input_ids', but config.json describes no"),
        (spec("input_ids", "FP32", -1), {}, "'input_ids' is FP32; export it as INT32"),
        (spec("input_ids", "INT32", 16), {}, "'input_ids' has a fixed length"),
        (spec("temperature", "INT32"), {}, "'temperature' is INT32; export it as FP32"),
        (spec("request_output_len", "INT8"), {}, "_len' is INT8; export it as INT32"),
        (spec("top_k", "INT32", 2), {}, r"'top_k' has the dims \[1, 2\]; expected room for one value"),
        (spec("streaming", "BYTES"), {}, "'streaming' is BYTES; export it as BOOL"),
        (spec(WORDS, "UINT32", 2, -1), {}, "list' is UINT32; export it as INT32"),
        (spec("bad_words_list", "UINT64", 2, -1), {}, "list' is UINT64; export it as INT32"),
        (spec(WORDS, "INT32", 1), {}, "'stop_words_list' has the dims .* for 2 values"),
        (spec(WORDS, "INT32", 3, optional=True), {"eos_ids": SEVERAL}, "dims .* for 4 values"),
        (spec("end_id", "UINT32"), NO_END, "'end_id' is UINT32; export it as INT32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_misfit_has_its_message(more: TensorSpec, settings_: dict[str, Any], message: str) -> None:
    inputs = {one.name: one for one in (*NEEDED, more)}
    with pytest.raises(ContractError, match=message):
        generator(model([*inputs.values()], OUTPUTS), ScriptedLLM(), **settings_)
    with pytest.raises(ContractError, match="has the inputs input_ids and request_output_len and the output"):
        generator(model([*inputs.values()], OUTPUTS[1:]), ScriptedLLM(), **settings_)


async def test_half_precision_can_not_be_streamed_over_rest() -> None:
    half = [*NEEDED, spec("temperature", "FP16", optional=True)]
    for inputs, outputs in ((half, OUTPUTS), (NEEDED, [*OUTPUTS, spec("output_log_probs", "BF16")])):
        with pytest.raises(ContractError, match="16, which can't be streamed over REST: use --predictor_protocol=grpc"):
            generator(model(inputs, outputs), ScriptedLLM(json=True))
        generator(model(inputs, outputs, decoupled=False), ScriptedLLM(json=True))
        generator(model(inputs, outputs), ScriptedLLM())
    unused = [*NEEDED, spec("draft_logits", "FP16", -1, optional=True)]
    generator(model(unused, [*OUTPUTS, spec("context_logits", "FP16", -1)]), ScriptedLLM(json=True))


# Answers


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
async def test_a_stream_ends_at_eos_or_max_tokens(responses: list[Any], expected: list[list[int]], finish: str) -> None:
    found, _ = await ask(model(REAL, OUTPUTS), *responses)
    assert [list(step.ids) for step in found] == [*expected, []]
    assert [step.finish for step in found] == [None] * len(expected) + [finish]


async def test_a_stream_is_closed_at_its_end_and_with_its_reader() -> None:
    real, responses = model(REAL, OUTPUTS), [ids(5), ids(2), ids(6), ids(7)]
    found, predictor = await ask(real, *responses)
    assert [list(step.ids) for step in found] == [[5], []] and predictor.left == 1
    found, predictor = await ask(real, *responses, most=1)
    assert len(found) == 1 and predictor.left == 3
    assert ids_of((await ask(real, *responses, sampling=replace(GREEDY, ignore_eos=True)))[0]) == [5, 2, 6, 7]


@pytest.mark.parametrize(
    ("response", "expected", "finish"),
    [
        (ids(7, 8, 9, 5, 6, 2, 0, 0, length=6), [5, 6], "stop"),
        (ids(7, 8, 9, 5, 6, length=5), [5, 6], "stop"),
        (ids(7, 8, 9, 1, 3, 4, 5, 6), [1, 3, 4, 5, 6], "length"),
        (ids(5, 6), [5, 6], "stop"),
        (ids(7, 8, 9, 2), [], "stop"),
        ({"output_ids": Tensor("output_ids", "INT32", np.array([[[5, 6], [8, 9]]], np.int32))}, [5, 6], "stop"),
    ],
    ids=["prompt, eos, padding", "no eos", "the most", "no prompt", "nothing", "the first beam"],
)
async def test_a_unary_response_becomes_one_step(response: Any, expected: list[int], finish: str) -> None:
    responses = [response]
    if response["output_ids"].data.shape[-2] == 1:
        responses.append({name: Tensor(name, data.datatype, data.data.ravel()) for name, data in response.items()})
    for tensors in responses:
        [step], predictor = await ask(model(NEEDED, OUTPUTS, decoupled=False), tensors)
        assert [call.released for call in predictor.calls] == [True]
        assert (list(step.ids), step.finish) == (expected, finish)


async def test_log_probabilities_belong_to_the_new_tokens() -> None:
    inputs = [one for one in REAL if one.name != "exclude_input_in_output"]
    new = [ids(5, scores=[-0.5]), ids(6, 3, scores=[-0.25, -1.0]), ids(2, scores=[-2.0])]
    behind_the_prompt = [ids(7, 8, 9, 5, scores=[-9.0, -9.0, -9.0, -1.0]), ids(6, scores=[-2.0])]
    for responses, expected in ((new, [(5, -0.5), (6, -0.25), (3, -1.0)]), (behind_the_prompt, [(5, -1.0), (6, -2.0)])):
        found, _ = await ask(model(inputs, SCORED), *responses, sampling=Sampling(max_tokens=5, logprobs=0))
        assert [(score.id, score.logprob) for step in found for score in step.scores] == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"output_ids": tensor("output_ids", "FP32", 0.5)}, "output_ids is FP32, expected whole"),
        ({**ids(5), "sequence_length": tensor("sequence_length", "BYTES", b"3")}, "BYTES, expected whole numbers"),
        (ids(5, 6, scores=[-1.0]), "2 new output_ids, but fewer output_log_probs"),
    ],
    ids=["ids", "length", "scores"],
)
async def test_invalid_responses_are_predictor_errors(wrong: Any, message: str) -> None:
    with pytest.raises(PredictorError, match=message):
        await ask(model(REAL, SCORED), wrong, sampling=Sampling(max_tokens=5, logprobs=0))


async def test_an_empty_json_output_has_no_tokens() -> None:
    none = {name: tensor(name, "BYTES") for name in ("output_ids", "output_log_probs")}
    responses = [none, ids(5, scores=[-0.5]), none]
    found, _ = await ask(model(REAL, SCORED), *responses, sampling=replace(GREEDY, logprobs=0))
    assert ids_of(found) == [5] and found[-1].finish == "stop"


async def read(generator: TokenGenerator, *responses: Any) -> list[int]:
    assert isinstance(generator._predictor, ScriptedLLM)
    generator._predictor.responses = responses
    return ids_of(await steps(generator, PROMPT, replace(GREEDY, max_tokens=9)))


async def test_a_prompt_at_the_start_of_the_first_response_is_removed() -> None:
    stream = generator(model(NEEDED, OUTPUTS), ScriptedLLM())
    assert await read(stream, ids(7, 8, 9, 5), ids(6), ids(1)) == [5, 6, 1]
    assert await read(stream, ids(7, 8, 9), ids(6)) == [7, 8, 9, 6], "no stream begins with the prompt alone"
    whole = generator(model(NEEDED, OUTPUTS, decoupled=False), ScriptedLLM())
    assert await read(whole, ids(7, 8, 9)) == []
    assert await read(whole, ids(7, 8)) == [7, 8]
    assert await read(whole, ids(7, 8, 9, 5)) == [7, 8, 9, 5], "a model that omitted the prompt once omits it always"
    excluding = generator(model(REAL, OUTPUTS), ScriptedLLM())
    assert await read(excluding, ids(7, 8, 9, 5)) == [7, 8, 9, 5]
