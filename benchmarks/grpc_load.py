"""A load of ModelInfer calls over one connection of grpc.aio, each with trace metadata of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import grpc
import grpc.aio
import numpy as np
import uvloop

from benchmarks.load import Load, LoadFailed
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb


def infer_bodies(model: str, requests: Sequence[Sequence[str]]) -> list[bytes]:
    """Serialized requests of texts, in tritonclient's form."""
    bodies = []
    for texts in requests:
        message = pb.ModelInferRequest(model_name=model)
        message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        encoded = [text.encode() for text in texts]
        message.raw_input_contents.append(b"".join(len(one).to_bytes(4, "little") + one for one in encoded))
        bodies.append(message.SerializeToString())
    return bodies


def run_grpc(port: int, bodies: Sequence[bytes], in_flight: int, seconds: float) -> Load:
    """Calls with the bodies in rotation, ``in_flight`` at a time. Raises LoadFailed without any answer."""
    return uvloop.run(_call_in_turn(port, bodies, in_flight, seconds))


async def _call_in_turn(port: int, bodies: Sequence[bytes], in_flight: int, seconds: float) -> Load:
    latencies: list[float] = []
    errors = 0
    began = time.perf_counter()
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None)

        async def client(number: int) -> None:
            nonlocal errors
            while (start := time.perf_counter()) < began + seconds:
                trace, span = f"{random.getrandbits(128):032x}", f"{random.getrandbits(64):016x}"
                metadata = (("traceparent", f"00-{trace}-{span}-01"), ("x-request-id", span + trace))
                try:
                    answer = await infer(bodies[number % len(bodies)], metadata=metadata)
                except grpc.aio.AioRpcError:
                    errors += 1
                else:
                    errors += not answer
                    latencies.append(time.perf_counter() - start)
                number += in_flight

        await asyncio.gather(*map(client, range(in_flight)))
    if not latencies:
        raise LoadFailed(f"no call was answered within {seconds:g} s")
    p50, p99 = (1e3 * float(value) for value in np.percentile(latencies, (50, 99)))
    return Load(len(latencies), time.perf_counter() - began, p50, p99, errors)
