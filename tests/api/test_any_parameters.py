"""Random values of random types for every parameter of the APIs that generate: none of them is the service's fault."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from hf_transformer.api.openai import chat, completions
from hf_transformer.generation.build import make_generator
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import PARAMETERS
from hf_transformer.types import ModelSpec, TensorSpec
from tests.api.generating import PROMPT, Bench, Exchange, bench
from tests.generation.scripted_models import Response, ScriptedModel, ids, model, settings, spec, text

REQUESTS = 1000
"""Of each model."""
NUMBERS = (
    "0 1 -1 2 3 16 17 127 128 255 256 32767 65536 2147483647 2147483648 -2147483649 4294967296 9223372036854775807 "
    "-9223372036854775808 18446744073709551615 18446744073709551616 0.5 1.0 2.0 -2.0 1e-7 1e-6 0.01 100.0 1e308 -1e308 "
    f"5e-324 1e400 -0.0 NaN 1{'0' * 400}"
).split()
"""As JSON, or nearly so: Python's own writer has no form for all of them."""
STRINGS = [*"0 \ud800 é \U0001f600 5 -1 ٣ 1_0 text auto %s".split(), "", "\0", "a" * 1001, "{{ x }}"]
LITERALS = "null true false [] {}".split()
LITERALS += ["[" * 600 + "]" * 600, f"[{'1,' * 2000}1]", '{"a":' * 400 + "1" + "}" * 400]
USUAL = {
    "stream": ("true", "false"),
    "temperature": ("0", "0.5"),
    "top_p": ("0.5",),
    "top_k": ("1", "1099511627776"),
    "seed": ("-5", "9223372036854775808"),
    "stop": ('"a"', '["a","b"]'),
    "stop_token_ids": ("[5]", "[2,5]"),
    "n": ("1", "2"),
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_completion_tokens", "max_length"), ("5", "200")),
    **dict.fromkeys(("min_tokens", "min_new_tokens"), ("1", "130")),
    "logit_bias": ('{"5":100}',),
    "logprobs": ("true", "0"),
    "echo": ("true",),
    "tools": ('[{"type":"function","function":{"name":"f"}}]',),
    "chat_template_kwargs": ('{"documents":5}',),
}
"""Values that are taken, so that what stands behind them is come to."""
OF_BACKENDS = ("exclude_input_in_output", "bad_words", "end_id", "pad_id", "random_seed", "parameters", "id")
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
    "text": (model(TEXT, [spec("text_output", "BYTES")]), text("paris")),
    "text, whole": (model(TEXT[:1], [spec("text_output", "BYTES")], decoupled=False), text("paris")),
}


@dataclass
class Declared(Bench):
    """A served model with the tensors of ``spec`` and the real generator; each call has the same answer."""

    spec: ModelSpec | None = None
    answer: Response = field(default_factory=dict)

    def build(self, spec: ModelSpec) -> GenerationPipeline:
        assert self.spec is not None
        return self.pipeline(
            make_generator(
                self.spec,
                ScriptedModel(self.answer),
                self.tokenizer,
                settings(max_length=256, pad_id=1),
                executor=self.executor,
                metrics=self.metrics,
            )
        )


class Requests:
    """Bodies that nobody would send, the same ones in each run."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def next(self) -> tuple[str, bytes]:
        """A path and a body."""
        prompt = json.dumps(PROMPT)
        path = self._random.choice(("v1", "generate", "generate_stream", "completions", "chat/completions"))
        if path == "v1":
            given = {"instances": f"[{prompt}]", "parameters": _object(self._given(PARAMETERS))}
            return "/v1/models/gpt2:predict", self._body(given, {})
        if path.startswith("generate"):
            given = self._given((*PARAMETERS, *OF_BACKENDS))
            return f"/v2/models/gpt2/{path}", self._body({"text_input": prompt}, given)
        if path == "completions":
            prompt = self._random.choice((prompt, "[5,6,7]", "[[5],[6,7]]", '["a","b"]'))
            return f"/openai/v1/{path}", self._body({"prompt": prompt}, {**self._given(completions.FIELDS), **NAMED})
        messages = f'[{{"role":"user","content":{self._mostly(prompt)}}}]'
        return f"/openai/v1/{path}", self._body({"messages": messages}, {**self._given(chat.FIELDS), **NAMED})

    def _body(self, mostly: dict[str, str], members: dict[str, str]) -> bytes:
        usual = {name: self._mostly(value) for name, value in mostly.items()}
        return _object({**members, **usual}).encode("utf-8", "surrogatepass")

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
        return f"[{','.join(inside)}]" if kind < 0.9 else _object({self._random.choice(STRINGS): one for one in inside})


NAMED = {"model": '"gpt2"'}


def _object(members: dict[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}"


@pytest.mark.parametrize(("found", "answer"), MODELS.values(), ids=MODELS)
async def test_no_parameter_is_the_service_s_fault(
    found: ModelSpec, answer: Response, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(len(found.inputs))
    caplog.set_level(logging.WARNING)
    answered = set()
    async with bench(Declared, spec=found, answer=answer) as made:
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
