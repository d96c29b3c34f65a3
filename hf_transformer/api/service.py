"""Shared objects of all APIs, such as the served models, limits, metrics and admission."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from hf_transformer.core.limits import Admission, Limits
from hf_transformer.core.model import ServedModel
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import InvalidInput, NotReady, Path, UnknownModel
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Context, Json

if TYPE_CHECKING:
    from hf_transformer.api.open_streams import OpenStreams
    from hf_transformer.observability.tracing import Tracing  # OpenTelemetry is optional


Model: TypeAlias = ServedModel[Pipeline]
Result = TypeVar("Result")

MAX_SHOWN_NAME = 200
"""Maximum characters of an unknown name in an error message."""


LOADING = "it is being loaded"
UNLOADED = "it has been unloaded (POST /v2/repository/models/NAME/load loads it)"


class Models:
    """The models of the service, and the choice of a request's model.

    The set changes while the service runs (app/models.py). A model is served, or absent with a reason. A set that was
    ready stays ready when it changes: a model that is added to it counts for its readiness once it has been ready.

    Args:
        models: the models at the start.
        ready_when: whether the service is ready when all models are, or when any is (--ready_when).
        board: shares the readiness of all workers, and the models that don't count; None for a single worker.
    """

    def __init__(
        self, models: Iterable[Model] = (), ready_when: Literal["all", "any"] = "all", board: WorkerBoard | None = None
    ) -> None:
        self.absent: dict[str, str] = {}
        """The reasons why models are not served: they are still loading, or can't be loaded."""
        self.unloaded: frozenset[str] = frozenset()
        """The absent models that a client has unloaded. They don't affect readiness."""
        self.errors: dict[str, str] = {}
        """The errors of changes that could not be applied, by model, or by the flag of all of them (``set_error``)."""
        self.since: dict[str, float] = {}
        """When each model ceased to be served as it is declared, in seconds since 1970; without the other models."""
        self.uncounted: set[str] = set() if board is None else set(board.uncounted)
        """The models that don't count for readiness: added to a ready set, or unloaded, and not ready since then."""
        self._has_been_ready = False
        self._was_ready = False
        """Whether the set was ready at the last look."""
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
        """Serves a model, in place of a model with the same name. It keeps the aliases that were declared for another
        model meanwhile, until that one is served."""
        kept: dict[str, Model] = {}
        if (old := self._served.get(model.name)) is not None:
            names = {name for name, owner in self._by_name.items() if owner is old} - {*old.identity.adapters}
            kept = {name: model for name in names if self._owner(name)}
            self.remove(model.name)
        self._served[model.name] = model
        # Another model keeps a name that has moved here until this one is ready (publish_ready).
        new = [name for name in model.names if model.is_ready or name not in self._by_name]
        self._by_name |= kept | dict.fromkeys(new, model)
        self.absent.pop(model.name, None)
        model.on_change = self.publish_ready
        self.publish_ready()

    def declare(self, names: Mapping[str, Collection[str]], unloaded: Collection[str]) -> None:
        """Declares all models in order, each with its aliases and adapters. Those that are not served are absent."""
        self._owners = {further: name for name, others in names.items() for further in others}
        before, self._order = self._order, {name: number for number, name in enumerate(names)}
        for name in self.unloaded.difference(unloaded):
            self.absent.pop(name, None)  # it is being loaded again
        self.unloaded = frozenset(unloaded)
        self._by_name = {
            known: model for known, model in self._by_name.items() if known in model.names or self._owner(known)
        }
        added = names.keys() - before.keys() - self._served.keys() if self._has_been_ready else set[str]()
        self.uncounted = (self.uncounted | added | self.unloaded) & names.keys()
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
            self.uncounted.add(name)
        self._by_name = {known: other for known, other in self._by_name.items() if other is not model}
        self.publish_ready()

    def hands_over(self, name: str) -> bool:
        """Whether a served model still has a name that is declared for another model, which is not served yet."""
        model = self._served[name]
        owners = {self._owner(known) for known, other in self._by_name.items() if other is model}
        return bool(owners - {"", name})

    def _owner(self, name: str) -> str:
        """The declared model of a name, an alias or an adapter; empty for an unknown name, or an unloaded model."""
        owner = self._owners.get(name, name)
        return owner if owner in self._order and owner not in self.unloaded else ""

    @property
    def served(self) -> list[Model]:
        """The served models, without absent ones."""
        return sorted(self._served.values(), key=lambda model: self._order.get(model.name, len(self._order)))

    @property
    def names(self) -> list[str]:
        """The names of all models, with aliases, adapters and absent models."""
        of_models = [name for model in self.served for name in model.names]
        return [*dict.fromkeys([*of_models, *self._by_name, *self.absent])]

    # The choice

    def choose(
        self,
        name: str | None,
        context: Context,
        version: str = "",
        *,
        tasks: Collection[str] = (),
        path: Path | str = "",
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

    def find(self, name: str, version: str = "", path: Path | str = "") -> Model:
        """Returns the model with this name, alias or adapter. Raises UnknownModel, and NotReady as ``choose`` does."""
        model = self._by_name.get(name)
        if model is None:
            owner = self._owners.get(name, name)
            if owner in self.absent:
                raise NotReady(f"model {owner!r} is not ready: {self.absent[owner]}")
            if owner in self._served:  # which has been given this name
                raise NotReady(f"model {owner!r} is not ready as {name!r}: {self.errors.get(owner, LOADING)}")
            known = ", ".join(self.names)
            expected = f"a served model ({known})" if known else "a served model, and there is none"
            raise UnknownModel(path, expected, repr(name[:MAX_SHOWN_NAME]))
        if version and version != (served := model.describe().version):
            expected = f"version {served!r}" if served else "no version, since the predictor reports none,"
            raise UnknownModel("", f"{expected} of model {model.name!r}", f"version {version[:40]!r}")
        return model

    def _only(self, tasks: Collection[str], path: Path | str) -> Model:
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
        models, missing = self._counted()
        states = [model.is_ready for model in models] + [False for _ in missing]
        if not states:
            return self._was_ready and bool(self._served or self._missing())
        return any(states) if self._ready_when == "any" else all(states)

    def _counted(self) -> tuple[list[Model], dict[str, str]]:
        """The served models, and the reasons of the absent models, that count for readiness.

        A model that is no longer declared does not. If all models are new, such as the only one under another name, a
        set that was ready stays ready, and another one waits for them.
        """
        models, missing = self.served, self._missing()
        counted = {*(self._order or self._served), *missing} - self.uncounted
        if not counted & {*self._served, *missing} and not self._was_ready:
            return models, missing
        return (
            [model for model in models if model.name in counted],
            {name: reason for name, reason in missing.items() if name in counted},
        )

    async def find_not_ready(self, model: Model | None = None) -> NotReady | None:
        """Returns the error of a model that is not ready, or of the service without ``model``; None if it is ready.

        The service waits for its other workers (--workers). So does the only model of a service.
        """
        models, missing = self._counted() if model is None else ([model], {})
        errors = [error for error in await asyncio.gather(*map(_readiness_error, models)) if error is not None]
        if model is None:
            if not models and not missing and not self.is_ready:
                return NotReady("the service has no models")
            errors += [NotReady(f"model {name!r} is not ready: {reason}") for name, reason in missing.items()]
            if self._ready_when == "any" and len(errors) < len(models) + len(missing):
                errors = []
        if errors:
            return errors[0] if len(errors) == 1 else NotReady("; ".join(map(str, errors)))
        if self._board is not None and self._board.lacks_batcher:
            return NotReady("the process that forms the batches of all --workers is being started")
        if self._board is not None and (model is None or len(self._served) == 1):
            if waiting_for := self._board.waiting_for:
                name = f"model {models[0].name!r}" if len(models) == 1 else "the service"
                return NotReady(f"{name} is not ready: {waiting_for} of the --workers are not yet")
        return None

    async def states(self) -> list[tuple[Model, NotReady | None]]:
        """Each served model, with its error if it is not ready."""
        models = self.served
        return list(zip(models, await asyncio.gather(*map(self.find_not_ready, models)), strict=True))

    def publish_ready(self) -> None:
        """Records a change of the readiness, and reports that of this worker to the other workers."""
        ready = [model for model in self.served if model.is_ready]
        self._by_name |= {name: model for model in ready for name in model.names if self._owner(name) == model.name}
        self.uncounted -= {model.name for model in ready}
        self._was_ready = self.is_ready
        self._has_been_ready |= self._was_ready
        unserved = [model.name for model in self.served if not model.is_ready or model.lost]
        failed = [name for name in self.errors if name in self._order]
        now = time.time()
        self.since = {name: self.since.get(name, now) for name in [*unserved, *self._missing(), *failed]}
        if self._board is not None:
            self._board.set_ready(self._was_ready)
            self._board.uncounted = sorted(self.uncounted)

    @property
    def unserved_since(self) -> dict[str, float]:
        """``since`` of all models, with 0 for those that are served."""
        return {name: self.since.get(name, 0.0) for name in self._order or self._served}

    def set_error(self, name: str, error: str) -> None:
        """Sets the error of a model's change, or of all models under their flag; an empty text removes it."""
        if error:
            self.errors[name] = error
        else:
            self.errors.pop(name, None)
        self.publish_ready()

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
    _parsing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def in_turn(self, parse: Callable[[], Result]) -> Result:
        """Parses a large body in a thread, one at a time: parsers hold the interpreter's lock, for up to 0.2 s, and the
        event loop has its turn between them."""
        async with self._parsing:
            return await asyncio.get_running_loop().run_in_executor(self.executor, parse)


def generative(model: Model, route: str) -> GenerativeModel:
    """Returns a model that generates text. Raises InvalidInput for other models, with ``route`` in the message."""
    if not isinstance(model, GenerativeModel):
        expected = f"a model for {' or '.join(GENERATIVE)}, which {route} needs"
        raise InvalidInput("", expected, f"{model.name!r} for {model.task.name}")
    return model
