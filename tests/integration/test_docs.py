"""Every request in docs/tasks.md and docs/api.md, run by curl as it stands there, gives the answer below it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.generation.task import ALL_TASKS
from tests.integration.conftest import MODEL_FOLDER, ROOT, Serve
from tests.triton_repository import task_model_folder

PAGE = (ROOT / "docs" / "tasks.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
EXAMPLE = re.compile(r"```sh\n(?P<command>curl [^\n]+)\n```\n\n```json\n(?P<answer>.+?)\n```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ADDRESS = "localhost:8080"


def sections() -> dict[str, str]:
    """The page's sections by the task that they are named after."""
    names = {task.name for task, _ in ALL_TASKS}
    found = re.split(r"^## (\w+)\n", PAGE, flags=re.MULTILINE)
    return {name: text for name, text in zip(found[1::2], found[2::2], strict=True) if name in names}


EXAMPLES = [
    pytest.param(task, match["command"], match["answer"], id=f"{task}-{number}")
    for task, text in sections().items()
    for number, match in enumerate(EXAMPLE.finditer(text))
]


def folder_of(model: str) -> Path:
    return MODEL_FOLDER if model == "bert" else task_model_folder(model)


def test_every_task_has_a_section_with_a_request() -> None:
    assert {str(example.values[0]) for example in EXAMPLES} == {task.name for task, _ in ALL_TASKS}
    assert PAGE.count("curl ") == len(EXAMPLES)


@pytest.mark.parametrize(("task", "command", "answer"), EXAMPLES)
def test_the_request_gives_the_answer(serve: Serve, task: str, command: str, answer: str) -> None:
    found = re.search(r"/v1/models/(\w+):predict", command)
    assert found is not None
    assert_answered(serve, found[1], task, command, answer)


@pytest.mark.parametrize("parameter", ["return_probabilities", "return_raw_logits"])
def test_the_values_of_a_whole_vocabulary(serve: Serve, parameter: str) -> None:
    """In the table of fill_mask's parameters, for the text of its request."""
    row = re.search(rf'^\| `"{parameter}": true` \|.*?`(\[\[.*?)`', sections()["fill_mask"], re.MULTILINE)
    command = next(EXAMPLE.finditer(sections()["fill_mask"]))["command"]
    assert row is not None
    assert_answered(
        serve, "bert", "fill_mask", command.replace("]}'", f"""], "parameters": {{"{parameter}": true}}}}'"""), row[1]
    )


@pytest.mark.parametrize("example", list(EXAMPLE.finditer(API)), ids=lambda match: f"{match.start()}")
def test_the_requests_of_every_protocol(serve: Serve, example: re.Match[str]) -> None:
    found = re.search(r"/models/(\w+)[:/]|\"model\": \"(\w+)\"", example["command"])
    assert found is not None
    model = found[1] or found[2]
    task = {
        "bert": "fill_mask",
        "cross": "rerank",
        "minibert_mean": "text_embedding",
        "gpt2": "text_generation",
    }[model]
    assert_answered(serve, model, task, example["command"], example["answer"])


def test_every_request_has_an_answer_below() -> None:
    assert API.count("```sh\ncurl ") == len(list(EXAMPLE.finditer(API)))


def assert_answered(serve: Serve, model: str, task: str, command: str, answer: str) -> None:
    service = serve(model, "v2", f"--model_dir={folder_of(model)}", f"--task={task}")
    line = command.replace(ADDRESS, service.url)
    assert line != command
    output = subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True, timeout=60).stdout
    assert_alike(output, answer)


def assert_alike(output: str, answer: str) -> None:
    """Equal, but for the last digits of numbers; an answer that is cut off with ... has to begin so."""
    shown, dots, _ = answer.partition("...")
    if not dots:
        assert shape(json.loads(output)) == shape(json.loads(answer))
    expected = [float(number) for number in NUMBER.findall(shown)]
    assert expected or not dots
    assert [float(number) for number in NUMBER.findall(output)][: len(expected)] == pytest.approx(expected, abs=1e-4)


def shape(value: Any) -> Any:
    """The value with every float taken out of it."""
    if isinstance(value, float):
        return "a number"
    if isinstance(value, list):
        return [shape(one) for one in value]
    return {key: shape(one) for key, one in value.items()} if isinstance(value, dict) else value
