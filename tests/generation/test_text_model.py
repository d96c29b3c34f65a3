"""Text models: what is sent, and what is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import PredictorError
from hf_transformer.generation.text_ends import Leading, TokenCounter, leading_token
from hf_transformer.generation.text_model import TextGenerator
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import ModelSpec, Tensor, Tokenization
from tests.generation.scripted_models import ScriptedModel, model, settings, spec, steps, text
from tests.generation.tokenizers import ALL, load

INPUT = spec("text_input", "BYTES")
OUTPUT = spec("text_output", "BYTES", -1)
RETURNS = (spec("return_finish_reason", "BOOL", optional=True), spec("return_num_output_tokens", "BOOL", optional=True))
VLLM_INPUTS = (
    INPUT,
    spec("image", "BYTES", -1, optional=True),
    spec("stream", "BOOL", optional=True),
    spec("sampling_parameters", "BYTES", optional=True),
    spec("exclude_input_in_output", "BOOL", optional=True),
    *RETURNS,
)
VLLM = model(
    VLLM_INPUTS, (OUTPUT, spec("finish_reason", "BYTES", -1), spec("num_output_tokens", "UINT32", -1)), batch=0
)
OLD_VLLM = model(VLLM_INPUTS[:5], (OUTPUT,), batch=0)
TUTORIAL = model((spec("text_input", "BYTES", -1),), (spec("text", "BYTES", -1),), decoupled=False, batch=0)
ENSEMBLE_INPUTS = (
    INPUT,
    spec("max_tokens"),
    *(spec(name, "BYTES", -1, optional=True) for name in ("bad_words", "stop_words")),
    *(spec(name, "INT32", optional=True) for name in ("end_id", "pad_id", "top_k", "min_length", "beam_width")),
    *(spec(name, "FP32", optional=True) for name in ("top_p", "temperature", "repetition_penalty")),
    spec("random_seed", "UINT64", optional=True),
    spec("return_log_probs", "BOOL", optional=True),
    spec("stream", "BOOL", optional=True),
)
ENSEMBLE = model(ENSEMBLE_INPUTS, (OUTPUT, spec("cum_log_probs", "FP32", -1)))

PROMPT = Prompt("hello", (7, 8))
GREEDY = Sampling(max_tokens=5, greedy=True)


class Bench:
    """A generator over a scripted model."""

    def __init__(self, tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.predictor = ScriptedModel()

    def generator(self, found: ModelSpec, *responses: Any, json: bool = False, **more: Any) -> TextGenerator:
        self.predictor = ScriptedModel(*responses, json=json)
        return TextGenerator(found, self.predictor, self.tokenizer, settings(**more), executor=self.executor)

    async def read(
        self, found: ModelSpec, *responses: Any, sampling: Sampling = GREEDY, prompt: Prompt = PROMPT
    ) -> tuple[list[str], str | None]:
        """The text of each step that has any, and why the last one ended."""
        read = await steps(self.generator(found, *responses), prompt, sampling)
        assert [step.finish for step in read[:-1]] == [None] * (len(read) - 1)
        return [step.text for step in read if step.text], read[-1].finish


@pytest.fixture
def bench(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> Bench:
    return Bench(gpt2, executor)


async def test_what_vllm_gets(bench: Bench) -> None:
    sampling = Sampling(max_tokens=5, temperature=0.5, top_k=3, seed=11, presence_penalty=0.25, ignore_eos=True)
    sampling = replace(sampling, stop_token_ids=(3, 4))
    await bench.read(VLLM, text(" a", finish_reason="stop"), sampling=sampling)
    sent = {name: tensor.data.tolist() for name, tensor in bench.predictor.inputs.items()}
    [parameters] = sent.pop("sampling_parameters")
    assert sent == {
        "text_input": ["hello"],
        "stream": [True],
        "exclude_input_in_output": [True],
        "return_finish_reason": [True],
        "return_num_output_tokens": [True],
    }
    assert orjson.loads(parameters) == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 11,
        "presence_penalty": 0.25,
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
    }
    assert bench.predictor.wanted == ["text_output", "finish_reason", "num_output_tokens"]
    assert bench.predictor.headers == {"x-request-id": "r"}


async def test_greedy_for_vllm(bench: Bench) -> None:
    await bench.read(
        VLLM, text("", finish_reason="stop"), sampling=Sampling(max_tokens=5, greedy=True, top_k=50, seed=3)
    )
    assert orjson.loads(bench.predictor.sent()["sampling_parameters"][0]) == {"max_tokens": 5, "temperature": 0.0}


async def test_what_is_honoured(bench: Bench) -> None:
    vllm, tutorial, ensemble = (bench.generator(found).honours for found in (VLLM, TUTORIAL, ENSEMBLE))
    assert vllm >= {"max_tokens", "greedy", "temperature", "top_p", "min_p", "repetition_penalty", "seed", "ignore_eos"}
    assert not vllm & {"logprobs", "logit_bias"}
    assert tutorial == frozenset() and "stop_token_ids" in vllm
    assert ensemble == {"max_tokens", "min_tokens", "repetition_penalty", "seed", "ignore_eos"} | {
        "temperature",
        "top_k",
        "top_p",
        "greedy",
    }


async def test_what_an_ensemble_gets(bench: Bench) -> None:
    await bench.read(ENSEMBLE, text(" a"), sampling=Sampling(max_tokens=5, temperature=0.5, seed=11))
    assert bench.predictor.sent() == {
        "text_input": [["hello"]],
        "max_tokens": [[5]],
        "temperature": [[0.5]],
        "top_k": [[0]],
        "top_p": [[1.0]],
        "random_seed": [[11]],
        "stream": [[True]],
    }


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([text(" a", finish_reason="None"), text(" b", finish_reason="stop")], ([" a", " b"], "stop")),
        ([text(" a", finish_reason="None"), text("", finish_reason="length")], ([" a"], "length")),
        ([text("x" * 500, finish_reason="stop")], (["x" * 500], "stop")),
    ],
    ids=["stop", "length", "more than one would count"],
)
async def test_the_model_says_why_it_ends(bench: Bench, responses: list[Any], expected: Any) -> None:
    assert await bench.read(VLLM, *responses) == expected


async def test_the_model_counts(bench: Bench) -> None:
    count = {"num_output_tokens": Tensor("num_output_tokens", "UINT32", np.array([3], np.uint32))}
    assert await bench.read(VLLM, {**text("a"), **count}, text("b")) == (["a", "b"], "stop")
    assert await bench.read(VLLM, {**text("a"), **count}, {**text("b"), **count}) == (["a", "b"], "length")
    wrong = {"num_output_tokens": Tensor("num_output_tokens", "BYTES", np.array([b"3"], np.object_))}
    with pytest.raises(PredictorError, match="num_output_tokens is BYTES, expected whole numbers"):
        await bench.read(VLLM, {**text("a"), **wrong})


async def test_tokens_are_counted_where_the_model_says_nothing(bench: Bench) -> None:
    [count] = {len(bench.tokenizer.encode([written])[0].ids) for written in ("the cat sat",)}
    for most, expected in ((count, "length"), (count + 1, "stop"), (count - 1, "length")):
        sampling = Sampling(max_tokens=most, greedy=True)
        assert await bench.read(OLD_VLLM, text("the cat"), text(" sat"), sampling=sampling) == (
            ["the cat", " sat"],
            expected,
        )


async def test_a_text_that_was_broken_off(bench: Bench) -> None:
    with pytest.raises(PredictorError, match="abort"):
        await bench.read(VLLM, text("a", finish_reason="abort"))


async def test_characters_that_come_in_parts(bench: Bench) -> None:
    whole = "é🎉".encode()
    parts = [whole[start : start + 1] for start in range(len(whole))]
    assert await bench.read(VLLM, *map(text, parts), sampling=Sampling(max_tokens=99)) == (["é", "🎉"], "stop")
    assert await bench.read(VLLM, text(b"a\xc3"), sampling=Sampling(max_tokens=99)) == (["a", "�"], "stop")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("hello world", " world"), ("Hello world", "Hello world"), ("hello", ""), ("hell", "hell"), ("", "")],
    ids=["with the prompt", "not quite", "the prompt alone", "a part of it", "nothing"],
)
async def test_the_prompt_is_left_out_of_one_response(bench: Bench, answer: str, expected: str) -> None:
    found = {"text": Tensor("text", "BYTES", np.array([answer.encode()], np.object_))}
    written, finish = await bench.read(TUTORIAL, found, sampling=Sampling(max_tokens=50))
    assert ("".join(written), finish) == (expected, "stop")
    assert bench.predictor.sent() == {"text_input": ["hello"]}


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("whole", "expected"), [("hello you", " you"), ("help me", "help me"), ("hel", "hel")])
async def test_the_prompt_is_left_out_of_a_stream(bench: Bench, size: int, whole: str, expected: str) -> None:
    parts = [text(whole[start : start + size]) for start in range(0, len(whole), size)]
    decoupled = model((INPUT, spec("max_tokens")), (OUTPUT,), batch=0)
    written, _ = await bench.read(decoupled, *parts)
    assert "".join(written) == expected


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_the_prompt_is_left_out_where_the_model_has_lost_its_special_tokens(bench: Bench, size: int) -> None:
    chat = "<|endoftext|>user\nhi.<|endoftext|>\n<|endoftext|>assistant\n"
    prompt = Prompt(chat, tuple(bench.tokenizer.encode([chat])[0].ids), False)
    whole, new = "user\nhi.\nassistant\nhello.", ["hello."]
    found = {"text": Tensor("text", "BYTES", np.array([whole.encode()], np.object_))}
    assert await bench.read(TUTORIAL, found, prompt=prompt, sampling=Sampling(max_tokens=50)) == (new, "stop")
    assert bench.predictor.sent() == {"text_input": [chat]}
    parts = [text(whole[start : start + size]) for start in range(0, len(whole), size)]
    decoupled = model((INPUT, spec("max_tokens")), (OUTPUT,), batch=0)
    written, _ = await bench.read(decoupled, *parts, prompt=prompt)
    assert written and "".join(written) == "hello."


async def test_a_prompt_that_is_repeated_stays_where_the_model_leaves_it_out(bench: Bench) -> None:
    assert await bench.read(VLLM, text("hello", finish_reason="stop")) == (["hello"], "stop")
    assert await bench.read(ENSEMBLE, text("hello")) == (["hello"], "stop")


async def test_a_model_that_takes_no_limit_is_cut(bench: Bench) -> None:
    written = "the cat sat on the mat"
    encoding = bench.tokenizer.encode([written], offsets=True)[0]
    assert encoding.offsets is not None
    found = {"text": Tensor("text", "BYTES", np.array([b"hello" + written.encode()], np.object_))}
    for most in (1, 2, len(encoding.ids) - 1):
        expected = written[: encoding.offsets[most - 1][1]]
        assert await bench.read(TUTORIAL, found, sampling=Sampling(max_tokens=most)) == ([expected], "length")
    assert await bench.read(TUTORIAL, found, sampling=Sampling(max_tokens=len(encoding.ids) + 1)) == ([written], "stop")


async def test_a_stream_that_takes_no_limit_is_left(bench: Bench) -> None:
    words = ["the", " cat", " sat", " on", " the", " mat"]
    most = len(bench.tokenizer.encode(["the cat"])[0].ids)
    decoupled = model((INPUT,), (OUTPUT,), batch=0)
    written, finish = await bench.read(decoupled, *map(text, words), sampling=Sampling(max_tokens=most))
    assert ("".join(written), finish) == ("the cat", "length")
    assert bench.predictor.left > 0


async def test_leaving_early_leaves_the_stream(bench: Bench) -> None:
    generator = bench.generator(VLLM, text(" a"), text(" b"), text(" c"))
    assert len(await steps(generator, PROMPT, GREEDY, most=1)) == 1
    assert bench.predictor.left == 2


async def test_what_the_model_s_tokenizer_adds_is_not_sent_twice(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    tokenizer = load(ALL["llama"](tmp_path / "model"))
    assert leading_token(tokenizer) == "<s>"
    bench = Bench(tokenizer, executor)
    for prompt, expected in (
        (Prompt("<s>[INST] hi", (1, 5), False), "[INST] hi"),
        (Prompt("hi<s>", (5,), False), "hi<s>"),
        (Prompt("<s>hi", (1, 1, 5), True), "<s>hi"),
    ):
        await bench.read(VLLM, text("", finish_reason="stop"), prompt=prompt)
        assert bench.predictor.sent()["text_input"] == [expected]


def test_tokenizers_that_put_nothing_in_front(gpt2: Tokenizer, t5: Tokenizer) -> None:
    assert leading_token(gpt2) == leading_token(t5) == ""


def test_no_prompt_to_leave_out() -> None:
    leading = Leading("")
    assert (leading.take("a"), leading.rest()) == ("a", "")


async def test_other_names(bench: Bench) -> None:
    found = model((spec("prompt", "BYTES"),), (spec("answer", "BYTES"),), decoupled=False, batch=0)
    generator = bench.generator(
        found,
        {"answer": Tensor("answer", "BYTES", np.array([b" a"], np.object_))},
        input_names=("prompt",),
        output_names=("answer",),
    )
    [step] = await steps(generator, PROMPT, GREEDY)
    assert step.text == " a"


async def test_an_answer_that_is_no_text(bench: Bench) -> None:
    wrong = {"text_output": Tensor("text_output", "INT32", np.array([1], np.int32))}
    with pytest.raises(PredictorError, match="text_output is INT32, expected BYTES"):
        await bench.read(VLLM, wrong)


async def test_canary(bench: Bench) -> None:
    await bench.generator(VLLM, text(" a", finish_reason="length")).canary(PROMPT)
    assert orjson.loads(bench.predictor.sent()["sampling_parameters"][0])["max_tokens"] == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "json", "message"),
    [
        (
            (spec("prompt", "BYTES"),),
            (OUTPUT,),
            False,
            r"the input text_input and .* this one has prompt and text_output",
        ),
        ((INPUT,), (spec("answer", "BYTES"),), False, "--tensor_input_names and --tensor_output_names"),
        ((spec("text_input", "INT32"),), (OUTPUT,), False, "'text_input' is INT32; text is TYPE_STRING"),
        ((spec("text_input", "BYTES", 2),), (OUTPUT,), False, r"'text_input' has the dims \[1, 2\]; one text"),
        ((INPUT,), (spec("text_output", "FP32"),), False, "'text_output' is FP32; text is TYPE_STRING"),
        ((INPUT, spec("image", "BYTES")), (OUTPUT,), False, "It requires the input 'image'"),
        ((INPUT, spec("sampling_parameters", "FP32")), (OUTPUT,), False, "'sampling_parameters' is FP32"),
        ((INPUT, spec("temperature", "FP16")), (OUTPUT,), True, "'temperature' is FP16.*--predictor_protocol=grpc-v2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_models_that_do_not_fit(bench: Bench, inputs: Any, outputs: Any, json: bool, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        bench.generator(model(inputs, outputs), json=json)


@pytest.mark.filterwarnings("ignore:This sequence already has")  # of ByT5's, where a text ends as it would end it
@pytest.mark.parametrize("name", ALL)
async def test_a_text_has_as_many_tokens_as_the_tokenizer_makes_of_it(
    tmp_path: Path, executor: ThreadPoolExecutor, name: str
) -> None:
    tokenizer = load(ALL[name](tmp_path / "model"))
    counter = TokenCounter(tokenizer, executor)
    for text_ in ("a", " a", "the capital of france is paris", " 1 2 3", "\n\n", "é\u0301 a  b", "a " * 200, "a</s>"):
        [[bare]] = tokenizer.encode_windows([text_], Tokenization(whole=True, special_tokens=False))
        for _ in range(2):  # as new words, and as known ones
            assert await counter.count(text_) == len(bare.ids)


async def test_a_generator_that_has_counted_tells_how_many(bench: Bench) -> None:
    written = "the cat sat"
    count = len(bench.tokenizer.encode([written])[0].ids)
    *_, last = await steps(bench.generator(OLD_VLLM, text(written)), PROMPT, Sampling(max_tokens=2, greedy=True))
    assert last.total == count
    *_, last = await steps(bench.generator(OLD_VLLM, text(written)), PROMPT, Sampling(max_tokens=50, greedy=True))
    assert last.total is None  # there can't be so many, so nobody has counted
