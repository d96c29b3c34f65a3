"""Answers that gRPC could not send since their connection ended just then: clients leave, and that is no fault.

gRPC notices by itself, most often, that a client is gone. Where it is still sending, its own task fails first, where
no code of ours can catch it: it logs a traceback, or leaves that to asyncio.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio

GRPCS_LOGGER = logging.getLogger("grpc._cython.cygrpc")
"""What gRPC's own tasks write to."""
_REFUSED = "grpc_call_start_batch"
"""Of what gRPC would not even begin to send, as metadata that no header can hold: that would be a fault of ours."""


def is_unsent(error: object) -> bool:
    """Whether an exception is that of an answer that was on its way as its connection ended."""
    return isinstance(error, grpc.aio.InternalError) and _REFUSED not in str(error)


class Sent(logging.Filter):
    """Lets everything through but tracebacks of unsent answers."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not is_unsent(record.exc_info[1])


def log_failed_tasks(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """The event loop's handler of exceptions: logs what asyncio logs, but for unsent answers."""
    if not is_unsent(about.get("exception")):
        loop.default_exception_handler(about)
