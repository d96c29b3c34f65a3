"""Requests and answers that the tests of the REST transport share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor.base import Destination, PredictorSettings
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, scripted

IDS = Tensor("input_ids", "INT64", np.array([[101, 103, 102]]))
LOGITS = np.array([[0.25, 0.75]], "<f4")
HEADER = orjson.dumps(
    {"outputs": [{"name": "logits", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}
)
FRAMING = f"Inference-Header-Content-Length: {len(HEADER)}"


def predictor(host: str, timeout: float = 30.0) -> RestPredictor:
    return RestPredictor(PredictorSettings("my model", host, timeout=timeout))


async def infer(
    rest: RestPredictor,
    inputs: Sequence[Tensor] = (IDS,),
    outputs: Sequence[str] = ("logits",),
    headers: Mapping[str, str] | None = None,
    destination: Destination | None = None,
) -> list[float]:
    reply = await rest.infer(inputs, outputs, headers or {}, destination=destination)
    values: list[float] = reply.tensors["logits"].data.ravel().tolist()
    reply.release()
    return values


async def good_answer(connection: Connection) -> None:
    await connection.answer("200 OK", HEADER + LOGITS.tobytes(), FRAMING)


async def fails(
    answer: Callable[[Connection], Awaitable[None]],
    destination: Destination | None = None,
    call: Callable[[RestPredictor], Awaitable[object]] | None = None,
) -> RequestError:
    """The error that a script's answer to one request leads to, an inference unless ``call`` makes another."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises((PredictorError, PredictorUnavailable, PredictorTimeout)) as caught:
            await (infer(rest, destination=destination) if call is None else call(rest))
        return caught.value
