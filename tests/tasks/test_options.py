"""Declared parameters: values, defaults by flags, errors and schemas, and that no other folder has tables of tasks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import hf_transformer
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.task import TASK_CLASSES
from hf_transformer.tasks.options import ParameterReader, TaskParameters, by_flag, flags_of, parameter_schemas
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.task_names import TASK_NAMES


class Toy(TaskParameters):
    count: Annotated[Positive, about("How many."), by_flag("toy_count")] = 2
    kind: Annotated[Literal["last", "first"] | None, about("Which.")] = None
    on: Annotated[bool, about("Whether.")] = True


@pytest.mark.parametrize(
    ("flags", "parameters", "values", "present"),
    [
        ({}, {}, (2, None, True), set()),
        ({"toy_count": 5}, {"kind": "first", "on": None}, (5, "first", True), {"kind"}),
        ({"toy_count": 5}, {"count": 3, "on": False}, (3, None, False), {"count", "on"}),
    ],
    ids=["defaults", "flag and null", "request"],
)
def test_a_request_goes_before_the_flag_and_the_flag_before_the_default(
    flags: Any, parameters: Any, values: Any, present: set[str]
) -> None:
    given, names = ParameterReader(Toy, flags)(parameters)
    assert ((given.count, given.kind, given.on), {*names}) == (values, present)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"none": None}, "parameters.none: expected one of count, kind, on, got an unknown name"),
        ({"count": 0}, "parameters.count: expected 1 or more, got 0"),
        ({"count": True}, "parameters.count: expected a whole number, got a boolean"),
        ({"kind": "c"}, "parameters.kind: expected one of last, first, got 'c'"),
        ({"on": 1}, "parameters.on: expected true or false, got a number"),
    ],
    ids=["name", "limit", "type", "choice", "boolean"],
)
def test_an_error_names_the_parameter(parameters: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as found:
        ParameterReader(Toy, {})(parameters)
    assert str(found.value) == message


def test_a_schema_allows_null_and_has_choices_in_order() -> None:
    assert parameter_schemas(Toy) == {
        "count": {"description": "How many. --toy_count if not given.", "type": ["integer", "null"], "minimum": 1},
        "kind": {"description": "Which.", "type": ["string", "null"], "enum": ["last", "first", None]},
        "on": {"description": "Whether.", "type": ["boolean", "null"], "default": True},
    }
    assert flags_of(Toy) == {"count": "toy_count"}


@pytest.mark.parametrize("name", TASK_CLASSES)
def test_every_parameter_of_a_task_has_help(name: str) -> None:
    schemas = parameter_schemas(TASK_CLASSES[name].options_type)
    assert sorted(schemas) == sorted(TASK_CLASSES[name].parameters)
    assert all(schema["description"].endswith(".") for schema in schemas.values())


def test_names_of_tasks_are_written_in_tasks_alone() -> None:
    root = Path(hf_transformer.__file__).parent
    own = {root / "types" / "task_names.py", root / "generation" / "task.py"}
    names = TASK_NAMES.keys() - {"rerank"}  # which is also the name of routes
    files = [file for file in root.rglob("*.py") if file.parent != root / "tasks" and file not in own]
    assert len(files) > 100
    assert not [
        (file.name, node.lineno)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
