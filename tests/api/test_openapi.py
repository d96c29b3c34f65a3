"""The OpenAPI document matches the routes and the tasks; the pages for a browser, /docs and /playground."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from hf_transformer import __version__
from hf_transformer.api import chat_completions, generate, pages
from hf_transformer.api.call import TRITON_PARAMETERS
from hf_transformer.api.chats import OTHER_MESSAGE
from hf_transformer.api.gateway import Gateway
from hf_transformer.api.openai import completions, embeddings, moderations, rerank, responses
from hf_transformer.api.pages import DOCS, PLAYGROUND, Page
from hf_transformer.app.application import build_app
from hf_transformer.config.entries import ModelEntries
from hf_transformer.errors import NoPredictor, RequestError
from hf_transformer.generation.task import ALL_TASKS, TASK_CLASSES
from hf_transformer.server.asgi import AsgiApplication
from tests.api.generating import ServedModel, post
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODEL, task_model_folder

LOGITS_MODELS = {"text_generation": "gpt2_logits", "text2text_generation": "t5_logits"}
MODELS = {name: task.demo.model for name, task in TASK_CLASSES.items()} | LOGITS_MODELS
PREDICTOR_S = {"502", "504"}
"""Statuses only of requests that reach the predictor."""
TOO_SLOW = "408"
"""The status of a request whose body is too slow, sent by the server."""
KEY = re.compile(r"[\w$./{}:+-]+")
"""A valid key."""


def build(task: str, *flags: str) -> AsgiApplication:
    folder = task_model_folder(MODELS[task])
    return build_app(config(f"--model_dir={folder}", f"--task={task}", "--model_name=m", *flags))


async def get(app: AsgiApplication, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", verify=False
    ) as client:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def document_of(app: AsgiApplication, **headers: str) -> dict[str, Any]:
    response = await get(app, "/openapi.json", **headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


@cache
def described(task: str, *flags: str) -> tuple[AsgiApplication, dict[str, Any]]:
    """A service and its document, cached. A thread has its own event loop: the first caller may be a coroutine."""
    app = build(task, *flags)
    with ThreadPoolExecutor(1) as thread:
        return app, thread.submit(asyncio.run, document_of(app)).result()


every_task = pytest.mark.parametrize("task", MODELS)


@cache
def check_schema(text: str) -> None:
    """Checks a schema, which most tasks share."""
    Draft202012Validator.check_schema(json.loads(text))


def every(value: Any, key: str) -> Iterator[Any]:
    """All values under a key, at any depth of a document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from every(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from every(inner, key)


def keys(value: Any) -> Iterator[str]:
    """All keys at any depth of a document."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(inner)
    yield from value if isinstance(value, dict) else ()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The path, method and operation of each route."""
    assert document["paths"]
    for path, item in document["paths"].items():
        yield from ((path, method, operation) for method, operation in item.items() if method != "parameters")


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


@pytest.mark.parametrize("prefix", ["openai", "", "a/b"], ids=["usual", "none", "long"])
@pytest.mark.parametrize("task", ["fill_mask", "text_generation"])
def test_every_route_is_described_and_nothing_else(task: str, prefix: str) -> None:
    app, document = described(task, f"--openai_route_prefix={prefix}")
    assert isinstance(app.application, Gateway) and isinstance(app.inner, Starlette)
    routes = [(path, "post") for path in app.application.router.templates]
    for route in app.inner.routes:
        assert isinstance(route, Route)
        routes += [(route.path, method.lower()) for method in route.methods or () if method != "HEAD"]
    named = {(path.replace("{model}", "m"), method) for path, method in routes}
    assert len(named) == len(routes)
    assert {(path, method) for path, method, _ in operations(document)} == named


async def test_the_document_of_several_models_has_all_their_names_and_tasks(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    entry = {"model_name": "bert", "model_dir": str(DEMO_MODEL), "task": "fill_mask", "aliases": ["text"]}
    other = {"model_name": "gpt2", "model_dir": str(task_model_folder(MODELS["text_generation"]))}
    file.write_text(json.dumps([entry, other]))
    flags = [f"--models={file}", "--predictor_host=127.0.0.1:1", "--enable_grpc=false"]
    app = build_app(config(*flags), entries=ModelEntries(flags, {}))
    assert isinstance(app.inner, Starlette)
    async with asyncio.timeout(60), app.inner.router.lifespan_context(app.inner):
        while (document := await document_of(app))["info"]["title"] != "hf_transformer: bert, gpt2":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        info = await get(app, "/info")
    assert {"/v1/models/{model}:predict", "/v2/repository/models/{model}/load"} <= document["paths"].keys()
    [reference, *_] = document["paths"]["/v2/models/{model}/infer"]["post"]["parameters"]
    parameter = document["components"]["parameters"][reference["$ref"].rpartition("/")[2]]
    assert (parameter["name"], parameter["schema"]["enum"]) == ("model", ["bert", "text", "gpt2"])
    schemas = document["components"]["schemas"]
    assert schemas["V2Request"]["properties"]["model_name"]["enum"] == ["bert", "text", "gpt2", "", None]
    for path, method, operation in operations(document):
        for body in [operation["requestBody"]["content"]["application/json"]] if method == "post" else []:
            for example in body["examples"].values():
                assert validator(document, body["schema"]).is_valid(example["value"]), path
    shown = document["paths"]["/info"]["get"]["responses"]["200"]["content"]["application/json"]
    validator(document, shown["schema"]).validate(info.json())
    assert [model["name"] for model in info.json()["models"]] == ["bert", "gpt2"]


def test_v1_lists_models_with_the_fields_of_both_apis() -> None:
    for prefix in ("openai", ""):
        schemas = described("fill_mask", f"--openai_route_prefix={prefix}")[1]["components"]["schemas"]
        assert schemas["V1Models"]["properties"].keys() == {"models", "object", "data"}
        assert schemas["V1Model"]["properties"].keys() == {"name", "ready", "error"} | {
            *("id", "object", "created", "owned_by", "root", "parent")
        }


@every_task
def test_the_document_keeps_the_rules_of_openapi(task: str) -> None:
    """Checks the rules that no validator of tests/clients knows."""
    _, document = described(task)
    assert document["info"]["title"] == "hf_transformer: m"
    assert document["info"]["version"] == __version__
    assert not [key for key in keys(document) if not KEY.fullmatch(key)]
    assert not [key for key in keys(document) if key.startswith("x-") and key != "x-api-key"]
    for _, method, operation in operations(document):
        assert set(operation["tags"]) <= {tag["name"] for tag in document["tags"]}
        assert ("requestBody" in operation) == (method == "post")
    for schema in [*every(document["paths"], "schema"), *document["components"]["schemas"].values()]:
        check_schema(json.dumps(schema))
    found = set(every(document, "$ref"))
    known = {f"#/components/{kind}/{name}" for kind, named in document["components"].items() for name in named}
    assert found == known, "every reference leads somewhere, and every component is used"


@every_task
def test_every_status_is_described_and_examples_fit_their_schemas(task: str) -> None:
    _, document = described(task)
    # NoPredictor is the answer of routes that the document of a service without a predictor leaves out.
    unused = {str(RequestError.status), str(NoPredictor.status)}
    statuses = {str(kind.status) for kind in all_errors(RequestError)} - unused
    by_tag = {"TEI": {"400", "404", "413", "415", "422", "424", "429", "503"}}
    for path, method, operation in operations(document):
        bodies = operation["responses"]["200"].get("content", {}).values()  # there may be none, as of /health
        if method == "post":
            asks = re.search(":(de)?tokenize|repository/index|count_tokens|anonymize", path) is None
            usual = statuses - (set() if asks else PREDICTOR_S)
            expected = set().union(*(by_tag.get(tag, usual) for tag in operation["tags"]))
            expected |= {"422"} if path == "/anonymize" else set()  # as in Presidio's anonymizer
            assert operation["responses"].keys() == {"200", TOO_SLOW, *expected}, path
            bodies = [operation["requestBody"]["content"]["application/json"]]
        for body in bodies:
            assert body.get("examples") or method == "get", path
            for example in body.get("examples", {}).values():
                validator(document, body["schema"]).validate(example["value"])


def all_errors(kind: type[RequestError]) -> Iterator[type[RequestError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from all_errors(inner)


@pytest.mark.parametrize(("kind", "suffix"), ALL_TASKS, ids=lambda value: getattr(value, "name", ""))
def test_the_document_has_the_parameters_and_inputs_of_the_task(kind: Any, suffix: str) -> None:
    generates = kind.name in ("text_generation", "text2text_generation")
    schemas = described(kind.name)[1]["components"]["schemas"]
    [form] = schemas["Parameters"]["anyOf"]
    known = set(kind.parameters) | TRITON_PARAMETERS
    assert set(form["properties"]) == known
    form, *of_backends = schemas["V2Parameters"]["anyOf"]
    assert set(form["properties"]) == known | {"parameters"}
    assert bool(of_backends) == generates
    names = {name for one in schemas["V2Input"]["anyOf"] for name in _constants(one["properties"]["name"])}
    assert names == {name for field in kind.fields for name in (field.name, *field.other_names)}


def _constants(schema: dict[str, Any]) -> list[str]:
    return schema.get("enum") or [schema["const"]] if schema.keys() & {"enum", "const"} else []


@pytest.mark.parametrize("task", ["text_generation", "fill_mask"])
def test_the_document_has_all_fields_of_each_api(task: str) -> None:
    schemas = described(task)[1]["components"]["schemas"]
    for name, fields in {
        "EmbeddingsRequest": embeddings.EMBEDDINGS.names,
        "ModerationsRequest": moderations.MODERATIONS.names,
        "RerankRequest": rerank.RERANK.names,
        "CompletionRequest": completions.FORM.names,
        "ChatRequest": chat_completions.FORM.names,
        "ChatMessage": OTHER_MESSAGE.names,
        "ResponsesRequest": responses.FORM.names,
        "GenerateBody": generate.FORM.names,
    }.items():
        assert set(schemas[name]["properties"]) == set(fields), name


RETRIEVAL = (
    *("/v1/embed", "/v2/embed", "/v2/rerank", "/v1/multi-vector", "/v1/contextualizedembeddings", "/v1/ranking"),
    *("/score", "/v1/score", "/classify", "/v1/classify", "/pooling", "/v1/pooling", "/detokenize"),
    "/generative_scoring",
)
"""Routes of other servers that refuse unknown fields."""


@pytest.mark.parametrize("path", RETRIEVAL)
async def test_the_document_has_the_fields_that_a_route_of_another_server_knows(made: ServedModel, path: str) -> None:
    status, answer = await post(made, path, {"unknown": 1})
    message = answer["error"]["message"] if "error" in answer else answer["message"]
    assert status == 400 and message.startswith("unknown: expected one of ")
    known = message.removeprefix("unknown: expected one of ").removesuffix(", got an unknown name").split(", ")
    document = described("text_generation")[1]
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
    assert set(schema["properties"]) == set(known)


async def test_examples_have_the_mask_token_of_the_model() -> None:
    folder = task_model_folder("ner_roberta")
    app = build_app(config(f"--model_dir={folder}", "--task=fill_mask", "--model_name=m"))
    path = (await document_of(app))["paths"]["/v1/models/m:predict"]["post"]
    examples = path["requestBody"]["content"]["application/json"]["examples"]
    assert examples["as_KServe"]["value"] == {"instances": ["The capital of france is <mask>."]}


def test_the_document_restricts_the_values_of_parameters() -> None:
    parameters = validator(described("sequence_classification")[1], {"$ref": "#/components/schemas/Parameters"})
    assert parameters.is_valid({"top_k": None, "output_format": "pipeline", "function_to_apply": "none"})
    for wrong in ({"top_k": 0}, {"function_to_apply": "relu"}, {"top_n": 1}, {"truncation": "yes"}):
        assert not parameters.is_valid(wrong)


# Pages for a browser


FLAGS = {DOCS: "--enable_docs_url=true", PLAYGROUND: "--enable_playground=true"}
ADDRESS = re.compile(r'(?:src|href)="([^"]*)"')
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
GENERATION = ("text_generation", "text2text_generation")

both = pytest.mark.parametrize("page", FLAGS, ids=lambda page: page.path)


@cache
def app_of(*flags: str) -> AsgiApplication:
    return build_app(config(f"--model_dir={DEMO_MODEL}", "--model_name=m", *flags))


@pytest.mark.slow
def test_disabled_pages_are_not_imported() -> None:
    program = (
        "import sys; from hf_transformer.app.application import build_app\n"
        "from tests.support.configuring import config\n"
        f"build_app(config('--model_dir={DEMO_MODEL}', '--model_name=m'))\n"
        "assert 'hf_transformer.api.info' in sys.modules and 'hf_transformer.api.pages' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@both
async def test_a_page_is_served_if_enabled_and_loads_only_its_files(page: Page) -> None:
    app, without = app_of(FLAGS[page]), app_of(*(flag for other, flag in FLAGS.items() if other != page))
    shown = await get(app, page.path)
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    addresses = [f"/{address}" for address in ADDRESS.findall(shown.text) if address != "data:,"]
    assert len(addresses) > 2
    known = dict(page.files)
    assert set(addresses) <= known.keys()
    for path, file in known.items():
        assert (await get(without, path)).status_code == 404
        response = await get(app, path)
        assert response.status_code == 200, path
        ending = Path(file.name.removesuffix(".gz")).suffix
        assert response.headers["content-type"].startswith(pages.TYPES[ending])
        assert response.headers["content-security-policy"] == page.policy
        if file.suffix != ".gz":
            assert not re.findall(r"(?<!xmlns=\")https?://(?!www\.w3\.org/2000/svg)", response.text), path


def test_the_playground_has_a_widget_for_every_task_and_no_script_or_style_in_its_page() -> None:
    assert "unsafe" not in PLAYGROUND.policy and "data:" not in PLAYGROUND.policy
    page = (PLAYGROUND.folder / "index.html").read_text()
    assert not re.findall(r"<style|<script[^>]*>[^<]|\sstyle=|\son\w+=", page)
    files = {path.name for path in PLAYGROUND.folder.glob("*.js")}
    assert {f"{'generation' if task.name in GENERATION else task.name}.js" for task, _ in ALL_TASKS} <= files
    for path in PLAYGROUND.folder.glob("*.js"):
        assert set(re.findall(r'from "\./(.*)"', path.read_text())) <= files


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("identity", False), ("gzip;q=0, *", False), ("", False)],
)
@pytest.mark.parametrize("path", ["/docs/swagger-ui.css", "/playground/style.css"])
async def test_files_are_compressed_for_clients_that_accept_gzip(path: str, accepted: str, compressed: bool) -> None:
    response = await get(app_of(*FLAGS.values()), path, accept_encoding=accepted)
    assert response.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert response.headers["vary"] == "Accept-Encoding"
    assert "color" in response.text


async def test_an_unchanged_file_is_304() -> None:
    app = app_of(*FLAGS.values())
    first = await get(app, "/playground/app.js")
    again = await get(app, "/playground/app.js", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    other = await get(app, "/playground/lib.js", if_none_match=first.headers["etag"])
    assert other.status_code == 200


async def test_the_root_redirects_browsers_to_the_enabled_playground() -> None:
    app = app_of(*FLAGS.values())
    led = await get(app, "/", accept=BROWSER)
    assert (led.status_code, led.headers["location"], led.headers["vary"]) == (307, "playground", "Accept")
    for answer in (await get(app_of(), "/", accept=BROWSER), *[await get(app, "/", accept=one) for one in ("*/*", "")]):
        assert answer.json() == {"status": "alive"}
    assert (await get(app, "/", accept="*/*")).headers["vary"] == "Accept"


async def test_the_playground_needs_no_key_but_the_model_does(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a-key\n")
    app = app_of(*FLAGS.values(), f"--api_keys_file={file}")
    files = [path for path, _ in PLAYGROUND.files]
    assert files
    for path in files:
        assert (await get(app, path)).status_code == 200
    for path in ("/v1/models/m/info", "/info", "/docs"):
        assert (await get(app, path)).status_code == 401
