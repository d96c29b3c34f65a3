"""Calls of the gRPC client to a scripted server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError
from hf_transformer.predictor.http2_frames import GOAWAY, head
from tests.predictor.http2_server import Peer, Request, Script, good, serving


def address_of(host: str) -> Address:
    name, _, port = host.rpartition(":")
    return Address(name, int(port), False)


@asynccontextmanager
async def opened(host: str, seconds: float = 30.0, largest: int = 2**30) -> AsyncIterator[GrpcClient]:
    client = GrpcClient(address_of(host), None, seconds, largest)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: GrpcClient, request: bytes = b"hello") -> bytes:
    return bytes(await client.unary(client.method("/a.B/C"), request))


async def fails(script: Script, seconds: float = 30.0) -> RpcError:
    async with serving(script) as host, opened(host, seconds) as client:
        with pytest.raises(RpcError) as caught:
            await ask(client)
        return caught.value


def goaway(last: int, code: int = 0, why: bytes = b"") -> bytes:
    return head(8 + len(why), GOAWAY, 0, 0) + last.to_bytes(4) + code.to_bytes(4) + why


async def echo(peer: Peer, request: Request) -> None:
    await peer.send(good(request.stream, request.message))
