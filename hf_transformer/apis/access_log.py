"""A line per request, in the format of --access_log_format."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_transformer.access_format import Atoms, Exchange, check_format
from hf_transformer.json_log import REQUEST_ID
from hf_transformer.whole_response import SEND_PART, WHOLE_RESPONSE


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
        for way in (WHOLE_RESPONSE, SEND_PART):  # they would pass by
            scope.pop(way, None)

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
            write(self.logger, self.format, exchange)


def write(logger: logging.Logger, format: str, exchange: Exchange) -> None:
    """Logs one request that has been answered."""
    request_id = exchange.header("x-request-id", sent=True)
    logger.info("%s", format % Atoms(exchange), extra=None if request_id == "-" else {REQUEST_ID: request_id})
