"""The predictor, and what it says of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hf_transformer.commands.doctor.findings import Finding, failed, ok, warning
from hf_transformer.commands.doctor.network import PORTS
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.errors import RequestError
from hf_transformer.model_wiring import predictor_settings
from hf_transformer.predictor import open_transport
from hf_transformer.predictor.base import AdminTransport, parse_address
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.types import ModelSpec, RepositoryEntry

CALL_SECONDS = 60.0
"""For one call, unless --predictor_request_timeout_seconds is less: the first inference of some models takes long."""

SHOWN = 12
"""Models that are named where there is none of the wanted name."""


async def server(subject: Subject) -> Sequence[Finding]:
    """Whether it is a server of the V2 protocol, and which. Raises RequestError."""
    settings = predictor_settings(subject.config)
    settings = replace(settings, timeout=min(settings.timeout, CALL_SECONDS))
    admin = open_transport(subject.config.predictor_protocol, settings)
    bounded = Resilience(admin, str(parse_address(settings)), settings.timeout)
    subject.predictor = await subject.stack.enter_async_context(bounded)
    subject.admin = admin
    try:
        about = await admin.describe_server()
    except RequestError as error:
        return failed(
            f"it does not say what it is: {error}",
            f"correct --predictor_host or --predictor_port, if that is another server's port ({PORTS})",
        )
    if not await admin.server_live():
        return failed(f"{about.name} {about.version} says that it is not live", "see the predictor's log")
    return ok(f"{about.name} {about.version or 'of unknown version'}, live")


async def server_ready(subject: Subject) -> Sequence[Finding]:
    """What a readiness probe of the predictor itself gets: other models count there too. Raises RequestError."""
    if await known(subject.admin).server_ready():
        return ok("the predictor is ready")
    return warning(
        "the predictor says that not all of its models are ready, and a readiness probe of it fails",
        "load or remove those models, or start Triton with --strict-readiness=false",
    )


async def model(subject: Subject) -> Sequence[Finding]:
    """Whether the model is there and can infer. Raises RequestError."""
    admin, name = known(subject.admin), subject.config.model_name
    if await admin.model_ready():
        return ok(f"{name!r} is ready")
    index = await _index(admin)
    mine = [one for one in index if one.name == name]
    if mine:
        return _not_ready(name, mine[-1])
    names = sorted({one.name for one in index})
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    has = f"; it has {shown}" if names else ""
    return failed(
        f"the predictor has no model {name!r}{has}",
        "set --model_name to the name of the model's folder in Triton's repository, or put the model there",
    )


async def _index(admin: AdminTransport) -> Sequence[RepositoryEntry]:
    """The predictor's models, none where it does not tell."""
    try:
        return await admin.repository_index() or ()
    except RequestError:
        return ()


def _not_ready(name: str, entry: RepositoryEntry) -> Sequence[Finding]:
    state = entry.state or "not loaded"
    reason = f": {entry.reason}" if entry.reason and entry.reason != "unloaded" else ""
    if state == "LOADING":
        return failed(f"{name!r} is being loaded", "wait, and look at the predictor's log if it takes long")
    if reason:
        return failed(
            f"{name!r} is {state}{reason}", "mend its config.pbtxt or its files; the predictor's log says more"
        )
    return failed(
        f"{name!r} is in the predictor's repository, but {state}",
        f"load it: tritonserver --load-model={name}, or without --model-control-mode=explicit",
    )


async def description(subject: Subject) -> Sequence[Finding]:
    """What the predictor says of the model. Raises RequestError."""
    subject.spec = spec = await known(subject.admin).model_spec()
    told = "" if spec.max_batch_size is not None else " (metadata alone: there is no configuration endpoint)"
    return ok(f"version {spec.version or 'unknown'}, {_tensors(spec)}{told}")


def _tensors(spec: ModelSpec) -> str:
    sides = []
    for side in (spec.inputs, spec.outputs):
        sides.append(", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in side) or "nothing")
    return f"{sides[0]} -> {sides[1]}"
