"""Shared objects of all APIs, such as the served models, limits, metrics and admission."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, TypeAlias

from hf_transformer.core.limits import Admission
from hf_transformer.core.model import ServedModel
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import InvalidInput, UnknownModel
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.observability.metrics import Metrics

if TYPE_CHECKING:
    from hf_transformer.api.open_streams import OpenStreams
    from hf_transformer.observability.tracing import Tracing  # OpenTelemetry is optional


Model: TypeAlias = ServedModel[Pipeline]


class Models(dict[str, Model]):
    """The served models by name, at present one model. An unknown name raises UnknownModel."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__({model.name: model for model in models})

    @property
    def names(self) -> list[str]:
        return list(self)

    def find(self, model: str, version: str = "") -> Model:
        """Finds a model. Raises UnknownModel, and NotReady if the model's version is not yet known."""
        entry = self[model]
        if version and version != (served := entry.describe().version):
            expected = f"version {served!r}" if served else "no version, since the predictor reports none,"
            raise UnknownModel("", f"{expected} of model {entry.name!r}", f"version {version[:40]!r}")
        return entry

    def __missing__(self, name: str) -> Never:
        raise UnknownModel("", f"a served model ({', '.join(self)})", repr(name[:200]))


@dataclass(frozen=True, slots=True)
class Service:
    """The models, limits and shared objects of a service.

    Attributes:
        max_bytes: maximum size of a request, before and after decompression.
        max_texts: maximum texts in a request, the larger of --max_instances and --max_sequences.
        max_json_depth: maximum nesting of tools and their arguments.
        executor: the threads for long work. None selects the event loop's default executor.
    """

    models: Models
    admission: Admission
    metrics: Metrics
    max_bytes: int
    max_texts: int
    streams: OpenStreams
    server_timing: bool = True
    token_inputs: bool = False
    max_instances: int = 2048
    max_json_depth: int = 64
    tracing: Tracing | None = None
    executor: Executor | None = None


def generative(model: Model, route: str) -> GenerativeModel:
    """Returns a model that generates text. Raises InvalidInput for other models, with ``route`` in the message."""
    if not isinstance(model, GenerativeModel):
        expected = f"a model for text_generation or text2text_generation, which {route} needs"
        raise InvalidInput("", expected, f"{model.name!r} for {model.task.name}")
    return model
