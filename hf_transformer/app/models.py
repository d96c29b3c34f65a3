"""The set of served models, and its changes while the service runs.

    entries --load_model, in a thread--> Deployment --once it can be served--> api.service.Models

The flags, --models or --model_repository declare the models. After a change, one task per name loads a new model,
replaces a changed model once its successor is ready, or closes a removed model after its last request. A model that
can't be loaded is absent with the reason, and is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from hf_transformer.api.bodies import TASKS as OPENAI_TASKS
from hf_transformer.api.service import UNLOADED, Model, Models
from hf_transformer.app.label_model import label_model_name, label_settings, label_vectors
from hf_transformer.app.loading import LoadedGenerativeModel, LoadedModel, load_model
from hf_transformer.app.pipelines import Diagnose, PipelineBuilder, RemoteBatches
from hf_transformer.app.settings import image_limits, predictor_settings
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import Config
from hf_transformer.core.label_vectors import LabelVectors
from hf_transformer.core.model import CheckSettings, ModelIdentity, ServedModel
from hf_transformer.core.remote import BatcherLink, PredictorRecipe
from hf_transformer.credentials import PERIOD_SECONDS, FileIdentity, ReloadableFile, identity
from hf_transformer.errors import LoadError, NotReady, PredictorTimeout, TransformerError, UnknownModel, without_folders
from hf_transformer.generation.masks import Sandbox
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.logging import LatencyLog
from hf_transformer.observability.metrics import Metrics, ModelMetrics
from hf_transformer.predictor import Connections
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.shared import SharedEngines
from hf_transformer.types.request import Json

logger = logging.getLogger(__name__)

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""The first and the maximum pause before a model that could not be loaded is tried again. Pauses double."""
RETRY_SHARE = 20
"""The pause after a failed attempt is at least this many times its duration, up to the maximum: the tokenizers library
holds the interpreter's lock while it reads a file, 40 ms for each megabyte."""
READY_POLL_SECONDS = 0.05
"""Interval between two looks at the readiness of a successor, and at the requests of a removed model."""


@dataclass(frozen=True, slots=True)
class ModelFactory:
    """Makes models from their configuration and files. All models share the threads, metrics and connections.

    ``warns`` is set for only one of several workers. ``link`` leads to the process that forms their batches.
    """

    metrics: Metrics
    executor: ThreadPoolExecutor
    connections: Connections
    latency_log: LatencyLog | None = None
    diagnose: Diagnose | None = None
    warns: bool = True
    sandbox: Sandbox = field(default_factory=Sandbox)
    link: BatcherLink | None = None

    def make(self, declared: DeclaredModel, loaded: LoadedModel) -> Deployment:
        """Makes a model and its predictor, which are not running yet. Raises ConfigError for invalid settings."""
        config = declared.config
        metrics = self.metrics.of(config.model_name)
        metrics.show_apis(apis_of(config, loaded.task.name))
        link = None if isinstance(loaded, LoadedGenerativeModel) else self.link
        recipe = predictor_recipe(config, loaded, warns=self.warns or link is not None)
        vectors = self._label_vectors(config, loaded, recipe, metrics)
        # The batches of a linked model, and so their shared memory, are in the batcher.
        own = recipe if link is None else replace(recipe, settings=replace(recipe.settings, shared_memory_bytes=0))
        predictor = own.open(metrics, self.connections)
        batches = None if link is None else RemoteBatches(link, recipe)
        build = PipelineBuilder(
            config,
            loaded,
            predictor,
            metrics,
            self.executor,
            self.diagnose,
            self.sandbox,
            batches=batches,
            label_vectors=vectors,
        )
        shared: dict[str, Any] = {
            "requires": None if vectors is None else vectors.check,
            "checks": CheckSettings(config.enable_predictor_health_check, config.predictor_check_seconds),
            "latency_log": self.latency_log,
            "identity": ModelIdentity(
                config.model_id, config.model_revision, config.aliases, config.adapters, config.predictor_model
            ),
        }
        model: Model
        tokenizing = build.tokenizing if config.predictor_protocol == "none" else None
        if isinstance(loaded, LoadedGenerativeModel):
            generative, template = tokenizing or partial(build.generative, loaded), loaded.chat_template
            model = GenerativeModel(
                config.model_name,
                loaded.task,
                predictor,
                generative,
                metrics,
                chat_template=template,
                responses=loaded.responses,
                image_limits=image_limits(config),
                image_tokens=loaded.image_tokens,
                end_ids=loaded.settings.eos_ids,
                **shared,
            )
        else:
            pipeline = tokenizing or build.predictive
            model = ServedModel(config.model_name, loaded.task, predictor, pipeline, metrics, **shared)
        return Deployment(declared, model, predictor, vectors)

    def _label_vectors(
        self, config: Config, loaded: LoadedModel, recipe: PredictorRecipe, metrics: ModelMetrics
    ) -> LabelVectors | None:
        """The source of a bi-encoder's label vectors, made before the model's own predictor, whose gauges are shown."""
        if loaded.labels is None or config.predictor_protocol == "none":
            return None
        settings = label_settings(config, recipe.settings)
        predictor = replace(recipe, settings=settings).open(metrics, self.connections)
        return label_vectors(config, loaded.labels, predictor, metrics, self.executor)

    def forget(self, name: str) -> None:
        """Removes the metrics of a model that is no longer served."""
        self.metrics.forget(name)
        if self.link is not None:
            self.link.forget(name)


def predictor_recipe(config: Config, loaded: LoadedModel, *, warns: bool) -> PredictorRecipe:
    """Returns what a model's predictor is made from. ``warns`` is set for only one of several workers."""
    return PredictorRecipe(
        model_name=config.model_name,
        protocol=config.predictor_protocol,
        settings=predictor_settings(config, warns=warns),
        retries=config.predictor_request_retries,
        retry_budget=config.predictor_retry_budget,
        circuit_failures=config.predictor_circuit_failures,
        embeds=isinstance(loaded.task, TextEmbedding),
    )


def apis_of(config: Config, task: str) -> list[str]:
    """The labels ``api`` of a model's protocols. Other servers' APIs appear with their first request, since a model has
    many of them and few clients use several."""
    if config.predictor_protocol == "none":
        return ["tokenize"]
    grpc = ["grpc"] if config.enable_grpc else []
    openai = ["openai"] if any(task in tasks for tasks in OPENAI_TASKS.values()) else []
    return ["v1", "v2", *grpc, *openai, *(["generate"] if task in GENERATIVE else [])]


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """The configuration of a model, and the identities of its files in a model repository."""

    config: Config
    files: tuple[FileIdentity | None, ...] = ()


@dataclass(slots=True)
class Deployment:
    """A model with its predictor, its source of label vectors if it is a bi-encoder, and the task of its checks."""

    declared: DeclaredModel
    model: Model
    predictor: Predictor
    label_vectors: LabelVectors | None = None
    _checks: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens the predictor, and starts the checks."""
        await self.predictor.open()
        if self.label_vectors is not None:
            await self.label_vectors.predictor.open()
        self._checks = asyncio.create_task(self.model.run())

    async def drain(self) -> None:
        """Waits until no request uses the model."""
        while self.model.requests > 0:  # noqa: ASYNC110 - a request's end sets no event, which would cost each request
            await asyncio.sleep(READY_POLL_SECONDS)

    async def stop(self) -> None:
        """Ends the checks, and closes the predictor."""
        if self._checks is not None:
            self._checks.cancel()
            with suppress(asyncio.CancelledError):
                await self._checks
        await self.predictor.close()
        if self.label_vectors is not None:
            await self.label_vectors.predictor.close()


class ModelSet:
    """Serves the models of the entries, and applies their changes. An async context manager.

    Args:
        models: the models that requests can choose.
        deployed: models that are loaded at the start.
        entries: the declared models, read again after each change; None for fixed models.
        board: shares the unloaded models of all workers; None for a single worker.
        on_change: called with a name and its configuration, or None after its removal.
    """

    def __init__(
        self,
        models: Models,
        factory: ModelFactory,
        deployed: Sequence[Deployment] = (),
        entries: ModelEntries | None = None,
        board: WorkerBoard | None = None,
        on_change: Callable[[str, Config | None], None] | None = None,
    ) -> None:
        self._models = models
        self._factory = factory
        self._board = board
        self._on_change = on_change or (lambda name, config: None)
        self._engines = SharedEngines()
        self._deployed = {deployment.model.name: deployment for deployment in deployed}
        self._declared: dict[str, DeclaredModel] = {}
        self._unloaded: frozenset[str] = frozenset()
        self._bi_encoders: set[str] = set()
        """The names of models that have a model of labels, also of unloaded ones."""
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._file: ReloadableFile[list[DeclaredModel]] | None = None
        self._source = ""
        factory.metrics.entries_valid.set_function(lambda: not models.errors)
        if entries is not None:
            self._source, path = str(entries.flag), str(entries.path)
            read = partial(read_entries, entries, set(), set())
            self._file = ReloadableFile(path, partial(watched_files, path), read)
        for deployment in deployed:
            self._declared[deployment.model.name] = deployment.declared
            self._serve(deployment)

    async def __aenter__(self) -> Self:
        for deployment in self._deployed.values():
            await deployment.start()
        if self._file is not None:
            self._apply(self._file.value)
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        tasks = [*self._changing.values(), *self._retiring, self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for deployment in self._deployed.values():
            await deployment.stop()

    def start_shutdown(self) -> None:
        """Makes all models permanently not ready, so that load balancers stop sending requests."""
        for model in self._models.served:
            model.start_shutdown()

    # Control by clients (--enable_model_control)

    async def load(self, name: str) -> None:
        """Makes the predictor load a declared model from its repository, and serves the model.

        Raises:
            UnknownModel: no entry declares the model.
            RequestError: the predictor refuses, or the model does not become ready.
        """
        if name not in self._declared and self._file is not None:
            await asyncio.to_thread(self._file.renew)
            self._apply(self._file.value)
        config = self._config(name)
        has_labels = name in self._bi_encoders
        async with self._transport(config) as transport:
            if has_labels:
                await transport.load_model(label_model_name(config), {})
            await transport.load_model(config.predictor_model or name, {})
        self._set_unloaded(self._unloaded - {name})
        if (task := self._changing.get(name)) is not None:
            seconds = config.predictor_request_timeout_seconds
            try:
                async with asyncio.timeout(seconds):
                    await self._settled(name, task)
            except TimeoutError as error:
                raise PredictorTimeout(f"model {name!r} was not loaded in {seconds:g} s") from error
        if name in self._bi_encoders and not has_labels:  # its files were not read before
            async with self._transport(config) as transport:
                await transport.load_model(label_model_name(config), {})
        model = self._models.find(name)
        if problem := await model.check_replaced():
            raise NotReady(f"model {name!r} is not ready: {problem}")

    async def unload(self, name: str, parameters: Mapping[str, Json]) -> None:
        """Ends the service of a model, and makes the predictor unload it. Raises as ``load`` does."""
        config, deployment = self._config(name), self._deployed.get(name)
        if deployment is not None:
            self._models.remove(name, UNLOADED)
        try:
            if deployment is not None:
                await deployment.drain()
            async with self._transport(config) as transport:
                await transport.unload_model(config.predictor_model or name, parameters)
                if name in self._bi_encoders and not self._shares_labels(name):
                    await transport.unload_model(label_model_name(config), parameters)
        except BaseException:
            if deployment is not None and self._deployed.get(name) is deployment:
                self._serve(deployment)
            raise
        self._set_unloaded(self._unloaded | {name})

    def _shares_labels(self, name: str) -> bool:
        """Whether another served model reads its labels by the same model as ``name``."""
        labels = label_model_name(self._config(name))
        others = [self._declared[other] for other in self._bi_encoders & self._declared.keys() - {name}]
        others = [other for other in others if other.config.model_name not in self._unloaded]
        return any(label_model_name(other.config) == labels for other in others)

    def _config(self, name: str) -> Config:
        if name not in self._declared:
            raise UnknownModel("", f"a declared model ({', '.join(self._declared)})", repr(name[:200]))
        return self._declared[name].config

    @asynccontextmanager
    async def _transport(self, config: Config) -> AsyncIterator[Any]:
        transport = self._factory.connections.transport(config.predictor_protocol, predictor_settings(config))
        async with transport:
            yield transport

    async def _settled(self, name: str, task: asyncio.Task[None]) -> None:
        """Waits until a model is served, or can't be loaded."""
        async with self._changed:
            await self._changed.wait_for(lambda: task.done() or name in self._models.errors)

    def _set_unloaded(self, names: frozenset[str]) -> None:
        if self._board is not None:
            self._board.unloaded = sorted(names)
        self._unloaded = names
        self._apply(list(self._declared.values()))

    # Changes of the entries

    async def _watch(self) -> None:
        """Applies each change of the entries, and the unloaded models of other workers."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                declared = list(self._declared.values())
                if self._file is not None and await asyncio.to_thread(self._file.renew):
                    declared = self._file.value
                if self._file is not None:
                    self._report_file(self._file)
                unloaded = self._unloaded if self._board is None else frozenset(self._board.unloaded)
                if unloaded != self._unloaded or declared != list(self._declared.values()):
                    self._unloaded = unloaded
                    self._apply(declared)
            except Exception:  # without this, no later change would be applied
                logger.exception("%s: the changes could not be applied", self._source)

    def _report_file(self, file: ReloadableFile[list[DeclaredModel]]) -> None:
        """Reports whether the file or folder of the entries can be read. Clients get no folders of the server."""
        self._models.set_error(self._source, without_folders(file.error, file.name))

    def _apply(self, declared: Sequence[DeclaredModel]) -> None:
        """Declares the models, and starts a task for each added, changed and removed model."""
        self._declared = {entry.config.model_name: entry for entry in declared}
        names = {name: (*entry.config.aliases, *entry.config.adapters) for name, entry in self._declared.items()}
        self._models.declare(names, self._unloaded & self._declared.keys())
        for name in {*self._declared, *self._deployed}:
            self._begin_change(name)

    def _begin_change(self, name: str) -> None:
        """Starts the task of a name if its declaration differs from its deployment, unless the task runs already."""
        if name not in self._changing and self._target(name) != self._current(name):
            self._changing[name] = task = asyncio.create_task(self._change(name))
            task.add_done_callback(partial(self._end_change, name))

    def _end_change(self, name: str, task: asyncio.Task[None]) -> None:
        del self._changing[name]
        if not task.cancelled() and task.exception() is None:
            self._begin_change(name)  # the entry may have changed after the task's last look

    def _target(self, name: str) -> DeclaredModel | None:
        return None if name in self._unloaded else self._declared.get(name)

    def _current(self, name: str) -> DeclaredModel | None:
        deployment = self._deployed.get(name)
        return None if deployment is None else deployment.declared

    async def _change(self, name: str) -> None:
        """Deploys, replaces or removes the model of a name until its deployment equals its declaration."""
        retry = MIN_RETRY_SECONDS
        while (target := self._target(name)) != self._current(name):
            if target is None:
                if name not in self._unloaded and self._models.hands_over(name):
                    await asyncio.sleep(READY_POLL_SECONDS)
                    continue
                self._retire(self._deployed.pop(name))
                self._models.remove(name)
                continue
            began = asyncio.get_running_loop().time()
            try:
                deployment = await self._start(target)
                if name in self._deployed and not await self._becomes_ready(deployment, target):
                    continue
            except Exception as error:
                await self._report(name, error)
                lasted = asyncio.get_running_loop().time() - began
                await self._pause(name, target, max(retry, min(RETRY_SHARE * lasted, MAX_RETRY_SECONDS)))
                retry = min(retry * 2, MAX_RETRY_SECONDS)
                continue
            if (old := self._deployed.get(name)) is not None:
                self._retire(old)
            self._deployed[name] = deployment
            self._serve(deployment)
        self._models.set_error(name, "")
        if name not in self._declared and name not in self._deployed:
            self._factory.forget(name)
            self._on_change(name, None)
        async with self._changed:
            self._changed.notify_all()

    async def _start(self, target: DeclaredModel) -> Deployment:
        loaded = await asyncio.to_thread(load_model, target.config, self._engines)
        deployment = self._factory.make(target, loaded)
        await deployment.start()
        return deployment

    async def _becomes_ready(self, deployment: Deployment, target: DeclaredModel) -> bool:
        """Waits until the successor of a served model is ready. Stops it, and returns False, if its
        declaration has changed."""
        name, is_ready = deployment.model.name, False
        try:
            while self._target(name) is target and not is_ready:
                self._models.set_error(name, f"the changed entry is not served yet: {deployment.model.problem}")
                await asyncio.sleep(READY_POLL_SECONDS)
                is_ready = deployment.model.is_ready
        finally:
            if not is_ready:
                await deployment.stop()
        return is_ready

    async def _report(self, name: str, error: Exception) -> None:
        """Reports a model that can't be loaded. A deployed model of this name stays.

        The log has the whole error. Clients get it without the server's folders.
        """
        if isinstance(error, TransformerError):
            text, target = error.message if isinstance(error, LoadError) else str(error), self._target(name)
            reason = without_folders(text, *([] if target is None else folders_of(target.config)))
        else:
            reason = f"internal error: {type(error).__name__}"
        if self._models.errors.get(name) != reason:
            exc_info = None if isinstance(error, TransformerError) else error
            shown = error if isinstance(error, TransformerError) else reason
            logger.error("model %r can't be loaded, retrying: %s", name, shown, exc_info=exc_info)
        self._models.set_error(name, reason)
        if name in self._models.absent:
            self._models.absent[name] = f"it can't be loaded: {reason}"
        async with self._changed:
            self._changed.notify_all()

    async def _pause(self, name: str, target: DeclaredModel, seconds: float) -> None:
        """Waits before the next attempt, or until the declaration of this name changes."""
        for _ in range(int(seconds / READY_POLL_SECONDS)):
            if self._target(name) is not target:
                return
            await asyncio.sleep(READY_POLL_SECONDS)

    def _serve(self, deployment: Deployment) -> None:
        name = deployment.model.name
        (self._bi_encoders.discard if deployment.label_vectors is None else self._bi_encoders.add)(name)
        self._models.add(deployment.model)
        self._on_change(deployment.model.name, deployment.declared.config)

    def _retire(self, deployment: Deployment) -> None:
        """Closes a model once its requests have ended."""

        async def finish() -> None:
            try:
                await deployment.drain()
            finally:
                await deployment.stop()

        task = asyncio.create_task(finish())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def folders_of(config: Config) -> list[str]:
    """Lists the paths in the flags of a model's files."""
    paths = [config.model_dir, config.model_id, config.chat_template, config.response_template, config.rerank_template]
    return [path for path in paths if path is not None and os.path.isabs(path)]


def watched_files(path: str) -> list[str]:
    """Lists the file of --models, or the files of the models in --model_repository with their folders."""
    if not os.path.isdir(path):
        return [path]
    folders = [entry.path for entry in _visible(path) if os.path.isdir(entry.path)]
    return [path, *(name for folder in folders for name in (folder, *model_files(folder)))]


def model_files(folder: str) -> list[str]:
    """Lists the files of a model that the service reads: those of its folder and of subfolders such as 1_Pooling, but
    not those of Triton's versions."""
    entries = _visible(folder)
    # Unlike the entries' own methods, os.path takes a link to itself for neither a file nor a folder.
    inner = [entry.path for entry in entries if os.path.isdir(entry.path) and not entry.name.isdigit()]
    files = [*entries, *(entry for path in inner for entry in _visible(path))]
    return [entry.path for entry in files if os.path.isfile(entry.path)]


def _visible(folder: str) -> list[os.DirEntry[str]]:
    try:
        return sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError:  # it was removed meanwhile, or reading the entries reports it
        return []


def read_entries(entries: ModelEntries, logged: set[str], known_models: set[str]) -> list[DeclaredModel]:
    """Reads the declared models, and logs the warnings that are not in ``logged`` yet. Raises ConfigError.

    ``known_models`` becomes the names of these models.
    """
    configs, notes = entries.read(known_models)
    known_models.clear()
    known_models.update(config.model_name for config in configs)
    for note in notes:
        if note not in logged:
            logged.add(note)
            logger.warning("%s", note)
    if not os.path.isdir(str(entries.path)):
        return [DeclaredModel(config) for config in configs]
    return [DeclaredModel(config, tuple(map(identity, model_files(config.model_dir)))) for config in configs]
