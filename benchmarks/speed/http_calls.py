"""Single HTTP calls, for what is not measured."""

from __future__ import annotations

import http.client
import json
from typing import Any

from benchmarks.speed.bodies import HEADER, Body
from hf_transformer.commands.local_triton import HOST


def ready(port: int, path: str) -> bool:
    """Whether a GET is answered with 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def post(port: int, path: str, body: Body) -> Any:
    """The JSON that comes back, None for an empty body. Raises ValueError for anything but 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60.0)
    headers = {"Content-Type": "application/json"}
    if body.json_length:
        headers = {"Content-Type": "application/octet-stream", HEADER: str(body.json_length)}
    try:
        connection.request("POST", path, body.content, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ValueError(f"{path} answered {response.status}: {content[:500]!r}")
        length = int(response.headers.get(HEADER, len(content)))
        return json.loads(content[:length]) if length else None
    finally:
        connection.close()


def get(port: int, path: str) -> Any:
    """The JSON of a GET. Raises ValueError for anything but 200."""
    return json.loads(get_text(port, path))


def get_text(port: int, path: str) -> str:
    """What a GET is answered with. Raises ValueError for anything but 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10.0)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ValueError(f"{path} answered {response.status}: {content[:500]!r}")
        return content.decode()
    finally:
        connection.close()
