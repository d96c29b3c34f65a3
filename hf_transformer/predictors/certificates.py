"""The certificates that the predictor's own is checked against."""

from __future__ import annotations

import ssl
from pathlib import Path

from hf_transformer.errors import ConfigError
from hf_transformer.predictors.base import PredictorSettings

_BEGIN = "-----BEGIN CERTIFICATE-----"


def root_certificates(settings: PredictorSettings) -> str | None:
    """PEM text of ``ca_file`` and of the files in ``ca_path``; None where neither is set (the system's then).

    A folder is read as it is, without the hashed names that OpenSSL wants, because a mounted ConfigMap has
    none.

    Raises:
        ConfigError: a file can't be read, or none has a certificate.
    """
    if settings.ca_file is None and settings.ca_path is None:
        return None
    try:
        paths = [] if settings.ca_file is None else [Path(settings.ca_file)]
        if settings.ca_path is not None:
            paths += sorted(path for path in Path(settings.ca_path).iterdir() if path.is_file())
        texts = [path.read_bytes().decode("ascii", "replace") for path in paths]
    except OSError as exc:
        raise ConfigError(f"the predictor's CA certificates can't be read: {exc}") from exc
    pem = "\n".join(text for text in texts if _BEGIN in text)
    if not pem:
        raise ConfigError(f"no certificate in {', '.join(filter(None, (settings.ca_file, settings.ca_path)))}")
    return pem


def ssl_context(settings: PredictorSettings) -> ssl.SSLContext:
    """A client's context: host names are checked, and versions older than TLS 1.2 refused.

    Raises:
        ConfigError: the certificates can't be used.
    """
    try:
        return ssl.create_default_context(cadata=root_certificates(settings))
    except ssl.SSLError as exc:
        raise ConfigError(f"the predictor's CA certificates can't be used: {exc}") from exc
