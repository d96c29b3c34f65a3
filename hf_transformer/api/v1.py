"""KServe's V1 protocol over REST.

    GET  /v1/models                 {"models": ["bert"]}, and OpenAI's list
    GET  /v1/models/{m}             {"name": "bert", "ready": true} and OpenAI's object, 503 if it is not ready
    POST /v1/models/{m}:predict     {"instances": [...], "parameters": {...}} -> {"predictions": [...]}
                                    "parameters": {"stream": true} streams generated text

A stream has a JSON object per line (application/jsonl). KServe's runtime guide (Streaming Responses) does not define
the format of a line:

    {"instance": 0, "text": " paris"}
    {"instance": 0, "text": ".", "finish_reason": "stop", "generated_text": "The capital of france is paris."}

``instance`` is the index of the instance. If num_return_sequences is above 1, ``choice`` is the index of the text.
Lines of different texts may interleave. The last line of a text has ``finish_reason`` (stop, length) and the complete
``generated_text``. An error ends the stream with the line {"error": ...}.

The response to a CloudEvent is a CloudEvent in the request's mode: binary (ce-* headers) or structured
(application/cloudevents+json).

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

import orjson
from msgspec import Meta
from starlette.requests import Request

from hf_transformer.api.body import decoded
from hf_transformer.api.call import Call, apply_triton_parameters, new_request_id
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json
from hf_transformer.api.large_json import is_large, write_large, write_small
from hf_transformer.api.responses import JSON, JsonResponse, View, json_view, readiness, reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, not_streamed, wants_stream
from hf_transformer.errors import EmptyList, InvalidInput, RequestError, UnsupportedEncoding, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.types import Piece
from hf_transformer.protocol.json_text import SMALL_BYTES, parse_json
from hf_transformer.types.fields import Form, OpenBody, about
from hf_transformer.types.http import Response
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Answers, Context, Json, Query

EVENT_HEADERS = frozenset((b"ce-specversion", b"ce-source", b"ce-type", b"ce-id"))
"""The required headers of a CloudEvent in binary mode."""
EVENT, EVENTS = b"application/cloudevents+json", b"application/cloudevents"
"""The content type of a structured CloudEvent in JSON, and the prefix of all CloudEvent content types."""
Attribute: TypeAlias = Annotated[
    str,
    Meta(min_length=1),
    about("An attribute of every CloudEvent.", expected="a non-empty string, as in every CloudEvent"),
]


class CloudEvent(OpenBody, kw_only=True):
    """A CloudEvent in structured mode. Other attributes have no effect."""

    specversion: Annotated[Literal["1.0"], about("The version of CloudEvents.")]
    id: Attribute
    source: Attribute
    type: Attribute
    data: Annotated[Json, about("The body of a request.")] = None
    data_base64: Annotated[
        str | None, about("The data as JSON in base64.", expected="JSON in base64 (RFC 4648)", instead_of="data")
    ] = None


CLOUD_EVENT = Form(CloudEvent)


def endpoints(service: Service) -> dict[str, Endpoint]:
    models, most = service.models, service.limits.max_texts

    async def predict(call: Call) -> Response | TextStream:
        model = models.choose(call.path["model"], call.context)
        structured = call.headers.get(b"content-type", b"")[: len(EVENTS)].lower() == EVENTS
        if structured:  # its data may be JSON text, too
            query = await service.in_turn(lambda: parse_event(call)) if call.size > SMALL_BYTES else parse_event(call)
        else:
            query = parse(call.json())
        if query.parameters:
            query.parameters = apply_triton_parameters(query.parameters, call.context)
        if len(query.instances) > most:
            call.budget.few(query.name, query.instances)  # generation checks the count after parsing
        if query.parameters and wants_stream(model.task, query.parameters):
            if structured:
                raise not_streamed()
            return V1Stream(generative(model, "a stream"), query, call.context)
        answer = render(await model.predict(query, call.context))
        body = await write_large(answer, service.executor) if is_large(call.context) else write_small(answer)
        if structured:
            data = {**event_attributes(call.context.model_name), "data": orjson.Fragment(body)}
            return reply(orjson.dumps(data), EVENT)
        if call.headers.keys() >= EVENT_HEADERS:
            attributes = event_attributes(call.context.model_name).items()
            return reply(body, JSON, *[(b"ce-" + name.encode(), value.encode()) for name, value in attributes])
        return reply(body)

    return {"v1Predict": Endpoint("v1", predict, error_json, service)}


def views(service: Service, cards: Callable[[], Mapping[str, Mapping[str, Json]]]) -> dict[str, View]:
    """Creates the views. ``cards`` returns OpenAI's model objects, for clients with the base URL /v1."""
    models = service.models

    async def model_ready(request: Request) -> JsonResponse:
        name = request.path_params["model"]
        error = await models.find_not_ready(models.find(name))
        return readiness(error, {"name": name, **cards()[name]})

    return {
        "v1Models": json_view(lambda: {"models": models.names, "object": "list", "data": list(cards().values())}),
        "v1Model": model_ready,
    }


def event_attributes(model: str) -> dict[str, str]:
    """The CloudEvent attributes of a response, as in KServe. Knative uses these attributes for routing.

    Source: https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md
    """
    return {
        "specversion": "1.0",
        "id": new_request_id(),
        "source": f"io.kserve.inference.{quote(model)}",
        "type": "io.kserve.inference.response",
        "time": datetime.now(UTC).isoformat(timespec="microseconds"),
    }


def parse_event(call: Call) -> Query:
    """Parses the predict request in a structured CloudEvent.

    Source: https://github.com/cloudevents/spec/blob/main/cloudevents/formats/json-format.md

    Raises:
        UnsupportedEncoding: the format is not JSON, or the body is a batch of events.
        InvalidInput: the body is not an event, or its data is not a predict request.
        TooLarge: the body exceeds the JSON limits.
    """
    content_type = call.headers[b"content-type"].partition(b";")[0].strip()
    if content_type.lower() != EVENT:
        raise UnsupportedEncoding(
            f"Content-Type: expected {EVENT.decode()}, got {content_type[:60].decode('latin-1')!r}; send one event in "
            "this format, or with ce-* headers"
        )
    event = CLOUD_EVENT.read(call.json())
    if event.data is None and event.data_base64 is None:
        raise InvalidInput("data", "data or data_base64", "neither")
    field = "data_base64" if event.data is None else "data"
    call.context.field_names = Names({("body",): (field,)})
    return parse(event.data if event.data_base64 is None else _decode(event.data_base64, call))


def _decode(data: str, call: Call) -> Json:
    """Parses an event's base64-encoded JSON. Raises RequestError."""
    try:
        text = base64.b64decode(data, validate=True)
    except ValueError:  # also binascii.Error, a subclass
        raise InvalidInput("body", "JSON in base64 (RFC 4648)", "another string") from None
    return decoded(parse_json, text, call.limits, call.budget.hold_parsed)


def render(answers: Answers) -> dict[str, Json]:
    """Renders a predict response. Extra output tensors are flat lists with their shape, as in KServe."""
    body: dict[str, Json] = {"predictions": answers.predictions}
    if answers.outputs:
        body["outputs"] = [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": tensor.data.ravel()}
            for tensor in answers.outputs
        ]
    return body


def parse(payload: Json) -> Query:
    """Parses the JSON value of a predict request. Raises InvalidInput for an invalid structure."""
    if not isinstance(payload, dict):
        raise InvalidInput("body", 'an object with "instances"', describe(payload))
    name = "instances" if "instances" in payload else "inputs"  # as in KServe, for V2 clients
    if name not in payload or (name == "instances" and "inputs" in payload):
        got = "both" if name in payload else describe(payload)
        raise InvalidInput("body", '"instances" or "inputs"', got)
    instances = payload[name]
    if isinstance(instances, str):
        instances = [instances]
    if not isinstance(instances, list):
        raise InvalidInput(name, "a list or a string", describe(instances))
    if not instances:
        raise EmptyList(name, "at least one")
    parameters = payload.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidInput("parameters", "an object", describe(parameters))
    return Query(instances, parameters or {})


class V1Stream(TextStream):
    """A stream of JSON lines, one line per piece. The last line of a text contains the complete text."""

    __slots__ = ("_texts", "_with_choice")

    content_type = b"application/jsonl"  # https://jsonlines.org

    def __init__(self, model: GenerativeModel, query: Query, context: Context) -> None:
        request = model.task.request(query)
        super().__init__(model, request, context)
        self._texts = [[""] * request.sampling.n for _ in request.prompts]
        self._with_choice = request.sampling.n > 1

    def piece(self, piece: Piece) -> bytes:
        texts = self._texts[piece.prompt]
        texts[piece.choice] += piece.text
        if not piece.text and piece.finish is None:
            return b""
        line: dict[str, Json] = {"instance": piece.prompt}
        if self._with_choice:
            line["choice"] = piece.choice
        line["text"] = piece.text
        if piece.finish is not None:
            line |= {"finish_reason": piece.finish, "generated_text": texts[piece.choice]}
        return orjson.dumps(line) + b"\n"

    def error(self, error: RequestError) -> bytes:
        return error_json(error, error.status) + b"\n"
