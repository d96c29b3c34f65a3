"""OpenAI's completions and their logprobs, whole and as a stream, over a scripted model; and the API's errors."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hf_transformer.api.health import hint_for
from hf_transformer.api.openai import embeddings
from hf_transformer.api.openai.completions import CompletionAnswer
from hf_transformer.api.openai.fields import render_error
from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import Text2TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece, Prompt, Sampling, Step, TokenText
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.request import Context
from tests.api.generating import PROMPT, Bench, Exchange, answer_of, bench, openai_error, post

PATH = "/openai/v1/completions"
either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def complete(made: Bench, **fields: Any) -> Any:
    return await answer_of(made, PATH, {"model": "gpt2", "prompt": PROMPT, **fields}, x_request_id="7")


async def refused(made: Bench, status: int = 400, **fields: Any) -> tuple[str, str | None]:
    return await openai_error(made, PATH, {"model": "gpt2", "prompt": PROMPT, **fields}, status)


async def test_the_shape_is_that_of_kserve_s_example(made: Bench) -> None:
    found = await complete(made, stream=False, max_tokens=30)
    created = found.pop("created")
    tokens = len(made.tokenizer.encode([PROMPT])[0].ids)
    new = len(made.tokenizer.encode([" paris."])[0].ids)
    assert isinstance(created, int) and created > 1_700_000_000
    assert found == {
        "id": "cmpl-7",
        "object": "text_completion",
        "model": "gpt2",
        "choices": [{"index": 0, "text": " paris.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": new, "total_tokens": tokens + new},
    }
    assert made.requests("openai", 200) == 1


async def test_a_stream_is_the_same_in_pieces(made: Bench) -> None:
    whole = await complete(made)
    *chunks, done = await complete(made, stream=True)
    assert done == "[DONE]" and len(chunks) > 1
    assert {chunk["id"] for chunk in chunks} == {"cmpl-7"}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_each_chunk_has_the_usage_of_its_own_choice(made: Bench) -> None:
    made.generator._script = seeded
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": [[40, 41], [42]], "n": 2, "seed": 7, "stream": True}
    *chunks, last, _ = await complete(made, **asked, stream_options=options)
    ended = {one["index"]: chunk["usage"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]}
    assert [ended[index]["prompt_tokens"] for index in range(4)] == [2, 2, 1, 1]
    assert sum(one["completion_tokens"] for one in ended.values()) == last["usage"]["completion_tokens"]
    assert all(chunk["usage"]["completion_tokens"] <= 8 for chunk in chunks)


@pytest.mark.parametrize("include", [False, None])
async def test_no_chunk_has_the_usage_where_it_is_not_included(made: Bench, include: bool | None) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    *chunks, done = await complete(made, stream=True, stream_options=options)
    assert done == "[DONE]" and all("usage" not in chunk for chunk in chunks)


def text_of(found: Any, index: int = 0) -> str:
    """The text of one choice, whole or in chunks."""
    chunks = found[:-1] if isinstance(found, list) else [found]
    return "".join(one["text"] for chunk in chunks for one in chunk["choices"] if one["index"] == index)


def seeded(prompt: Prompt, sampling: Sampling) -> list[Step]:
    """Tells the texts of a prompt apart: each has the next seed."""
    return [Step(text=f"{prompt.ids[-1]}"), Step(text=f" {sampling.seed}"), Step(finish="stop")]


@either_way
async def test_all_choices_of_all_prompts_are_numbered(made: Bench, stream: bool) -> None:
    made.generator._script = seeded
    found = await complete(made, prompt=[[40, 41], [42]], n=2, seed=7, stream=stream)
    assert [text_of(found, index) for index in range(4)] == ["41 7", "41 8", "42 7", "42 8"]
    assert [prompt.ids for prompt, _ in made.generator.asked] == [(40, 41), (40, 41), (42,), (42,)]


async def test_the_fields_reach_the_model(made: Bench) -> None:
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
async def test_the_defaults_are_openai_s_and_not_the_service_s(most: int | None, tokens: int) -> None:
    settings = GenerationSettings(max_length=5, temperature=0.2, top_k=3, do_sample=False, max_new_tokens=most)
    async with bench(settings=settings) as made:
        await complete(made)
        [(_, sampling)] = made.generator.asked
        neutral = Sampling()
        for name in ("greedy", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "logprobs"):
            assert getattr(sampling, name) == getattr(neutral, name), name
        assert sampling.max_tokens == tokens
    async with bench(supported_fields=["greedy"]) as made:
        await complete(made, temperature=0, top_p=0.5, seed=3)
        [(_, sampling)] = made.generator.asked
        assert sampling.greedy and (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, None)


async def told_of(made: Bench, **fields: Any) -> tuple[str, dict[str, list[Any]]]:
    """The text of the only choice, and what is told of all its tokens."""
    found = await complete(made, **fields)
    told = dict[str, list[Any]](tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for chunk in found[:-1] if fields["stream"] else [found]:
        for name, values in chunk["choices"][0]["logprobs"].items():
            told[name] += values
    return text_of(found), told


@either_way
async def test_logprobs(made: Bench, stream: bool) -> None:
    text, told = await told_of(made, logprobs=2, stream=stream)
    tokens = told["tokens"]
    assert "".join(tokens) == text == " paris." and len(tokens) > 1
    assert told["token_logprobs"] == [-0.5] * len(tokens)
    assert told["text_offset"] == [len("".join(tokens[:number])) for number in range(len(tokens))]
    assert all(top[token] == -0.5 and len(top) == 2 for token, top in zip(tokens, told["top_logprobs"], strict=True))
    chosen = (await complete(made, logprobs=0))["choices"][0]["logprobs"]
    assert "top_logprobs" not in chosen and set(chosen["token_logprobs"]) == {-0.5}


@either_way
async def test_parts_of_a_character_are_told_in_bytes_and_stand_where_it_does(stream: bool) -> None:
    async with bench(text=" 🇴. It") as made:
        text, told = await told_of(made, logprobs=1, stream=stream, stop=". ", max_tokens=50)
        assert text == " 🇴"
        assert told["tokens"][-4:] == [r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x87", r"bytes:\xb4"]
        assert told["top_logprobs"] == [{token: -0.5} for token in told["tokens"]]
        assert told["text_offset"] == [0, 1, 1, 1, 1]


def logprobs_of(top: int, text: str, *tokens: TokenText) -> Any:
    """The log probabilities of a choice of these tokens."""
    request = GenerationRequest(prompts=[""], sampling=Sampling(logprobs=top))
    answer = CompletionAnswer(cast(GenerativeModel, SimpleNamespace(name="m")), request, Context("7", {}), "none")
    choice: Any = answer.choice(0, Piece(0, 0, text, list(tokens), finish="stop"))
    return choice["logprobs"]


async def test_the_chosen_token_is_told_beside_likelier_ones() -> None:
    """OpenAI: "there may be up to logprobs+1 elements in the response"; of two that look alike the likelier counts."""
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


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 3}, "best_of: 3, expected as many as n, 1"),
    ({"temperature": -1}, "temperature: -1 is out of range, expected 0 to 100"),
    ({"temperature": 5e-324}, "temperature: 4.94066e-324 is out of range, expected 0, or 1e-06"),
    ({"temperature": "hot"}, "temperature: expected a number, got a string"),
    ({"top_p": 0}, "top_p: 0 is out of range, expected 1e-06 to 1"),
    ({"max_tokens": 0}, "max_tokens: 0 is too small, expected 1 or more"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens: 9, but max_tokens allows 3"),
    ({"min_tokens": 99}, "min_tokens: 99, but there may be 16 where nothing says how many"),
    ({"stop": [""]}, "stop: string 0 is empty"),
    ({"stop": 3}, "stop: expected a string or a list of strings, got a number"),
    ({"stop_token_ids": 5}, "stop_token_ids: expected a list of token ids, got a number"),
    ({"stop_token_ids": [5, True]}, "stop_token_ids: token 1 is a boolean, expected 0 to 767"),
    ({"suffix": "x"}, "suffix: text in front of something else can't be generated"),
    ({"echo": True, "logprobs": 1}, "logprobs: those of the prompt are not known"),
    ({"logit_bias": {"x": 1}}, "logit_bias: 'x' is no token's id, expected 0 to 767"),
    ({"logit_bias": {"5": 200}}, "logit_bias: token 5 has 200, expected -100 to 100"),
    ({"stream_options": {}}, "stream_options: only a stream has them"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x: unknown"),
    ({"prompt": []}, "prompt: expected a string, a list of strings"),
    ({"prompt": ["a", 1]}, "prompt[1]: expected a string or a list of token ids"),
    ({"prompt": [1, 4000]}, "prompt: token 1 is 4000, expected 0 to 767"),
    ({"prompt": ""}, "prompt: the prompt has no tokens"),
    ({"num_beams": 4}, "num_beams: unknown, expected some of"),
    ({"model": "bert"}, "model: 'bert' is not served here"),
]
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"n": 200}, "n: 200, at most 128"),
    ({"n": 13}, "prompt: 1 with 13 texts each (n) are 13, at most 12"),
    ({"logprobs": 21}, "logprobs: 21, at most 20"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids: 129 tokens, at most 128"),
    ({"stop": "a" * 1001}, "stop: string 0 has 1001 characters, at most 1000"),
    ({"prompt": "word " * 300}, "prompt: the prompt has "),
    ({"prompt": [5] * 256}, "prompt: the prompt has 256 tokens, and the model takes 256, which leaves none for new"),
    ({"max_tokens": 9}, "max_tokens: 9, at most 8 new tokens are given (--max_new_tokens)"),
    # Whatever is in these lists.
    ({"stop": [1] * 17}, "stop: 17 strings, at most 16 are taken"),
    ({"prompt": [[5] * 256 + ["a"]]}, "prompt[0]: the prompt has 257 tokens, and"),
    ({"prompt": [None] * 101}, "prompt: 101 in a request, at most 100 are taken"),
]


async def test_what_is_wrong_or_too_much_is_named(made: Bench) -> None:
    for fields, says in WRONG:
        message, param = await refused(made, 404 if fields.get("model") else 400, **fields)
        assert message.startswith(says) and param == says.partition(":")[0], (fields, message)
    assert made.generator.asked == []
    async with bench(settings=GenerationSettings(max_new_tokens=8)) as made:
        for fields, says in TOO_MUCH:
            message, _ = await refused(made, 413, **fields)
            assert message.startswith(says) and "word word" not in message, (fields, message)
        for prompt in ([5] * 255, [[5] * 255]):
            await complete(made, prompt=prompt)


@either_way
async def test_what_the_model_can_not_honour_is_refused_by_its_name(stream: bool) -> None:
    async with bench(supported_fields=["temperature"]) as made:
        await complete(made, temperature=0.5, n=2, stop="x")
        _, param = await refused(made, stop_token_ids=[5], stream=stream)
        assert param == "stop_token_ids"
        message, param = await refused(made, top_k=5, stream=stream)
        assert message == "top_k: this model is a tokens model, which can't honour it; leave it out"
        assert param == "top_k"


async def test_errors_are_real_statuses_until_there_is_text() -> None:
    async with bench(fails=PredictorUnavailable("it is down")) as made:
        for stream in (False, True):
            assert await refused(made, 503, stream=stream) == ("it is down", None)
        assert made.requests("openai", 503) == 2
    async with bench(fails=PredictorError("it broke"), after=1) as made:
        *chunks, last = await complete(made, stream=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) != ""
        assert last == {"error": {"message": "it broke", "type": "server_error", "param": None, "code": None}}
        assert made.requests("openai", 502) == 1
        assert await refused(made, 502) == ("it broke", None)


async def test_echo(made: Bench) -> None:
    for stream in (False, True):
        assert text_of(await complete(made, echo=True, stream=stream)) == f"{PROMPT} paris."
    async with bench(task=Text2TextGeneration) as made:
        assert text_of(await complete(made)) == " paris."
        message, param = await refused(made, echo=True)
        assert message.startswith("echo: text2text_generation gives the new text alone") and param == "echo"


# Errors, and hints for requests to other routes and servers, whatever the model is


BASE = "the base_url of an OpenAI client is http://HOST:PORT"
RESPONSES = (
    "Not Found; the Responses API is not served; /openai/v1/chat/completions answers chats, which clients have a "
    "setting for"
)
VECTORS = "Not Found; /openai/v1/embeddings gives the vectors of texts"
CHATS = "Not Found; /openai/v1/chat/completions answers chats"
TEXTS = "Not Found; /openai/v1/completions and /v2/models/NAME/generate write texts"
PREDICTIONS = "/v1/models/NAME:predict and /v2/models/NAME/infer give predictions"
SCORES = "Not Found; /openai/v1/rerank gives the scores of documents for a query"


def expected(route: str, base: str = "/openai/v1") -> str:
    return f"Not Found, expected {base}/{route}: {BASE}{base}"


@pytest.mark.parametrize(
    ("prefix", "path", "status", "found"),
    [
        ("openai", "/v1/completions", 404, expected("completions")),
        ("openai", "/chat/completions", 404, expected("chat/completions")),
        ("openai", "/v1/rerank", 404, expected("rerank")),
        ("openai", "/openai/v1/v1/chat/completions", 404, expected("chat/completions")),
        ("openai", "/openai/v1/embeddings/", 404, expected("embeddings")),
        ("/a/b/", "/v1/completions", 404, expected("completions", "/a/b/v1")),
        ("", "/openai/v1/completions", 404, expected("completions", "/v1")),
        *[("openai", path, 404, SCORES) for path in ("/v1/score", "/score", "/openai/v1/score")],
        *[("openai", path, 404, SCORES) for path in ("/v2/rerank", "/rerank", "/openai/v2/rerank")],
        *[("openai", path, 404, RESPONSES) for path in ("/v1/responses", "/openai/v1/responses", "/responses")],
        *[
            ("openai", path, 404, VECTORS)
            for path in ("/embed", "/embed_all", "/v2/embed", "/api/embed", "/openai/v1/embed")
        ],
        *[("openai", path, 404, CHATS) for path in ("/v2/chat", "/api/chat")],
        *[("openai", path, 404, TEXTS) for path in ("/generate", "/generate_stream", "/api/generate")],
        *[("openai", path, 404, f"Not Found; {PREDICTIONS}") for path in ("/predict", "/invocations", "/v1/classify")],
        # Of others nothing is said, and models may be called as routes.
        *[("openai", path, 404, None) for path in ("/completions_", "/v1/models/m", "/v1/explain", "/v3")],
        *[("openai", path, 404, None) for path in ("/v1/models/responses", "/v2/models/m/embed", "/embedded")],
        *[("openai", path, 404, None) for path in ("/v1/models/a/b:explain", "/v1/models/m/rerank")],
        ("openai", "/v2/models/m/score", 404, None),
        ("openai", "/v1/models/rerank", 405, None),
    ],
)
def test_hints(prefix: str, path: str, status: int, found: str | None) -> None:
    hint = hint_for(path, status, prefix)
    assert (None if hint is None else hint[:2]) == (None if found is None else (404, found))


def test_a_post_to_the_root() -> None:
    """text-embeddings-inference and huggingface_hub's client post there."""
    for prefix in ("openai", ""):
        hint = hint_for("/", 405, prefix)
        assert hint is not None and hint[:2] == (405, f"Method Not Allowed; {PREDICTIONS}")
    assert hint_for("/openai/", 404, "openai") is None


async def test_a_post_to_the_root_is_told_the_methods(made: Bench) -> None:
    async with Exchange(made.app, "/", {}) as exchange:
        status, headers = await exchange.head()
        assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/v1/models/m:explain", "/v2/models/m/explain", "/v2/models/m/versions/1/explain"])
def test_explanations_are_not_implemented_as_with_kserve(path: str) -> None:
    hint = hint_for(path, 404, "openai")
    assert hint is not None and hint[0] == 501 and hint[1].startswith("no explanations are given here")


async def test_the_answers(made: Bench) -> None:
    """OpenAI's clients show no message in another form than OpenAI's, wherever they ask."""
    for path in ("/v1/chat/completions", "/openai/chat/completions"):
        status, found = await post(made, path, {})
        message = f"POST {path}: {expected('chat/completions')}"
        about = {"type": "invalid_request_error", "param": None, "code": None}
        assert (status, found) == (404, {"error": {"message": message, **about}})
    status, found = await post(made, "/v1/models/gpt2:explain", {})
    assert status == 501 and found["error"].startswith("POST /v1/models/gpt2:explain: no explanations")
    status, found = await post(made, "/v1/models/gpt2", {})
    assert status == 405 and found == {"error": "POST /v1/models/gpt2: Method Not Allowed, expected GET, HEAD"}


def test_base64_is_float32_in_little_endian() -> None:
    found = base64.b64decode(embeddings.to_base64(np.array([1, 9, -2, 9], ">f8")[::2]))
    assert found.hex() == "0000803f" + "000000c0"


@pytest.mark.parametrize(
    ("status", "message", "kind", "param", "code"),
    [
        (400, "input[3]: expected a string", "invalid_request_error", "input[3]", None),
        (400, "messages[1].content: expected a string", "invalid_request_error", "messages[1].content", None),
        (400, "body: not JSON: unexpected end", "invalid_request_error", None, None),
        (400, "a stride of 3: too long", "invalid_request_error", None, None),
        (401, "token: missing", "invalid_request_error", None, None),
        (404, "model: 'x' is not served here", "invalid_request_error", "model", "model_not_found"),
        (404, "GET /openai/v1/x: Not Found", "invalid_request_error", None, None),
        (405, "GET /openai/v1/rerank: Method Not Allowed", "invalid_request_error", None, "method_not_supported"),
        (413, "input: 9 in a request", "invalid_request_error", "input", None),
        (429, "9 requests are in flight", "requests", None, "rate_limit_exceeded"),
        (502, "onnx: the predictor's own words", "server_error", None, None),
    ],
)
def test_error_bodies(status: int, message: str, kind: str, param: str | None, code: str | None) -> None:
    found = json.loads(render_error(message, status))
    assert found == {"error": {"message": message, "type": kind, "param": param, "code": code}}
