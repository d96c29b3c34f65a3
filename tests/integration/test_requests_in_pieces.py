"""A request in one piece, again and again on one connection, has the response of one in pieces, byte for byte."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.conftest import Serve
from tests.integration.hostile.wire import BODY, PREDICT, SECONDS, TEXT, Answer, connected, next_answer
from tests.service import Service

PAUSE = 0.05
"""Seconds after which what follows is another read of the service's."""
TIMES = 3
"""How often the same request comes on one connection."""
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


def answer_in_pieces(service: Service, path: str, body: bytes, lines: list[str]) -> Answer:
    """The response to a request whose head and body come in pieces."""
    head = head_of(path, body, lines)
    with connected(service) as connection:
        connection.sendall(head[:-2])
        time.sleep(PAUSE)
        connection.sendall(head[-2:] + body[:1])
        time.sleep(PAUSE)
        connection.sendall(body[1:])
        return next_answer(connection)


def answers(service: Service, path: str, body: bytes, lines: list[str], pause: float = 0.0) -> list[Answer]:
    """The responses to the same request, TIMES on one connection; with a ``pause`` the body follows its head."""
    head = head_of(path, body, lines)
    with connected(service) as connection:
        found = []
        for _ in range(TIMES):
            if pause:
                connection.sendall(head)
                time.sleep(pause)
            connection.sendall(body if pause else head + body)
            found.append(next_answer(connection))
        return found


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
def test_pieces_change_nothing(serve: Serve, name: str) -> None:
    service = serve("bert", "v2", *LIMITS)
    path, body, lines = REQUESTS[name]
    expected = compared(answer_in_pieces(service, path, body, lines))
    assert expected[0] in (200, 400, 404, 413, 415), expected
    for pause in (0.0, PAUSE):
        found = answers(service, path, body, lines, pause)
        assert [compared(answer) for answer in found] == [expected] * TIMES
        ids = {answer.headers["x-request-id"] for answer in found}
        assert ids == {"mine"} if name == "an id" else len(ids) == TIMES


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEY)
    return path


@pytest.fixture
def keyed(serve: Serve, file: Path) -> Service:
    return serve("bert", "v2", f"--api_keys_file={file}", *LIMITS)


def test_keys_are_asked_for_in_either_case(keyed: Service) -> None:
    for name in ("a text", "no JSON", "OpenAI, another task", "V2", "too much"):
        path, body, lines = REQUESTS[name]
        for key in ([f"x-api-key: {KEY}"], [f"authorization: Bearer {KEY}"], ["x-api-key: another"], []):
            expected = compared(answer_in_pieces(keyed, path, body, [*lines, *key]))
            found = answers(keyed, path, body, [*lines, *key])
            assert [compared(answer) for answer in found] == [expected] * TIMES
            assert (expected[0] == 401) == (KEY not in "".join(key))


def test_a_key_that_is_taken_back_is_refused_on_a_connection_that_has_used_it(keyed: Service, file: Path) -> None:
    path, body, _ = REQUESTS["a text"]
    whole = head_of(path, body, [f"x-api-key: {KEY}"]) + body

    def status() -> int:
        connection.sendall(whole)
        return next_answer(connection).status

    with connected(keyed) as connection:
        assert [status() for _ in range(TIMES)] == [200] * TIMES
        file.write_text("another-key-for-this-test")
        assert poll(lambda: status() == 401, SECONDS)
        file.write_text(KEY)
        assert poll(lambda: status() == 200, SECONDS)
