"""The service as the APIs see it: the served models by name, and what all APIs share."""

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
from hf_transformer.generation.task import TextGeneration
from hf_transformer.observability.metrics import Metrics

if TYPE_CHECKING:
    from hf_transformer.api.open_streams import OpenStreams
    from hf_transformer.observability.tracing import Tracing  # OpenTelemetry is an extra


Model: TypeAlias = ServedModel[Pipeline]


class Models(dict[str, Model]):
    """The models by name; today there is one. Another name raises UnknownModel."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__({model.name: model for model in models})

    @property
    def names(self) -> list[str]:
        return list(self)

    def find(self, model: str, version: str = "") -> Model:
        """The model of this name, in this version if it is not empty; both as paths name them.

        Raises UnknownModel, and NotReady where a version is asked for before the predictor has told its own.
        """
        found = self[model]
        if version and version != (served := found.describe().version):
            known = f"served: {served}" if served else "its predictor tells none"
            raise UnknownModel.of(f"version {version[:40]!r} of model {found.name!r} is not served here; {known}")
        return found

    def __missing__(self, name: str) -> Never:
        raise UnknownModel.of(f"model {name[:200]!r} is not served here; served: {', '.join(self)}")


@dataclass(frozen=True, slots=True)
class Service:
    """What every API is given.

    ``max_bytes`` is the size of a request, after decompression too; ``max_texts`` how many texts one may have in any
    form: the larger of --max_instances and --max_sequences; ``max_json_depth`` is that of tools and their arguments.
    ``executor`` has the threads for long work, None is the event loop's own.
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
    """Returns the model if it generates text. Raises InvalidInput for another model; ``route`` names the feature that
    needs one."""
    if not isinstance(model, GenerativeModel):
        raise InvalidInput.of(
            f"model {model.name!r} does {model.task.name}, but {route} needs text_generation or text2text_generation"
        )
    return model


def generating_task(model: Model, route: str) -> TextGeneration:
    """The task of a generative model; see ``generative``."""
    return generative(model, route).task
