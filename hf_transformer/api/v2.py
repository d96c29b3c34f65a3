"""The Open Inference Protocol (V2) over REST.

Sources: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md, and
extension_statistics.md and extension_model_repository.md in
https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import orjson
from starlette.requests import Request

from hf_transformer import __version__
from hf_transformer.api.body import decoded, to_utf8
from hf_transformer.api.call import Call, apply_triton_parameters
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.errors import error_json, expect
from hf_transformer.api.large_json import write_in_steps
from hf_transformer.api.responses import JsonResponse, View, json_view, readiness, reply
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.api.tensors import infer
from hf_transformer.core.pipeline import INLINE_VALUES
from hf_transformer.errors import InvalidInput, NotReady
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.observability.series import coarse
from hf_transformer.protocol.descriptions import data_type
from hf_transformer.protocol.rest import HEADER_LENGTH, parse_header_length
from hf_transformer.protocol.rest_server_codec import decode_infer_request, encode_infer_response
from hf_transformer.protocol.server_codec import InferRequest, note_unknown
from hf_transformer.types.fields import Body, Form, OpenBody, about
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelDescription, TensorSpec

SERVER = "hf_transformer"
"""The server's name, also the platform and backend of each model."""
SERVER_METADATA: Json = {
    "name": SERVER,
    "version": __version__,
    "extensions": ["binary_tensor_data", "model_configuration", "statistics"],
}
"""The server's metadata, with Triton's names of extensions."""
BINARY = b"application/octet-stream"
UNLOAD_DEPENDENTS = "unload_dependents"
"""The parameter of unload that Triton's clients always send."""
HEADER = HEADER_LENGTH.lower().encode()
"""The header with the length of the JSON before binary tensors, in lower case."""


class RepositoryIndexRequest(OpenBody):
    ready: Annotated[bool | None, about("Whether to list ready models only.", schema={"default": False})] = None


class LoadRequest(OpenBody):
    parameters: Annotated[
        dict[str, Json] | None, about("Empty: only the operator changes a model's files.", schema={"maxProperties": 0})
    ] = None


class UnloadParameters(Body):
    unload_dependents: Annotated[bool, about("Whether Triton unloads the models of an ensemble too.")] = False


class UnloadRequest(OpenBody):
    parameters: Annotated[dict[str, Json] | None, about("Triton's parameters.", shown=(UnloadParameters, None))] = None


INDEX: Final = Form(RepositoryIndexRequest)
CONTROL: Final[Mapping[str, Form[LoadRequest] | Form[UnloadRequest]]] = {
    "load": Form(LoadRequest),
    "unload": Form(UnloadRequest),
}


def endpoints(service: Service) -> dict[str, Endpoint]:

    def parse(call: Call) -> InferRequest:
        return _parse(call, service.limits.max_texts)

    async def answer(call: Call) -> Response:
        model = service.models.choose(call.path["model"], call.context, call.path.get("version", ""))
        request: InferRequest = call.once(parse)
        note_unknown(request.ignored, (), call.context.ignored)
        request.parameters = apply_triton_parameters(request.parameters, call.context)
        if request.model_name or request.model_version:
            _check_named(model, call.context.model_name, request)
        response = await infer(model, request, call.context)
        if call.context.values <= INLINE_VALUES:
            body, length = encode_infer_response(response, request)
        else:
            write = partial(encode_infer_response, response, request, write_in_steps)
            body, length = await asyncio.get_running_loop().run_in_executor(service.executor, write)
        return reply(body) if length is None else reply(body, BINARY, (HEADER, b"%d" % length))

    async def list_repository(call: Call) -> Response:
        body = INDEX.read(call.json() if call.size else {})
        return reply(orjson.dumps(await repository_index(service.models, only_ready=body.ready or False)))

    def control(action: str) -> Handle:
        async def change(call: Call) -> Response:
            body = CONTROL[action].read(call.json() if call.size else {})
            await control_model(service, action, call.path["model"], body.parameters or {})
            return reply(b"")

        return change

    repository: dict[str, Handle] = {
        "v2RepositoryIndex": list_repository,
        "v2RepositoryLoad": control("load"),
        "v2RepositoryUnload": control("unload"),
    }
    made = {name: Endpoint("repository", handle, error_json, service) for name, handle in repository.items()}
    return {**made, "v2Infer": Endpoint("v2", answer, error_json, service, parse=parse)}


def views(service: Service) -> dict[str, View]:
    models = service.models

    async def ready(request: Request) -> JsonResponse:
        return readiness(await models.find_not_ready(), {})

    async def model_ready(request: Request) -> JsonResponse:
        name = request.path_params["model"]
        error = await models.find_not_ready(models.find(name))
        if error is None:
            find(**request.path_params)  # raises for an unknown version
        return readiness(error, {"name": name})

    def find(model: str, version: str = "") -> Model:
        return models.find(model, version)

    def describe(render: Callable[[ModelDescription], Json]) -> View:
        return json_view(lambda **path: render(find(**path).describe()))

    return {
        "v2Server": json_view(lambda: SERVER_METADATA),
        "v2Live": json_view(lambda: {"live": True}),
        "v2Ready": ready,
        "v2Models": json_view(lambda: {"models": models.names}),
        "v2StatisticsOfAll": json_view(lambda: statistics(ready_models(models), service.metrics.totals_of)),
        "v2ReadyModel": model_ready,
        "v2Metadata": describe(metadata),
        "v2Config": describe(lambda model: configuration(model, service.limits.max_instances)),
        "v2Statistics": describe(lambda model: statistics([model], service.metrics.totals_of)),
    }


def metadata(model: ModelDescription) -> dict[str, Json]:
    """A model's metadata. It omits optional inputs, since some clients send every listed input."""
    return {
        "name": model.name,
        **({"versions": [model.version]} if model.version else {}),
        "platform": SERVER,
        "inputs": _tensors(_required(model)),
        "outputs": _tensors(model.outputs),
    }


def configuration(model: ModelDescription, max_instances: int) -> dict[str, Json]:
    """A model's configuration in Triton's format, for clients such as perf_analyzer. ``dims`` omits the batch axis."""

    def tensor(spec: TensorSpec) -> dict[str, Json]:
        return {"name": spec.name, "data_type": data_type(spec.datatype), "dims": list(spec.shape[1:])}

    return {
        "name": model.name,
        "platform": SERVER,
        "backend": SERVER,
        "max_batch_size": max_instances,
        "input": [{**tensor(spec), "optional": False} for spec in _required(model)],
        "output": [tensor(spec) for spec in model.outputs],
        "model_transaction_policy": {"decoupled": False},
    }


def ready_models(models: Models) -> list[ModelDescription]:
    """The descriptions of ready models. Triton's statistics also include only loaded models."""
    ready = []
    for model in models.served:
        with suppress(NotReady):
            ready.append(model.describe())
    return ready


def statistics(
    models: Sequence[ModelDescription], totals_of: Callable[[Iterable[str]], Mapping[str, Mapping[str, float]]]
) -> dict[str, Json]:
    """Converts ``Metrics.totals_of`` to Triton's statistics, without statistics by batch size."""
    totals = totals_of([model.name for model in models])
    return {"model_stats": [_statistics(model, totals[model.name]) for model in models]}


def _statistics(model: ModelDescription, totals: Mapping[str, float]) -> Json:
    def duration(count: float, seconds: float) -> dict[str, int]:
        return {"count": int(count), "ns": round(seconds * 1e9)}

    preprocess = coarse(totals["preprocess"])
    count, batches, texts = totals["answered"], int(totals["batches"]), int(totals["texts"])
    if model.task in GENERATIVE:
        # A logits model runs one step per text in a batch. Other generative models receive one call per text.
        counts = {"inference_count": texts, "execution_count": batches or texts}
    else:
        counts = {"inference_count": int(totals["instances"]), "execution_count": batches}
    stats = {
        "success": duration(count, preprocess + totals["predict"] + totals["postprocess"]),
        "fail": duration(totals["failed"], totals["failing"]),
        "queue": duration(count, totals["queue"]),
        "compute_input": duration(count, preprocess),
        "compute_infer": duration(count, max(totals["predict"] - totals["queue"], 0.0)),
        "compute_output": duration(count, totals["postprocess"]),
        "cache_hit": duration(0, 0.0),
        "cache_miss": duration(0, 0.0),
    }
    head = {"name": model.name, "version": model.version, "last_inference": round(totals["last"] * 1e3)}
    return {**head, **counts, "inference_stats": stats, "batch_stats": []}


async def control_model(service: Service, action: str, name: str, parameters: Mapping[str, Json]) -> None:
    """Loads or unloads a model at the predictor and in the service. Raises RequestError.

    Triton's parameters ``config`` and ``file:PATH`` replace a model's files, and so the code that Triton runs. They are
    not a client's: only Triton's model repository decides.
    """
    if service.control is None:
        expected = f"a service with --enable_model_control, to {action} a model"
        raise InvalidInput("", expected, "one without")
    known = (UNLOAD_DEPENDENTS,) if action == "unload" else ()
    for parameter, value in parameters.items():
        path = ("parameters", parameter[:40])
        if parameter not in known:
            hint = "the operator changes a model's files and configuration in Triton's model repository"
            raise InvalidInput(path, f"no parameter but {UNLOAD_DEPENDENTS}" if known else "no parameters", "one", hint)
        expect(value, bool, path, "true or false")
    if action == "load":
        await service.control.load(name)
    else:
        await service.control.unload(name, parameters)


async def repository_index(models: Models, *, only_ready: bool) -> list[dict[str, Json]]:
    """The state of each model under each of its names, with a reason if the model is not ready."""
    entries: list[dict[str, Json]] = []
    for model, error in await models.states():
        if error is None:
            state = {"version": model.describe().version, "state": "READY", "reason": ""}
        else:
            state = {"version": "", "state": "UNAVAILABLE", "reason": str(error)}
        if error is None or not only_ready:
            entries += [{"name": name, **state} for name in model.names]
    if not only_ready:
        absent = {"version": "", "state": "UNAVAILABLE"}
        entries += [{"name": name, **absent, "reason": reason} for name, reason in models.absent.items()]
    return entries


def _required(model: ModelDescription) -> list[TensorSpec]:
    return [spec for spec in model.inputs if not spec.optional]


def _tensors(specs: Iterable[TensorSpec]) -> list[Json]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]


def _check_named(model: Model, chosen: str, request: InferRequest) -> None:
    """Raises InvalidInput for a model or version in the body that differs from the path."""
    for field, name, expected in (
        ("model_name", request.model_name, chosen),
        ("model_version", request.model_version, model.describe().version),
    ):
        if name and name != expected:
            raise InvalidInput(field, f"{expected!r}, as in the path", repr(name[:100]))


def _parse(call: Call, max_texts: int) -> InferRequest:
    """Parses the tensors of a call. A body with binary tensors has no charset. Raises RequestError."""
    length, hold = call.headers.get(HEADER), call.budget.hold_parsed
    if length is None:
        return decoded(decode_infer_request, to_utf8(call.body, call.headers), None, max_texts, hold)
    return decoded(decode_infer_request, call.body, decoded(parse_header_length, length), max_texts, hold)
