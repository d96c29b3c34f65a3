"""Fields that dialects share: names in errors, documents, truncation, and the sums of several requests in a body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.api import documents as documents_of
from hf_transformer.api.openai.embeddings import EMBEDDINGS
from hf_transformer.api.retrieval import read_purpose, read_truncation
from hf_transformer.api.service import Model
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.multi_vector import LateInteraction
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Answers, Context
from tests.api.generating import ServedModel
from tests.support.budgets import few


def embeddings_names(**body: Any) -> Names:
    return EMBEDDINGS.client_names(body)


@pytest.mark.parametrize(
    ("body", "parameter", "field"),
    [
        ({"output_dimension": 9}, "dimensions", "output_dimension"),
        ({"output_dimension": 9, "normalize": True}, "normalize", "normalize"),
        ({"output_dimension": 9}, "precision", "precision"),
        ({"embedding_type": "int8"}, "precision", "embedding_type"),
        ({"use_activation": True}, "normalize", "use_activation"),
        ({"task": "query"}, "input_type", "task"),
        ({"truncate_prompt_tokens": 9}, "max_tokens", "truncate_prompt_tokens"),
        ({"truncate": "END"}, "truncation", "truncate"),
        ({"truncation_direction": "left"}, "truncation_side", "truncation_direction"),
    ],
    ids=str,
)
def test_an_error_has_the_name_that_the_request_has(body: dict[str, Any], parameter: str, field: str) -> None:
    assert embeddings_names(**body)(("parameters", parameter)) == (field,)


def test_documents_keep_their_other_fields_in_the_answer() -> None:
    documents = ["a", {"text": "b", "title": "c", "year": 1}, {"title": "d"}]
    texts = documents_of.read_documents(documents[:2], few(2))
    assert texts == ["a", "b"]
    ranked = documents_of.read_documents(documents[1:], few(2), ["title"])
    assert ranked == ["title: c", "title: d"]
    read = [*texts, ranked[1]]
    answers = Answers([[{"index": index, "text": text, "score": 0.5} for index, text in enumerate(read)]])
    shown = [one["document"] for one in documents_of.render_results(answers, documents)]
    assert shown == [{"text": "a"}, documents[1], {"text": "title: d", "title": "d"}]
    bare = Answers([[{"index": 0, "score": 0.5}]])
    assert documents_of.render_results(bare, documents) == [{"index": 0, "relevance_score": 0.5}]
    with pytest.raises(InvalidInput, match=r"documents\[0\]: expected a string"):
        documents_of.read_documents([{"text": 1}], few(2))


def test_content_parts_of_text_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    documents = [{"content": parts}, {"type": "text", "text": "c"}, {"text": "d", "content": "e"}, "f"]
    assert documents_of.read_documents(documents, few(4)) == ["a\nb", "c", "d", "f"]
    wrong = [
        ({"content": []}, r"documents\[0\]\.content: expected a list"),
        ({"content": "a"}, r"documents\[0\]\.content: expected a list"),
        ({"content": [{"type": "image_url"}]}, r'documents\[0\]\.content\[0\]\.type: expected "text"'),
        ({"content": [*parts, {"type": "text"}]}, r"documents\[0\]\.content\[2\]\.text: expected a string"),
    ]
    for document, says in wrong:
        with pytest.raises(InvalidInput, match=says):
            documents_of.read_documents([document], few(1))
    with pytest.raises(InvalidInput, match=r"documents\[0\]\.title: expected a string"):
        documents_of.read_documents([{"content": parts}], few(1), ["title"])


def test_a_text_in_an_object_is_a_string() -> None:
    assert documents_of.plain_texts([{"text": "a"}, "b", {"text": 5}, {"text": [1]}], few(4)) == [
        "a",
        "b",
        {"text": 5},
        {"text": [1]},
    ]


TRUNCATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"truncate_prompt_tokens": 9}, {"truncation": True, "max_tokens": 9}),
    ({"truncate_prompt_tokens": -1}, {"truncation": True}),
    ({"truncate_prompt_tokens": 9, "truncation": False}, {"truncation": False, "max_tokens": 9}),
    ({"max_tokens": 9}, {}),
    ({"truncate": "START"}, {"truncation": True, "truncation_side": "left"}),
    ({"truncate": True, "truncation_direction": "Right"}, {"truncation": True, "truncation_side": "right"}),
    ({"truncate": "NONE"}, {"truncation": False}),
]
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 9, "truncate_prompt_tokens": 9}, "truncate_prompt_tokens: expected max_tokens or truncate_prompt"),
    ({"truncation": True, "truncate": "END"}, "truncate: expected truncation or truncate, got both"),
    ({"truncate": "START", "truncation_side": "left"}, 'truncation_side: expected no value beside truncate: "START"'),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: expected a number of tokens, or -1"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens: expected -1 or more, got -2"),
    ({"precision": "int8", "embedding_type": "int8"}, "embedding_type: expected precision or embedding_type, got both"),
]


@pytest.mark.parametrize(("body", "options"), TRUNCATIONS, ids=str)
def test_fields_of_truncation_become_the_task_s_parameters(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert read_truncation(EMBEDDINGS.read({"input": "a", **body})) == options


@pytest.mark.parametrize(("body", "says"), CONTRADICTIONS, ids=str)
def test_fields_that_contradict_each_other_are_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as found:
        read_truncation(EMBEDDINGS.read({"input": "a", **body}))
    assert str(found.value.at(embeddings_names(**body)(found.value.path))).startswith(says)


def with_prompts(made: ServedModel, prompts: dict[str, str], late: LateInteraction | None = None) -> Model:
    files = SentenceTransformers(prompts=prompts, late_interaction=late)
    made.made_task.settings = replace(made.made_task.settings, sentence_transformers=files)
    return made.model


CODE = {f"{subject}_{side}": "" for subject in ("nl2code", "qa", "code2completion") for side in ("query", "document")}
PLAIN = {"query": "", "document": ""}
RETRIEVAL = {"retrieval.query": "", "retrieval.passage": "", "text-matching": ""}


@pytest.mark.parametrize(
    ("prompts", "purpose", "chosen"),
    [
        pytest.param(CODE, "nl2code.passage", {"prompt_name": "nl2code_document"}, id="a passage is a document"),
        pytest.param(CODE, "code2completion.query", {"prompt_name": "code2completion_query"}, id="another separator"),
        pytest.param(CODE, "qa_document", {"prompt_name": "qa_document"}, id="the prompt's name"),
        pytest.param(CODE, "code2nl.query", {"input_type": "query"}, id="a subject without a prompt"),
        pytest.param(PLAIN, "code.query", {"input_type": "query"}, id="plain query"),
        pytest.param(PLAIN, "retrieval.passage", {"input_type": "document"}, id="plain document"),
        pytest.param(PLAIN, "code2code.corpus", {"input_type": "document"}, id="another name of documents"),
        pytest.param(PLAIN, "search_query", {"input_type": "query"}, id="Cohere's query"),
        pytest.param(
            RETRIEVAL, "retrieval.document", {"prompt_name": "retrieval.passage"}, id="a document is a passage"
        ),
        pytest.param(RETRIEVAL, "text-matching", {"prompt_name": "text-matching"}, id="without sides"),
        pytest.param(RETRIEVAL, "query", {"input_type": "query"}, id="input_type finds the prompt itself"),
        pytest.param(RETRIEVAL, "clustering", {}, id="no prompt of this name"),
        pytest.param({}, "anything", {}, id="no prompts"),
    ],
)
def test_a_purpose_chooses_the_prompt_of_its_subject(
    made: ServedModel, prompts: dict[str, str], purpose: str, chosen: dict[str, str]
) -> None:
    model = with_prompts(made, prompts)
    assert read_purpose(purpose, model, Context("id", {})) == chosen


def test_a_late_interaction_model_knows_the_side_of_a_purpose(made: ServedModel) -> None:
    model = with_prompts(made, CODE, LateInteraction())
    assert read_purpose("qa.passage", model, Context("id", {})) == {"input_type": "document"}


def test_a_prompt_of_a_purpose_has_the_name_of_its_field(made: ServedModel) -> None:
    context = Context("id", {})
    context.field_names = embeddings_names(task="qa.query")
    assert read_purpose("qa.query", with_prompts(made, CODE), context) == {"prompt_name": "qa_query"}
    assert context.field_names(("parameters", "prompt_name")) == ("task",)


@pytest.mark.parametrize("purpose", ["querry", "nl2code.pasage", "my_query"])
def test_an_unknown_purpose_is_refused_if_the_model_has_prompts(made: ServedModel, purpose: str) -> None:
    model = with_prompts(made, PLAIN)
    with pytest.raises(InvalidInput, match=r"parameters\.input_type: expected one of query, search_query"):
        read_purpose(purpose, model, Context("id", {}))
