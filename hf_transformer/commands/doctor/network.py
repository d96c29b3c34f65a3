"""Whether the predictor's address leads anywhere, and what is spoken there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from hf_transformer.commands.doctor.findings import Finding, failed, ok
from hf_transformer.commands.doctor.hello import Reply, say_hello
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.model_wiring import predictor_settings
from hf_transformer.predictor.base import parse_address
from hf_transformer.predictor.tls import own_certificate

SECONDS = 5.0
"""For a name to be found, and for a connection to open."""

PORTS = "Triton listens on 8000 for REST, on 8001 for gRPC and on 8002 for metrics, unless told otherwise"
PROTOCOL_NAMES = {"v2": "REST", "grpc-v2": "gRPC"}


async def address(subject: Subject) -> Sequence[Finding]:
    """The name in --predictor_host. Raises ConfigError for what is none."""
    subject.address = where = parse_address(predictor_settings(subject.config))
    try:
        async with asyncio.timeout(SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return failed(f"{where.host} was not found within {SECONDS:g} s", "correct --predictor_host, or mend the DNS")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return failed(
            f"{where.host} can't be found: {reason}",
            "correct --predictor_host; in Kubernetes a service of another namespace is NAME.NAMESPACE",
        )
    numbers = ", ".join(dict.fromkeys(str(one[4][0]) for one in found))
    return ok(numbers if numbers == where.host else f"{where.host} is {numbers}")


async def connection(subject: Subject) -> Sequence[Finding]:
    """Whether anything listens there."""
    where = known(subject.address)
    named = str(subject.config.predictor_port or "") or str(where.port) in subject.config.predictor_host
    change = f"correct --predictor_host or --predictor_port ({PORTS})"
    assumed = "" if named else f" (no port is set, so it is {where.port})"
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(where.host, where.port)
    except TimeoutError:
        return failed(
            f"{where}: no connection within {SECONDS:g} s, as behind a firewall or NetworkPolicy{assumed}", change
        )
    except OSError as exc:
        return failed(f"{where}: {(exc.strerror or str(exc)).lower()}{assumed}", change)
    writer.close()
    return ok(f"{where} is reached")


async def protocol(subject: Subject) -> Sequence[Finding]:
    """Whether what listens there speaks the protocol of the flags, and TLS if they say so. Raises ConfigError."""
    where = known(subject.address)
    wanted: str = subject.config.predictor_protocol
    own = own_certificate(predictor_settings(subject.config))
    replies = {(wanted, where.use_ssl): await say_hello(where, wanted, own, tls=where.use_ssl)}
    if replies[wanted, where.use_ssl] in (Reply.UNDERSTOOD, Reply.ASKS_FOR_CERTIFICATE):
        return ok(_described(wanted, where.use_ssl))
    for other, tls in [(other, tls) for tls in (where.use_ssl, not where.use_ssl) for other in PROTOCOL_NAMES]:
        if (other, tls) in replies:
            continue
        replies[other, tls] = await say_hello(where, other, own, tls=tls)
        if replies[other, tls] in (Reply.UNDERSTOOD, Reply.ASKS_FOR_CERTIFICATE):
            found = f"{where} speaks {_described(other, tls)}, the flags say {_described(wanted, where.use_ssl)}"
            return failed(found, _change(subject, wanted, other, tls))
    if where.use_ssl and replies[wanted, True] is Reply.CLOSED:
        return failed(
            f"{where} closes the connection after the handshake of TLS, as one does that asks for our certificate",
            "set --predictor_cert_file and --predictor_key_file, or see the predictor's log for its reason",
        )
    if replies[wanted, where.use_ssl] is Reply.SILENT:
        return failed(
            f"{where} takes connections and does not answer",
            "see whether the predictor hangs (its log), or correct --predictor_host and --predictor_port",
        )
    return failed(f"{where} speaks neither REST nor gRPC", f"correct --predictor_host or --predictor_port ({PORTS})")


def _described(name: str, tls: bool) -> str:
    carrier = {"v2": "HTTP/1.1", "grpc-v2": "HTTP/2"}[name]
    return f"{PROTOCOL_NAMES[name]} ({carrier}) {'over TLS' if tls else 'in plain text'}"


def _change(subject: Subject, wanted: str, other: str, tls: bool) -> str:
    """The flags that say what was found."""
    changes = []
    if other != wanted:
        port = 8000 if wanted == "v2" else 8001
        changes.append(
            f"--predictor_protocol={other}, or the port for {PROTOCOL_NAMES[wanted]} in --predictor_host "
            f"({port} unless Triton was told otherwise)"
        )
    if tls is not known(subject.address).use_ssl:
        scheme = " (or https:// in --predictor_host)" if tls else " (and no https:// in --predictor_host)"
        changes.append(f"--predictor_use_ssl={str(tls).lower()}{scheme}")
    return ", and ".join(changes)
