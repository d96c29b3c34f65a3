"""What config.json has for the playground: notes and examples, wrong ones, and those of the demo's models."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hf_transformer.api.pages import PLAYGROUND
from hf_transformer.commands.demo import default_model_repository, demos
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks.playground import fits, read_playground
from hf_transformer.tokenizer.files import model_config

REQUEST = {"instances": ["Paris"], "parameters": {"top_k": 2}}
CHAT = {"messages": [{"role": "user", "content": "Hello!"}]}


def test_a_note_and_examples_are_read() -> None:
    warnings: list[str] = []
    assert read_playground({"playground": {"note": "Small.", "examples": [REQUEST, CHAT]}}, warnings.append) == (
        "Small.",
        [REQUEST, CHAT],
    )
    assert read_playground({}, warnings.append) == read_playground({"playground": {}}, warnings.append) == ("", [])
    assert warnings == []


@pytest.mark.parametrize(
    "section",
    [
        "Small.",
        None,
        {"note": 3, "examples": [CHAT]},
        {"note": "Small.", "examples": CHAT},
        {"examples": [REQUEST, "Paris"]},
        {"examples": [REQUEST, {}]},
        {"examples": [{"instances": []}, REQUEST]},
        {"examples": [{"instances": "Paris"}]},
        {"examples": [{"instances": ["Paris"], "parameters": []}]},
        {"examples": [{"messages": []}]},
        {"examples": [{"messages": "Hello!"}]},
        {"examples": [{"messages": [{"role": "user"}]}, CHAT]},
    ],
    ids="text null note object string empty no_instance instance parameters no_message message no_content".split(),
)
def test_wrong_values_are_left_out_with_a_warning(section: Any) -> None:
    warnings: list[str] = []
    assert read_playground({"playground": section}, warnings.append) == ("", [])
    assert len(warnings) == 1 and warnings[0].startswith("config.json: playground has no effect: expected an object")


def test_examples_of_another_task_do_not_fit() -> None:
    assert fits(REQUEST, ["top_k", "targets"], chats=False)
    assert not fits(REQUEST, ["top_n"], chats=True)
    assert fits(CHAT, [], chats=True) and not fits(CHAT, [], chats=False)


@pytest.mark.parametrize("model", sorted({example.model for example in demos().values()}))
def test_the_demo_models_tell_their_true_size(model: str) -> None:
    """Four bytes a parameter, and the graph around them."""
    folder = default_model_repository() / model
    warnings: list[str] = []
    note, examples = read_playground(model_config(folder, required=True), warnings.append)
    assert warnings == [] and len(examples) >= 2
    told = re.match(r"A toy model of (\d+) thousand parameters, trained on ", note)
    assert told is not None
    assert 0.75 < int(told[1]) * 4000 / (folder / "1" / "model.onnx").stat().st_size < 1


def test_every_task_has_a_picture_and_a_purpose() -> None:
    drawn = (PLAYGROUND.folder / "tasks.svg").read_text()
    assert ALL_TASKS
    for task, _ in ALL_TASKS:
        assert f'<g id="{task.name}"' in drawn and task.purpose[0].isupper()
