"""The sockets that the service listens on, and how many of them it may have open."""

from __future__ import annotations

import logging
import resource
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait in the kernel to be accepted."""
OTHER_FILES = 512
"""Descriptors that are no HTTP connections: gRPC's, those to the predictor, and files."""


def listen(config: Config) -> socket.socket:
    """The socket that the service listens on.

    Raises:
        ConfigError: the address or the port can't be had.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listening = socket.create_server((config.host, config.http_port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"--http_port={config.http_port}: can't listen on {config.host}: {error.strerror or error}; expected "
            "a free port and an address of this machine"
        ) from error
    listening.set_inheritable(True)  # by worker processes
    scheme = "https" if config.ssl_certfile else "http"
    logger.info("listening on %s://%s:%d", scheme, config.host, listening.getsockname()[1])
    return listening


def reserve_grpc_port(config: Config) -> tuple[Config, AbstractContextManager[object]]:
    """The configuration with the port that the gRPC servers of all workers share, and the socket that keeps it theirs.

    gRPC binds its own sockets, with SO_REUSEPORT. This one is bound beside them and never listens: the kernel hands
    connections to listening sockets only.

    Raises:
        ConfigError: the port can't be had.
    """
    if not config.enable_grpc:
        return config, nullcontext()
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        # First without SO_REUSEPORT: with it a second service would take half of the first one's connections.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((config.host, config.grpc_port))
            port = alone.getsockname()[1]
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((config.host, port))
        except OSError:
            reserved.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"--grpc_port={config.grpc_port}: can't listen on {config.host}: {error.strerror or error}; expected a "
            "free port and an address of this machine, or --enable_grpc=false"
        ) from error
    logger.info("listening on grpc://%s:%d", config.host, port)
    return replace(config, grpc_port=port), reserved


def allow_descriptors(connections: int) -> None:
    """Lifts the process's own limit of descriptors as far as it may, and says where that is not enough: a connection
    that can't be accepted waits until another one is closed."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning(
            "--max_connections=%d: this process may have only %d descriptors open (ulimit -n)", connections, allowed
        )
