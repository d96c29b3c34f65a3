"""Instances in tensors, and predictions as tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks.tensors import TEXT, Field, json_tensor, ragged_tensor, read_instances
from hf_transformer.types import Tensor, Texts

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


@pytest.mark.parametrize(
    ("given", "fields", "instances"),
    [
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
        (
            inputs(text=["a", "b"], text_pair=["c", "d"]),
            PAIR,
            [{"text": "a", "text_pair": "c"}, {"text": "b", "text_pair": "d"}],
        ),
        # One row holds for all instances.
        (
            inputs(question=["q1", "q2"], context=["c"]),
            QUESTION,
            [{"question": "q1", "context": "c"}, {"question": "q2", "context": "c"}],
        ),
        # Lists, with and without the axis of instances.
        (inputs(query=["q"], texts=["a", "b"]), RERANK, [{"query": "q", "texts": ["a", "b"]}]),
        (inputs(query=["q"], documents=[["a", "b"]]), RERANK, [{"query": "q", "texts": ["a", "b"]}]),
        (
            inputs(query=["q", "r"], texts=[["a"], ["b"]]),
            RERANK,
            [{"query": "q", "texts": ["a"]}, {"query": "r", "texts": ["b"]}],
        ),
        # A field of lists alone, as a task may have it first, is no list of strings.
        ({"texts": Texts("texts", (2, 0), [])}, LISTS, [{"texts": []}, {"texts": []}]),
        (inputs(texts=[["a", "b"], ["c", "d"]]), LISTS, [{"texts": ["a", "b"]}, {"texts": ["c", "d"]}]),
    ],
)
def test_instances(given: dict[str, Tensor | Texts], fields: tuple[Field, ...], instances: list[Any]) -> None:
    assert read_instances(given, fields) == instances


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"input_ids": Tensor("input_ids", "INT64", np.array([1]))},
            "inputs: 'input_ids' is unknown, expected 'text', 'text_pair' (optional)",
        ),
        (inputs(text=["a"], nonsense=["a"]), "inputs: 'nonsense' is unknown, expected 'text', 'text_pair' (optional)"),
        (inputs(text=["a"], input__0=["b"]), "inputs: 'text' comes twice, once as 'input-0'"),
        (
            inputs(text_pair=["a"]),
            "inputs: 'text' is missing, expected 'text', 'text_pair' (optional), got 'text_pair'",
        ),
        ({}, "inputs: 'text' is missing, expected 'text', 'text_pair' (optional), got none"),
        (
            inputs(text=["a", "b", "c"], text_pair=["d", "e"]),
            "inputs: 'text_pair' has 2 rows where another input has 3",
        ),
        (
            {"text": Texts("text", (1, 0), [])},
            "inputs: 'text' has the shape [1, 0], expected [instances] or [instances, 1]",
        ),
        (
            inputs(text=[[["a"]]]),
            "inputs: 'text' has the shape [1, 1, 1], expected [instances] or [instances, 1]",
        ),
        (inputs(text=[["a", "b"]]), "inputs: 'text' has the shape [1, 2], expected [instances] or [instances, 1]"),
        (
            {"text": Tensor("text", "INT64", np.array([1]))},
            "inputs: 'text' is INT64, expected BYTES (text in UTF-8)",
        ),
    ],
)
def test_what_does_not_fit(given: dict[str, Tensor | Texts], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_instances(given, PAIR)
    assert str(raised.value) == message
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
