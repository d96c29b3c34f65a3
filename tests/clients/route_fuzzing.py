"""Damaged bodies for each POST route and each gRPC method of a running service, reproducible by their seed.

The routes, their examples and the names of all fields come from the service's own /openapi.json, so that a new route
has its bodies without a change here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any, Self

import grpc
import orjson

from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.protocol.fuzzing import ODD_VALUES, json_mutations, mutations
from tests.support.service import Service

CLIENTS = 8
"""Requests at a time."""
DEEP = "\ue000"
"""A placeholder for nested lists or objects, whose depth follows."""
DEPTHS = (60, 70, 150, 199, 200, 201, 255, 300, 1000)
"""Around the limits of templates, of a request, and of JSON libraries."""
SIGNS = (("[", "]"), ('{"a":', "}"), ('[{"type":"array","items":', "}]"))
MIXED: tuple[Any, ...] = (
    *([1, "a"], ["a", 1], [1, None], [None, "a"], [[1], "a"], [[1], 1], [True, 2], [1.5, 2], ["a", ["b"]], [{}, "a"]),
    *([1, 2**40], [-1, 5], [[1, 2], [3, "a"]], [[], [1]], ["a"] * 100, [[1, 2]] * 50, [{}] * 20, "a " * 500),
)
"""Lists of different types, and values that repeat."""
PLAUSIBLE: tuple[Any, ...] = (True, True, False, 1, 1, 2, 5, "a", "left", ["a"], [1], [[1, 2]], {"type": "json_object"})
"""Values that some field takes: one field may change how another one is read."""
FAULTS = frozenset(range(500, 600)) - {501, 504}
"""Statuses that no body may have; a request may ask for a model that only tokenizes, and for a timeout of a
microsecond."""
GRPC_FAULTS = frozenset((grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE))


@dataclass
class Outcome:
    """The counted answers of a route by status, and the bodies that were answered with a fault."""

    statuses: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, route: str, status: str, is_fault: bool, body: bytes, answer: bytes) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if is_fault:
            self.faults.append(f"{route}: {status} {answer[:200]!r} for {body[:1500]!r}")


# HTTP


def examples(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The examples of a request's body by path, for all paths that take one."""
    by_path = {}
    for path, item in document["paths"].items():
        content = item.get("post", {}).get("requestBody", {}).get("content", {})
        values = [one["value"] for form in content.values() for one in form.get("examples", {}).values()]
        if "post" in item:
            by_path[path.replace("{version}", "1")] = values or [{}]
    return by_path


def own_fields(document: Mapping[str, Any], path: str) -> list[str]:
    """The names of the fields in the schemas of a path's body."""
    content = orjson.dumps(document["paths"].get(path, {}).get("post", {}).get("requestBody", {})).decode()
    schemas = [document["components"]["schemas"][name] for name in re.findall(r"#/components/schemas/(\w+)", content)]
    return sorted(field_names([orjson.loads(content), *schemas]))


def field_names(value: Any) -> set[str]:
    """The names of all fields in a part of a document."""
    if isinstance(value, list):
        return set().union(*map(field_names, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    properties = value.get("properties")
    names = set(properties) if isinstance(properties, dict) else set()
    return names.union(*map(field_names, value.values())) if value else names


def bodies(seeds: list[Any], names: list[str], random: Random) -> Iterator[bytes]:
    """Bodies that differ from an example in a few values, in a field that another route has, or in a few bytes."""
    damaged = [json_mutations(seed, random) for seed in seeds]
    broken = [mutations(orjson.dumps(seed), random) for seed in seeds]
    while True:
        index = random.randrange(len(seeds))
        if random.random() < 0.15:
            yield next(broken[index])
            continue
        value = next(damaged[index]) if random.random() < 0.5 else seeds[index]
        if isinstance(value, dict):
            value = value | {random.choice(names): random.choice(PLAUSIBLE) for _ in range(random.choice((0, 0, 1, 3)))}
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            value = with_odd_value(value, names, random)
        text = orjson.dumps(value).decode()
        while f'"{DEEP}' in text:
            before, _, after = text.partition(f'"{DEEP}')
            depth, _, after = after.partition('"')
            opening, closing = random.choice(SIGNS)
            levels = int(depth) // (2 if len(opening) > 10 else 1)
            text = before + opening * levels + "1" + closing * levels + after
        yield text.encode()


def with_odd_value(value: Any, names: list[str], random: Random) -> Any:
    """A copy with an odd value at some place, or in a new field."""
    if isinstance(value, dict) and value:
        if random.random() < 0.4:
            return value | {random.choice(names): odd_value(random)}
        name = random.choice(list(value))
        return value | {name: with_odd_value(value[name], names, random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        index = random.randrange(len(value))
        return [*value[:index], with_odd_value(value[index], names, random), *value[index + 1 :]]
    return odd_value(random)


def odd_value(random: Random) -> Any:
    kind = random.random()
    if kind < 0.3:
        return f"{DEEP}{random.choice(DEPTHS)}"
    return random.choice(MIXED if kind < 0.7 else ODD_VALUES)


class HttpClient:
    """A connection that is opened again when the service closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()
            self._streams = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer, as it was sent."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = (f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in head[1:-2])
        if b"content-length" in headers:
            answer = await reader.readexactly(int(headers[b"content-length"]))
        else:
            answer = await _chunks(reader)
        if headers.get(b"connection") == b"close":
            await self._close()
        return int(head[0].split()[1]), answer


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = b""
    while size := int(await reader.readline(), 16):
        parts += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return parts


async def _post_all(port: int, work: Iterator[tuple[str, bytes]], outcome: Outcome) -> None:
    async with HttpClient(port) as client:
        for path, body in work:
            async with asyncio.timeout(60):
                status, answer = await client.post(path, body)
            is_fault = status in FAULTS or b"internal error" in answer
            outcome.add(path, str(status), is_fault, body, answer)


def fuzz_http(service: Service, count: int, seed: int) -> dict[str, Outcome]:
    """Sends ``count`` bodies to each route; the outcomes by route."""
    document = service.client.get("/openapi.json").json()
    names, outcomes = sorted(field_names(document)), {}

    async def run(work: Iterator[tuple[str, bytes]], outcome: Outcome) -> None:
        await asyncio.gather(*(_post_all(service.port, work, outcome) for _ in range(CLIENTS)))

    for path, seeds in examples(document).items():
        outcome = outcomes[path] = Outcome()
        own = own_fields(document, path) * 5  # among the fields of all routes, its own come more often
        work = ((path, body) for body in islice(bodies(seeds, names + own, Random(f"{seed}{path}")), count))
        asyncio.run(run(work, outcome))
    return outcomes


# gRPC


def messages(method: str, valid: Iterable[pb.ModelInferRequest], names: list[str], random: Random) -> Iterator[bytes]:
    """Serialized requests for a method of the V2 service: damaged in their bytes, or with odd parameters."""
    if method not in ("ModelInfer", "ModelStreamInfer"):
        seed = b"\x0a\x04bert\x12\x011"  # a name and a version, or other fields with the same numbers
        yield from mutations(seed, random)
    seeds = list(valid)
    broken = [mutations(seed.SerializeToString(), random) for seed in seeds]
    while True:
        index = random.randrange(len(seeds))
        if random.random() < 0.4:
            yield next(broken[index])
            continue
        message = pb.ModelInferRequest()
        message.CopyFrom(seeds[index])
        for _ in range(random.choice((1, 1, 2))):
            text = next(bodies([random.choice(MIXED)], names, random)).decode(errors="ignore")
            message.parameters[random.choice(names)].string_param = text
            if message.inputs and random.random() < 0.5:
                message.inputs[0].contents.bytes_contents[:] = [text.encode()] * random.choice((1, 1, 3))
        yield message.SerializeToString()


def fuzz_grpc(service: Service, valid: Iterable[pb.ModelInferRequest], count: int, seed: int) -> dict[str, Outcome]:
    """Sends ``count`` messages to each method of the V2 service and of health checks; the outcomes by method."""
    names = sorted(field_names(service.client.get("/openapi.json").json()))
    valid = list(valid)
    methods = [f"/{SERVICE}/{method.name}" for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
    methods += ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"]
    outcomes = {}
    with grpc.insecure_channel(service.grpc_address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        for path in methods:
            outcome = outcomes[path] = Outcome()
            work = messages(path.rpartition("/")[2], valid, names, Random(f"{seed}{path}"))
            is_stream = path.endswith("ModelStreamInfer")
            for body in islice(work, count):
                status, answer = grpc.StatusCode.OK, b""
                try:
                    if is_stream:
                        answer = b"".join(channel.stream_stream(path, None, None)(iter([body]), timeout=60))
                    else:
                        answer = channel.unary_unary(path, None, None)(body, timeout=60)
                except grpc.RpcError as error:
                    status, answer = error.code(), str(error.details()).encode()
                is_fault = status in GRPC_FAULTS or b"internal error" in answer
                outcome.add(path, status.name, is_fault, body, answer)
    return outcomes
