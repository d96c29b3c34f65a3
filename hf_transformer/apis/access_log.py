"""A line per request, in the format of --access_log_format."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_transformer.access_format import Atoms, Exchange, check_format


class AccessLog:
    """ASGI middleware that logs every HTTP request when it has been answered, at level INFO.

    Raises ConfigError where ``format`` has an atom that is not known.
    """

    def __init__(self, app: ASGIApp, format: str, logger: logging.Logger) -> None:
        check_format(format)
        self.app = app
        self.format = format
        self.logger = logger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope)

        async def noting_send(message: Message) -> None:
            exchange.note(message)
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
        except Exception:  # whatever it was: it is logged as a 500 and passed on
            exchange.fail()
            raise
        finally:
            exchange.finish()
            self.logger.info("%s", self.format % Atoms(exchange))
