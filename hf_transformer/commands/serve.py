"""``hf-transformer serve``: runs the service (the default command)."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from hf_transformer import __version__
from hf_transformer.api.auth import CONTROL_KEYS, read_keys
from hf_transformer.app.application import build_app
from hf_transformer.app.batcher import BatcherProcess
from hf_transformer.app.loading import LoadedGenerativeModel, LoadedModel, load_model
from hf_transformer.commands.doctor.advice import StartAdvice
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.options import Config, described_predictor, parse_config
from hf_transformer.credentials import read_key_pair
from hf_transformer.errors import ConfigError
from hf_transformer.observability.board import WorkerBoard
from hf_transformer.observability.logging import configure_logging
from hf_transformer.predictor.region_files import remove_own_and_leftovers
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import Server, ServerConfig
from hf_transformer.server.signals import handle_signals
from hf_transformer.server.workers import Supervisor

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""The listen(2) backlog: connections that the kernel queues for accept."""
MIN_DESCRIPTORS = 64
"""Minimum number of file descriptors for the service."""
OTHER_DESCRIPTORS = 512
"""File descriptors in addition to HTTP connections: gRPC, the predictor, files."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. Another signal after more than a second stops the service immediately.

    Returns the exit code: 0 after a graceful shutdown, 128+n after an immediate shutdown by signal n, 1 after a failed
    start. Raises ConfigError for an invalid flag or variable and for an unusable port or file, LoadError
    for an unusable tokenizer.
    """
    config, notes = parse_config(argv, environ)
    set_up_logging(config)
    for note in notes:
        logger.warning("%s", note)
    # Fail early: the server reads these files again.
    if config.ssl_certfile is not None and config.ssl_keyfile is not None:
        read_key_pair(config.ssl_certfile, config.ssl_keyfile)
    if config.api_keys_file is not None:
        read_keys(config.api_keys_file)
    if config.model_control_keys_file is not None:
        read_keys(config.model_control_keys_file, CONTROL_KEYS)
    entries = ModelEntries(argv, environ)
    loaded: LoadedModel | None = None
    if entries.path is None:
        loaded = load_model(config)
        models = f"{config.model_name!r} ({loaded.task.name})"
        predictor = f", {described_predictor(config)}"
    else:
        names = ", ".join(entry.model_name for entry in entries.read()[0]) or "none yet"
        models, predictor = f"the models of {entries.path} ({names})", ""
    logger.info("hf-transformer %s serves %s on %s:%d%s", __version__, models, config.host, config.http_port, predictor)
    allow_descriptors(config.max_connections)
    with ExitStack() as stack:
        listening = stack.enter_context(listen(config))
        if config.enable_grpc:
            config = replace(config, grpc_port=stack.enter_context(grpc_port_reserved(config)))
        # uvicorn itself reads this variable only with proxy_headers.
        trusted = environ.get("FORWARDED_ALLOW_IPS")
        build = partial(build_app, config, diagnose=StartAdvice(), trusted_proxies=trusted, entries=entries)
        if config.workers > 1:
            # Generative models have no batches in common, and a tokenizer plane has none.
            batches = loaded is None or not (
                config.predictor_protocol == "none" or isinstance(loaded, LoadedGenerativeModel)
            )
            del loaded  # each worker process loads the model itself
            board = WorkerBoard(config.workers, batches=batches)
            batcher = partial(BatcherProcess, board) if batches else None
            settings = server_config(config, partial(build, board=board))
            return Supervisor(settings, [listening], partial(_prepare_worker, config), batcher).run()
        server = Server(server_config(config, partial(build, loaded=loaded)))
        server.run(sockets=[listening])
        return 0 if server.started else 1


def set_up_logging(config: Config) -> None:
    """Configures logging, unless --configure_logging=false leaves it to the embedding program. Raises ConfigError."""
    if config.configure_logging:
        configure_logging(config.log_level, config.log_format, config.log_config_file)


def allow_descriptors(connections: int) -> None:
    """Raises the soft limit of open files for ``connections``, and warns if the hard limit is lower.

    Connections over the limit wait until others close. Raises ConfigError if the limit is below MIN_DESCRIPTORS,
    because gRPC would end the process without a message.
    """
    wanted = connections + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < MIN_DESCRIPTORS:
        raise ConfigError(
            f"expected a limit of at least {MIN_DESCRIPTORS} open files, got {allowed}; raise it with ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning("--max_connections=%d: the limit of open files is only %d (ulimit -n)", connections, allowed)


def listen(config: Config) -> socket.socket:
    """Opens the listening socket for HTTP. Raises ConfigError for an unavailable address or port."""
    try:
        listening = socket.create_server((config.host, config.http_port), family=_family(config), backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"--http_port={config.http_port}: can't listen on {config.host}: {error.strerror or error}; expected "
            "a free port and an address of this machine"
        ) from error
    listening.set_inheritable(True)  # by worker processes
    scheme = "https" if config.ssl_certfile else "http"
    logger.info("listening on %s://%s:%d", scheme, config.host, listening.getsockname()[1])
    return listening


@contextmanager
def grpc_port_reserved(config: Config) -> Iterator[int]:
    """Reserves a port for the gRPC servers of all workers and yields its number.

    gRPC binds its own sockets with SO_REUSEPORT. The reserving socket never listens, so it receives no connections.
    Raises ConfigError for an unavailable port.
    """
    with socket.socket(_family(config)) as reserved:
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # despite connections in TIME_WAIT
            reserved.bind((config.host, config.grpc_port))
        except OSError as error:
            raise ConfigError(
                f"--grpc_port={config.grpc_port}: can't listen on {config.host}: {error.strerror or error}; expected "
                "a free port and an address of this machine, or --enable_grpc=false"
            ) from error
        # After the bind: two services with SO_REUSEPORT would share the port and its connections.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = int(reserved.getsockname()[1])
        logger.info("listening on %s://%s:%d", "grpcs" if config.ssl_certfile else "grpc", config.host, port)
        yield port


def _family(config: Config) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in config.host else socket.AF_INET


def server_config(config: Config, make: Callable[[], AsgiApplication]) -> ServerConfig:
    """Settings of the HTTP server. ``make`` creates the application."""
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
        clean_up=remove_own_and_leftovers,
        host=config.host,
        port=config.http_port,
        workers=config.workers,
        loop=config.event_loop,
        backlog=BACKLOG,
        timeout_keep_alive=config.timeout_keep_alive,
    )


def _prepare_worker(config: Config) -> None:
    """Sets up signals and logging of a new worker process."""
    handle_signals()
    set_up_logging(config)
