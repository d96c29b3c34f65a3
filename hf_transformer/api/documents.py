"""Texts and documents in bodies, and answers with scores and vectors, which several APIs have in the same form.

Sources: https://docs.cohere.com/reference/rerank, https://api.jina.ai/redoc and
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from hf_transformer.api.errors import expect
from hf_transformer.errors import Path
from hf_transformer.types.fields import Body, Form, NonEmpty, OpenBody, about
from hf_transformer.types.request import Answers, Json, RequestBudget
from hf_transformer.types.tensors import Array

INSTANCE: Mapping[Path, Path] = {
    ("documents", 0): ("documents",),
    ("documents", 0, "texts"): ("documents",),
    ("documents", 0, "query"): ("query",),
}
"""The names of fields for ranked documents: the task has a single instance with all of them."""
SINGLE_INPUT: Mapping[Path, Path] = {("input", 0): ("input",)}
"""The names of fields where ``input`` is a single text."""


# Texts


class DocumentPart(OpenBody):
    type: Annotated[Literal["text"], about(expected='"text", since the model reads texts')]
    text: str


class Content(OpenBody):
    """Parts of text, joined by line breaks."""

    content: Annotated[NonEmpty[DocumentPart], about(expected='a list of {"type": "text", "text": string}')]


class TextObject(Body):
    text: str


class Document(OpenBody):
    """With "text", "content" or the fields of rank_fields; other fields stay in the answer."""

    text: str | None = None
    content: NonEmpty[DocumentPart] | None = None


CONTENT = Form(Content)
Documents: TypeAlias = Annotated[
    NonEmpty[Json], about("The texts to rank.", expected="a list of texts", shown=(NonEmpty[str | Document],))
]
RankQuery: TypeAlias = Annotated[
    str | dict[str, Json], about("The text to compare the documents with.", expected="a string", shown=(str, Content))
]


def read_ranking(
    query: str | dict[str, Json], documents: list[Json], budget: RequestBudget, rank_fields: Sequence[str] | None = None
) -> dict[str, Json]:
    """Returns the task's instance. Raises InvalidInput for a document of another form, and TooLarge for too many."""
    text = query if isinstance(query, str) else read_content(query, ("query",))
    return {"query": text, "texts": read_documents(documents, budget, rank_fields)}


def read_documents(
    documents: list[Json], budget: RequestBudget, rank_fields: Sequence[str] | None = None, field: str = "documents"
) -> list[str]:
    """Returns the texts of a list, see ``read_document``. Raises InvalidInput for any other form, and TooLarge for too
    many."""
    budget.few(field, documents)
    return [read_document(document, (field, index), rank_fields) for index, document in enumerate(documents)]


def read_document(document: Json, path: Path, rank_fields: Sequence[str] | None = None) -> str:
    """Returns the text of a string, of an object with "text", whose other fields have no effect, or of content parts.

    ``rank_fields`` names the fields of an object that are its text, as in Cohere v1: "NAME: VALUE" in a line each.
    Raises InvalidInput for any other form.
    """
    if isinstance(document, dict) and rank_fields is not None:
        for name in rank_fields:
            expect(document.get(name), str, (*path, name[:40]), "a string, since rank_fields names it")
        return "\n".join(f"{name}: {document[name]}" for name in rank_fields)
    if isinstance(document, dict) and "content" in document and "text" not in document:
        return read_content(document, path)
    text = document["text"] if isinstance(document, dict) and "text" in document else document
    return str(expect(text, str, path, 'a string or {"text": string}'))


def read_content(value: Json, path: Path) -> str:
    """Returns the text of Content, which Cohere and vLLM have for texts and images. Raises InvalidInput for any other
    form or type."""
    return "\n".join(part.text for part in CONTENT.read(value, path=path).content)


def plain_texts(value: str | list[Json], budget: RequestBudget) -> str | list[Json]:
    """Returns ``input`` with strings in place of Jina's {"text": string}. Other values stay as they are."""
    if isinstance(value, str) or type(value[0]) is int:  # a list of token ids may be longer
        return value
    budget.few("input", value)
    if not any(isinstance(item, dict) for item in value):
        return value
    return [item["text"] if _is_text(item) else item for item in value]


def _is_text(item: Json) -> bool:
    return isinstance(item, dict) and item.keys() == {"text"} and isinstance(item["text"], str)


# Answers


class Ranked(Struct):
    index: int
    relevance_score: float
    document: dict[str, Json] | UnsetType = UNSET


class RankedText(Struct):
    index: int
    relevance_score: float
    document: str | UnsetType = UNSET


class VectorList(Struct):
    """A list of vectors, and their model."""

    object: Literal["list"]
    data: list[dict[str, Json]]
    model: str
    usage: dict[str, int]


def render_results(answers: Answers, documents: Sequence[Json]) -> list[Json]:
    """Renders the scores of the request's only instance, best first. An object keeps its fields, as in Cohere."""
    results = []
    for result in answers.predictions[0]:
        original = documents[result["index"]]
        fields = original if isinstance(original, dict) else {}
        document = {"document": {"text": result["text"], **fields}} if "text" in result else {}
        results.append({"index": result["index"], **document, "relevance_score": result["score"]})
    return results


def render_meta(answers: Answers, version: str, searches: int = 0) -> dict[str, Json]:
    """Renders Cohere's ``meta``: the version of the API and the numbers of tokens and searches."""
    units: dict[str, Json] = {"search_units": searches} if searches else {"input_tokens": answers.tokens}
    return {"api_version": {"version": version}, "billed_units": units, "tokens": {"input_tokens": answers.tokens}}


def to_base64(vector: Array) -> str:
    """Encodes a vector [D] as base64 of little-endian float32, the default format of OpenAI's client, or of bytes for
    a vector of another precision."""
    numbers = vector.astype("<f4", copy=False) if vector.dtype.kind == "f" else vector
    return b2a_base64(numbers.tobytes(), newline=False).decode("ascii")
