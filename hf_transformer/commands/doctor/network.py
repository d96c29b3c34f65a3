"""Checks of the predictor's address, protocol and TLS against the flags."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hf_transformer.app.settings import predictor_settings
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, skipped, warning
from hf_transformer.commands.other_servers import GET, connected, other_server
from hf_transformer.credentials import KeyPair
from hf_transformer.predictor.base import Address, parse_address
from hf_transformer.predictor.tls import client_certificate, ssl_context

CONNECT_SECONDS = 5.0
"""Timeout of the name resolution and of the connection."""
EXPIRY_WARNING_DAYS = 14

PORTS = "Triton listens on 8000 for REST, on 8001 for gRPC and on 8002 for metrics by default"

# Error codes from OpenSSL's x509_vfy.h, for which the ssl module has no names.
_CHANGES = {
    9: "compare the clocks of the two machines, or reissue the predictor's certificate",  # not yet valid
    10: "renew the predictor's certificate",  # expired
    **dict.fromkeys(
        (2, 18, 19, 20, 21, 27),  # an unknown issuer
        "set --predictor_ca_file (or --predictor_ca_path) to the CA that signed it",
    ),
}


class Wire(NamedTuple):
    """A protocol of a predictor, with Triton's default port.

    The TLS handshake offers ``alpn``. A probe sends ``hello``, reads ``enough`` bytes and matches ``answer``.
    """

    name: str
    carrier: str
    port: int
    alpn: str
    hello: bytes
    answer: re.Pattern[bytes]
    enough: int

    def described(self, tls: bool) -> str:
        return f"{self.name} ({self.carrier}) {'over TLS' if tls else 'in plain text'}"


# nginx, Go and Envoy answer plain HTTP on a TLS port with 400 and a text that names HTTPS.
_HTTP1 = re.compile(rb"HTTP/1\.\d (?!400.*HTTPS)", re.DOTALL)
# The preface of RFC 9113, section 3.4, and an empty SETTINGS frame. A server answers with a SETTINGS frame, too.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_SETTINGS = re.compile(rb".{3}\x04.\0{4}", re.DOTALL)
WIRES = {
    "v2": Wire("REST", "HTTP/1.1", 8000, "http/1.1", GET % b"/v2/health/live", _HTTP1, 4096),
    "grpc-v2": Wire("gRPC", "HTTP/2", 8001, "h2", _PREFACE, _SETTINGS, 9),
}
"""The protocols by value of --predictor_protocol."""


async def nothing(subject: Subject) -> None:
    """Set nothing in the subject of a later model of the predictor."""


async def address(subject: Subject) -> list[Finding]:
    """Resolve the name in --predictor_host. Raises ConfigError for a malformed address."""
    subject.address = predictor = parse_address(predictor_settings(subject.config))
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            infos = await asyncio.get_running_loop().getaddrinfo(
                predictor.host, predictor.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        return failed(
            f"no DNS answer for {predictor.host} within {CONNECT_SECONDS:g} s",
            "correct --predictor_host, or repair the DNS",
        )
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return failed(
            f"{predictor.host} can't be resolved: {reason}",
            "correct --predictor_host; in Kubernetes a service of another namespace is NAME.NAMESPACE",
        )
    numbers = ", ".join(dict.fromkeys(str(info[4][0]) for info in infos))
    return ok(numbers if numbers == predictor.host else f"{predictor.host} is {numbers}")


async def connection(subject: Subject) -> list[Finding]:
    """Open a connection to the port."""
    predictor, config = subject.address, subject.config
    named = bool(config.predictor_port) or str(predictor.port) in config.predictor_host
    assumed = "" if named else f" (no port is set, so the default, {predictor.port})"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(predictor.host, predictor.port)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        if isinstance(exc, TimeoutError):
            reason = f"no connection within {CONNECT_SECONDS:g} s, as behind a firewall or NetworkPolicy"
        return failed(f"{predictor}: {reason}{assumed}", f"correct --predictor_host or --predictor_port ({PORTS})")
    writer.close()
    return ok(f"connected to {predictor}")


async def protocol(subject: Subject) -> list[Finding]:
    """Check that the port supports the configured protocol; ``tls`` verifies certificates. Raises ConfigError."""
    predictor, wanted = subject.address, subject.config.predictor_protocol
    key_pair = client_certificate(predictor_settings(subject.config))
    answers = []
    for tls in (predictor.use_ssl, not predictor.use_ssl):
        for spoken in sorted(WIRES, key=lambda name: name != wanted):  # the protocol of the flags first
            wire = WIRES[spoken]
            context = _trusting_context(wire, key_pair) if tls else None
            answers.append((await asyncio.to_thread(probe, predictor, wire, context)).answer)
            if answers[-1] not in ("understood", "wants a certificate"):
                continue
            if (spoken, tls) == (wanted, predictor.use_ssl):
                return ok(wire.described(tls))
            configured = WIRES[wanted].described(predictor.use_ssl)
            if identity := await asyncio.to_thread(other_server, predictor, context) if wire is WIRES["v2"] else "":
                return failed(f"{predictor} is {identity}", f"correct --predictor_host or --predictor_port ({PORTS})")
            return failed(
                f"{predictor} speaks {wire.described(tls)}, the flags say {configured}", _flags(subject, spoken, tls)
            )
    if answers[0] == "closed" and predictor.use_ssl:
        return failed(
            f"{predictor} closes the connection after the TLS handshake; it may require a client certificate",
            "set --predictor_cert_file and --predictor_key_file, or see the predictor's log",
        )
    if answers[0] == "silent":
        return failed(
            f"{predictor} accepts connections but does not answer",
            "see in the predictor's log whether it hangs, or correct --predictor_host and --predictor_port",
        )
    return failed(
        f"{predictor} speaks neither REST nor gRPC", f"correct --predictor_host or --predictor_port ({PORTS})"
    )


def _flags(subject: Subject, spoken: str, tls: bool) -> str:
    """Recommend flags for the predictor's actual protocol."""
    changes, wanted = [], WIRES[subject.config.predictor_protocol]
    if WIRES[spoken] is not wanted:
        changes.append(
            f"set --predictor_protocol={spoken}, or the port for {wanted.name} in --predictor_host "
            f"(Triton's default is {wanted.port})"
        )
    if tls is not subject.address.use_ssl:
        scheme = " (or https:// in --predictor_host)" if tls else " (and no https:// in --predictor_host)"
        changes.append(f"set --predictor_use_ssl={str(tls).lower()}{scheme}")
    return ", and ".join(changes)


async def tls(subject: Subject) -> list[Finding]:
    """Check that service and predictor accept the certificates in the TLS handshake. Raises ConfigError."""
    predictor, wire = subject.address, WIRES[subject.config.predictor_protocol]
    if not predictor.use_ssl:
        return skipped("not used (--predictor_use_ssl=false)")
    context = ssl_context(predictor_settings(subject.config))
    context.set_alpn_protocols([wire.alpn])
    result = await asyncio.to_thread(probe, predictor, wire, context)
    error = result.error
    if isinstance(error, ssl.SSLCertVerificationError):
        change = _CHANGES.get(error.verify_code, "see --predictor_ca_file and --predictor_ca_path")
        if error.verify_code in (62, 64):  # a certificate for another host
            context.check_hostname = False  # OpenSSL still verifies the chain
            names = _names((await asyncio.to_thread(probe, predictor, wire, context)).certificate, "it has none")
            change = f"use one of its names in --predictor_host ({names}), or issue it for {predictor.host}"
        return failed(f"the service refuses the predictor's certificate: {error.verify_message}", change)
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if result.answer == "wants a certificate":
        return failed(
            f"the predictor refuses our certificate, or asks for one: {reason}",
            "set --predictor_cert_file and --predictor_key_file to a certificate that it trusts",
        )
    if error is not None:
        return failed(f"the TLS handshake fails: {reason}", "see the predictor's log")
    until = str(result.certificate.get("notAfter", ""))
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86400 if until else EXPIRY_WARNING_DAYS
    state = f"{result.version}, a certificate for {_names(result.certificate, 'no name')} until {until or 'ever'}"
    if days < EXPIRY_WARNING_DAYS:
        return warning(state, f"renew the predictor's certificate: it expires in {days:.0f} days")
    return ok(state)


def _names(certificate: Mapping[str, Any], otherwise: str) -> str:
    names = certificate.get("subjectAltName", ())
    return ", ".join(str(name) for kind, name in names if kind in ("DNS", "IP Address")) or otherwise


@dataclass(slots=True)
class Probe:
    """The result of a probe.

    ``answer`` is ``silent`` for an open connection without a reply, and ``closed`` if the port closes the connection
    without a reply. ``error`` ended the probe. ``certificate`` has the format of ``SSLSocket.getpeercert``.
    """

    answer: Literal["understood", "wants a certificate", "something else", "silent", "closed"] = "something else"
    error: Exception | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


def probe(address: Address, wire: Wire, context: ssl.SSLContext | None) -> Probe:
    """Send ``wire.hello`` to a port. A ``context`` enables TLS.

    The function blocks, because asyncio hides TLS alerts after the handshake. TLS 1.3 servers refuse a client
    certificate with such an alert.
    """
    result = Probe()
    try:
        with connected(address, context) as connection:
            if isinstance(connection, ssl.SSLSocket):
                result.certificate, result.version = connection.getpeercert() or {}, connection.version() or "TLS"
            result.answer = _exchange(connection, wire)
        if result.answer == "closed" and context is not None:
            # After a write, a reset may hide the alert, so this connection only reads.
            with connected(address, context) as connection:
                connection.recv(1)
    except (OSError, ValueError) as error:
        result.error = error
        refusals = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNKNOWN_CA")
        if isinstance(error, ssl.SSLError) and any(part in str(error.reason) for part in refusals):
            result.answer = "wants a certificate"
        elif isinstance(error, TimeoutError) and result.answer != "closed":
            result.answer = "silent"
    return result


def _exchange(connection: socket.socket, wire: Wire) -> Literal["understood", "something else", "closed"]:
    """Send ``wire.hello`` and classify the answer. Raises TimeoutError without an answer, ssl.SSLError for an alert."""
    answer = b""
    try:
        connection.sendall(wire.hello)
        while len(answer) < wire.enough and (more := connection.recv(wire.enough)):
            answer += more
    except (ConnectionError, ssl.SSLEOFError):
        pass  # the received bytes may suffice
    except TimeoutError:
        if not answer:
            raise
    if not answer:
        return "closed"
    return "understood" if wire.answer.match(answer) else "something else"


def _trusting_context(wire: Wire, key_pair: KeyPair | None) -> ssl.SSLContext:
    """A context that accepts any server certificate, and presents ``key_pair`` on request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([wire.alpn])
    if key_pair is not None:
        key_pair.load_into(context)
    return context
