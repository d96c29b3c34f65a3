"""Asks a service for its health all the time, as a kubelet does."""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from hf_transformer.commands.local_triton import HOST
from tests.faults.rig import MODEL

PERIOD = 0.5
"""Seconds."""


@dataclass
class Probes:
    """Statuses by path for as long as the context lasts; 0 where there was no answer."""

    port: int
    seen: dict[str, list[int]] = field(default_factory=lambda: {"/": [], f"/v1/models/{MODEL}": []})

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes")

    @property
    def live(self) -> list[int]:
        """What / was answered with."""
        return self.seen["/"]

    @property
    def ready(self) -> list[int]:
        """What the model's path was answered with."""
        return self.seen[f"/v1/models/{MODEL}"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            for path, statuses in self.seen.items():
                statuses.append(_status(self.port, path))


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=10.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
