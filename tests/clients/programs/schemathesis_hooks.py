"""What schemathesis can't know from the document alone, so that more of its requests get beyond the first check.

It loads this file itself (SCHEMATHESIS_HOOKS).
"""

from __future__ import annotations

import json
from typing import Any

import schemathesis

HEADER_LENGTH = "inference-header-content-length"


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """The predictor's version in place of most made-up ones: which it is stands in no document."""
    if path_parameters and len(str(path_parameters.get("version", ""))) > 1:
        path_parameters["version"] = "1"
    return path_parameters


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A shape that fits the data, where both are of the right type, and no tensor twice; and time for an answer."""
    parameters = body.get("parameters") if isinstance(body, dict) else None
    if isinstance(parameters, dict) and type(parameters.get("timeout")) is int and parameters["timeout"] > 0:
        parameters["timeout"] = 60_000_000
    if not (isinstance(body, dict) and context.operation.path.endswith("/infer")):
        return body
    inputs = body.get("inputs")
    if isinstance(inputs, list) and all(isinstance(one, dict) for one in inputs):
        for one in inputs:
            _fit(one)
        body["inputs"] = list({json.dumps(one.get("name")): one for one in inputs}.values())
    return body


def _fit(tensor: dict[str, Any]) -> None:
    data, shape = tensor.get("data"), tensor.get("shape")
    if isinstance(data, list) and isinstance(shape, list) and all(type(size) is int for size in shape):
        if data and all(isinstance(row, list) and len(row) == len(data[0]) for row in data):
            tensor["shape"] = [len(data), len(data[0])]
        elif not any(isinstance(row, list) for row in data):
            tensor["shape"] = [len(data)]


@schemathesis.deserializer("application/octet-stream")
def raw_tensors(context: Any, response: Any) -> Any:
    """The JSON of a V2 answer with raw elements; they have to be as many as it says."""
    ((length,),) = [values for name, values in response.headers.items() if name.lower() == HEADER_LENGTH]
    header = json.loads(response.content[: int(length)])
    sizes = [one.get("parameters", {}).get("binary_data_size", 0) for one in header["outputs"]]
    if int(length) + sum(sizes) != len(response.content):
        raise ValueError(f"{len(response.content)} bytes, but {length} of JSON and {sizes} of elements")
    return header


@schemathesis.deserializer("application/jsonl")
def first_line(context: Any, response: Any) -> Any:
    """The first line of a stream; all of them have to be JSON."""
    first, *_ = [json.loads(line) for line in response.content.splitlines()]
    return first
