"""A line per request, in the format of --access_log_format."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_transformer.observability.access_format import Atoms, Exchange, check_format
from hf_transformer.observability.json_log import REQUEST_ID
from hf_transformer.whole_response import WHOLE_RESPONSE, SendWhole


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
        send_whole = scope.get(WHOLE_RESPONSE)
        if send_whole is not None:  # what is sent past the messages is noted too
            scope[WHOLE_RESPONSE] = partial(_send_whole, exchange, send_whole)

        async def noting_send(message: Message) -> None:
            exchange.note(message)
            await send(message)

        try:
            await self.app(scope, receive, noting_send)
        except Exception:  # whatever it was: it is logged as a 500 and passed on
            exchange.fail()
            raise
        finally:
            # It refers to the exchange, and that to the scope: only the garbage collector would free them.
            scope.pop(WHOLE_RESPONSE, None)
            exchange.finish()
            write(self.logger, self.format, exchange)


def _send_whole(
    exchange: Exchange, send_whole: SendWhole, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bool:
    if not send_whole(status, headers, body):
        return False
    exchange.note_whole(status, headers, body)
    return True


def write(logger: logging.Logger, format: str, exchange: Exchange) -> None:
    """Logs one request that has been answered."""
    request_id = exchange.header("x-request-id", sent=True)
    logger.info("%s", format % Atoms(exchange), extra=None if request_id == "-" else {REQUEST_ID: request_id})
