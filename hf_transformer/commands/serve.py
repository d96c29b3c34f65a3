"""hf-transformer serve: the service itself, and the default command."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from hf_transformer import __version__
from hf_transformer.api.auth import read_keys
from hf_transformer.app import build_app, clean_up
from hf_transformer.commands.doctor.at_start import StartDiagnosis
from hf_transformer.commands.listening import BACKLOG, allow_descriptors, listen, reserve_grpc_port
from hf_transformer.config.options import Config, parse_config
from hf_transformer.credentials import read_server_pair
from hf_transformer.model_parts import load_parts
from hf_transformer.observability.board import Board
from hf_transformer.observability.logging import configure_logging
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import Server, ServerConfig
from hf_transformer.server.signals import handle_signals
from hf_transformer.server.workers import Supervisor

logger = logging.getLogger(__name__)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP; a second one that comes more than a second later ends it at once.

    Gives the exit code: 0 after a graceful end, 128 and the signal's number after one at once, 1 where the server or
    its workers could not start.

    Raises:
        ConfigError: a flag or variable has a bad value.
        LoadError: the tokenizer can't be loaded.
    """
    config, notes = parse_config(argv, environ)
    set_up_logging(config)
    for note in notes:
        logger.warning("%s", note)
    check_files(config)
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
    allow_descriptors(config.max_connections)
    with ExitStack() as stack:
        listening = stack.enter_context(listen(config))
        config, reserved = reserve_grpc_port(config)
        stack.enter_context(reserved)
        # uvicorn's own variable, which it reads itself where it is asked to trust proxies.
        trusted = environ.get("FORWARDED_ALLOW_IPS")
        build = partial(build_app, config, diagnose=StartDiagnosis().look_soon, trusted_proxies=trusted)
        if config.workers > 1:
            del parts  # each worker loads its own
            return _serve_with_workers(config, listening, build)
        server = Server(server_config(config, partial(build, parts=parts)))
        server.run(sockets=[listening])
        return 0 if server.started else 1


def set_up_logging(config: Config) -> None:
    """Sets up logging, unless --configure_logging=false leaves that to somebody else. Raises ConfigError."""
    if config.configure_logging:
        configure_logging(config.log_level, config.log_format, config.log_config_file)


def check_files(config: Config) -> None:
    """Raises ConfigError for a certificate or keys that can't be used, before anything is started with them."""
    if config.ssl_certfile is not None and config.ssl_keyfile is not None:
        read_server_pair(config.ssl_certfile, config.ssl_keyfile)
    if config.api_keys_file is not None:
        read_keys(config.api_keys_file)


def server_config(config: Config, make: Callable[[], AsgiApplication]) -> ServerConfig:
    """What the HTTP server is told."""
    files = (config.ssl_certfile, config.ssl_keyfile)
    return ServerConfig(
        make,
        limits=ClientLimits(
            connections=config.max_connections,
            header_bytes=config.max_header_bytes,
            seconds=config.client_timeout_seconds,
            idle_seconds=config.timeout_keep_alive,
        ),
        grace=config.grace_period_seconds,
        certificate=None if files[0] is None or files[1] is None else (files[0], files[1]),
        clean_up=clean_up,
        host=config.host,
        port=config.http_port,
        workers=config.workers,
        loop=config.event_loop,
        backlog=BACKLOG,
        timeout_keep_alive=config.timeout_keep_alive,
    )


def _serve_with_workers(config: Config, listening: socket.socket, build: Callable[..., AsgiApplication]) -> int:
    """Processes that share one listening socket.

    Each is a fresh interpreter that builds its own application from the frozen configuration.
    """
    build = partial(build, board=Board(config.workers))
    return Supervisor(server_config(config, build), [listening], partial(_prepare_worker, config)).run()


def _prepare_worker(config: Config) -> None:
    handle_signals()
    set_up_logging(config)
