"""The predictor's certificate, and ours where it asks for one."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hf_transformer.commands.doctor.findings import Finding, failed, ok, skipped, warning
from hf_transformer.commands.doctor.hello import ALPN, HELLO, SECONDS, asks_for_certificate, await_refusal, connected
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.model_wiring import predictor_settings
from hf_transformer.predictor.base import Address
from hf_transformer.predictor.tls import ssl_context

SOON_DAYS = 14
"""How long before its end a certificate is worth a warning."""

# From OpenSSL's x509_vfy.h; the ssl module has them as numbers only.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 27})
_OTHER_NAME = frozenset({62, 64})


async def tls(subject: Subject) -> Sequence[Finding]:
    """Whether the service trusts the predictor, and is trusted. Raises ConfigError for certificates of no use."""
    where = known(subject.address)
    if not where.use_ssl:
        return skipped("not asked for (--predictor_use_ssl)")
    context = ssl_context(predictor_settings(subject.config))
    context.set_alpn_protocols([ALPN[subject.config.predictor_protocol]])
    try:
        certificate, version = await asyncio.to_thread(
            _handshake, where, context, HELLO[subject.config.predictor_protocol]
        )
    except ssl.SSLCertVerificationError as exc:
        change = await asyncio.to_thread(_change, where, exc, context)
        return failed(f"the predictor's certificate is refused: {exc.verify_message}", change)
    except ssl.SSLError as exc:
        if asks_for_certificate(exc):
            return failed(
                f"the predictor refuses our certificate, or asks for one: {exc.reason}",
                "set --predictor_cert_file and --predictor_key_file to a certificate that it trusts",
            )
        return failed(f"the handshake fails: {exc.reason or exc}", "see the predictor's log for its reason")
    except OSError as exc:
        return failed(f"the handshake fails: {exc or type(exc).__name__}", "see the predictor's log for its reason")
    return _valid(certificate, version)


def _valid(certificate: Mapping[str, Any], version: str) -> Sequence[Finding]:
    """A certificate that is trusted, perhaps not for long."""
    until = str(certificate.get("notAfter", ""))
    left = (ssl.cert_time_to_seconds(until) - time.time()) / 86400 if until else SOON_DAYS
    found = f"{version}, a certificate for {', '.join(_names(certificate)) or 'no name'} until {until or 'ever'}"
    if left < SOON_DAYS:
        return warning(found, f"renew the predictor's certificate: it ends in {left:.0f} days")
    return ok(found)


def _handshake(where: Address, context: ssl.SSLContext, hello: bytes) -> tuple[Mapping[str, Any], str]:
    """The predictor's certificate and TLS' version, once it has answered. Raises OSError."""
    with connected(where, context, SECONDS) as connection:
        if not isinstance(connection, ssl.SSLSocket):
            raise TypeError("the connection is not secured")
        found = connection.getpeercert() or {}, connection.version() or "TLS"
        try:
            connection.sendall(hello)
            answered = connection.recv(1) != b""
        except (ConnectionError, TimeoutError, ssl.SSLEOFError):
            answered = False
    if not answered:
        await_refusal(where, context)
    return found


def _change(where: Address, error: ssl.SSLCertVerificationError, context: ssl.SSLContext) -> str:
    if error.verify_code == _EXPIRED:
        return "renew the predictor's certificate"
    if error.verify_code == _NOT_YET_VALID:
        return "compare the clocks of the two machines, or issue the predictor's certificate anew"
    if error.verify_code in _UNKNOWN_ISSUER:
        return "name the CA that has signed it with --predictor_ca_file (or --predictor_ca_path)"
    if error.verify_code in _OTHER_NAME:
        names = ", ".join(_names_there(where, context))
        return f"use one of its names in --predictor_host ({names or 'it has none'}), or issue it for {where.host}"
    return "see --predictor_ca_file and --predictor_ca_path"


def _names_there(where: Address, context: ssl.SSLContext) -> list[str]:
    """The names in a certificate that is trusted, but has another name than --predictor_host."""
    context.check_hostname = False  # the chain is verified all the same
    with suppress(OSError), connected(where, context, SECONDS) as connection:
        if isinstance(connection, ssl.SSLSocket):
            return _names(connection.getpeercert() or {})
    return []


def _names(certificate: Mapping[str, Any]) -> list[str]:
    return [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
