"""The differences between the frozen documents and the generated one, each a decision.

A pattern matches whole statements of facts.py, with ``+`` for new ones and ``-`` for those that are gone. The name of
the model is {model} in all.
"""

from __future__ import annotations

DECISIONS: dict[str, str] = {
    r". POST /v2/models/\{model\}(/versions/\{version\})?/infer, body: example .*": "V2's examples are those of V1, as "
    "tensors, so that a task has one list of examples",
    r"\+ .*\.max_question_len: default 64": "the default was missing",
    r"\+ .*\.return_documents: default false": "the default was missing",
    r"- POST .*predict, 200.*predictions\[\]\[\]\.(entity|index): .*": "token classification's groups have neither, "
    "which the document says by closing them",
    r"\+ GET /info, 200\.models\[\]\.purpose: .*": "/info has the task in a few words",
    r"\+ GET /v1/models/\{model\}/info, 200\.generation\.full_text: .*": "the description of a model says whether a "
    "prompt and its continuation are one text",
    r"- GET /v2/models/.*/config, 200\.output\[\]\.optional: .*": "a closed object needs no field that it refuses",
    r"\+ GET /v1/models/\{model\}, 503\.error: required|[+-] GET /v1/models/\{model\}, 503\.error: .*": "a declared "
    "model that is not loaded has an error in the service's form",
    r"\+ POST /v2/repository/.*, 200: header X-Request-Id": "these answers have the header, too",
    r"\+ POST /v2/repository/.*, body\.(ready|parameters): value null": "null counts as absent in declared bodies",
    r"\+ POST /v2/repository/.*, body\.(ready|parameters\.unload_dependents): default false": "the default was missing",
    r"- POST /(, .*|: teiRoot, .*)": "without a predictor the document leaves out each route that runs a model; POST / "
    "was an exception, since it shares its path with GET",
}
