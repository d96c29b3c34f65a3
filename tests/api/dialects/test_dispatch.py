"""Dialects that share a path are told apart by the required fields of a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from msgspec import defstruct

from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import DialectRoute, by_path, choose_route, endpoints, errors_by_path
from hf_transformer.api.errors import error_json
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service
from hf_transformer.api.table import ROUTES
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.types.fields import Form, OpenBody, json_schemas
from hf_transformer.types.http import Response
from tests.api.generating import ServedModel
from tests.api.plain_request import PlainRequest


def route(dialect: str, *fields: str, path: str = "/shared", fails: bool = False) -> DialectRoute:
    async def handle(service: Service, call: Call, payload: Mapping[str, Any]) -> Response:
        if fails:
            raise InvalidInput("field", "another value")
        return reply(orjson.dumps({dialect: payload}))

    return DialectRoute(
        path=path,
        dialect=dialect,
        handle=handle,
        render_error=lambda error, status: orjson.dumps({dialect: str(error), "status": status}),
        status=lambda error: error.status + 22,
        form=Form(defstruct(dialect, [(name, Any) for name in fields], bases=(OpenBody,), kw_only=True)),
    )


SHARED = (route("one", "query", "texts"), route("two", "query", "documents", fails=True), route("three", "prompt"))


async def ask(service: Service, body: bytes, *routes: DialectRoute) -> tuple[int, Any]:
    [(_, endpoint)] = endpoints(service, by_path(routes))
    answer = await endpoint(PlainRequest(body))
    assert isinstance(answer, Response)
    return answer.status, orjson.loads(answer.body)


async def test_the_required_fields_choose_the_dialect_its_error_form_and_its_label(made: ServedModel) -> None:
    body = {"query": "q", "texts": [], "more": 1}
    assert await ask(made.service, orjson.dumps(body), *SHARED) == (200, {"one": body})
    assert await ask(made.service, b'{"query": "q", "documents": []}', *SHARED) == (
        422,
        {"two": "field: expected another value", "status": 422},
    )
    requests = next(family for family in made.metrics.shown() if family.name == "hf_transformer_requests")
    assert {("", "one", "200"), ("", "two", "422")} <= requests.series.keys()


@pytest.mark.parametrize(
    ("body", "forms", "got"),
    [
        ('{"query": "q"}', "query, texts (one) or documents, query (two) or prompt (three)", "the fields of none"),
        ('{"prompt": null}', "query, texts (one) or documents, query (two) or prompt (three)", "the fields of none"),
        ('{"query": "q", "texts": [], "prompt": ""}', "query, texts (one) or prompt (three)", "the fields of several"),
    ],
)
async def test_a_body_that_could_be_two_or_none_is_an_error_that_names_them(
    made: ServedModel, body: str, forms: str, got: str
) -> None:
    status, answer = await ask(made.service, body.encode(), *SHARED)
    assert status == 422
    assert answer["one"] == f"body: expected the fields {forms}, got {got}; these APIs share the route /shared"


async def test_a_body_that_is_no_object_has_the_error_form_of_the_first(made: ServedModel) -> None:
    for body in (b"[1]", b"{"):
        status, answer = await ask(made.service, body, *SHARED)
        assert status == 422 and answer["one"].startswith("body: expected ")


async def test_a_path_of_one_dialect_leaves_all_errors_to_it(made: ServedModel) -> None:
    assert await ask(made.service, b'{"other": 1}', SHARED[0]) == (200, {"one": {"other": 1}})
    assert choose_route(SHARED[1:2], {}) is SHARED[1]


def test_errors_outside_the_endpoints_have_the_form_of_the_first_dialect() -> None:
    renderer = errors_by_path(by_path(SHARED), lambda path: error_json)
    assert renderer("/shared")(RequestError("no"), 401) == b'{"one":"no","status":401}'
    assert renderer("/other") is error_json


def test_routes_that_share_a_path_have_different_required_fields() -> None:
    shared = {
        path: [route.fields for route in routes if route.prefers is None]
        for path, routes in ROUTES.items()
        if len(routes) > 1
    }
    assert shared
    for path, fields in shared.items():
        assert all(fields) and len(set(fields)) == len(fields), path
        assert not any(one < other for one in fields for other in fields), f"{path}: one is part of another"


def test_each_route_declares_its_body_tasks_and_answer() -> None:
    declared = [route for routes in ROUTES.values() for route in routes if route.form is not None]
    without_model = [route.path for route in declared if not route.tasks]
    assert len(declared) > 30 and without_model == ["/anonymize"]
    kinds = {route.form.kind for route in declared if route.form is not None}
    rendered = {route.form.kind for route in declared if route.form and route.path.endswith("/render")}
    answers = [answer for route in declared for answer in route.answers]
    schemas, components = json_schemas([*kinds, *answers])
    assert len(schemas) == len(kinds) + len(answers)
    for kind in kinds - rendered:
        for name, field in components[kind.__name__]["properties"].items():
            assert field.get("description", "").endswith("."), f"{kind.__name__}.{name} has no sentence of help"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"inputs": "x" * 10_001}, "inputs[0]"),
        ("/decode", {"ids": [[1] * 10_001]}, "ids[0]"),
        ("/tokenize", {"prompt": "x" * 10_001}, "prompt"),
        ("/detokenize", {"tokens": [1] * 10_001}, "tokens"),
    ],
)
async def test_a_long_text_is_refused_by_its_field(
    made: ServedModel, path: str, body: Mapping[str, Any], field: str
) -> None:
    status, answer = await ask(made.service, orjson.dumps(body), *ROUTES[path])
    message = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
    assert status == (413 if isinstance(answer["error"], str) else 400) and message.startswith(
        f"{field}: expected at most"
    )
