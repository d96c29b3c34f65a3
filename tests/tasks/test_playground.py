"""What config.json has for the playground: notes and examples, wrong ones, and those of the demo's models."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hf_transformer.commands.demo import EXAMPLES, default_model_repository
from hf_transformer.tasks.playground import fits, read_playground

REQUEST = {"instances": ["Paris"], "parameters": {"top_k": 2}}
CHAT = {"messages": [{"role": "user", "content": "Hello!"}]}
VALUES = "playground.examples has a value"


def test_a_note_and_examples_are_read() -> None:
    warnings: list[str] = []
    assert read_playground({"playground": {"note": "Small.", "examples": [REQUEST, CHAT]}}, warnings.append) == (
        "Small.",
        [REQUEST, CHAT],
    )
    assert read_playground({}, warnings.append) == read_playground({"playground": {}}, warnings.append) == (None, [])
    assert warnings == []


@pytest.mark.parametrize(
    ("section", "kept", "says"),
    [
        ("Small.", (None, []), "playground is not an object"),
        (None, (None, []), "playground is not an object"),
        ({"note": 3, "examples": [CHAT]}, (None, [CHAT]), "playground.note is not text"),
        ({"note": "Small.", "examples": CHAT}, ("Small.", []), "playground.examples is not a list"),
        ({"examples": [REQUEST, "Paris"]}, (None, [REQUEST]), VALUES),
        ({"examples": [{"instances": []}, REQUEST]}, (None, [REQUEST]), VALUES),
        ({"examples": [{"instances": "Paris"}]}, (None, []), VALUES),
        ({"examples": [{"instances": ["Paris"], "parameters": []}]}, (None, []), VALUES),
        ({"examples": [{"messages": []}]}, (None, []), VALUES),
        ({"examples": [{"messages": [{"role": "user"}]}, CHAT]}, (None, [CHAT]), VALUES),
    ],
    ids="text null note object string no_instance instance parameters no_message no_content".split(),
)
def test_wrong_values_are_left_out_with_a_warning(section: Any, kept: Any, says: str) -> None:
    warnings: list[str] = []
    assert read_playground({"playground": section}, warnings.append) == kept
    assert len(warnings) == 1 and warnings[0].startswith(f"config.json: {says}")


def test_examples_of_another_task_do_not_fit() -> None:
    assert fits(REQUEST, ["top_k", "targets"], chats=False)
    assert not fits(REQUEST, ["top_n"], chats=True)
    assert fits(CHAT, [], chats=True) and not fits(CHAT, [], chats=False)


@pytest.mark.parametrize("model", sorted({example.model for example in EXAMPLES.values()}))
def test_the_demo_models_tell_their_true_size(model: str) -> None:
    """Four bytes a parameter, and the graph around them."""
    folder = default_model_repository() / model
    warnings: list[str] = []
    note, examples = read_playground(json.loads((folder / "config.json").read_text()), warnings.append)
    assert warnings == [] and len(examples) >= 2 and note is not None
    told = re.match(r"A toy model of (\d+) thousand parameters, trained on ", note)
    assert told is not None
    assert 0.75 < int(told[1]) * 4000 / (folder / "1" / "model.onnx").stat().st_size < 1
