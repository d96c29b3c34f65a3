"""What the HTTP server is told, in a form that goes to worker processes too."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from hf_transformer.credentials import KeyPair, Renewable, read_server_pair
from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.server.short_requests import DefaultHeaders


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take: ``connections`` open at a time, ``header_bytes`` of a request's head and ``body_bytes``
    of its body; it is the application that refuses more of these.

    ``seconds`` are for sending a request once it has begun, and for taking some of an answer; ``idle_seconds`` for
    beginning the next one.
    """

    connections: int
    header_bytes: int
    body_bytes: int
    seconds: float
    idle_seconds: float


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration and our own.

    Args:
        app: makes the application.
        limits: what a client may take.
        grace: seconds that requests in flight have to finish when the server ends.
        certificate: the PEM files of the certificate and its key, None without TLS.
        clean_up: removes what a process leaves behind that ends without a word, this one or a worker that did.
        options: uvicorn's own.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        limits: ClientLimits,
        grace: float,
        certificate: tuple[str, str] | None,
        clean_up: Callable[[], object],
        **options: Any,
    ) -> None:
        self.client_limits = limits
        self.grace = grace
        self.certificate_files = certificate
        self.clean_up = clean_up
        self.certificate: Renewable[KeyPair] | None = None
        self.ending = False
        """Set by the server; connections look at it."""
        self.default_headers = DefaultHeaders()
        self.known_heads = KnownHeads()
        super().__init__(
            app,
            factory=True,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            # The server itself breaks off what is left after the grace; this is for what does not even notice that.
            timeout_graceful_shutdown=int(grace) + 3,
            **options,
        )

    def load(self) -> None:
        """Makes the application, and the context with the certificate as it is now.

        Raises:
            ConfigError: the certificate can't be used.
        """
        super().load()
        if self.certificate_files is None:
            return
        chain, key = self.certificate_files
        self.certificate = Renewable("the certificate for HTTPS", (chain, key), lambda: read_server_pair(chain, key))
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.value.load_into(self.ssl)
