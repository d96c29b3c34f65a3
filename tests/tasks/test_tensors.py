"""Instances in tensors, and predictions as tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, show_path
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks.tensors import TEXT, Field, json_tensor, ragged_tensor, read_instances
from hf_transformer.types.tensors import Tensor, Texts

PAIR = (TEXT, Field("text_pair", optional=True))
QUESTION = (Field("question"), Field("context"))
RERANK = (Field("query"), Field("texts", ("documents",), many=True))
LISTS = (Field("texts", many=True), Field("text", optional=True))


def inputs(**values: Any) -> dict[str, Tensor | Texts]:
    """Tensors of strings by name; ``__`` in a name stands for a hyphen."""
    tensors: dict[str, Tensor | Texts] = {}
    for name, value in values.items():
        name = name.replace("__", "-")
        data = np.array(value, np.object_)
        tensors[name] = Texts(name, data.shape, data.reshape(-1).tolist())
    return tensors


Q1, Q2 = ({"question": question, "context": "c"} for question in ("q1", "q2"))
AB = {"query": "q", "texts": ["a", "b"]}
INSTANCES: list[tuple[Any, tuple[Field, ...], list[Any]]] = [
    *[
        (inputs(**{name: ["a", "Zürich 🎉"]}), (TEXT,), ["a", "Zürich 🎉"])
        for name in ("text", "input__0", "instances")
    ],
    (inputs(text=[["a"], ["b"]]), (TEXT,), ["a", "b"]),
    (inputs(text="a"), (TEXT,), ["a"]),
    ({"text": Texts("text", (0,), [])}, (TEXT,), []),
    (inputs(text=["a", "b"]), PAIR, ["a", "b"]),
    # The only input may have any name if one field is required.
    (inputs(sentence=["a", "b"]), PAIR, ["a", "b"]),
    (inputs(text=["a"], text_pair=["c"]), PAIR, [{"text": "a", "text_pair": "c"}]),
    # One row holds for all instances.
    (inputs(question=["q1", "q2"], context=["c"]), QUESTION, [Q1, Q2]),
    # Lists, with and without the axis of instances.
    (inputs(query=["q"], texts=["a", "b"]), RERANK, [AB]),
    (inputs(query=["q"], documents=[["a", "b"]]), RERANK, [AB]),
    (inputs(query=["q", "q"], texts=[["a", "b"], ["a", "b"]]), RERANK, [AB, AB]),
    # A first field of lists is an object, not a list of strings.
    ({"texts": Texts("texts", (2, 0), [])}, LISTS, [{"texts": []}, {"texts": []}]),
    (inputs(texts=[["a", "b"], ["c", "d"]]), LISTS, [{"texts": ["a", "b"]}, {"texts": ["c", "d"]}]),
]


@pytest.mark.parametrize(("tensors", "fields", "instances"), INSTANCES)
def test_instances_are_the_rows_of_the_inputs(tensors: Any, fields: tuple[Field, ...], instances: list[Any]) -> None:
    assert read_instances(tensors, fields) == instances


NAMES = "'text', 'text_pair' (optional)"
SHAPES = "[instances] or [instances, 1] for 'text'"
NUMBERS = {name: Tensor(name, "INT64", np.array([1])) for name in ("input_ids", "text")}


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ({"input_ids": NUMBERS["input_ids"]}, ("inputs[0].name", f"one of {NAMES}", "'input_ids'")),
        (inputs(text=["a"], nonsense=["a"]), ("inputs[1].name", f"one of {NAMES}", "'nonsense'")),
        (inputs(text=["a"], input__0=["b"]), ("inputs[1].name", "one input for 'text'", "another one, 'input-0'")),
        (inputs(text_pair=["a"]), ("inputs", NAMES, "'text_pair'", "'text' is missing")),
        ({}, ("inputs", NAMES, "none", "'text' is missing")),
        (
            inputs(text=["a", "b", "c"], text_pair=["d", "e"]),
            ("inputs[1].shape", "1 row of 'text_pair', or 3 as in another input", "2"),
        ),
        ({"text": Texts("text", (1, 0), [])}, ("inputs[0].shape", SHAPES, "[1, 0]")),
        (inputs(text=[[["a"]]]), ("inputs[0].shape", SHAPES, "[1, 1, 1]")),
        (inputs(text=[["a", "b"]]), ("inputs[0].shape", SHAPES, "[1, 2]")),
        ({"text": NUMBERS["text"]}, ("inputs[0].datatype", "BYTES (text in UTF-8) for 'text'", "INT64")),
    ],
)
def test_a_wrong_input_is_named_with_its_field(tensors: Any, error: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_instances(tensors, PAIR)
    path, *rest = error
    assert (show_path(raised.value.path), *raised.value.args[1:]) == (path, *rest, "")[:4]


def test_an_input_of_lists_has_one_or_two_axes() -> None:
    with pytest.raises(InvalidInput, match=r"inputs\[1\]\.shape: expected \[instances, strings\] or \[strings\]"):
        read_instances(inputs(query=["q"], texts=[[["a"]]]), RERANK)


def test_predictions_become_json_text_or_padded_arrays() -> None:
    tensor = json_tensor([{"label": "ä", "score": 0.5}, [np.float32(0.25)]])
    assert (tensor.name, tensor.datatype, tensor.shape) == ("output-0", "BYTES", (2,))
    assert [json.loads(element) for element in tensor.data] == [{"label": "ä", "score": 0.5}, [0.25]]
    tensor = ragged_tensor([np.array([1, 2, 3]), np.array([4])], "INT64", -100)
    assert tensor.data.tolist() == [[[1, 2, 3]], [[4, -100, -100]]]


@pytest.mark.parametrize("task", [task for task, _ in ALL_TASKS], ids=lambda task: task.name)
def test_the_names_of_a_task_s_fields_are_unique_and_the_first_is_required(task: Any) -> None:
    names = [name for field in task.fields for name in (field.name, *field.other_names)]
    assert len(names) == len(set(names))
    assert not task.fields[0].optional
