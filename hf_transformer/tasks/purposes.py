"""Purposes of texts: names of queries and documents in model folders and APIs, and the prompts for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

QUERY_NAMES = ("query", "search_query", "retrieval_query", "s2p_query", "web_search_query")
DOCUMENT_NAMES = ("document", "passage", "search_document", "retrieval_document", "retrieval_passage", "corpus")
"""The names of prompts for queries and documents in model folders, in lower case with underscores, the preferred
first."""
SIDE_NAMES: Mapping[str, Sequence[str]] = {"query": QUERY_NAMES, "document": DOCUMENT_NAMES}
INPUT_TYPES: Mapping[str, str] = {name: kind for kind, names in SIDE_NAMES.items() for name in names}
"""The names by ``input_type``, and the other way."""


def plain_name(name: str) -> str:
    """A name of a prompt or purpose in lower case with underscores."""
    return re.sub(r"[-. ]", "_", name.lower())


def input_type_of(name: str) -> str | None:
    """``query`` or ``document`` for a name of either in model folders and APIs, such as search_query or passage. The
    name may follow a subject, as in nl2code.passage."""
    return INPUT_TYPES.get(plain_name(name)) or INPUT_TYPES.get(plain_name(name.rpartition(".")[2]))


def prompt_for_purpose(prompts: Iterable[str], purpose: str) -> str | None:
    """The name of the prompt for a purpose; None without one. All names of queries, and all of documents, are equal
    behind a subject: nl2code.passage finds nl2code_document."""
    known = {plain_name(name): name for name in prompts}
    subject, _, side = plain_name(purpose).rpartition("_")
    names = [plain_name(purpose), *(f"{subject}_{name}" for name in SIDE_NAMES.get(INPUT_TYPES.get(side, ""), ()))]
    return next((known[name] for name in names if name in known), None)


def typed_prompt(prompts: Mapping[str, str], input_type: str) -> str:
    """The prompt for queries or documents by its name. A model without such a prompt has an empty one, as in
    sentence-transformers' encode_query and encode_document."""
    known = {plain_name(name): text for name, text in prompts.items()}
    return next((known[name] for name in SIDE_NAMES[input_type] if name in known), "")
