"""The OpenAI API."""

from __future__ import annotations

from hf_transformer.api.openai.unused import LONGEST_KEY, LONGEST_LABEL, MOST_LABELS, STRINGS, TIERS
from hf_transformer.api.openapi.operations import (
    QUESTION,
    WORK,
    Described,
    answer,
    body,
    failures,
    question,
    ref,
    work,
)
from hf_transformer.tasks.schema_forms import INTEGER, NUMBER, STRING, Schema, any_of, array, record, text
from hf_transformer.tasks.schemas import SCHEMAS
from hf_transformer.types import Json

TAG = "OpenAI"
ERROR = ref("OpenAIError")
EMBEDDINGS, RERANK = "text_embedding", "rerank"
CARD: dict[str, Schema] = {
    "id": STRING,
    "object": {"const": "model"},
    "created": {**INTEGER, "description": "When the service started, in seconds since 1970."},
    "owned_by": STRING,
}
MODEL_LIST: dict[str, Schema] = {"object": {"const": "list"}, "data": array(ref("OpenAIModel"))}
USAGE = record({"prompt_tokens": INTEGER, "total_tokens": INTEGER})
EMBEDDINGS_EXAMPLE = {"input": ["What a fine day.", "Rain is falling."]}
RERANK_EXAMPLE = {
    "query": "What do cats eat?",
    "documents": ["Paris is a city.", "Cats eat fish."],
    "top_n": 1,
}


def paths(about: Described) -> dict[str, Json]:
    """By path; without a prefix V1 answers about the models."""
    model = {"model": about.models[0]}
    found = {
        f"{about.root}/v1/embeddings": work(
            "openaiEmbeddings",
            _only("A vector for each text", EMBEDDINGS, about),
            TAG,
            body(ref("EmbeddingsRequest"), {**model, **EMBEDDINGS_EXAMPLE}),
            answer(ref("EmbeddingsResponse"), "A vector per text, in their order."),
            fails=failures(WORK, ERROR),
        ),
        f"{about.root}/v1/rerank": work(
            "openaiRerank",
            _only("Which documents answer a query best", RERANK, about),
            TAG,
            body(ref("RerankRequest"), {**model, **RERANK_EXAMPLE}),
            answer(ref("RerankResponse"), "The best document first."),
            fails=failures(WORK, ERROR),
        ),
    }
    if about.root:
        models = answer(record(MODEL_LIST), "The models.")
        found[f"{about.root}/v1/models"] = question("openaiModels", "The models", TAG, models)
        found[f"{about.root}/v1/models/{{model}}"] = question(
            "openaiModel",
            "One model",
            TAG,
            answer(ref("OpenAIModel"), "The model."),
            "Model",
            fails=failures(QUESTION, ERROR),
        )
    return found


def _only(summary: str, task: str, about: Described) -> str:
    if about.task.name == task:
        return summary
    return f"{summary}: needs the task {task}; this service does {about.task.name} and answers with 400"


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    names = {"type": "string", "enum": list(about.models)}
    user = text("Not looked at.")
    failure = {
        "message": STRING,
        "type": STRING,
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    }
    return {
        "OpenAIError": record({"error": record(failure)}),
        "OpenAIModel": record(CARD),
        "EmbeddingsRequest": _embeddings_request(about, names),
        "EmbeddingsResponse": record(
            {
                "object": {"const": "list"},
                "data": array(
                    record(
                        {
                            "object": {"const": "embedding"},
                            "index": INTEGER,
                            "embedding": any_of(
                                array(NUMBER), {**STRING, "description": "Base64 of float32 in little endian."}
                            ),
                        }
                    )
                ),
                "model": STRING,
                "usage": USAGE,
            }
        ),
        "RerankRequest": _rerank_request(about, names, user),
        "RerankResponse": record(
            {
                "id": STRING,
                "model": STRING,
                "usage": USAGE,
                "results": array(
                    record(
                        {"index": INTEGER, "document": record({"text": STRING}), "relevance_score": NUMBER}, "document"
                    )
                ),
            }
        ),
    }


def unused() -> dict[str, Schema]:
    """Fields that say who asks, or ask for what is done anyway."""
    label = {**STRING, "maxLength": LONGEST_LABEL}
    key = {"maxLength": LONGEST_KEY}
    labels = {"additionalProperties": label, "propertyNames": key, "maxProperties": MOST_LABELS}
    return {
        **dict.fromkeys(STRINGS, text("Not looked at.")),
        "metadata": {"type": ["object", "null"], **labels, "description": "Not looked at."},
        "store": {"enum": [False, None], "description": "Nothing is stored."},
        "service_tier": {"enum": [*TIERS, None], "description": "There is one."},
    }


def _embeddings_request(about: Described, names: Schema) -> Schema:
    parameters = _parameters(EMBEDDINGS, about)
    ids = array({**INTEGER, "minimum": 0, "maximum": about.task.settings.vocabulary.vocab_size - 1}, minItems=1)
    one = any_of(STRING, ids)
    texts = any_of(STRING, ids, array(one, minItems=1), description="A text, its tokens, or a list of such.")
    encoding = {"enum": ["float", "base64", None], "description": "How vectors are written.", "default": "float"}
    optional = {"encoding_format": encoding, **unused(), **parameters}
    return record({"model": names, "input": texts, **optional}, *optional)


def _rerank_request(about: Described, names: Schema, user: Schema) -> Schema:
    parameters = _parameters(RERANK, about)
    parameters["return_documents"] = {**parameters["return_documents"], "default": True}
    document = any_of(STRING, record({"text": STRING}))
    optional = {"user": user, **parameters}
    return record({"model": names, "query": STRING, "documents": array(document, minItems=1), **optional}, *optional)


def _parameters(task: str, about: Described) -> dict[str, Schema]:
    """A task's own parameters, which are fields here."""
    found: dict[str, Schema] = dict(SCHEMAS[task](about.task.settings).parameters["properties"])
    del found["output_format"]
    return found
