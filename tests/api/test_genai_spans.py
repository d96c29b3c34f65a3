"""OpenTelemetry's GenAI attributes on the spans of the generative APIs, at a real collector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.observability.tracing import Tracing
from tests.api.generating import PROMPT, Exchange, application, served_model
from tests.support.collector import attributes, collecting

MESSAGES = [{"role": "user", "content": f"{PROMPT} a secret"}]
SAMPLED = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 3, "presence_penalty": 0.5, "stop": ["secret"]}
REQUEST = {
    **{"temperature": 0.5, "top_p": 0.25, "top_k": 7.0, "seed": 3, "presence_penalty": 0.5},
    **{"max_tokens": 2, "model": "gpt2"},
}


async def spans_of(path: str, body: Any, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """The attributes of the request's spans that have any of GenAI's, and the text of everything exported."""
    with collecting() as collector:
        async with served_model(**options) as made, Tracing(collector.url, 1.0) as tracer:
            made.service = replace(made.service, tracing=tracer)
            made.app = application(made.service)
            async with Exchange(made.app, path, body) as exchange:
                await exchange.head()
                await exchange.rest()
        texts = " ".join(map(str, collector.bodies))
        found = [attributes(span.attributes) for span in collector.spans]
    return [{name: value for name, value in one.items() if name.startswith("gen_ai.")} for one in found], texts


def reasons(span: dict[str, Any]) -> list[str]:
    return [value.string_value for value in span["gen_ai.response.finish_reasons"].values]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("path", "body", "operation", "count"),
    [
        pytest.param("/openai/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "n": 2}, "chat", 2,
                     id="chat"),
        pytest.param("/openai/v1/completions", {"prompt": PROMPT, "max_tokens": 2}, "text_completion", 1,
                     id="completions"),
        pytest.param("/openai/v1/responses", {"input": MESSAGES, "max_output_tokens": 2}, "chat", 1, id="responses"),
    ],
)  # fmt: skip
async def test_a_request_that_generates(path: str, body: Any, operation: str, count: int, stream: bool) -> None:
    sampled = {name: value for name, value in SAMPLED.items() if "responses" not in path or name != "stop"}
    spans, texts = await spans_of(path, {**body, **sampled, "stream": stream}, text=" paris is the")
    [span] = [one for one in spans if one]
    assert (span["gen_ai.operation.name"], span["gen_ai.provider.name"]) == (operation, "hf_transformer")
    requested = {name.removeprefix("gen_ai.request."): value for name, value in span.items() if ".request." in name}
    assert requested.pop("choice.count", 1) == count
    assert requested == REQUEST
    assert span["gen_ai.response.model"] == "gpt2" and reasons(span) == ["length"] * count
    assert span["gen_ai.usage.output_tokens"] == 2 * count and span["gen_ai.usage.input_tokens"] > 3
    assert "secret" not in texts and "paris" not in texts


async def test_a_greedy_request_has_a_temperature_of_0() -> None:
    spans, _ = await spans_of("/openai/v1/completions", {"prompt": PROMPT, "temperature": 0, "top_p": 0.5})
    [span] = [one for one in spans if one]
    assert (span["gen_ai.request.temperature"], reasons(span)) == (0.0, ["stop"])
    assert "gen_ai.request.top_p" not in span


async def test_a_failed_request_has_no_finish_reason() -> None:
    spans, _ = await spans_of("/openai/v1/completions", {"prompt": PROMPT}, fails=PredictorError("it broke"), after=1)
    [span] = [one for one in spans if one]
    assert span["gen_ai.usage.output_tokens"] == 1 and "gen_ai.response.finish_reasons" not in span


async def test_a_refused_request_has_the_operation_once_it_is_known() -> None:
    spans, _ = await spans_of("/openai/v1/completions", {"prompt": "a " * 400})
    [span] = [one for one in spans if one]
    assert span["gen_ai.operation.name"] == "text_completion" and "gen_ai.usage.input_tokens" not in span
