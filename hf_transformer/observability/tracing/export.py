"""Sends spans to a collector, in a thread of its own: one that is down or slow costs spans, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from hf_transformer.errors import ConfigError, without_userinfo
from hf_transformer.observability.tracing.spans import Finished

logger = logging.getLogger(__name__)

MOST_WAITING = 4096
"""Requests whose spans wait to be sent; those of more are dropped. 2 KiB each."""
TOGETHER = 200
"""Requests whose spans leave together at most."""
PERIOD = 0.5
"""Seconds that spans wait for others."""
TIMEOUT = 5.0
"""Seconds for one call to the collector, with all its retries."""
FLUSH = 3.0
"""Seconds that what waits has at the end; well within the time that requests have to finish."""
LAST = 0.5
"""Seconds more in which the thread may come to its end."""
SILENCE = 60.0
"""Seconds between two lines that say that spans are lost."""


class Seldom(logging.Filter):
    """Lets one record in SILENCE seconds through: a collector that is down is no news.

    ``trouble`` is set by each; the exporter has nothing to say while all is well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trouble = False
        self._last = -SILENCE

    def filter(self, record: logging.LogRecord) -> bool:
        self.trouble = True
        now = time.monotonic()
        if now - self._last < SILENCE:
            return False
        self._last = now
        return True


class Exporter:
    """Takes finished requests on the event loop and sends their spans; an async context manager.

    The variables of OpenTelemetry's SDK for the exporter and the resource hold too (OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_RESOURCE_ATTRIBUTES, ...), save for the endpoint.

    Args:
        endpoint: the collector's URL.

    Raises:
        ConfigError: OpenTelemetry is not installed, or a variable of its has a value that it does not take.
    """

    def __init__(self, endpoint: str) -> None:
        shown = without_userinfo(endpoint)
        try:
            from hf_transformer.observability.tracing import otlp
        except ImportError as error:
            raise ConfigError(
                f"--otlp_endpoint={shown}: OpenTelemetry is not installed ({error}): pip install 'hf-transformer[otel]'"
            ) from error
        try:
            self._sender = otlp.Sender(endpoint, TIMEOUT)
        except Exception as error:  # whatever the exporter makes of a variable of its own
            reason = without_userinfo(str(error))
            raise ConfigError(f"--otlp_endpoint={shown}: the exporter can't be made: {reason}") from error
        self._senders_logger = otlp.logger
        self._waiting: deque[Finished] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._ending = False
        self._seldom = Seldom()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def put(self, finished: Finished) -> None:
        """Takes a request that is over; it is dropped where too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(finished)
        if len(self._waiting) >= TOGETHER:
            self._wake.set()

    async def __aenter__(self) -> Self:
        self._senders_logger.addFilter(self._seldom)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends what waits, if the collector takes it; breaks off then."""
        self._ending = True
        self._wake.set()
        if not self._seldom.trouble:
            await asyncio.to_thread(self._thread.join, FLUSH)
        self._sender.shutdown()  # ends a pause between two tries; a call that hangs is left behind
        await asyncio.to_thread(self._thread.join, LAST)
        self._senders_logger.removeFilter(self._seldom)

    def _run(self) -> None:
        while not self._ending:
            self._wake.wait(PERIOD)
            self._wake.clear()
            self._send_waiting()
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting:
            requests = [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]
            try:
                sent = self._sender.send(requests)
            except Exception:
                # A fault of ours, or of a library: the thread lives on, for other requests.
                logger.exception("the spans of %d requests are lost", len(requests))
                continue
            if sent:
                self._seldom.trouble = False
                self._tell_dropped()
            if self._ending and self._seldom.trouble:
                return

    def _tell_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            logger.warning("the spans of %d requests are lost: the collector did not take them in time", dropped)
