"""The short way of requests that come whole gives what the long one does, byte for byte."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.commands.local_triton.child_process import poll
from tests.integration.conftest import Serve
from tests.integration.hostile.wire import BODY, PREDICT, SECONDS, TEXT, Answer, connected, next_answer
from tests.service import Service

PAUSE = 0.05
"""Seconds after which what follows is another read of the service's."""
TIMES = 4
"""Of a head that comes so often the last ones are known."""
KEY = "a-key-for-this-test"
INFER = json.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}).encode()
LIMITS = ("--max_request_bytes=2000", "--max_instances=3")

REQUESTS: dict[str, tuple[str, bytes, list[str]]] = {
    "a text": (PREDICT, BODY, []),
    "three texts": (PREDICT, json.dumps({"instances": [TEXT] * 3}).encode(), []),
    "parameters": (PREDICT, json.dumps({"instances": [TEXT], "parameters": {"top_k": 2}}).encode(), []),
    "ten texts": (PREDICT, json.dumps({"instances": [TEXT] * 10}).encode(), []),
    "no text": (PREDICT, b'{"instances": []}', []),
    "a text without a mask": (PREDICT, b'{"instances": ["no mask"]}', []),
    "no JSON": (PREDICT, b"no JSON", []),
    "nothing": (PREDICT, b"", []),
    "UTF-16": (PREDICT, BODY.decode().encode("utf-16"), ["content-type: application/json; charset=utf-16"]),
    "a charset that is none": (PREDICT, BODY, ["content-type: application/json; charset=klingon"]),
    "gzip": (PREDICT, gzip.compress(BODY, mtime=0), ["content-encoding: gzip"]),
    "no gzip": (PREDICT, BODY, ["content-encoding: gzip"]),
    "brotli": (PREDICT, BODY, ["content-encoding: br"]),
    "gzip of too much": (PREDICT, gzip.compress(b" " * 3000 + BODY, mtime=0), ["content-encoding: gzip"]),
    "too much": (PREDICT, b" " * 3000 + BODY, []),
    "an id": (PREDICT, BODY, ["x-request-id: mine"]),
    "an id that is too long": (PREDICT, BODY, [f"x-request-id: {'a' * 300}"]),
    "V2": ("/v2/models/bert/infer", INFER, []),
    "V2 without inputs": ("/v2/models/bert/infer", b"{}", []),
    "OpenAI, another task": ("/openai/v1/embeddings", b'{"model": "bert", "input": "a"}', []),
    "tokens": ("/v1/models/bert:tokenize", BODY, []),
    "another model": ("/v1/models/other:predict", BODY, []),
}


def answer_to(service: Service, path: str, body: bytes, lines: list[str]) -> Answer:
    """The answer to a request that does not come whole."""
    head = head_of(path, body, lines)
    with connected(service) as connection:
        # The head alone sends a request the long way, also one whose body is empty.
        connection.sendall(head[:-2])
        time.sleep(PAUSE)
        connection.sendall(head[-2:] + body[:1])
        time.sleep(PAUSE)
        connection.sendall(body[1:])
        return next_answer(connection)


def short_answers(service: Service, path: str, body: bytes, lines: list[str], pause: float = 0.0) -> list[Answer]:
    """Those to the same request, one after the other on one connection; the last ones have a head that is known. With a
    ``pause`` the body comes by itself."""
    head = head_of(path, body, lines)
    with connected(service) as connection:
        answers = []
        for _ in range(TIMES):
            if pause:
                connection.sendall(head)
                time.sleep(pause)
            connection.sendall(body if pause else head + body)
            answers.append(next_answer(connection))
        return answers


def head_of(path: str, body: bytes, lines: list[str]) -> bytes:
    first = [f"POST {path} HTTP/1.1", f"host: {HOST}", f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(first).encode("latin-1")


def compared(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """Without what differs from one request to the next."""
    own = {"date", "server-timing"}
    if answer.headers["x-request-id"] != "mine":
        own.add("x-request-id")
    assert all(answer.headers[name] for name in own - {"server-timing"})
    headers = {name: value for name, value in answer.headers.items() if name not in own}
    return answer.status, headers | {"timed": str("server-timing" in answer.headers)}, answer.body


@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_give_the_same(serve: Serve, name: str) -> None:
    service = serve("bert", "v2", *LIMITS)
    path, body, lines = REQUESTS[name]
    long = compared(answer_to(service, path, body, lines))
    assert long[0] in (200, 400, 404, 413, 415), long
    for pause in (0.0, PAUSE):
        answers = short_answers(service, path, body, lines, pause)
        assert [compared(answer) for answer in answers] == [long] * TIMES
        ids = {answer.headers["x-request-id"] for answer in answers}
        assert ids == {"mine"} if name == "an id" else len(ids) == TIMES


@pytest.mark.parametrize("key", [f"x-api-key: {KEY}", f"authorization: Bearer {KEY}", "x-api-key: another", ""])
@pytest.mark.parametrize("name", ["a text", "no JSON", "OpenAI, another task", "V2", "too much"])
def test_both_ways_ask_for_the_key(serve: Serve, tmp_path: Path, key: str, name: str) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    service = serve("bert", "v2", f"--api_keys_file={file}", *LIMITS)
    path, body, lines = REQUESTS[name]
    given = [*lines, *([key] if key else ())]
    long = compared(answer_to(service, path, body, given))
    for pause in (0.0, PAUSE):
        assert [compared(answer) for answer in short_answers(service, path, body, given, pause)] == [long] * TIMES
    assert (long[0] == 401) == (KEY not in key)


def test_a_key_that_is_taken_back_is_refused_on_a_connection_that_has_used_it(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    service = serve("bert", "v2", f"--api_keys_file={file}", *LIMITS)
    path, body, _ = REQUESTS["a text"]
    whole = head_of(path, body, [f"x-api-key: {KEY}"]) + body

    def status() -> int:
        connection.sendall(whole)
        return next_answer(connection).status

    with connected(service) as connection:
        assert [status() for _ in range(TIMES)] == [200] * TIMES
        file.write_text("another-key-for-this-test")
        assert poll(lambda: status() == 401, SECONDS)
        file.write_text(KEY)
        assert poll(lambda: status() == 200, SECONDS)
