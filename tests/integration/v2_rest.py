"""A client of the open inference protocol over HTTP, written from its text: it has nothing of the service's code."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np

from tests.support.service import Service

LENGTH = "inference-header-content-length"
OUTPUT = "output-0"


def texts_tensor(name: str, rows: Any, raw: bool) -> tuple[dict[str, Any], bytes]:
    """An input of texts, as clients write it."""
    array = np.array(rows, np.object_)
    flat = array.ravel().tolist()
    entry: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": array.shape}
    if not raw:
        return entry | {"data": flat}, b""
    elements = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in flat)
    return entry | {"parameters": {"binary_data_size": len(elements)}}, elements


def post(service: Service, inputs: dict[str, Any], raw: bool = False, path: str = "", **more: Any) -> httpx.Response:
    """Sends named inputs, and more keys of the request as they are."""
    tensors = [texts_tensor(name, rows, raw) for name, rows in inputs.items()]
    header = json.dumps({"inputs": [entry for entry, _ in tensors], **more}).encode()
    body = header + b"".join(elements for _, elements in tensors)
    headers = {LENGTH: str(len(header)), "content-type": "application/octet-stream"} if raw else {}
    return service.client.post(path or f"/v2/models/{service.model}/infer", content=body, headers=headers)


def read(response: httpx.Response) -> tuple[dict[str, Any], dict[str, Any]]:
    """A response's JSON, and its outputs as nested lists by name."""
    assert response.status_code == 200, response.text
    length = int(response.headers.get(LENGTH, len(response.content)))
    assert response.headers["content-type"] == f"application/{'octet-stream' if LENGTH in response.headers else 'json'}"
    header, rest = json.loads(response.content[:length]), response.content[length:]
    outputs = {}
    for output in header["outputs"]:
        values = output.get("data")
        if values is None:
            size = output["parameters"]["binary_data_size"]
            values, rest = elements_of(rest[:size], output["datatype"]), rest[size:]
        kind = {"INT64": np.int64, "FP32": np.float32, "BYTES": np.object_}[output["datatype"]]
        outputs[output["name"]] = np.array(values, kind).reshape(output["shape"]).tolist()
    assert rest == b""
    return header, outputs


def elements_of(raw: bytes, datatype: str) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(raw, {"INT64": "<i8", "FP32": "<f4"}[datatype])
    texts = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        texts.append(raw[4:end].decode())
        raw = raw[end:]
    return texts
