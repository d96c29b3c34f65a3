"""The JSON schemas of text_embedding: the forms of an instance, and of its representations."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.tasks.declaration import (
    FULL_STRING,
    NUMBER,
    OPTIONAL_STRING,
    STRING,
    TEXT_SCHEMA,
    Schema,
    array,
    closed,
)

INDEX = {"type": "integer", "minimum": 0}
DENSE_SCHEMA = {"description": "A vector.", **array(NUMBER)}
VECTORS_SCHEMA = {"description": "A vector per token; for text_embedding.", **array(DENSE_SCHEMA)}
SPARSE_SCHEMA = {
    "description": "Weights of tokens of the vocabulary; for text_embedding.",
    **closed(
        ["indices", "values"],
        indices={"description": "Ids of tokens in ascending order.", **array(INDEX)},
        values=array(NUMBER),
    ),
}
INSTANCES: tuple[Schema, ...] = (
    TEXT_SCHEMA,
    {
        "description": "Token ids, with the special ones; for text_embedding.",
        **closed(["token_ids"], token_ids=array(INDEX, minItems=1)),
    },
    {
        "description": "A text in parts, or with spans in characters, for a vector of each (late chunking).",
        "anyOf": [
            closed(["chunks"], chunks=array(FULL_STRING, minItems=1)),
            closed(["text", "spans"], text=STRING, spans=array(array(INDEX, minItems=2, maxItems=2), minItems=1)),
        ],
    },
)
PREDICTIONS: tuple[Schema, ...] = (
    {**DENSE_SCHEMA, "minItems": 1, "description": "A vector; for text_embedding."},
    VECTORS_SCHEMA,
    SPARSE_SCHEMA,
    {
        "description": "The wanted representations; for text_embedding with representations.",
        **closed(
            dense=DENSE_SCHEMA, sparse=SPARSE_SCHEMA, multi_vector=VECTORS_SCHEMA, token_embeddings=VECTORS_SCHEMA
        ),
        "minProperties": 1,
    },
)
INFO: Mapping[str, Schema] = {
    "pooling": {**array(STRING), "description": "For text_embedding; empty without dense vectors."},
    "prompts": {"type": "object", "additionalProperties": STRING, "description": "For text_embedding."},
    "default_prompt_name": {**OPTIONAL_STRING, "description": "For text_embedding."},
}
