"""KServe's V1 protocol over REST.

    GET  /v1/models                 {"models": ["bert"]}
    GET  /v1/models/{m}             {"name": "bert", "ready": true}, 503 while it is not
    POST /v1/models/{m}:predict     {"instances": [...], "parameters": {...}} -> {"predictions": [...]}
                                    generated text also as a stream, with "parameters": {"stream": true}

A stream is a JSON object per line (application/jsonl). The runtime guide of KServe reads such a stream line by line
(Streaming Responses), and leaves their content open:

    {"instance": 0, "text": " paris"}
    {"instance": 0, "text": ".", "finish_reason": "stop", "generated_text": "The capital of france is paris."}

``instance`` counts the instances, ``choice`` beside it the texts of one where num_return_sequences asks for several.
Lines of different texts come as they are made, those of one text in their order; its last one has ``finish_reason``
(stop, length) and ``generated_text``, which all of its ``text`` make together. An error in the middle is {"error": ...}
and the last line.

A CloudEvent is answered as one, in the mode that it has: binary (ce-* headers) or structured (its attributes are in the
body, application/cloudevents+json, around the request).

Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.routing import Route

from hf_transformer.api.call import Call, new_request_id, without_clients_own
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json, renamed, require_few
from hf_transformer.api.readiness import readiness
from hf_transformer.api.responses import JSON, JsonResponse, json_route, reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, one_answer, wants_stream
from hf_transformer.errors import InvalidInput, UnsupportedEncoding, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.types import Piece
from hf_transformer.protocol.json_text import parse_json
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.http import Response
from hf_transformer.types.request import Answers, Context, Json, Query

CLOUD_EVENT = frozenset((b"ce-specversion", b"ce-source", b"ce-type", b"ce-id"))
"""The attributes that make a request a CloudEvent in binary mode."""
EVENT, EVENTS = b"application/cloudevents+json", b"application/cloudevents"
"""The content type of a CloudEvent in structured mode, and how those of all its formats and batches begin."""


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""
    models = service.models

    async def predict(call: Call) -> Response | TextStream:
        model = models[call.path["model"]]
        structured = call.headers.get(b"content-type", b"")[: len(EVENTS)].lower() == EVENTS
        query = parse_event(call) if structured else parse(call.json())
        query.parameters = without_clients_own(query.parameters, call.context)
        if len(query.instances) > service.max_texts:
            require_few(query.name, query.instances, service.max_texts)  # it would read them before it counts them
        if query.parameters and wants_stream(model.task, query.parameters):
            if structured:
                raise one_answer("parameters.stream")
            return V1Stream(generative(model, "a stream"), query, call.context)
        body = render(await model.predict(query, call.context))
        if structured:
            return reply(orjson.dumps({**event_attributes(model.name), "data": orjson.Fragment(body)}), EVENT)
        if call.headers.keys() >= CLOUD_EVENT:
            attributes = event_attributes(model.name).items()
            return reply(body, JSON, *[(b"ce-" + name.encode(), value.encode()) for name, value in attributes])
        return reply(body)

    return [("/v1/models/{model}:predict", Endpoint("v1", predict, error_json, service))]


def routes(service: Service, cards: Mapping[str, Mapping[str, Json]] | None = None) -> list[Route]:
    """The other routes of this API. ``cards`` are what the OpenAI API says of each model, if it shares the routes."""
    models = service.models
    more = {} if cards is None else {"object": "list", "data": list(cards.values())}

    async def model_ready(request: Request) -> JsonResponse:
        model = models[request.path_params["model"]]
        return await readiness([model], {"name": model.name, **({} if cards is None else cards[model.name])})

    return [
        json_route("/v1/models", lambda: {"models": models.names, **more}),
        Route("/v1/models/{model}", model_ready),
    ]


def event_attributes(model: str) -> dict[str, str]:
    """The attributes of an answer to a CloudEvent, as KServe gives them. Knative's brokers and channels route by them.

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
    """The predict request in a CloudEvent in structured mode.

    Source: https://github.com/cloudevents/spec/blob/main/cloudevents/formats/json-format.md

    Raises:
        UnsupportedEncoding: it is in another format than JSON, or a batch of events.
        InvalidInput: it is no event, or its data is no predict request; the message names the field.
        TooLarge: it has more lists, objects, keys or values than are taken.
    """
    content_type = call.headers[b"content-type"].partition(b";")[0].strip()
    if content_type.lower() != EVENT:
        shown = content_type[:60].decode("latin-1")
        raise UnsupportedEncoding(
            f"Content-Type: {shown!r} is not taken; send one event as {EVENT.decode()}, or with ce-* headers"
        )
    event = call.json()
    if not isinstance(event, dict):
        raise InvalidInput.of(f"body: expected a CloudEvent, which is an object, got {describe(event)}")
    for name in ("specversion", "id", "source", "type"):
        value = event.get(name)
        if not isinstance(value, str) or not value:
            got = "an empty one" if value == "" else describe(value) if name in event else "none"
            raise InvalidInput.of(f"{name}: expected a string that is not empty, as each CloudEvent has it, got {got}")
    if event["specversion"] != "1.0":
        raise InvalidInput.of(f'specversion: expected "1.0", got {event["specversion"][:40]!r}')
    plain, encoded = event.get("data"), event.get("data_base64")
    if (plain is None) == (encoded is None):
        raise InvalidInput.of(f"data: expected data or data_base64, got {'neither' if plain is None else 'both'}")
    field = "data_base64:" if plain is None else "data:"
    with renamed(lambda message: re.sub("^body:", field, message)):
        return parse(_decoded(encoded, call) if plain is None else plain)


def _decoded(data: Json, call: Call) -> Json:
    """The value in an event's JSON in base64. Raises RequestError."""
    expected = "body: expected JSON in base64 (RFC 4648)"
    if not isinstance(data, str):
        raise InvalidInput.of(f"{expected}, got {describe(data)}")
    try:
        text = base64.b64decode(data, validate=True)
    except ValueError:  # binascii's error among them
        raise InvalidInput.of(f"{expected}, got another string") from None
    try:
        return parse_json(text, call.limits)
    except Malformed as error:
        raise InvalidInput.of(str(error)) from None


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
    if not isinstance(payload, dict):
        raise InvalidInput.of(f'body: expected an object with "instances", got {describe(payload)}')
    usual, other = "instances", "inputs"  # clients that know V2 send the second; KServe reads it too
    name = usual if usual in payload else other
    if name not in payload or (name == usual and other in payload):
        found = "both" if name in payload else f"neither, in {describe(payload)}"
        raise InvalidInput.of(f'body: expected "instances" or "inputs", got {found}')
    instances = payload[name]
    if isinstance(instances, str):
        instances = [instances]
    if not isinstance(instances, list):
        raise InvalidInput.of(f"{name}: expected a list or a string, got {describe(instances)}")
    if not instances:
        raise InvalidInput.of(f"{name}: expected at least one, got an empty list")
    parameters = payload.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidInput.of(f"parameters: expected an object, got {describe(parameters)}")
    return Query(instances, parameters or {})


class V1Stream(TextStream):
    """A line for each piece, with the whole text in the last one."""

    __slots__ = ("_several", "_so_far")

    content_type = b"application/jsonl"  # https://jsonlines.org

    def __init__(self, model: GenerativeModel, query: Query, context: Context) -> None:
        """Raises RequestError for a request that is wrong in itself."""
        request = model.task.request(query)
        super().__init__(model, request, context)
        self._so_far = [[""] * request.sampling.n for _ in request.prompts]
        self._several = request.sampling.n > 1

    def piece(self, piece: Piece) -> bytes:
        so_far = self._so_far[piece.prompt]
        so_far[piece.choice] += piece.text
        if not piece.text and piece.finish is None:
            return b""
        line: dict[str, Json] = {"instance": piece.prompt}
        if self._several:
            line["choice"] = piece.choice
        line["text"] = piece.text
        if piece.finish is not None:
            line |= {"finish_reason": piece.finish, "generated_text": so_far[piece.choice]}
        return orjson.dumps(line) + b"\n"

    def error(self, message: str, status: int) -> bytes:
        return error_json(message, status) + b"\n"
