"""Generated text over gRPC, whole and in pieces, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.verification import Verifier
from hf_transformer.protocol.grpc import decode_infer_response
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import raw_view
from hf_transformer.types.tensors import Array, Tensor
from tests.api.generating import PROMPT, ServedModel, answer_of, served_model
from tests.integration.api.grpc_model import Server, count, read, request, serving, status_of, text_of

INFER = "/v2/models/gpt2/infer"


@asynccontextmanager
async def generating(**options: Any) -> AsyncIterator[tuple[ServedModel, Server]]:
    """A served_model with a scripted model, and a gRPC server of it."""
    async with served_model(**options) as made, serving(made.service) as server:
        yield made, server


def generate_request(*texts: str, id: str = "", **parameters: bool | int | str) -> pb.ModelInferRequest:
    message = request(texts[0] if texts else PROMPT, id, "gpt2")
    if len(texts) > 1:
        message.inputs[0].shape[0] = len(texts)
        message.inputs[0].contents.bytes_contents.extend(text.encode() for text in texts[1:])
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


def final(response: pb.ModelInferResponse) -> bool:
    return response.parameters["triton_final_response"].bool_param


async def pieces_of(stream: Any) -> list[pb.ModelInferResponse]:
    """The responses up to the final one."""
    pieces: list[pb.ModelInferResponse] = []
    while not pieces or not final(pieces[-1]):
        message = await read(stream)
        assert not message.error_message
        pieces.append(message.infer_response)
    return pieces


async def test_a_unary_call_has_the_whole_text_and_refuses_stream() -> None:
    async with generating() as (_, server):
        answer = await server.infer(generate_request(id="1"))
        assert (answer.id, answer.outputs[0].name, text_of(answer)) == ("1", "output-0", f"{PROMPT} paris.")
        code, details = await status_of(server.infer(generate_request(stream=True)))
        assert (
            code is grpc.StatusCode.INVALID_ARGUMENT
            and "parameters.stream: expected false, since this API does not stream" in details
        )


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        pytest.param({"type": "no such type"}, grpc.StatusCode.INVALID_ARGUMENT, id="a bad schema"),
        pytest.param(
            {"pattern": "a", "multipleOf": 9999991}, grpc.StatusCode.RESOURCE_EXHAUSTED, id="over the limit of time"
        ),
    ],
)
async def test_a_constraint_that_a_child_process_refuses(schema: Any, code: grpc.StatusCode) -> None:
    async with ChildPool(1, seconds=0.5) as children, generating(verifier=Verifier(children)) as (_, server):
        message = generate_request(structured_outputs=json.dumps({"json": schema}))
        found, details = await status_of(server.infer(message))
        assert found is code and "parameters.structured_outputs: expected a" in details
        stream = server.stream()
        await stream.write(message)
        assert details in (await read(stream)).error_message
        stream.cancel()


async def test_stream_may_be_in_parameters_as_json_text() -> None:
    async with generating() as (made, server):
        stream = server.stream()
        await stream.write(generate_request(parameters='{"stream": true, "return_full_text": false}'))
        pieces = await pieces_of(stream)
        assert len(pieces) > 1 and "".join(map(text_of, pieces)) == " paris."
        await stream.write(generate_request())
        [answer] = await pieces_of(stream)
        assert text_of(answer) == f"{PROMPT} paris."
        assert (
            "parameters.stream: expected false, since this API does not stream"
            in (await status_of(server.infer(generate_request(parameters='{"stream": true}'))))[1]
        )
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
        body = {"inputs": [tensor], "parameters": {"parameters": '{"stream": true}'}}
        assert (await answer_of(made, INFER, body, 400))["error"].startswith(
            "parameters.stream: expected false, since this API does not stream"
        )


@pytest.mark.parametrize("empty", [False, True], ids=["plain", "with empty final responses"])
async def test_pieces_end_with_the_final_response(empty: bool) -> None:
    async with generating() as (_, server):
        stream = server.stream()
        flag = {"triton_enable_empty_final_response": True} if empty else {}
        await stream.write(generate_request(id="7", stream=True, return_full_text=False, **flag))
        await stream.done_writing()
        pieces = await pieces_of(stream)
        assert len(pieces) > 1 and {piece.id for piece in pieces} == {"7"}
        assert "".join(map(text_of, pieces)) == " paris."
        assert all("triton_final_response" in piece.parameters for piece in pieces)
        assert pieces[-1].parameters["finish_reason"].string_param == "stop"
        assert await read(stream) is grpc.aio.EOF  # type: ignore[attr-defined]
        assert server.metric(count(200, "gpt2")) == 1


async def test_pieces_have_the_index_of_their_prompt_and_choice() -> None:
    async with generating() as (_, server):
        stream = server.stream()
        await stream.write(generate_request("A", "B", stream=True, n=2, do_sample=True))
        texts: dict[tuple[int, int], str] = {}
        for piece in await pieces_of(stream):
            key = piece.parameters["instance"].int64_param, piece.parameters["choice"].int64_param
            texts[key] = texts.get(key, "") + text_of(piece)
        assert texts == {(0, 0): "A paris.", (0, 1): "A paris.", (1, 0): "B paris.", (1, 1): "B paris."}


async def test_other_requests_of_a_stream_are_answered_meanwhile() -> None:
    gate = asyncio.Semaphore(0)
    async with generating(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(generate_request(id="slow", stream=True))
        gate.release()
        assert (await read(stream)).infer_response.id == "slow"
        # A refused request needs no step of the blocked model.
        await stream.write(generate_request(id="wrong", stream=True, top_p=7))
        answer = await read(stream)
        assert (
            "parameters.top_p: expected a number from 1e-06 to 1, got 7" in answer.error_message
            and answer.infer_response.id == "wrong"
        )
        for _ in range(20):
            gate.release()
        assert {piece.id for piece in await pieces_of(stream)} == {"slow"}
        assert made.metric(count(400, "gpt2")) == 1


async def test_an_error_in_the_middle_ends_its_request_alone() -> None:
    async with generating(fails=PredictorError("it broke"), after=1) as (_, server):
        stream = server.stream()
        await stream.write(generate_request(id="1", stream=True))
        assert not (await read(stream)).error_message
        answer = await read(stream)
        assert answer.error_message == "it broke" and answer.infer_response.id == "1"
        assert final(answer.infer_response)
        await stream.write(generate_request(id="2", stream=True))
        assert (await read(stream)).infer_response.id == "2"
        assert (await read(stream)).error_message == "it broke"
        await server.until(count(502, "gpt2"), 2)


async def test_cancelling_a_call_ends_the_generation() -> None:
    gate = asyncio.Semaphore(0)
    async with generating(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(generate_request(stream=True))
        gate.release()
        await read(stream)
        stream.cancel()
        await server.until(count(499, "gpt2"), 1)
        assert made.generator.running == 0 and made.in_flight == 0


async def test_shutdown_ends_pieces_with_an_error() -> None:
    gate = asyncio.Semaphore(0)
    async with generating(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(generate_request(id="1", stream=True))
        gate.release()
        await read(stream)
        made.service.streams.end_within(0.2)
        ending = asyncio.create_task(server.end())
        answer = await read(stream)
        assert answer.error_message == "the service is shutting down" and answer.infer_response.id == "1"
        assert (await status_of(read(stream)))[0] is grpc.StatusCode.UNAVAILABLE
        await ending


# Requests in the form of Triton's vLLM and TensorRT-LLM backends


SAMPLE = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "100"}
"""Sampling parameters in the sample of vLLM's backend, which sends them as a tensor and as request parameters."""
SWITCHES: dict[str, Any] = {
    f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")
}
KINDS = {"b": "BOOL", "i": "INT32", "f": "FP32", "O": "BYTES"}


def tensor_of(name: str, value: Any, shape: list[int]) -> Tensor:
    if isinstance(value, str | bytes):
        value = np.array([value.encode() if isinstance(value, str) else value], np.object_)
    data: Array = np.array(value)
    data = data.astype({"i": np.int32, "f": np.float32}.get(data.dtype.kind, data.dtype)).reshape(shape)
    return Tensor(name, KINDS[data.dtype.kind], data)


def tensors(
    *,
    id: str = "",
    shape: tuple[int, ...] = (1,),
    outputs: tuple[str, ...] = ("text_output",),
    parameters: dict[str, str] | None = None,
    **inputs: Any,
) -> pb.ModelInferRequest:
    """A request with raw contents, like tritonclient's."""
    message = pb.ModelInferRequest(model_name="gpt2", id=id)
    for name, value in {"text_input": PROMPT, **inputs}.items():
        tensor = tensor_of(name, value, list(shape))
        message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(raw_view(tensor)))
    for name in outputs:
        message.outputs.add(name=name)
    for name, text in (parameters or {}).items():
        message.parameters[name].string_param = text
    return message


def outputs_of(response: pb.ModelInferResponse) -> dict[str, list[Any]]:
    outputs = decode_infer_response(response.SerializeToString())
    return {
        name: [value.decode() if isinstance(value, bytes) else value for value in tensor.data.tolist()]
        for name, tensor in outputs.items()
    }


async def generated(made: ServedModel, **body: Any) -> Any:
    return (await answer_of(made, "/v2/models/gpt2/generate", {"text_input": PROMPT, **body}))["text_output"]


@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
async def test_the_vllm_backends_sample_is_answered(shape: tuple[int, ...]) -> None:
    async with generating() as (made, server):
        stream = server.stream()
        sampling = json.dumps(SAMPLE)
        await stream.write(tensors(id="1", shape=shape, stream=False, sampling_parameters=sampling, parameters=SAMPLE))
        [answer] = await pieces_of(stream)
        whole = await generated(made, temperature=0.1, top_p=0.95, top_k=0, max_tokens=100)
        assert (answer.id, outputs_of(answer)) == ("1", {"text_output": [whole]}) and whole == f"{PROMPT} paris."
        assert made.generator.asked[0][1] == made.generator.asked[1][1]
        await stream.write(tensors(id="2", shape=shape, stream=True, sampling_parameters=sampling, parameters=SAMPLE))
        pieces = await pieces_of(stream)
        assert len(pieces) > 1 and {piece.id for piece in pieces} == {"2"}
        assert "".join(outputs_of(piece)["text_output"][0] for piece in pieces) == " paris."
        assert made.generator.asked[2][1].temperature == 0.1
        assert [final(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_exclude_input_in_output_leaves_out_the_prompt() -> None:
    async with generating() as (_, server):
        stream = server.stream()
        for streamed, exclude in product((False, True), repeat=2):
            await stream.write(tensors(stream=streamed, exclude_input_in_output=exclude))
            text = "".join(outputs_of(piece)["text_output"][0] for piece in await pieces_of(stream))
            assert text == (" paris." if exclude else f"{PROMPT} paris.")
        assert outputs_of(await server.infer(tensors(outputs=()))) == {"output-0": [f"{PROMPT} paris."]}, (
            "V2's own form"
        )


@pytest.mark.parametrize("n", [1, 2])
async def test_finish_reasons_and_token_counts_are_outputs_on_request(n: int) -> None:
    sampling = json.dumps({"n": n, "temperature": 0.5})
    async with generating() as (made, server):
        stream = server.stream()
        prompt = len(made.tokenizer.encode([PROMPT])[0].ids)
        new = len(made.tokenizer.encode([made.text])[0].ids)
        await stream.write(tensors(**SWITCHES, outputs=(), exclude_input_in_output=True, sampling_parameters=sampling))
        [whole] = await pieces_of(stream)
        assert outputs_of(whole) == {
            "text_output": [" paris."] * n,
            "finish_reason": ["stop"] * n,
            "num_input_tokens": [prompt],
            "num_output_tokens": [new] * n,
        }
        assert [tensor.datatype for tensor in whole.outputs] == ["BYTES", "BYTES", "UINT32", "UINT32"]
        await stream.write(tensors(stream=True, **SWITCHES, outputs=(), sampling_parameters=sampling))
        pieces = [outputs_of(piece) for piece in await pieces_of(stream)]
        assert pieces[0]["finish_reason"] == ["None"] * n and pieces[-1]["finish_reason"] == ["stop"] * n
        for choice in range(n):
            assert "".join(outputs["text_output"][choice] for outputs in pieces) == " paris."
            assert sum(outputs["num_output_tokens"][choice] for outputs in pieces) == new


@pytest.mark.parametrize("ids", [[7], [7, 8]], ids=len)
async def test_a_list_field_may_have_one_element(ids: list[int]) -> None:
    message = tensors()
    tensor = tensor_of("stop_token_ids", ids, [len(ids)])
    message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    message.raw_input_contents.append(bytes(raw_view(tensor)))
    async with generating() as (made, server):
        await server.infer(message)
        assert made.generator.asked[0][1].stop_token_ids == tuple(ids)


async def test_requested_outputs_keep_their_order() -> None:
    async with generating() as (_, server):
        answer = await server.infer(tensors(outputs=("finish_reason", "text_output")))
        assert list(outputs_of(answer)) == ["finish_reason", "text_output"]
        assert (
            "outputs: expected no 'finish_reason', since return_finish_reason switches it off"
            in (await status_of(server.infer(tensors(outputs=("finish_reason",), return_finish_reason=False))))[1]
        )


async def test_a_request_for_tensorrt_llms_ensemble_is_answered() -> None:
    async with generating() as (made, server):
        inputs: dict[str, Any] = {"max_tokens": 3, "temperature": 0.7, "top_k": 4, "top_p": 0.9, "random_seed": 7}
        inputs |= {"bad_words": "", "stop_words": ".", "end_id": 2, "pad_id": 2}
        answer = await server.infer(tensors(shape=(1, 1), outputs=(), **inputs))
        assert outputs_of(answer)["text_output"][0].startswith(f"{PROMPT} p")
        sampling = made.generator.asked[0][1]
        assert (sampling.stop_token_ids, sampling.seed) == ((2,), 7)
        assert (sampling.max_tokens, sampling.top_k, sampling.stop) == (3, 4, (".",))
        assert (sampling.temperature, sampling.top_p) == (0.7, 0.9)


async def test_backends_requests_are_answered_over_rest_too() -> None:
    async with served_model() as made:
        inputs = [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [2]},
            {"name": "return_num_output_tokens", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
        ]
        answer = await answer_of(made, INFER, {"inputs": inputs})
        assert [(output["name"], output["shape"], output["data"]) for output in answer["outputs"]] == [
            ("text_output", [1], [f"{PROMPT} paris"]),
            ("num_output_tokens", [1], [2]),
        ]


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"sampling_parameters": '{"logprobs": 3}'}, "sampling_parameters.logprobs: "),
    ({"sampling_parameters": 7}, "sampling_parameters: expected JSON text, got a number"),
    ({"sampling_parameters": '{"top_k": 3}', "top_k": 4}, "sampling_parameters.top_k: expected one value, got two"),
    ({"sampling_parameters": '{"min_p": 0.5}'}, "sampling_parameters.min_p: "),
    ({"return_logprobs": True}, "return_logprobs: expected false, got true"),
    ({"stream": 1}, "stream: expected true or false, got a number"),
    ({"model_name": "7"}, "inputs: expected 'text_input' and its parameters, got 'model_name'"),
    ({"image": "aGk="}, "image: "),
    ({"text_input": 3}, "text_input: expected a string, got a number"),
    ({"text_input": b"\xff"}, "inputs[0].data[0]: expected text in UTF-8"),
)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_errors_name_the_input_and_its_key(streamed: bool) -> None:
    async with generating(supported_fields=["greedy", "temperature"]) as (_, server):
        stream = server.stream()
        for inputs, message in WRONG:
            await stream.write(tensors(**{"stream": streamed, **inputs}))
            assert (await read(stream)).error_message.startswith(message), inputs


async def test_a_unary_call_refuses_stream_and_a_wrong_shape() -> None:
    async with generating() as (_, server):
        code, details = await status_of(server.infer(tensors(stream=True)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("stream: expected false")
        message = tensors(stream=False)
        message.inputs[1].shape[0] = 2
        message.raw_input_contents[1] = b"\0\0"
        _, details = await status_of(server.infer(message))
        assert "inputs: expected one element for 'stream', the shape [1] or [1, 1], got [2]" in details
