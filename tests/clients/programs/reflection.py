"""A client that knows nothing of the protocol: it reads the messages by server reflection, as grpcurl does, and sends
typed contents."""

from __future__ import annotations

import base64
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from task import OUTPUT, answer, elements, plain

SERVICE = "inference.GRPCInferenceService"


class Server:
    """Calls methods by name, with JSON for messages."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))

    def call(self, service: str, method: str, message: dict[str, Any]) -> dict[str, Any]:
        found = self.pool.FindServiceByName(service).FindMethodByName(method)
        kinds = [message_factory.GetMessageClass(kind) for kind in (found.input_type, found.output_type)]
        send = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=kinds[0].SerializeToString,
            response_deserializer=kinds[1].FromString,
        )
        request = json_format.ParseDict(message, kinds[0]())
        return json_format.MessageToDict(send(request, timeout=30), preserving_proto_field_name=True)


def parameters_of(request: dict[str, Any]) -> dict[str, Any]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {name: {kinds[type(value)]: value} for name, value in (request.get("parameters") or {}).items()}


def output(response: dict[str, Any]) -> Any:
    (tensor,) = [item for item in response["outputs"] if item["name"] == OUTPUT]
    shape = [int(size) for size in tensor["shape"]]
    contents = tensor["contents"]
    if tensor["datatype"] == "BYTES":
        return plain([base64.b64decode(item) for item in contents["bytes_contents"]])
    if tensor["datatype"] == "INT64":
        return np.array([int(item) for item in contents["int64_contents"]]).reshape(shape).tolist()
    return np.array(contents["fp32_contents"], np.float32).reshape(shape).tolist()


def run(task: dict[str, Any]) -> dict[str, Any]:
    server, model = Server(task["grpc"]), task["model"]
    answers, ids = [], []
    for number, request in enumerate(task["requests"]):
        inputs = []
        for name, value in request["inputs"].items():
            array = elements(value)
            contents = {"bytes_contents": [base64.b64encode(one).decode() for one in array.reshape(-1)]}
            inputs.append({"name": name, "datatype": "BYTES", "shape": list(array.shape), "contents": contents})
        message = {"model_name": model, "id": str(number), "inputs": inputs, "parameters": parameters_of(request)}
        response = server.call(SERVICE, "ModelInfer", message)
        answers.append(output(response))
        ids.append(response["id"])
    live = server.call(SERVICE, "ServerLive", {})["live"]
    asked = (("ServerReady", {}), ("ModelReady", {"name": model}))
    ready = [server.call(SERVICE, method, message)["ready"] for method, message in asked]
    assert server.call("grpc.health.v1.Health", "Check", {})["status"] == "SERVING"
    return {"answers": answers, "ids": ids, "live": live, "ready": ready}


answer(run)
