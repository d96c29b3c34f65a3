"""The open inference protocol (V2) over REST.

    GET  /v2[/]                                     {"name", "version", "extensions"}
    GET  /v2/health/live                            {"live": true}
    GET  /v2/health/ready                           {"ready": true}, 503 while a model is not
    GET  /v2/models                                 {"models": ["bert"]}
    GET  /v2/models/{m}[/versions/{v}]              {"name", "versions", "platform", "inputs", "outputs"}
    GET  /v2/models/{m}[/versions/{v}]/config       the same as Triton's configuration has it, for its clients
    GET  /v2/models/{m}[/versions/{v}]/stats        how many requests, and how long they took, as Triton has it
    GET  /v2/models/stats                           the same of all models
    GET  /v2/models/{m}[/versions/{v}]/ready        {"name": "bert", "ready": true}, 503 while it is not
    POST /v2/models/{m}[/versions/{v}]/infer        tensors -> tensors, in JSON or raw
    POST /v2/repository/index                       {"ready": false} -> [{"name", "version", "state", "reason"}]

Sources: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md, and
extension_statistics.md and extension_model_repository.md in
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import orjson
from starlette.requests import Request
from starlette.routing import Route

from hf_transformer import __version__
from hf_transformer.api.body import to_utf8
from hf_transformer.api.call import V2_PATHS, Call, without_clients_own
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json
from hf_transformer.api.openai.fields import GENERATION
from hf_transformer.api.readiness import find_not_ready, readiness
from hf_transformer.api.responses import JsonResponse, json_route, reply
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.api.tensors import infer
from hf_transformer.errors import InvalidInput, NotReady
from hf_transformer.protocol.descriptions import data_type
from hf_transformer.protocol.rest import HEADER_LENGTH, parse_header_length
from hf_transformer.protocol.rest_server_codec import decode_infer_request, encode_infer_response
from hf_transformer.protocol.server_codec import InferRequest, note_unknown
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelDescription, TensorSpec

SERVER = "hf_transformer"
"""The server's name, also where the protocol names a model's framework and format."""
ABOUT_SERVER: Json = {
    "name": SERVER,
    "version": __version__,
    "extensions": ["binary_tensor_data", "model_configuration", "statistics"],
}
"""The server's metadata; the extensions are those of Triton to the protocol that are understood."""
BINARY = b"application/octet-stream"
HEADER = HEADER_LENGTH.lower().encode()
"""The length of the JSON in front of raw tensors, as ASGI spells headers."""


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""

    async def answer(call: Call) -> Response:
        model = service.models.find(**call.path)
        request = _parse(call, service.max_texts)
        note_unknown(request.ignored, (), call.context.ignored)
        request.parameters = without_clients_own(request.parameters, call.context)
        if request.model_name or request.model_version:
            _check_named(model, request)
        body, length = encode_infer_response(await infer(model, request, call.context), request)
        return reply(body) if length is None else reply(body, BINARY, (HEADER, b"%d" % length))

    async def list_repository(call: Call) -> Response:
        wanted = call.json() if call.body else {}
        ready = wanted.get("ready", False) if isinstance(wanted, dict) else None
        if not isinstance(ready, bool):
            raise InvalidInput.of('body: expected nothing or {"ready": true}')
        return reply(orjson.dumps(await repository_index(service.models, only_ready=ready)))

    endpoint = Endpoint("v2", answer, error_json, service)
    index = Endpoint("repository", list_repository, error_json, service)
    return [("/v2/repository/index", index), *[(f"{path}/infer", endpoint) for path in V2_PATHS]]


def routes(service: Service) -> list[Route]:
    """The other routes of this API."""
    models = service.models

    async def ready(request: Request) -> JsonResponse:
        return await readiness(models.values(), {})

    async def model_ready(request: Request) -> JsonResponse:
        model = models[request.path_params["model"]]
        answer = await readiness([model], {"name": model.name})
        if answer.status_code == 200:
            models.find(**request.path_params)  # a version that is not served is unknown
        return answer

    def about(tell: Callable[[ModelDescription], Json]) -> Callable[..., Json]:
        return lambda **path: tell(models.find(**path).describe())

    told: dict[str, Callable[[ModelDescription], Json]] = {
        "": metadata,
        "/config": lambda found: configuration(found, service.max_instances),
        "/stats": lambda found: statistics([found], service.metrics.totals()),
    }
    return [
        *[json_route(path, lambda: ABOUT_SERVER) for path in ("/v2", "/v2/")],
        json_route("/v2/health/live", lambda: {"live": True}),
        Route("/v2/health/ready", ready),
        json_route("/v2/models", lambda: {"models": models.names}),
        json_route("/v2/models/stats", lambda: statistics(found_models(models), service.metrics.totals())),
        *[Route(f"{path}/ready", model_ready) for path in V2_PATHS],
        *[json_route(f"{path}{end}", about(tell)) for path in V2_PATHS for end, tell in told.items()],
    ]


def metadata(about: ModelDescription) -> dict[str, Json]:
    """A model's metadata: the inputs that a request needs. Clients without configuration would send the others too."""
    return {
        "name": about.name,
        **({"versions": [about.version]} if about.version else {}),
        "platform": SERVER,
        "inputs": _tensors(_required(about)),
        "outputs": _tensors(about.outputs),
    }


def configuration(about: ModelDescription, max_instances: int) -> dict[str, Json]:
    """A model in the form of Triton's configuration, for perf_analyzer and other clients. The axis of instances is the
    batch axis, so ``dims`` have it not."""

    def tensor(one: TensorSpec) -> dict[str, Json]:
        return {"name": one.name, "data_type": data_type(one.datatype), "dims": list(one.shape[1:])}

    return {
        "name": about.name,
        "platform": SERVER,
        "backend": SERVER,
        "max_batch_size": max_instances,
        "input": [{**tensor(one), "optional": False} for one in _required(about)],
        "output": [tensor(one) for one in about.outputs],
        "model_transaction_policy": {"decoupled": False},
    }


def found_models(models: Models) -> list[ModelDescription]:
    """Descriptions of the ready models. Triton lists statistics of loaded models only, too."""
    found = []
    for model in models.values():
        with suppress(NotReady):
            found.append(model.describe())
    return found


def statistics(found: Iterable[ModelDescription], totals: Mapping[str, float]) -> dict[str, Json]:
    """What the service has done (``Metrics.totals``), as Triton tells it. Statistics by batch size are left out."""

    def spent(count: float, seconds: float) -> dict[str, int]:
        return {"count": int(count), "ns": round(seconds * 1e9)}

    count = totals["answered"]
    stats = {
        "success": spent(count, totals["preprocess"] + totals["predict"] + totals["postprocess"]),
        "fail": spent(totals["failed"], totals["failing"]),
        "queue": spent(count, totals["queue"]),
        "compute_input": spent(count, totals["preprocess"]),
        "compute_infer": spent(count, max(totals["predict"] - totals["queue"], 0.0)),
        "compute_output": spent(count, totals["postprocess"]),
        "cache_hit": spent(0, 0.0),
        "cache_miss": spent(0, 0.0),
    }
    last, batches, texts = round(totals["last"] * 1e3), int(totals["batches"]), int(totals["texts"])
    told: list[Json] = []
    for one in found:
        if one.task in GENERATION:
            # The batches of a logits model have a step of each text. The other models get one call for each text.
            counts = {"inference_count": texts, "execution_count": batches or texts}
        else:
            counts = {"inference_count": int(totals["instances"]), "execution_count": batches}
        model = {"name": one.name, "version": one.version, "last_inference": last, **counts}
        told.append({**model, "inference_stats": stats, "batch_stats": []})
    return {"model_stats": told}


async def repository_index(models: Models, *, only_ready: bool) -> list[dict[str, Json]]:
    """The served models with their states; the reason where one is not ready."""
    found: list[dict[str, Json]] = []
    for model in models.values():
        error = await find_not_ready([model])
        if error is None:
            found.append({"name": model.name, "version": model.describe().version, "state": "READY", "reason": ""})
        elif not only_ready:
            found.append({"name": model.name, "version": "", "state": "UNAVAILABLE", "reason": str(error)})
    return found


def _required(about: ModelDescription) -> list[TensorSpec]:
    return [one for one in about.inputs if not one.optional]


def _tensors(specs: Iterable[TensorSpec]) -> list[Json]:
    return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in specs]


def _check_named(model: Model, request: InferRequest) -> None:
    """Raises InvalidInput for a body that names another model or version than the one that is asked."""
    for field, named, expected in (
        ("model_name", request.model_name, model.name),
        ("model_version", request.model_version, model.describe().version),
    ):
        if named and named != expected:
            raise InvalidInput.of(f"{field}: {named[:100]!r} differs from what is asked here, {expected!r}")


def _parse(call: Call, max_texts: int) -> InferRequest:
    """A call's tensors; a charset means something only where the whole body is text. Raises RequestError."""
    given = call.headers.get(HEADER)
    try:
        if given is None:
            return decode_infer_request(to_utf8(call.body, call.headers), None, max_texts)
        return decode_infer_request(call.body, parse_header_length(given), max_texts)
    except Malformed as error:
        raise InvalidInput.of(str(error)) from error
