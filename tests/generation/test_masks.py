"""Constrained texts of logits models: random logits become valid texts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest
import pytest_asyncio

from hf_transformer.errors import InvalidInput, PredictorError, TooLarge, TooManyRequests
from hf_transformer.generation.call_forms import HERMES, CallForm
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint, read_structured_outputs
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.grammar_memory import CompiledGrammar, GrammarMemory
from hf_transformer.generation.grammars import LEXER_STATES, MAX_LEXER_STATES, STATE_BYTES
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.masks import ROW_BYTES_PER_SECOND, GrammarCompiler, Sandbox
from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import compile_template
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Outputs
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import Array, ModelSpec, Tensor, TensorSpec
from hf_transformer.types.tokenization import Tokenization
from tests.generation.hostile_constraints import COMPILED
from tests.generation.scripted_models import settings, steps
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor
from tests.support.triton_repository import DEMO_MODELS

# One event loop, since the tests share the processes of `children`.
pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


CHOICES = ["red", "green", 'a "quote"\n', "gr\u00fcn"]


class RandomLogits(ScriptedPredictor):
    """A model with random logits of the last position, or those that ``logits`` makes of a number of tokens."""

    def __init__(self, size: int, seed: int, logits: Callable[[int], Array] | None = None) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)
        self._size, self._logits = size, logits

    async def respond(self, made: RecordedCall) -> Outputs:
        rows, length = made.inputs["input_ids"].shape
        if self._logits is None:
            data = self._random.standard_normal((rows, self._size))
        else:
            data = np.broadcast_to(self._logits(length), (rows, self._size))
        return {"logits": Tensor("logits", "FP32", data.astype(np.float32))}


class Constrained:
    """A generator with the vocabulary of a tokenizer, and random logits."""

    def __init__(
        self, tokenizer: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox, *, seed: int = 0, **options: Any
    ) -> None:
        self.tokenizer, self.sandbox = tokenizer, sandbox
        size = tokenizer.vocab_size
        self.eos = tokenizer.token_to_id("<|endoftext|>") or 0
        ids = TensorSpec("input_ids", "INT64", (-1,))
        spec = ModelSpec("m", "1", (ids,), (TensorSpec("logits", "FP32", (size,)),), 16)
        ends = frozenset({self.eos})
        made = settings(eos_ids=ends, max_length=1000)
        self.predictor = RandomLogits(size, seed, options.pop("logits", None))
        self.generator = LogitsGenerator(
            spec, self.predictor, tokenizer, made, executor=executor, metrics=Metrics().of("m"),
            grammars=GrammarCompiler(Vocabulary(tokenizer), sandbox),
        )  # fmt: skip

    async def steps(self, constraint: Constraint, **sampling: Any) -> list[Step]:
        wanted = Sampling(constraint=constraint, **{"max_tokens": 200, "seed": 5, **sampling})
        await self.generator.prepare(wanted)
        return await steps(self.generator, Prompt("a", (5,)), wanted)

    def text(self, found: list[Step]) -> str:
        return self.tokenizer.decode([token for step in found for token in step.ids], True)

    async def said(self, constraint: Constraint, **sampling: Any) -> tuple[str, str | None]:
        found = await self.steps(constraint, **sampling)
        return self.text(found), found[-1].finish


def schema_of(value: Any) -> Constraint:
    return Constraint.of("json_schema", value)


@pytest.fixture
def constrained(gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox) -> Callable[..., Constrained]:
    return lambda **options: Constrained(gpt2, executor, sandbox, **options)


@pytest.mark.parametrize("seed", range(4))
async def test_random_logits_write_a_valid_object(constrained: Callable[..., Constrained], seed: int) -> None:
    text, finish = await constrained(seed=seed).said(schema_of(SCHEMA), seed=seed, max_tokens=900)
    assert finish in ("stop", "length")
    if finish == "stop":
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]{2}", text)),
        ({"choice": CHOICES}, lambda text: text in CHOICES),
        ({"grammar": 'start: "(" start ")" | "x"'}, lambda text: re.fullmatch(r"\(*x\)*", text)),
        ({"grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
        ({"json": {"enum": [1, "two", None]}}, lambda text: json.loads(text) in (1, "two", None)),
        ({"json": '{"const": {"a": [1]}}'}, lambda text: json.loads(text) == {"a": [1]}),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, dict) else "",
)  # fmt: skip
async def test_each_kind(
    constrained: Callable[..., Constrained], fields: dict[str, Any], valid: Callable[[str], Any]
) -> None:
    constraint = read_structured_outputs(fields, ("structured_outputs",), 10_000)
    for greedy in (True, False):
        text, finish = await constrained().said(constraint, greedy=greedy)
        assert finish == "stop" and valid(text), text


async def test_an_object_of_any_form(constrained: Callable[..., Constrained]) -> None:
    closes = np.zeros(constrained().tokenizer.vocab_size)
    closes[constrained().tokenizer.first_token_id("}") or 0] = 9.0
    constraint = read_structured_outputs({"json_object": True}, ("s",), 100)
    text, finish = await constrained(logits=lambda length: closes).said(constraint, greedy=True)
    assert finish == "stop" and json.loads(text) == {}


async def test_the_end_token_only_where_the_text_may_end(constrained: Callable[..., Constrained]) -> None:
    made = constrained()
    wants_end = np.zeros(made.tokenizer.vocab_size)
    wants_end[made.eos] = 100.0
    regex = Constraint.of("regex", "[a-z]{2,9}")
    for sampling, least in (({}, 2), ({"min_tokens": 4}, 4), ({"ignore_eos": True}, 9)):
        found = constrained(logits=lambda length: wants_end)
        [*tokens, last] = await found.steps(regex, greedy=True, **sampling)
        text = found.text([*tokens, last])
        assert last.finish == "stop" and len(text) >= least and re.fullmatch("[a-z]{2,9}", text)
        assert sampling or len(text) < 6  # it ends as soon as it may


async def test_a_stop_token_ends_a_text_that_may_end(constrained: Callable[..., Constrained]) -> None:
    made = constrained()
    stop = made.tokenizer.first_token_id("z") or 0
    wants = np.zeros(made.tokenizer.vocab_size)
    wants[stop] = 100.0
    found = constrained(logits=lambda length: wants)
    text, finish = await found.said(Constraint.of("regex", "[a-z]{3}x?"), greedy=True, stop_token_ids=(stop,))
    assert finish == "stop" and len(text) >= 3 and "z" not in text


async def test_a_model_without_an_end_token_ends_a_complete_text(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox
) -> None:
    compiler, regex = GrammarCompiler(Vocabulary(gpt2), sandbox), Constraint.of("regex", "ab?")
    await compiler.prepare(regex, (), executor)
    last = gpt2.vocab_size - 1
    mask = compiler.mask(regex, (), frozenset(), 0)
    for letter in "ab":
        allowed = np.flatnonzero(mask.apply(np.zeros(gpt2.vocab_size, np.float32)) > -np.inf)
        assert last not in allowed and not mask.is_over
        [token] = [one for one in allowed.tolist() if gpt2.decode([one]) == letter]
        mask.add(token)
    assert mask.is_over


async def test_the_limit_of_tokens_ends_a_text_before_it_is_valid(constrained: Callable[..., Constrained]) -> None:
    text, finish = await constrained().said(Constraint.of("regex", "[a-z]{500}"), max_tokens=3)
    assert finish == "length" and re.fullmatch("[a-z]+", text)


async def test_other_parameters(constrained: Callable[..., Constrained]) -> None:
    """Seeds repeat the text; biases, penalties and log probabilities work with a mask."""
    regex = Constraint.of("regex", "[a-z]{9}")
    more: dict[str, Any] = {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "logprobs": 2}
    more |= {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {7: 5.0}, "temperature": 0.7}
    first, again = [await constrained(seed=3).steps(regex, **more) for _ in range(2)]
    assert [step.ids for step in first] == [step.ids for step in again]
    scores = [score for step in first for score in step.scores]
    assert len(scores) == sum(len(step.ids) for step in first) and all(len(score.top) == 2 for score in scores)
    assert all(
        score.logprob is not None and score.logprob <= score.top[0][1] for score in scores
    )  # the model's own distribution


async def test_nan_is_an_error_of_the_predictor(constrained: Callable[..., Constrained]) -> None:
    size = constrained().tokenizer.vocab_size
    found = constrained(logits=lambda length: np.full(size, np.nan))
    with pytest.raises(PredictorError, match="not finite"):
        await found.steps(Constraint.of("regex", "[a-z]"), greedy=True)


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("regex", "(a", "unclosed"),
        ("grammar", "start: missing", "unknown name"),
        ("json_schema", {"type": "what"}, "what"),
        ("json_schema", {"$ref": "#/$defs/absent"}, "absent"),
        ("json_schema", {"type": "string", "pattern": "(?<!a)b"}, "look"),
        ("json_schema", {"allOf": [False]}, "unsatisfiable"),
    ],
)
async def test_what_does_not_compile_is_refused_with_the_reason(
    constrained: Callable[..., Constrained], kind: Any, source: Any, reason: str
) -> None:
    generator, names = constrained(), {"constraint": "structured_outputs"}
    with pytest.raises(InvalidInput) as caught:
        await generator.steps(Constraint.of(kind, source), names=names)
    assert caught.value.path == ("parameters", "structured_outputs")
    assert reason in caught.value.hint.lower(), caught.value.hint
    assert not generator.predictor.calls


def tool(answer: Any = None) -> Constraint:
    properties = {"n": {"enum": [1, 2]}}
    arguments = {"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}
    return Constraint.of_tools({"add": arguments, "other": arguments}, answer)


async def test_calls_of_tools_or_an_answer(constrained: Callable[..., Constrained]) -> None:
    calls = {f'{HERMES.begin(name)}{{"n": {n}}}{HERMES.tail}' for name in ("add", "other") for n in (1, 2)}
    answered = set()
    for seed in range(12):
        text, finish = await constrained(seed=seed).said(tool({"const": "no"}), seed=seed, max_tokens=100)
        text = re.sub(r"\s", "", text)
        answered.add(text.startswith('"no'))
        allowed = {'"no"', *(re.sub(r"\s", "", call) for call in calls)}
        written = text.replace("</tool_call><", "</tool_call>\0<").split("\0")
        assert finish != "stop" or set(written) <= allowed
    assert answered == {True, False}


async def test_free_text_with_a_call(constrained: Callable[..., Constrained]) -> None:
    """Free text, until a call begins: then its form is bound."""
    made = constrained()
    wanted = [made.tokenizer.encode(['ok <tool_call>\n{"name": "add", "arguments": {"n": 9}'])[0].ids][0]
    size = made.tokenizer.vocab_size

    def logits(length: int) -> Array:
        row = np.zeros(size)
        row[wanted[length - 1] if length <= len(wanted) else made.eos] = 100.0
        return row

    text, _ = await constrained(logits=logits).said(tool(), greedy=True, max_tokens=60)
    assert text.startswith('ok <tool_call>\n{"name": "add", "arguments":')
    assert re.search(r'"n":\s*[12]', text), text


@pytest.mark.parametrize(
    ("prompt", "writes", "expected"),
    [
        ("<think>\n", "Hm, {[ </think>no", r"Hm, \{\[ </think>[12]"),
        ("", "<think>Hm.</think>no", r"<think>Hm\.</think>[12]"),
        ("", "<think>a</think><think>b</think>no", r"<think>a</think><think>b</think>[12]"),
        ("", "Hm no", "[12]"),
        ("", "< think", "</think>[12]"),
        ("<think></think>", "<think>Hm.</think>no", "[12]"),
    ],
)
async def test_a_constraint_begins_after_the_reasoning(
    constrained: Callable[..., Constrained], prompt: str, writes: str, expected: str
) -> None:
    responses = ModelResponses(compile_template(compose("hermes", "think"), "test"), {})
    wanted = constrained().tokenizer.encode([writes])[0].ids
    size = constrained().tokenizer.vocab_size

    def logits(length: int) -> Array:
        row = np.zeros(size)
        row[wanted[min(length, len(wanted)) - 1]] = 100.0
        return row

    made = constrained(logits=logits)
    text, finish = await made.said(
        Constraint.of("regex", "[12]"),
        greedy=True,
        max_tokens=60,
        reasoning=lambda: responses.prefix(f"<|im_start|>assistant\n{prompt}"),
    )
    assert re.fullmatch(expected, text) and finish == "stop"


async def test_a_call_may_begin_in_the_delimiters_before_it(constrained: Callable[..., Constrained]) -> None:
    """Harmony's calls and answers have the same beginning, and the mask has to know it for a call."""
    responses = ModelResponses(compile_template(compose("gpt_oss", "gpt_oss"), "test"), {})
    form = responses.strict_form
    assert form is not None
    reasoning = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    begin = reasoning + form.begin("add")
    whole = Tokenization(whole=True, special_tokens=False)
    wanted = constrained().tokenizer.encode_windows([begin + '{"n": 9}<|call|>'], whole)[0][0].ids
    size, eos = constrained().tokenizer.vocab_size, constrained().eos

    def logits(length: int) -> Array:
        row = np.zeros(size)
        row[wanted[length - 1] if length <= len(wanted) else eos] = 100.0
        return row

    arguments = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    text, _ = await constrained(logits=logits).said(
        Constraint.of_tools({"add": {**arguments, "additionalProperties": False}}, None, form),
        greedy=True,
        max_tokens=120,
        reasoning=lambda: responses.prefix("<|end|><|start|>assistant"),
    )
    assert text.startswith(begin) and re.match(r'\{\s*"n":\s*[12]\s*\}<\|call\|>', text.removeprefix(begin)), text


async def test_delimiters_that_are_special_tokens_are_written(executor: ThreadPoolExecutor, sandbox: Sandbox) -> None:
    folder = DEMO_MODELS / "gpt2"
    gpt2 = load_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    begin, end = (gpt2.token_to_id(name) for name in ("<|im_start|>", "<|endoftext|>"))
    assert begin is not None
    form = CallForm("<|im_start|>", "{name} ", "")
    constraint = Constraint.of_tools({"f": {"enum": [{}]}}, None, form, [begin])
    wanted = [begin, *gpt2.encode(["f {}"])[0].ids]

    def logits(length: int) -> Array:
        row = np.zeros(gpt2.vocab_size)
        row[wanted[length - 1] if length <= len(wanted) else end] = 100.0
        return row

    made = Constrained(gpt2, executor, sandbox, logits=logits)
    found = await made.steps(constraint, greedy=True, max_tokens=20)
    assert [token for step in found for token in step.ids] == wanted


async def test_no_end_token_ends_the_reasoning(constrained: Callable[..., Constrained]) -> None:
    """Otherwise the answer would not have the form."""
    responses = ModelResponses(compile_template(compose("hermes", "think"), "test"), {})
    size, eos = constrained().tokenizer.vocab_size, constrained().eos
    made = constrained(logits=lambda length: 100.0 * (np.arange(size) == eos))
    prefix = lambda: responses.prefix("<|im_start|>assistant\n<think>")  # noqa: E731
    found = await made.steps(Constraint.of("regex", "[12]"), greedy=True, max_tokens=8, reasoning=prefix)
    assert found[-1].finish == "length" and len(found) == 8


async def test_compiled_constraints_are_cached(gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox) -> None:
    compiler = GrammarCompiler(Vocabulary(gpt2), sandbox)

    async def compiled(number: int) -> CompiledGrammar:
        return await compiler.prepare(Constraint.of("regex", f"[a-z]{{{number}}}"), (), executor)

    kept = await compiled(1)
    assert await compiled(1) is kept
    for number in range(2, 72):
        await compiled(number)
    assert await compiled(1) is kept, "it is in use"
    used, kept = sandbox.memory.used, await compiled(71)
    del kept
    await compiled(1)
    assert sandbox.memory.used <= used


async def test_a_text_that_needs_more_states_goes_on_with_them(constrained: Callable[..., Constrained]) -> None:
    made = constrained()
    found = await made.steps(Constraint.of("regex", "[a-z]{3000}"), max_tokens=990)
    text = made.text(found)
    assert found[-1].finish in ("stop", "length") and re.fullmatch("[a-z]+", text)
    assert len(text) > LEXER_STATES, "too short to need them"
    assert made.sandbox.memory.used > MAX_LEXER_STATES * STATE_BYTES


async def test_compiled_constraints_take_bounded_memory(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox
) -> None:
    memory = GrammarMemory(12 << 20)
    compiler = GrammarCompiler(Vocabulary(gpt2), Sandbox(sandbox.children, memory))

    async def compiled(number: int) -> CompiledGrammar:
        schema = {"type": "integer", "multipleOf": 5003, "description": str(number)}
        return await compiler.prepare(Constraint.of("json_schema", schema), ("p",), executor)

    for number in range(8):
        await compiled(number)
        assert 0 < memory.used <= memory.max_bytes
    in_use = [await compiled(0), await compiled(1)]
    with pytest.raises(TooManyRequests, match="--max_constraint_bytes"):
        in_use += [await compiled(number) for number in range(2, 8)]
    in_use.clear()
    assert await compiled(9)
    memory.max_bytes = 1 << 20
    with pytest.raises(TooLarge, match=r"p: expected a constraint .*--max_constraint_bytes"):
        await compiled(10)


async def test_a_text_gives_its_memory_back(gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox) -> None:
    compiler, regex = GrammarCompiler(Vocabulary(gpt2), sandbox), Constraint.of("regex", "[a-z]*")
    await compiler.prepare(regex, (), executor)
    used, mask = sandbox.memory.used, compiler.mask(regex, (), frozenset(), 0)
    mask._row_seconds = 0.1
    mask.add(gpt2.encode(["a"])[0].ids[0])
    assert sandbox.memory.used > used + ROW_BYTES_PER_SECOND * 0.09
    mask.close()
    assert sandbox.memory.used == used


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict() -> AsyncIterator[ChildPool]:
    async with ChildPool(1, seconds=0.5) as made:
        yield made


@pytest.mark.parametrize("name", COMPILED)
async def test_hostile_constraints_are_answered_or_refused_with_a_sentence(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, strict: ChildPool, name: str
) -> None:
    made = Constrained(gpt2, executor, Sandbox(strict))
    try:
        await made.steps(Constraint.of(*COMPILED[name]), max_tokens=40, names={"constraint": "response_format"})
    except (InvalidInput, TooLarge) as error:
        assert error.path == ("parameters", "response_format")
        assert "non-verbose" not in str(error) and "NoExtension" not in str(error)
    assert made.sandbox.memory.used < 40 << 20


async def test_a_constraint_that_no_text_meets_is_refused_before_the_first_token(
    constrained: Callable[..., Constrained],
) -> None:
    made = constrained()
    with pytest.raises(InvalidInput, match="a constraint that some text can meet; no text can go on here and meet it"):
        await made.steps(Constraint.of("json_schema", {"$ref": "#"}))
    assert not made.predictor.calls
