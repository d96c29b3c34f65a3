"""Images in the render routes, Messages and counts: vLLM's features, by the arithmetic of the processor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest
from msgspec import convert

from hf_transformer.api.rendered import RenderedRequest
from hf_transformer.tokenizer.image_tokens import ResizedImageTokens
from tests.api.generating import ServedModel, answer_of, post, served_model
from tests.support.images import base64, data_url, png

TOKEN = "<|im_end|>"
"""A special token in place of a model's placeholder."""
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|im_end|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
SMALL, LARGE = png(56, 56), png(84, 112)
COUNTS = {SMALL: 4, LARGE: 12}


@pytest.fixture
async def seeing() -> AsyncIterator[ServedModel]:
    """A model with the processor of Qwen2-VL."""
    async with served_model(template=TEMPLATE) as made:
        [token] = made.tokenizer.encode([TOKEN])[0].ids
        made.model.image_tokens = ResizedImageTokens(token, 28, 3136, 12845056)
        yield made


def chat(data: bytes) -> Any:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def item(data: bytes) -> Any:
    return {"type": "input_image", "image_url": data_url(data)}


def block(data: bytes) -> Any:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(data)}}


BODIES: dict[str, Any] = {
    "/v1/chat/completions/render": {
        "messages": [{"role": "user", "content": [text("a"), chat(SMALL), text(" b"), chat(LARGE), text(" c")]}]
    },
    "/v1/responses/render": {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    item(SMALL),
                    {"type": "input_text", "text": " b"},
                    item(LARGE),
                    {"type": "input_text", "text": " c"},
                ],
            }
        ]
    },
    "/v1/messages/render": {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [text("a"), block(SMALL), text(" b"), block(LARGE), text(" c")]}],
    },
}


@pytest.mark.parametrize("path", BODIES)
async def test_features_have_the_places_and_hashes_of_images(seeing: ServedModel, path: str) -> None:
    rendered = await answer_of(seeing, path, BODIES[path])
    convert(rendered, RenderedRequest)
    features, ids = rendered["features"], rendered["token_ids"]
    assert features["mm_hashes"] == {"image": [sha256(data).hexdigest() for data in (SMALL, LARGE)]}
    assert features["kwargs_data"] is features["mm_metadata"] is None
    token, ranges = seeing.model.image_tokens.token, features["mm_placeholders"]["image"]  # type: ignore[union-attr]
    assert [one["length"] for one in ranges] == [*COUNTS.values()]
    for one in ranges:
        assert set(ids[one["offset"] : one["offset"] + one["length"]]) == {token}
    assert ids.count(token) == sum(COUNTS.values())
    parts = [seeing.tokenizer.encode([part])[0].ids for part in ("user:a", " b", " c")]
    expected = [*parts[0], *[token] * 4, *parts[1], *[token] * 12, *parts[2]]
    assert ids == expected


async def test_counts_have_the_tokens_of_images(seeing: ServedModel) -> None:
    path = "/v1/chat/completions/render"
    length = len((await answer_of(seeing, path, BODIES[path]))["token_ids"])
    counted = await answer_of(seeing, "/tokenize", BODIES[path])
    assert counted["count"] == len(counted["tokens"]) == length
    messages = {"model": "gpt2", "messages": BODIES["/v1/messages/render"]["messages"]}
    assert (await answer_of(seeing, "/v1/messages/count_tokens", messages))["input_tokens"] == length


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        pytest.param({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "no value beside images", id="cut"),
        pytest.param({"messages": [{"role": "user", "content": [chat(png(1, 300))]}]},
                     "messages[0].content[0].image_url.url", "a factor of at most 200", id="form"),
        pytest.param({"messages": [{"role": "user", "content": [chat(SMALL), text(TOKEN)]}]}, "messages",
                     "texts must not contain the model's placeholder", id="placeholder in a text"),
        pytest.param({"messages": [{"role": "user", "content": [chat(b"<svg/>")]}]},
                     "messages[0].content[0].image_url.url", "a PNG, JPEG", id="svg"),
        pytest.param({"messages": [{"role": "user", "content": [chat(png(4000, 3000))] * 17}]},
                     "messages[0].content[16].image_url.url", "--max_images", id="many"),
    ],
)  # fmt: skip
async def test_another_image_is_an_error_of_its_field(
    seeing: ServedModel, change: Any, param: str, message: str
) -> None:
    body = {**BODIES["/v1/chat/completions/render"], **change}
    status, answer = await post(seeing, "/v1/chat/completions/render", body)
    assert status in (400, 413) and answer["error"]["param"] == param and message in answer["error"]["message"]


async def test_a_prompt_with_too_many_image_tokens_is_too_long(seeing: ServedModel) -> None:
    body = {"messages": [{"role": "user", "content": [chat(png(800, 800))]}]}
    status, answer = await post(seeing, "/v1/chat/completions/render", body)
    assert status == 400 and "a prompt of at most" in answer["error"]["message"], answer


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_without_a_known_processor_refuses_images(path: str) -> None:
    async with served_model(template=TEMPLATE) as made:
        status, answer = await post(made, path, BODIES[path])
    assert status == 400 and "the model reads text only" in answer["error"]["message"]


async def test_a_text_has_no_features(seeing: ServedModel) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert (await answer_of(seeing, "/v1/chat/completions/render", body))["features"] is None
