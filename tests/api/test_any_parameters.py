"""Random values of random types for every parameter of the APIs that generate: none of them is the service's fault."""

from __future__ import annotations

import json
import logging
from random import Random
from typing import Any

import pytest

from hf_transformer.api.openai import chat as openai_chat
from hf_transformer.api.openai import completions as openai_completions
from hf_transformer.generation.task import PARAMETERS
from hf_transformer.types import ModelSpec, TensorSpec
from tests.api.declared import declared
from tests.api.generating import PROMPT, Exchange
from tests.generation.scripted_models import Response, ids, model, spec, text

pytestmark = pytest.mark.asyncio

REQUESTS = 1000
"""Of each model."""
NUMBERS = (
    *("0 1 -1 2 3 16 17 127 128 255 256 32767 65536 2147483647 2147483648 -2147483649 4294967296").split(),
    *("9223372036854775807 -9223372036854775808 18446744073709551615 18446744073709551616 0.5 1.0 2.0 -2.0").split(),
    *("1e-7 1e-6 0.01 100.0 1e308 -1e308 5e-324 1e400 -0.0 NaN").split(),
    f"1{'0' * 400}",
)
"""As JSON, or nearly so: Python's own writer has no form for all of them."""
STRINGS = (
    "",
    "a",
    "\0",
    "\ud800",
    "é",
    "\U0001f600",
    "a" * 1001,
    "5",
    "-1",
    "٣",
    "1_0",
    "text",
    "auto",
    "{{ x }}",
    "%s",
)
LITERALS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[" * 600 + "]" * 600,
    f"[{'1,' * 2000}1]",
    '{"a":' * 400 + "1" + "}" * 400,
)
USUAL = {
    "stream": ("true", "false"),
    "temperature": ("0", "0.5"),
    "top_p": ("0.5",),
    "top_k": ("1", "1099511627776"),
    "seed": ("-5", "9223372036854775808"),
    "stop": ('"a"', '["a","b"]'),
    "stop_token_ids": ("[5]", "[2,5]"),
    "n": ("1", "2"),
    "max_tokens": ("1", "5", "200"),
    "max_new_tokens": ("5", "200"),
    "max_completion_tokens": ("5", "200"),
    "min_tokens": ("1", "130"),
    "min_new_tokens": ("1",),
    "max_length": ("200",),
    "logit_bias": ('{"5":100}',),
    "logprobs": ("true", "0"),
    "echo": ("true",),
    "tools": ('[{"type":"function","function":{"name":"f"}}]',),
    "chat_template_kwargs": ('{"documents":5}',),
}
"""Values that are taken, so that what stands behind them is come to."""

OUTPUTS = (
    *(spec(name, "INT32", -1) for name in ("output_ids", "sequence_length")),
    spec("output_log_probs", "FP32", -1),
)
SAMPLED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def tokens(whole: str, fraction: str, *, decoupled: bool) -> ModelSpec:
    more = ("end_id", "pad_id", "top_k", "min_length", "seed", "return_log_probs")
    inputs: list[TensorSpec] = [
        spec("input_ids", "INT32", -1),
        spec("input_lengths"),
        spec("request_output_len", whole),
    ]
    inputs += [spec(name, whole, optional=True) for name in more]
    inputs += [spec(name, fraction, optional=True) for name in SAMPLED]
    return model(inputs, OUTPUTS, decoupled=decoupled)


TEXT = [spec("text_input", "BYTES"), spec("sampling_parameters", "BYTES", optional=True)]
MODELS: dict[str, tuple[ModelSpec, Response]] = {
    "tokens, wide": (tokens("INT64", "FP16", decoupled=True), ids(5, 6, 7, scores=[-1.0, -2.0, -3.0])),
    "tokens, unsigned": (tokens("UINT32", "BF16", decoupled=False), ids(5, 6, 7, scores=[-1.0, -2.0, -3.0])),
    "tokens": (tokens("INT32", "FP32", decoupled=True), ids(5, scores=[-1.0])),
    "text": (model(TEXT, [spec("text_output", "BYTES")]), text("paris")),
    "text, whole": (model(TEXT[:1], [spec("text_output", "BYTES")], decoupled=False), text("paris")),
}


class Requests:
    """Bodies that nobody would send, the same ones in each run."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def next(self) -> tuple[str, bytes]:
        """A path and a body."""
        api = self._random.choice((self._predict, self._generate, self._completion, self._chat))
        path, members = api()
        body = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
        return path, f"{{{body}}}".encode("utf-8", "surrogatepass")

    def _predict(self) -> tuple[str, dict[str, str]]:
        given = self._given(PARAMETERS)
        inside = ",".join(f"{json.dumps(name)}:{value}" for name, value in given.items())
        return "/v1/models/gpt2:predict", {
            "instances": self._mostly(json.dumps([PROMPT])),
            "parameters": self._mostly(f"{{{inside}}}"),
        }

    def _generate(self) -> tuple[str, dict[str, str]]:
        path = f"/v2/models/gpt2/generate{self._random.choice(('', '_stream'))}"
        names = (
            *PARAMETERS,
            "exclude_input_in_output",
            "bad_words",
            "end_id",
            "pad_id",
            "random_seed",
            "parameters",
            "id",
        )
        return path, {"text_input": self._mostly(json.dumps(PROMPT)), **self._given(names)}

    def _completion(self) -> tuple[str, dict[str, str]]:
        prompt = self._random.choice((json.dumps(PROMPT), "[5,6,7]", "[[5],[6,7]]", '["a","b"]'))
        return "/openai/v1/completions", {**self._given(openai_completions.FIELDS), **self._asked(prompt=prompt)}

    def _chat(self) -> tuple[str, dict[str, str]]:
        message = f'{{"role":"user","content":{self._mostly(json.dumps(PROMPT))}}}'
        return "/openai/v1/chat/completions", {
            **self._given(openai_chat.FIELDS),
            **self._asked(messages=f"[{message}]"),
        }

    def _asked(self, **members: str) -> dict[str, str]:
        return {"model": '"gpt2"'} | {name: self._mostly(value) for name, value in members.items()}

    def _given(self, names: Any) -> dict[str, str]:
        """A few parameters, about half of them with values that are taken."""
        chosen = self._random.sample(names, self._random.randint(0, 4))
        return {
            name: self._random.choice(USUAL[name]) if name in USUAL and self._random.random() < 0.6 else self._any()
            for name in chosen
        }

    def _mostly(self, value: str) -> str:
        return value if self._random.random() < 0.95 else self._any()

    def _any(self, depth: int = 0) -> str:
        """Any value, as JSON."""
        kind = self._random.random()
        if kind < 0.4:
            return self._random.choice(NUMBERS)
        if kind < 0.6:
            return json.dumps(self._random.choice(STRINGS), ensure_ascii=False)
        if kind < 0.8 or depth > 2:
            return self._random.choice(LITERALS)
        inside = [self._any(depth + 1) for _ in range(self._random.choice((1, 2, 17)))]
        if kind < 0.9:
            return f"[{','.join(inside)}]"
        return f"{{{','.join(f'{json.dumps(self._random.choice(STRINGS))}:{one}' for one in inside)}}}"


@pytest.mark.parametrize(("found", "answer"), MODELS.values(), ids=MODELS)
async def test_no_parameter_is_the_service_s_fault(
    found: ModelSpec, answer: Response, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(len(found.inputs))
    caplog.set_level(logging.WARNING)
    answered = set()
    async with declared(found, answer, given={"pad_id": 1}) as made:
        for _ in range(REQUESTS):
            path, body = requests.next()
            async with Exchange(made.app, path, body) as exchange:
                status, _ = await exchange.head()
                said = await exchange.rest()
            answered.add(status)
            assert status < 500, (path, body[:1000], said)
            assert status != 200 or b'"error"' not in said, (path, body[:1000], said)
            assert not caplog.records, (path, body[:1000], caplog.text)
    assert answered >= {200, 400}, "both what is right and what is wrong is asked for"
