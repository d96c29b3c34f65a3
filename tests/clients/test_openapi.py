"""/openapi.json: openapi-spec-validator finds no fault with it, and each answer to schemathesis' thousands of requests,
right and wrong ones, is a described one.

schemathesis generates a request's values by the schemas, and mutates them so that they break these.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_openapi import MODELS, build, document_of
from tests.clients.conftest import PROGRAMS, clients_environment, output
from tests.integration.conftest import Serve
from tests.integration.test_docs import NEEDS
from tests.support.service import Service

RUNS = {
    "fill_mask": ("bert", "v2"),
    "token_classification": ("ner", "grpc-v2"),
    "question_answering": ("squad", "v2"),
    "text_embedding": ("minibert_mean", "grpc-v2"),
    "rerank": ("cross", "v2"),
    # A request for a hundred long texts is right too, and would take its time. The examples ask for 8 tokens.
    "text_generation": ("gpt2_tokens", "grpc-v2", "--max_new_tokens=8", "--max_sequences=8"),
}
"""Model, protocol and flags."""
MORE_APIS = {"text_embedding": ("openai",), "rerank": ("openai",), "text_generation": ("openai", "generate")}
"""Those that only some tasks have."""
CHECKS = (
    "not_a_server_error",  # 502, 503 and 504 are described, but are none that a healthy pair gives
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
FLAGS = """
--phases=examples,coverage,fuzzing --continue-on-failure --seed=1 --generation-database=none
--suppress-health-check=all --request-timeout=60 --no-color --report=json
"""
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
negative_data_rejection.expected-statuses = [400, 404, 405, 413, 415, 422, 424]
"""
"""schemathesis does not count 413 as a refusal. A 504 is right where a request itself asks for a microsecond's timeout;
that the predictor gave no other one is looked up in its metrics."""
PREDICTOR_TIMEOUTS = re.compile(r'hf_transformer_predictor_errors_total\{kind="timeout",model_name="\w+"\} (\d+)')
REFUSES = "fill_mask"
"""The task whose model gets requests to all routes; the others are spared those that only refuse their kind."""
EXAMPLES = 12
"""Requests per operation that are made at random; more come from the limits and types in the schemas."""
CASES = 1000
"""At least, for each run."""
SUCCESSES = 20
"""At least, for each API that the task has: requests that get no further than the first check prove little."""
SECONDS = 600
COUNTER = re.compile(r'hf_transformer_requests_total\{api="(\w+)",model_name="\w*",status="(\d+)"\} (\d+)')


def run(service: Service, folder: Path, excluded: Sequence[str]) -> dict[str, Any]:
    """The report of one run, in which nothing may be wrong."""
    (folder / "schemathesis.toml").write_text(SETTINGS)
    report = folder / "report.json"
    command = [
        str(clients_environment() / "bin" / "schemathesis"),
        "run",
        f"{service.url}/openapi.json",
        f"--checks={','.join(CHECKS)}",
        f"--max-examples={EXAMPLES}",
        f"--report-json-path={report}",
        *(f"--exclude-operation-id={name}" for name in excluded),
        *FLAGS.split(),
    ]
    hooks = {"PYTHONPATH": str(PROGRAMS), "SCHEMATHESIS_HOOKS": "schemathesis_hooks"}
    output(command, folder, env=hooks, cwd=folder, timeout=SECONDS)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def successes(service: Service) -> dict[str, int]:
    """Requests that were answered with 200, by API."""
    found = COUNTER.findall(service.client.get("/metrics").text)
    counts: dict[str, int] = {}
    for api, status, count in found:
        if status == "200":
            counts[api] = counts.get(api, 0) + int(count)
    return counts


@pytest.mark.parametrize("task", RUNS)
def test_every_answer_is_described(serve: Serve, task: str, tmp_path: Path) -> None:
    service = serve(*RUNS[task])
    before = successes(service)
    excluded = [] if task == REFUSES else [name for name, tasks in NEEDS.items() if task not in tasks]
    report = run(service, tmp_path, excluded)
    assert report["complete"] and not report["failures"] and not report["errors"]
    assert PREDICTOR_TIMEOUTS.findall(service.client.get("/metrics").text) == ["0"]
    paths = service.client.get("/openapi.json").json()["paths"]
    named = [one["operationId"] for item in paths.values() for name, one in item.items() if name != "parameters"]
    operations = len(set(named) - set(excluded))
    assert report["operations"]["tested"] == operations
    assert report["test_cases"]["generated"] >= CASES
    apis = ["v1", "v2", "tokenize", *MORE_APIS.get(task, ())]
    more = {api: count - before.get(api, 0) for api, count in successes(service).items()}
    assert all(more[api] >= SUCCESSES for api in apis), str(more)
    assert "fault of the service" not in service.log


async def write_documents(folder: Path) -> list[str]:
    """Writes the document of each task, of a service without OpenAI's prefix, and of one with API keys."""
    (folder / "keys").write_text("a-key\n")
    settings: list[tuple[str, str]] = [(task, "--enable_grpc=false") for task in MODELS]
    settings += [("fill_mask", "--openai_route_prefix="), ("text_generation", f"--api_keys_file={folder / 'keys'}")]
    files = []
    for number, (task, flag) in enumerate(settings):
        document = await document_of(build(task, flag), authorization="Bearer a-key")
        file = folder / f"{number}_{task}.json"
        file.write_text(json.dumps(document))
        files.append(str(file))
    return files


def test_the_documents_are_valid(tmp_path: Path) -> None:
    files = asyncio.run(write_documents(tmp_path))
    validator = str(clients_environment() / "bin" / "openapi-spec-validator")
    said = output([validator, "--schema=3.1", "--errors=all", *files], tmp_path)
    assert said.count(": OK") == len(files)
