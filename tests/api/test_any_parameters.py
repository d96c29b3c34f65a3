"""Random values of random types for every parameter of the generative APIs: none causes a server error."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from hf_transformer.api import chat_completions
from hf_transformer.api.openai import completions, responses
from hf_transformer.generation.build import make_generator
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import TextGeneration
from hf_transformer.predictor.base import Outputs
from hf_transformer.types.tensors import ModelSpec
from tests.api.generating import PROMPT, Exchange, ServedModel, served_model
from tests.generation.scripted_models import ScriptedLLM, ids, model, settings, spec, text

REQUESTS = 500
"""Requests to each model."""
NUMBERS = (
    "0 1 -1 2 3 16 17 127 128 255 256 32767 65536 2147483647 2147483648 -2147483649 4294967296 9223372036854775807 "
    "-9223372036854775808 18446744073709551615 18446744073709551616 0.5 1.0 2.0 -2.0 1e-7 1e-6 0.01 100.0 1e308 -1e308 "
    f"5e-324 1e400 -0.0 NaN 1{'0' * 400}"
).split()
"""Numbers as JSON text, some invalid: Python's serializer can't write all of them."""
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
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens", "max_length"), ("5", "200")
    ),
    **dict.fromkeys(("min_tokens", "min_new_tokens"), ("1", "130")),
    "logit_bias": ('{"5":100}',),
    "logprobs": ("true", "0"),
    "echo": ("true",),
    "tools": (
        '[{"type":"function","name":"f"}]',
        '[{"type":"function","function":{"name":"f"}}]',
        '[{"type":"function","function":{"name":"f","strict":true,"parameters":{"properties":{"a":{"const":1}}}}}]',
    ),
    "include": ('["message.output_text.logprobs"]',),
    "text": (
        '{"format":{"type":"json_object"},"verbosity":"medium"}',
        '{"format":{"type":"json_schema","schema":{"type":"array"}}}',
    ),
    "tool_choice": ('{"type":"function","name":"f"}', '"required"', '{"type":"function","function":{"name":"f"}}'),
    "response_format": ('{"type":"json_object"}', '{"type":"json_schema","json_schema":{"schema":{"type":"array"}}}'),
    "structured_outputs": (
        '{"regex":"[a-z]"}',
        '{"json":{}}',
        r'"{\"choice\":[\"a\"]}"',
        '{"grammar":"root ::= root"}',
    ),
    "chat_template_kwargs": ('{"documents":5}',),
}
"""Valid values, so that requests also reach the code after validation."""
OF_BACKENDS = ("exclude_input_in_output", "bad_words", "end_id", "pad_id", "random_seed", "parameters", "id")


SAMPLED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
WHOLE = ("end_id", "pad_id", "top_k", "min_length", "seed", "return_log_probs")


def tokens(whole: str, fraction: str, *, decoupled: bool) -> ModelSpec:
    inputs = [spec("input_ids", "INT32", -1), spec("input_lengths"), spec("request_output_len", whole)]
    inputs += [spec(name, whole, optional=True) for name in WHOLE]
    inputs += [spec(name, fraction, optional=True) for name in SAMPLED]
    outputs = [spec(name, "INT32", -1) for name in ("output_ids", "sequence_length")]
    return model(inputs, [*outputs, spec("output_log_probs", "FP32", -1)], decoupled=decoupled)


TEXT = [spec("text_input", "BYTES"), spec("sampling_parameters", "BYTES", optional=True)]
IDS = ids(5, 6, 7, scores=[-1.0, -2.0, -3.0])
MODELS: dict[str, tuple[ModelSpec, Outputs]] = {
    "tokens, wide": (tokens("INT64", "FP16", decoupled=True), IDS),
    "tokens, unsigned": (tokens("UINT32", "BF16", decoupled=False), IDS),
    "text": (model(TEXT, [spec("text_output", "BYTES")]), text("paris")),
    "text, whole": (model(TEXT[:1], [spec("text_output", "BYTES")], decoupled=False), text("paris")),
}


@dataclass
class DeclaredModel(ServedModel):
    """A served model with the tensors of ``spec`` and the real generator; each call has the same answer."""

    spec: ModelSpec | None = None
    answer: Outputs = field(default_factory=dict)

    def build(self, spec: ModelSpec) -> GenerationPipeline:
        assert self.spec is not None
        return self.pipeline(
            make_generator(
                self.spec,
                ScriptedLLM(self.answer),
                self.tokenizer,
                settings(max_length=256, pad_id=1),
                executor=self.executor,
                metrics=self.metrics.of("gpt2"),
            )
        )


def object_of(members: dict[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in members.items())}}}"


def anything(random: Random, depth: int = 0) -> str:
    """Any value, as JSON."""
    kind = random.random()
    if kind < 0.4:
        return random.choice(NUMBERS)
    if kind < 0.6:
        return json.dumps(random.choice(STRINGS), ensure_ascii=False)
    if kind < 0.8 or depth > 2:
        return random.choice(LITERALS)
    inside = [anything(random, depth + 1) for _ in range(random.choice((1, 2, 17)))]
    return f"[{','.join(inside)}]" if kind < 0.9 else object_of({random.choice(STRINGS): one for one in inside})


def request(random: Random) -> tuple[str, bytes]:
    """A path, and a body with random fields."""

    def parameters(names: Any) -> dict[str, str]:
        """A few parameters, about half of them with valid values."""
        return {
            name: random.choice(USUAL[name]) if name in USUAL and random.random() < 0.6 else anything(random)
            for name in random.sample(names, random.randint(0, 4))
        }

    prompt = json.dumps(PROMPT)
    match random.choice(("v1", "generate", "generate_stream", "completions", "chat/completions", "responses")):
        case "v1":
            path, more = "/v1/models/gpt2:predict", dict[str, str]()
            usual = {"instances": f"[{prompt}]", "parameters": object_of(parameters(TextGeneration.parameters))}
        case "completions" as route:
            path, more = f"/openai/v1/{route}", parameters(completions.FORM.names)
            usual = {"prompt": random.choice((prompt, "[5,6,7]", "[[5],[6,7]]", '["a","b"]'))}
        case "chat/completions" as route:
            path, more = f"/openai/v1/{route}", parameters(chat_completions.FORM.names)
            usual = {"messages": f'[{{"role":"user","content":{prompt}}}]'}
        case "responses" as route:
            path, more = f"/openai/v1/{route}", parameters(responses.FORM.names)
            usual = {"input": random.choice((prompt, f'[{{"role":"user","content":{prompt}}}]'))}
        case route:
            path, more = f"/v2/models/gpt2/{route}", parameters((*TextGeneration.parameters, *OF_BACKENDS))
            usual = {"text_input": prompt}
    usual = {name: value if random.random() < 0.95 else anything(random) for name, value in usual.items()}
    named = {"model": '"gpt2"'} if "openai" in path else {}
    return path, object_of({**more, **named, **usual}).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(("model_spec", "answer"), MODELS.values(), ids=MODELS)
async def test_random_parameters_never_cause_a_server_error(
    model_spec: ModelSpec, answer: Outputs, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(len(model_spec.inputs))  # the same requests in each run
    caplog.set_level(logging.WARNING)
    answered = set()
    async with served_model(DeclaredModel, spec=model_spec, answer=answer) as made:
        caplog.clear()  # drop records of the start
        for _ in range(REQUESTS):
            path, body = request(random)
            async with Exchange(made.app, path, body) as exchange:
                status, _ = await exchange.head()
                content = await exchange.rest()
            answered.add(status)
            assert status < 500, (path, body[:1000], content)
            failed = b'"error"' in content.replace(b'"error":null', b"")
            assert status != 200 or not failed, (path, body[:1000], content)
            assert not caplog.records, (path, body[:1000], caplog.text)
    assert answered >= {200, 400}, "requests are both valid and invalid"
