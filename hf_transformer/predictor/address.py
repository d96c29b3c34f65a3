"""--predictor_host, read once for every transport."""

from __future__ import annotations

from dataclasses import dataclass

from hf_transformer.errors import ConfigError
from hf_transformer.predictor.base import PredictorSettings


@dataclass(frozen=True, slots=True)
class Address:
    """Where the predictor listens. ``host`` has no brackets, also where it is an IPv6 address."""

    host: str
    port: int
    use_ssl: bool

    def __str__(self) -> str:
        """``host:port``, as a URL and a gRPC target want it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(settings: PredictorSettings) -> Address:
    """Reads ``name``, ``name:port``, ``[::1]:port`` and the like, also as a URL (``http://name:port``).

    A scheme decides about TLS, ``use_ssl`` where there is none. Without a port it is 80, or 443 with TLS.

    Raises:
        ConfigError: there is no host, the port is no port, or something follows it.
    """
    scheme, separator, rest = settings.host.strip().rpartition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise _wrong(settings, f"the scheme {scheme!r} is neither http nor https")
    use_ssl = scheme.lower() == "https" if separator else settings.use_ssl
    rest = rest.removesuffix("/")
    if any(character in rest for character in "/?#@") or any(character.isspace() for character in rest):
        raise _wrong(settings, "only a host and a port can be given")
    host, port = _split(settings, rest)
    if not host:
        raise _wrong(settings, "it names no host")
    if not port:
        return Address(host, 443 if use_ssl else 80, use_ssl)
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise _wrong(settings, f"{port!r} is not a port number")
    return Address(host, int(port), use_ssl)


def _split(settings: PredictorSettings, text: str) -> tuple[str, str]:
    """Host and port, the port empty where there is none."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or ":" not in host or (port and not port.startswith(":")):
            raise _wrong(settings, "an IPv6 address with a port is written [address]:port")
        return host, port[1:]
    if text.count(":") > 1:  # an IPv6 address without brackets can't have a port
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _wrong(settings: PredictorSettings, why: str) -> ConfigError:
    return ConfigError(f"predictor_host is {settings.host!r}: {why}")
