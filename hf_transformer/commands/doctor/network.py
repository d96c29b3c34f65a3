"""Whether the predictor's address exists, and whether protocol and TLS there are those of the flags."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hf_transformer.app.wiring import predictor_settings
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, skipped, warning
from hf_transformer.credentials import KeyPair
from hf_transformer.predictor.base import Address, parse_address
from hf_transformer.predictor.tls import client_certificate, ssl_context

SECONDS = 5.0  # for a name to be found, and for a connection to open
PROBE_SECONDS = 3.0  # for a probe's connection, its handshake, and each part of the answer
SOON_DAYS = 14  # how long before its end a certificate is worth a warning

PORTS = "Triton listens on 8000 for REST, on 8001 for gRPC and on 8002 for metrics, unless told otherwise"

# From OpenSSL's x509_vfy.h; the ssl module has them as numbers only.
_CHANGES = {
    9: "compare the clocks of the two machines, or issue the predictor's certificate anew",  # not yet valid
    10: "renew the predictor's certificate",  # expired
    **dict.fromkeys(
        (2, 18, 19, 20, 21, 27),  # an unknown issuer
        "name the CA that has signed it with --predictor_ca_file (or --predictor_ca_path)",
    ),
}


class Wire(NamedTuple):
    """One way to talk to a predictor: how it is called, and Triton's ``port`` for it. A client offers ``alpn`` in the
    handshake of TLS. A probe sends ``hello``; the first ``enough`` bytes that come back match ``answer``."""

    name: str
    carrier: str
    port: int
    alpn: str
    hello: bytes
    answer: re.Pattern[bytes]
    enough: int

    def described(self, tls: bool) -> str:
        return f"{self.name} ({self.carrier}) {'over TLS' if tls else 'in plain text'}"


_GET = b"GET %b HTTP/1.1\r\nHost: predictor\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
_METRICS_BYTES = 2**20  # of metrics that are read at most
ITSELF = "a service of hf-transformer, and not Triton"
OTHER_SERVERS = {b"\nhf_transformer_": ITSELF, b"\nnv_": "Triton's port for metrics"}
"""What a port is that has metrics with such names."""
# nginx, Go and Envoy answer plain HTTP on a TLS port with 400 and a text that names HTTPS.
_HTTP1 = re.compile(rb"HTTP/1\.\d (?!400.*HTTPS)", re.DOTALL)
# The preface of RFC 9113, section 3.4, and an empty SETTINGS frame. A server answers with such a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_SETTINGS = re.compile(rb".{3}\x04.\0{4}", re.DOTALL)
WIRES = {
    "v2": Wire("REST", "HTTP/1.1", 8000, "http/1.1", _GET % b"/v2/health/live", _HTTP1, 4096),
    "grpc-v2": Wire("gRPC", "HTTP/2", 8001, "h2", _PREFACE, _SETTINGS, 9),
}
"""By --predictor_protocol."""


async def address(subject: Subject) -> list[Finding]:
    """Whether the name in --predictor_host is found. Raises ConfigError where it is not an address."""
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


async def connection(subject: Subject) -> list[Finding]:
    """Whether the port accepts connections."""
    where, config = subject.address, subject.config
    named = bool(config.predictor_port) or str(where.port) in config.predictor_host
    assumed = "" if named else f" (no port is set, so it is {where.port})"
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(where.host, where.port)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        if isinstance(exc, TimeoutError):
            reason = f"no connection within {SECONDS:g} s, as behind a firewall or NetworkPolicy"
        return failed(f"{where}: {reason}{assumed}", f"correct --predictor_host or --predictor_port ({PORTS})")
    writer.close()
    return ok(f"{where} is reached")


async def protocol(subject: Subject) -> list[Finding]:
    """Whether the port speaks the protocol of the flags, over TLS if they say so. Raises ConfigError.

    It verifies no certificate: the check of TLS does that.
    """
    where, wanted = subject.address, subject.config.predictor_protocol
    own = client_certificate(predictor_settings(subject.config))
    answers = []
    for tls in (where.use_ssl, not where.use_ssl):
        for spoken in sorted(WIRES, key=lambda one: one != wanted):  # what the flags say comes first
            wire = WIRES[spoken]
            context = _trusting_context(wire, own) if tls else None
            answers.append((await asyncio.to_thread(probe, where, wire, context)).answer)
            if answers[-1] not in ("understood", "wants a certificate"):
                continue
            if (spoken, tls) == (wanted, where.use_ssl):
                return ok(wire.described(tls))
            said = WIRES[wanted].described(where.use_ssl)
            if other := await other_server(where, context) if wire is WIRES["v2"] else "":
                return failed(f"{where} is {other}", f"correct --predictor_host or --predictor_port ({PORTS})")
            return failed(f"{where} speaks {wire.described(tls)}, the flags say {said}", _flags(subject, spoken, tls))
    if answers[0] == "closed" and where.use_ssl:
        return failed(
            f"{where} closes the connection after the handshake of TLS, as one does that asks for our certificate",
            "set --predictor_cert_file and --predictor_key_file, or see the predictor's log for its reason",
        )
    if answers[0] == "silent":
        return failed(
            f"{where} takes connections and does not answer",
            "see whether the predictor hangs (its log), or correct --predictor_host and --predictor_port",
        )
    return failed(f"{where} speaks neither REST nor gRPC", f"correct --predictor_host or --predictor_port ({PORTS})")


async def other_server(where: Address, context: ssl.SSLContext | None) -> str:
    """What a port that answers HTTP is by its metrics, if it is not Triton's REST port; else an empty text."""

    def read() -> bytes:
        answer = b""
        with suppress(OSError), _connected(where, context) as connection:
            connection.sendall(_GET % b"/metrics")
            while len(answer) < _METRICS_BYTES and (more := connection.recv(_METRICS_BYTES)):
                answer += more
        return answer

    found = await asyncio.to_thread(read)
    return next((name for sign, name in OTHER_SERVERS.items() if sign in found), "")


def _flags(subject: Subject, spoken: str, tls: bool) -> str:
    """The flags for the protocol that is spoken."""
    changes, wanted = [], WIRES[subject.config.predictor_protocol]
    if WIRES[spoken] is not wanted:
        changes.append(
            f"--predictor_protocol={spoken}, or the port for {wanted.name} in --predictor_host "
            f"({wanted.port} unless Triton was told otherwise)"
        )
    if tls is not subject.address.use_ssl:
        scheme = " (or https:// in --predictor_host)" if tls else " (and no https:// in --predictor_host)"
        changes.append(f"--predictor_use_ssl={str(tls).lower()}{scheme}")
    return ", and ".join(changes)


async def tls(subject: Subject) -> list[Finding]:
    """Whether the service trusts the predictor's certificate, and the predictor ours. Raises ConfigError."""
    where, wire = subject.address, WIRES[subject.config.predictor_protocol]
    if not where.use_ssl:
        return skipped("not asked for (--predictor_use_ssl)")
    context = ssl_context(predictor_settings(subject.config))
    context.set_alpn_protocols([wire.alpn])
    seen = await asyncio.to_thread(probe, where, wire, context)
    error = seen.error
    if isinstance(error, ssl.SSLCertVerificationError):
        change = _CHANGES.get(error.verify_code, "see --predictor_ca_file and --predictor_ca_path")
        if error.verify_code in (62, 64):  # another host's name or address
            context.check_hostname = False  # the chain is verified all the same
            names = _names((await asyncio.to_thread(probe, where, wire, context)).certificate, "it has none")
            change = f"use one of its names in --predictor_host ({names}), or issue it for {where.host}"
        return failed(f"the predictor's certificate is refused: {error.verify_message}", change)
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if seen.answer == "wants a certificate":
        return failed(
            f"the predictor refuses our certificate, or asks for one: {reason}",
            "set --predictor_cert_file and --predictor_key_file to a certificate that it trusts",
        )
    if error is not None:
        return failed(f"the handshake fails: {reason}", "see the predictor's log for its reason")
    until = str(seen.certificate.get("notAfter", ""))
    left = (ssl.cert_time_to_seconds(until) - time.time()) / 86400 if until else SOON_DAYS
    found = f"{seen.version}, a certificate for {_names(seen.certificate, 'no name')} until {until or 'ever'}"
    if left < SOON_DAYS:
        return warning(found, f"renew the predictor's certificate: it ends in {left:.0f} days")
    return ok(found)


def _names(certificate: Mapping[str, Any], otherwise: str) -> str:
    names = certificate.get("subjectAltName", ())
    return ", ".join(str(name) for kind, name in names if kind in ("DNS", "IP Address")) or otherwise


@dataclass(slots=True)
class Probe:
    """How a port answers a hello. ``silent``: the connection stays open without an answer. ``closed``: it ends without
    one, after its handshake. ``error`` ended the attempt. ``certificate`` and ``version`` are those of TLS."""

    answer: Literal["understood", "wants a certificate", "something else", "silent", "closed"] = "something else"
    error: Exception | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


def probe(where: Address, wire: Wire, context: ssl.SSLContext | None) -> Probe:
    """Says hello to a port, and nothing else; over TLS with a ``context``.

    It blocks, so it runs in a thread. asyncio hides a refusal that follows the handshake, and TLS 1.3 refuses a
    client's certificate there.
    """
    seen = Probe()
    try:
        with _connected(where, context) as connection:
            if isinstance(connection, ssl.SSLSocket):
                seen.certificate, seen.version = connection.getpeercert() or {}, connection.version() or "TLS"
            seen.answer = _exchange(connection, wire)
        if seen.answer == "closed" and context is not None:
            # A client that has sent something may see a reset connection instead of the refusal.
            with _connected(where, context) as connection:
                connection.recv(1)
    except (OSError, ValueError) as error:
        seen.error = error
        refusals = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNKNOWN_CA")
        if isinstance(error, ssl.SSLError) and any(part in str(error.reason) for part in refusals):
            seen.answer = "wants a certificate"
        elif isinstance(error, TimeoutError) and seen.answer != "closed":
            seen.answer = "silent"
    return seen


@contextmanager
def _connected(where: Address, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """A connection, after its handshake if there is a ``context``. Raises OSError, of which ssl.SSLError is one."""
    with socket.create_connection((where.host, where.port), PROBE_SECONDS) as plain:
        if context is None:
            yield plain
            return
        with context.wrap_socket(plain, server_hostname=where.host.rstrip(".")) as secured:
            yield secured


def _exchange(connection: socket.socket, wire: Wire) -> Literal["understood", "something else", "closed"]:
    """Sends the hello and reads the answer. Raises TimeoutError where none comes, ssl.SSLError for an alert of TLS."""
    answer = b""
    try:
        connection.sendall(wire.hello)
        while len(answer) < wire.enough and (more := connection.recv(wire.enough)):
            answer += more
    except (ConnectionError, ssl.SSLEOFError):
        pass  # a part of the answer may be enough
    except TimeoutError:
        if not answer:
            raise
    if not answer:
        return "closed"
    return "understood" if wire.answer.match(answer) else "something else"


def _trusting_context(wire: Wire, own: KeyPair | None) -> ssl.SSLContext:
    """A context that accepts any certificate, and shows ``own`` to a server that asks for one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([wire.alpn])
    if own is not None:
        own.load_into(context)
    return context
