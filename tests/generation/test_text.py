"""Text models (vLLM's interface, and simpler ones): inputs of a call, and its responses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import compile_template
from hf_transformer.generation.text import PromptRemover, TextGenerator, TokenCounter, leading_token
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelSpec, Tensor
from tests.generation.scripted_models import ScriptedLLM, model, settings, spec, steps, tensor, text
from tests.generation.tokenizers import ALL, load, without_unknown

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
VLLM_OUTPUTS = (OUTPUT, spec("finish_reason", "BYTES", -1), spec("num_output_tokens", "UINT32", -1))
VLLM = model(VLLM_INPUTS, VLLM_OUTPUTS, batch=0)
OLD_VLLM = model(VLLM_INPUTS[:5], (OUTPUT,), batch=0)
TUTORIAL = model((spec("text_input", "BYTES", -1),), (spec("text", "BYTES", -1),), decoupled=False, batch=0)
ENSEMBLE = model(
    (
        INPUT,
        spec("max_tokens"),
        *(spec(name, "BYTES", -1, optional=True) for name in ("bad_words", "stop_words")),
        *(spec(name, "INT32", optional=True) for name in ("end_id", "pad_id", "top_k", "min_length", "beam_width")),
        *(spec(name, "FP32", optional=True) for name in ("top_p", "temperature", "repetition_penalty")),
        spec("random_seed", "UINT64", optional=True),
        spec("return_log_probs", "BOOL", optional=True),
        spec("stream", "BOOL", optional=True),
    ),
    (OUTPUT, spec("cum_log_probs", "FP32", -1)),
)
PLAIN = model((INPUT, spec("max_tokens")), (OUTPUT,), batch=0)
"""A model that may return the prompt in its stream."""

PROMPT = Prompt("hello", (7, 8))
GREEDY = Sampling(max_tokens=5, greedy=True)
MANY = Sampling(max_tokens=99)


class TextModelHarness:
    """Text generators of scripted models."""

    def __init__(self, tokenizer: Tokenizer, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.predictor = ScriptedLLM()

    def generator(self, spec: ModelSpec, *responses: Any, json: bool = False, **more: Any) -> TextGenerator:
        self.predictor = ScriptedLLM(*responses, json=json)
        return TextGenerator(spec, self.predictor, self.tokenizer, settings(**more), executor=self.executor)

    async def read(
        self, spec: ModelSpec, *responses: Any, sampling: Sampling = GREEDY, prompt: Prompt = PROMPT
    ) -> tuple[list[str], str | None]:
        """Non-empty texts of the steps, and the finish reason."""
        generated = await steps(self.generator(spec, *responses), prompt, sampling)
        assert all(step.finish is None for step in generated[:-1])
        return [step.text for step in generated if step.text], generated[-1].finish

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode([text])[0].ids)


@pytest.fixture
def harness(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> TextModelHarness:
    return TextModelHarness(gpt2, executor)


def whole(text: str) -> dict[str, Tensor]:
    """Response of the tutorial's model."""
    return {"text": tensor("text", "BYTES", text.encode())}


def cut(text_: str, size: int) -> list[Any]:
    return [text(text_[start : start + size]) for start in range(0, len(text_), size)]


# Inputs


async def test_vllm_gets_the_adapter_that_the_client_chose(harness: TextModelHarness) -> None:
    generator, context = harness.generator(VLLM, text("a", finish_reason="stop")), Context("r", {})
    context.adapter = "doll"
    assert [step async for step in generator.generate(PROMPT, GREEDY, context)]
    sent = orjson.loads(harness.predictor.calls[-1].sent["sampling_parameters"][0])
    assert sent == {"max_tokens": 5, "temperature": 0.0, "lora_name": "doll"}
    assert generator.takes_adapters and not harness.generator(PLAIN).takes_adapters


async def test_vllm_gets_sampling_parameters_as_json(harness: TextModelHarness) -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, top_k=3, seed=11, presence_penalty=0.25, ignore_eos=True, stop_token_ids=(3, 4)
    )
    await harness.read(VLLM, text(" a", finish_reason="stop"), sampling=sampling)
    sent = harness.predictor.calls[-1].sent
    drawn = {"temperature": 0.5, "top_k": 3, "seed": 11, "presence_penalty": 0.25}
    expected = {"max_tokens": 5, **drawn, "stop_token_ids": [3, 4], "ignore_eos": True}
    assert orjson.loads(sent.pop("sampling_parameters")[0]) == expected
    asks = ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_output_tokens")
    assert sent == {"text_input": ["hello"], **{name: [True] for name in asks}}
    assert harness.predictor.calls[-1].given.outputs == ["text_output", "finish_reason", "num_output_tokens"]
    assert harness.predictor.calls[-1].given.headers == {"x-request-id": "r"}
    greedy = Sampling(max_tokens=5, greedy=True, top_k=5, seed=3)
    await harness.read(VLLM, text("", finish_reason="stop"), sampling=greedy)
    assert orjson.loads(harness.predictor.calls[-1].sent["sampling_parameters"][0]) == {
        "max_tokens": 5,
        "temperature": 0.0,
    }


async def test_vllm_shows_the_special_tokens_of_a_response_template(harness: TextModelHarness) -> None:
    sampling = Sampling(max_tokens=5, greedy=True, shown_tokens=frozenset([3]))
    await harness.read(VLLM, text("", finish_reason="stop"), sampling=sampling)
    sent = orjson.loads(harness.predictor.calls[-1].sent["sampling_parameters"][0])
    assert sent == {"max_tokens": 5, "temperature": 0.0, "skip_special_tokens": False}


CITY = {"type": "object", "properties": {"b": {}, "a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"const": "é"}}}
CITY_TEXT = '{"type":"object","properties":{"b":{},"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"const":"é"}}}'
TAGS: Any = {"type": "tag", "begin": '<tool_call>\n{"name": "f", "arguments": ', "end": "}\n</tool_call>"}
TAGS["content"] = {"type": "json_schema", "json_schema": CITY}


@pytest.mark.parametrize("form", ["structured_outputs", "guided_decoding"])
@pytest.mark.parametrize(
    ("kind", "source", "sent"),
    [
        ("json_schema", CITY, '{"json":' + CITY_TEXT + "}"),
        ("json_object", {"type": "object"}, '{"json_object":true}'),
        ("regex", r'a"\d', r'{"regex":"a\"\\d"}'),
        ("choice", ["é", "b"], '{"choice":["é","b"]}'),
        ("grammar", "root ::= x\n", r'{"grammar":"root ::= x\n"}'),
    ],
)
async def test_vllm_gets_a_form_as_json_text_inside_the_json(
    harness: TextModelHarness, form: Any, kind: Any, source: Any, sent: str
) -> None:
    sampling = Sampling(max_tokens=5, greedy=True, constraint=Constraint.of(kind, source))
    generator = harness.generator(VLLM, text("a", finish_reason="stop"), structured_output_form=form)
    await generator.prepare(sampling)
    await steps(generator, PROMPT, sampling)
    [parameters] = harness.predictor.calls[-1].sent["sampling_parameters"]
    escaped = sent.replace("\\", "\\\\").replace('"', '\\"')
    assert parameters == f'{{"max_tokens":5,"temperature":0.0,"{form}":"{escaped}"}}'


@pytest.mark.parametrize("answer", [None, CITY], ids=["free text", "an answer of a schema"])
async def test_vllm_gets_a_structural_tag_for_calls(harness: TextModelHarness, answer: Any) -> None:
    constraint = Constraint.of_tools({"f": CITY}, answer)
    sampling = Sampling(max_tokens=5, greedy=True, constraint=constraint, names={"constraint": "tools"})
    await harness.read(VLLM, text("a", finish_reason="stop"), sampling=sampling)
    [parameters] = harness.predictor.calls[-1].sent["sampling_parameters"]
    sent = orjson.loads(orjson.loads(orjson.loads(parameters)["structured_outputs"])["structural_tag"])
    assert sent["type"] == "structural_tag"
    if answer is None:
        assert sent["format"] == {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [TAGS]}
    else:
        schema, calls = sent["format"]["elements"]
        assert schema == {"type": "json_schema", "json_schema": CITY}
        assert calls == {"type": "tags_with_separator", "tags": [TAGS], "separator": "\n", "at_least_one": True}
    older = harness.generator(VLLM, structured_output_form="guided_decoding")
    with pytest.raises(InvalidInput, match="need --structured_output_form=structured_outputs"):
        await older.prepare(sampling)


THOUGHT = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
ANSWER = {"type": "regex", "pattern": "[0-9]+"}
REASONED = [
    ("think", "<|im_start|>assistant\n<think>\n", {"type": "sequence", "elements": [THOUGHT, ANSWER]}),
    (
        "think",
        "<|im_start|>assistant\n",
        {
            "type": "or",
            "elements": [ANSWER, {"type": "sequence", "elements": [{**THOUGHT, "begin": "<think>"}, ANSWER]}],
        },
    ),
    ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
    (
        "gpt_oss",
        "<|end|><|start|>assistant<|channel|>analysis<|message|>",
        {
            "type": "sequence",
            "elements": [
                {**THOUGHT, "end": "<|end|>"},
                {"type": "const_string", "value": "<|start|>assistant<|channel|>final<|message|>"},
                ANSWER,
            ],
        },
    ),
]
"""The reasoning's part, the end of the prompt, and the structural tag; None for the constraint alone."""


@pytest.mark.parametrize(("reasoning", "prompt", "expected"), REASONED)
@pytest.mark.parametrize("by", ["grammar", "engine"])
async def test_vllm_learns_that_a_constraint_begins_after_the_reasoning(
    harness: TextModelHarness, by: Any, reasoning: str, prompt: str, expected: Any
) -> None:
    """With --structured_output_reasoning=engine, the engine's reasoning parser knows it."""
    calls = "gpt_oss" if reasoning == "gpt_oss" else "hermes"
    responses = ModelResponses(compile_template(compose(calls, reasoning), "test"), {})
    made = harness.generator(VLLM, text("a", finish_reason="stop"), structured_output_reasoning=by)
    constraint = Constraint.of("regex", "[0-9]+")
    await steps(made, PROMPT, Sampling(max_tokens=5, constraint=constraint, reasoning=lambda: responses.prefix(prompt)))
    [parameters] = harness.predictor.calls[-1].sent["sampling_parameters"]
    sent = orjson.loads(orjson.loads(parameters)["structured_outputs"])
    if by == "engine" or expected is None:
        assert sent == {"regex": "[0-9]+"}
    else:
        assert orjson.loads(sent["structural_tag"]) == {"type": "structural_tag", "format": expected}


@pytest.mark.parametrize(
    ("form", "by", "reasons"),
    [
        ("structured_outputs", "grammar", True),
        ("structured_outputs", "engine", True),
        ("guided_decoding", "grammar", False),
        ("guided_decoding", "engine", True),
    ],
)
def test_an_engine_that_holds_the_constraint_from_the_first_token(
    harness: TextModelHarness, form: Any, by: Any, reasons: bool
) -> None:
    made = harness.generator(VLLM, structured_output_form=form, structured_output_reasoning=by)
    assert made.reasons_first is reasons


GUIDED = model(
    (
        INPUT,
        spec("max_tokens"),
        *(spec(f"guided_decoding_guide{end}", "BYTES", optional=True) for end in ("_type", "")),
    ),
    (OUTPUT,),
)


@pytest.mark.parametrize(
    ("kind", "source", "sent"),
    [
        ("json_schema", CITY, ["json_schema", CITY_TEXT]),
        ("json_object", {"type": "object"}, ["json"]),
        ("regex", "a+", ["regex", "a+"]),
        ("choice", ["a.b", "c"], ["regex", r"(a\.b|c)"]),
        ("grammar", "root ::= x", ["ebnf_grammar", "root ::= x"]),
    ],
)
async def test_tensorrt_llm_gets_a_guide(harness: TextModelHarness, kind: Any, source: Any, sent: list[str]) -> None:
    sampling = Sampling(max_tokens=5, greedy=True, constraint=Constraint.of(kind, source))
    await harness.read(GUIDED, text("a"), sampling=sampling)
    found = harness.predictor.calls[-1].sent
    names = ("guided_decoding_guide_type", "guided_decoding_guide")
    assert [found[name] for name in names if name in found] == [[[one]] for one in sent]


async def test_who_cannot_hold_a_form_says_so(harness: TextModelHarness) -> None:
    tool = Sampling(constraint=Constraint.of_tools({"f": CITY}, None), names={"constraint": "tools"})
    with pytest.raises(InvalidInput, match="no form for calls next to other text"):
        await harness.generator(GUIDED).prepare(tool)
    cases: list[tuple[ModelSpec, dict[str, Any]]] = [(PLAIN, {}), (ENSEMBLE, {})]
    for found, more in (*cases, (VLLM, {"structured_output_form": "none"})):
        generator = harness.generator(found, **more)
        assert "constraint" not in generator.supported_fields
        hint = "--structured_output_form=none" if more else "guided_decoding_guide_type and guided_decoding_guide"
        assert hint in generator.hints["constraint"]


async def test_an_ensemble_gets_one_input_per_parameter(harness: TextModelHarness) -> None:
    await harness.read(ENSEMBLE, text(" a"), sampling=Sampling(max_tokens=5, temperature=0.5, seed=11))
    values = {"text_input": "hello", "max_tokens": 5, "temperature": 0.5, "top_k": 0, "top_p": 1.0, "random_seed": 11}
    assert harness.predictor.calls[-1].sent == {name: [[value]] for name, value in {**values, "stream": True}.items()}


LLM_API = model(
    (INPUT, spec("sampling_param_max_tokens", optional=True), spec("streaming", "BOOL", optional=True), RETURNS[0]),
    VLLM_OUTPUTS[:2],
)


@pytest.mark.parametrize(
    ("responses", "parts"),
    [
        pytest.param([" a", " a a", " a a a"], [" a", " a", " a"], id="each response has the whole text"),
        pytest.param([b" \xef\xbf\xbd", " é", " é!"], [" ", "é", "!"], id="an incomplete character is replaced"),
        pytest.param([" a", " a", " a."], [" a", "."], id="a response without new text"),
        pytest.param(
            [" a", b" a\xef\xbf\xbd"], [" a", "\N{REPLACEMENT CHARACTER}"], id="an incomplete character at the end"
        ),
    ],
)
async def test_cumulative_responses_become_new_text(
    harness: TextModelHarness, responses: list[str | bytes], parts: list[str]
) -> None:
    """TensorRT-LLM's LLM API model streams so."""
    reasons = [*["None"] * (len(responses) - 1), "length"]
    answers = [text(part, finish_reason=reason) for part, reason in zip(responses, reasons, strict=True)]
    assert await harness.read(LLM_API, *answers) == (parts, "length")


async def test_the_models_inputs_decide_the_supported_fields(harness: TextModelHarness) -> None:
    vllm, tutorial, ensemble = (harness.generator(found).supported_fields for found in (VLLM, TUTORIAL, ENSEMBLE))
    assert vllm >= {"max_tokens", "greedy", "temperature", "top_p", "min_p", "repetition_penalty", "seed", "ignore_eos"}
    assert not vllm & {"logprobs", "logit_bias"}
    assert tutorial == frozenset() and "stop_token_ids" in vllm
    drawing = {"temperature", "top_k", "top_p", "greedy"}
    assert ensemble == {"max_tokens", "min_tokens", "repetition_penalty", "seed", "ignore_eos"} | drawing


async def test_the_leading_token_is_not_sent_twice(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    harness = TextModelHarness(load(ALL["llama"](tmp_path / "model")), executor)
    for prompt, expected in (
        (Prompt("<s>[INST] hi", (1, 5), False), "[INST] hi"),
        (Prompt("hi<s>", (5,), False), "hi<s>"),
        (Prompt("<s>hi", (1, 1, 5), True), "<s>hi"),
    ):
        await harness.read(VLLM, text("", finish_reason="stop"), prompt=prompt)
        assert harness.predictor.calls[-1].sent["text_input"] == [expected]


async def test_some_tokenizers_have_no_leading_token(
    gpt2: Tokenizer, t5: Tokenizer, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    few_words = load(without_unknown(tmp_path))
    assert leading_token(gpt2) == leading_token(t5) == leading_token(few_words) == ""
    assert await TokenCounter(few_words, executor).count("A C A") == 3


async def test_flags_rename_the_input_and_the_output(harness: TextModelHarness) -> None:
    found = model((spec("prompt", "BYTES"),), (spec("answer", "BYTES"),), decoupled=False, batch=0)
    answer = {"answer": tensor("answer", "BYTES", b" a")}
    made = harness.generator(found, answer, input_names=("prompt",), output_names=("answer",))
    [step] = await steps(made, PROMPT, GREEDY)
    assert step.text == " a"


@pytest.mark.parametrize(
    ("inputs", "outputs", "json", "message"),
    [
        ((spec("prompt", "BYTES"),), (OUTPUT,), False, r"the input text_input and .* has prompt and text_output"),
        ((INPUT,), (spec("answer", "BYTES"),), False, "--tensor_input_names and --tensor_output_names"),
        ((INPUT,), (spec("text_output", "FP32"),), False, "'text_output' is FP32; text is TYPE_STRING"),
        ((INPUT, spec("image", "BYTES")), (OUTPUT,), False, "It requires the input 'image'"),
        ((INPUT, spec("sampling_parameters", "FP32")), (OUTPUT,), False, "'sampling_parameters' is FP32"),
        ((INPUT, spec("temperature", "FP16")), (OUTPUT,), True, "'temperature' is FP16.*--predictor_protocol=grpc-v2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_misfit_has_its_message(
    harness: TextModelHarness, inputs: Any, outputs: Any, json: bool, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        harness.generator(model(inputs, outputs), json=json)


# Answers


async def test_the_models_finish_reason_is_used(harness: TextModelHarness) -> None:
    first = text(" a", finish_reason="None")
    assert await harness.read(VLLM, first, text(" b", finish_reason="stop")) == ([" a", " b"], "stop")
    assert await harness.read(VLLM, first, text("", finish_reason="length")) == ([" a"], "length")
    more_than_one_would_count = "x" * 500
    stopped = text(more_than_one_would_count, finish_reason="stop")
    assert await harness.read(VLLM, stopped) == ([more_than_one_would_count], "stop")


async def test_the_models_token_count_decides_the_finish_reason(harness: TextModelHarness) -> None:
    count = {"num_output_tokens": tensor("num_output_tokens", "UINT32", 3)}
    assert await harness.read(VLLM, {**text("a"), **count}, text("b")) == (["a", "b"], "stop")
    assert await harness.read(VLLM, {**text("a"), **count}, {**text("b"), **count}) == (["a", "b"], "length")
    for most, expected in ((6, "length"), (7, "stop")):
        both = {**text("a"), **count}, {**text("b"), **count}
        assert await harness.read(VLLM, *both, sampling=Sampling(max_tokens=most)) == (["a", "b"], expected)


async def test_tokens_are_counted_if_the_model_does_not_count(harness: TextModelHarness) -> None:
    count = harness.count("the cat sat")
    for most, expected in ((count, "length"), (count + 1, "stop"), (count - 1, "length")):
        sampling = Sampling(max_tokens=most, greedy=True)
        assert await harness.read(OLD_VLLM, *cut("the cat sat", 7), sampling=sampling) == (
            ["the cat", " sat"],
            expected,
        )
    *_, last = await steps(harness.generator(OLD_VLLM, text("the cat sat")), PROMPT, Sampling(max_tokens=2))
    assert last.total == count
    *_, last = await steps(harness.generator(OLD_VLLM, text("the cat sat")), PROMPT, MANY)
    assert last.total is None, "a short text needs no count"


NO_COUNT = {**text("a"), "num_output_tokens": tensor("num_output_tokens", "BYTES", b"3")}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (text("a", finish_reason="abort"), "abort"),
        (text("a", finish_reason="cancelled"), "cancelled"),
        (text("a", finish_reason="timeout"), "timeout"),
        ({"text_output": tensor("text_output", "INT32", 1)}, "text_output is INT32, expected BYTES"),
        (NO_COUNT, "num_output_tokens is BYTES, expected whole numbers"),
    ],
    ids=["broken off", "cancelled", "timeout", "no text", "no count"],
)
async def test_incomplete_texts_and_other_datatypes_are_predictor_errors(
    harness: TextModelHarness, response: Any, message: str
) -> None:
    with pytest.raises(PredictorError, match=message):
        await harness.read(VLLM, response)


async def test_incomplete_characters_are_held_back(harness: TextModelHarness) -> None:
    given = "é🎉".encode()
    parts = [text(given[start : start + 1]) for start in range(len(given))]
    assert await harness.read(VLLM, *parts, sampling=MANY) == (["é", "🎉"], "stop")
    assert await harness.read(VLLM, text(b"a\xc3"), sampling=MANY) == (["a", "�"], "stop")


async def test_closing_a_text_generator_closes_the_predictors_stream(harness: TextModelHarness) -> None:
    generator = harness.generator(VLLM, text(" a"), text(" b"), text(" c"))
    assert len(await steps(generator, PROMPT, GREEDY, most=1)) == 1
    assert harness.predictor.left == 2


async def test_a_model_without_max_tokens_is_truncated(harness: TextModelHarness) -> None:
    written = "the cat sat on the mat"
    encoding = harness.tokenizer.encode([written], offsets=True)[0]
    assert encoding.offsets is not None
    for most in (1, 2, len(encoding.ids) - 1):
        expected = written[: encoding.offsets[most - 1][1]]
        answer = whole(f"hello{written}")
        assert await harness.read(TUTORIAL, answer, sampling=Sampling(max_tokens=most)) == ([expected], "length")
    assert await harness.read(TUTORIAL, whole(f"hello{written}"), sampling=MANY) == ([written], "stop")
    stream = model((INPUT,), (OUTPUT,), batch=0)
    sampling, parts = Sampling(max_tokens=harness.count("the cat")), ("the", " cat", " sat", " on", " the", " mat")
    texts, finish = await harness.read(stream, *map(text, parts), sampling=sampling)
    assert ("".join(texts), finish) == ("the cat", "length") and harness.predictor.left > 0


# The prompt in front of the text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("hello world", " world"), ("Hello world", "Hello world"), ("hello", ""), ("hell", "hell"), ("", "")],
    ids=["with the prompt", "not quite", "the prompt alone", "a part of it", "nothing"],
)
async def test_a_returned_prompt_is_removed(harness: TextModelHarness, answer: str, expected: str) -> None:
    written, finish = await harness.read(TUTORIAL, whole(answer), sampling=MANY)
    assert ("".join(written), finish) == (expected, "stop")
    assert harness.predictor.calls[-1].sent == {"text_input": ["hello"]}
    assert [call.released for call in harness.predictor.calls] == [True]
    for size in (1, 2, 3, 100):
        written, _ = await harness.read(PLAIN, *cut(answer, size))
        assert "".join(written) == expected
    if answer == "hello":
        for spec in (VLLM, ENSEMBLE):  # they exclude the prompt, so this is the text
            assert (await harness.read(spec, text(answer)))[0] == [answer]


async def test_a_prompt_returned_without_special_tokens_is_removed(harness: TextModelHarness) -> None:
    chat = "<|endoftext|>user\nhi.<|endoftext|>\n<|endoftext|>assistant\n"
    prompt = Prompt(chat, tuple(harness.tokenizer.encode([chat])[0].ids), False)
    answer = whole("user\nhi.\nassistant\nhello.")
    assert await harness.read(TUTORIAL, answer, prompt=prompt, sampling=MANY) == (["hello."], "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        ("<s>user\nHi</s>\n", "<s>user\nHi</s>\n you", " you"),
        ("<s>user\nHi</s>\n", "user\nHi\n you", " you"),
        ("<s>user\nHi</s>\n", "user\nHi\n", ""),
        ("<s>user\nHi</s>\n", "user\nHi", "user\nHi"),
        ("<s>user\nHi</s>\n", "user\nHe said", "user\nHe said"),
        # Without its last special token the answer is a prefix of the prompt: the following text decides.
        ("Hi</s>", "Hi</s> you", " you"),
        ("Hi</s>", "Hi you", " you"),
        ("Hi</s>", "Hi</you", "</you"),
        ("Hi</s>", "Hi", ""),
        ("", "you", "you"),
    ],
)
def test_the_prompt_is_removed_in_either_form_from_any_chunks(
    size: int, prompt: str, answer: str, expected: str
) -> None:
    asked: list[str] = []

    def read_back() -> str:
        asked.append(prompt)
        return prompt.replace("<s>", "").replace("</s>", "")

    remover = PromptRemover(prompt, read_back)
    found = "".join(remover.push(answer[start : start + size]) for start in range(0, len(answer), size))
    assert found + remover.flush() == expected
    assert len(asked) <= 1 and not (asked and answer.startswith(prompt))
