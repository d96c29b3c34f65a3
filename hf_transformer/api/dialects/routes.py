"""Routes of other servers' APIs: a table of paths, and the choice between dialects that share a path.

A dialect turns a body into a ``Query`` with the task's parameters, and the answer into its own form. Where several
dialects share a path, the required fields of a body decide. docs/dialects.md has the tables.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct

from hf_transformer.api.bodies import ModelBody, OpenModelBody, read_body
from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint, Handle, failure_response
from hf_transformer.api.error_forms import render_error, status_of
from hf_transformer.api.errors import RenderError, expect
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.task import ALL_TASKS, GENERATIVE
from hf_transformer.tasks import TASKS
from hf_transformer.types.fields import Form
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json

PREDICTIVE = tuple(dict.fromkeys(task.name for task, _ in TASKS))
ALL = tuple(dict.fromkeys(task.name for task, _ in ALL_TASKS))
"""The names of all tasks; PREDICTIVE without those that generate text."""

Handler = Callable[[Service, Call, Mapping[str, Json]], Awaitable[Response]]
Kind = TypeVar("Kind", bound=ModelBody | OpenModelBody)
TypedHandler: TypeAlias = Callable[[Service, Call, Model, Kind], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectRoute:
    """A POST route of a dialect.

    Attributes:
        path: the path, without parameters.
        dialect: the label in metrics.
        handle: answers a request; the third argument is the body, an object.
        render_error: renders the dialect's error body.
        status: returns the dialect's HTTP status of an error.
        form: the type of the body. Where several routes share a path, a body with all required fields of this type is
            this dialect's.
        tasks: the names of the tasks whose models answer.
        answers: the types of the answer's body, which has one of them; none for an answer of any type.
        prefers: whether a body with the fields of several routes is this one's.
    """

    path: str
    dialect: str
    handle: Handler
    render_error: RenderError
    status: Callable[[RequestError], int] = status_of
    form: Form[Any] | None = None
    tasks: Sequence[str] = ()
    answers: Sequence[Any] = ()
    prefers: Callable[[Mapping[str, Json]], bool] | None = None

    @property
    def fields(self) -> frozenset[str]:
        """The required fields of the body."""
        return frozenset() if self.form is None else self.form.required


Table = Mapping[str, Sequence[DialectRoute]]
"""The routes by path."""


def vllm_route(
    path: str,
    form: Form[Any],
    handle: Handler,
    answer: Any,
    prefers: Callable[[Mapping[str, Json]], bool] | None = None,
) -> DialectRoute:
    """Returns a route of vLLM for models that generate text; DialectRoute has the arguments."""
    return DialectRoute(
        path=path,
        dialect="vllm",
        handle=handle,
        render_error=render_error,
        form=form,
        tasks=GENERATIVE,
        answers=(answer,),
        prefers=prefers,
    )


def typed_route(
    path: str,
    dialect: str,
    form: Form[Kind],
    tasks: Sequence[str],
    handle: TypedHandler[Kind],
    render_error: RenderError,
    *answers: Any,
) -> DialectRoute:
    """Returns a route whose handler gets the model and the typed body."""

    async def read_and_handle(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
        model, body = read_body(service, call, form, tasks)
        return await handle(service, call, model, body)

    return DialectRoute(
        path=path,
        dialect=dialect,
        handle=read_and_handle,
        render_error=render_error,
        form=form,
        tasks=tasks,
        answers=answers,
    )


def by_path(routes: Iterable[DialectRoute]) -> Table:
    """Groups routes by path, in their order."""
    table: dict[str, list[DialectRoute]] = {}
    for route in routes:
        table.setdefault(route.path, []).append(route)
    return table


def endpoints(service: Service, table: Table) -> list[tuple[str, Endpoint]]:
    """Returns one endpoint per path. Errors of a body that can't be read have the form of the first route."""
    result = []
    for path, routes in table.items():
        methods, first = "GET, HEAD, POST" if path == "/" else "POST", routes[0]
        endpoint = Endpoint(first.dialect, _dispatch(service, routes), first.render_error, service, methods)
        result.append((path, endpoint))
    return result


def errors_by_path(table: Table, other: Callable[[str], RenderError]) -> Callable[[str], RenderError]:
    """Returns a function that maps a path to the RenderError of its first route, or to ``other`` outside the table."""
    renderers = {path: routes[0].render_error for path, routes in table.items()}
    return lambda path: renderers.get(path) or other(path)


def choose_route(routes: Sequence[DialectRoute], payload: Mapping[str, Json]) -> DialectRoute:
    """Chooses a dialect by the required fields of a body. A null field counts as absent.

    Raises InvalidInput if several dialects fit, or none.
    """
    if len(routes) == 1:
        return routes[0]
    present = {name for name, value in payload.items() if value is not None}
    fitting = [route for route in routes if route.fields <= present]
    if len(fitting) > 1:  # of routes with a preference, a body is their own or the others'
        fitting = [route for route in fitting if route.prefers is not None and route.prefers(payload)] or [
            route for route in fitting if route.prefers is None
        ]
    if len(fitting) == 1:
        return fitting[0]
    forms = " or ".join(f"{', '.join(sorted(route.fields))} ({route.dialect})" for route in fitting or routes)
    got = "the fields of several" if fitting else "the fields of none"
    raise InvalidInput("body", f"the fields {forms}", got, f"these APIs share the route {routes[0].path}")


class ListUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class ListHead(Struct):
    """The fields of vLLM's lists beside ``data``, see ``listed``."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: ListUsage


async def listed(
    service: Service, call: Call, prefix: str, data: Sequence[Json], tokens: int, new_tokens: int = 0
) -> Response:
    """A response of vLLM's APIs: an object with an id, the time, ``data``, and the numbers of tokens."""
    return await reply_arrays(
        {
            "id": f"{prefix}-{call.context.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": call.context.model_name,
            "data": data,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens + new_tokens, "completion_tokens": new_tokens},
        },
        call.context,
        service.executor,
    )


def _dispatch(service: Service, routes: Sequence[DialectRoute]) -> Handle:
    async def handle(call: Call) -> Response:
        chosen = routes[0]
        try:
            payload = expect(call.json(), dict, "body", "an object")
            chosen = choose_route(routes, payload)
            call.context.api = chosen.dialect
            return await chosen.handle(service, call, payload)
        except Exception as error:
            return failure_response(error, call.context, chosen.render_error, chosen.status)

    return handle
