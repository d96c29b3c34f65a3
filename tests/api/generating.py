"""The HTTP APIs over a model with a scripted text: the real application, pipeline and tokenizer, without sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Scope

from hf_transformer.api.document.table import served
from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.api.info import find_links
from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.openapi import Documents
from hf_transformer.api.service import Models, Service
from hf_transformer.app.application import gateway, starlette_app
from hf_transformer.app.loading import LoadedModel, load_model
from hf_transformer.core.limits import Admission, Limits
from hf_transformer.errors import RequestError
from hf_transformer.generation.chat import ChatTemplate, load_chat_template
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.responses.families import compose
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import Program, compile_template
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import (
    Generator,
    Prompt,
    Sampling,
    Step,
    TokenScore,
)
from hf_transformer.generation.verification import Verifier
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.tasks.base import GenerationSettings, TaskSettings
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import ModelSpec
from tests.generation.scripted import LIMITS, ScriptedGenerator, pipeline_of
from tests.support.configuring import config
from tests.support.scripted_predictor import ScriptedPredictor
from tests.support.triton_repository import DEMO_MODELS

FOLDER = DEMO_MODELS / "gpt2"
PROMPT = "The capital of france is"
ALL = (
    "greedy temperature top_k top_p min_p seed repetition_penalty presence_penalty frequency_penalty logit_bias "
    "min_tokens stop_token_ids ignore_eos logprobs prompt_logprobs constraint"
).split()
"""Every field of Sampling that a model may support."""


@cache
def tokenizer_of(folder: Path = FOLDER) -> Tokenizer:
    return load_tokenizer(folder, json.loads((folder / "config.json").read_text()))


@cache
def template_of(tokenizer: Tokenizer, override: str | None = None) -> ChatTemplate:
    template = load_chat_template(FOLDER, override, tokenizer.special_tokens)
    assert template is not None
    return template


@cache
def hermes() -> Program:
    """The response template of the demo model: calls, and no reasoning."""
    return compile_template(compose("hermes", None), "test")


@cache
def loaded(*flags: str) -> LoadedModel:
    """The tokenizer and the task of these flags, which keep nothing of a request. Their folders may not change."""
    return load_model(config(*flags))


@cache
def responses_of(tokenizer: Tokenizer) -> ModelResponses:
    return ModelResponses(hermes(), tokenizer.skipped_tokens())


OPTIONS, OPERATIONS, LINKS = cache(config), cache(served), cache(find_links)
"""What depends on flags alone, and takes longer than most tests."""


def application(service: Service, settings: GatewaySettings | None = None, *flags: str) -> AsgiApplication:
    """The HTTP APIs of a service, behind its gateway."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield

    options = OPTIONS(*flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_transformer.app.application.served", OPERATIONS)
        patch.setattr("hf_transformer.api.info.find_links", LINKS)
        patch.setattr(Documents, "body", lambda documents: b"")  # it is built when it is asked for, if it is
        inner = starlette_app(options, service, lifespan)
        outer = gateway(options, service, inner, settings or GatewaySettings())
    return AsgiApplication(outer, inner)


@dataclass
class ServedModel:
    """A served model that generates ``text`` token by token, and acquires ``gate`` before each token."""

    text: str = " paris."
    fails: RequestError | None = None
    after: int = 0
    supported_fields: Iterable[str] = field(default_factory=lambda: list(ALL))
    gate: asyncio.Semaphore | None = None
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    template: str | None = None
    chats: bool = True
    task: type[TextGeneration] = TextGeneration
    timing: bool = True
    limits: Limits = LIMITS
    verifier: Verifier | None = None
    reasons_first: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = tokenizer_of()
        self.metrics = Metrics()
        self.generators: list[ScriptedGenerator] = []
        self.predictor = ScriptedPredictor()
        self.executor = ThreadPoolExecutor(1)
        settings = TaskSettings(model_config={}, vocabulary=self.tokenizer, generation=self.settings, max_length=256)
        self.made_task = self.task(settings)
        self.model = GenerativeModel(
            "gpt2",
            self.made_task,
            cast(Predictor, self.predictor),
            self.build,
            self.metrics.of("gpt2"),
            chat_template=template_of(self.tokenizer, self.template) if self.chats else None,
            responses=responses_of(self.tokenizer),
        )
        self.service = Service(
            Models([self.model]),
            Admission(100, 2**20, self.metrics),
            self.metrics,
            2**20,
            self.limits,
            OpenStreams(),
            server_timing=self.timing,
        )
        self.app = application(self.service)

    @property
    def generator(self) -> ScriptedGenerator:
        return self.generators[-1]

    def build(self, spec: ModelSpec) -> GenerationPipeline:
        wait = None if self.gate is None else self.gate.acquire
        generator = ScriptedGenerator(self.script, supported_fields=self.supported_fields, wait=wait)
        generator.reasons_first = self.reasons_first
        self.generators.append(generator)
        return self.pipeline(generator)

    def pipeline(self, generator: Generator) -> GenerationPipeline:
        return pipeline_of(
            self.tokenizer,
            generator,
            self.executor,
            task=self.made_task,
            max_length=256,
            metrics=self.metrics.of("gpt2"),
            verifier=self.verifier,
        )

    def script(self, prompt: Prompt, sampling: Sampling) -> Iterable[Step | RequestError]:
        ids = self.tokenizer.encode([self.text])[0].ids
        if (most := sampling.prompt_logprobs) is not None:
            top = tuple((token, -1.5 - rank) for rank, token in enumerate((5, 6)[:most], 1))
            prompt.scores = [TokenScore(token, -1.5, top, 3) for token in prompt.ids]
            prompt.scores[0] = TokenScore(prompt.ids[0], None)
        count = len(ids) if sampling.max_tokens is None else sampling.max_tokens
        for number, token in enumerate(ids[:count]):
            if self.fails is not None and number == self.after:
                yield self.fails
            scores = []
            if sampling.logprobs is not None:
                top = tuple(
                    (alternative, -0.5 - rank) for rank, alternative in enumerate((token, 5, 6)[: sampling.logprobs])
                )
                scores = [TokenScore(token, -0.5, top)]
            yield Step(ids=(token,), scores=scores)
        yield Step(finish="length" if count < len(ids) else "stop")

    def requests(self, api: str, status: int) -> float:
        """The number of requests counted with this API and status, of the model and of none."""
        return sum(
            self.metric(f'hf_transformer_requests_total{{api="{api}",model_name="{model}",status="{status}"}}')
            for model in ("", "gpt2")
        )

    @property
    def in_flight(self) -> float:
        return self.metric("hf_transformer_requests_in_flight")

    def metric(self, name: str) -> float:
        return metric(self.metrics, name)


@asynccontextmanager
async def served_model(kind: type[ServedModel] = ServedModel, **options: Any) -> AsyncIterator[ServedModel]:
    made = kind(**options)
    assert await made.model.check_predictor() == ""
    try:
        yield made
        assert made.in_flight == 0, "no request holds a slot"
        assert all(one.running == 0 for one in made.generators), "no generation outlives its request"
    finally:
        made.executor.shutdown()


class Exchange:
    """An HTTP request and its response, piece by piece. Leaving the context closes the connection."""

    def __init__(
        self, app: ASGIApp, path: str, body: Any, *, reads: bool = True, scope: Scope | None = None, **headers: str
    ) -> None:
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "headers": sent,
            **(scope or {}),
        }
        self._app = app
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._left = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.taken = asyncio.Event()
        if reads:
            self.taken.set()
        self.offered = 0
        self._over = False

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        await self.task

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._messages.put_nowait({"type": "over"})

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, cast(Any, None)
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.offered += 1
        await self.taken.wait()
        self._messages.put_nowait(message)

    async def head(self) -> tuple[int, dict[str, str]]:
        message = await self._next()
        assert message["type"] == "http.response.start", message
        self.status = message["status"]
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        return self.status, self.headers

    async def piece(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        if self._over:
            return None
        message = await self._next()
        if message["type"] == "over":
            self._over = True
            return None
        self._over = not message.get("more_body", False)
        return cast(bytes, message.get("body", b""))

    async def rest(self) -> bytes:
        body = b""
        while (piece := await self.piece()) is not None:
            body += piece
        return body

    async def _next(self) -> Message:
        async with asyncio.timeout(20):
            return await self._messages.get()

    def leave(self) -> None:
        """Closes the connection."""
        self._left.set()


@asynccontextmanager
async def client_of(app: AsgiApplication) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", verify=False) as client:
        yield client


def metric(metrics: Metrics, name: str) -> float:
    """The value of a metric by name and labels; 0 for a missing one."""
    values = dict(line.rsplit(" ", 1) for line in metrics.render().decode().splitlines())
    return float(values.get(name, 0))


def counted(metrics: Metrics) -> dict[str, float]:
    """The number of counted requests by status."""
    lines = re.findall(
        r'^hf_transformer_requests_total{.*status="(\d+)"} (.*)', metrics.render().decode(), re.MULTILINE
    )
    counts: dict[str, float] = {}
    for status, number in lines:
        if float(number):
            counts[status] = counts.get(status, 0) + float(number)
    return counts


async def answer_of(made: ServedModel, path: str, body: Any, expected: int = 200, **headers: str) -> Any:
    """The body of a response. Asserts the expected status."""
    status, found = await post(made, path, body, **headers)
    assert status == expected, found
    return found


async def openai_error(made: ServedModel, path: str, body: Any, status: int) -> tuple[str, str | None]:
    """The message and the ``param`` of an error in OpenAI's form."""
    error = (await answer_of(made, path, body, status))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error["message"], error["param"]


async def post(made: ServedModel, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    """The status and the body of a response: JSON, or a list of the JSON in each line or event."""
    async with Exchange(made.app, path, body, reads=True, scope=None, **headers) as exchange:
        status, head = await exchange.head()
        content, kind = await exchange.rest(), head["content-type"]
    if kind == "text/event-stream":
        return status, events(content)
    if kind == "application/jsonl":
        return status, [json.loads(line) for line in content.splitlines()]
    return status, json.loads(content)


def events(content: bytes) -> list[Any]:
    """The data of server-sent events: JSON values and "[DONE]"."""
    assert content.endswith(b"\n\n")
    payloads = []
    for block in content.decode()[:-2].split("\n\n"):
        assert block.startswith("data: ") and "\n" not in block
        data = block.removeprefix("data: ")
        payloads.append(data if data == "[DONE]" else json.loads(data))
    return payloads
