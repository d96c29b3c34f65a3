"""OpenAI's completions, whole and as a stream, over a scripted model; errors of the OpenAI API."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.api.documents import to_base64
from hf_transformer.api.error_forms import render_error
from hf_transformer.api.openai.completions import CompletionAnswer
from hf_transformer.errors import (
    InvalidInput,
    PredictorError,
    PredictorUnavailable,
    RequestError,
    TooLarge,
    UnknownModel,
)
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import Text2TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece, Prompt, Sampling, Step, TokenText
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.request import Context
from tests.api.generating import PROMPT, ServedModel, answer_of, openai_error, served_model

PATH = "/openai/v1/completions"
either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def complete(made: ServedModel, **fields: Any) -> Any:
    return await answer_of(made, PATH, {"model": "gpt2", "prompt": PROMPT, **fields}, x_request_id="7")


async def refused(made: ServedModel, status: int = 400, **fields: Any) -> tuple[str, str | None]:
    return await openai_error(made, PATH, {"model": "gpt2", "prompt": PROMPT, **fields}, status)


async def refused_at(made: ServedModel, param: str, says: str, status: int = 400, **fields: Any) -> str:
    """The message of an error about the field ``param``."""
    message, actual = await refused(made, status, **fields)
    assert actual == param and message.startswith(f"{param}: ") and says in message, (fields, message)
    return message


async def test_the_response_has_the_form_of_kserve_s_example(made: ServedModel) -> None:
    answer = await complete(made, stream=False, max_tokens=30)
    created = answer.pop("created")
    tokens = len(made.tokenizer.encode([PROMPT])[0].ids)
    new = len(made.tokenizer.encode([" paris."])[0].ids)
    assert isinstance(created, int) and created > 1_700_000_000
    assert answer == {
        "id": "cmpl-7",
        "object": "text_completion",
        "model": "gpt2",
        "choices": [{"index": 0, "text": " paris.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": new, "total_tokens": tokens + new},
    }
    assert made.requests("openai", 200) == 1


async def test_a_stream_has_the_text_of_the_whole_response(made: ServedModel) -> None:
    whole = await complete(made)
    *chunks, done = await complete(made, stream=True)
    assert done == "[DONE]" and len(chunks) > 1
    assert {chunk["id"] for chunk in chunks} == {"cmpl-7"}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_each_chunk_has_the_usage_of_its_choice(made: ServedModel) -> None:
    made.generator._script = seeded
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": [[40, 41], [42]], "n": 2, "seed": 7, "stream": True}
    *chunks, last, _ = await complete(made, **asked, stream_options=options)
    ended = {one["index"]: chunk["usage"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]}
    assert [ended[index]["prompt_tokens"] for index in range(4)] == [2, 2, 1, 1]
    assert sum(one["completion_tokens"] for one in ended.values()) == last["usage"]["completion_tokens"]
    assert all(chunk["usage"]["completion_tokens"] <= 8 for chunk in chunks)


@pytest.mark.parametrize("include", [False, None])
async def test_chunks_have_no_usage_without_include_usage(made: ServedModel, include: bool | None) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    *chunks, done = await complete(made, stream=True, stream_options=options)
    assert done == "[DONE]" and all("usage" not in chunk for chunk in chunks)


def text_of(found: Any, index: int = 0) -> str:
    """The text of one choice, whole or in chunks."""
    chunks = found[:-1] if isinstance(found, list) else [found]
    return "".join(one["text"] for chunk in chunks for one in chunk["choices"] if one["index"] == index)


def seeded(prompt: Prompt, sampling: Sampling) -> list[Step]:
    """A script whose texts have their prompt's last id and their seed."""
    return [Step(text=f"{prompt.ids[-1]}"), Step(text=f" {sampling.seed}"), Step(finish="stop")]


@either_way
async def test_all_choices_of_all_prompts_are_numbered(made: ServedModel, stream: bool) -> None:
    made.generator._script = seeded
    found = await complete(made, prompt=[[40, 41], [42]], n=2, seed=7, stream=stream)
    assert [text_of(found, index) for index in range(4)] == ["41 7", "41 8", "42 7", "42 8"]
    assert [prompt.ids for prompt, _ in made.generator.asked] == [(40, 41), (40, 41), (42,), (42,)]


async def test_the_model_gets_all_sampling_fields(made: ServedModel) -> None:
    await complete(
        made,
        **{"max_tokens": 3, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 9},
        **{"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "ignore_eos": True},
        **{"logit_bias": {"5": -100, "6": 1.5}, "stop": ["a", "b"], "user": "me", "best_of": 1},
        stop_token_ids=[7, 0],
    )
    [(_, sampling)] = made.generator.asked
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (3, 2, 9)
    assert (sampling.greedy, sampling.temperature, sampling.top_p) == (False, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.ignore_eos) == (7, 0.1, True)
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    assert penalties == (0.5, -0.5, 1.1)
    assert sampling.logit_bias == {5: -100.0, 6: 1.5}
    assert sampling.stop == ("a", "b") and sampling.stop_token_ids == (7, 0)


@pytest.mark.parametrize(("most", "tokens"), [(None, 16), (8, 8)])
async def test_the_defaults_are_openai_s(most: int | None, tokens: int) -> None:
    settings = GenerationSettings(max_length=5, temperature=0.2, top_k=3, do_sample=False, max_new_tokens=most)
    async with served_model(settings=settings) as made:
        await complete(made)
        [(_, sampling)] = made.generator.asked
        neutral = Sampling()
        for name in ("greedy", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "logprobs"):
            assert getattr(sampling, name) == getattr(neutral, name), name
        assert sampling.max_tokens == tokens
    async with served_model(supported_fields=["greedy"]) as made:
        await complete(made, temperature=0, top_p=0.5, seed=3)
        [(_, sampling)] = made.generator.asked
        assert sampling.greedy and (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, None)


async def logprobs_and_text(made: ServedModel, **fields: Any) -> tuple[str, dict[str, list[Any]]]:
    """The text of the only choice, and the logprobs of all its tokens."""
    answer = await complete(made, **fields)
    logprobs = dict[str, list[Any]](tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for chunk in answer[:-1] if fields["stream"] else [answer]:
        for name, values in chunk["choices"][0]["logprobs"].items():
            logprobs[name] += values
    return text_of(answer), logprobs


@either_way
async def test_logprobs(made: ServedModel, stream: bool) -> None:
    text, logprobs = await logprobs_and_text(made, logprobs=2, stream=stream)
    tokens = logprobs["tokens"]
    assert "".join(tokens) == text == " paris." and len(tokens) > 1
    assert logprobs["token_logprobs"] == [-0.5] * len(tokens)
    assert logprobs["text_offset"] == [len("".join(tokens[:number])) for number in range(len(tokens))]
    assert all(
        top[token] == -0.5 and len(top) == 2 for token, top in zip(tokens, logprobs["top_logprobs"], strict=True)
    )
    chosen = (await complete(made, logprobs=0))["choices"][0]["logprobs"]
    assert "top_logprobs" not in chosen and set(chosen["token_logprobs"]) == {-0.5}


@either_way
async def test_parts_of_a_character_are_named_by_bytes_at_its_offset(stream: bool) -> None:
    async with served_model(text=" 🇴. It") as made:
        text, logprobs = await logprobs_and_text(made, logprobs=1, stream=stream, stop=". ", max_tokens=50)
        assert text == " 🇴"
        assert logprobs["tokens"][-4:] == [r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x87", r"bytes:\xb4"]
        assert logprobs["top_logprobs"] == [{token: -0.5} for token in logprobs["tokens"]]
        assert logprobs["text_offset"] == [0, 1, 1, 1, 1]


def logprobs_of(top: int, text: str, *tokens: TokenText) -> Any:
    """The log probabilities of a choice of these tokens."""
    request = GenerationRequest(prompts=[""], sampling=Sampling(logprobs=top))
    answer = CompletionAnswer(cast(GenerativeModel, SimpleNamespace(name="m")), request, Context("7", {}), "none")
    choice: Any = answer.choice(0, Piece(0, 0, text, list(tokens), finish="stop"))
    return choice["logprobs"]


async def test_alternatives_include_the_chosen_token() -> None:
    """OpenAI: "there may be up to logprobs+1 elements in the response"; of two with one text the likelier counts."""
    other, same = TokenText("x", b"x", -0.1), TokenText("y", b"y", -0.2)
    chosen = TokenText("z", b"z", -0.5, (other, same, TokenText("y", b"y", -0.3)))
    impossible = TokenText("x", b"x", float("-inf"))
    assert logprobs_of(3, "z", chosen, impossible)["top_logprobs"] == [
        {"x": -0.1, "y": -0.2, "z": -0.5},
        {"x": -9999.0},
    ]
    part = TokenText("\ufffd", b"\xf0", -0.1)
    for raw, name in (
        (b" \xe2\x80", r"bytes: \xe2\x80"),
        (b"\n'\xe2", r"bytes:\n'\xe2"),
        ("\ufffd".encode(), "\ufffd"),
    ):
        chosen = TokenText(raw.decode(errors="replace"), raw, -0.5, (part,))
        found = logprobs_of(1, "\ufffd", chosen)
        assert found["tokens"] == [name], "a token that is no character is given as bytes"
        assert found["top_logprobs"] == [{r"bytes:\xf0": -0.1, name: -0.5}]


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"best_of": 3}, "best_of", "expected 1, the value of n, got 3"),
    ({"temperature": 5e-324}, "temperature", "expected 0, or a number from 1e-06 to 100, got 4.94066e-324"),
    ({"max_tokens": 0}, "max_tokens", "expected 1 or more, got 0"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "expected at most 3 (max_tokens), got 9"),
    ({"min_tokens": 99}, "min_tokens", "expected at most 16 (the default number of new tokens), got 99"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "expected no value with a stream; leave out either"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "expected token ids from 0 to 767 as keys, got 'x'"),
    ({"stream_options": {}}, "stream_options", "expected no options without a stream"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "expected one of include_usage"),
    ({"prompt": []}, "prompt", "expected a string, a list of strings"),
    ({"prompt": ["a", 1]}, "prompt[1]", "expected a string or a list of token ids"),
    ({"prompt": [1, 4000]}, "prompt", "expected token ids from 0 to 767, got 4000 at index 1"),
    ({"prompt": ""}, "prompt", "expected a prompt of at least one token, got none"),
    ({"model": "bert"}, "model", "expected a served model (gpt2), got 'bert'"),
]
TOO_LARGE: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 13}, "prompt", "expected at most 12 texts in a request (--max_sequences), got 13 (1 with n=13)"),
    ({"max_tokens": 9}, "max_tokens", "expected at most 8 new tokens (--max_new_tokens), got 9"),
    # Lists are counted before their elements are read.
    ({"stop": [1] * 17}, "stop", "expected at most 16 strings, got 17"),
    (
        {"prompt": [None] * 13},
        "prompt",
        "expected at most 12 in a request (--max_instances, --max_sequences), got 13",
    ),
]


async def test_errors_name_the_field_and_quote_no_prompt(made: ServedModel) -> None:
    for fields, param, says in INVALID:
        await refused_at(made, param, says, 404 if fields.get("model") else 400, **fields)
    assert made.generator.asked == []
    async with served_model(settings=GenerationSettings(max_new_tokens=8)) as made:
        for fields, param, says in TOO_LARGE:
            assert "word word" not in await refused_at(made, param, says, 413, **fields), fields
        for prompt in ([5] * 255, [[5] * 255]):
            await complete(made, prompt=prompt)


@either_way
async def test_an_unsupported_field_is_named(stream: bool) -> None:
    async with served_model(supported_fields=["temperature"]) as made:
        await complete(made, temperature=0.5, n=2, stop="x")
        await refused_at(
            made,
            "stop_token_ids",
            "expected a parameter that this tokens model supports; leave it out",
            stop_token_ids=[5],
            stream=stream,
        )
        await refused_at(
            made, "top_k", "expected a parameter that this tokens model supports; leave it out", top_k=5, stream=stream
        )


async def test_an_error_has_its_status_until_there_is_text() -> None:
    async with served_model(fails=PredictorUnavailable("it is down")) as made:
        for stream in (False, True):
            assert await refused(made, 503, stream=stream) == ("it is down", None)
        assert made.requests("openai", 503) == 2
    async with served_model(fails=PredictorError("it broke"), after=1) as made:
        *chunks, last = await complete(made, stream=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) != ""
        assert last == {"error": {"message": "it broke", "type": "server_error", "param": None, "code": None}}
        assert made.requests("openai", 502) == 1
        assert await refused(made, 502) == ("it broke", None)


async def test_echo_puts_the_prompt_first(made: ServedModel) -> None:
    for stream in (False, True):
        assert text_of(await complete(made, echo=True, stream=stream)) == f"{PROMPT} paris."
    async with served_model(task=Text2TextGeneration) as made:
        assert text_of(await complete(made)) == " paris."
        await refused_at(made, "echo", "text2text_generation returns the new text only", echo=True)


@either_way
@pytest.mark.parametrize("prompt", [PROMPT, "ids"])
async def test_echo_with_logprobs_has_the_prompt_s_tokens_first(made: ServedModel, prompt: str, stream: bool) -> None:
    ids = made.tokenizer.encode([PROMPT])[0].ids
    new = len(made.tokenizer.encode([" paris."])[0].ids)
    for count, text in ((1, " par"), (0, ""), (50, " paris.")):
        asked = {"prompt": ids if prompt == "ids" else prompt, "max_tokens": count}
        answered, logprobs = await logprobs_and_text(made, **asked, logprobs=2, echo=True, stream=stream)
        assert (
            answered.startswith(PROMPT)
            and len(answered) >= len(PROMPT + text[:2])
            and (PROMPT + text).startswith(answered)
        )
        values = logprobs["token_logprobs"]
        assert values == [None, *[-1.5] * (len(ids) - 1), *[-0.5] * min(count, new)]
        assert [
            top and top[name] for name, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
        ] == values
        offsets = [*logprobs["text_offset"], len(answered)]
        assert [answered[start:end] for start, end in pairwise(offsets)] == logprobs["tokens"]
    answer = await complete(made, prompt=[ids, ids[:2]], max_tokens=0, echo=True, n=2, best_of=2, logprobs=0)
    assert [one["text"] for one in answer["choices"]] == [PROMPT] * 2 + [made.tokenizer.decode(ids[:2])] * 2
    assert [len(one["logprobs"]["tokens"]) for one in answer["choices"]] == [len(ids)] * 2 + [2, 2]
    assert {one["finish_reason"] for one in answer["choices"]} == {"length"}
    assert "top_logprobs" not in answer["choices"][0]["logprobs"]
    assert answer["usage"] == {name: len(ids) + 2 for name in ("prompt_tokens", "total_tokens")} | {
        "completion_tokens": 0
    }


async def test_prompt_logprobs_have_the_form_of_vllm_s(made: ServedModel) -> None:
    ids = made.tokenizer.encode([PROMPT])[0].ids
    of_prompt_token = {"logprob": -1.5, "rank": 3, "decoded_token": " capital"}
    answer = await complete(made, prompt_logprobs=1, logprobs=0)
    [choice] = answer["choices"]
    scores = choice["prompt_logprobs"]
    assert scores[0] is None and len(scores) == len(ids)
    likeliest = {"logprob": -2.5, "rank": 1, "decoded_token": made.tokenizer.decode((5,))}
    assert [list(one) for one in scores[1:]] == [[str(token), "5"] for token in ids[1:]]
    assert all(one["5"] == likeliest for one in scores[1:])
    texts = [one[str(token)]["decoded_token"] for token, one in zip(ids[1:], scores[1:], strict=True)]
    assert PROMPT.endswith("".join(texts)) and scores[1][str(ids[1])] == of_prompt_token | {"decoded_token": texts[0]}
    assert set(choice["logprobs"]["token_logprobs"]) == {-0.5}, "without echo the tokens are the new ones"
    echoed = await complete(made, prompt_logprobs=1, echo=True, max_tokens=0)
    assert echoed["choices"][0]["logprobs"] is None and echoed["choices"][0]["prompt_logprobs"] == scores
    assert "prompt_logprobs" not in (await complete(made, echo=True, logprobs=1))["choices"][0]


async def test_a_model_without_log_probabilities_of_prompts_says_so() -> None:
    async with served_model(supported_fields=["logprobs"]) as made:
        for param, fields in (("prompt_logprobs", {}), ("logprobs", {"echo": True})):
            says = "model supports; the model returns no log probabilities of prompts"
            await refused_at(made, param, says, **{param: 0}, **fields)
        await complete(made, echo=True, max_tokens=0)
        assert made.generator.asked == []


def test_base64_is_little_endian_float32() -> None:
    found = base64.b64decode(to_base64(np.array([1, 9, -2, 9], ">f8")[::2]))
    assert found.hex() == "0000803f" + "000000c0"


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidInput(("input", 3), "a string"), 400, "invalid_request_error", "input[3]", None),
        (InvalidInput("body", "JSON"), 400, "invalid_request_error", None, None),
        (InvalidInput("", "a generative model"), 400, "invalid_request_error", None, None),
        (RequestError("token: missing"), 401, "invalid_request_error", None, None),
        (UnknownModel("model", "a served model"), 404, "invalid_request_error", "model", "model_not_found"),
        (RequestError("GET /openai/v1/x: Not Found"), 404, "invalid_request_error", None, None),
        (RequestError("GET /openai/v1/x: Not Allowed"), 405, "invalid_request_error", None, "method_not_supported"),
        (TooLarge("input", "at most 8 texts"), 413, "invalid_request_error", "input", None),
        (RequestError("9 requests are in flight"), 429, "requests", None, "rate_limit_exceeded"),
        (PredictorError("onnx: the predictor's own words"), 502, "server_error", None, None),
    ],
    ids=lambda value: value if isinstance(value, int) else "",
)
def test_error_bodies_have_param_and_code(
    error: RequestError, status: int, kind: str, param: str | None, code: str | None
) -> None:
    body = json.loads(render_error(error, status))
    assert body == {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
