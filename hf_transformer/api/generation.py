"""What the APIs share that generate text, beside OpenAI's: which models do, and which requests want it as it comes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from hf_transformer.api.base import Model
from hf_transformer.api.streaming import StreamForm
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.tasks.base import Servable
from hf_transformer.types import Context, Json, Query

STREAM = "stream"
"""The parameter that asks for pieces."""


def generating(model: Model, route: str) -> TextGeneration:
    """The task of a model that generates text. Raises InvalidInput for another; ``route`` is what is asked of it."""
    task = model.task
    if not isinstance(task, TextGeneration):
        raise InvalidInput(
            f"model {model.name!r} does {task.name}, but {route} needs text_generation or text2text_generation"
        )
    return task


def wants_stream(task: Servable, parameters: Mapping[str, Json]) -> bool:
    """Whether a request wants its text as it comes. What is no boolean is left to the task, which refuses it."""
    return isinstance(task, TextGeneration) and parameters.get(STREAM) is True


def refuse_stream(task: Servable, parameters: Mapping[str, Json]) -> None:
    """Raises InvalidInput where one answer is all that can be given."""
    if wants_stream(task, parameters):
        raise one_answer(f"parameters.{STREAM}")


def one_answer(name: str) -> InvalidInput:
    """What a request for pieces is told where there are none."""
    return InvalidInput(
        f"{name}: one answer is given here, expected false; V1, generate_stream, OpenAI's endpoints and "
        "ModelStreamInfer over gRPC give the text as it comes"
    )


def refuse_many(task: Servable, query: Query, most: int) -> None:
    """Raises TooLarge for more instances than any flag allows, which a task that generates would read one by one
    before they are counted."""
    if isinstance(task, TextGeneration) and len(query.instances) > most:
        raise TooLarge(
            f"{query.name}: {len(query.instances)} in a request, at most {most} are taken (--max_instances, "
            "--max_sequences)"
        )


class TextStream(StreamForm):
    """The texts of a request as they come."""

    __slots__ = ("_context", "_model", "_request")

    def __init__(self, model: Model, request: GenerationRequest, context: Context) -> None:
        self._model = model
        self._request = request
        self._context = context
        self.texts = len(request.prompts) * request.sampling.n

    def start(self) -> Awaitable[Generation]:
        return self._model.generate(self._request, self._context)


def place_of(request: GenerationRequest, prompt: int, choice: int, name: str) -> dict[str, int]:
    """Which text a piece belongs to: nothing is said of what there is one of. ``name`` is what prompts are called."""
    found = {name: prompt} if len(request.prompts) > 1 else {}
    return found | ({"choice": choice} if request.sampling.n > 1 else {})
