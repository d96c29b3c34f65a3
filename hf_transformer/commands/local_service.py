"""The service as a child process, for the demo, bench and the benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hf_transformer.commands.child_process import START_SECONDS, ChildProcess
from hf_transformer.commands.loopback import HOST, is_ready


@contextmanager
def service_running(
    flags: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    *,
    http_port: int,
    grpc_port: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[ChildProcess]:
    """Runs ``hf-transformer serve`` on these ports of HOST. Yields the child when the service is ready.

    Raises LoadError if the service exits, rejects its model or is not ready in time, InterruptedError when
    ``interrupted`` returns True.
    """
    address = [f"--host={HOST}", f"--http_port={http_port}", f"--grpc_port={grpc_port}"]
    command = [sys.executable, "-m", "hf_transformer", "serve", *flags, *address]
    child = ChildProcess(command, {"LOG_LEVEL": "WARNING", **environ}, log)

    def ready() -> bool:
        if "does not fit the service" in child.output():  # a mismatch is permanent
            raise child.failure("the service is not ready")
        return is_ready(http_port, "/v2/health/ready")

    try:
        child.wait_until(ready, "the service", START_SECONDS, interrupted)
        yield child
    finally:
        child.terminate()
