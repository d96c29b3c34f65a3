"""Shared objects of all APIs, such as the served models, limits, metrics and admission."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from hf_transformer.core.limits import Admission, Limits
from hf_transformer.core.model import ServedModel
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import InvalidInput, NotReady, UnknownModel
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Context, Json

if TYPE_CHECKING:
    from hf_transformer.api.open_streams import OpenStreams
    from hf_transformer.observability.tracing import Tracing  # OpenTelemetry is optional


Model: TypeAlias = ServedModel[Pipeline]

MAX_SHOWN_NAME = 200
"""Maximum characters of an unknown name in an error message."""


LOADING = "it is being loaded"
UNLOADED = "it has been unloaded (POST /v2/repository/models/NAME/load loads it)"


class Models:
    """The models of the service, and the choice of a request's model.

    The set changes while the service runs (app/models.py). A model is served, or absent with a reason.

    Args:
        models: the models at the start.
        ready_when: whether the service is ready when all models are, or when any is (--ready_when).
        board: shares the readiness of all workers; None for a single worker.
    """

    def __init__(
        self,
        models: Iterable[Model] = (),
        ready_when: Literal["all", "any"] = "all",
        board: WorkerBoard | None = None,
    ) -> None:
        self.absent: dict[str, str] = {}
        """The reasons why models are not served: they are still loading, or can't be loaded."""
        self.unloaded: frozenset[str] = frozenset()
        """The absent models that a client has unloaded. They don't affect readiness."""
        self.errors: dict[str, str] = {}
        """The errors of changes that could not be applied, by model, or by the file for all of them."""
        self._order: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """The declared models by their aliases and adapters."""
        self._served: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        """The served models by name, alias and adapter."""
        self._ready_when = ready_when
        self._board = board
        for model in models:
            self.add(model)

    # The set

    def add(self, model: Model) -> None:
        """Serves a model, in place of a model with the same name."""
        if model.name in self._served:
            self.remove(model.name)
        self._served[model.name] = model
        self._by_name |= dict.fromkeys(model.names, model)
        self.absent.pop(model.name, None)
        model.on_change = self.publish_ready
        self.publish_ready()

    def declare(self, names: Mapping[str, Collection[str]], unloaded: Collection[str]) -> None:
        """Declares all models in order, each with its aliases and adapters. Those that are not served are absent."""
        self._owners = {further: name for name, others in names.items() for further in others}
        before, self._order = self._order, {name: number for number, name in enumerate(names)}
        self.unloaded = frozenset(unloaded)
        reasons = {name: self.absent.get(name, LOADING) for name in self._order if name not in self._served}
        self.absent = reasons | dict.fromkeys(unloaded, UNLOADED)
        for name in before.keys() - self._order:
            self.errors.pop(name, None)
        self.publish_ready()

    def remove(self, name: str, reason: str = "") -> None:
        """Ends the choice of a model, which is absent if there is a reason. Requests in flight keep it."""
        model = self._served.pop(name, None)
        if reason:
            self.absent[name] = reason
        self._by_name = {known: other for known, other in self._by_name.items() if other is not model}
        self.publish_ready()

    @property
    def served(self) -> list[Model]:
        """The served models, without absent ones."""
        return sorted(self._served.values(), key=lambda model: self._order.get(model.name, len(self._order)))

    @property
    def names(self) -> list[str]:
        """The names of all models, with aliases, adapters and absent models."""
        return [*(name for model in self.served for name in model.names), *self.absent]

    # The choice

    def choose(
        self, name: str | None, context: Context, version: str = "", *, tasks: Collection[str] = (), path: str = ""
    ) -> Model:
        """Chooses the model of a request, over HTTP and gRPC alike. Sets the names of the context.

        Args:
            name: the name in the URL, in the message or in the body; None chooses the only model for ``tasks``.
            version: the version in the URL or in the message, empty for any.
            tasks: the tasks of the route, for requests without a name.
            path: the field that has the name, for errors.

        Raises:
            UnknownModel: no model has this name or version.
            InvalidInput: without a name, several models or none have one of the tasks.
            NotReady: the model is absent, or its version is not yet known; without a name, no model has one of the
                tasks, and a model is absent.
        """
        if name is None:
            model = self._only(tasks, path)
            name = model.name
        else:
            model = self.find(name, path=path)
        context.model_name, context.served_name = name, model.name
        if name in model.identity.adapters:
            context.adapter = name
        if context.ticket is not None:
            context.ticket.use(model)
        if version:
            self.find(name, version)
        return model

    def find(self, name: str, version: str = "", path: str = "") -> Model:
        """Returns the model with this name, alias or adapter. Raises UnknownModel, and NotReady as ``choose`` does."""
        model = self._by_name.get(name)
        if model is None:
            owner = self._owners.get(name, name)
            if owner in self.absent:
                raise NotReady(f"model {owner!r} is not ready: {self.absent[owner]}")
            known = ", ".join(self.names)
            expected = f"a served model ({known})" if known else "a served model, and there is none"
            raise UnknownModel(path, expected, repr(name[:MAX_SHOWN_NAME]))
        if version and version != (served := model.describe().version):
            expected = f"version {served!r}" if served else "no version, since the predictor reports none,"
            raise UnknownModel("", f"{expected} of model {model.name!r}", f"version {version[:40]!r}")
        return model

    def _only(self, tasks: Collection[str], path: str) -> Model:
        fitting = [model for model in self.served if model.task.name in tasks]
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(model.name for model in fitting or self.served)
        if fitting:
            raise InvalidInput(path, f"the name of one of the models for {' or '.join(tasks)} ({names})", "nothing")
        if missing := self._missing():  # one of them may fit
            raise NotReady("; ".join(f"model {name!r} is not ready: {reason}" for name, reason in missing.items()))
        raise InvalidInput(path, f"the name of a served model ({names})", "nothing")

    # Readiness

    @property
    def is_ready(self) -> bool:
        """Whether the last checks found all models ready, or any (--ready_when)."""
        states = [model.is_ready for model in self.served] + [False for _ in self._missing()]
        return bool(states) and (any(states) if self._ready_when == "any" else all(states))

    async def find_not_ready(self, model: Model | None = None) -> NotReady | None:
        """Returns the error of a model that is not ready, or of the service without ``model``; None if it is ready.

        The service waits for its other workers (--workers). So does the only model of a service.
        """
        models = self.served if model is None else [model]
        errors = [error for error in await asyncio.gather(*map(_readiness_error, models)) if error is not None]
        if model is None:
            errors += [NotReady(f"model {name!r} is not ready: {reason}") for name, reason in self._missing().items()]
            if not models and not errors:
                return NotReady("the service has no models")
            if self._ready_when == "any" and len(errors) < len(models) + len(self._missing()):
                errors = []
        if errors:
            return errors[0] if len(errors) == 1 else NotReady("; ".join(map(str, errors)))
        if self._board is not None and (model is None or len(self._served) == 1):
            if missing := self._board.waiting_for:
                name = f"model {models[0].name!r}" if len(models) == 1 else "the service"
                return NotReady(f"{name} is not ready: {missing} of the --workers are not yet")
        return None

    async def states(self) -> list[tuple[Model, NotReady | None]]:
        """Each served model, with its error if it is not ready."""
        models = self.served
        return list(zip(models, await asyncio.gather(*map(self.find_not_ready, models)), strict=True))

    def publish_ready(self) -> None:
        """Reports the readiness of this worker to the other workers."""
        if self._board is not None:
            self._board.set_ready(self.is_ready)

    def _missing(self) -> dict[str, str]:
        """The reasons of absent models, except those that a client has unloaded."""
        return {name: reason for name, reason in self.absent.items() if name not in self.unloaded}


async def _readiness_error(model: Model) -> NotReady | None:
    try:
        await model.require_ready()
    except NotReady as error:
        return error
    return None


class ModelControl(Protocol):
    """Loads and unloads models at the predictor and in the service. Both methods raise RequestError."""

    async def load(self, name: str) -> None: ...
    async def unload(self, name: str, parameters: Mapping[str, Json]) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    """The models, limits and shared objects of a service.

    Attributes:
        max_bytes: maximum size of a request, before and after decompression.
        limits: limits of a request, which its budget applies.
        max_json_depth: maximum nesting of tools and their arguments.
        executor: the threads for long work. None selects the event loop's default executor.
        control: loads and unloads models; None without --enable_model_control.
    """

    models: Models
    admission: Admission
    metrics: Metrics
    max_bytes: int
    limits: Limits
    streams: OpenStreams
    server_timing: bool = True
    tokenize_timing: bool = False
    token_inputs: bool = False
    max_json_depth: int = 64
    tracing: Tracing | None = None
    executor: Executor | None = None
    control: ModelControl | None = None


def generative(model: Model, route: str) -> GenerativeModel:
    """Returns a model that generates text. Raises InvalidInput for other models, with ``route`` in the message."""
    if not isinstance(model, GenerativeModel):
        expected = f"a model for text_generation or text2text_generation, which {route} needs"
        raise InvalidInput("", expected, f"{model.name!r} for {model.task.name}")
    return model
