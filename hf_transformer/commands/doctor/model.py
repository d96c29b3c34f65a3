"""Checks of flags, model files, the predictor's model, and their compatibility."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from logging.handlers import MemoryHandler

from hf_transformer.api.v2 import SERVER as OWN_NAME
from hf_transformer.app.label_model import label_settings, label_vectors
from hf_transformer.app.loading import LoadedGenerativeModel, load_model
from hf_transformer.app.pipelines import ModelBinding, PipelineBuilder
from hf_transformer.app.settings import predictor_settings, sandbox_of
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, warning
from hf_transformer.commands.doctor.network import PORTS
from hf_transformer.commands.other_servers import ITSELF, other_server
from hf_transformer.core.contract import ContractError
from hf_transformer.core.label_vectors import LabelVectors
from hf_transformer.core.pipeline import TRIAL_TEXT
from hf_transformer.errors import RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.observability.metrics import Metrics, ModelMetrics
from hf_transformer.predictor import open_transport
from hf_transformer.predictor.base import parse_address
from hf_transformer.predictor.embedding_requests import EmbeddingRequests
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.tensors import RepositoryEntry

CALL_SECONDS = 60.0
"""Maximum of --predictor_request_timeout_seconds in the checks. The first inference of some models is slow."""


async def flags(subject: Subject) -> list[Finding]:
    """Report unknown and contradictory flags and variables."""
    change = "correct the flag or variable, or omit it"
    return [Finding("warning", note, change) for note in subject.notes] or ok("all known")


async def model_files(subject: Subject) -> list[Finding]:
    """Load tokenizer, config.json and task as the service does. Raises LoadError, ConfigError."""
    log, handler = logging.getLogger("hf_transformer"), MemoryHandler(1000)
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        subject.loaded = loaded = await asyncio.to_thread(load_model, subject.config)
    finally:
        log.removeHandler(handler)
    architectures = loaded.task.settings.model_config.get("architectures") or ["no architecture"]
    source = subject.config.model_id or subject.config.model_dir
    finding = ok(f"{architectures[0]} in {source}, served as {loaded.task.name}; {loaded.tokenizer.vocab_size} tokens")
    change = "correct or omit the flag, or correct the file that the message names"
    return [*finding, *(Finding("warning", record.getMessage(), change) for record in handler.buffer)]


async def tokenizer(subject: Subject) -> list[Finding]:
    """Tokenize a text, and render a chat. Raises RequestError."""
    loaded = subject.loaded
    [encoding] = loaded.tokenizer.encode((TRIAL_TEXT,))
    template = loaded.chat_template if isinstance(loaded, LoadedGenerativeModel) else None
    if template is not None:
        template.render([{"role": "user", "content": TRIAL_TEXT}])
    chats = "renders chats" if template is not None else "has no chat template"
    return ok(f"{len(encoding)} tokens for a short text, {loaded.tokenizer.max_length} at most; the model {chats}")


async def connect(subject: Subject) -> None:
    """Open the connections that later checks use. Raises ConfigError."""
    settings = predictor_settings(subject.config)
    subject.address = parse_address(settings)
    settings = replace(settings, timeout=min(settings.timeout, CALL_SECONDS))
    subject.admin = admin = open_transport(subject.config.predictor_protocol, settings)
    embeds = hasattr(subject, "loaded") and isinstance(subject.loaded.task, TextEmbedding)
    inner = EmbeddingRequests(admin) if embeds else admin
    bounded = Resilience(inner, str(subject.address), settings.timeout, Metrics().of(settings.model_name))
    subject.predictor = await subject.stack.enter_async_context(bounded)


async def server(subject: Subject) -> list[Finding]:
    """Check that the predictor is a live server of the V2 protocol. Raises RequestError."""
    await connect(subject)
    admin = subject.admin
    try:
        metadata = await admin.describe_server()
    except RequestError as error:
        plain = not subject.address.use_ssl
        if identity := await asyncio.to_thread(other_server, subject.address, None) if plain else "":
            return failed(f"{subject.address} is {identity}", f"correct --predictor_host or --predictor_port ({PORTS})")
        return failed(
            f"the predictor does not return its metadata: {error}",
            f"if that is another server's port, correct --predictor_host or --predictor_port ({PORTS})",
        )
    if metadata.name == OWN_NAME:
        return failed(
            f"{subject.address} is {ITSELF}",
            f"set --predictor_host to Triton's own address ({PORTS}); {subject.config.http_port} and "
            f"{subject.config.grpc_port} are the service's ports",
        )
    if not await admin.server_live():
        return failed(f"{metadata.name} {metadata.version} reports that it is not live", "see the predictor's log")
    return ok(f"{metadata.name} {metadata.version}, live")


async def server_ready(subject: Subject) -> list[Finding]:
    """Check that the predictor is ready, which depends on all its models. Raises RequestError."""
    if await subject.admin.server_ready():
        return ok("the predictor is ready")
    return warning(
        "not all of the predictor's models are ready, so its own readiness probe fails",
        "load or remove those models, or start Triton with --strict-readiness=false",
    )


async def model(subject: Subject) -> list[Finding]:
    """Check that the model is ready at the predictor. Raises RequestError."""
    flag = "predictor_model" if subject.config.predictor_model else "model_name"
    name = getattr(subject.config, flag)
    if await subject.admin.model_ready():
        return ok(f"{name!r} is ready")
    index: Sequence[RepositoryEntry] = ()
    with suppress(RequestError):
        index = await subject.admin.repository_index() or ()
    if versions := [entry for entry in index if entry.name == name]:
        return _not_ready(versions[-1])
    names = sorted({entry.name for entry in index})
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return failed(
        f"the predictor has no model {name!r}" + (f"; it has {listed}" if names else ""),
        f"set --{flag} to the name of the model's folder in Triton's repository, or put the model there",
    )


def _not_ready(entry: RepositoryEntry) -> list[Finding]:
    name, state = entry.name, entry.state or "not loaded"
    if state == "LOADING":
        return failed(f"{name!r} is loading", "wait, and see the predictor's log if it takes long")
    if entry.reason and entry.reason != "unloaded":
        return failed(
            f"{name!r} is {state}: {entry.reason}",
            "correct its config.pbtxt or its files; the predictor's log says more",
        )
    return failed(
        f"{name!r} is in the predictor's repository, but {state}",
        f"load it: start tritonserver with --load-model={name}, or without --model-control-mode=explicit",
    )


async def description(subject: Subject) -> list[Finding]:
    """Read the model's metadata and configuration at the predictor. Raises RequestError."""
    subject.spec = spec = await subject.predictor.model_spec()
    sides = [
        ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in side) or "nothing"
        for side in (spec.inputs, spec.outputs)
    ]
    source = "" if spec.max_batch_size is not None else " (from metadata: there is no configuration endpoint)"
    return ok(f"version {spec.version or 'unknown'}, {' -> '.join(sides)}{source}")


async def contract(subject: Subject) -> list[Finding]:
    """Build the service's pipeline to check names, datatypes and shapes of all tensors. Report each mismatch."""

    def keep(binding: ModelBinding) -> None:
        subject.binding = binding

    config, executor = subject.config, subject.stack.enter_context(ThreadPoolExecutor(2))
    metrics = Metrics().of(config.model_name)  # no server exposes these metrics
    sandbox = sandbox_of(config)
    await subject.stack.enter_async_context(sandbox.children)
    try:
        subject.label_vectors = vectors = await _label_vectors(subject, metrics, executor)
        build = PipelineBuilder(
            config, subject.loaded, subject.predictor, metrics, executor, keep, sandbox, label_vectors=vectors
        )
        subject.pipeline = pipeline = build(subject.spec)
    except ContractError as error:
        return [_mismatch(problem) for problem in error.problems]
    if isinstance(pipeline, GenerationPipeline):
        return ok(
            f"the service can run it as a {pipeline.interface} model (--generation_interface={pipeline.interface})"
        )
    signature = subject.fitted.signature
    sides = [
        ", ".join(f"{tensor.name} ({tensor.datatype})" for tensor in side)
        for side in (signature.inputs, signature.outputs)
    ]
    return ok(" -> ".join(sides))


async def _label_vectors(subject: Subject, metrics: ModelMetrics, executor: ThreadPoolExecutor) -> LabelVectors | None:
    """Make the source of a bi-encoder's label vectors, and check its model. Raises RequestError and ContractError."""
    config, labels = subject.config, subject.loaded.labels
    if labels is None:
        return None
    settings = label_settings(config, predictor_settings(config))
    settings = replace(settings, timeout=min(settings.timeout, CALL_SECONDS))
    transport = open_transport(config.predictor_protocol, settings)
    bounded = Resilience(transport, str(subject.address), settings.timeout, metrics)
    predictor = await subject.stack.enter_async_context(bounded)
    vectors = label_vectors(config, labels, predictor, metrics, executor)
    await vectors.check(asyncio.get_running_loop().time() + CALL_SECONDS)
    return vectors


def _mismatch(problem: str) -> Finding:
    """Convert a message that ends with a remedy to a finding."""
    for mark in ("; ", ". ", ": "):
        problem_only, separator, change = problem.rpartition(mark)
        if separator:
            return Finding("failed", problem_only, change.removesuffix("."))
    return Finding("failed", problem, "correct the flag in the message")
