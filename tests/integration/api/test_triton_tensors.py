"""Tensors named as those of Triton's vLLM and TensorRT-LLM backends, over gRPC and REST, over a scripted model."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.protocol.grpc import decode_infer_response
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import raw_view
from hf_transformer.types import Array, Tensor
from tests.api.generating import PROMPT, Bench, bench, post
from tests.integration.api.grpc_model import read, told
from tests.integration.api.test_grpc_generate import final, pieces_of, writing

pytestmark = pytest.mark.asyncio

SAMPLE = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "100"}
"""What the sample of vLLM's backend sends, as a tensor and as the request's own parameters."""
SWITCHES: dict[str, Any] = {
    f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")
}
KINDS = {"b": "BOOL", "i": "INT32", "f": "FP32", "O": "BYTES"}
INFER = "/v2/models/gpt2/infer"


def tensor_of(name: str, value: Any, shape: list[int]) -> Tensor:
    if isinstance(value, str | bytes):
        value = np.array([value.encode() if isinstance(value, str) else value], np.object_)
    data: Array = np.array(value)
    data = data.astype({"i": np.int32, "f": np.float32}.get(data.dtype.kind, data.dtype)).reshape(shape)
    return Tensor(name, KINDS[data.dtype.kind], data)


def asking(
    *,
    id: str = "",
    shape: tuple[int, ...] = (1,),
    outputs: tuple[str, ...] = ("text_output",),
    parameters: dict[str, str] | None = None,
    **inputs: Any,
) -> pb.ModelInferRequest:
    """A request as tritonclient makes it: raw."""
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
    found = decode_infer_response(response.SerializeToString())
    return {
        name: [one.decode() if isinstance(one, bytes) else one for one in tensor.data.tolist()]
        for name, tensor in found.items()
    }


async def generated(made: Bench, **body: Any) -> Any:
    status, found = await post(made, "/v2/models/gpt2/generate", {"text_input": PROMPT, **body})
    assert status == 200, found
    return found["text_output"]


@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
async def test_the_sample_of_the_vllm_backend(shape: tuple[int, ...]) -> None:
    async with writing() as (made, server):
        stream = server.stream()
        sampling = json.dumps(SAMPLE)
        await stream.write(asking(id="1", shape=shape, stream=False, sampling_parameters=sampling, parameters=SAMPLE))
        [answer] = await pieces_of(stream)
        whole = await generated(made, temperature=0.1, top_p=0.95, top_k=0, max_tokens=100)
        assert (answer.id, outputs_of(answer)) == ("1", {"text_output": [whole]}) and whole == f"{PROMPT} paris."
        assert made.generator.asked[0][1] == made.generator.asked[1][1]
        await stream.write(asking(id="2", shape=shape, stream=True, sampling_parameters=sampling, parameters=SAMPLE))
        found = await pieces_of(stream)
        assert len(found) > 1 and {one.id for one in found} == {"2"}
        assert "".join(outputs_of(one)["text_output"][0] for one in found) == " paris."
        assert made.generator.asked[2][1].temperature == 0.1
        assert [final(one) for one in found] == [False] * (len(found) - 1) + [True]


async def test_whether_the_prompt_is_told() -> None:
    async with writing() as (_, server):
        stream = server.stream()
        for streamed, exclude in product((False, True), repeat=2):
            await stream.write(asking(stream=streamed, exclude_input_in_output=exclude))
            text = "".join(outputs_of(one)["text_output"][0] for one in await pieces_of(stream))
            assert text == (" paris." if exclude else f"{PROMPT} paris.")
        assert outputs_of(await server.infer(asking(outputs=()))) == {"output-0": [f"{PROMPT} paris."]}, "V2's own form"


@pytest.mark.parametrize("n", [1, 2])
async def test_what_is_told_beside_the_text(n: int) -> None:
    more = json.dumps({"n": n, "temperature": 0.5})
    async with writing() as (made, server):
        stream = server.stream()
        prompt = len(made.tokenizer.encode([PROMPT])[0].ids)
        new = len(made.tokenizer.encode([made.text])[0].ids)
        await stream.write(asking(**SWITCHES, outputs=(), exclude_input_in_output=True, sampling_parameters=more))
        [whole] = await pieces_of(stream)
        assert outputs_of(whole) == {
            "text_output": [" paris."] * n,
            "finish_reason": ["stop"] * n,
            "num_input_tokens": [prompt],
            "num_output_tokens": [new] * n,
        }
        assert [one.datatype for one in whole.outputs] == ["BYTES", "BYTES", "UINT32", "UINT32"]
        await stream.write(asking(stream=True, **SWITCHES, outputs=(), sampling_parameters=more))
        found = [outputs_of(one) for one in await pieces_of(stream)]
        assert found[0]["finish_reason"] == ["None"] * n and found[-1]["finish_reason"] == ["stop"] * n
        for choice in range(n):
            assert "".join(one["text_output"][choice] for one in found) == " paris."
            assert sum(one["num_output_tokens"][choice] for one in found) == new


@pytest.mark.parametrize("ids", [[7], [7, 8]], ids=len)
async def test_a_list_of_one_element_is_a_list(ids: list[int]) -> None:
    message = asking()
    tensor = tensor_of("stop_token_ids", ids, [len(ids)])
    message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    message.raw_input_contents.append(bytes(raw_view(tensor)))
    async with writing() as (made, server):
        await server.infer(message)
        assert made.generator.asked[0][1].stop_token_ids == tuple(ids)


async def test_outputs_by_name_in_their_order() -> None:
    async with writing() as (_, server):
        answer = await server.infer(asking(outputs=("finish_reason", "text_output")))
        assert list(outputs_of(answer)) == ["finish_reason", "text_output"]
        assert (
            "'finish_reason' is asked for, and return_finish_reason switches it off"
            in (await told(server.infer(asking(outputs=("finish_reason",), return_finish_reason=False))))[1]
        )


async def test_the_ensemble_of_tensorrt_llm() -> None:
    async with writing() as (made, server):
        given: dict[str, Any] = {"max_tokens": 3, "temperature": 0.7, "top_k": 4, "top_p": 0.9, "random_seed": 7}
        given |= {"bad_words": "", "stop_words": ".", "end_id": 2, "pad_id": 2}
        answer = await server.infer(asking(shape=(1, 1), outputs=(), **given))
        assert outputs_of(answer)["text_output"][0].startswith(f"{PROMPT} p")
        sampling = made.generator.asked[0][1]
        assert (sampling.stop_token_ids, sampling.seed) == ((2,), 7)
        assert (sampling.max_tokens, sampling.top_k, sampling.stop) == (3, 4, (".",))
        assert (sampling.temperature, sampling.top_p) == (0.7, 0.9)


async def test_over_rest_too() -> None:
    async with bench() as made:
        inputs = [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [2]},
            {"name": "return_num_output_tokens", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
        ]
        status, found = await post(made, INFER, {"inputs": inputs})
        assert status == 200
        assert [(one["name"], one["shape"], one["data"]) for one in found["outputs"]] == [
            ("text_output", [1], [f"{PROMPT} paris"]),
            ("num_output_tokens", [1], [2]),
        ]


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"sampling_parameters": '{"logprobs": 3}'}, "sampling_parameters.logprobs: unknown, expected one of"),
    ({"sampling_parameters": 7}, "sampling_parameters: expected JSON text, got a number"),
    ({"sampling_parameters": '{"top_k": 3}', "top_k": 4}, "sampling_parameters.top_k: given twice, with another"),
    ({"sampling_parameters": '{"min_p": 0.5}'}, "sampling_parameters.min_p: this model is a tokens model"),
    ({"return_logprobs": True}, "return_logprobs: it can't be asked for here, expected false"),
    ({"stream": 1}, "stream: expected true or false, got a number"),
    ({"model_name": "7"}, "inputs: 'model_name' is unknown"),
    ({"image": "aGk="}, "image: unknown"),
    ({"text_input": 3}, "text_input: expected a string, got a number"),
    ({"text_input": b"\xff"}, "inputs: element 0 of 'text_input' is not UTF-8"),
)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_what_is_wrong_is_named(streamed: bool) -> None:
    async with writing(honours=["greedy", "temperature"]) as (_, server):
        stream = server.stream()
        for inputs, says in WRONG:
            await stream.write(asking(**{"stream": streamed, **inputs}))
            found = (await read(stream)).error_message
            assert found.startswith(says), inputs


async def test_what_one_answer_can_not_be() -> None:
    async with writing() as (_, server):
        code, says = await told(server.infer(asking(stream=True)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert says.startswith("stream: one answer is given here, expected false")
        message = asking(stream=False)
        message.inputs[1].shape[0] = 2
        message.raw_input_contents[1] = b"\0\0"
        _, says = await told(server.infer(message))
        assert "'stream' has the shape [2], expected one element: [1] or [1, 1]" in says
