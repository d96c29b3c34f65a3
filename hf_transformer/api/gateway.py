"""HTTP gateway for all requests, with request ids, Host checks, CORS, API keys, routing and access log."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hf_transformer.api.auth import API, CONTROL_PATH, HEADERS, ApiKeys, open_paths
from hf_transformer.api.call import new_request_id, path_pattern
from hf_transformer.api.errors import RenderError, error_response
from hf_transformer.errors import RequestError
from hf_transformer.observability.access_log import AccessRecord, check_format, write_line
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.http import HeaderLines, Request, Response, Stream

Handler = Callable[[Request], Awaitable[Response | Stream]]
"""Answers a request. Exceptions other than ClientGone are faults of the service."""

_USABLE_ID = re.compile(rb"[!-~\xa1-\xff]{1,256}")
"""Valid request ids of clients. Control characters are unsafe in logs and headers. A space separates the fields of a
log line."""

EXPOSED: Final = b"x-request-id, server-timing, retry-after, inference-header-content-length, x-ignored-parameters"
"""Response headers that pages of other origins may read."""


class Router:
    """Finds the endpoint of a path in a dict, else by template, such as ``/v1/models/{model}:predict``.

    The dict contains the paths of ``models``. The first matching template wins.
    """

    def __init__(self, endpoints: Iterable[tuple[str, Handler]], models: Sequence[str]) -> None:
        self._known: dict[str, tuple[Handler, str, Mapping[str, str]]] = {}
        self._templates: list[tuple[re.Pattern[str], str, Handler]] = []
        self._endpoints: list[tuple[str, Handler, list[str]]] = []
        for template, handler in endpoints:
            pattern = path_pattern(template)
            self._templates.append((pattern, template, handler))
            self._endpoints.append((template, handler, list(pattern.groupindex)))
        self.use_models(models)

    def use_models(self, models: Sequence[str]) -> None:
        """Changes the models whose paths the dict contains."""
        self._known = {}
        for template, handler, parameters in self._endpoints:
            if not parameters:
                self._known.setdefault(template, (handler, template, {}))
            elif parameters == ["model"]:
                for model in models:
                    path = template.replace("{model}", model)
                    self._known.setdefault(path, (handler, template, {"model": model}))

    @property
    def templates(self) -> list[str]:
        return [template for _, template, _ in self._templates]

    def find(self, request: Request) -> Handler | None:
        """Finds an endpoint, and sets the request's ``route`` and ``params``. Returns None for an unknown path."""
        known = self._known.get(request.path)
        if known is not None:
            handler, request.route, request.params = known
            return handler
        for pattern, template, handler in self._templates:
            if match := pattern.match(request.path):
                request.route, request.params = template, match.groupdict()
                return handler
        return None


NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
"""Keeps browsers from guessing another type than Content-Type: answers and errors quote texts of clients."""
HOSTS: Final = "hosts"
"""The API label in metrics for requests with a forbidden Host header."""
_PORT: Final = re.compile(rb":[0-9]*\Z")


class AllowedHosts:
    """The allowed names in Host headers (--allowed_hosts), in the format of Starlette's TrustedHostMiddleware.

    The check prevents DNS rebinding, where an attacker's host name resolves to the service's address. Requests from the
    attacker's page have this name in Host, and the page can't change Host.

    Args:
        names: host names or IP addresses, without ports. ``*.example.com`` matches all subdomains.
    """

    def __init__(self, names: Sequence[str]) -> None:
        bare = [name.strip("[]").lower().encode() for name in names]
        self._names = frozenset(b"[%b]" % name if b":" in name else name for name in bare)
        self._endings = tuple(name[1:] for name in bare if name.startswith(b"*."))

    def accept(self, host: bytes) -> bool:
        """Whether a Host header has an allowed name. The check ignores a port and a trailing dot."""
        name = _PORT.sub(b"", host.strip().lower()).removesuffix(b".")
        return name in self._names or name.endswith(self._endings)


class Cors:
    """CORS responses for pages of the allowed origins (--cors_allow_origin).

    Source: https://fetch.spec.whatwg.org/#http-cors-protocol
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def lines(self, request: Request) -> HeaderLines:
        """The CORS headers of a response. The list is empty if the request has no Origin header."""
        origin = request.headers.get(b"origin")
        if origin is None:
            return []
        vary = [] if self._any else [(b"vary", b"origin")]
        if not self._any and origin not in self._origins:
            return vary
        allowed = b"*" if self._any else origin
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED), *vary]

    def preflight(self, request: Request) -> Response | None:
        """The response to a CORS preflight request, or None for other requests."""
        headers = request.headers
        if request.method != "OPTIONS" or b"access-control-request-method" not in headers or b"origin" not in headers:
            return None
        lines = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", b"600"),  # cache lifetime in seconds
        ]
        if wanted := headers.get(b"access-control-request-headers"):
            lines.append((b"access-control-allow-headers", wanted))
        return Response(204, b"", lines)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Optional gateway features. None or an empty value disables a feature.

    Attributes:
        keys: the API keys (--api_keys_file).
        control_keys: the keys that load and unload models, in place of ``keys`` (--model_control_keys_file).
        hosts: the allowed Host headers (--allowed_hosts).
        origins: the allowed CORS origins (--cors_allow_origin).
        access_log: the line format of the access log.
        open_paths: additional paths that need no key, for health checks and web pages.
        trusted_proxies: proxies with a trusted X-Forwarded-For header, for the access log, in uvicorn's format.
    """

    keys: ApiKeys | None = None
    control_keys: ApiKeys | None = None
    hosts: AllowedHosts | None = None
    origins: Sequence[str] = ()
    access_log: str | None = None
    open_paths: Sequence[str] = ()
    trusted_proxies: str = "127.0.0.1,::1"


class Gateway:
    """The HTTP application of the service (types.Application).

    ``fallback`` answers paths without an endpoint. ``errors_by_path`` returns the RenderError for a path. Raises
    ConfigError for an unknown atom in the access log format.
    """

    def __init__(
        self,
        router: Router,
        fallback: Handler,
        models: Sequence[str],
        errors_by_path: Callable[[str], RenderError],
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self.router = router
        self._fallback = fallback
        self._open_paths = settings.open_paths
        self.use_models(models)
        self._errors_by_path = errors_by_path
        self._metrics = metrics
        self._keys, self._control_keys = settings.keys, settings.control_keys
        self._hosts = settings.hosts
        self._cors = Cors(settings.origins) if settings.origins else None
        self._is_guarded = any(part is not None for part in (self._hosts, self._keys, self._control_keys, self._cors))
        self._proxies = ProxyHeadersMiddleware(_nothing, settings.trusted_proxies)
        self._log_format, self._logger = settings.access_log or None, logging.getLogger(ACCESS_LOGGER)
        if self._log_format is not None:
            check_format(self._log_format)

    def use_models(self, models: Sequence[str]) -> None:
        """Changes the models whose readiness needs no key, and whose paths the router finds fastest."""
        self.router.use_models(models)
        self._probed = open_paths(models)
        self._open = self._probed.union(self._open_paths)

    async def handle(self, request: Request) -> Response | Stream:
        """Answers a request. Raises ClientGone and the exceptions of handlers."""
        client_id = request.headers.get(b"x-request-id")
        request.id = new_request_id() if client_id is None else _usable_id(client_id)
        if self._log_format is not None:
            scope = request.scope()
            peer = scope["client"]
            await self._proxies(scope, _nothing, _nothing)  # type: ignore[arg-type]  # a partial scope
            if scope["client"] is not peer and not _is_address(scope["client"][0]):
                scope["client"] = peer  # the header is a client's: it may have any text
            request.log = AccessRecord(scope)
        answer: Response | Stream | None = self._before(request) if self._is_guarded else None
        if answer is None:
            answer = await (self.router.find(request) or self._fallback)(request)
        self._complete(request, answer)
        return answer

    def refuse(self, request: Request, status: int, message: str) -> Response:
        """The error response of the HTTP server itself. After a parser error, the request may have no headers."""
        retry = [(b"retry-after", b"1")] if status == 503 else []
        # Without a method, "/" may be the path of any request: of a probe, a browser, or a broken client.
        path = "" if (request.method, request.path) == ("-", "/") else request.path
        answer = error_response(self._errors_by_path(path), RequestError(message), status, *retry)
        request.id = request.id or _usable_id(request.headers.get(b"x-request-id", b""))
        if self._log_format is not None and request.log is None:
            request.log = AccessRecord(request.scope())
        self._complete(request, answer)
        return answer

    def finished(self, request: Request, answer: Response | Stream | None, sent: int) -> None:
        """Logs a request. ``answer`` is None after a disconnect, and ``sent`` is the number of body bytes."""
        record: AccessRecord = request.log
        if self._log_format is None:
            return
        if answer is not None:
            record.status, record.sent_headers, record.body_bytes = answer.status, answer.headers, sent
            if isinstance(answer, Response):
                record.sent_headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        write_line(self._logger, self._log_format, record)

    def _before(self, request: Request) -> Response | None:
        """Removes API keys. Returns the response to a preflight, a forbidden Host or an invalid key, else None."""
        is_read = request.method in ("GET", "HEAD")
        # Kubernetes probes send the pod's address as Host.
        if self._hosts is not None and not (is_read and request.path in self._probed):
            host = request.headers.get(b"host", b"")
            if not self._hosts.accept(host):
                self._metrics.count_request(HOSTS, 400)
                error = RequestError(f"Host: expected one of --allowed_hosts, got {host.decode('latin-1')[:80]!r}")
                return error_response(self._errors_by_path(request.path), error, 400)
        if self._cors is not None and (answer := self._cors.preflight(request)) is not None:
            return answer
        is_control = self._control_keys is not None and request.path.startswith(CONTROL_PATH)
        keys = self._control_keys if is_control else self._keys
        if keys is None:
            return None
        fields = request.fields
        request.fields = [line for line in fields if line[0] not in HEADERS]
        request.headers = dict(request.fields)
        if keys.accept(fields) or (is_read and request.path in self._open):
            return None
        self._metrics.count_request(API, 401)
        render = self._errors_by_path(request.path)
        return error_response(render, RequestError(keys.refused), 401, (b"www-authenticate", b"Bearer"))

    def _complete(self, request: Request, answer: Response | Stream) -> None:
        """Adds the request id, nosniff and CORS headers to a response."""
        answer.headers += ((b"x-request-id", request.id.encode("latin-1")), NOSNIFF)
        if self._cors is not None:
            answer.headers += self._cors.lines(request)


def _usable_id(client_id: bytes) -> str:
    """The client's request id if valid, else a new id."""
    return client_id.decode("latin-1") if _USABLE_ID.fullmatch(client_id) else new_request_id()


def _is_address(host: str) -> bool:
    """Whether a host of X-Forwarded-For is an IP address, without a zone, which may be any text."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


async def _nothing(*args: Any) -> None:
    """A no-op ASGI application for uvicorn's middleware, which only edits the scope."""
