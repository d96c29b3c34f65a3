"""KServe's V1 protocol over REST.

    GET  /v1/models                 {"models": ["bert"]}
    GET  /v1/models/{m}             {"name": "bert", "ready": true}, 503 while it is not
    POST /v1/models/{m}:predict     {"instances": [...], "parameters": {...}} -> {"predictions": [...]}
                                    generated text also as a stream, see v1_stream.py

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hf_transformer.api.base import Call, JsonResponse, Reply, Service, error_json
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.generation import refuse_many, wants_stream
from hf_transformer.api.streaming import Stream
from hf_transformer.api.v1_stream import V1Stream
from hf_transformer.errors import InvalidInput, NotReady
from hf_transformer.tasks.base import describe
from hf_transformer.types import Answers, Json, Query

INSTANCES = ("instances", "inputs")
"""The two names that clients use for the list; KServe reads the second for V2-minded clients."""


@dataclass(frozen=True, slots=True)
class MoreFields:
    """What another API that shares the routes about models says there: beside the list, and of each model by name."""

    of_list: Mapping[str, Json] = field(default_factory=dict)
    of_models: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)


def routes(service: Service, more: MoreFields | None = None) -> list[BaseRoute]:
    """The routes of this API; ``more`` is added to what the first two answer."""
    more = more or MoreFields()
    models = service.models

    async def predict(call: Call) -> Reply | Stream:
        model = models[call.path["model"]]
        query = parse(call.json())
        if len(query.instances) > service.max_texts:
            refuse_many(model.task, query, service.max_texts)
        if query.parameters and wants_stream(model.task, query.parameters):
            return V1Stream(model, query, call.context)
        return Reply(render(await model.predict(query, call.context)))

    async def list_models(request: Request) -> Response:
        return JsonResponse({"models": models.names, **more.of_list})

    async def model_ready(request: Request) -> Response:
        model = models[request.path_params["model"]]
        beside = more.of_models.get(model.name, {})
        try:
            await model.require_ready()
        except NotReady as error:
            body = {"name": model.name, "ready": False, "error": str(error), **beside}
            return JsonResponse(body, 503, {"Retry-After": str(error.retry_after)})
        return JsonResponse({"name": model.name, "ready": True, **beside})

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{model}:predict", Endpoint("v1", predict, error_json, service)),
        Route("/v1/models/{model}", model_ready),
    ]


def render(answers: Answers) -> bytes:
    """A predict response's JSON; tensors beside the predictions as KServe has them, flat with their shape."""
    body: dict[str, Json] = {"predictions": answers.predictions}
    if answers.outputs:
        body["outputs"] = [
            {"name": one.name, "datatype": one.datatype, "shape": one.shape, "data": one.data.ravel()}
            for one in answers.outputs
        ]
    # Embeddings are float32 arrays: written as such they have the shortest digits, half as many as a double's.
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def parse(payload: Json) -> Query:
    """A predict request's JSON value. Raises InvalidInput where it has not the shape above."""
    if type(payload) is dict and len(payload) == 1:  # as most are
        instances = payload.get("instances")
        if type(instances) is list and instances:
            return Query(instances, {})
    if not isinstance(payload, dict):
        raise InvalidInput(f'body: expected an object with "instances", got {describe(payload)}')
    usual, other = INSTANCES
    name = usual if usual in payload else other
    if name not in payload or (name == usual and other in payload):
        found = "both" if name in payload else f"neither, in {describe(payload)}"
        raise InvalidInput(f'body: expected "instances" or "inputs", got {found}')
    instances = payload[name]
    if isinstance(instances, str):
        instances = [instances]
    if not isinstance(instances, list):
        raise InvalidInput(f"{name}: expected a list or a string, got {describe(instances)}")
    if not instances:
        raise InvalidInput(f"{name}: expected at least one, got an empty list")
    parameters = payload.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidInput(f"parameters: expected an object, got {describe(parameters)}")
    return Query(instances, parameters or {})
