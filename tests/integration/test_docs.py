"""What docs/, /openapi.json and the info routes say is so: every request that they show, and the answers to it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

import hf_transformer
from hf_transformer.api.call import TRITON_PARAMETERS
from hf_transformer.api.info import find_links
from hf_transformer.generation.task import ALL_TASKS, TASK_CLASSES
from hf_transformer.tasks.long_texts import WINDOWS
from tests.integration.conftest import ROOT, Serve, refused
from tests.support.service import Service

GUIDES = ("guides/entities", "guides/gateways", "guides/vector_databases")
OTHERS = ("api", "dialects", "text_generation", "messages", "token_ids", *GUIDES)
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("tasks", *OTHERS)}
EXAMPLE = re.compile(r"```sh\n(?P<command>curl [^`]+)\n```\n\n```json\n(?P<answer>.+?)\n```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ADDRESS = "localhost:8080"
MADE_ID = re.compile(r"^((chat)?cmpl-|call_|resp_|msg_|toolu_|rerank-).+$")
MODEL_OF_PATH = {"/embed": "minibert_mean", "/embed_sparse": "splade", "/rerank": "cross"}
"""The models of requests that name none, as the databases send them that ask for one model."""
TASKS = {task.name for task, _ in ALL_TASKS}


def sections() -> dict[str, str]:
    """The sections of docs/tasks.md by the task that they are named after."""
    found = re.split(r"^## (\w+)\n", PAGES["tasks"], flags=re.MULTILINE)
    return {name: text for name, text in zip(found[1::2], found[2::2], strict=True) if name in TASKS}


EXAMPLES = [
    pytest.param(task, match["command"], match["answer"], id=f"{page or task}-{number}")
    for page, task, text in (
        *(("", task, text) for task, text in sections().items()),
        *((page, "", PAGES[page]) for page in OTHERS),
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
def test_the_shown_values_of_a_whole_vocabulary_are_the_models(serve: Serve, parameter: str) -> None:
    """In the table of fill_mask's parameters, for the text of its request."""
    row = re.search(rf'^\| `"{parameter}": true` \|.*?`(\[\[.*?)`', sections()["fill_mask"], re.MULTILINE)
    assert row is not None
    command = next(EXAMPLE.finditer(sections()["fill_mask"]))["command"]
    with_parameter = command.replace("]}'", f"""], "parameters": {{"{parameter}": true}}}}'""")
    assert_answered(serve, "fill_mask", with_parameter, row[1])


def serve_for(serve: Serve, task: str, model: str) -> Service:
    """Services that the tests of this file share."""
    protocol = "grpc-v2" if model.startswith(("gpt2", "t5")) else "v2"
    return serve(model, protocol, *(("--task=feature_extraction",) if task == "feature_extraction" else ()))


def assert_answered(serve: Serve, task: str, command: str, answer: str) -> None:
    """By the model that the command names, or that of its path."""
    found = re.search(r"/models/(\w+)[:/]|\"model\": \"(\w+)\"|[?]model=(\w+)", command)
    path = re.search(rf"{ADDRESS}(/\w*)", command)
    assert path is not None
    model = MODEL_OF_PATH[path[1]] if found is None else found[1] or found[2] or found[3]
    service = serve_for(serve, task, model)
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
    return {key: "a time" if key in ("created", "created_at") else shape(one) for key, one in value.items()}


MODELS = {
    "fill_mask": "bert",
    "sequence_classification": "sentiment",
    "token_classification": "ner",
    "question_answering": "squad",
    "zero_shot_classification": "nli",
    "zero_shot_token_classification": "gliner",
    "rerank": "cross",
    "text_embedding": "minibert_mean",
    "feature_extraction": "minibert_mean",
    "text_generation": "gpt2_past",
    "text2text_generation": "t5_logits",
}
GENERATIVE = ("text_generation", "text2text_generation")
CONTROL = ("v2RepositoryLoad", "v2RepositoryUnload")
"""Operations that need --enable_model_control."""
NEEDS = {
    **dict.fromkeys(("openaiEmbeddings", "infinityEmbeddings"), ("text_embedding",)),
    **dict.fromkeys(("openaiRerank", "infinityRerank"), ("rerank",)),
    "openaiModerations": ("sequence_classification",),
    "presidioAnalyze": ("token_classification",),
    "presidioAnonymize": tuple({task.name for task, _ in ALL_TASKS}),  # no model is asked
    **dict.fromkeys(("embeddings", "v1Embeddings", "v1Embed", "v2Embed"), ("text_embedding",)),
    **dict.fromkeys(("contextualizedEmbeddings", "teiEmbed", "teiSimilarity"), ("text_embedding",)),
    **dict.fromkeys(("rerank", "v1Rerank", "v2Rerank", "ranking", "score", "v1Score"), ("rerank",)),
    **dict.fromkeys(("classify", "v1Classify"), ("sequence_classification",)),
    **dict.fromkeys(("pooling", "v1Pooling"), ("text_embedding", "feature_extraction", "sequence_classification")),
    "generativeScoring": GENERATIVE,
    **dict.fromkeys(("anthropicMessages", "anthropicCountTokens"), ("text_generation",)),
    "multiVector": (),  # the models of these tests have no vectors of tokens, and no sparse ones
    "teiEmbedAll": ("text_embedding", "feature_extraction"),
    "teiEmbedSparse": (),
    "teiPredict": ("sequence_classification",),  # a model for rerank takes pairs, and the examples have single texts
    **dict.fromkeys(
        ("teiRoot", "teiInvocations", "teiVertex"),
        ("sequence_classification", "text_embedding", "feature_extraction", "token_classification"),
    ),
    "openaiCompletions": GENERATIVE,
    "openaiResponses": ("text_generation",),
    "openaiChat": ("text_generation",),  # t5_logits has no chat template
    "generate": GENERATIVE,
    "generateVersion": GENERATIVE,
    "generateStream": GENERATIVE,
    "generateStreamVersion": GENERATIVE,
    "renderCompletions": GENERATIVE,
    **dict.fromkeys(("renderChat", "renderResponses", "renderMessages"), ("text_generation",)),
    **dict.fromkeys(("derenderChat", "derenderCompletions"), GENERATIVE),
}
"""The tasks of operations that not every model answers."""
FORMS: dict[str, list[Any]] = {
    "fill_mask": [
        {"output_format": "pipeline"},
        {"output_format": "pipeline", "top_k": None, "targets": "paris"},
        {"return_probabilities": True},
        {"return_raw_logits": True, "truncation": False},
    ],
    "token_classification": [
        {"output_format": "pipeline"},
        {"output_format": "pipeline", "aggregation_strategy": "first", "ignore_labels": []},
        {"mask": "{label}_{index}"},
        {"return_probabilities": True, "return_offsets_mapping": True},
        {"return_raw_logits": True, "stride": 2},
    ],
    "text_embedding": [{"normalize": False, "dimensions": 3}, {"prompt": "query: ", "output_format": "pipeline"}],
    "sequence_classification": [{"return_probabilities": True}, {"return_raw_logits": True}],
    "question_answering": [{"handle_impossible_answer": True, "max_seq_len": 20, "doc_stride": 4}],
    "rerank": [{"top_n": 1, "return_documents": True}, {"output_format": "pipeline", "raw_scores": True}],
    "text_generation": [{"max_new_tokens": 3}, {"do_sample": True, "seed": 1, "num_return_sequences": 2, "top_k": 5}],
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def service(serve: Serve, task: str) -> Service:
    return serve_for(serve, task, MODELS[task])


@pytest.fixture
def document(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.client.get("/openapi.json").json()
    return found


def validate(document: dict[str, Any], operation: dict[str, Any], response: httpx.Response) -> None:
    """The response is one that the operation describes."""
    described = operation["responses"][str(response.status_code)]
    if "$ref" in described:
        described = document["components"]["responses"][described["$ref"].rpartition("/")[2]]
    if "content" not in described:
        assert not response.content
        return
    content_type = response.headers["content-type"].partition(";")[0]
    schema = {**described["content"][content_type]["schema"], "components": document["components"]}
    for body in bodies(response, content_type):
        Draft202012Validator(schema).validate(body)


def bodies(response: httpx.Response, content_type: str) -> list[Any]:
    """The parts that the content type's schema describes: the body, or each line or event of a stream."""
    if content_type == "text/event-stream":
        events = response.text.strip().split("\n\n")
        return [dict(line.split(": ", 1) for line in event.split("\n")) for event in events]
    if content_type == "application/jsonl":
        return [json.loads(line) for line in response.text.splitlines()]
    return [response.json() if content_type == "application/json" else response.text]


def calls(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation."""
    assert document["paths"]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method, path.replace("{version}", "1"), operation


def examples(operation: dict[str, Any]) -> list[Any]:
    """The bodies that an operation shows; None for one without a body."""
    if "requestBody" not in operation:
        return [None]
    return [one["value"] for one in operation["requestBody"]["content"]["application/json"]["examples"].values()]


def test_every_example_is_answered_as_described(service: Service, document: dict[str, Any], task: str) -> None:
    for method, path, operation in calls(document):
        for body in examples(operation):
            response = service.client.request(method, path, json=body)
            named = operation["operationId"]
            needs = NEEDS.get(named, (task,))
            if named == "teiTokenize" and body.keys() & {"messages", "input"}:
                needs = NEEDS["openaiChat"]
            works = named not in CONTROL and task in needs
            # text-embeddings-inference has statuses of its own for a model of another kind and for a wrong field.
            refused = (400, 422, 424) if "TEI" in operation["tags"] else (400,)
            assert response.status_code in ((200,) if works else refused), f"{method} {path} {body}: {response.text}"
            validate(document, operation, response)


@pytest.mark.parametrize("task", FORMS)
def test_answers_in_every_form_are_described(service: Service, document: dict[str, Any], task: str) -> None:
    operation = document["paths"][f"/v1/models/{service.model}:predict"]["post"]
    example = examples(operation)[0]
    content = operation["requestBody"]["content"]["application/json"]
    request = {**content["schema"], "components": document["components"]}
    for parameters in FORMS[task]:
        body = {**example, "parameters": parameters}
        Draft202012Validator(request).validate(body)
        response = service.post(body)
        assert response.status_code == 200, response.text
        validate(document, operation, response)


WRONG_VALUES: dict[str, tuple[list[Any], str]] = {
    "boolean": ([1, "yes"], "expected true or false, got a "),
    "integer": ([True, 1.5, "1"], "expected a whole number, got a "),
    "number": ([True, "1", [1]], "expected a number from 0 to 1, got a "),
    "string": ([1, ["x"]], "..., got a "),
}
"""By the type of a parameter: values that it does not take, and the error's words."""
OF_OTHERS = {
    "feature_extraction": "normalize",
    "fill_mask": "top_n",
    "question_answering": "return_probabilities",
    "rerank": "top_k",
    "sequence_classification": "top_n",
    "text_embedding": "top_k",
    "token_classification": "top_k",
    "zero_shot_classification": "return_raw_logits",
    "zero_shot_token_classification": "top_k",
}
"""Parameters that another task takes."""


@pytest.mark.parametrize("task", [task for task in MODELS if task not in GENERATIVE])
def test_parameters_that_the_document_does_not_describe_are_refused(
    service: Service, document: dict[str, Any], task: str
) -> None:
    """tests/api/test_openapi.py has that it describes all of them."""
    instances = examples(document["paths"][f"/v1/models/{service.model}:predict"]["post"])[0]["instances"]
    [form] = document["components"]["schemas"]["Parameters"]["anyOf"]
    known = "...".join(form["properties"].keys() - TRITON_PARAMETERS)
    wrong: list[tuple[str, Any, str]] = [
        (name, 1, f"expected one of output_format...{known}...got an unknown name")
        for name in ("none", OF_OTHERS[task])
    ]
    for name, schema in form["properties"].items():
        if name in {*TRITON_PARAMETERS, *WINDOWS}:  # the latter only with windows
            continue
        for kind in {*schema.get("type", ())} - {"null"}:
            values, says = WRONG_VALUES[kind]
            if "enum" in schema:
                values, says = [*values, "xml"], f"expected one of {', '.join(schema['enum'][:-1])}"
            wrong += [(name, value, says) for value in values]
            if kind == "number":
                wrong += [(name, value, f"expected a number from 0 to 1, got {value}") for value in (-1, 2)]
            elif "minimum" in schema:
                wrong.append(
                    (name, schema["minimum"] - 1, f"expected {schema['minimum']} or more, got {schema['minimum'] - 1}")
                )
    for name, value, says in wrong:
        refused(service, instances, {"output_format": "pipeline", name: value}, f"parameters.{name}: {says}")


def test_errors_are_as_the_document_describes_them(service: Service, document: dict[str, Any]) -> None:
    name = service.model
    for method, path, operation in calls(document):
        unknown = re.sub(rf"/{name}\b", "/nobody", path)
        if unknown != path:
            response = service.client.request(method, unknown, json={})
            status = 400 if operation["operationId"] in CONTROL else 404
            assert response.status_code == status, f"{method} {unknown}: {response.text}"
            validate(document, operation, response)
        if method == "post":
            response = service.client.post(path, content=b"{")
            assert response.status_code == 400, f"{path}: {response.text}"
            validate(document, operation, response)


NO_MODEL = ("/v2/repository/index", "/anonymize")
WRONG_NAMES: list[Any] = [{}, [], 5, True, ["bert"]]


@pytest.mark.parametrize("task", ["fill_mask"])
def test_a_model_that_is_no_string_is_refused(service: Service, document: dict[str, Any]) -> None:
    """Also by APIs in which the only model answers under every name."""
    named = 0
    model: Any
    for method, path, operation in calls(document):
        if f"/{service.model}" in path or path in NO_MODEL:  # the path has the model, or none is chosen
            continue
        for body in examples(operation):
            if isinstance(body, dict):
                for model in WRONG_NAMES:
                    response = service.client.request(method, path, json={**body, "model": model})
                    assert 400 <= response.status_code < 500, f"{method} {path} {model}: {response.text}"
                named += 1
    assert named > len(TASKS)


def info(serve: Serve, model: str, *flags: str) -> dict[str, Any]:
    """Its examples, which are its own or those of /openapi.json, are requests."""
    service = serve(model, "v2", *flags)
    information: dict[str, Any] = service.client.get(f"/v1/models/{model}/info").json()
    for example in information["examples"]:
        if "instances" in example["value"]:
            assert service.post(example["value"]).status_code == 200
    return information


def test_info_about_entities_has_labels_and_forms(serve: Serve) -> None:
    content = info(serve, "ner", "--aggregation_strategy=first", "--output_format=pipeline", "--max_instances=7")
    assert content.items() >= {"name": "ner", "version": "1", "task": "token_classification", "max_length": 128}.items()
    assert content["server"] == {"name": "hf_transformer", "version": hf_transformer.__version__}
    assert content["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
    forms = ("aggregation_strategy", "output_format", "on_overflow")
    assert [content[form] for form in forms] == ["first", "pipeline", "truncate"]
    assert content["limits"]["max_instances"] == 7
    assert (content["protocols"]["v1"], content["protocols"]["openai"]) == ("/v1/models/ner:predict", [])


def test_info_has_the_models_own_note_and_examples_that_fit_its_task(serve: Serve) -> None:
    information = info(serve, "nli", "--task=zero_shot_classification", "--enable_docs_url")
    assert information["note"].startswith("A toy model of 51 thousand parameters")
    labels = [example["value"]["parameters"]["candidate_labels"] for example in information["examples"]]
    assert labels == [
        ["politics", "sport", "cooking"],
        ["politics", "sport", "cooking"],
        ["cooking", "travel", "music"],
    ]
    assert information["links"].items() >= {"health": "/v2/health/ready", "docs": "/docs"}.items()
    other = info(serve, "nli", "--task=sequence_classification")
    assert [example["summary"] for example in other["examples"]] == ["as KServe", "as a pipeline", "a pair"]
    assert other["note"] == information["note"] and "docs" not in other["links"]
    chats = [example["value"] for example in info(serve, "gpt2")["examples"] if "messages" in example["value"]]
    assert chats[0] == {"messages": [{"role": "user", "content": "What is the capital of france?"}]}


def test_info_has_the_fields_of_each_task(serve: Serve) -> None:
    assert info(serve, "bert")["mask_token"] == "[MASK]"
    assert info(serve, "stars")["problem_type"] == "regression"
    found = info(serve, "minibert_mean")
    assert found["prompts"] == {"query": "query: ", "passage": "passage: "}
    assert (found["pooling"], found["default_prompt_name"]) == (["mean"], None)
    assert found["protocols"]["openai"] == ["/openai/v1/embeddings"]


def test_info_has_the_parameters_that_a_generative_model_honours(serve: Serve) -> None:
    whole = info(serve, "gpt2_past", "--max_new_tokens=50", "--openai_route_prefix=")
    assert whole["generation"].items() >= {"interface": "logits", "chat": True, "max_new_tokens": 50}.items()
    assert {"temperature", "logprobs", "seed", "stop"} <= set(whole["generation"]["parameters"])
    assert whole["protocols"]["openai"] == ["/v1/completions", "/v1/chat/completions", "/v1/responses"]
    assert whole["protocols"]["generate"] == "/v2/models/gpt2_past/generate"
    less = info(serve, "gpt2_tutorial")["generation"]
    assert less["interface"] == "text"
    assert less["parameters"] == ["max_length", "max_tokens", "n", "stop"]


LABELS = {"id2label": {"0": "not_paraphrase", "1": "paraphrase"}, "label2id": {"not_paraphrase": 0, "paraphrase": 1}}


@pytest.mark.parametrize(
    ("model", "model_type"),
    [
        ("minibert_mean", {"embedding": {"pooling": "mean"}}),
        ("minibert_max", {"embedding": {}}),
        ("cross", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        ("paraphrase", {"classifier": LABELS}),
        ("ner", None),
    ],
)
def test_info_has_the_names_of_text_embeddings_inference(serve: Serve, model: str, model_type: Any) -> None:
    flags = ("--max_asyncio_workers=3", "--on_overflow=error") if model == "minibert_mean" else ()
    client = serve(model, "v2", *flags).client
    found, task = client.get("/info").json(), client.get(f"/v1/models/{model}/info").json()["task"]
    workers = found.pop("tokenization_workers")
    assert workers == 3 if flags else workers > 0
    assert found == {
        "model_id": model,
        "model_sha": None,
        "served_model_name": model,
        **({} if model_type is None else {"model_type": model_type}),
        "max_concurrent_requests": 1024,
        "max_input_length": 128,
        "max_batch_tokens": 16384,
        "max_client_batch_size": 2048,
        "auto_truncate": not flags,
        "version": hf_transformer.__version__,
        "models": [
            {"name": model, "task": task, "purpose": TASK_CLASSES[task].purpose, "ready": True}
            | {"aliases": [], "adapters": []}
        ],
        "links": find_links(docs=False),
    }
