"""GET /openapi.json: the OpenAPI 3.1 document of the HTTP APIs.

The template openapi.yaml describes every task and every setting. Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hf_transformer import __version__
from hf_transformer.api.openai.routes import root_of
from hf_transformer.api.service import Model, Service
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.declaration import Schema, takes_strings
from hf_transformer.tasks.options import parameter_schemas
from hf_transformer.tasks.tensors import Field
from hf_transformer.types.request import Json

FILE = Path(__file__).with_suffix(".yaml")
CONDITION = "x-for"
"""The key for the tasks and settings of an object. The document omits objects of other tasks and settings."""
MODEL = "{model}"
"""The word for the model's name in the template."""
PIECES = "x-pieces"
"""The key of the template's pieces that several places use."""
OPENAI = "/openai/"
"""The path prefix of the OpenAI API in the template."""
_OMITTED = object()
Key: TypeAlias = tuple[tuple[tuple[str, ...], str, str | None, bool], ...]
NO_PREDICTOR = re.compile(r"(tokenize|/decode|/render|/repository/index)$")
"""The POST routes of models without a predictor."""


class Documents:
    """The document of the service, and the parts for one model. Each document is built once per set of models.

    The document of several models keeps ``{model}`` as a parameter of its paths, and describes all their tasks.

    Args:
        openai_prefix: --openai_route_prefix.
        keys: whether requests need an API key (--api_keys_file).
    """

    def __init__(self, service: Service, openai_prefix: str, *, keys: bool = False) -> None:
        self._models = service.models
        self._root = root_of(openai_prefix)
        self._settings = {*(["openai_prefix"] if self._root else ()), *(["api_keys"] if keys else ())}
        # libyaml is eight times as fast as the Python parser, but some PyYAML builds lack libyaml.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._template = yaml.load(FILE.read_text("utf-8"), loader)  # noqa: S506  # a safe loader
        _add_tasks(self._template)
        self._bodies: dict[Key, bytes] = {}
        self.body()

    @property
    def route(self) -> Route:
        async def show(request: Request) -> Response:
            return Response(self.body(), media_type="application/json")

        return Route("/openapi.json", show)

    def body(self) -> bytes:
        """The serialized document of all served models."""
        models = self._models.served
        if (key := key_of(models)) not in self._bodies:
            self._bodies = {key: orjson.dumps(self._build(models))}
        return self._bodies[key]

    def _build(self, models: Sequence[Model]) -> dict[str, Json]:
        names = [model.name for model in models]
        every_name = [name for model in models for name in model.names]
        masks = [model.task.settings.vocabulary.mask_token for model in models]
        words = {"[MASK]": next(filter(None, masks), "[MASK]"), **({MODEL: names[0]} if len(names) == 1 else {})}
        title = f"hf_transformer: {', '.join(names)}" if names else "hf_transformer"
        document: dict[str, Json] = _tailor(
            self._template, self._settings | {model.task.name for model in models}, words, every_name
        )
        document["info"] |= {"title": title, "version": __version__}
        runs = not models or any(model.has_predictor for model in models)
        document["paths"] = {
            f"{self._root}/{path.removeprefix(OPENAI)}" if path.startswith(OPENAI) else path: item
            for path, item in document["paths"].items()
            if runs or not _needs_predictor(path, item)
        }
        if len(names) != 1:
            schema = {"type": "string", **({"enum": every_name} if names else {})}
            parameter = {"name": "model", "in": "path", "required": True, "schema": schema}
            for path, item in document["paths"].items():
                if MODEL in path:
                    item["parameters"] = [parameter, *item.get("parameters", ())]
        return document


def _add_tasks(template: dict[str, Json]) -> None:
    """Adds what all tasks declare to the template, each part for its tasks alone."""
    pieces, schemas, tasks = template[PIECES], template["components"]["schemas"], TASK_CLASSES.values()
    for path, of_task in ((f"/v1/models/{MODEL}:predict", _examples), (f"/v2/models/{MODEL}/infer", _tensor_examples)):
        body = template["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        body["examples"] = {key: value for task in tasks for key, value in of_task(task)} | body.get("examples", {})
    parameters = {task.name: parameter_schemas(task.options_type) for task in tasks}
    closed = {"type": "object", "additionalProperties": False}
    parts: dict[str, list[tuple[str, Schema]]] = {
        "Instance": [(task.name, form) for task in tasks for form in task.instance_schemas],
        "Prediction": [(task.name, form) for task in tasks for form in task.prediction_schemas],
        "Parameters": [
            (name, {"title": name, **closed, "properties": {**pieces["clients"], **known}})
            for name, known in parameters.items()
        ],
        "V2Parameters": [
            (name, {"type": "object", "properties": {**pieces["v2"], **known}}) for name, known in parameters.items()
        ],
        "V2Input": [(task.name, _input(field, pieces)) for task in tasks for field in task.fields],
        "V2OutputName": [(task.name, {"const": name}) for task in tasks for name in task.switched_on_by],
    }
    for name, forms in parts.items():
        schemas[name]["anyOf"] = _by_task(forms) + schemas[name].get("anyOf", [])
    texts = [task.name for task in tasks if any(map(takes_strings, task.instance_schemas))]
    single = {CONDITION: texts, "type": "string", "description": "A list of one."}
    schemas["V1Request"]["properties"]["instances"]["anyOf"].append(single)  # inputs has the same list
    for task in tasks:
        schemas["V1Info"]["properties"] |= task.info_schemas


def _examples(task: type[Servable]) -> Iterator[tuple[str, Json]]:
    """The examples of a task with their keys."""
    for example in task.examples:
        key = f"{task.name}_{example.key}".rstrip("_")
        yield key, {CONDITION: [task.name], "summary": example.summary, "value": example.value}


def _tensor_examples(task: type[Servable]) -> Iterator[tuple[str, Json]]:
    """The examples whose instances the task's tensors can have."""
    first = task.fields[0].name
    names = {name for field in task.fields for name in (field.name, *field.other_names)}
    for key, example in _examples(task):
        instances, parameters = example["value"]["instances"], example["value"].get("parameters", {})
        rows = [{first: instance} if isinstance(instance, str) else instance for instance in instances]
        if "stream" not in parameters and all(row.keys() == rows[0].keys() <= names for row in rows):
            inputs = [_tensor(name, [row[name] for row in rows]) for name in rows[0]]
            yield key, {**example, "value": {"inputs": inputs, **({"parameters": parameters} if parameters else {})}}


def _tensor(name: str, column: list[Json]) -> dict[str, Json]:
    """A field of all instances as a tensor of V2: texts, or lists of texts."""
    if isinstance(column[0], str):
        return {"name": name, "datatype": "BYTES", "shape": [len(column)], "data": column}
    data = [text for texts in column for text in texts]
    return {"name": name, "datatype": "BYTES", "shape": [len(column), len(column[0])], "data": data}


def _input(field: Field, pieces: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a field's tensor."""
    names = [field.name, *field.other_names]
    return {**pieces["tensor_form"], "properties": {**pieces["tensor"], "name": {"enum": names}}}


def _by_task(forms: Sequence[tuple[str, Schema]]) -> list[Schema]:
    """The schemas, each once, with the names of its tasks."""
    different: list[Schema] = []
    for _, schema in forms:
        if schema not in different:
            different.append(schema)
    return [{CONDITION: [name for name, other in forms if other == schema], **schema} for schema in different]


def key_of(models: Sequence[Model]) -> Key:
    """The names, task, mask token and predictor of each model, on which a document depends. A reference to the model
    would keep its tokenizer in memory after its removal."""
    return tuple(
        (model.names, model.task.name, model.task.settings.vocabulary.mask_token, model.has_predictor)
        for model in models
    )


def _needs_predictor(path: str, item: Mapping[str, Json]) -> bool:
    """Whether a path has only a route that runs a model."""
    return item.keys() & {"get", "post"} == {"post"} and NO_PREDICTOR.search(path) is None


def _tailor(value: Any, conditions: Set[str], words: Mapping[str, str], names: Sequence[str]) -> Any:
    """Replaces words in a template value, and omits the objects of other tasks and settings. The word for the model
    becomes all ``names`` in a list, and the first one as a value by itself."""
    if value == MODEL and names:
        return names[0]
    if isinstance(value, str):
        for word, replacement in words.items():
            value = value.replace(word, replacement)
        return value
    if isinstance(value, list | tuple):
        members = (member for item in value for member in (names if item == MODEL else (item,)))
        items = (_tailor(item, conditions, words, names) for item in members)
        return [item for item in items if item is not _OMITTED]
    if not isinstance(value, dict):
        return value
    if CONDITION in value and not conditions & set(value[CONDITION]):
        return _OMITTED
    pairs = ((key, _tailor(item, conditions, words, names)) for key, item in value.items() if key != CONDITION)
    return {_tailor(key, conditions, words, names): item for key, item in pairs if item is not _OMITTED}
