"""TLS to the predictor: trusted CA certificates and the client certificate."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hf_transformer.credentials import KeyPair, read_key_pair, read_small
from hf_transformer.errors import ConfigError
from hf_transformer.predictor.base import PredictorSettings

_BEGIN = "-----BEGIN CERTIFICATE-----"


def root_certificates(settings: PredictorSettings) -> str | None:
    """PEM text of ``ca_file`` and of the files in ``ca_path``; None for the system's certificates if neither is set.

    Files in the folder may have any names: a mounted ConfigMap lacks the hashed names that OpenSSL needs. Raises
    ConfigError for an unreadable file, or if one of the two has no certificate.
    """
    return _certificates(settings.ca_file, settings.ca_path)


def system_certificates() -> str | None:
    """PEM text of the certificates that OpenSSL trusts by default; None if there are none."""
    paths = ssl.get_default_verify_paths()
    with suppress(ConfigError):
        return _certificates(paths.cafile, None if paths.cafile else paths.capath)
    return None


def _certificates(file: str | None, folder: str | None) -> str | None:
    pems = []
    try:
        if file is not None:
            pems.append(_certificates_in([Path(file)], file))
        if folder is not None:
            pems.append(_certificates_in(_files_in(folder), folder))
    except OSError as exc:
        raise ConfigError(f"the predictor's CA certificates can't be read: {exc}") from exc
    return "\n".join(pems) or None


def _files_in(folders: str) -> list[Path]:
    """The files of one folder, or of several separated by colons as in SSL_CERT_DIR."""
    paths = [Path(folder) for folder in folders.split(":") if folder]
    paths = [path for path in paths if path.is_dir()] or paths
    return sorted(file for path in paths for file in path.iterdir() if file.is_file())


def _certificates_in(paths: Sequence[Path], source: str) -> str:
    texts = [read_small(path).decode("ascii", "replace") for path in paths]
    pem = "\n".join(text for text in texts if _BEGIN in text)
    if not pem:
        raise ConfigError(f"no certificate in {source}")
    return pem


def client_certificate(settings: PredictorSettings) -> KeyPair | None:
    """The certificate and key for mutual TLS, None if not configured. Raises ConfigError."""
    if settings.cert_file is None or settings.key_file is None:
        return None
    return read_key_pair(settings.cert_file, settings.key_file, ("predictor_cert_file", "predictor_key_file"))


def ssl_context(settings: PredictorSettings) -> ssl.SSLContext:
    """The client's TLS context, with host name checks and TLS 1.2 or newer. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cadata=root_certificates(settings))
    except ssl.SSLError as exc:
        raise ConfigError(f"the predictor's CA certificates can't be used: {exc}") from exc
    if pair := client_certificate(settings):
        pair.load_into(context)
    return context
