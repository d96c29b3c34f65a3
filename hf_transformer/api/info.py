"""Information about the served models, for web pages and clients.

Source: https://github.com/huggingface/text-embeddings-inference/blob/main/docs/openapi.json (Info)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata

from starlette.requests import Request

from hf_transformer import __version__
from hf_transformer.api.anthropic.messages import PATHS
from hf_transformer.api.bodies import TASKS
from hf_transformer.api.openai.routes import root_of
from hf_transformer.api.responses import JsonResponse, View, json_view
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.api.v2 import SERVER
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import STRUCTURED
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.tasks.playground import fits, read_playground
from hf_transformer.types.request import Json

LIMITS = (
    "max_instances max_sequences max_text_length max_total_length max_window_tokens max_answer_values "
    "max_request_bytes max_concurrent_requests max_queued_tokens max_batch_tokens"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoSettings:
    """Response fields that depend on flags.

    Attributes:
        limits: the values of the flags in LIMITS.
        grpc_port: None if gRPC is disabled or the system chooses the port.
        links: pages about the service by name: paths, and the address of the documentation.
    """

    limits: Mapping[str, int]
    openai_prefix: str
    grpc_port: int | None
    tokenizer_threads: int
    links: Mapping[str, str]


def views(service: Service, settings: InfoSettings) -> dict[str, View]:
    """Creates the views of this module. Like V2's metadata, they return 503 before contact with the predictor."""
    models = service.models

    async def show(request: Request) -> JsonResponse:
        """The fields of the only model or of ?model=NAME, and the list of all models."""
        name = request.query_params.get("model")
        about = {**await describe_models(models), "links": settings.links}
        if name is None and len(models.names) != 1:
            return JsonResponse({"version": __version__, **about})
        model = models.find(models.names[0] if name is None else name)
        return JsonResponse({**describe_as_tei(model, settings), **about})

    return {"v1ModelInfo": json_view(lambda model: describe_model(models.find(model), settings)), "info": show}


async def describe_models(models: Models) -> dict[str, Json]:
    """The state of each model, and the errors of changes that could not be applied (--models, --model_repository)."""
    entries: list[Json] = []
    for model, error in await models.states():
        names = {"aliases": model.identity.aliases, "adapters": model.identity.adapters}
        task = {"task": model.task.name, "purpose": model.task.purpose}
        entry = {"name": model.name, **task, "ready": error is None, **names}
        reason = model.lost if error is None else str(error)
        entries.append({**entry, "reason": reason} if reason else entry)
    entries += [{"name": name, "ready": False, "reason": reason} for name, reason in models.absent.items()]
    for entry in entries:
        name = str(entry["name"])
        if name in models.since:
            entry["since"] = datetime.fromtimestamp(models.since[name], UTC).isoformat(timespec="seconds")
        if name in models.uncounted:
            entry["counts"] = False
    return {"models": entries, **({"errors": models.errors} if models.errors else {})}


def describe_model(model: Model, settings: InfoSettings) -> dict[str, Json]:
    """The response of /v1/models/{m}/info. Raises NotReady before contact with the predictor."""
    description, task = model.describe(), model.task.settings
    return {
        "name": model.name,
        "version": description.version,
        "task": description.task,
        "server": {"name": SERVER, "version": __version__},
        "max_length": description.max_length,
        "output_format": task.output_format,
        "on_overflow": task.on_overflow,
        **model.task.info(),
        **({"generation": _generation_fields(model)} if isinstance(model, GenerativeModel) else {}),
        "limits": settings.limits,
        "protocols": _protocols(model, settings) if model.has_predictor else {},
        **_playground_fields(model),
        "links": settings.links,
    }


def _playground_fields(model: Model) -> dict[str, Json]:
    """The examples in the model's config.json, else those of its task, and the note about the model."""
    note, examples = read_playground(model.task.settings.model_config)
    chats = isinstance(model, GenerativeModel) and model.chat_template is not None
    fitting = [example for example in examples if fits(example, model.task.parameters, chats=chats)]
    own = [{"summary": f"example {number}", "value": example} for number, example in enumerate(fitting, 1)]
    found = (own or model.task.requests()) if model.has_predictor else []
    return {"examples": found, **({"note": note} if note else {})}


def find_links(*, docs: bool) -> dict[str, str]:
    """The addresses of the service's health, of /docs, if it is enabled, and of the documentation, if it is known."""
    links = {"health": "/v2/health/ready", **({"docs": "/docs"} if docs else {})}
    with suppress(PackageNotFoundError):
        address = documentation_address(metadata("hf-transformer").get_all("Project-URL", []))
        links |= {} if address is None else {"documentation": address}
    return links


def documentation_address(project_urls: Sequence[str]) -> str | None:
    """The address of the documentation, or of the repository that has it, in a package's metadata: LABEL, ADDRESS."""
    addresses = {
        label.strip().lower(): url.strip() for label, _, url in (entry.partition(",") for entry in project_urls)
    }
    return next((addresses[label] for label in ("documentation", "homepage", "repository") if label in addresses), None)


def _protocols(model: Model, settings: InfoSettings) -> dict[str, Json]:
    """The routes that run a model."""
    base = f"{root_of(settings.openai_prefix)}/v1"
    chats = isinstance(model, GenerativeModel) and model.chat_template is not None
    return {
        "v1": f"/v1/models/{model.name}:predict",
        "v2": f"/v2/models/{model.name}/infer",
        "grpc_port": settings.grpc_port,
        "openai": [f"{base}/{path}" for path, tasks in TASKS.items() if model.task.name in tasks],
        **({"anthropic": [*PATHS]} if chats else {}),
        **({"generate": f"/v2/models/{model.name}/generate"} if isinstance(model, GenerativeModel) else {}),
    }


def _generation_fields(model: GenerativeModel) -> dict[str, Json]:
    """The fields of a generative model, such as its supported parameters of OpenAI's API and V1."""
    pipeline, template, defaults = model.pipeline, model.chat_template, model.task.settings.generation
    interface: dict[str, Json] = {}
    if isinstance(pipeline, GenerationPipeline):
        fields = pipeline.supported_fields - {"greedy"}
        parameters = sorted(STRUCTURED if name == "constraint" else name for name in fields)
        interface = {"interface": pipeline.interface, "parameters": parameters}
    return {
        **interface,
        "chat": template is not None,
        "tools": template is not None and template.supports_tools,
        "full_text": model.task.knows_full_text,
        "max_new_tokens": defaults.max_new_tokens,
    }


def describe_as_tei(model: Model, settings: InfoSettings) -> dict[str, Json]:
    """The response of /info. Raises NotReady before contact with the predictor.

    The response omits model_dtype and max_batch_requests, which depend on the predictor, and sha and docker_label.
    """
    description, task, limits, identity = model.describe(), model.task.settings, settings.limits, model.identity
    model_type = model.task.tei_type()
    return {
        "model_id": identity.model_id or model.name,
        "model_sha": identity.revision if len(identity.revision or "") == 40 else None,
        "served_model_name": model.name,
        **({"model_type": model_type} if model_type else {}),
        "max_concurrent_requests": limits["max_concurrent_requests"],
        "max_input_length": description.max_length,
        "max_batch_tokens": limits["max_batch_tokens"],
        "max_client_batch_size": limits["max_instances"],
        "auto_truncate": task.on_overflow == "truncate",
        "tokenization_workers": settings.tokenizer_threads,
        "version": __version__,
    }
