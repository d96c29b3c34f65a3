"""Flags, model files and the predictor's model: what each says, and whether they fit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from logging.handlers import MemoryHandler

from hf_transformer.api.v2 import SERVER as OWN_NAME
from hf_transformer.app.wiring import ModelBinding, PipelineBuilder, load_model, predictor_settings
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, warning
from hf_transformer.commands.doctor.network import ITSELF, PORTS, other_server
from hf_transformer.core.contract import ContractError
from hf_transformer.errors import RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_transport
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.types.tensors import RepositoryEntry

CALL_SECONDS = 60.0
"""For one call, unless --predictor_request_timeout_seconds is less: the first inference of some models takes long."""


async def flags(subject: Subject) -> list[Finding]:
    """Flags and variables that are not known, or contradict each other."""
    change = "correct the flag or the variable, or leave it out"
    return [Finding("warning", note, change) for note in subject.notes] or ok("all understood")


async def model_files(subject: Subject) -> list[Finding]:
    """The tokenizer, config.json and the task, loaded as the service loads them. Raises LoadError, ConfigError."""
    log, kept = logging.getLogger("hf_transformer"), MemoryHandler(1000)
    kept.setLevel(logging.WARNING)
    log.addHandler(kept)
    try:
        subject.parts = parts = await asyncio.to_thread(load_model, subject.config)
    finally:
        log.removeHandler(kept)
    architectures = parts.task.settings.model_config.get("architectures") or ["no architecture"]
    where = subject.config.model_id or subject.config.model_dir
    found = ok(f"{architectures[0]} in {where}, served as {parts.task.name}; {parts.tokenizer.vocab_size} tokens")
    change = "leave the flag out, or see what it says of the file"
    return [*found, *(Finding("warning", record.getMessage(), change) for record in kept.buffer)]


async def server(subject: Subject) -> list[Finding]:
    """Whether it is a live server of the V2 protocol, and which. Raises RequestError."""
    settings = predictor_settings(subject.config)
    settings = replace(settings, timeout=min(settings.timeout, CALL_SECONDS))
    subject.admin = admin = open_transport(subject.config.predictor_protocol, settings)
    bounded = Resilience(admin, str(subject.address), settings.timeout, Metrics(settings.model_name))
    subject.predictor = await subject.stack.enter_async_context(bounded)
    try:
        about = await admin.describe_server()
    except RequestError as error:
        plain = not subject.address.use_ssl
        if other := await other_server(subject.address, None) if plain else "":
            return failed(f"{subject.address} is {other}", f"correct --predictor_host or --predictor_port ({PORTS})")
        return failed(
            f"it does not say what it is: {error}",
            f"correct --predictor_host or --predictor_port, if that is another server's port ({PORTS})",
        )
    if about.name == OWN_NAME:
        return failed(
            f"{subject.address} is {ITSELF}",
            f"set --predictor_host to Triton's own address ({PORTS}); {subject.config.http_port} and "
            f"{subject.config.grpc_port} are the service's ports",
        )
    if not await admin.server_live():
        return failed(f"{about.name} {about.version} says that it is not live", "see the predictor's log")
    return ok(f"{about.name} {about.version}, live")


async def server_ready(subject: Subject) -> list[Finding]:
    """Whether a readiness probe of the predictor itself succeeds: other models count there too. Raises RequestError."""
    if await subject.admin.server_ready():
        return ok("the predictor is ready")
    return warning(
        "the predictor says that not all of its models are ready, and a readiness probe of it fails",
        "load or remove those models, or start Triton with --strict-readiness=false",
    )


async def model(subject: Subject) -> list[Finding]:
    """Whether the model is there and can infer. Raises RequestError."""
    name = subject.config.model_name
    if await subject.admin.model_ready():
        return ok(f"{name!r} is ready")
    index: Sequence[RepositoryEntry] = ()
    with suppress(RequestError):
        index = await subject.admin.repository_index() or ()
    if mine := [one for one in index if one.name == name]:
        return _not_ready(mine[-1])
    names = sorted({one.name for one in index})
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return failed(
        f"the predictor has no model {name!r}" + (f"; it has {shown}" if names else ""),
        "set --model_name to the name of the model's folder in Triton's repository, or put the model there",
    )


def _not_ready(entry: RepositoryEntry) -> list[Finding]:
    name, state = entry.name, entry.state or "not loaded"
    if state == "LOADING":
        return failed(f"{name!r} is being loaded", "wait, and look at the predictor's log if it takes long")
    if entry.reason and entry.reason != "unloaded":
        return failed(
            f"{name!r} is {state}: {entry.reason}",
            "mend its config.pbtxt or its files; the predictor's log says more",
        )
    return failed(
        f"{name!r} is in the predictor's repository, but {state}",
        f"load it: tritonserver --load-model={name}, or without --model-control-mode=explicit",
    )


async def description(subject: Subject) -> list[Finding]:
    """What the predictor says of the model. Raises RequestError."""
    subject.spec = spec = await subject.admin.model_spec()
    sides = [
        ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in side) or "nothing"
        for side in (spec.inputs, spec.outputs)
    ]
    told = "" if spec.max_batch_size is not None else " (metadata alone: there is no configuration endpoint)"
    return ok(f"version {spec.version or 'unknown'}, {' -> '.join(sides)}{told}")


async def contract(subject: Subject) -> list[Finding]:
    """Names, datatypes, ranks and sizes of all tensors, by building the service's pipeline. Each mismatch is a finding
    of its own."""

    def keep(pair: ModelBinding) -> None:
        subject.pair = pair

    config, executor = subject.config, subject.stack.enter_context(ThreadPoolExecutor(2))
    metrics = Metrics(config.model_name)  # not exposed anywhere
    try:
        build = PipelineBuilder(config, subject.parts, subject.predictor, metrics, executor, keep)
        subject.pipeline = pipeline = build(subject.spec)
    except ContractError as error:
        return [_mismatch(problem) for problem in error.problems]
    if isinstance(pipeline, GenerationPipeline):
        return ok(f"it can be driven, as a model of {pipeline.interface} (--generation_interface={pipeline.interface})")
    signature = subject.bound.signature
    inputs = ", ".join(f"{one.name} ({one.datatype})" for one in signature.inputs)
    outputs = ", ".join(f"{one.name} ({one.datatype})" for one in signature.outputs)
    return ok(f"{inputs} -> {outputs}")


def _mismatch(problem: str) -> Finding:
    """A sentence that ends with what to change, in its two parts."""
    for mark in ("; ", ". ", ": "):
        found, cut, change = problem.rpartition(mark)
        if cut:
            return Finding("failed", found, change.removesuffix("."))
    return Finding("failed", problem, "see the flag that it names")
