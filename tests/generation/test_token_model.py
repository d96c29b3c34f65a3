"""Token models: what is sent; see test_token_answers.py for what is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.token_model import TokenGenerator
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.types import ModelSpec, TensorSpec
from tests.generation.scripted_models import ScriptedModel, ids, model, settings, spec, steps

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
"""As tensorrtllm_backend has them."""

GREEDY = Sampling(max_tokens=5, greedy=True)


def generator(found: ModelSpec, predictor: ScriptedModel, **more: Any) -> TokenGenerator:
    return TokenGenerator(found, predictor, settings(**more))


async def sent(found: ModelSpec, sampling: Sampling, **more: Any) -> dict[str, Any]:
    """The values that a model of one response gets."""
    predictor = ScriptedModel(ids(2))
    await steps(generator(found, predictor, **more), PROMPT, sampling)
    return predictor.sent()


async def test_what_the_real_backend_gets() -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, top_k=3, top_p=0.25, repetition_penalty=1.5, min_tokens=2, seed=11, logprobs=0
    )
    predictor = ScriptedModel(ids(5, 2, length=2, scores=[-0.5, -0.25]))
    await steps(generator(model(REAL, SCORED), predictor), PROMPT, sampling)
    assert predictor.sent() == {
        "input_ids": [[7, 8, 9]],
        "input_lengths": [[3]],
        "request_output_len": [[5]],
        "end_id": [[2]],
        "pad_id": [[0]],
        "temperature": [[0.5]],
        "runtime_top_k": [[3]],
        "runtime_top_p": [[0.25]],
        "repetition_penalty": [[1.5]],
        "min_length": [[2]],
        "random_seed": [[11]],
        "streaming": [[True]],
        "exclude_input_in_output": [[True]],
        "return_log_probs": [[True]],
    }
    assert [(one.datatype, one.data.dtype.name) for one in predictor.inputs.values()].count(("UINT64", "uint64")) == 1
    assert predictor.wanted == ["output_ids", "sequence_length", "output_log_probs"]
    assert predictor.headers == {"x-request-id": "r"}


async def test_greedy() -> None:
    found = await sent(model(REAL, OUTPUTS), GREEDY)
    assert (found["runtime_top_k"], found["runtime_top_p"], found["temperature"]) == ([[1]], [[1.0]], [[1.0]])
    assert found["random_seed"] == [[0]]
    without_top_k = [one for one in REAL if one.name != "runtime_top_k"]
    assert (await sent(model(without_top_k, OUTPUTS), GREEDY))["runtime_top_p"] == [[0.0]]


async def test_greedy_is_not_honoured_without_an_input_for_it() -> None:
    for names, expected in ((("top_k",), True), (("top_p",), True), (("temperature",), False), ((), False)):
        more = [spec(name, "INT32" if name == "top_k" else "FP32", optional=True) for name in names]
        found = generator(model([*NEEDED, *more], OUTPUTS), ScriptedModel())
        assert ("greedy" in found.honours) is expected, names
        assert found.honours - {"greedy"} == {"max_tokens", "stop_token_ids", *names}


async def test_min_tokens_are_honoured_where_one_token_alone_ends_the_text() -> None:
    """The model holds its end_id back; the others would end the text at once."""
    for ends, expected in (({2}, True), (set[int](), True), ({2, 5}, False)):
        found = generator(model(REAL, OUTPUTS), ScriptedModel(), eos_ids=frozenset(ends))
        assert ("min_tokens" in found.honours) is expected, ends


async def test_without_a_seed_there_is_a_new_one_each_time() -> None:
    seeds = [(await sent(model(REAL, OUTPUTS), Sampling(max_tokens=1)))["random_seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(("datatype", "limit"), [("UINT64", 2**63), ("INT64", 2**63), ("INT32", 2**31)])
async def test_seeds_fit_their_datatype(datatype: str, limit: int) -> None:
    more = spec("seed", datatype)
    for seed in (5, 2**63 - 1, 2**63 + 5, 2**31 + 5):
        found = await sent(model([*NEEDED, more], OUTPUTS), Sampling(max_tokens=1, seed=seed))
        assert found["seed"] == [[seed % limit]]


@pytest.mark.parametrize(("datatype", "limit"), [("INT32", 2**31 - 1), ("UINT32", 2**32 - 1), ("INT64", 2**63 - 1)])
async def test_a_top_k_beyond_all_tokens_fits_its_datatype(datatype: str, limit: int) -> None:
    found = model((*NEEDED, spec("top_k", datatype)), OUTPUTS)
    for given in (limit, limit + 1, 2**80):
        assert (await sent(found, Sampling(max_tokens=5, top_k=given)))["top_k"] == [[limit]]


async def test_names_of_the_issue() -> None:
    names = ("top_k", "end_id", "pad_id")
    more = [*(spec(name) for name in names), spec("top_p", "FP32"), spec("seed", "INT64"), spec("streaming", "BOOL")]
    found = await sent(model([*NEEDED, *more], OUTPUTS, decoupled=False), Sampling(max_tokens=4, top_k=6, seed=1))
    assert found["top_k"] == [[6]]
    assert (found["top_p"], found["seed"], found["streaming"]) == ([[1.0]], [[1]], [[False]])


async def test_neutral_values_are_sent_where_they_are_required() -> None:
    required = [TensorSpec(one.name, one.datatype, one.shape) for one in REAL if one.name != "draft_input_ids"]
    found = await sent(model(required, OUTPUTS), GREEDY)
    assert (found["repetition_penalty"], found["presence_penalty"], found["min_length"]) == ([[1.0]], [[0.0]], [[0]])
    assert (found["beam_width"], found["return_log_probs"], found["stop_words_list"]) == (
        [[1]],
        [[False]],
        [[[0], [-1]]],
    )


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
async def test_shapes(
    shape: tuple[int, ...], scalar: tuple[int, ...], batch: int | None, expected: Any, length: Any
) -> None:
    inputs = [
        TensorSpec("input_ids", "INT64", shape),
        TensorSpec("input_lengths", "INT64", scalar),
        TensorSpec("request_output_len", "INT64", scalar),
    ]
    found = await sent(model(inputs, OUTPUTS, batch=batch), GREEDY)
    assert (found["input_ids"], found["input_lengths"]) == (expected, length)


async def test_several_ends() -> None:
    found = model(REAL, OUTPUTS)
    assert (await sent(found, GREEDY))["end_id"] == [[2]]
    values = await sent(found, GREEDY, eos_ids=frozenset({2, 5, 4}))
    assert (values["end_id"], values["stop_words_list"]) == ([[5]], [[[2, 4], [1, 2]]])
    ignored = await sent(found, Sampling(max_tokens=5, ignore_eos=True), eos_ids=frozenset({2, 5, 4}))
    assert ignored["end_id"] == [[-1]]
    assert "stop_words_list" not in ignored


async def test_a_client_s_tokens_end_a_text_too() -> None:
    found, sampling = model(REAL, OUTPUTS), Sampling(max_tokens=5, stop_token_ids=(7, 9))
    assert (await sent(found, sampling))["stop_words_list"] == [[[7, 9], [1, 2]]]
    values = await sent(found, sampling, eos_ids=frozenset({2, 5, 4}))
    assert (values["end_id"], values["stop_words_list"]) == ([[5]], [[[2, 4, 7, 9], [1, 2, 3, 4]]])
    ignored = await sent(found, replace(sampling, ignore_eos=True), eos_ids=frozenset({2, 5, 4}))
    assert (ignored["end_id"], ignored["stop_words_list"]) == ([[-1]], [[[7, 9], [1, 2]]])


@pytest.mark.parametrize("words", [(), (2, 2)], ids=["no stop words", "too few"])
async def test_they_end_it_whatever_the_model_is_told(words: tuple[int, ...]) -> None:
    more = [spec("stop_words_list", "INT32", *words, optional=True)] if words else []
    predictor = ScriptedModel(ids(5), ids(6), ids(7), ids(8))
    how = Sampling(max_tokens=9, stop_token_ids=(7, 11, 12), ignore_eos=True)
    found = await steps(generator(model([*NEEDED, *more], OUTPUTS), predictor), PROMPT, how)
    assert [one for step in found for one in step.ids] == [5, 6] and found[-1].finish == "stop"
    assert "stop_words_list" not in predictor.sent()


async def test_they_can_not_be_held_back() -> None:
    names = {"stop_token_ids": "parameters.stop_token_ids"}
    how = Sampling(max_tokens=9, min_tokens=3, stop_token_ids=(7,), names=names)
    with pytest.raises(InvalidInput, match=r"^parameters.stop_token_ids: this model can't hold them"):
        await sent(model(REAL, OUTPUTS), how)


async def test_the_model_s_own_end_is_no_other_one() -> None:
    found, how = model(REAL, OUTPUTS), Sampling(max_tokens=9, min_tokens=3, stop_token_ids=(2,))
    values = await sent(found, how, eos_ids=frozenset({2}))
    assert values["end_id"] == [[2]] and "stop_words_list" not in values
    for wrong in (replace(how, stop_token_ids=(2, 7)), replace(how, ignore_eos=True)):
        with pytest.raises(InvalidInput, match="can't hold them back"):
            await sent(found, wrong, eos_ids=frozenset({2}))


async def test_an_encoder_decoder() -> None:
    more = [spec("decoder_input_ids", "INT32", -1), spec("decoder_input_lengths")]
    predictor = ScriptedModel(ids(0, 5, 6))
    [step] = await steps(
        generator(model([*NEEDED, *more], OUTPUTS, decoupled=False), predictor, decoder_start_ids=(0,)), PROMPT, GREEDY
    )
    assert predictor.sent()["decoder_input_ids"] == [[0]]
    assert predictor.sent()["decoder_input_lengths"] == [[1]]
    assert step.ids == [5, 6]


async def test_canary() -> None:
    predictor = ScriptedModel(ids(5))
    await generator(model(REAL, OUTPUTS), predictor).canary(PROMPT)
    assert predictor.sent()["request_output_len"] == [[1]]


@pytest.mark.parametrize(
    ("inputs", "outputs", "json", "message"),
    [
        (NEEDED[1:], OUTPUTS, False, "has the inputs input_ids and request_output_len and the output output_ids; this"),
        (NEEDED[:2], OUTPUTS, False, "this one has input_ids, input_lengths and output_ids, sequence_length"),
        (NEEDED, OUTPUTS[1:], False, "Name them so in config.pbtxt, or set --generation_interface"),
        ([*NEEDED, spec("image", "BYTES")], OUTPUTS, False, "It requires the input 'image', which nothing here fills"),
        ([*NEEDED, spec("decoder_input_ids", "INT32", -1)], OUTPUTS, False, "'decoder_input_ids', but config.json is"),
        ([spec("input_ids", "FP32", -1), *NEEDED[1:]], OUTPUTS, False, "'input_ids' is FP32; export it as INT32"),
        ([spec("input_ids", "INT32", 16), *NEEDED[1:]], OUTPUTS, False, "'input_ids' always has the same length"),
        (
            [*NEEDED, spec("temperature", "INT32", optional=True)],
            OUTPUTS,
            False,
            "'temperature' is INT32; export it as FP32",
        ),
        (
            [*NEEDED, spec("top_k", "INT32", 2, optional=True)],
            OUTPUTS,
            False,
            r"'top_k' has the dims \[1, 2\]; one value",
        ),
        ([*NEEDED, spec("streaming", "BOOL", 2)], OUTPUTS, False, r"'streaming' has the dims \[1, 2\]; one value"),
        (
            [*NEEDED, spec("stop_words_list", "UINT32", 2, -1)],
            OUTPUTS,
            False,
            "'stop_words_list' is UINT32, which can't hold -1, .*; export it as INT32",
        ),
        (
            [*NEEDED, spec("bad_words_list", "UINT64", 2, -1)],
            OUTPUTS,
            False,
            "'bad_words_list' is UINT64, which can't hold -1, .*; export it as INT32",
        ),
        ([*NEEDED, spec("stop_words_list", "INT32", 1)], OUTPUTS, False, "'stop_words_list' has the dims .*; 2 values"),
        ([*NEEDED, spec("stop_words", "INT32")], OUTPUTS, False, "'stop_words' is INT32.*; export it as TYPE_STRING"),
        ([*NEEDED, spec("beam_width", "BYTES")], OUTPUTS, False, "'beam_width' is BYTES.* 1; export it as INT32"),
        ([*NEEDED, spec("temperature", "FP16", optional=True)], OUTPUTS, True, "--predictor_protocol=grpc-v2"),
        (
            NEEDED,
            [*OUTPUTS, spec("output_log_probs", "BF16")],
            True,
            "'output_log_probs' is BF16.*--predictor_protocol=grpc-v2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_models_that_do_not_fit(inputs: Any, outputs: Any, json: bool, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        generator(model(inputs, outputs), ScriptedModel(json=json))


@pytest.mark.parametrize("optional", [False, True], ids=["required", "optional"])
@pytest.mark.parametrize(
    ("datatype", "ends", "lacks"),
    [
        ("UINT32", (), "-1, the mark of no end"),
        ("UINT8", (300,), "the end-of-sequence token 300"),
        ("INT8", (1, 2, 128), "the end-of-sequence token 128"),
    ],
    ids=["no end", "an end too large", "one of several"],
)
async def test_an_end_that_its_input_can_t_hold(
    datatype: str, ends: tuple[int, ...], lacks: str, optional: bool
) -> None:
    found = model([*NEEDED, spec("end_id", datatype, optional=optional)], OUTPUTS)
    with pytest.raises(ContractError, match=f"'end_id' is {datatype}, which can't hold {lacks}.*; export it as INT32"):
        generator(found, ScriptedModel(), eos_ids=frozenset(ends))


@pytest.mark.parametrize(("datatype", "ignores"), [("UINT32", False), ("INT32", True), ("FP32", True)])
async def test_an_end_is_ignored_only_where_the_input_can_say_so(datatype: str, ignores: bool) -> None:
    found = model([*NEEDED, spec("end_id", datatype)], OUTPUTS)
    assert (await sent(found, GREEDY))["end_id"] == [[2]]
    assert ("ignore_eos" in generator(found, ScriptedModel()).honours) is ignores


async def test_unsigned_stop_words_are_sent_where_there_are_some() -> None:
    found = model([*NEEDED, spec("end_id"), spec("stop_words_list", "UINT32", 2, -1, optional=True)], OUTPUTS)
    assert "stop_words_list" not in await sent(found, GREEDY)
    assert (await sent(found, GREEDY, eos_ids=frozenset({2, 5})))["stop_words_list"] == [[[2], [1]]]


async def test_half_floats_need_grpc_only_where_they_are_streamed_and_used() -> None:
    half = [*NEEDED, spec("temperature", "FP16", optional=True)]
    generator(model(half, OUTPUTS, decoupled=False), ScriptedModel(json=True))
    generator(model(half, OUTPUTS), ScriptedModel())
    unused = [*NEEDED, spec("draft_logits", "FP16", -1, optional=True)]
    generator(model(unused, [*OUTPUTS, spec("context_logits", "FP16", -1)]), ScriptedModel(json=True))
