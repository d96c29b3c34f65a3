"""--predictor_host, read once for every transport."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hf_transformer.errors import ConfigError
from hf_transformer.predictor.base import PredictorSettings

_ADDRESS = re.compile(
    r"""(?: (?P<scheme> https? ) :// )?
    (?: \[ (?P<bracketed> [^]\s/?#@]*:[^]\s/?#@]* ) \]
      | (?P<ipv6> [^][\s/?#@]*:[^][\s/?#@]*:[^][\s/?#@]* )  # without brackets it can't have a port
      | (?P<name> [^][:\s/?#@]+ ) )
    (?: : (?P<port> [0-9]{1,5} ) )? /?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


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
        ConfigError: it is anything else.
    """
    found = _ADDRESS.fullmatch(settings.host.strip())
    if found is None or not 0 < int(found["port"] or 80) < 65536:
        expected = "HOST, HOST:PORT or [IPV6]:PORT, or an http:// or https:// URL of nothing else"
        raise ConfigError(f"predictor_host is {settings.host!r}, expected {expected}")
    use_ssl = found["scheme"].lower() == "https" if found["scheme"] else settings.use_ssl
    host = found["bracketed"] or found["ipv6"] or found["name"]
    return Address(host, int(found["port"] or (443 if use_ssl else 80)), use_ssl)
