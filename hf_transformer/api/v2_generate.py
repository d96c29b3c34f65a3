"""Triton's generate extension: a prompt in, its text out, whole or as server-sent events.

    POST /v2/models/{m}[/versions/{v}]/generate          {"text_input": "...", "parameters": {...}}
                                                         -> {"model_name", "model_version", "text_output": "..."}
    POST /v2/models/{m}[/versions/{v}]/generate_stream   -> data: {"model_name", "model_version", "text_output": "..."}

Parameters may also stand beside text_input, as clients of Triton's vLLM and TensorRT-LLM backends send them
(generate_request.py). As in the vLLM backend the prompt is part of what generate gives (--return_full_text) and none of
what generate_stream does, unless a request says otherwise. A stream ends with its text, an empty one with an event that
says so; an error in the middle is {"error": "..."}.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hf_transformer.api.base import Call, Model, Service, error_json, reply
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.generate_request import PROMPT, Asked, Outputs, Told, read_body, whole
from hf_transformer.api.generation import TextStream, generating, place_of
from hf_transformer.api.streaming import EVENTS, StreamForm, event
from hf_transformer.api.tensors import check_version
from hf_transformer.api.v2 import PATHS
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import Piece
from hf_transformer.tasks.base import describe
from hf_transformer.types import Context, Json, Response

API = "generate"
"""Both routes' name in the metrics."""
Head = Mapping[str, Json]
"""What each answer to a request begins with."""


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""
    models = service.models

    async def generate(call: Call) -> Response:
        model = models[call.path["model"]]
        asked, head = read(call, model, "generate")
        if asked.stream:
            raise InvalidInput("stream: one answer is given here, expected false; generate_stream gives pieces")
        told = await whole(model, asked, call.context)
        return reply(orjson.dumps({**head, **_plain(told)}))

    async def generate_stream(call: Call) -> StreamForm:
        model = models[call.path["model"]]
        asked, head = read(call, model, "generate_stream")
        if asked.stream:
            return _Events(model, asked, head, call.context)
        return _OneEvent(model, asked, head, call.context)

    whole_text, pieces = (Endpoint(API, handle, error_json, service) for handle in (generate, generate_stream))
    return [
        (f"{path}/{name}", endpoint)
        for path in PATHS
        for name, endpoint in (("generate", whole_text), ("generate_stream", pieces))
    ]


def read(call: Call, model: Model, route: str) -> tuple[Asked, Head]:
    """What a call asks for, and what its answers begin with.

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
    asked = read_body(task, body, streamed=route == "generate_stream")
    head = {"model_name": model.name, "model_version": model.describe().version}
    given = body.get("id")
    if not isinstance(given, str | None):
        raise InvalidInput(f"id: expected a string, got {describe(given)}")
    return asked, {"id": given, **head} if given else head


def _plain(told: Outputs) -> dict[str, Json]:
    """Outputs as Triton writes them: an only element stands for itself."""
    return {name: values[0] if len(values) == 1 else values for name, values in told.items()}


class _Events(TextStream):
    """A stream's answer: an event per piece that has text, and one at least per text, as Triton's has."""

    __slots__ = ("_asked", "_head", "_prompt_tokens", "_said", "_told")

    content_type = EVENTS

    def __init__(self, model: Model, asked: Asked, head: Head, context: Context) -> None:
        super().__init__(model, asked.request, context)
        self._asked = asked
        self._head = head
        self._prompt_tokens = 0
        self._said: set[int] = set()
        """The choices that there was an event of."""
        self._told = [Told(1) for _ in range(self.texts)]

    async def start(self) -> Generation:
        running = await super().start()
        self._prompt_tokens = running.prompt_tokens
        return running

    def piece(self, piece: Piece) -> bytes:
        asked, told = self._asked, self._told[piece.choice]
        told.add(piece, 0)
        ends = piece.finish is not None and (piece.choice not in self._said or asked.further)
        if not piece.text and not ends:
            return b""
        self._said.add(piece.choice)
        place = place_of(asked.request, piece.prompt, piece.choice, "instance")
        outputs = told.take(asked.further, self._prompt_tokens)
        return event(orjson.dumps({**self._head, **place, **_plain(outputs)}))

    def error(self, message: str, status: int) -> bytes:
        return error_event(message, status)

    def named(self, error: RequestError) -> RequestError:
        message = self._asked.names.as_sent(str(error))
        return error if message == str(error) else type(error)(message)


class _OneEvent(_Events):
    """All of the texts as one event, at their end."""

    __slots__ = ("_all",)

    def __init__(self, model: Model, asked: Asked, head: Head, context: Context) -> None:
        super().__init__(model, asked, head, context)
        self._all = Told(self.texts)

    def piece(self, piece: Piece) -> bytes:
        self._all.add(piece, piece.choice)
        return b""

    def end(self, running: Generation) -> bytes:
        outputs = self._all.take(self._asked.further, running.prompt_tokens)
        return event(orjson.dumps({**self._head, **_plain(outputs)}))


def error_event(message: str, status: int) -> bytes:
    """An error in the middle of a stream."""
    return event(error_json(message, status))
