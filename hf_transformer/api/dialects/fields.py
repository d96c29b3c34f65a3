"""Fields that APIs of embeddings and reranking share: truncation, a text's purpose, precision, and the limits of a
document. Each function converts the fields of a body to the task's parameters.

Sources: https://docs.cohere.com/reference/embed, https://api.jina.ai/redoc, https://docs.voyageai.com/reference,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html and
https://docs.nvidia.com/nim/nemo-retriever/text-embedding/latest/reference.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.service import Model
from hf_transformer.core.pipeline import PredictivePipeline
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks import quantization
from hf_transformer.tasks.parameters import Parameters, input_type_of, prompt_for_purpose
from hf_transformer.tasks.text_embedding import DENSE, MULTI_VECTOR, SPARSE, Scale, TextEmbedding
from hf_transformer.types.request import Json, RequestBudget

TRUNCATION = ("truncation", "truncate")
SIDES = ("truncation_side", "truncation_direction")
TRUNCATE_PROMPT_TOKENS = "truncate_prompt_tokens"
TRUNCATION_FIELDS = (*TRUNCATION, *SIDES, TRUNCATE_PROMPT_TOKENS)
TRUNCATES: Mapping[str, Mapping[str, Json]] = {
    "END": {"truncation": True},
    "START": {"truncation": True, "truncation_side": "left"},
    "NONE": {"truncation": False},
}
"""Values of ``truncate`` of Cohere and NVIDIA NIM as parameters of the task."""
PER_TEXT = ("max_tokens_per_doc", "max_tokens_per_query")
"""Parameters of rerank: the maximum numbers of tokens of each text and of the query."""

PURPOSES = ("query", "search_query", "document", "passage", "search_document")
"""Common purposes of a text, for messages. Jina has retrieval.query and the like; see input_type_of."""
OTHER_PURPOSES = ("classification", "clustering", "text-matching", "separation")
"""Purposes of Cohere and Jina that choose a prompt of this name, if the model has one."""

PRECISIONS: Mapping[str, str] = {"float": "float32", **{name: name for name in quantization.PRECISIONS}}
"""The task's ``precision`` by the names of other APIs."""
VECTORS: Mapping[str, str] = {DENSE: "a vector per text", SPARSE: "sparse vectors", MULTI_VECTOR: "vectors of tokens"}
"""The representations in words."""


def representations(model: Model) -> tuple[str, ...]:
    """The representations of a model for text_embedding, the default first. Raises NotReady until a model fits."""
    pipeline = model.pipeline
    task = pipeline.task if isinstance(pipeline, PredictivePipeline) else model.task
    return task.available if isinstance(task, TextEmbedding) else (DENSE,)


def require_representation(model: Model, name: str) -> None:
    """Raises InvalidInput for a model without a representation, whose answer would have another form."""
    available = representations(model)
    if name not in available:
        has = " and ".join(VECTORS[known] for known in available)
        raise InvalidInput("model", f"a model with {VECTORS[name]}", f"{model.name!r}, which has {has}")


def unit_length(model: Model, *, promised: bool = True) -> dict[str, Json]:
    """Returns the parameter ``normalize`` for dense vectors of length 1, unless a request says otherwise.

    Args:
        promised: whether the API promises this length for every model. Otherwise the model's files decide whether to
            normalize, and an answer with fewer ``dimensions`` has the length of a complete one.
    """
    files = model.task.settings.sentence_transformers
    return {"normalize": Scale.DENSE} if promised or files is None or files.normalize else {}


def read_truncation(parameters: Parameters, default: str | None = None) -> dict[str, Json]:
    """Returns the task's parameters ``truncation``, ``truncation_side`` and ``max_tokens``, as far as a request has
    them. ``default`` is the value of ``truncate`` for a request without it.

    "END" or true truncates long texts, "START" truncates their start, "NONE" or false refuses them. vLLM's
    ``truncate_prompt_tokens`` is a length; -1 means the model's. Raises InvalidInput for other values, and for two
    fields that mean the same.
    """
    options: dict[str, Json] = {} if default is None else {**TRUNCATES[default]}
    field = parameters.one_of(*TRUNCATION)
    if field == "truncate":
        options |= _read_truncate(parameters.get(field))
    elif field is not None:
        options[field] = parameters.get(field)
    side = parameters.one_of(*SIDES)
    if side is not None:
        if "truncation_side" in options:
            raise InvalidInput(side, 'no value beside truncate: "START"')
        options["truncation_side"] = read_side(side, parameters.get(side))
    if parameters.one_of("max_tokens", TRUNCATE_PROMPT_TOKENS) == TRUNCATE_PROMPT_TOKENS:
        options.setdefault("truncation", True)
        count = parameters.integer(TRUNCATE_PROMPT_TOKENS, -1, -1)
        if count == 0:
            raise InvalidInput(TRUNCATE_PROMPT_TOKENS, "a number of tokens, or -1 for the model's length", "0")
        if count > 0:
            options["max_tokens"] = count
    return options


def _read_truncate(value: Json) -> Mapping[str, Json]:
    if isinstance(value, bool):
        return {"truncation": value}
    if isinstance(value, str) and value in TRUNCATES:
        return TRUNCATES[value]
    raise InvalidInput("truncate", '"END" or true, "START", "NONE" or false', describe(value, quote=True))


def read_side(field: str, value: Json) -> str:
    """Returns left or right. Raises InvalidInput for any other value."""
    if value not in ("left", "right", "Left", "Right"):
        raise InvalidInput(field, "left or right", describe(value, quote=True))
    return str(value).lower()


def read_purpose(parameters: Parameters, field: str, model: Model) -> dict[str, Json]:
    """Returns the parameter ``input_type`` or ``prompt_name`` for a text's purpose in ``field``.

    A prompt of the whole purpose comes first: the files of some models have "retrieval.query" or "nl2code_document". A
    late-interaction model needs to know the side too. A model without prompts has one form for all purposes. Raises
    InvalidInput for a purpose that a model with prompts does not know.
    """
    name = parameters.string(field)
    if name is None:
        return {}
    purpose, files = input_type_of(name), model.task.settings.sentence_transformers
    prompts = files.prompts if files is not None else {}
    if purpose != name and not (purpose and files is not None and files.late_interaction):
        prompt = prompt_for_purpose(prompts, name)
        if prompt is not None:
            return {"prompt_name": prompt}
    if purpose is not None:
        return {"input_type": purpose}
    if prompts and name not in OTHER_PURPOSES:
        known = dict.fromkeys((*PURPOSES, *OTHER_PURPOSES, *prompts))
        raise InvalidInput(field, f"one of {', '.join(known)}", repr(name[:40]))
    return {}


def read_precision(parameters: Parameters, *names: str) -> dict[str, Json]:
    """Returns the parameter ``precision`` from the field among ``names`` that the request has. Raises InvalidInput."""
    field = parameters.one_of(*names)
    precision = "float32" if field is None else PRECISIONS[parameters.choice(field, "float", tuple(PRECISIONS))]
    return {} if precision == "float32" else {"precision": precision}


def read_token_limits(parameters: Parameters) -> dict[str, Json]:
    """Returns the parameters of PER_TEXT. 0 means no limit, as in vLLM."""
    return {name: count for name in PER_TEXT if (count := parameters.integer(name, 0, 0))}


def read_strings(field: str, value: Json, budget: RequestBudget) -> list[str]:
    """Returns a list of strings. Raises InvalidInput for any other value, and TooLarge for too many."""
    texts = expect_items(value, field, "a list of texts")
    budget.few(field, texts)
    return [expect(text, str, (field, index), "a string") for index, text in enumerate(texts)]


def read_documents(
    value: Json, budget: RequestBudget, rank_fields: Sequence[str] | None = None, field: str = "documents"
) -> list[str]:
    """Returns the texts of a list, see ``read_document``. Raises InvalidInput for any other form, and TooLarge for too
    many."""
    documents = expect_items(value, field, "a list of texts")
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
    """Returns the text of {"content": [{"type": "text", "text": string}, ...]}: the parts, joined by line breaks.

    Cohere and vLLM have this form for texts and images. Raises InvalidInput for any other form or type.
    """
    parts, path = expect(value, dict, path, "an object").get("content"), (*path, "content")
    if not isinstance(parts, list) or not parts:
        raise InvalidInput(path, 'a list of {"type": "text", "text": string}')
    lines = []
    for number, part in enumerate(parts):
        here = (*path, number)
        if expect(part, dict, here, "an object").get("type") != "text":
            raise InvalidInput((*here, "type"), '"text", since the model reads texts', "another type")
        lines.append(expect(part.get("text"), str, (*here, "text"), "a string"))
    return "\n".join(lines)


def aliased(parameters: Parameters, aliases: Mapping[str, Sequence[str]]) -> dict[Path, Path]:
    """Returns the fields that the request has for parameters, as a mapping of Names. ``aliases`` has the fields for a
    parameter, by the task's name of it."""
    present = ((name, alias) for name, among in aliases.items() for alias in reversed(among) if alias in parameters)
    return {(name,): (alias,) for name, alias in present}  # the first of a parameter's aliases stays


def move_if_present(parameters: Parameters, *same: str, **renamed: str) -> dict[str, Json]:
    """Returns the values of the fields that a request has. ``renamed`` has the task's names by field."""
    names = {**{name: name for name in same}, **renamed}
    return {name: parameters.get(field) for field, name in names.items() if field in parameters}
