"""A new task and its parameters need the files of CONTRIBUTING.md alone: a copy of the package, with a task added in
these places, serves it over all APIs and pages, and all commands know it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import hf_transformer
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import ROOT, Serve, message_of
from tests.integration.grpc_client import request, stub
from tests.support.service import Service, flags_for
from tests.support.triton_repository import task_model_folder

ADDED = Path(__file__).parent / "new_task"
TEXT = "The hotel was wonderful."
FLAG = """    margin_digits: int = option(
        ANSWERS, "Decimal places of margins (margin).", integer(0), 3)
"""
PLACES = (
    ("tasks/__init__.py", "TASKS: Sequence", "from hf_transformer.tasks.margin import Margin\n\nTASKS: Sequence"),
    ("tasks/__init__.py", '    (Rerank, ""),\n', '    (Rerank, ""),\n    (Margin, ""),\n'),
    ("types/task_names.py", '    "token_classification"', '    "margin": ("certainty",),\n    "token_classification"'),
    ("config/options.py", "    on_overflow: Literal", f"{FLAG}    on_overflow: Literal"),
)
"""Changed files of the package, each with a text and what takes its place."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the changed copy of the package."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "hf_transformer"
    shutil.copytree(Path(hf_transformer.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ADDED / "margin.py", copy / "tasks")
    shutil.copy(ADDED / "margin.js", copy / "api" / "ui" / "playground")
    for name, old, new in PLACES:
        text = (copy / name).read_text()
        assert text.count(old) == 1, name
        (copy / name).write_text(text.replace(old, new))
    return folder


@pytest.fixture(scope="module")
def flags(serve: Serve, triton: LocalTriton, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags for a model without examples of its own."""
    serve.load("sentiment")
    folder = tmp_path_factory.mktemp("model") / "sentiment"
    shutil.copytree(task_model_folder("sentiment"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name != "playground"}))
    return flags_for("sentiment", folder, triton.http_address, "v2", ("--task=certainty", "--margin_digits=2"))


@pytest.fixture(scope="module")
def service(package: Path, flags: list[str]) -> Iterator[Service]:
    environ = {"PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    with Service(*flags, "--enable_playground", environ=environ) as service:
        yield service.wait_until("/v1/models/sentiment")


def run(package: Path, *arguments: str) -> str:
    """The output of a successful command of the changed package."""
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "hf_transformer", *arguments]
    result = subprocess.run(command, env=environ, cwd=package, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def margin_of(answer: str | bytes) -> Any:
    return json.loads(answer)["margin"]


def test_v1_v2_and_grpc_answer_with_the_flag_s_default_and_the_parameters(service: Service) -> None:
    [usual], [exact] = service.predict([TEXT]), service.predict([{"text": TEXT}], {"digits": 5, "factor": 2})
    assert usual["margin"] == round(usual["margin"], 2) > 0
    assert exact["margin"] == pytest.approx(2 * usual["margin"], abs=0.02) and exact["margin"] != round(
        exact["margin"], 2
    )
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    body = {"inputs": [tensor], "parameters": {"digits": 5, "factor": 2}}
    [output] = service.client.post("/v2/models/sentiment/infer", json=body).json()["outputs"]
    assert [margin_of(text) for text in output["data"]] == [exact["margin"]]
    with stub(service) as methods:
        answer = methods.ModelInfer(request("sentiment", {"text": [TEXT]}, parameters={"digits": 5}))
    assert b'{"margin":' in answer.SerializeToString()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"digits": -1}, "parameters.digits: expected 0 or more, got -1"),
        ({"factor": "x"}, "parameters.factor: expected a number from 0 to 10, got a string"),
        (
            {"digit": 1},
            "parameters.digit: expected one of output_format, digits, factor, truncation, truncation_side, max_tokens, "
            "got an unknown name",
        ),
    ],
    ids=["limit", "type", "name"],
)
def test_wrong_parameters_are_refused(service: Service, parameters: Any, message: str) -> None:
    assert message_of(service.post({"instances": [TEXT], "parameters": parameters})) == message


def test_the_document_has_its_parameters_examples_and_answers(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    [parameters] = schemas["Parameters"]["anyOf"]
    assert parameters["title"] == "margin"
    assert parameters["properties"]["digits"] == {
        "description": "Decimal places of the margin. --margin_digits if not given.",
        "type": ["integer", "null"],
        "minimum": 0,
    }
    content = document["paths"]["/v1/models/sentiment:predict"]["post"]["requestBody"]["content"]["application/json"]
    [example] = content["examples"].values()
    answer = service.post(example["value"]).json()
    for schema, value in (("V1Request", example["value"]), ("V1Response", answer)):
        Draft202012Validator({**schemas[schema], "components": document["components"]}).validate(value)
    infer = document["paths"]["/v2/models/sentiment/infer"]["post"]["requestBody"]["content"]["application/json"]
    [example] = infer["examples"].values()
    assert service.client.post("/v2/models/sentiment/infer", json=example["value"]).status_code == 200


def test_the_playground_has_its_widget_purpose_and_examples(service: Service) -> None:
    info, models = (service.client.get(path).json() for path in ("/v1/models/sentiment/info", "/info"))
    assert (info["task"], info["examples"]) == (
        "margin",
        [{"summary": "a margin", "value": {"instances": [TEXT], "parameters": {"digits": 1}}}],
    )
    assert models["models"][0]["purpose"] == "Tells how sure a classifier is"
    widget = service.client.get("/playground/margin.js")
    assert widget.status_code == 200 and "export default" in widget.text


def test_the_other_commands_know_it(service: Service, package: Path, flags: list[str]) -> None:
    assert "exit code 0" in run(package, "doctor", *flags, "--http_port=0", "--grpc_port=0")
    measured = run(package, "bench", f"--url={service.url}", "--seconds=0.2", "--warmup_seconds=0", "--concurrency=1")
    assert "requests/s" in measured
    assert "rerank, margin, token_classification" in re.sub(r"\s+", " ", run(package, "--help=task"))
    code = "from hf_transformer.commands.demo import demos; print(demos()['margin'].path)"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package)}
    shown = subprocess.run([sys.executable, "-c", code], env=environ, cwd=package, capture_output=True, text=True)
    assert shown.stdout == "/v1/models/sentiment:predict\n", shown.stderr


def test_the_places_are_those_of_the_guide() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    tasks = guide.partition("## Add a task\n")[2].partition("\n## ")[0]
    parameters = guide.partition("## Add a parameter to a task\n")[2].partition("\n## ")[0]
    rows = [
        re.findall(r"^\| .*\|$", part.partition("| member of")[0], re.MULTILINE)[1:] for part in (tasks, parameters)
    ]
    assert [len(part) for part in rows] == [8, 3]
    for name in {name for name, _, _ in PLACES} - {"config/options.py"}:
        assert any(f"`hf_transformer/{name}`" in row for row in rows[0]), name
    assert any("`hf_transformer/config/options.py`" in row for row in rows[1])
