"""Instances in tensors, and predictions as tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks.tensors import TEXT, Field, json_tensor, ragged_tensor, read_instances
from hf_transformer.types.tensors import Tensor, Texts

PAIR = (TEXT, Field("text_pair", optional=True))
QUESTION = (Field("question"), Field("context"))
RERANK = (Field("query"), Field("texts", ("documents",), many=True))
LISTS = (Field("texts", many=True), Field("text", optional=True))


def inputs(**named: Any) -> dict[str, Tensor | Texts]:
    """Tensors of strings, by name with hyphens for underscores that stand twice."""
    tensors: dict[str, Tensor | Texts] = {}
    for name, value in named.items():
        name = name.replace("__", "-")
        data = np.array(value, np.object_)
        tensors[name] = Texts(name, data.shape, data.reshape(-1).tolist())
    return tensors


Q1, Q2 = ({"question": one, "context": "c"} for one in ("q1", "q2"))
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
    # The only input may have any name where one field is required.
    (inputs(sentence=["a", "b"]), PAIR, ["a", "b"]),
    (inputs(text=["a"], text_pair=["c"]), PAIR, [{"text": "a", "text_pair": "c"}]),
    # One row holds for all instances.
    (inputs(question=["q1", "q2"], context=["c"]), QUESTION, [Q1, Q2]),
    # Lists, with and without the axis of instances.
    (inputs(query=["q"], texts=["a", "b"]), RERANK, [AB]),
    (inputs(query=["q"], documents=[["a", "b"]]), RERANK, [AB]),
    (inputs(query=["q", "q"], texts=[["a", "b"], ["a", "b"]]), RERANK, [AB, AB]),
    # A field of lists alone, as a task may have it first, is no list of strings.
    ({"texts": Texts("texts", (2, 0), [])}, LISTS, [{"texts": []}, {"texts": []}]),
    (inputs(texts=[["a", "b"], ["c", "d"]]), LISTS, [{"texts": ["a", "b"]}, {"texts": ["c", "d"]}]),
]


@pytest.mark.parametrize(("given", "fields", "instances"), INSTANCES)
def test_instances(given: dict[str, Tensor | Texts], fields: tuple[Field, ...], instances: list[Any]) -> None:
    assert read_instances(given, fields) == instances


KNOWN, SHAPES = "expected 'text', 'text_pair' (optional)", "expected [instances] or [instances, 1]"
NUMBERS = {name: Tensor(name, "INT64", np.array([1])) for name in ("input_ids", "text")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": NUMBERS["input_ids"]}, f"'input_ids' is unknown, {KNOWN}"),
        (inputs(text=["a"], nonsense=["a"]), f"'nonsense' is unknown, {KNOWN}"),
        (inputs(text=["a"], input__0=["b"]), "'text' comes twice, once as 'input-0'"),
        (inputs(text_pair=["a"]), f"'text' is missing, {KNOWN}, got 'text_pair'"),
        ({}, f"'text' is missing, {KNOWN}, got none"),
        (inputs(text=["a", "b", "c"], text_pair=["d", "e"]), "'text_pair' has 2 rows where another input has 3"),
        ({"text": Texts("text", (1, 0), [])}, f"'text' has the shape [1, 0], {SHAPES}"),
        (inputs(text=[[["a"]]]), f"'text' has the shape [1, 1, 1], {SHAPES}"),
        (inputs(text=[["a", "b"]]), f"'text' has the shape [1, 2], {SHAPES}"),
        ({"text": NUMBERS["text"]}, "'text' is INT64, expected BYTES (text in UTF-8)"),
    ],
)
def test_what_does_not_fit(given: dict[str, Tensor | Texts], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_instances(given, PAIR)
    assert str(raised.value) == f"inputs: {message}"
    with pytest.raises(InvalidInput, match=r"'texts' has the shape \[1, 1, 1\], expected \[instances, strings\]"):
        read_instances(inputs(query=["q"], texts=[[["a"]]]), RERANK)


def test_predictions_as_tensors() -> None:
    tensor = json_tensor([{"label": "ä", "score": 0.5}, [np.float32(0.25)]])
    assert (tensor.name, tensor.datatype, tensor.shape) == ("output-0", "BYTES", (2,))
    assert [json.loads(one) for one in tensor.data] == [{"label": "ä", "score": 0.5}, [0.25]]
    tensor = ragged_tensor([np.array([1, 2, 3]), np.array([4])], "INT64", -100)
    assert tensor.data.tolist() == [[[1, 2, 3]], [[4, -100, -100]]]


@pytest.mark.parametrize("task", [task for task, _ in ALL_TASKS], ids=lambda task: task.name)
def test_every_task_has_fields_with_names_of_their_own(task: Any) -> None:
    names = [name for field in task.fields for name in (field.name, *field.other_names)]
    assert len(names) == len(set(names))
    assert not task.fields[0].optional
