"""Images in chats over real sockets, to a real Triton with the inputs of vLLM's backend and TensorRT-LLM's LLM API."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from hf_transformer.commands.loopback import HOST
from tests.integration.conftest import Serve
from tests.predictor.fault_server import TLS
from tests.support.images import FILES, base64, data_url, png
from tests.support.service import Service

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}|{% endfor %}<|assistant|>"
)
TEXTS_ONLY = "{% for message in messages %}{{ message.content }}{% endfor %}"
FLAG = f"--chat_template={TEMPLATE}"
VLLM, LLM_API = "gpt2_vision", "gpt2_vision_urls"
CHAT, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"
SMALL, OTHER = png(), FILES["jpeg"][1](5, 4)


def shown(value: str) -> str:
    """The model's answer for an image."""
    return value if len(value) <= 1000 else f"{value[:40]} {len(value)} {sha256(value.encode()).hexdigest()}"


def part(url: str, **more: Any) -> Any:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def user(*parts: Any) -> Any:
    return {"role": "user", "content": list(parts)}


def chat(service: Service, *messages: Any, **fields: Any) -> httpx.Response:
    body = {"model": service.model, "messages": list(messages), "max_tokens": 90, **fields}
    return service.client.post(CHAT, json=body)


def received(response: httpx.Response) -> Any:
    """The inputs of the model, which its answer repeats."""
    assert response.status_code == 200, response.text
    return json.loads(response.json()["choices"][0]["message"]["content"])


def fault(response: httpx.Response, status: int = 400) -> tuple[str, str]:
    assert response.status_code == status, response.text
    return response.json()["error"]["param"], response.json()["error"]["message"]


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
@pytest.mark.parametrize("kind", FILES)
def test_an_image_reaches_the_model_with_its_place_in_the_prompt(serve: Serve, kind: str, protocol: str) -> None:
    service, (media_type, make) = serve(VLLM, protocol, FLAG), FILES[kind]
    data = make(3, 2)
    found = received(chat(service, user(text("What is"), part(data_url(data, media_type), detail="low"), text("?"))))
    assert found == {"prompt": "<|user|>What is<image>?|<|assistant|>", "images": [shown(base64(data))]}


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_images_of_several_messages_keep_their_order(serve: Serve, protocol: str) -> None:
    service = serve(VLLM, protocol, FLAG)
    messages = (
        {"role": "system", "content": "Be brief."},
        user(part(data_url(SMALL)), part(data_url(OTHER)), text("Compare.")),
        {"role": "assistant", "content": "They differ."},
        user(text("And this?"), part(data_url(SMALL, "image/webp"))),
    )
    found = received(chat(service, *messages))
    expected = "<|system|>Be brief.|<|user|><image><image>Compare.|<|assistant|>They differ.|<|user|>And this?<image>"
    assert found["prompt"] == f"{expected}|<|assistant|>"
    assert found["images"] == [shown(base64(one)) for one in (SMALL, OTHER, SMALL)]


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
@pytest.mark.parametrize("model", [VLLM, LLM_API])
def test_a_stream_has_the_same_text(serve: Serve, model: str, protocol: str) -> None:
    service = serve(model, protocol, FLAG)
    message = user(text("What is it?"), part(data_url(SMALL)))
    whole = chat(service, message).json()["choices"][0]["message"]["content"]
    lines = chat(service, message, stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks) == whole
    assert len(chunks) > 5 and "images" in whole


def test_choices_have_the_images_each(serve: Serve) -> None:
    response = chat(serve(VLLM, "grpc-v2", FLAG), user(part(data_url(SMALL))), n=3)
    contents = [one["message"]["content"] for one in response.json()["choices"]]
    assert [json.loads(one)["images"] for one in contents] == [[base64(SMALL)]] * 3


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_the_llm_api_model_gets_a_question_and_urls(serve: Serve, protocol: str) -> None:
    """It renders the chat template itself."""
    service = serve(LLM_API, protocol, FLAG)
    found = received(chat(service, user(text("What is"), part(data_url(OTHER, "image/png")), text("here?"))))
    assert found == {"prompt": "What is\nhere?", "images": [shown(data_url(OTHER, "image/jpeg"))]}
    assert received(chat(service, {"role": "user", "content": "Hi"}))["prompt"] == "<|user|>Hi|<|assistant|>"
    tool = {"type": "function", "function": {"name": "f"}}
    image = user(part(data_url(SMALL)), text("?"))
    for messages, fields, param in (
        ([{"role": "system", "content": "Be brief."}, image], {}, "messages"),
        ([image, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}], {}, "messages"),
        ([image], {"tools": [tool]}, "tools"),
    ):
        name, message = fault(chat(service, *messages, **fields))
        assert name == param and ("renders the chat template itself" in message or "does not support them" in message)


@pytest.mark.parametrize("model", [VLLM, LLM_API])
def test_responses_take_images(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2", FLAG)
    image = {"type": "input_image", "image_url": data_url(SMALL), "detail": "auto"}
    item = {"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]}
    response = service.client.post(RESPONSES, json={"model": model, "input": [item], "max_output_tokens": 90})
    assert response.status_code == 200, response.text
    [output] = response.json()["output"]
    prompt = "<|user|>What?<image>|<|assistant|>" if model == VLLM else "What?"
    images = [base64(SMALL) if model == VLLM else data_url(SMALL)]
    assert json.loads(output["content"][0]["text"]) == {"prompt": prompt, "images": images}


@pytest.mark.parametrize(
    ("image", "path"),
    [
        pytest.param({"image_url": "data:image/svg+xml;base64,AAAA"}, ".image_url", id="svg"),
        pytest.param({"image_url": data_url(b"GIF89")}, ".image_url", id="damaged"),
        pytest.param({"file_id": "file-1"}, ".image_url", id="file"),
        pytest.param({"image_url": data_url(SMALL), "file_id": "file-1"}, ".file_id", id="both"),
        pytest.param({"image_url": {"url": data_url(SMALL)}}, ".image_url", id="form of chats"),
    ],
)
def test_a_fault_of_responses_names_the_part(serve: Serve, image: Any, path: str) -> None:
    service = serve(VLLM, "grpc-v2", FLAG)
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", **image}]
    items = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}]
    response = service.client.post(RESPONSES, json={"input": items, "instructions": "b"})
    assert fault(response)[0] == f"input[1].content[1]{path}"


PART = "messages[0].content[0]"
URL = f"{PART}.image_url.url"


@pytest.mark.parametrize(
    ("value", "param", "expected"),
    [
        pytest.param(part("data:image/png,\x89PNG"), URL, "base64 in the data URL", id="not base64"),
        pytest.param(part(data_url(SMALL)[:-1]), URL, "no multiple of 4", id="padding"),
        pytest.param(part(data_url(SMALL)[:-4] + "===="), URL, "base64 with its padding", id="much padding"),
        pytest.param(part(data_url(b"<svg/>", "image/svg+xml")), URL, "image/svg+xml", id="svg"),
        pytest.param(part(data_url(b"<svg/>")), URL, "a PNG, JPEG, WebP or GIF file", id="svg as png"),
        pytest.param(part("data:image/png;base64,"), URL, "a PNG, JPEG, WebP or GIF file", id="empty"),
        pytest.param(part("file:///etc/passwd"), URL, "the scheme 'file'", id="file"),
        pytest.param(part("/etc/passwd"), URL, "no URL", id="path"),
        pytest.param(part("http://127.0.0.1/a.png"), URL, "the scheme 'http'", id="http"),
        pytest.param(part("https://example.com/a.png"), URL, "--allowed_image_hosts", id="https"),
        pytest.param(part("https://[::1"), URL, "no valid URL", id="broken URL"),
        pytest.param(part("ftp://example.com/a.png"), URL, "the scheme 'ftp'", id="ftp"),
        pytest.param({"type": "image_url"}, f"{PART}.image_url", "", id="no URL"),
        pytest.param({"type": "image_url", "image_url": {}}, URL, "", id="empty object"),
        pytest.param({"type": "image_url", "image_url": 3}, f"{PART}.image_url", "", id="number"),
        pytest.param({"type": "image"}, f"{PART}.type", "text", id="the template's own part"),
        pytest.param({"type": "input_audio", "input_audio": {}}, f"{PART}.type", "text", id="audio"),
    ],
)
def test_another_image_is_refused(serve: Serve, value: Any, param: str, expected: str) -> None:
    name, message = fault(chat(serve(VLLM, "v2", FLAG), user(value, text("?"))))
    assert name == param and expected in message


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_images_are_of_users_and_tools(serve: Serve, role: str) -> None:
    message = {"role": role, "content": [part(data_url(SMALL))]}
    name, _ = fault(chat(serve(VLLM, "v2", FLAG), message, user(text("?"))))
    assert name == f"{PART}.type"


@pytest.mark.parametrize("model", ["gpt2_vllm", "gpt2_past"])
def test_a_model_without_the_input_refuses_images(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2", FLAG)
    name, message = fault(chat(service, user(part(data_url(SMALL)))))
    assert name == f"{PART}.type" and "the model reads text only" in message
    item = {"role": "user", "content": [{"type": "input_image", "image_url": data_url(SMALL)}]}
    name, message = fault(service.client.post(RESPONSES, json={"input": [item]}))
    assert name.startswith("input[0].content[0]") and "the model reads text only" in message


def test_a_template_without_a_place_for_images_is_a_reason(serve: Serve) -> None:
    service = serve(VLLM, "v2", f"--chat_template={TEXTS_ONLY}")
    name, message = fault(chat(service, user(text("?"), part(data_url(SMALL)))))
    assert name == "messages[0].content[1].image_url.url"
    assert "the chat template has no place for images" in message
    assert received(chat(service, user(text("?"))))["images"] == []


def test_limits_of_images_name_their_flags(serve: Serve) -> None:
    flags = ("--max_images=2", "--max_image_bytes=1000", "--max_image_pixels=100", "--max_request_bytes=40000000")
    service = serve(VLLM, "v2", FLAG, *flags)
    image = part(data_url(png(10, 10)))
    assert len(received(chat(service, user(image, image)))["images"]) == 2
    for parts, flag, index in (
        ([image, image, image], "--max_images", 2),
        ([image] * 1000, "--max_images", 2),
        ([part(data_url(png(10, 11)))], "--max_image_pixels", 0),
        ([part(data_url(png(60_000, 60_000)))], "--max_image_pixels", 0),
        ([part(data_url(png() + bytes(1000)))], "--max_image_bytes", 0),
        ([part("data:image/png;base64," + "A" * 20_000_000)], "--max_image_bytes", 0),
    ):
        name, message = fault(chat(service, user(*parts)), 413)
        assert flag in message and name == f"messages[0].content[{index}].image_url.url"
    assert received(chat(service, user(text("still here"))))["images"] == []


def test_the_copies_of_images_are_counted(serve: Serve) -> None:
    flags = ("--max_request_bytes=1000000", "--max_bytes_in_flight=8000000", "--max_image_bytes=1000000")
    service = serve(VLLM, "v2", FLAG, *flags)
    image = part(data_url(png() + bytes(400_000)))
    assert chat(service, user(image)).status_code == 200
    _, message = fault(chat(service, user(image), n=100), 413)
    assert "--max_bytes_in_flight" in message


@contextmanager
def image_host(seconds: float = 0.0) -> Iterator[tuple[int, list[str]]]:
    """An https server with an image at each path but /old, which redirects there. Yields its port and the paths."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            time.sleep(seconds)
            self.send_response(302 if self.path == "/old" else 200)
            self.send_header("location", "/new")
            self.send_header("content-length", str(len(SMALL)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(SMALL)

        def log_message(self, *arguments: object) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("model", [VLLM, LLM_API])
def test_an_image_of_an_allowed_host_reaches_the_model_as_base64(serve: Serve, model: str) -> None:
    with image_host() as (port, paths):
        flags = (FLAG, f"--allowed_image_hosts={HOST}:{port},localhost:{port}")
        with serve.own(model, "grpc-v2", *flags, environ={"SSL_CERT_FILE": str(TLS / "localhost.pem")}) as service:
            service.wait_until(f"/v1/models/{model}")
            found = received(chat(service, user(text("?"), part(f"https://{HOST}:{port}/a.png"))))
            assert found["images"] == [base64(SMALL) if model == VLLM else data_url(SMALL)]
            for url, expected in (
                (f"https://{HOST}:{port}/old", "the service follows no redirects"),
                (f"https://localhost:{port}/a.png", "a private address"),
                (f"https://{HOST}:{port + 1}/a.png", "another host"),
                ("https://169.254.169.254/latest/meta-data", "another host"),
            ):
                name, message = fault(chat(service, user(part(url), text("?"))))
                assert name == URL and expected in message
    assert paths == ["/a.png", "/old"]


def test_fetching_has_a_time_limit(serve: Serve) -> None:
    with image_host(0.4) as (port, _):
        flags = (FLAG, f"--allowed_image_hosts={HOST}:{port}", "--image_timeout_seconds=0.6")
        with serve.own(VLLM, "v2", *flags, environ={"SSL_CERT_FILE": str(TLS / "localhost.pem")}) as service:
            service.wait_until(f"/v1/models/{VLLM}")
            image = part(f"https://{HOST}:{port}/a.png")
            name, message = fault(chat(service, user(image, image)))
            assert name == URL and "--image_timeout_seconds" in message


# Messages


def block(data: bytes, media_type: str = "image/png") -> Any:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": base64(data)}}


def message(service: Service, *messages: Any) -> httpx.Response:
    body = {"model": service.model, "max_tokens": 90, "messages": list(messages)}
    return service.client.post("/v1/messages", json=body)


@pytest.mark.parametrize("model", [VLLM, LLM_API])
def test_messages_take_images(serve: Serve, model: str) -> None:
    response = message(serve(model, "grpc-v2", FLAG), user(text("What?"), block(SMALL)))
    assert response.status_code == 200, response.text
    prompt = "<|user|>What?<image>|<|assistant|>" if model == VLLM else "What?"
    images = [base64(SMALL) if model == VLLM else data_url(SMALL)]
    assert json.loads(response.json()["content"][0]["text"]) == {"prompt": prompt, "images": images}


def test_results_of_tools_have_images(serve: Serve) -> None:
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("seen:"), block(SMALL)], "is_error": True}
    response = message(
        serve(VLLM, "v2", FLAG),
        user(text("Look."), block(OTHER, "image/jpeg")),
        {"role": "assistant", "content": [call]},
        user(result, text("And?")),
    )
    assert response.status_code == 200, response.text
    found = json.loads(response.json()["content"][0]["text"])
    assert found["prompt"].endswith("<|tool|>Error: seen:<image>|<|user|>And?|<|assistant|>")
    assert found["images"] == [shown(base64(OTHER)), base64(SMALL)]


@pytest.mark.parametrize(
    ("source", "field", "expected"),
    [
        pytest.param({"type": "base64", "media_type": "image/png", "data": "AAA"}, "source.data", "no multiple of 4",
                     id="padding"),
        pytest.param({"type": "base64", "media_type": "image/svg+xml", "data": "AAAA"}, "source.media_type",
                     "image/png", id="svg"),
        pytest.param({"type": "url", "url": "https://example.com/a.png"}, "source.url", "--allowed_image_hosts",
                     id="url"),
        pytest.param({"type": "file", "file_id": "f"}, "source", "", id="file"),
        pytest.param({}, "source", "", id="nothing"),
    ],
)  # fmt: skip
def test_a_fault_of_messages_names_the_block(serve: Serve, source: Any, field: str, expected: str) -> None:
    response = message(serve(VLLM, "v2", FLAG), user(text("?"), {"type": "image", "source": source}))
    assert response.status_code == 400
    found = response.json()["error"]["message"]
    assert found.startswith(f"messages[0].content[1].{field}") and expected in found


def test_system_prompts_and_other_models_have_no_images(serve: Serve) -> None:
    service = serve(VLLM, "v2", FLAG)
    body = {"max_tokens": 9, "system": [block(SMALL)], "messages": [user(text("?"))]}
    response = service.client.post("/v1/messages", json=body)
    assert response.status_code == 400 and "system[0].type" in response.text
    assert message(service, user(text("?")), {"role": "assistant", "content": [block(SMALL)]}).status_code == 400
    response = message(serve("gpt2_vllm", "v2", FLAG), user(block(SMALL)))
    assert response.status_code == 400 and "the model reads text only" in response.text
