"""Every request in docs/, run by curl as it stands there, gives the answer below it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from hf_transformer.generation.task import ALL_TASKS
from tests.integration.conftest import ROOT, Serve

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("tasks", "api", "text_generation")}
EXAMPLE = re.compile(r"```sh\n(?P<command>curl [^\n]+)\n```\n\n```json\n(?P<answer>.+?)\n```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ADDRESS = "localhost:8080"
MADE_ID = re.compile(r"^((chat)?cmpl-|call_).+$")
TASKS = {task.name for task, _ in ALL_TASKS}


def sections() -> dict[str, str]:
    """The sections of docs/tasks.md by the task that they are named after."""
    found = re.split(r"^## (\w+)\n", PAGES["tasks"], flags=re.MULTILINE)
    return {name: text for name, text in zip(found[1::2], found[2::2], strict=True) if name in TASKS}


EXAMPLES = [
    pytest.param(task, match["command"], match["answer"], id=f"{page or task}-{number}")
    for page, task, text in (
        *(("", task, text) for task, text in sections().items()),
        *((page, "", PAGES[page]) for page in ("api", "text_generation")),
    )
    for number, match in enumerate(EXAMPLE.finditer(text))
]


def test_every_request_has_an_answer_below_and_every_task_has_one() -> None:
    assert {str(example.values[0]) for example in EXAMPLES} - {""} == TASKS
    assert sum(text.count("```sh\ncurl ") for text in PAGES.values()) == len(EXAMPLES)
    assert PAGES["tasks"].count("curl ") == sum(bool(example.values[0]) for example in EXAMPLES)
    assert PAGES["text_generation"].count("curl -s") > 5


@pytest.mark.parametrize(("task", "command", "answer"), EXAMPLES)
def test_the_request_gives_the_answer(serve: Serve, task: str, command: str, answer: str) -> None:
    assert_answered(serve, task, command, answer)


@pytest.mark.parametrize("parameter", ["return_probabilities", "return_raw_logits"])
def test_the_values_of_a_whole_vocabulary(serve: Serve, parameter: str) -> None:
    """In the table of fill_mask's parameters, for the text of its request."""
    row = re.search(rf'^\| `"{parameter}": true` \|.*?`(\[\[.*?)`', sections()["fill_mask"], re.MULTILINE)
    assert row is not None
    command = next(EXAMPLE.finditer(sections()["fill_mask"]))["command"]
    with_parameter = command.replace("]}'", f"""], "parameters": {{"{parameter}": true}}}}'""")
    assert_answered(serve, "fill_mask", with_parameter, row[1])


def assert_answered(serve: Serve, task: str, command: str, answer: str) -> None:
    """By the model that the command names."""
    found = re.search(r"/models/(\w+)[:/]|\"model\": \"(\w+)\"", command)
    assert found is not None
    model = found[1] or found[2]
    protocol = "grpc-v2" if model.startswith(("gpt2", "t5")) else "v2"
    service = serve(model, protocol, *(("--task=feature_extraction",) if task == "feature_extraction" else ()))
    line = command.replace(ADDRESS, service.url)
    assert line != command
    output = subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True, timeout=60).stdout
    assert_alike(output, answer)


def assert_alike(output: str, answer: str) -> None:
    """Equal, but for the last digits of numbers; an answer that is cut off with ... has to begin so."""
    try:
        assert shape(json.loads(output)) == shape(json.loads(answer))
    except json.JSONDecodeError:
        answer, dots, _ = answer.partition("...")
        assert dots and NUMBER.search(answer)
    expected = [float(number) for number in NUMBER.findall(answer)]
    assert [float(number) for number in NUMBER.findall(output)][: len(expected)] == pytest.approx(expected, abs=1e-4)


def shape(value: Any) -> Any:
    """The value without its floats and what the service makes anew for each request."""
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return MADE_ID.sub("an id", value)
    if isinstance(value, list):
        return [shape(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: "a time" if key == "created" else shape(one) for key, one in value.items()}
