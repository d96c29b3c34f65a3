"""Clients that ask for objects and for calls of tools: instructor, LangChain, the openai package and the AI SDK.

The answers come from random logits, which are held to a form token by token, and from a stand-in of vLLM's backend.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import Run
from tests.integration.conftest import Serve
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

MODELS = {"logits": ("gpt2_random", "v2"), "text": ("gpt2_vllm", "grpc-v2")}
MESSAGE = "Where did you go?"
KINDS, DAYS = ("city", "river"), {"monday", "friday"}
LENGTH = 4096
"""Tokens that the models take: these clients write long prompts."""


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "gpt2"
    shutil.copytree(task_model_folder("gpt2"), folder, ignore=shutil.ignore_patterns("1", "configs"))
    for name, key in (("config.json", "n_positions"), ("tokenizer_config.json", "model_max_length")):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), key: LENGTH}))
    return folder


@pytest.fixture(params=MODELS)
def service(request: pytest.FixtureRequest, serve: Serve, long_folder: Path) -> Service:
    model, protocol = MODELS[request.param]
    return serve(model, protocol, f"--model_dir={long_folder}")


def bias(service: Service) -> dict[str, int]:
    """Ends an object of any form soon. A text model takes no bias."""
    if service.model != "gpt2_random":
        return {}
    asked = {"instances": ["{", "}"], "parameters": {"add_special_tokens": False}}
    found = service.client.post(f"/v1/models/{service.model}:tokenize", json=asked).json()["predictions"]
    return {str(tokens["ids"][-1]): 100 for tokens in found}


def test_instructor(service: Service, client: Run) -> None:
    results = client("instructor_models", service=service, message=MESSAGE, bias=bias(service))
    assert results.keys() == {"TOOLS", "JSON", "JSON_SCHEMA", "RESPONSES_TOOLS"}
    assert all(isinstance(visit, dict) for visit in results.values()), results
    assert isinstance(results.pop("JSON")["note"], str)
    for visit in results.values():
        assert visit["place"]["kind"] in KINDS and 1 <= visit["place"]["letters"] <= 99
        assert visit["days"] and set(visit["days"]) <= DAYS


def test_langchain(service: Service, client: Run) -> None:
    results = client("langchain_structured", service=service, message=MESSAGE, bias=bias(service))
    for method in ("function_calling", "json_schema"):
        assert results[method]["kind"] in KINDS and set(results[method]["days"]) <= DAYS
    assert results["json_mode"] == {}
    assert "context_length_exceeded" in results["long"]
    for name in ("any", "stream", "named", "with_format"):
        calls = results[name]
        assert calls and all(call["name"] == "weather" and call["args"]["place"] in ("paris", "rome") for call in calls)
        assert all(isinstance(call["args"]["days"], int) for call in calls)


def test_the_openai_package(service: Service, client: Run) -> None:
    results = client("openai_parse", service=service, message=MESSAGE)
    name, arguments = results["tool"]
    assert name == "Visit"
    assert (results["sent_back"], results["long"]) == ("assistant", "context_length_exceeded")
    for visit in (results["parsed"], results["streamed"], results["tool_and_format"], arguments):
        assert visit["kind"] in KINDS and set(visit["days"]) <= DAYS
    assert {"content.delta", "content.done", "chunk"} <= set(results["events"])


def test_an_agent_with_a_tool_and_a_type_of_its_output(service: Service, client: Run) -> None:
    found = client("agents_structured", service=service, message=MESSAGE)
    assert found.keys() == {"OpenAIChatCompletionsModel", "OpenAIResponsesModel"}
    for outputs in found.values():
        assert outputs and set(outputs) <= {"sunny in paris", "sunny in rome"}


def test_objects_of_the_ai_sdk(service: Service, client: Run) -> None:
    results = client("ai_sdk_objects", service=service, message=MESSAGE)
    forced, named = results["calls"]
    assert forced and named
    visits = [results["object"], results["streamed"], *(call["input"] for call in (*forced, *named))]
    for visit in visits:
        assert visit["kind"] in KINDS and visit["days"] and set(visit["days"]) <= DAYS
    assert results["choice"] in ("red", "green") and results["parts"] > 1
    assert {call["toolName"] for call in (*forced, *named)} == {"visit"}
