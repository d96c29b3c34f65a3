"""What the V2 protocol over REST and over gRPC share: tensors -> Query, Answers -> tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import orjson

from hf_transformer.api.base import Model
from hf_transformer.api.generation import refuse_stream
from hf_transformer.errors import InvalidInput, TooLarge, UnknownModel
from hf_transformer.protocol.inbound import InferRequest, InferResponse
from hf_transformer.protocol.json_text import SMALL
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.tasks.base import Servable, describe
from hf_transformer.tasks.tensors import OUTPUT, read_instances
from hf_transformer.types import Answers, Context, Json, Query, Tensor

MORE_PARAMETERS = "parameters"
"""A request's parameter with further ones as JSON text: over gRPC a parameter is a string, a number or a boolean, and
some tasks have lists."""


class clients_fault:
    """Turns what a codec finds wrong with a client's bytes into InvalidInput."""

    __slots__ = ()

    def __enter__(self) -> None:
        """What follows may raise."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Malformed):
            raise InvalidInput(str(error)) from error


async def infer(model: Model, request: InferRequest, context: Context) -> InferResponse:
    """One request's answer, as the tensors that it asks for.

    Raises:
        InvalidInput: an input, an output or a parameter is not what the task takes.
        RequestError: whatever else keeps it from being answered.
    """
    query = to_query(model.task, request)
    refuse_stream(model.task, query.parameters)
    version = model.describe().version  # before the answer: the model may be bound to another one meanwhile
    answers = await model.predict(query, context)
    return InferResponse(model.name, version, _outputs(answers, request), request.id)


def to_query(task: Servable, request: InferRequest) -> Query:
    """The query in a request's tensors.

    Raises:
        InvalidInput: an input, an output or a parameter has an unknown name or a value that does not fit.
    """
    parameters = all_parameters(request.parameters)
    for wanted in request.outputs:
        switch = task.switched_on_by.get(wanted.name)
        if switch is not None:
            if parameters.setdefault(switch, True) is not True:
                raise InvalidInput(f"outputs: {wanted.name!r} is asked for, and parameters.{switch} switches it off")
        elif wanted.name != OUTPUT:
            known = ", ".join((OUTPUT, *task.switched_on_by))
            raise InvalidInput(f"outputs: {wanted.name[:100]!r} is unknown, expected one of {known}")
    return Query(read_instances(request.inputs, task.fields), parameters, tensors=True)


def all_parameters(given: Mapping[str, Json]) -> dict[str, Json]:
    """A request's parameters, those included that it has as JSON text. Raises InvalidInput or TooLarge."""
    if MORE_PARAMETERS not in given:
        return dict(given)
    more = json_parameters(given[MORE_PARAMETERS], f"parameters.{MORE_PARAMETERS}")
    rest = {name: value for name, value in given.items() if name != MORE_PARAMETERS}
    twice = sorted(rest.keys() & more.keys())
    if twice:
        raise InvalidInput(f"parameters.{twice[0][:40]}: given twice, once in parameters.{MORE_PARAMETERS}")
    return rest | more


def json_parameters(given: Json, where: str) -> dict[str, Json]:
    """Parameters that may stand as JSON text. Raises InvalidInput or TooLarge, beginning with ``where``."""
    if isinstance(given, str):
        if len(given) > SMALL:
            raise TooLarge(f"{where}: {len(given)} characters, at most {SMALL} are taken of parameters as text")
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"{where}: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidInput(f"{where}: expected a JSON object, got {describe(given)}")
    return given


def _outputs(answers: Answers, request: InferRequest) -> list[Tensor]:
    """All outputs, or those that the request names, in its order."""
    if answers.tensor is None:
        raise AssertionError("the query asked for a tensor")
    tensors = {tensor.name: tensor for tensor in (answers.tensor, *answers.outputs)}
    return [tensors[wanted.name] for wanted in request.outputs] if request.outputs else list(tensors.values())


def check_version(model: Model, version: str) -> None:
    """Raises UnknownModel for a version that is not the one that is served; empty is any."""
    if version and version != (served := model.describe().version):
        known = f"served: {served}" if served else "its predictor tells none"
        raise UnknownModel(f"version {version[:40]!r} of model {model.name!r} is not served here; {known}")
