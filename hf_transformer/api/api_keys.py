"""API keys: who may ask. Nothing of this is installed without --api_keys_file.

A key comes as ``Authorization: Bearer KEY``, ``x-api-key: KEY`` or ``api-key: KEY`` (Azure's clients of OpenAI), over
gRPC as metadata of the same names. It goes no further: neither the predictor nor a log sees it. Whether the service
lives and is ready, and its metrics, are told to everybody, because the kubelet and scrapers have no key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from hf_transformer.api.base import RenderError, Reply, lines_of, request_context, send_reply
from hf_transformer.api.key_file import read_keys
from hf_transformer.credentials import Renewable, keep_renewing
from hf_transformer.observability.metrics import Metrics
from hf_transformer.short_way import Begin, Headers, Response, ShortWay, short_ways_of

HEADERS = (b"authorization", b"x-api-key", b"api-key")
"""Where a key may be; none of them goes any further, with a key or without."""
_BEARER = b"bearer "
REFUSED = (
    "an API key that is known here is required, as 'Authorization: Bearer KEY' or 'x-api-key: KEY' (--api_keys_file)"
)

Found = Iterable[tuple[bytes, bytes]]


class ApiKeys:
    """The keys of --api_keys_file, read again when the file changes.

    Of the file only digests are kept, under a secret of this process, and a key is compared with all of them in a time
    that tells nothing of either.

    Raises:
        ConfigError: the file can't be read, has no key, or a line that can't be one.
    """

    def __init__(self, path: str) -> None:
        self._salt = secrets.token_bytes(32)
        self.file: Renewable[tuple[bytes, ...]] = Renewable("--api_keys_file", [path], lambda: self._read(path))

    def _read(self, path: str) -> tuple[bytes, ...]:
        return tuple(self._digest(key.encode()) for key in read_keys(path))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()

    async def keep_renewing(self) -> None:
        """Looks at the file for ever."""
        await keep_renewing(self.file, lambda digests: None)

    def accept(self, headers: Found) -> bool:
        """Whether any of the headers (names in lower case) has a key that is known."""
        return self.know(self.digests_in(headers))

    def digests_in(self, headers: Found) -> list[bytes]:
        """Digests of whatever may be a key among headers."""
        return [self._digest(_key_in(name, value)) for name, value in headers if name in HEADERS]

    def know(self, digests: Iterable[bytes]) -> bool:
        """Whether any of these is that of a key that is known now."""
        known = False
        for digest in digests:
            for other in self.file.value:
                known |= hmac.compare_digest(digest, other)
        return known


def _key_in(name: bytes, value: bytes) -> bytes:
    if name != b"authorization":
        return value.strip()
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


class KeyedApp:
    """ASGI middleware that lets requests with a key through, without the key, and refuses others with 401.

    Args:
        app: what answers the rest.
        keys: who may ask.
        models: the names of the models, whose readiness everybody may ask.
        errors_by_path: the error body of the API that a path belongs to.
        metrics: count what is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        models: Sequence[str],
        errors_by_path: Callable[[str], RenderError],
        metrics: Metrics,
    ) -> None:
        self.app = app
        self._keys = keys
        self._open = open_paths(models)
        self._errors_by_path = errors_by_path
        self._metrics = metrics
        self.short_ways = {
            target: partial(self._short, way, target.decode("latin-1")) for target, way in short_ways_of(app).items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = scope["headers"]
        scope["headers"] = [pair for pair in headers if pair[0] not in HEADERS]
        if self._keys.accept(headers) or (scope["path"] in self._open and scope["method"] in ("GET", "HEAD")):
            await self.app(scope, receive, send)
            return
        reply, request_id = self._refused(scope["path"], scope["headers"])
        await send_reply(scope, send, 401, reply, request_id)

    def _short(self, way: ShortWay, path: str, headers: Headers) -> Begin:
        """The same in front of a short way. The file may change between two requests of the same headers."""
        rest = [pair for pair in headers if pair[0] not in HEADERS]
        digests, inner = self._keys.digests_in(headers), way(rest)

        def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
            if self._keys.know(digests):
                return inner(body, scheme, response)
            reply, request_id = self._refused(path, rest)
            response.whole(401, lines_of(reply, request_id), reply.body)
            return bool  # there is nothing to end

        return begin

    def _refused(self, path: str, headers: Headers) -> tuple[Reply, str]:
        """The answer to a request without a key, and its id."""
        count_refused(self._metrics)
        body = self._errors_by_path(path)(REFUSED, 401)
        return Reply(body, headers=((b"www-authenticate", b"Bearer"),)), request_context(dict(headers)).request_id


def count_refused(metrics: Metrics) -> None:
    """Counts a request that had no key, over HTTP or gRPC."""
    metrics.count_request("keys", 401)


def open_paths(models: Sequence[str]) -> frozenset[str]:
    """The paths that take no key: does it live, is it ready, and the metrics."""
    ready = (f"/v1/models/{name}" for name in models), (f"/v2/models/{name}/ready" for name in models)
    return frozenset(("/", "/metrics", "/v2/health/live", "/v2/health/ready", *ready[0], *ready[1]))
