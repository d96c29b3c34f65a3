"""Fields that dialects share: names in errors, documents, truncation, and the sums of several requests in a body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.api.dialects import fields
from hf_transformer.api.openai import embeddings, rerank
from hf_transformer.api.service import Model
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.multi_vector import LateInteraction
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Answers
from tests.api.generating import ServedModel
from tests.support.budgets import few


def parameters(**values: Any) -> Parameters:
    return Parameters(values, tuple(values))


def test_an_error_has_the_name_that_the_request_has() -> None:
    aliases = {"dimensions": ("dimensions", "output_dimension")}
    name = TOP_LEVEL.then(fields.aliased(parameters(output_dimension=9, normalize=True), aliases))
    assert name(("parameters", "dimensions")) == ("output_dimension",)
    assert name(("parameters", "normalize")) == ("normalize",) and name(("parameters", "precision")) == ("precision",)
    both = fields.aliased(parameters(output_dimension=9, dimensions=9), aliases)
    assert both == {("dimensions",): ("dimensions",)}, "the first that the request has"


def test_documents_keep_their_other_fields_in_the_answer() -> None:
    documents = ["a", {"text": "b", "title": "c", "year": 1}, {"title": "d"}]
    texts = fields.read_documents(documents[:2], few(2))
    assert texts == ["a", "b"]
    ranked = fields.read_documents(documents[1:], few(2), ["title"])
    assert ranked == ["title: c", "title: d"]
    read = [*texts, ranked[1]]
    answers = Answers([[{"index": index, "text": text, "score": 0.5} for index, text in enumerate(read)]])
    shown = [one["document"] for one in rerank.render_results(answers, parameters(documents=documents))]
    assert shown == [{"text": "a"}, documents[1], {"text": "title: d", "title": "d"}]
    bare = Answers([[{"index": 0, "score": 0.5}]])
    assert rerank.render_results(bare, parameters(documents=documents)) == [{"index": 0, "relevance_score": 0.5}]
    with pytest.raises(InvalidInput, match=r"documents\[0\]: expected a string"):
        fields.read_documents([{"text": 1}], few(2))


def test_content_parts_of_text_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    documents = [{"content": parts}, {"type": "text", "text": "c"}, {"text": "d", "content": "e"}, "f"]
    assert fields.read_documents(documents, few(4)) == ["a\nb", "c", "d", "f"]
    wrong = [
        ({"content": []}, r"documents\[0\]\.content: expected a list"),
        ({"content": "a"}, r"documents\[0\]\.content: expected a list"),
        ({"content": [{"type": "image_url"}]}, r'documents\[0\]\.content\[0\]\.type: expected "text"'),
        ({"content": [*parts, {"type": "text"}]}, r"documents\[0\]\.content\[2\]\.text: expected a string"),
    ]
    for document, says in wrong:
        with pytest.raises(InvalidInput, match=says):
            fields.read_documents([document], few(1))
    with pytest.raises(InvalidInput, match=r"documents\[0\]\.title: expected a string"):
        fields.read_documents([{"content": parts}], few(1), ["title"])


def test_a_text_in_an_object_is_a_string() -> None:
    assert embeddings.plain_texts([{"text": "a"}, "b", {"text": 5}, {"text": [1]}], few(4)) == [
        "a",
        "b",
        {"text": 5},
        {"text": [1]},
    ]


def test_two_lengths_in_tokens_are_refused() -> None:
    assert fields.read_truncation(parameters(truncate_prompt_tokens=9)) == {"truncation": True, "max_tokens": 9}
    assert fields.read_truncation(parameters(max_tokens=9)) == {}
    with pytest.raises(InvalidInput, match="truncate_prompt_tokens: expected max_tokens or truncate_prompt_tokens"):
        fields.read_truncation(parameters(max_tokens=9, truncate_prompt_tokens=9))


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
    assert fields.read_purpose(parameters(task=purpose), "task", model) == chosen


def test_a_late_interaction_model_knows_the_side_of_a_purpose(made: ServedModel) -> None:
    model = with_prompts(made, CODE, LateInteraction())
    assert fields.read_purpose(parameters(task="qa.passage"), "task", model) == {"input_type": "document"}


@pytest.mark.parametrize("purpose", ["querry", "nl2code.pasage", "my_query"])
def test_an_unknown_purpose_is_refused_if_the_model_has_prompts(made: ServedModel, purpose: str) -> None:
    model = with_prompts(made, PLAIN)
    with pytest.raises(InvalidInput, match="task: expected one of query, search_query"):
        fields.read_purpose(parameters(task=purpose), "task", model)
