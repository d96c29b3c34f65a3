"""Clients that read streams and note the moment of each token: of the service, and of Triton itself.

They do as little as can be, so that what they measure is the other side: HTTP is read from a raw socket, and a gRPC
response is not parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc.aio

from hf_transformer.commands.local_triton import HOST
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
PROMPT = "The capital of france is"
PROMPT_IDS = (328, 305, 308, 477, 521, 662, 309)


@dataclass(slots=True)
class Timed:
    """One stream of ``count`` tokens: ``started`` and the moment of each that was seen, in seconds of perf_counter.

    Tokens that are half a character, or no text at all, are not seen.
    """

    started: float
    count: int
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


Client = Callable[[int], Awaitable[Timed]]
"""Reads one stream of so many tokens. Raises SystemExit if it goes wrong."""


class ServiceClient:
    """OpenAI's completions, streamed; each stream on a connection of its own that is there already."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._model = model
        self._chooses = model.startswith("gpt2")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, count: int) -> Timed:
        fields = {"model": self._model, "prompt": PROMPT, "max_tokens": count, "temperature": 0, "stream": True}
        if self._chooses:
            fields |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        body = json.dumps(fields).encode()
        head = f"POST /openai/v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
        found = Timed(time.perf_counter(), count)
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
        tokens, last = found.tokens, b""
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            if not line:
                raise SystemExit("a stream broke off")
            if line.startswith(b"data: {"):
                last = line
                if b'"text":"' in line and b'"text":""' not in line:
                    tokens.append(time.perf_counter())
        while await reader.readline() != b"0\r\n":  # the end of the chunks, then an empty line
            pass
        await reader.readline()
        made = json.loads(last[6:])["usage"]["completion_tokens"] if self._chooses else len(tokens)
        if made != count:
            raise SystemExit(f"{made} tokens, expected {count}")
        self._idle.append((reader, writer))
        return found

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


class TritonClient:
    """ModelStreamInfer of the streaming models, straight to Triton; each stream is a call of its own."""

    def __init__(self, address: str, model: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call = self._channel.stream_stream(METHOD)
        self._model = model

    async def __call__(self, count: int) -> Timed:
        message = self._request(count)
        found = Timed(time.perf_counter(), count)
        call = self._call()
        await call.write(message)
        tokens = found.tokens
        while len(tokens) < count:
            response = await call.read()
            if response is grpc.aio.EOF or b"error" in response:
                raise SystemExit(f"Triton ended a stream after {len(tokens)} tokens: {response!r}")
            tokens.append(time.perf_counter())
        await call.done_writing()
        await call.read()
        return found

    def _request(self, count: int) -> bytes:
        message = pb.ModelInferRequest(model_name=self._model)
        if self._model == "text":
            parameters = json.dumps({"max_tokens": count, "temperature": 0}).encode()
            for name, value in (("text_input", PROMPT.encode()), ("sampling_parameters", parameters)):
                message.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(value)
            message.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
            return message.SerializeToString()
        ids = message.inputs.add(name="input_ids", datatype="INT32", shape=[1, len(PROMPT_IDS)])
        ids.contents.int_contents.extend(PROMPT_IDS)
        for name, number in {
            "input_lengths": len(PROMPT_IDS),
            "request_output_len": count,
            "end_id": 0,
            "runtime_top_k": 1,
        }.items():
            message.inputs.add(name=name, datatype="INT32", shape=[1, 1]).contents.int_contents.append(number)
        for name in ("runtime_top_p", "temperature"):
            message.inputs.add(name=name, datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1.0)
        message.inputs.add(name="random_seed", datatype="UINT64", shape=[1, 1]).contents.uint64_contents.append(1)
        message.inputs.add(name="streaming", datatype="BOOL", shape=[1, 1]).contents.bool_contents.append(True)
        return message.SerializeToString()

    async def close(self) -> None:
        await self._channel.close()


class GenerateClient:
    """generate_stream of the streaming models, straight to Triton; each stream on a connection of its own that is there
    already."""

    def __init__(self, address: str, model: str) -> None:
        self._host, _, self._port = address.partition(":")
        self._model = model
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, count: int) -> Timed:
        body = json.dumps(self._request(count)).encode()
        path = f"/v2/models/{self._model}/generate_stream"
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, int(self._port))
        reader, writer = connection
        found = Timed(time.perf_counter(), count)
        writer.write(head + body)
        tokens = found.tokens
        while (line := await reader.readline()) != b"0\r\n":  # the end of the chunks, then an empty line
            if not line or b'"error"' in line:
                raise SystemExit(f"Triton ended a stream after {len(tokens)} tokens: {line!r}")
            if line.startswith(b"data: {"):
                tokens.append(time.perf_counter())
        await reader.readline()
        if len(tokens) != count:
            raise SystemExit(f"{len(tokens)} tokens, expected {count}")
        self._idle.append(connection)
        return found

    def _request(self, count: int) -> dict[str, object]:
        if self._model == "text":
            parameters = json.dumps({"max_tokens": count, "temperature": 0})
            return {"text_input": PROMPT, "stream": True, "sampling_parameters": parameters}
        return {
            "input_ids": PROMPT_IDS,
            "input_lengths": len(PROMPT_IDS),
            "request_output_len": count,
            "end_id": 0,
            "runtime_top_k": 1,
            "runtime_top_p": 1.0,
            "temperature": 1.0,
            "random_seed": 1,
            "streaming": True,
        }

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
