"""Inputs of token and text models whose datatype can't hold a value: of a request, or of the model itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.base import Generator
from hf_transformer.generation.text_model import TextGenerator
from hf_transformer.generation.token_model import TokenGenerator
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import TensorSpec
from tests.generation.scripted_models import ScriptedModel, ids, model, settings, spec, steps, text
from tests.generation.test_token_model import NEEDED, OUTPUTS

PROMPT = Prompt("a", (7, 8, 9))
INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
LARGEST = {
    "INT8": 2**7 - 1,
    "UINT8": 2**8 - 1,
    "INT16": 2**15 - 1,
    "UINT16": 2**16 - 1,
    "INT32": 2**31 - 1,
    "UINT32": 2**32 - 1,
    "INT64": 2**63 - 1,
    "UINT64": 2**63 - 1,
    "BF16": 2**8 - 1,
    "FP16": 2**11 - 1,
    "FP32": 2**24 - 1,
    "FP64": 2**53 - 1,
}
"""The largest whole number that each holds, and JSON says: of floats, up to which they have all."""
NARROW = [name for name, most in LARGEST.items() if most < 2**63 - 1]
PLACES = {"max_tokens": "request_output_len", "min_tokens": "min_length"}


def tokens(*more: TensorSpec, decoupled: bool = True, **options: Any) -> tuple[ScriptedModel, Generator]:
    """A token model with these inputs instead of the usual ones of the same names."""
    named = {one.name: one for one in (*NEEDED, *more)}
    predictor = ScriptedModel(ids(5, 2))
    return predictor, TokenGenerator(
        model([*named.values()], OUTPUTS, decoupled=decoupled), predictor, settings(**options)
    )


Texts = Callable[..., tuple[ScriptedModel, Generator]]


@pytest.fixture
def texts(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> Texts:
    """Makes a text model with more inputs."""

    def make(*more: TensorSpec, decoupled: bool = True) -> tuple[ScriptedModel, Generator]:
        predictor = ScriptedModel(text("b"))
        inputs = [spec("text_input", "BYTES"), *more]
        found = model(inputs, [spec("text_output", "BYTES")], decoupled=decoupled)
        return predictor, TextGenerator(found, predictor, gpt2, settings(), executor=executor)

    return make


@pytest.mark.parametrize("decoupled", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("datatype", NARROW)
@pytest.mark.parametrize("field", PLACES)
async def test_a_request_s_number_that_its_input_can_t_hold(field: str, datatype: str, decoupled: bool) -> None:
    place, most = PLACES[field], LARGEST[datatype]
    predictor, found = tokens(spec("request_output_len", "INT64"), spec(place, datatype), decoupled=decoupled)
    fits: dict[str, Any] = {"max_tokens": 2**62, field: most}
    await steps(found, PROMPT, Sampling(**fits, names={field: "parameters.p"}))
    assert predictor.sent()[place] == [[most]]
    message = f"parameters.p: the model's input '{place}' is {datatype}, which can't hold {most + 1}"
    over = Sampling(**{**fits, field: most + 1}, names={field: "parameters.p"})
    for _ in range(2):
        with pytest.raises(InvalidInput, match=rf"^{message}; expected at most {most}$"):
            await steps(found, PROMPT, over)


@pytest.mark.parametrize("decoupled", [True, False], ids=["stream", "whole"])
async def test_the_same_of_a_text_model(texts: Texts, decoupled: bool) -> None:
    predictor, found = texts(spec("max_tokens", "INT8"), spec("min_tokens", "UINT8"), decoupled=decoupled)
    await steps(found, PROMPT, Sampling(max_tokens=127, min_tokens=12))
    assert (predictor.sent()["max_tokens"], predictor.sent()["min_tokens"]) == ([[127]], [[12]])
    with pytest.raises(InvalidInput, match=r"^max_tokens: the model's input 'max_tokens' is INT8.* hold 128; .* 127$"):
        await steps(found, PROMPT, Sampling(max_tokens=128, names={"max_tokens": "max_tokens"}))
    with pytest.raises(InvalidInput, match=r"^least: the model's input 'min_tokens' is UINT8.* hold 256; .* 255$"):
        await steps(found, PROMPT, Sampling(max_tokens=127, min_tokens=256, names={"min_tokens": "least"}))


@pytest.mark.parametrize("decoupled", [True, False], ids=["stream", "whole"])
async def test_nobody_is_refused_for_a_length_that_is_the_model_s_own(decoupled: bool) -> None:
    """Where the client does not say how many tokens it wants, it gets as many as the model can be asked for."""
    predictor, found = tokens(spec("request_output_len", "INT8"), decoupled=decoupled)
    predictor.responses = (ids(*[5] * 127),)
    *_, last = await steps(found, PROMPT, Sampling(max_tokens=1000, temperature=0.5, names={"temperature": "t"}))
    assert predictor.sent()["request_output_len"] == [[127]]
    assert last.finish == "length", "the model was told to end there"
    with pytest.raises(InvalidInput, match=r"^parameters\.max_length: .*INT8, which can't hold 1000; .* at most 127$"):
        await steps(found, PROMPT, Sampling(max_tokens=1000, names={"max_length": "parameters.max_length"}))
    with pytest.raises(InvalidInput, match=r"^least: 200 new tokens at least, .*'request_output_len' is INT8.* 127"):
        await steps(found, PROMPT, Sampling(max_tokens=1000, min_tokens=200, names={"min_tokens": "least"}))


async def test_so_of_a_text_model_which_ends_for_its_length(texts: Texts) -> None:
    predictor, found = texts(spec("max_tokens", "INT8"), decoupled=True)
    predictor.responses = (text("paris " * 127),)
    *_, last = await steps(found, PROMPT, Sampling(max_tokens=1000))
    assert predictor.sent()["max_tokens"] == [[127]]
    assert last.finish == "length"


@pytest.mark.parametrize("datatype", LARGEST)
async def test_any_seed_fits(datatype: str) -> None:
    predictor, found = tokens(spec("seed", datatype), spec("top_k", "INT8"))
    most = LARGEST[datatype]
    for seed in (0, most, most + 1, 2**63 - 1, 2**63 + 126, -1):
        await steps(found, PROMPT, Sampling(max_tokens=1, seed=seed))
        assert predictor.sent()["seed"] == [[seed % (most + 1)]]
    for _ in range(40):  # more than are kept
        await steps(found, PROMPT, Sampling(max_tokens=1))
        assert 0 <= predictor.sent()["seed"][0][0] <= most


@pytest.mark.parametrize("datatype", LARGEST)
async def test_a_top_k_of_all_tokens_fits(datatype: str) -> None:
    predictor, found = tokens(spec("top_k", datatype))
    for given in (0, 1, LARGEST[datatype], LARGEST[datatype] + 1, 2**64 - 1):
        await steps(found, PROMPT, Sampling(max_tokens=1, top_k=given))
        assert predictor.sent()["top_k"] == [[min(given, LARGEST[datatype])]]


@pytest.mark.parametrize("optional", [True, False], ids=["optional", "required"])
@pytest.mark.parametrize(
    ("tensor", "more", "lacks"),
    [
        (spec("pad_id", "UINT8"), {"pad_id": 256}, "the padding token 256; export it as INT32"),
        (spec("pad_id", "INT8"), {"pad_id": 128}, "the padding token 128"),
        (spec("pad_id", "FP16"), {"pad_id": 50257}, "the padding token 50257"),
        (spec("pad_id", "BOOL"), {"pad_id": 2}, "the padding token 2"),
        (spec("pad_id", "BYTES"), {}, "the padding token 0"),
        (spec("end_id", "FP16"), {"eos_ids": frozenset({50256})}, "the end-of-sequence token 50256"),
        (spec("end_id", "INT32"), {"eos_ids": frozenset({2**31})}, "the end-of-sequence token 2147483648"),
        (
            spec("stop_words_list", "INT8", 2, -1),
            {"eos_ids": frozenset({2, 128, 200})},
            "the end-of-sequence tokens 2, 128",
        ),
        (
            spec("decoder_input_ids", "INT32", -1),
            {"decoder_start_ids": (2**31,)},
            "the tokens 2147483648 that the decoder begins with",
        ),
        (spec("decoder_input_lengths", "BYTES"), {"decoder_start_ids": (0,)}, "the length 1 of what the decoder"),
    ],
    ids=lambda value: f"{value.name} {value.datatype}" if isinstance(value, TensorSpec) else "",
)
async def test_a_model_s_own_value_that_its_input_can_t_hold(
    tensor: TensorSpec, more: dict[str, Any], lacks: str, optional: bool
) -> None:
    declared = TensorSpec(tensor.name, tensor.datatype, tensor.shape, optional)
    with pytest.raises(ContractError) as caught:
        tokens(declared, **more)
    assert f"input '{tensor.name}' is {tensor.datatype}, which can't hold {lacks}" in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "count"),
    [
        (spec("pad_id", "INT32", 2), "one value goes"),
        (spec("decoder_input_lengths", "INT32", 2), "one value goes"),
        (spec("stop_words_list", "INT32", 3), "4 values go"),
    ],
    ids=lambda value: value.name if isinstance(value, TensorSpec) else "",
)
async def test_one_whose_shape_does_not_take_its_values(tensor: TensorSpec, count: str) -> None:
    declared = TensorSpec(tensor.name, tensor.datatype, tensor.shape, True)
    dims = re.escape(str([1, *tensor.shape]))
    with pytest.raises(ContractError, match=f"'{tensor.name}' has the dims {dims}; {count} there"):
        tokens(declared, eos_ids=frozenset({2, 3, 4}), decoder_start_ids=(0,))


@pytest.mark.parametrize("name", ["request_output_len", "min_length", "top_k", "seed", "end_id"])
async def test_a_number_is_no_truth_value(name: str) -> None:
    with pytest.raises(ContractError, match=f"'{name}' is BOOL; export it as INT32"):
        tokens(spec(name, "BOOL"))


async def test_what_only_asks_for_something_may_be() -> None:
    for datatype in ("BOOL", "INT32", "UINT8", "FP32"):
        predictor, found = tokens(spec("return_log_probs", datatype))
        await steps(found, PROMPT, Sampling(max_tokens=1))
        assert predictor.sent()["return_log_probs"] == [[0]]
    with pytest.raises(ContractError, match="'return_log_probs' is BYTES; export it as BOOL"):
        tokens(spec("return_log_probs", "BYTES"))
    with pytest.raises(ContractError, match="'streaming' is BYTES, which can't hold True; export it as BOOL"):
        tokens(spec("streaming", "BYTES"))


@pytest.mark.parametrize("datatype", INTEGERS)
async def test_what_fits_is_sent(datatype: str) -> None:
    names = ("pad_id", "end_id", "request_output_len", "min_length", "top_k", "seed", "decoder_input_lengths")
    predictor, found = tokens(*(spec(name, datatype) for name in names), pad_id=127, decoder_start_ids=(0,))
    await steps(found, PROMPT, Sampling(max_tokens=3, seed=1))
    sent = predictor.sent()
    assert (sent["pad_id"], sent["end_id"], sent["request_output_len"]) == ([[127]], [[2]], [[3]])
    assert (sent["min_length"], sent["seed"], sent["decoder_input_lengths"]) == ([[0]], [[1]], [[1]])
