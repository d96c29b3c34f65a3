"""The open inference protocol (V2) over REST.

    GET  /v2[/]                                     {"name", "version", "extensions"}
    GET  /v2/health/live                            {"live": true}
    GET  /v2/health/ready                           {"ready": true}, 503 while a model is not
    GET  /v2/models                                 {"models": ["bert"]}
    GET  /v2/models/{m}[/versions/{v}]              {"name", "versions", "platform", "inputs", "outputs"}
    GET  /v2/models/{m}[/versions/{v}]/config       the same as Triton's configuration has it, for its clients
    GET  /v2/models/{m}[/versions/{v}]/ready        {"name": "bert", "ready": true}, 503 while it is not
    POST /v2/models/{m}[/versions/{v}]/infer        tensors -> tensors, in JSON or raw

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from hf_transformer import __version__
from hf_transformer.api.base import (
    V2_PATHS,
    Call,
    JsonResponse,
    Model,
    Models,
    Service,
    error_json,
    readiness,
    reply,
    without_clients_own,
)
from hf_transformer.api.body import to_utf8
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.tensors import infer
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.descriptions import data_type
from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.protocol.rest import HEADER_LENGTH, parse_header_length
from hf_transformer.protocol.rest_inbound import decode_infer_request, encode_infer_response
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Json, ModelDescription, Response, TensorSpec

SERVER = "hf_transformer"
EXTENSIONS = ("binary_tensor_data", "model_configuration")
"""What of Triton's extensions to the protocol is understood."""
PLATFORM = "hf_transformer"
"""What the protocol calls the framework and format of a model."""
BINARY = b"application/octet-stream"
HEADER = HEADER_LENGTH.lower().encode()
"""The length of the JSON in front of raw tensors, as ASGI spells headers."""


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""

    async def answer(call: Call) -> Response:
        model = _find(service.models, call.path)
        request = _parse(call, service.max_texts)
        request.parameters = without_clients_own(request.parameters, call.context)
        if request.model_name or request.model_version:
            _check_named(model, request)
        body, length = encode_infer_response(await infer(model, request, call.context), request)
        return reply(body) if length is None else reply(body, BINARY, (HEADER, b"%d" % length))

    endpoint = Endpoint("v2", answer, error_json, service)
    return [(f"{path}/infer", endpoint) for path in V2_PATHS]


def routes(service: Service) -> list[BaseRoute]:
    """The other routes of this API."""
    return [*_server_routes(service.models), *_model_routes(service.models)]


def _server_routes(models: Models) -> list[BaseRoute]:
    async def server(request: Request) -> JsonResponse:
        return JsonResponse({"name": SERVER, "version": __version__, "extensions": EXTENSIONS})

    async def live(request: Request) -> JsonResponse:
        return JsonResponse({"live": True})

    async def ready(request: Request) -> JsonResponse:
        return await readiness(models.values(), {})

    async def list_models(request: Request) -> JsonResponse:
        return JsonResponse({"models": models.names})

    return [
        Route("/v2", server),
        Route("/v2/", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models", list_models),
    ]


def _model_routes(models: Models) -> list[BaseRoute]:
    async def show(request: Request) -> JsonResponse:
        return JsonResponse(metadata(_find(models, request.path_params).describe()))

    async def show_config(request: Request) -> JsonResponse:
        return JsonResponse(configuration(_find(models, request.path_params).describe()))

    async def ready(request: Request) -> JsonResponse:
        model = models[request.path_params["model"]]
        answer = await readiness([model], {"name": model.name})
        if answer.status_code == 200:
            _find(models, request.path_params)  # a version that is not served is unknown
        return answer

    return [
        route
        for path in V2_PATHS
        for route in (
            Route(f"{path}/ready", ready),
            Route(f"{path}/config", show_config),
            Route(path, show),
        )
    ]


def _find(models: Models, path: Mapping[str, str]) -> Model:
    """The model that a path names. Raises UnknownModel or NotReady."""
    return models.find(path["model"], path["version"]) if "version" in path else models[path["model"]]


def metadata(about: ModelDescription) -> dict[str, Json]:
    """A model's metadata."""
    return {
        "name": about.name,
        **({"versions": [about.version]} if about.version else {}),
        "platform": PLATFORM,
        "inputs": _tensors(about.inputs),
        "outputs": _tensors(about.outputs),
    }


def configuration(about: ModelDescription) -> dict[str, Json]:
    """A model in the form of Triton's configuration, for perf_analyzer and other clients. There is no batch axis of
    Triton's own, so shapes are whole."""

    def tensor(one: TensorSpec) -> dict[str, Json]:
        return {"name": one.name, "data_type": data_type(one.datatype), "dims": list(one.shape)}

    return {
        "name": about.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": [{**tensor(one), "optional": one.optional} for one in about.inputs],
        "output": [tensor(one) for one in about.outputs],
        "model_transaction_policy": {"decoupled": False},
    }


def _tensors(specs: Iterable[TensorSpec]) -> list[Json]:
    return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in specs]


def _check_named(model: Model, request: InferRequest) -> None:
    """Raises InvalidInput for a body that names another model or version than the one that is asked."""
    for field, named, expected in (
        ("model_name", request.model_name, model.name),
        ("model_version", request.model_version, model.describe().version),
    ):
        if named and named != expected:
            raise InvalidInput(f"{field}: {named[:100]!r} differs from what is asked here, {expected!r}")


def _parse(call: Call, max_texts: int) -> InferRequest:
    """A call's tensors; a charset means something only where the whole body is text.

    Raises:
        RequestError: the body is not a request, see decode_infer_request.
    """
    given = call.headers.get(HEADER)
    try:
        if given is None:
            return decode_infer_request(to_utf8(call.body, call.headers), None, max_texts)
        return decode_infer_request(call.body, parse_header_length(given), max_texts)
    except Malformed as error:
        raise InvalidInput(str(error)) from error
