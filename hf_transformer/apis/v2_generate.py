"""Triton's generate extension: a prompt in, its text out, whole or as server-sent events.

    POST /v2/models/{m}[/versions/{v}]/generate          {"text_input": "...", "parameters": {...}}
                                                         -> {"model_name", "model_version", "text_output": "..."}
    POST /v2/models/{m}[/versions/{v}]/generate_stream   -> data: {"model_name", "model_version", "text_output": "..."}

Parameters may also stand beside text_input, as clients of Triton's vLLM and TensorRT-LLM backends send them; they are
those of V1, and these backends' exclude_input_in_output. As in the vLLM backend the prompt is part of what generate
gives (--return_full_text) and none of what generate_stream does, unless a request says otherwise. A stream ends with
its text, an empty one with an event that says so; an error in the middle is {"error": "..."}.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import orjson
from starlette.routing import BaseRoute, Route

from hf_transformer.apis.base import Call, Model, Reply, Service, error_json
from hf_transformer.apis.endpoint import Endpoint
from hf_transformer.apis.generation import STREAM, TextStream, generating, place_of, whole_texts
from hf_transformer.apis.running import Running
from hf_transformer.apis.streaming import EVENTS, Stream, event
from hf_transformer.apis.tensors import check_version
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.tasks.base import describe
from hf_transformer.types import Context, Json, Query

API = "generate"
"""Both routes' name in the metrics."""
PROMPT, ANSWER = "text_input", "text_output"
ABOUT = ("id", "model_name", "model_version")
"""What Triton takes beside inputs and parameters."""
EXCLUDE, FULL = "exclude_input_in_output", "return_full_text"
BAD_WORDS = "bad_words"
"""TensorRT-LLM's own examples send it empty."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. ``head`` is what each of its answers begins with; with ``stream`` it wants pieces. ``beside`` has
    the names that stand in the body itself."""

    request: GenerationRequest
    head: dict[str, Json]
    stream: bool
    beside: Container[str]


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this API."""
    models = service.models

    async def generate(call: Call) -> Reply:
        model = models[call.path["model"]]
        asked = read(call, model, "generate")
        if asked.stream:
            raise InvalidInput("stream: one answer is given here, expected false; generate_stream gives pieces")
        return Reply(orjson.dumps(await _whole(model, asked, call.context)))

    async def generate_stream(call: Call) -> Stream:
        model = models[call.path["model"]]
        asked = read(call, model, "generate_stream")
        if asked.stream:
            return _Events(model, asked, call.context)
        return _OneEvent(model, asked, call.context)

    endpoints = {
        name: Endpoint(API, handle, error_json, service)
        for name, handle in (("generate", generate), ("generate_stream", generate_stream))
    }
    return [
        Route(f"{path}/{name}", endpoint)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        for name, endpoint in endpoints.items()
    ]


def read(call: Call, model: Model, route: str) -> Asked:
    """What a call asks for.

    Raises:
        UnknownModel: another version of the model.
        NotReady: before the predictor has been found.
        RequestError: the body is not what is expected.
    """
    check_version(model, call.path.get("version", ""))
    task = generating(model, route)
    body = call.json()
    if not isinstance(body, dict):
        raise InvalidInput(f'body: expected an object with "{PROMPT}", got {describe(body)}')
    prompt = body.get(PROMPT)
    if not isinstance(prompt, str):
        raise InvalidInput(f"{PROMPT}: expected a string, got {'nothing' if prompt is None else describe(prompt)}")
    streamed = route == "generate_stream"
    with _named_as_sent(body):
        parameters = _parameters(body, streamed)
        stream = parameters[STREAM] = streamed if parameters.get(STREAM) is None else parameters[STREAM]
        request = task.request(Query([prompt], parameters, name=PROMPT))
    head = {"model_name": model.name, "model_version": model.describe().version}
    given = body.get("id")
    if not isinstance(given, str | None):
        raise InvalidInput(f"id: expected a string, got {describe(given)}")
    if given:
        head = {"id": given, **head}
    return Asked(replace(request, name=PROMPT, single=True), head, stream, body)


def _parameters(body: dict[str, Json], streamed: bool) -> dict[str, Json]:
    """Those of the task, wherever they stand in the body. Raises InvalidInput."""
    inside = body.get("parameters")
    if not isinstance(inside, dict | None):
        raise InvalidInput(f"parameters: expected an object, got {describe(inside)}")
    found = {name: value for name, value in body.items() if name not in (PROMPT, "parameters", *ABOUT)}
    for name, value in (inside or {}).items():
        if name in found:
            raise InvalidInput(f"{name[:40]}: given twice, once in parameters")
        found[name] = value
    if found.get(BAD_WORDS) in (None, "", []):
        found.pop(BAD_WORDS, None)
    if found.get("stop_words") == "":
        del found["stop_words"]
    exclude = found.pop(EXCLUDE, None)
    if exclude is not None:
        if not isinstance(exclude, bool):
            raise InvalidInput(f"parameters.{EXCLUDE}: expected true or false, got {describe(exclude)}")
        if found.setdefault(FULL, not exclude) is exclude:
            raise InvalidInput(f"parameters.{EXCLUDE}: {FULL} says the opposite")
    elif streamed:
        found.setdefault(FULL, False)
    return found


@contextmanager
def _named_as_sent(beside: Container[str]) -> Iterator[None]:
    """Lets errors name parameters as they are in the body: those of ``beside`` stand beside the prompt."""
    try:
        yield
    except RequestError as error:
        message = _as_sent(str(error), beside)
        if message == str(error):
            raise
        raise type(error)(message) from error


def _as_sent(message: str, beside: Container[str]) -> str:
    bare = message.removeprefix("parameters.")
    return bare if bare.partition(":")[0] in beside else message


async def _whole(model: Model, asked: Asked, context: Context) -> Json:
    with _named_as_sent(asked.beside):
        [texts] = await whole_texts(model, asked.request, context)
    return _answer(asked, texts)


def _answer(asked: Asked, texts: list[str]) -> Json:
    """All texts of the prompt, of which there is one."""
    return {**asked.head, ANSWER: texts[0] if len(texts) == 1 else texts}


class _Events(TextStream):
    """A stream's answer: an event per piece that has text, and one at least per text, as Triton's has."""

    __slots__ = ("_asked", "_told")

    content_type = EVENTS

    def __init__(self, model: Model, asked: Asked, context: Context) -> None:
        super().__init__(model, asked.request, context)
        self._asked = asked
        self._told: set[int] = set()
        """The choices that there was an event of."""

    def piece(self, piece: Piece) -> bytes:
        if not piece.text and (piece.finish is None or piece.choice in self._told):
            return b""
        self._told.add(piece.choice)
        asked = self._asked
        place = place_of(asked.request, piece.prompt, piece.choice, "instance")
        return event(orjson.dumps({**asked.head, **place, ANSWER: piece.text}))

    def error(self, message: str, status: int) -> bytes:
        return error_event(message, status)

    def named(self, error: RequestError) -> RequestError:
        message = _as_sent(str(error), self._asked.beside)
        return error if message == str(error) else type(error)(message)


class _OneEvent(_Events):
    """All of the texts as one event, at their end."""

    __slots__ = ("_so_far",)

    def __init__(self, model: Model, asked: Asked, context: Context) -> None:
        super().__init__(model, asked, context)
        self._so_far = [""] * self.texts

    def piece(self, piece: Piece) -> bytes:
        self._so_far[piece.choice] += piece.text
        return b""

    def end(self, running: Running) -> bytes:
        return event(orjson.dumps(_answer(self._asked, self._so_far)))


def error_event(message: str, status: int) -> bytes:
    """An error in the middle of a stream."""
    return event(error_json(message, status))
