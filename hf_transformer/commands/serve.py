"""hf-transformer serve: the service itself, and the default command."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from hf_transformer import __version__
from hf_transformer.app import build_app
from hf_transformer.config import Config, parse_config
from hf_transformer.errors import ConfigError
from hf_transformer.logs import configure_logging
from hf_transformer.model_parts import load_parts
from hf_transformer.workers import Roster

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait in the kernel to be accepted."""
GRACE = 25
"""Seconds that requests in flight have to finish after SIGTERM; Kubernetes kills after 30."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serves until SIGTERM or SIGINT.

    Raises:
        ConfigError: a flag or variable has a bad value.
        LoadError: the tokenizer can't be loaded.
    """
    # uvicorn finishes gracefully on a signal and then raises it again; the start itself can just end. As process 1 of a
    # container a signal without a handler would be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_cleanly)
    config, notes = parse_config(argv, environ)
    configure_logging(config)
    for note in notes:
        logger.warning("%s", note)
    check_certificate(config)
    parts = load_parts(config)
    logger.info(
        "hf-transformer %s serves %r (%s) on %s:%d, predictor %s over %s",
        __version__,
        config.model_name,
        parts.task.name,
        config.host,
        config.http_port,
        config.predictor_host,
        config.predictor_protocol,
    )
    with ExitStack() as stack:
        listening = stack.enter_context(listen(config))
        config, reserved = reserve_grpc_port(config)
        stack.enter_context(reserved)
        if config.workers > 1:
            del parts  # each worker loads its own
            _serve_with_workers(config, listening)
            return 0
        server = uvicorn.Server(_server_config(config, partial(build_app, config, parts)))
        # What is loaded by now lives as long as the process: the collector need not look at it again.
        gc.freeze()
        server.run(sockets=[listening])
        return 0 if server.started else 1


def check_certificate(config: Config) -> None:
    """Raises ConfigError for a certificate or key that can't be used, before anything is started with them."""
    if config.ssl_certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.ssl_certfile,
            config.ssl_keyfile,
            password="",  # or an encrypted key would ask the terminal for one
        )
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"--ssl_certfile={config.ssl_certfile}, --ssl_keyfile={config.ssl_keyfile}: can't be used: "
            f"{error.strerror or error}; expected a certificate and its key as PEM files"
        ) from error


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


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _server_config(config: Config, factory: partial[ASGIApp]) -> uvicorn.Config:
    return uvicorn.Config(
        factory,
        factory=True,
        host=config.host,
        port=config.http_port,
        workers=config.workers,
        loop=config.event_loop,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        # Only the access log says where a request came from.
        proxy_headers=bool(config.access_log_format),
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=config.timeout_keep_alive,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )


def _serve_with_workers(config: Config, listening: socket.socket) -> None:
    """Processes that share one listening socket; uvicorn starts them and replaces one that dies.

    Each is a fresh interpreter that builds its own application from the frozen configuration.
    """
    server_config = _server_config(config, partial(_worker_app, config, Roster(config.workers)))
    Multiprocess(server_config, sockets=[listening]).run()


def _worker_app(config: Config, roster: Roster) -> ASGIApp:
    configure_logging(config)
    return build_app(config, roster=roster)
